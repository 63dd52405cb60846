/* comm/operation.h - one call of a collective, a send or a receive: its arguments, which rank sends what to which, and
 * its description. */
#ifndef LK__OPERATION_H
#define LK__OPERATION_H

#include "base/base.h"
#include "base/collective.h"

#include <lockstep/comm.h>

const char *lk__comm_kind_name(lk__comm_kind kind); /* "?": there is no such kind */

/* One call, as its rank made it. Split and alloc gather a few bytes from every rank; `bytes` is alloc's argument. */
typedef struct lk__comm_call {
    lk__comm_kind kind;
    lk_dtype      type;
    lk_reduce_op  reduce;
    int           root; /* or the other rank of a send or receive */
    int           tag;
    size_t        count, bytes;
    /* Above 1, for an all_gather or reduce_scatter that is not in place: what is gathered or scattered has this many
     * rows, in each of which the ranks' parts follow each other. A part is its rows, contiguous; they divide
     * `count`. */
    size_t      rows;
    const void *send;
    void       *recv;
    /* NULL: `count` each, contiguous */
    const size_t *send_counts, *send_displacements, *recv_counts, *recv_displacements;
    lk_site       site;
} lk__comm_call;

/* "#17 all_reduce f32 × 1000 sum at train.c:55". */
void lk__call_describe(const lk__comm_call *operation, uint64_t number, char *out, size_t bytes);

/* ---- which rank sends what to which ---- */

/* What `rank` sends in a collective: nothing, the same to all, or a part to each. */
typedef enum lk__comm_send_pattern { LK__SEND_NONE, LK__SEND_ALL, LK__SEND_PARTS } lk__comm_send_pattern;
static inline const lk__collective_facts *lk__call_facts(const lk__comm_call *o) { return &lk__collectives[o->kind]; }

static inline bool lk__call_is_one_of(lk__collective_ranks ranks, const lk__comm_call *o, int rank)
{
    return ranks == LK__RANKS_ALL || (ranks == LK__RANKS_ROOT && rank == o->root);
}

static inline lk__comm_send_pattern lk__call_send_pattern(const lk__comm_call *o, int rank)
{
    const lk__collective_facts *facts = lk__call_facts(o);
    if (!lk__call_is_one_of(facts->senders, o, rank)) return LK__SEND_NONE;
    return facts->sends_parts ? LK__SEND_PARTS : LK__SEND_ALL;
}

static inline bool lk__call_reduces(const lk__comm_call *o) { return lk__call_facts(o)->reduces; }

/* All ranks receive the root's whole buffer: they can pass slices of it on. */
static inline bool lk__call_forwards(const lk__comm_call *o)
{
    return lk__call_facts(o)->senders == LK__RANKS_ROOT && !lk__call_facts(o)->sends_parts;
}

static inline bool lk__call_receives(const lk__comm_call *o, int rank)
{
    return lk__call_is_one_of(lk__call_facts(o)->receivers, o, rank);
}

/* Elements that `from` sends to `to`. `rank`, whose call this is, must be one of the two. */
static inline size_t lk__call_count(const lk__comm_call *o, int rank, int from, int to)
{
    if (o->send_counts) return from == rank ? o->send_counts[to] : o->recv_counts[from];
    return o->recv_counts ? o->recv_counts[from] : o->count;
}

/* Elements of the largest part that any rank sends; computed only from what all ranks know. */
size_t lk__call_largest(const lk__comm_call *operation, int ranks);

/* The ranks' parts are contiguous in the receive buffer. */
static inline bool lk__call_gathers(const lk__comm_call *o)
{
    return lk__call_facts(o)->receives_parts && !lk__call_facts(o)->counts;
}

/* Where the part of `rank` for `to` begins in its send buffer, and where the part of `from` begins in a receive buffer;
 * `size` is the size of an element. */
static inline const char *lk__call_send_part(const lk__comm_call *o, int rank, int to, size_t size)
{
    size_t at = lk__call_send_pattern(o, rank) != LK__SEND_PARTS ? 0
                : o->send_displacements                          ? o->send_displacements[to]
                                                                 : (size_t)to * o->count;
    return o->send ? (const char *)o->send + at * size : NULL;
}

static inline char *lk__call_recv_part(const lk__comm_call *o, int from, size_t size)
{
    size_t at = o->recv_displacements ? o->recv_displacements[from] : lk__call_gathers(o) ? (size_t)from * o->count : 0;
    return o->recv ? (char *)o->recv + at * size : NULL;
}

/* ---- parts in rows ---- */

static inline bool lk__call_has_rows(const lk__comm_call *o) { return o->rows > 1; }

/* Elements [first, first + count) of a rank's part. */
typedef struct lk__comm_range {
    int    part, ranks;
    size_t first, count;
} lk__comm_range;

static inline size_t lk__call_row(const lk__comm_call *o)
{
    return lk__call_has_rows(o) ? o->count / o->rows : o->count;
}

/* How many of them, from the first on, are contiguous in what all ranks have; and where that is, in elements. */
static inline size_t lk__range_contiguous(const lk__comm_call *o, const lk__comm_range *r)
{
    size_t row = lk__call_row(o), left = row - r->first % row;
    return left < r->count ? left : r->count;
}
static inline size_t lk__range_at(const lk__comm_call *o, const lk__comm_range *r)
{
    size_t row = lk__call_row(o);
    return (r->first / row * (size_t)r->ranks + (size_t)r->part) * row + r->first % row;
}

/* Copies them from the send buffer, or to the receive buffer, which has the parts of all ranks. */
void lk__range_pack(const lk__comm_call *operation, lk__comm_range range, void *packed);
void lk__range_unpack(const lk__comm_call *operation, lk__comm_range range, const void *packed);

/* Bytes of the two buffers that `rank`, whose call this is, reads and writes: from their start to the end of their last
 * part. */
typedef struct lk__comm_extents {
    size_t send, recv;
} lk__comm_extents;
lk__comm_extents lk__call_extents(const lk__comm_call *operation, int rank, int ranks);
/* Whether its buffers do not overlap, or are in place as the kind allows it. */
bool lk__call_buffers_fit(const lk__comm_call *operation, int rank, int ranks);

#endif
