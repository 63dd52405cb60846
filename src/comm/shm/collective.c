/* collective.c - the collectives over shared memory. Three algorithms, by size and by where the buffers are:
 *
 *   small    the data is in the arrivals: one exchange;
 *   direct   all buffers are in symmetric memory: ranks read and write each other's, nothing is copied;
 *   staged   everything else, in chunks through buffers in the shared memory, copying one chunk while another is
 *            processed. all_to_allv.c chooses between this and arrivals by counts that it exchanges.
 *
 * In each of them a rank computes its own slice only, and elements are independent, so all three give the same bits. */
#include "base/reduce.h"
#include "base/reduce_wide.h"
#include "comm/shm/job.h"

#include <stdio.h>
#include <string.h>

typedef lk__shm_job job;

/* Every rank reduces a slice, which others receive. */
static bool reduces_whole(const lk__comm_call *o) { return lk__call_reduces(o) && !lk__call_facts(o)->sends_parts; }

/* In place, what a rank receives replaces what others have yet to read. */
static bool overwrites_parts(const lk__comm_call *o)
{
    return lk__call_facts(o)->sends_parts && lk__call_facts(o)->receives_parts;
}

/* Of this call: elements [first, first + count) of the part of `rank`. */
static lk__comm_range part_range(const job *j, int rank, size_t first, size_t count)
{
    return (lk__comm_range){.part = rank, .ranks = j->s->size, .first = first, .count = count};
}

static size_t part_count(const job *j, int from, int to) { return lk__call_count(j->o, j->s->rank, from, to); }
static bool   receives(const job *j) { return lk__call_receives(j->o, j->s->rank); }

/* ---- arrivals ---- */

static const lk__shm_symmetric *symmetric_of(const lk__shm *s, const void *buffer)
{
    const lk__shm_symmetric *y = s->symmetric;
    while (y && (uintptr_t)buffer - (uintptr_t)lk__shm_part(y, s->rank) >= y->stride) y = y->next;
    return y;
}

static uint64_t symmetric_location(const lk__shm *s, const void *buffer)
{
    const lk__shm_symmetric *y = symmetric_of(s, buffer);
    return y ? y->id << 40 | ((uintptr_t)buffer - (uintptr_t)lk__shm_part(y, s->rank)) : 0;
}

/* After the end of a rank's part another rank's begins. */
static lk_status check_end(lk__shm *s, const lk__comm_call *o, const lk__shm_symmetric *y, const void *buffer,
                           size_t bytes)
{
    size_t at = y ? (uintptr_t)buffer - (uintptr_t)lk__shm_part(y, s->rank) : 0;
    if (!y || !bytes || (at <= y->bytes && bytes <= y->bytes - at)) return LK_OK;
    return lk__fail(s->comm->context, LK_EINVAL,
                    "%s:%d: %s: %zu bytes starting at byte %zu exceed the %zu bytes allocated by lk_comm_alloc",
                    o->site.file, o->site.line, lk__comm_kind_name(o->kind), bytes, at, y->bytes);
}

static lk_status check_ends(lk__shm *s, const lk__comm_call *o)
{
    const lk__comm_call *f = &s->fits; /* most calls are repeated */
    if (o->send == f->send && o->recv == f->recv && o->count == f->count && o->kind == f->kind && o->type == f->type &&
        !o->recv_counts)
        return LK_OK;
    const lk__shm_symmetric *send = symmetric_of(s, o->send), *recv = symmetric_of(s, o->recv);
    lk__comm_extents         e = send || recv ? lk__call_extents(o, s->rank, s->size) : (lk__comm_extents){0, 0};
    lk_status                status = check_end(s, o, send, o->send, e.send);
    if (status >= 0) status = check_end(s, o, recv, o->recv, e.recv);
    if (status >= 0) s->fits = *o;
    return status;
}

/* The buffer of `rank` at a location it published, in an allocation that this rank uses too. */
static char *symmetric_at(const lk__shm *s, int rank, uint64_t location)
{
    const lk__shm_symmetric *y = s->symmetric;
    while (y->id != location >> 40) y = y->next;
    return lk__shm_part(y, rank) + (location & (((uint64_t)1 << 40) - 1));
}

lk_status lk__shm_publish_and_await(lk__shm *s, const lk__comm_call *o, uint32_t number)
{
    lk__shm_arrival *mine = &s->me->arrivals[number & 1];
    const uint64_t   signature = mine->signature = lk__call_signature(o, s->size);
    lk__shm_post(s, &mine->number, number);
    lk__shm_enter(s, o, s->number);
    for (int i = 0; i < s->size; i++) {
        lk__shm_arrival *other = &s->rank_slots[i].arrivals[number & 1];
        if (i == s->rank) continue;
        lk_status status = lk__shm_await(s, i, &other->number, number);
        if (status < 0) return status;
        if (LK__CHECKED && other->signature != signature) return lk__shm_mismatch(s, i);
    }
    return LK_OK;
}

/* Publishes a step of this rank, counted from the start of the call; and waits until all have done it. */
static void publish_step(const job *j, uint32_t n)
{
    lk__shm_post(j->s, &j->s->me->progress, j->s->progress = j->base + n);
}

static lk_status await_step(const job *j, uint32_t n)
{
    for (int i = 0; i < j->s->size; i++) {
        if (i == j->s->rank) continue;
        lk_status status = lk__shm_await(j->s, i, &j->s->rank_slots[i].progress, j->base + n);
        if (status < 0) return status;
    }
    return LK_OK;
}

/* ---- publishing and taking parts, used by all algorithms ---- */

static void copy_part(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memcpy(to, from, bytes);
}

/* Publishes elements [first, first + n) of every part, as many as there are, parts n elements apart. The own part is
 * not copied. */
static void publish_parts(const job *j, char *to, size_t first, size_t n)
{
    lk__shm              *s = j->s;
    lk__comm_send_pattern what = lk__call_send_pattern(j->o, s->rank);
    if (what == LK__SEND_NONE) return;
    for (int i = 0; i < (what == LK__SEND_PARTS ? s->size : 1); i++) {
        size_t count = part_count(j, s->rank, i), here = count > first ? count - first : 0;
        if (here > n) here = n;
        if (what == LK__SEND_PARTS && i == s->rank) continue;
        if (what == LK__SEND_PARTS && lk__call_has_rows(j->o))
            lk__range_pack(j->o, part_range(j, i, first, here), to + (size_t)i * n * j->size);
        else
            copy_part(to + (size_t)i * n * j->size, lk__call_send_part(j->o, j->s->rank, i, j->size) + first * j->size,
                      here * j->size);
        s->sent += here * j->size;
    }
}

/* The same of a sum of parts in rows. base: by rank, what it published, or its send buffer where `direct`. */
static void reduce_rows(const job *j, char *const *base, size_t first, size_t count, bool direct)
{
    const lk__comm_call *o = j->o;
    lk__comm_range       left = part_range(j, j->s->rank, first, count);
    while (left.count) {
        size_t n = lk__range_contiguous(o, &left), at = lk__range_at(o, &left);
        for (int i = 0; i < j->s->size; i++)
            j->from[i] = i == j->s->rank ? (const char *)o->send + at * j->size
                                         : base[i] + (direct ? at : left.first - first) * j->size;
        lk__reduce((char *)o->recv + left.first * j->size, j->from, j->s->size, n, o->type, o->reduce);
        left.first += n;
        left.count -= n;
    }
}

void lk__shm_take_parts(const job *j, size_t first, size_t n)
{
    const lk__comm_call *o = j->o;
    lk__shm             *s = j->s;
    if (!receives(j)) return;
    if (lk__call_reduces(o)) {
        size_t here = o->count > first ? o->count - first : 0;
        if (here > n) here = n;
        if (lk__call_has_rows(o)) {
            char **base = (char **)j->from + s->size;
            memcpy(base, j->from, (size_t)s->size * sizeof *base);
            reduce_rows(j, base, first, here, false);
            return;
        }
        lk__reduce((char *)o->recv + first * j->size, j->from, s->size, here, o->type, o->reduce);
        return;
    }
    for (int k = 0; k < s->size; k++) {
        int i = (s->rank + k) % s->size; /* so that not all read from the same rank at once */
        if (lk__call_send_pattern(o, i) == LK__SEND_NONE) continue;
        size_t count = part_count(j, i, s->rank), here = count > first ? count - first : 0;
        if (here > n) here = n;
        char *to = lk__call_recv_part(j->o, i, j->size) + first * j->size;
        if (lk__call_has_rows(o)) {
            lk__range_unpack(o, part_range(j, i, first, here), j->from[i]);
        } else if (i == s->rank) {
            if (here && to != j->from[i]) memmove(to, j->from[i], here * j->size);
        } else {
            copy_part(to, j->from[i], here * j->size);
        }
    }
}

/* Sets j->from to the published elements in each rank's `where`, parts n elements apart; the own one to the send
 * buffer. */
static void point_at_parts(const job *j, char *(*where)(const lk__shm *s, int rank, int which), int which, size_t first,
                           size_t n)
{
    lk__shm *s = j->s;
    for (int i = 0; i < s->size; i++) {
        if (i == s->rank)
            j->from[i] = lk__call_send_part(j->o, j->s->rank, s->rank, j->size) + first * j->size;
        else
            j->from[i] = where(s, i, which) +
                         (lk__call_send_pattern(j->o, i) == LK__SEND_PARTS ? (size_t)s->rank * n * j->size : 0);
    }
}

/* ---- small ---- */

static char *payload(const lk__shm *s, int rank, int which) { return s->rank_slots[rank].arrivals[which].payload; }

static lk_status run_small(const job *j, uint32_t number)
{
    lk__shm_arrival *mine = &j->s->me->arrivals[number & 1];
    publish_parts(j, mine->payload, 0, j->most);
    lk_status status = lk__shm_publish_and_await(j->s, j->o, number);
    if (status < 0 || !receives(j)) return status;
    point_at_parts(j, payload, (int)(number & 1), 0, j->most);
    lk__shm_take_parts(j, 0, j->most);
    return LK_OK;
}

/* ---- slices of a reduction ---- */

/* This rank's slice of [0, n): whole cache lines, so that no two ranks write to the same one. */
static void slice_of(size_t n, size_t size, int rank, int ranks, size_t *begin, size_t *end)
{
    size_t line = 64 / size, lines = (n + line - 1) / line, each = lines / (size_t)ranks, more = lines % (size_t)ranks,
           r = (size_t)rank;
    size_t from = each * r + (r < more ? r : more);
    *begin = from * line < n ? from * line : n;
    *end = (from + each + (r < more)) * line < n ? (from + each + (r < more)) * line : n;
}

/* ---- direct ---- */

enum {
    BLOCK = 8192,         /* bytes reduced before they are copied on: they are still in the L1 cache then */
    AHEAD_LEAST = 4 << 20 /* bytes of a buffer from which on lines are fetched ahead */
};

/* The usual all_reduce in one pass, where the machine has what that needs: a line of all ranks' buffers is added, and
 * written to all. Where the whole does not fit into caches, lines are fetched ahead, and owned at once if they are
 * overwritten. */
static bool reduce_at_once(const job *j, char **send, char **recv, size_t begin, size_t end)
{
    const lk__comm_call *o = j->o;
    lk__shm             *s = j->s;
    const float         *from[LK__WIDE_MOST];
    float               *to[LK__WIDE_MOST];
    bool                 in_place = true;
    if (lk__call_facts(o)->receivers != LK__RANKS_ALL || o->type != LK_F32 || o->reduce != LK_SUM ||
        !lk__reduce_is_wide(s->size, s->size))
        return false;
    for (int i = 0; i < s->size; i++) {
        from[i] = (const float *)send[i] + begin;
        to[i] = (float *)recv[i] + begin;
        in_place &= send[i] == recv[i];
    }
    lk__reduce_ahead ahead = o->count * j->size < AHEAD_LEAST ? LK__AHEAD_NONE
                             : in_place                       ? LK__AHEAD_WRITE
                                                              : LK__AHEAD_READ;
    lk__reduce_wide(to, s->size, from, s->size, end - begin, ahead);
    s->sent += (end - begin) * j->size * (size_t)(s->size - 1);
    return true;
}

/* Reduces this rank's slice, directly from and to all ranks' buffers. */
static lk_status direct_reduce(const job *j, char **send, char **recv)
{
    const lk__comm_call *o = j->o;
    lk__shm             *s = j->s;
    size_t               begin, end, block = BLOCK / j->size;
    bool                 to_root = lk__call_facts(o)->receivers == LK__RANKS_ROOT;
    int                  first = to_root ? o->root : s->rank;
    slice_of(o->count, j->size, s->rank, s->size, &begin, &end);
    if (reduce_at_once(j, send, recv, begin, end)) begin = end;
    for (size_t at = begin; at < end; at += block) {
        size_t n = end - at < block ? end - at : block, offset = at * j->size;
        for (int i = 0; i < s->size; i++) j->from[i] = send[i] + offset;
        lk__reduce(recv[first] + offset, j->from, s->size, n, o->type, o->reduce);
        if (first != s->rank) s->sent += n * j->size;
        for (int i = 0; i < s->size && !to_root; i++) {
            if (i == first) continue;
            memcpy(recv[i] + offset, recv[first] + offset, n * j->size);
            s->sent += n * j->size;
        }
    }
    publish_step(j, 1);
    return await_step(j, 1);
}

static lk_status run_direct(const job *j, char **send, char **recv)
{
    if (reduces_whole(j->o)) return direct_reduce(j, send, recv);
    if (lk__call_reduces(j->o) && lk__call_has_rows(j->o)) {
        reduce_rows(j, send, 0, j->o->count, true);
    } else {
        for (int i = 0; i < j->s->size; i++)
            j->from[i] =
                send[i] +
                (lk__call_send_pattern(j->o, i) == LK__SEND_PARTS ? (size_t)j->s->rank * j->o->count * j->size : 0);
        lk__shm_take_parts(j, 0, j->most);
    }
    publish_step(j, 1);
    return await_step(j, 1); /* until then a peer may be reading this rank's buffer */
}

/* Whether all ranks' buffers are in the same symmetric memory and no rank reads what another writes. Every rank decides
 * the same: it uses what all of them published. */
static bool all_symmetric(const job *j, uint32_t number, char **send, char **recv)
{
    lk__shm *s = j->s;
    for (int i = 0; i < s->size; i++) {
        const lk__shm_arrival *slot = &s->rank_slots[i].arrivals[number & 1];
        const lk__shm_arrival *mine = &s->me->arrivals[number & 1];
        if (!slot->send || !slot->recv || slot->send >> 40 != mine->send >> 40 || slot->recv >> 40 != mine->recv >> 40)
            return false;
        if (overwrites_parts(j->o) && slot->send == slot->recv) return false;
    }
    for (int i = 0; i < s->size; i++) {
        const lk__shm_arrival *slot = &s->rank_slots[i].arrivals[number & 1];
        send[i] = symmetric_at(s, i, slot->send);
        recv[i] = symmetric_at(s, i, slot->recv);
    }
    return true;
}

/* ---- staged ---- */

/* Chunk c is published in buffer c % 3, which may be overwritten when all have taken chunk c - 3: each published that
 * two steps ago. */
lk_status lk__shm_run_staged(const job *j)
{
    size_t   parts = lk__call_facts(j->o)->sends_parts ? (size_t)j->s->size : 1;
    size_t   n = LK__SHM_CHUNK / parts / j->size;
    uint32_t chunks = (uint32_t)((j->most + n - 1) / n);
    /* Steps: published 0, published 1, taken 0, published 2, taken 1, … : published c is step 2c (1 for c = 0),
     * taken c is 2c + 3. */
    for (uint32_t c = 0; c <= chunks; c++) {
        lk_status status = LK_OK;
        if (c < chunks) {
            if (c >= 3) status = await_step(j, 2 * (c - 3) + 3);
            if (status < 0) return status;
            publish_parts(j, lk__shm_buffer(j->s, j->s->rank, (int)(c % 3)), (size_t)c * n, n);
        }
        publish_step(j, c == 0 ? 1 : 2 * c); /* the last one publishes nothing, but keeps the steps in order */
        if (c == 0) continue;
        uint32_t t = c - 1;
        if ((status = await_step(j, t == 0 ? 1 : 2 * t)) < 0) return status;
        point_at_parts(j, lk__shm_buffer, (int)(t % 3), (size_t)t * n, n);
        lk__shm_take_parts(j, (size_t)t * n, n);
        publish_step(j, 2 * t + 3);
    }
    return LK_OK;
}

typedef struct pipeline {
    const job *j;
    size_t     n; /* elements per chunk */
    uint32_t   chunks;
} pipeline;

static size_t chunk_count(const pipeline *p, uint32_t c)
{
    size_t left = p->j->o->count - (size_t)c * p->n;
    return left < p->n ? left : p->n;
}

/* Publishes other ranks' slices of chunk c of this rank's data, for them to reduce. */
static void stage_in(const pipeline *p, uint32_t c)
{
    const job  *j = p->j;
    size_t      count = chunk_count(p, c), begin, end;
    char       *to = lk__shm_buffer(j->s, j->s->rank, (int)(c % 3));
    const char *from = (const char *)j->o->send + (size_t)c * p->n * j->size;
    slice_of(count, j->size, j->s->rank, j->s->size, &begin, &end);
    copy_part(to, from, begin * j->size);
    copy_part(to + end * j->size, from + end * j->size, (count - end) * j->size);
    j->s->sent += (count - (end - begin)) * j->size;
}

/* Results are in the fourth buffer: even chunks in one half, odd ones in the other. */
static char *result_buffer(const pipeline *p, int rank, uint32_t c)
{
    return lk__shm_buffer(p->j->s, rank, 3) + (c & 1) * (LK__SHM_CHUNK / 2);
}

static void reduce_slice(const pipeline *p, uint32_t c)
{
    const job           *j = p->j;
    const lk__comm_call *o = j->o;
    size_t               begin, end, first = (size_t)c * p->n, block = BLOCK / j->size;
    char                *result = result_buffer(p, j->s->rank, c);
    slice_of(chunk_count(p, c), j->size, j->s->rank, j->s->size, &begin, &end);
    for (size_t at = begin; at < end; at += block) {
        size_t n = end - at < block ? end - at : block;
        char  *to = receives(j) ? (char *)o->recv + (first + at) * j->size : result + (at - begin) * j->size;
        for (int i = 0; i < j->s->size; i++)
            j->from[i] = i == j->s->rank ? (const char *)o->send + (first + at) * j->size
                                         : lk__shm_buffer(j->s, i, (int)(c % 3)) + at * j->size;
        lk__reduce(to, j->from, j->s->size, n, o->type, o->reduce);
        copy_part(result + (at - begin) * j->size, to, n * j->size);
    }
    j->s->sent += (end - begin) * j->size;
}

static void stage_out(const pipeline *p, uint32_t c)
{
    const job *j = p->j;
    for (int i = 0; i < j->s->size && receives(j); i++) {
        size_t begin, end;
        if (i == j->s->rank) continue;
        slice_of(chunk_count(p, c), j->size, i, j->s->size, &begin, &end);
        copy_part((char *)j->o->recv + ((size_t)c * p->n + begin) * j->size, result_buffer(p, i, c),
                  (end - begin) * j->size);
    }
}

/* Steps: in 0 is 1; then for each chunk c: in c + 1 is 2c + 2, reduced c is 2c + 3. Two chunks of input and one of
 * results are in progress, so that a rank that is a little late does not delay the others. */
static lk_status staged_reduce(const job *j)
{
    /* A rank's slice of a chunk has to fit into half a buffer: with two ranks or more it does. */
    pipeline p = {.j = j, .n = LK__SHM_CHUNK / j->size / (j->s->size == 1 ? 2 : 1)};
    p.chunks = (uint32_t)((j->o->count + p.n - 1) / p.n);
    stage_in(&p, 0);
    publish_step(j, 1);
    for (uint32_t c = 0; c <= p.chunks; c++) {
        lk_status status = LK_OK;
        if (c + 1 < p.chunks) stage_in(&p, c + 1);
        if (c < p.chunks) publish_step(j, 2 * c + 2);
        if (c > 0) {
            if ((status = await_step(j, 2 * (c - 1) + 3)) < 0) return status;
            stage_out(&p, c - 1);
        }
        if (c == p.chunks) break;
        if ((status = await_step(j, c == 0 ? 1 : 2 * (c - 1) + 2)) < 0) return status;
        reduce_slice(&p, c);
        publish_step(j, 2 * c + 3);
    }
    return LK_OK;
}

/* ---- all_gather_host: the receive buffers are one, of which each rank writes its part ---- */

static lk_status gather_once(job *j, uint32_t number)
{
    const lk__comm_call *o = j->o;
    lk__shm             *s = j->s;
    char                *own = lk__call_recv_part(o, s->rank, j->size);
    lk_status status = lk__shm_publish_and_await(s, o, number); /* until then a peer may read what is there */
    if (status < 0) return status;
    j->base = s->progress;
    copy_part(own, o->send, o->count * j->size);
    s->sent += o->count * j->size;
    publish_step(j, 1);
    return await_step(j, 1);
}

/* ---- choice of the algorithm ---- */

static lk_status run_large(job *j, uint32_t number)
{
    lk__shm  *s = j->s;
    char    **send = (char **)j->from + s->size, **recv = send + s->size;
    lk_status status = lk__shm_publish_and_await(s, j->o, number);
    if (status < 0) return status;
    j->base = s->progress;
    if (all_symmetric(j, number, send, recv)) return run_direct(j, send, recv);
    return reduces_whole(j->o) ? staged_reduce(j) : lk__shm_run_staged(j);
}

lk_status lk__shm_collective(lk_comm *comm, const lk__comm_call *o)
{
    lk__shm *s = comm->state;
    if (atomic_load_explicit(&s->header->failure, memory_order_relaxed)) return lk__shm_failure(s);
    bool      once = o->kind == LK__ALL_GATHER_HOST; /* into memory that is more than one rank's part */
    lk_status status = s->symmetric && !once ? check_ends(s, o) : LK_OK;
    if (status < 0) return status;
    uint32_t         number = ++s->arrivals;
    lk__shm_arrival *mine = &s->me->arrivals[number & 1];
    job j = {.s = s, .o = o, .size = lk_dtype_size(o->type), .most = lk__call_largest(o, s->size), .from = s->pointers};
    bool parts = lk__call_facts(o)->sends_parts;
    bool is_small = !once && !o->send_counts && j.most * j.size * (parts ? (size_t)s->size : 1) <= LK__SMALL;
    s->slow = !is_small;
    s->number++;
    if (once) return lk__shm_leave(s, gather_once(&j, number));
    if (!is_small) {
        bool reads_nothing = lk__call_send_pattern(o, s->rank) == LK__SEND_NONE, gets_nothing = !receives(&j);
        mine->send = symmetric_location(s, reads_nothing ? o->recv : o->send);
        mine->recv = symmetric_location(s, gets_nothing ? o->send : o->recv);
    }
    status = is_small         ? run_small(&j, number)
             : o->send_counts ? lk__shm_all_to_allv(&j, number)
                              : run_large(&j, number);
    return lk__shm_leave(s, status);
}
