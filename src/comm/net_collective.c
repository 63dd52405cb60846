/* net_collective.c - the collectives over a network, whatever moves the bytes.
 * Three ways, by size:
 *
 *   with the arrival   a part that fits the word with which ranks tell that
 * they have come travels in it: one exchange; straight           what is only
 * moved goes from one rank's buffer into the other's: an exchange after the
 * arrival; pipelined          reductions and broadcasts in chunks: each rank
 * gets its slice of a chunk from all who have it, reduces it, and hands the
 * result on. While one chunk is reduced others are on their way.
 *
 * Elements do not depend on each other and every slice is reduced by
 * lk__reduce, so all ways give the same bits. */
#include "comm/net.h"
#include "comm/reduce.h"

#include <stdio.h>
#include <string.h>

enum {
    TINY = 256,           /* bytes of an all_reduce that are sent whole to everyone: the
                 word is longer than that */
    SLICE = 256 << 10,    /* bytes of a chunk for each rank, … */
    CHUNK_MOST = 8 << 20, /* … as long as the whole is no larger */
    LAG = 2,              /* chunks whose slices are on their way while one is reduced */
    SLOTS = LAG + 1,
};

/* What a rank has for the others: nothing, the same for all, or a part for
 * each. */
/* Kept from call to call. */
typedef struct room {
    lk__part    *parts;
    const void **from;
    bool        *needed; /* by flight: whom it concerns */
    char        *memory;
    size_t       bytes;
} room;

typedef struct job {
    lk__net             *net;
    const lk__operation *o;
    room                *room;
    size_t               size; /* of an element */
    int                  rank, ranks;
} job;

static bool reduces(const lk__operation *o)
{
    return o->kind == LK__ALL_REDUCE || o->kind == LK__REDUCE || o->kind == LK__REDUCE_SCATTER;
}

static bool receives(const job *j, int rank)
{
    bool at_root = j->o->kind == LK__GATHER || j->o->kind == LK__GATHERV || j->o->kind == LK__REDUCE;
    return j->o->kind != LK__BARRIER && (!at_root || rank == j->o->root);
}

/* Bytes that `from` has for `to`, as far as this rank is one of the two. */
static size_t part_bytes(const job *j, int from, int to)
{
    const lk__operation *o = j->o;
    if (lk__operation_gift(j->o, from) == LK__NOTHING || !receives(j, to)) return 0;
    if (o->kind == LK__ALL_TO_ALLV) return (from == j->rank ? o->send_counts[to] : o->recv_counts[from]) * j->size;
    return (o->recv_counts ? o->recv_counts[from] : o->count) * j->size;
}

static const char *send_part(const job *j, int to)
{
    const lk__operation *o = j->o;
    size_t               at = lk__operation_gift(j->o, j->rank) != LK__PARTS ? 0
                              : o->send_displacements                        ? o->send_displacements[to]
                                                                             : (size_t)to * o->count;
    return o->send ? (const char *)o->send + at * j->size : NULL;
}

static char *recv_part(const job *j, int from)
{
    const lk__operation *o = j->o;
    bool                 gathers = o->kind == LK__ALL_GATHER || o->kind == LK__GATHER || o->kind == LK__ALL_TO_ALL ||
                   o->kind == LK__SPLIT || o->kind == LK__ALLOC;
    size_t at = o->recv_displacements ? o->recv_displacements[from] : gathers ? (size_t)from * o->count : 0;
    return o->recv ? (char *)o->recv + at * j->size : NULL;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memmove(to, from, bytes);
}

/* ---- room ---- */

static size_t list_bytes(const lk__net *net, size_t each) { return (size_t)net->size * each; }
static size_t needed_bytes(const lk__net *net) { return 2 * SLOTS * list_bytes(net, sizeof(bool)); }

static room *open_room(lk__net *net)
{
    lk_context *context = net->comm->context;
    room       *r = net->collective_state;
    if (r) return r;
    if (!(r = net->collective_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *r))) return NULL;
    r->parts = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *r->parts));
    r->from = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *r->from));
    r->needed = lk__alloc(context, LK_MEMORY_OTHER, needed_bytes(net));
    if (r->parts && r->from && r->needed) return r;
    lk__net_collective_free(net);
    return NULL;
}

static lk_status grow_room(const job *j, size_t bytes)
{
    lk_context *context = j->net->comm->context;
    room       *r = j->room;
    if (r->bytes >= bytes) return LK_OK;
    lk__free(context, LK_MEMORY_OTHER, r->memory, r->bytes);
    r->memory = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    r->bytes = r->memory ? bytes : 0;
    if (r->memory) return LK_OK;
    char text[160];
    snprintf(text, sizeof text, "rank %d has no memory for %.1f MiB that %s passes through", j->rank,
             (double)bytes / 1048576, lk__kind_name(j->o->kind));
    return lk__net_raise(j->net, LK_ENOMEM, text);
}

void lk__net_collective_free(lk__net *net)
{
    lk_context *context = net->comm->context;
    room       *r = net->collective_state;
    if (!r) return;
    /* What a failed group left in flight may still be written to by a mover that
   * cannot be stopped. */
    if (!net->abandoned) lk__free(context, LK_MEMORY_OTHER, r->memory, r->bytes);
    lk__free(context, LK_MEMORY_OTHER, r->parts, list_bytes(net, sizeof *r->parts));
    lk__free(context, LK_MEMORY_OTHER, r->from, list_bytes(net, sizeof *r->from));
    lk__free(context, LK_MEMORY_OTHER, r->needed, needed_bytes(net));
    lk__free(context, LK_MEMORY_OTHER, r, sizeof *r);
    net->collective_state = NULL;
}

/* ---- exchanges ---- */

static void clear_parts(const job *j) { memset(j->room->parts, 0, list_bytes(j->net, sizeof *j->room->parts)); }

/* Begins what j->room->parts say, as flight number `which` of those under way.
 */
static lk_status begin(const job *j, int which, lk__flight **flight)
{
    bool *needed = j->room->needed + (size_t)which * (size_t)j->ranks;
    for (int i = 0; i < j->ranks; i++)
        needed[i] = i != j->rank && (j->room->parts[i].send_bytes || j->room->parts[i].recv_bytes);
    *flight = NULL;
    return j->net->mover->exchange(j->net, j->room->parts, flight);
}

static lk_status land(const job *j, int which, lk__flight **flight)
{
    if (!*flight) return LK_OK;
    lk_status status = lk__net_flight_wait(j->net, *flight, j->room->needed + (size_t)which * (size_t)j->ranks);
    if (status < 0) return status;
    j->net->mover->finish(j->net, *flight);
    *flight = NULL;
    return LK_OK;
}

/* An exchange of its own. */
static lk_status exchange(const job *j)
{
    lk__flight *flight;
    lk_status   status = begin(j, 0, &flight);
    if (status >= 0) status = land(j, 0, &flight);
    if (flight) j->net->mover->finish(j->net, flight);
    return status;
}

/* ---- with the arrival ---- */

static lk_status come(const job *j, bool with_data)
{
    lk__part *parts = j->room->parts;
    clear_parts(j);
    for (int i = 0; with_data && i < j->ranks; i++) {
        if (i == j->rank) continue;
        parts[i].send_bytes = part_bytes(j, j->rank, i);
        parts[i].send = parts[i].send_bytes ? send_part(j, i) : NULL;
    }
    lk_status status = lk__net_enter(j->net, j->o, with_data ? parts : NULL);
    return status < 0 ? status : lk__net_await(j->net, -1);
}

/* What came with `from`'s arrival; it is as long as this rank expects, because
 * the calls are the same. */
static lk_status payload(const job *j, int from, size_t bytes, const void **data)
{
    size_t got = 0;
    *data = lk__net_payload(j->net, from, &got);
    if (got == bytes) return LK_OK;
    char text[128];
    snprintf(text, sizeof text,
             "rank %d came with %zu bytes and rank %d expected %zu: they are not "
             "the same program",
             from, got, j->rank, bytes);
    return lk__net_raise(j->net, LK_EMISMATCH, text);
}

static lk_status small(const job *j)
{
    lk_status status = come(j, true);
    if (status < 0 || !receives(j, j->rank)) return status;
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        size_t bytes = part_bytes(j, i, j->rank);
        if (i == j->rank)
            j->room->from[i] = send_part(j, i);
        else
            status = payload(j, i, bytes, &j->room->from[i]);
        if (status >= 0 && !reduces(j->o)) copy(recv_part(j, i), j->room->from[i], bytes);
    }
    if (status >= 0 && reduces(j->o))
        lk__reduce(j->o->recv, j->room->from, j->ranks, j->o->count, j->o->type, j->o->reduce);
    return status;
}

/* ---- straight ---- */

static lk_status straight(const job *j)
{
    lk__part *parts = j->room->parts;
    clear_parts(j);
    for (int i = 0; i < j->ranks; i++) {
        parts[i].send_bytes = part_bytes(j, j->rank, i);
        parts[i].recv_bytes = part_bytes(j, i, j->rank);
        if (parts[i].send_bytes) parts[i].send = send_part(j, i);
        if (parts[i].recv_bytes) parts[i].recv = recv_part(j, i);
        if (i == j->rank) copy(parts[i].recv, parts[i].send, parts[i].recv_bytes);
    }
    return exchange(j);
}

/* all_to_all in place: what comes waits aside until what it replaces is gone.
 */
static lk_status swapped(const job *j)
{
    size_t    each = j->o->count, n = CHUNK_MOST / j->size / (size_t)j->ranks;
    lk__part *parts = j->room->parts;
    if (n == 0) n = 1;
    if (n > each) n = each;
    lk_status status = grow_room(j, n * j->size * (size_t)j->ranks);
    for (size_t first = 0; first < each && status >= 0; first += n) {
        size_t bytes = (each - first < n ? each - first : n) * j->size;
        for (int i = 0; i < j->ranks; i++) {
            char *own = (char *)j->o->recv + ((size_t)i * each + first) * j->size;
            parts[i] = (lk__part){own, j->room->memory + (size_t)i * n * j->size, bytes, bytes};
        }
        if ((status = exchange(j)) < 0) break;
        for (int i = 0; i < j->ranks; i++)
            if (i != j->rank) copy((char *)(uintptr_t)parts[i].send, parts[i].recv, bytes);
    }
    return status;
}

/* Everyone tells everyone how much it has for it; then that much comes. */
static lk_status all_to_allv(const job *j)
{
    const lk__operation *o = j->o;
    lk__part            *parts = j->room->parts;
    clear_parts(j);
    for (int i = 0; i < j->ranks; i++)
        if (i != j->rank) parts[i] = (lk__part){.send = &o->send_counts[i], .send_bytes = sizeof *o->send_counts};
    lk_status status = lk__net_enter(j->net, o, parts);
    if (status >= 0) status = lk__net_await(j->net, -1);
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        size_t      coming = o->send_counts[i];
        const void *told;
        if (i != j->rank && (status = payload(j, i, sizeof coming, &told)) < 0) break;
        if (i != j->rank) memcpy(&coming, told, sizeof coming);
        if (coming == o->recv_counts[i]) continue;
        char text[512], call[256];
        lk__operation_describe(o, j->net->number, call, sizeof call);
        snprintf(text, sizeof text, "rank %d sends %zu elements to rank %d, which expects %zu, in %s", i, coming,
                 j->rank, o->recv_counts[i], call);
        status = lk__net_raise(j->net, LK_EMISMATCH, text);
    }
    return status < 0 ? status : straight(j);
}

/* ---- pipelined ---- */

/* The share of `rank` in [0, n): as even as can be, since the largest decides how much is sent. */
static void slice_of(size_t n, int rank, int ranks, size_t *begin, size_t *end)
{
    size_t each = n / (size_t)ranks, more = n % (size_t)ranks, r = (size_t)rank;
    *begin = each * r + (r < more ? r : more);
    *end = *begin + each + (r < more);
}

typedef struct pipeline {
    const job  *j;
    size_t      count; /* elements to work through: of the buffer, or of a part for
                   reduce_scatter */
    size_t      n;     /* elements a chunk */
    size_t      slice; /* bytes of the largest slice */
    size_t      chunks;
    lk__flight *in[SLOTS], *out[SLOTS]; /* under way, by chunk % SLOTS */
} pipeline;

static size_t chunk_count(const pipeline *p, size_t c)
{
    size_t left = p->count - c * p->n;
    return left < p->n ? left : p->n;
}

/* The slice of chunk c that `rank` reduces or hands on, in elements of the
 * buffer. Of reduce_scatter it is the chunk itself, of each part. */
static void chunk_slice(const pipeline *p, size_t c, int rank, size_t *begin, size_t *end)
{
    if (p->j->o->kind == LK__REDUCE_SCATTER)
        *begin = 0, *end = chunk_count(p, c);
    else
        slice_of(chunk_count(p, c), rank, p->j->ranks, begin, end);
    *begin += c * p->n;
    *end += c * p->n;
}

/* Where slices of others for this rank wait in slot c % SLOTS, and where a
 * result does that has no other place. */
static char *staged(const pipeline *p, size_t c, int from)
{
    return p->j->room->memory + ((c % SLOTS) * (size_t)(p->j->ranks + 1) + (size_t)from) * p->slice;
}

/* Where this rank's part of what chunk c gives lies, or goes to. */
static char *result_at(const pipeline *p, size_t c, size_t begin)
{
    const job *j = p->j;
    return receives(j, j->rank) ? (char *)j->o->recv + begin * j->size : staged(p, c, j->ranks);
}

/* Slices go to those who work on them. */
static lk_status begin_in(pipeline *p, size_t c)
{
    const job *j = p->j;
    lk__part  *parts = j->room->parts;
    size_t     own_begin, own_end;
    chunk_slice(p, c, j->rank, &own_begin, &own_end);
    clear_parts(j);
    for (int i = 0; i < j->ranks; i++) {
        size_t begin, end;
        if (i == j->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        if (j->o->kind == LK__BROADCAST) {
            if (j->rank == j->o->root)
                parts[i].send = (const char *)j->o->send + begin * j->size,
                parts[i].send_bytes = (end - begin) * j->size;
            if (i == j->o->root)
                parts[i].recv = (char *)j->o->recv + own_begin * j->size,
                parts[i].recv_bytes = (own_end - own_begin) * j->size;
        } else {
            parts[i] = (lk__part){send_part(j, i) + begin * j->size, staged(p, c, i), (end - begin) * j->size,
                                  (own_end - own_begin) * j->size};
        }
    }
    return begin(j, (int)(c % SLOTS), &p->in[c % SLOTS]);
}

static void reduce_own(const pipeline *p, size_t c)
{
    const job           *j = p->j;
    const lk__operation *o = j->o;
    size_t               begin, end;
    if (!reduces(o)) return;
    chunk_slice(p, c, j->rank, &begin, &end);
    for (int i = 0; i < j->ranks; i++)
        j->room->from[i] = i == j->rank ? send_part(j, i) + begin * j->size : staged(p, c, i);
    lk__reduce(result_at(p, c, begin), j->room->from, j->ranks, end - begin, o->type, o->reduce);
}

/* Results go to those who want them. */
static lk_status begin_out(pipeline *p, size_t c)
{
    const job           *j = p->j;
    const lk__operation *o = j->o;
    lk__part            *parts = j->room->parts;
    size_t               own_begin, own_end;
    if (o->kind == LK__REDUCE_SCATTER) return LK_OK;
    chunk_slice(p, c, j->rank, &own_begin, &own_end);
    clear_parts(j);
    for (int i = 0; i < j->ranks; i++) {
        size_t begin, end;
        if (i == j->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        bool to = receives(j, i), from = receives(j, j->rank);
        if (o->kind == LK__BROADCAST) to = i != o->root, from = j->rank != o->root; /* it has them */
        if (to) parts[i].send = result_at(p, c, own_begin), parts[i].send_bytes = (own_end - own_begin) * j->size;
        if (from) parts[i].recv = (char *)o->recv + begin * j->size, parts[i].recv_bytes = (end - begin) * j->size;
    }
    return begin(j, SLOTS + (int)(c % SLOTS), &p->out[c % SLOTS]);
}

static lk_status land_in(pipeline *p, size_t c) { return land(p->j, (int)(c % SLOTS), &p->in[c % SLOTS]); }
static lk_status land_out(pipeline *p, size_t c) { return land(p->j, SLOTS + (int)(c % SLOTS), &p->out[c % SLOTS]); }

static lk_status run_pipeline(pipeline *p)
{
    lk_status status = LK_OK;
    /* All ranks begin in one order: in 0, in 1, then in c + LAG and out c by
   * turns. */
    for (size_t step = 0; step < p->chunks + LAG && status >= 0; step++) {
        if (step < p->chunks) status = begin_in(p, step);
        if (step < LAG || status < 0) continue;
        size_t c = step - LAG;
        status = land_in(p, c);
        if (status >= 0) status = land_out(p, c); /* of chunk c - SLOTS */
        if (status < 0) break;
        reduce_own(p, c);
        status = begin_out(p, c);
    }
    for (size_t c = p->chunks; c < p->chunks + SLOTS && status >= 0; c++)
        status = land_out(p, c); /* the oldest first */
    for (int i = 0; i < SLOTS; i++) {
        if (p->in[i]) p->j->net->mover->finish(p->j->net, p->in[i]);
        if (p->out[i]) p->j->net->mover->finish(p->j->net, p->out[i]);
    }
    return status;
}

static lk_status pipelined(const job *j)
{
    bool   scatters = j->o->kind == LK__REDUCE_SCATTER;
    size_t ranks = (size_t)j->ranks, slice = SLICE * ranks < CHUNK_MOST ? SLICE : CHUNK_MOST / ranks;
    slice = lk__round_up(slice, 64);
    pipeline p = {.j = j, .count = j->o->count, .slice = slice};
    p.n = (scatters ? slice : slice * ranks) / j->size;
    p.chunks = (p.count + p.n - 1) / p.n;
    size_t    slots = p.chunks < SLOTS ? p.chunks : SLOTS;
    lk_status status = reduces(j->o) ? grow_room(j, slots * (ranks + 1) * slice) : LK_OK;
    return status < 0 ? status : run_pipeline(&p);
}

/* One chunk whose slices fit the arrivals: everyone's slice is there once all
 * have come. */
static lk_status with_slices(const job *j)
{
    pipeline  p = {.j = j, .count = j->o->count, .n = j->o->count, .chunks = 1};
    size_t    begin, end;
    lk__part *parts = j->room->parts;
    clear_parts(j);
    for (int i = 0; i < j->ranks; i++) {
        if (i == j->rank) continue;
        chunk_slice(&p, 0, i, &begin, &end);
        parts[i].send = (const char *)j->o->send + begin * j->size;
        parts[i].send_bytes = (end - begin) * j->size;
    }
    lk_status status = lk__net_enter(j->net, j->o, parts);
    if (status >= 0) status = lk__net_await(j->net, -1);
    chunk_slice(&p, 0, j->rank, &begin, &end);
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        if (i == j->rank)
            j->room->from[i] = (const char *)j->o->send + begin * j->size;
        else
            status = payload(j, i, (end - begin) * j->size, &j->room->from[i]);
    }
    if (status < 0) return status;
    lk__reduce((char *)j->o->recv + begin * j->size, j->room->from, j->ranks, end - begin, j->o->type, j->o->reduce);
    if ((status = begin_out(&p, 0)) >= 0) status = land_out(&p, 0);
    if (p.out[0]) j->net->mover->finish(j->net, p.out[0]);
    return status;
}

/* ---- which way: from what all ranks know alike ---- */

static size_t largest_part(const job *j)
{
    size_t most = j->o->count;
    for (int i = 0; j->o->recv_counts && i < j->ranks; i++)
        if (j->o->recv_counts[i] > most) most = j->o->recv_counts[i];
    return most * j->size;
}

static lk_status run(const job *j)
{
    const lk__operation *o = j->o;
    size_t               most = largest_part(j);
    if (o->kind == LK__ALL_TO_ALLV) return all_to_allv(j);
    if (o->kind == LK__ALL_REDUCE && j->ranks > 2 && most > TINY) {
        if (most / (size_t)j->ranks + 128 <= LK__NET_SMALL) return with_slices(j);
    } else if (most <= LK__NET_SMALL) {
        return small(j);
    }
    lk_status status = come(j, false);
    if (status < 0) return status;
    if (o->kind == LK__BROADCAST || reduces(o)) return pipelined(j);
    if (o->kind == LK__ALL_TO_ALL && o->send == o->recv) return swapped(j);
    return straight(j);
}

lk_status lk__net_collective(lk_comm *comm, const lk__operation *o)
{
    lk__net  *net = comm->state;
    job       j = {.net = net, .o = o, .size = lk_dtype_size(o->type), .rank = net->rank, .ranks = net->size};
    lk_status status = lk__net_failure(net);
    if (status < 0) return status;
    if (!(j.room = open_room(net))) return lk__net_raise(net, LK_ENOMEM, "no memory for a collective's lists of ranks");
    return lk__net_leave(net, run(&j));
}
