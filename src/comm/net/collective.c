/* collective.c - the collectives over a network, for any transport. Three algorithms, by size:
 *
 *   small       parts that fit into the arrival message are sent with it: one exchange;
 *   direct      data that is only moved goes from one rank's buffer to the other's: an exchange after the arrival;
 *   pipelined   reductions, broadcasts and what is gathered in rows, in chunks (pipeline.c).
 *
 * Elements are independent and every slice is reduced by lk__reduce, so all algorithms give the same bits. */
#include "comm/net/collective.h"
#include "base/reduce.h"

#include <stdio.h>
#include <string.h>

enum { TINY = 256 }; /* bytes of an all_reduce that are sent whole to all ranks: the message itself is longer */

/* Bytes that `from` sends to `to`; this rank is one of the two. */
static size_t part_bytes(const lk__net_collective_run *run, int from, int to)
{
    if (lk__call_send_pattern(run->o, from) == LK__SEND_NONE || !lk__call_receives(run->o, to)) return 0;
    return lk__call_count(run->o, run->rank, from, to) * run->size;
}

static void copy_part(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memmove(to, from, bytes);
}

/* ---- scratch ---- */

static size_t list_bytes(const lk__net *net, size_t each) { return (size_t)net->size * each; }
static size_t needed_bytes(const lk__net *net) { return 2 * LK__NET_SLOTS * list_bytes(net, sizeof(bool)); }

static lk__net_scratch *open_scratch(lk__net *net)
{
    lk_context      *context = net->comm->context;
    lk__net_scratch *scratch = net->collective_state;
    if (scratch) return scratch;
    if (!(scratch = net->collective_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *scratch))) return NULL;
    scratch->parts = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *scratch->parts));
    scratch->from = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net, sizeof *scratch->from));
    scratch->needed = lk__alloc(context, LK_MEMORY_OTHER, needed_bytes(net));
    if (scratch->parts && scratch->from && scratch->needed) return scratch;
    lk__net_collective_free(net);
    return NULL;
}

lk_status lk__net_run_reserve(const lk__net_collective_run *run, size_t bytes)
{
    lk_context      *context = run->net->comm->context;
    lk__net_scratch *scratch = run->scratch;
    if (scratch->bytes >= bytes) return LK_OK;
    lk__free(context, LK_MEMORY_OTHER, scratch->memory, scratch->bytes);
    scratch->memory = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    scratch->bytes = scratch->memory ? bytes : 0;
    if (scratch->memory) return LK_OK;
    char text[160];
    snprintf(text, sizeof text, "rank %d is out of memory: cannot allocate %.1f MiB of scratch memory for %s",
             run->rank, (double)bytes / 1048576, lk__comm_kind_name(run->o->kind));
    return lk__net_raise(run->net, LK_ENOMEM, text);
}

void lk__net_collective_free(lk__net *net)
{
    lk_context      *context = net->comm->context;
    lk__net_scratch *scratch = net->collective_state;
    if (!scratch) return;
    /* After a failure, a transport that cannot cancel may still write to it. */
    if (!net->abandoned) lk__free(context, LK_MEMORY_OTHER, scratch->memory, scratch->bytes);
    lk__free(context, LK_MEMORY_OTHER, scratch->parts, list_bytes(net, sizeof *scratch->parts));
    lk__free(context, LK_MEMORY_OTHER, scratch->from, list_bytes(net, sizeof *scratch->from));
    lk__free(context, LK_MEMORY_OTHER, scratch->needed, needed_bytes(net));
    lk__free(context, LK_MEMORY_OTHER, scratch, sizeof *scratch);
    net->collective_state = NULL;
}

/* ---- exchanges ---- */

void lk__net_run_clear(const lk__net_collective_run *run)
{
    memset(run->scratch->parts, 0, list_bytes(run->net, sizeof *run->scratch->parts));
}

lk_status lk__net_run_begin(const lk__net_collective_run *run, int which, lk__net_transfer_state **flight)
{
    bool *needed = run->scratch->needed + (size_t)which * (size_t)run->ranks;
    for (int i = 0; i < run->ranks; i++)
        needed[i] = i != run->rank && (run->scratch->parts[i].send_bytes || run->scratch->parts[i].recv_bytes);
    *flight = NULL;
    return run->net->transport->exchange(run->net, run->scratch->parts, flight);
}

lk_status lk__net_run_finish(const lk__net_collective_run *run, int which, lk__net_transfer_state **flight)
{
    if (!*flight) return LK_OK;
    lk_status status =
        lk__net_flight_wait(run->net, *flight, run->scratch->needed + (size_t)which * (size_t)run->ranks);
    if (status < 0) return status;
    run->net->transport->finish(run->net, *flight);
    *flight = NULL;
    return LK_OK;
}

/* One exchange, begun and finished. */
static lk_status run_exchange(const lk__net_collective_run *run)
{
    lk__net_transfer_state *flight;
    lk_status               status = lk__net_run_begin(run, 0, &flight);
    if (status >= 0) status = lk__net_run_finish(run, 0, &flight);
    if (flight) run->net->transport->finish(run->net, flight);
    return status;
}

/* ---- small ---- */

/* Makes the parts that this rank sends contiguous, where they are in rows. */
static lk_status pack_parts(const lk__net_collective_run *run)
{
    size_t    count = run->o->count, bytes = count * run->size;
    lk_status status = lk__net_run_reserve(run, bytes * (size_t)run->ranks);
    for (int i = 0; i < run->ranks && status >= 0; i++)
        lk__range_pack(run->o, (lk__comm_range){.part = i, .ranks = run->ranks, .count = count},
                       run->scratch->memory + (size_t)i * bytes);
    return status;
}

static bool packs(const lk__net_collective_run *run)
{
    return lk__call_has_rows(run->o) && lk__call_facts(run->o)->sends_parts;
}

/* What this rank sends to `to`, contiguous: of a call that is small. */
static const void *small_part(const lk__net_collective_run *run, int to)
{
    return packs(run) ? run->scratch->memory + (size_t)to * run->o->count * run->size
                      : lk__call_send_part(run->o, run->rank, to, run->size);
}

static lk_status enter_and_await(const lk__net_collective_run *run, bool with_data)
{
    lk__net_part *parts = run->scratch->parts;
    lk_status     status = with_data && packs(run) ? pack_parts(run) : LK_OK;
    if (status < 0) return status;
    lk__net_run_clear(run);
    for (int i = 0; with_data && i < run->ranks; i++) {
        if (i == run->rank) continue;
        parts[i].send_bytes = part_bytes(run, run->rank, i);
        parts[i].send = parts[i].send_bytes ? small_part(run, i) : NULL;
    }
    status = lk__net_enter(run->net, run->o, with_data ? parts : NULL);
    return status < 0 ? status : lk__net_await(run->net, -1);
}

lk_status lk__net_run_payload(const lk__net_collective_run *run, int from, size_t bytes, const void **data)
{
    size_t got = 0;
    *data = lk__net_payload(run->net, from, &got);
    if (got == bytes) return LK_OK;
    char text[160];
    snprintf(text, sizeof text,
             "rank %d sent %zu bytes, but rank %d expected %zu: the ranks are not running the same program", from, got,
             run->rank, bytes);
    return lk__net_raise(run->net, LK_EMISMATCH, text);
}

static lk_status run_small(const lk__net_collective_run *run)
{
    lk_status status = enter_and_await(run, true);
    if (status < 0 || !lk__call_receives(run->o, run->rank)) return status;
    for (int i = 0; i < run->ranks && status >= 0; i++) {
        size_t bytes = part_bytes(run, i, run->rank);
        if (i == run->rank)
            run->scratch->from[i] = small_part(run, i);
        else
            status = lk__net_run_payload(run, i, bytes, &run->scratch->from[i]);
        if (status < 0 || lk__call_reduces(run->o)) continue;
        if (lk__call_has_rows(run->o))
            lk__range_unpack(run->o, (lk__comm_range){.part = i, .ranks = run->ranks, .count = run->o->count},
                             run->scratch->from[i]);
        else
            copy_part(lk__call_recv_part(run->o, i, run->size), run->scratch->from[i], bytes);
    }
    if (status >= 0 && lk__call_reduces(run->o))
        lk__reduce(run->o->recv, run->scratch->from, run->ranks, run->o->count, run->o->type, run->o->reduce);
    return status;
}

/* ---- direct ---- */

static lk_status run_direct(const lk__net_collective_run *run)
{
    lk__net_part *parts = run->scratch->parts;
    lk__net_run_clear(run);
    for (int i = 0; i < run->ranks; i++) {
        parts[i].send_bytes = part_bytes(run, run->rank, i);
        parts[i].recv_bytes = part_bytes(run, i, run->rank);
        if (parts[i].send_bytes) parts[i].send = lk__call_send_part(run->o, run->rank, i, run->size);
        if (parts[i].recv_bytes) parts[i].recv = lk__call_recv_part(run->o, i, run->size);
        if (i == run->rank) copy_part(parts[i].recv, parts[i].send, parts[i].recv_bytes);
    }
    return run_exchange(run);
}

/* all_to_all in place: received parts stay in scratch memory until the parts they replace are sent. */
static lk_status run_in_place(const lk__net_collective_run *run)
{
    size_t        each = run->o->count, n = LK__NET_CHUNK / run->size / (size_t)run->ranks;
    lk__net_part *parts = run->scratch->parts;
    if (n == 0) n = 1;
    if (n > each) n = each;
    lk_status status = lk__net_run_reserve(run, n * run->size * (size_t)run->ranks);
    for (size_t first = 0; first < each && status >= 0; first += n) {
        size_t bytes = (each - first < n ? each - first : n) * run->size;
        for (int i = 0; i < run->ranks; i++) {
            char *own = (char *)run->o->recv + ((size_t)i * each + first) * run->size;
            parts[i] = (lk__net_part){own, run->scratch->memory + (size_t)i * n * run->size, bytes, bytes};
        }
        if ((status = run_exchange(run)) < 0) break;
        for (int i = 0; i < run->ranks; i++)
            if (i != run->rank) copy_part((char *)(uintptr_t)parts[i].send, parts[i].recv, bytes);
    }
    return status;
}

/* Every rank sends its counts with the arrival; then the data. */
static lk_status all_to_allv(const lk__net_collective_run *run)
{
    const lk__comm_call *o = run->o;
    lk__net_part        *parts = run->scratch->parts;
    lk__net_run_clear(run);
    for (int i = 0; i < run->ranks; i++)
        if (i != run->rank) parts[i] = (lk__net_part){.send = &o->send_counts[i], .send_bytes = sizeof *o->send_counts};
    lk_status status = lk__net_enter(run->net, o, parts);
    if (status >= 0) status = lk__net_await(run->net, -1);
    for (int i = 0; i < run->ranks && status >= 0; i++) {
        size_t      incoming = o->send_counts[i];
        const void *received;
        if (i != run->rank && (status = lk__net_run_payload(run, i, sizeof incoming, &received)) < 0) break;
        if (i != run->rank) memcpy(&incoming, received, sizeof incoming);
        if (incoming == o->recv_counts[i]) continue;
        char text[512], call[256];
        lk__call_describe(o, run->net->number, call, sizeof call);
        snprintf(text, sizeof text, "rank %d sends %zu elements to rank %d, which expects %zu, in %s", i, incoming,
                 run->rank, o->recv_counts[i], call);
        status = lk__net_raise(run->net, LK_EMISMATCH, text);
    }
    return status < 0 ? status : run_direct(run);
}

/* ---- choice of the algorithm: only from what all ranks know ---- */

static lk_status run_collective(const lk__net_collective_run *run)
{
    const lk__comm_call        *o = run->o;
    const lk__collective_facts *facts = lk__call_facts(o);
    size_t                      most = lk__call_largest(o, run->ranks) * run->size;
    if (o->send_counts) return all_to_allv(run);
    if (facts->reduces && !facts->sends_parts && facts->receivers == LK__RANKS_ALL && run->ranks > 2 && most > TINY) {
        if (most / (size_t)run->ranks + 128 <= LK__NET_SMALL) return lk__net_with_slices(run);
    } else if (most <= LK__NET_SMALL) {
        return run_small(run);
    }
    lk_status status = enter_and_await(run, false);
    if (status < 0) return status;
    if (facts->reduces || lk__call_forwards(o) || lk__call_has_rows(o)) return lk__net_pipelined(run);
    if (facts->sends_parts && facts->receives_parts && o->send == o->recv) return run_in_place(run);
    return run_direct(run);
}

lk_status lk__net_collective(lk_comm *comm, const lk__comm_call *o)
{
    lk__net               *net = comm->state;
    lk__net_collective_run run = {
        .net = net, .o = o, .size = lk_dtype_size(o->type), .rank = net->rank, .ranks = net->size};
    lk_status status = lk__net_failure(net);
    if (status < 0) return status;
    if (!(run.scratch = open_scratch(net)))
        return lk__net_raise(net, LK_ENOMEM, "out of memory: cannot allocate a collective's lists of ranks");
    return lk__net_leave(net, run_collective(&run));
}
