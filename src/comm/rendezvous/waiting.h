/* comm/waiting.h - what a rank says in its log while others have not joined: after 5 s, then once a minute, who is missing and how
 * they are started. */
#ifndef LK__WAITING_H
#define LK__WAITING_H

#include "comm/rendezvous/identity.h"

typedef struct lk__rendezvous_waiting {
    lk_context                    *context;
    const lk__rendezvous_identity *place; /* NULL: of ranks that have joined already, and nothing is said */
    int                            rank, size;
    double                         begun, end; /* by lk__now */
    double                         next;       /* when the next line is due */
} lk__rendezvous_waiting;

void lk__waiting_begin(lk__rendezvous_waiting *waiting, lk_context *context, const lk__rendezvous_identity *place,
                       int rank, int size, double end);
bool lk__waiting_due(lk__rendezvous_waiting *waiting); /* and puts the next line off */
/* Rank 0's: missing[i] says whether rank i is. */
void lk__waiting_for_ranks(const lk__rendezvous_waiting *waiting, const bool *missing);
/* The others': where they look for rank 0, and what came of it. On each host one rank says it. */
void lk__waiting_for_master(const lk__rendezvous_waiting *waiting, const char *where, const char *why);

#endif
