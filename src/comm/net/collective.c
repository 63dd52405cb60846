/* net_collective.c - the collectives over a network, whatever moves the bytes. Three ways, by size:
 *
 *   with the arrival   a part that fits the word with which ranks tell that they have come travels in it: one exchange;
 *   straight           what is only moved goes from one rank's buffer into the other's: an exchange after the arrival;
 *   pipelined          reductions and broadcasts, in chunks (net_pipeline.c).
 *
 * Elements do not depend on each other and every slice is reduced by lk__reduce, so all ways give the same bits. */
#include "comm/net/collective.h"
#include "comm/reduce.h"

#include <stdio.h>
#include <string.h>

enum { TINY = 256 }; /* bytes of an all_reduce that are sent whole to everyone: the word is longer than that */

/* Bytes that `from` has for `to`, as far as this rank is one of the two. */
static size_t part_bytes(const lk__net_collective_run *j, int from, int to)
{
    if (lk__call_send_pattern(j->o, from) == LK__SEND_NONE || !lk__call_receives(j->o, to)) return 0;
    return lk__call_count(j->o, j->rank, from, to) * j->size;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memmove(to, from, bytes);
}

/* ---- room ---- */

static size_t list_bytes(const lk__net *net, size_t each) { return (size_t)net->size * each; }
static size_t needed_bytes(const lk__net *net) { return 2 * LK__NET_SLOTS * list_bytes(net, sizeof(bool)); }

static lk__net_scratch *open_room(lk__net *net)
{
    lk_context      *context = net->comm->context;
    lk__net_scratch *r = net->collective_state;
    if (r) return r;
    if (!(r = net->collective_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *r))) return NULL;
    r->parts = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *r->parts));
    r->from = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *r->from));
    r->needed = lk__alloc(context, LK_MEMORY_OTHER, needed_bytes(net));
    if (r->parts && r->from && r->needed) return r;
    lk__net_collective_free(net);
    return NULL;
}

lk_status lk__net_run_reserve(const lk__net_collective_run *j, size_t bytes)
{
    lk_context      *context = j->net->comm->context;
    lk__net_scratch *r = j->room;
    if (r->bytes >= bytes) return LK_OK;
    lk__free(context, LK_MEMORY_OTHER, r->memory, r->bytes);
    r->memory = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    r->bytes = r->memory ? bytes : 0;
    if (r->memory) return LK_OK;
    char text[160];
    snprintf(text, sizeof text, "rank %d has no memory for %.1f MiB that %s passes through", j->rank,
             (double)bytes / 1048576, lk__comm_kind_name(j->o->kind));
    return lk__net_raise(j->net, LK_ENOMEM, text);
}

void lk__net_collective_free(lk__net *net)
{
    lk_context      *context = net->comm->context;
    lk__net_scratch *r = net->collective_state;
    if (!r) return;
    /* What a failed group left in flight may still be written to by a transport that cannot be stopped. */
    if (!net->abandoned) lk__free(context, LK_MEMORY_OTHER, r->memory, r->bytes);
    lk__free(context, LK_MEMORY_OTHER, r->parts, list_bytes(net, sizeof *r->parts));
    lk__free(context, LK_MEMORY_OTHER, r->from, list_bytes(net, sizeof *r->from));
    lk__free(context, LK_MEMORY_OTHER, r->needed, needed_bytes(net));
    lk__free(context, LK_MEMORY_OTHER, r, sizeof *r);
    net->collective_state = NULL;
}

/* ---- exchanges ---- */

void lk__net_run_clear(const lk__net_collective_run *j)
{
    memset(j->room->parts, 0, list_bytes(j->net, sizeof *j->room->parts));
}

lk_status lk__net_run_begin(const lk__net_collective_run *j, int which, lk__net_transfer_state **flight)
{
    bool *needed = j->room->needed + (size_t)which * (size_t)j->ranks;
    for (int i = 0; i < j->ranks; i++)
        needed[i] = i != j->rank && (j->room->parts[i].send_bytes || j->room->parts[i].recv_bytes);
    *flight = NULL;
    return j->net->transport->exchange(j->net, j->room->parts, flight);
}

lk_status lk__net_run_finish(const lk__net_collective_run *j, int which, lk__net_transfer_state **flight)
{
    if (!*flight) return LK_OK;
    lk_status status = lk__net_flight_wait(j->net, *flight, j->room->needed + (size_t)which * (size_t)j->ranks);
    if (status < 0) return status;
    j->net->transport->finish(j->net, *flight);
    *flight = NULL;
    return LK_OK;
}

/* An exchange of its own. */
static lk_status exchange(const lk__net_collective_run *j)
{
    lk__net_transfer_state *flight;
    lk_status               status = lk__net_run_begin(j, 0, &flight);
    if (status >= 0) status = lk__net_run_finish(j, 0, &flight);
    if (flight) j->net->transport->finish(j->net, flight);
    return status;
}

/* ---- with the arrival ---- */

static lk_status come(const lk__net_collective_run *j, bool with_data)
{
    lk__net_part *parts = j->room->parts;
    lk__net_run_clear(j);
    for (int i = 0; with_data && i < j->ranks; i++) {
        if (i == j->rank) continue;
        parts[i].send_bytes = part_bytes(j, j->rank, i);
        parts[i].send = parts[i].send_bytes ? lk__call_send_part(j->o, j->rank, i, j->size) : NULL;
    }
    lk_status status = lk__net_enter(j->net, j->o, with_data ? parts : NULL);
    return status < 0 ? status : lk__net_await(j->net, -1);
}

lk_status lk__net_run_payload(const lk__net_collective_run *j, int from, size_t bytes, const void **data)
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

static lk_status small(const lk__net_collective_run *j)
{
    lk_status status = come(j, true);
    if (status < 0 || !lk__call_receives(j->o, j->rank)) return status;
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        size_t bytes = part_bytes(j, i, j->rank);
        if (i == j->rank)
            j->room->from[i] = lk__call_send_part(j->o, j->rank, i, j->size);
        else
            status = lk__net_run_payload(j, i, bytes, &j->room->from[i]);
        if (status >= 0 && !lk__call_reduces(j->o)) copy(lk__call_recv_part(j->o, i, j->size), j->room->from[i], bytes);
    }
    if (status >= 0 && lk__call_reduces(j->o))
        lk__reduce(j->o->recv, j->room->from, j->ranks, j->o->count, j->o->type, j->o->reduce);
    return status;
}

/* ---- straight ---- */

static lk_status straight(const lk__net_collective_run *j)
{
    lk__net_part *parts = j->room->parts;
    lk__net_run_clear(j);
    for (int i = 0; i < j->ranks; i++) {
        parts[i].send_bytes = part_bytes(j, j->rank, i);
        parts[i].recv_bytes = part_bytes(j, i, j->rank);
        if (parts[i].send_bytes) parts[i].send = lk__call_send_part(j->o, j->rank, i, j->size);
        if (parts[i].recv_bytes) parts[i].recv = lk__call_recv_part(j->o, i, j->size);
        if (i == j->rank) copy(parts[i].recv, parts[i].send, parts[i].recv_bytes);
    }
    return exchange(j);
}

/* all_to_all in place: what comes waits aside until what it replaces is gone.
 */
static lk_status swapped(const lk__net_collective_run *j)
{
    size_t        each = j->o->count, n = LK__NET_CHUNK / j->size / (size_t)j->ranks;
    lk__net_part *parts = j->room->parts;
    if (n == 0) n = 1;
    if (n > each) n = each;
    lk_status status = lk__net_run_reserve(j, n * j->size * (size_t)j->ranks);
    for (size_t first = 0; first < each && status >= 0; first += n) {
        size_t bytes = (each - first < n ? each - first : n) * j->size;
        for (int i = 0; i < j->ranks; i++) {
            char *own = (char *)j->o->recv + ((size_t)i * each + first) * j->size;
            parts[i] = (lk__net_part){own, j->room->memory + (size_t)i * n * j->size, bytes, bytes};
        }
        if ((status = exchange(j)) < 0) break;
        for (int i = 0; i < j->ranks; i++)
            if (i != j->rank) copy((char *)(uintptr_t)parts[i].send, parts[i].recv, bytes);
    }
    return status;
}

/* Everyone tells everyone how much it has for it; then that much comes. */
static lk_status all_to_allv(const lk__net_collective_run *j)
{
    const lk__comm_call *o = j->o;
    lk__net_part        *parts = j->room->parts;
    lk__net_run_clear(j);
    for (int i = 0; i < j->ranks; i++)
        if (i != j->rank) parts[i] = (lk__net_part){.send = &o->send_counts[i], .send_bytes = sizeof *o->send_counts};
    lk_status status = lk__net_enter(j->net, o, parts);
    if (status >= 0) status = lk__net_await(j->net, -1);
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        size_t      coming = o->send_counts[i];
        const void *told;
        if (i != j->rank && (status = lk__net_run_payload(j, i, sizeof coming, &told)) < 0) break;
        if (i != j->rank) memcpy(&coming, told, sizeof coming);
        if (coming == o->recv_counts[i]) continue;
        char text[512], call[256];
        lk__call_describe(o, j->net->number, call, sizeof call);
        snprintf(text, sizeof text, "rank %d sends %zu elements to rank %d, which expects %zu, in %s", i, coming,
                 j->rank, o->recv_counts[i], call);
        status = lk__net_raise(j->net, LK_EMISMATCH, text);
    }
    return status < 0 ? status : straight(j);
}

/* ---- which way: from what all ranks know alike ---- */

static lk_status run(const lk__net_collective_run *j)
{
    const lk__comm_call *o = j->o;
    size_t               most = lk__call_largest(o, j->ranks) * j->size;
    if (o->kind == LK__ALL_TO_ALLV) return all_to_allv(j);
    if (o->kind == LK__ALL_REDUCE && j->ranks > 2 && most > TINY) {
        if (most / (size_t)j->ranks + 128 <= LK__NET_SMALL) return lk__net_with_slices(j);
    } else if (most <= LK__NET_SMALL) {
        return small(j);
    }
    lk_status status = come(j, false);
    if (status < 0) return status;
    if (o->kind == LK__BROADCAST || lk__call_reduces(o)) return lk__net_pipelined(j);
    if (o->kind == LK__ALL_TO_ALL && o->send == o->recv) return swapped(j);
    return straight(j);
}

lk_status lk__net_collective(lk_comm *comm, const lk__comm_call *o)
{
    lk__net               *net = comm->state;
    lk__net_collective_run j = {
        .net = net, .o = o, .size = lk_dtype_size(o->type), .rank = net->rank, .ranks = net->size};
    lk_status status = lk__net_failure(net);
    if (status < 0) return status;
    if (!(j.room = open_room(net))) return lk__net_raise(net, LK_ENOMEM, "no memory for a collective's lists of ranks");
    return lk__net_leave(net, run(&j));
}
