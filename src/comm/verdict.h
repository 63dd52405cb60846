/* comm/verdict.h - the sentences and the table that explain a failure or a stall, whatever carries the group. */
#ifndef LK__VERDICT_H
#define LK__VERDICT_H

#include "comm/comm.h"

/* Built with LK_UNCHECKED, calls are neither noted nor compared, so that one can measure what that costs. Nothing else
 * is such a build for. */
#ifdef LK_UNCHECKED
enum { LK__CHECKED = 0 };
#else
enum { LK__CHECKED = 1 };
#endif

enum { LK__FILE_NAME = 112, LK__HOST_NAME = 64, LK__BUSY_TEXT = 64 };

/* One call, without its buffers. Where ranks share memory it is read by others only when something is wrong, possibly
 * while it changes: a line of the table may then be a mixture of two calls, which does no harm. */
typedef struct lk__comm_record {
    uint64_t number; /* of the collective; 0: a send or receive */
    int32_t  kind, type, reduce, root, tag, line, reserved[2];
    uint64_t count, bytes;
} lk__comm_record;

void lk__comm_record_make(lk__comm_record *record, const lk__comm_call *operation, uint64_t number);
/* The end of a name that is too long says most. */
const char *lk__file_tail(const char *file);
/* What ranks compare to see whether they made the same call: one multiplication, but for calls with a count for each
 * rank. Calls that differ only in small numbers never look alike. */
uint64_t lk__signature_with_counts(uint64_t signature, const size_t *counts, int ranks);

static inline uint64_t lk__call_signature(const lk__comm_call *o, int ranks)
{
    if (!LK__CHECKED) return 0;
    uint64_t what = (uint64_t)o->kind | (uint64_t)o->type << 8 | (uint64_t)o->reduce << 16 | (uint64_t)o->root << 24;
    uint64_t signature = ((uint64_t)o->count + ((uint64_t)o->bytes << 20)) * 0x9E3779B97F4A7C15u ^ what;
    if (!o->recv_counts || o->kind == LK__ALL_TO_ALLV) return signature;
    return lk__signature_with_counts(signature, o->recv_counts, ranks);
}

/* What is known about a rank. */
typedef struct lk__comm_rank_view {
    char            host[LK__HOST_NAME], busy[LK__BUSY_TEXT]; /* busy: "" not */
    int64_t         pid;
    uint64_t        entered, left; /* operations begun, and ended: equal outside of any */
    uint64_t        failed;        /* which of them failed, the latest; 0: none */
    double          since;         /* seconds since the latest change of the two */
    lk__comm_record records[2];    /* of operation number `entered` and the one before, by parity */
    char            files[2][LK__FILE_NAME];
    bool gone, dead, stopped, cut_off, silent, broken; /* broken: it, or something between, closed a connection */
    bool only_came; /* that it came to its latest operation is the last that was heard of it */
} lk__comm_rank_view;

typedef struct lk__comm_table {
    lk_comm *comm;
    int      rank, size;
    void    *state;
    void (*view)(void *state, int rank, lk__comm_rank_view *view);
} lk__comm_table;

typedef struct lk__comm_page {
    char           text[LK__COMM_TEXT];
    size_t         used;
    lk__comm_cause cause; /* whom the sentence names */
} lk__comm_page;

/* "rank 1 of 3 (host, pid 4) did not do its part within 600.0 s in …, says rank 0", and the table. */
void lk__verdict_late(const lk__comm_table *table, const bool *missing, double seconds, const char *verb,
                      lk__comm_page *page);
void lk__verdict_lost(const lk__comm_table *table, int peer, lk__comm_page *page);
void lk__verdict_mismatch(const lk__comm_table *table, int peer, uint64_t number, lk__comm_page *page);
/* What `rank` receives was sent as another type or count: type, count, tag and line of the record count, and the file's name. */
void lk__verdict_unlike(const lk__comm_call *receive, int rank, const lk__comm_record *sent, const char *file,
                        lk__comm_page *page);
/* `peer` waits for this rank in a collective, and this rank for it in a send or receive. */
void lk__verdict_crossed(const lk__comm_table *table, int peer, const lk__comm_call *transfer, lk__comm_page *page);

#endif
