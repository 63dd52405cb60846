/* comm/verdict.h - the message and the table that explain a failure or a stall, for all backends. */
#ifndef LK__VERDICT_H
#define LK__VERDICT_H

#include "comm/comm.h"

/* Built with LK_UNCHECKED, calls are neither recorded nor compared. Such a build serves only to measure their cost. */
#ifdef LK_UNCHECKED
enum { LK__CHECKED = 0 };
#else
enum { LK__CHECKED = 1 };
#endif

enum { LK__FILE_NAME = 112, LK__HOST_NAME = 64, LK__BUSY_TEXT = 64 };

/* One call, without its buffers. In shared memory other ranks read it only after a failure or a stall, possibly while
 * it changes: a line of the table may then mix two calls, which is harmless. */
typedef struct lk__comm_record {
    uint64_t number; /* of the collective; 0: a send or receive */
    int32_t  kind, type, reduce, root, tag, line, reserved[2];
    uint64_t count, bytes;
} lk__comm_record;

void lk__comm_record_make(lk__comm_record *record, const lk__comm_call *operation, uint64_t number);
/* The end of a file name that is too long for LK__FILE_NAME. */
const char *lk__file_tail(const char *file);
/* What ranks compare to find out whether they made the same call: one multiplication, except for calls with a count for
 * each rank. Calls that differ only in small numbers never have the same signature. */
uint64_t lk__signature_with_counts(uint64_t signature, const size_t *counts, int ranks);

static inline uint64_t lk__call_signature(const lk__comm_call *o, int ranks)
{
    if (!LK__CHECKED) return 0;
    uint64_t what = (uint64_t)o->kind | (uint64_t)o->type << 8 | (uint64_t)o->reduce << 16 | (uint64_t)o->root << 24;
    if (lk__call_has_rows(o)) what |= (uint64_t)o->rows << 40;
    uint64_t signature = ((uint64_t)o->count + ((uint64_t)o->bytes << 20)) * 0x9E3779B97F4A7C15u ^ what;
    if (!o->recv_counts || o->send_counts) return signature;
    return lk__signature_with_counts(signature, o->recv_counts, ranks);
}

/* What is known about a rank. */
typedef struct lk__comm_rank_view {
    char            host[LK__HOST_NAME], busy[LK__BUSY_TEXT]; /* busy: "": not busy */
    int64_t         pid;
    uint64_t        entered, left; /* operations begun, and ended: equal outside any operation */
    uint64_t        failed;        /* the latest of them that failed; 0: none */
    double          since;         /* seconds since the latest change of the two */
    lk__comm_record records[2];    /* of operation number `entered` and the one before, by parity */
    char            files[2][LK__FILE_NAME];
    bool            gone, dead, stopped, cut_off, silent, broken; /* broken: a connection to it was closed */
    bool            elsewhere;    /* in no operation of this group: it waits in one of another, or has failed there */
    bool            only_arrived; /* the last message from it was its arrival at its latest operation */
} lk__comm_rank_view;

/* How long a deadline is postponed where all missing ranks wait in other groups: those began to wait at another time,
 * and the failure that they report names the cause. */
int64_t lk__verdict_put_off_ms(const lk_comm *comm);

typedef struct lk__comm_table {
    lk_comm *comm;
    int      rank, size;
    void    *state;
    void (*view)(void *state, int rank, lk__comm_rank_view *view);
    bool outside; /* for lk__verdict_lost: this rank is in no call */
} lk__comm_table;

typedef struct lk__comm_report {
    char           text[LK__COMM_TEXT];
    size_t         used;
    lk__comm_cause cause; /* the rank that the message names */
} lk__comm_report;

/* "rank 1 of 3 (host, pid 4) did not complete #17 all_reduce … within 600.0 s, reports rank 0", or, of a call that has
 * not `ended`, "… has been missing for 12.0 s in #17 all_reduce …, reports rank 0"; and the table. */
void lk__verdict_late(const lk__comm_table *table, const bool *missing, double seconds, bool ended,
                      lk__comm_report *report);
void lk__verdict_lost(const lk__comm_table *table, int peer, lk__comm_report *report);
void lk__verdict_mismatch(const lk__comm_table *table, int peer, uint64_t number, lk__comm_report *report);
/* What `rank` receives was sent with another type or count. Of `sent`, type, count, tag and line are used. */
void lk__verdict_type_mismatch(const lk__comm_call *receive, int rank, const lk__comm_record *sent, const char *file,
                               lk__comm_report *report);
/* `peer` waits for this rank in a collective, while this rank waits for it in a send or receive. */
void lk__verdict_crossed(const lk__comm_table *table, int peer, const lk__comm_call *transfer, lk__comm_report *report);

#endif
