/* comm/rendezvous/waiting.h - log lines while ranks have not joined: after 5 s, then once a minute, which ranks are
 * missing and how they are started. */
#ifndef LK__WAITING_H
#define LK__WAITING_H

#include "comm/rendezvous/identity.h"

typedef struct lk__rendezvous_waiting {
    lk_context                    *context;
    const lk__rendezvous_identity *identity; /* NULL: the ranks have joined already, and nothing is logged */
    int                            rank, size;
    double                         begun, end; /* by lk__now */
    double                         next;       /* when the next line is due */
} lk__rendezvous_waiting;

void lk__waiting_begin(lk__rendezvous_waiting *waiting, lk_context *context, const lk__rendezvous_identity *identity,
                       int rank, int size, double end);
bool lk__waiting_due(lk__rendezvous_waiting *waiting); /* and schedules the next line */
/* On rank 0: missing[i] says whether rank i is missing. */
void lk__waiting_for_ranks(const lk__rendezvous_waiting *waiting, const bool *missing);
/* On other ranks: where they try to reach rank 0, and the last error. One rank of each host logs it. */
void lk__waiting_for_master(const lk__rendezvous_waiting *waiting, const char *where, const char *why);

#endif
