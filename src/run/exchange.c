/* exchange.c - exchanges bytes of states between ranks, in rounds. In each round every rank that is not done has a
 * window of its list. The slices determine which parts of the window are in which rank's memory, so all ranks know who
 * sends how much to whom, and in which order. */
#include "run/exchange.h"

#include <string.h>

typedef struct cursor {
    size_t range, at; /* of a rank's list; bytes of that range which are done */
} cursor;

typedef struct exchange {
    const lk_store          *store;
    lk_comm                 *comm;
    const lk__exchange_list *lists;    /* by rank */
    bool                     scatters; /* whole elements; else fetches */
    int                      ranks, me;
    cursor                  *cursors;                                       /* by rank: where its window begins */
    size_t                  *send_counts, *send_at, *recv_counts, *recv_at; /* by rank */
    char                    *send, *recv;
} exchange;

static size_t arrays_bytes(int ranks) { return (size_t)ranks * (sizeof(cursor) + 4 * sizeof(size_t)); }

size_t lk__store_exchange_bytes(int ranks)
{
    return ranks > 1 ? arrays_bytes(ranks) + 2 * lk__exchange_window(ranks) * (size_t)ranks : 0;
}

static exchange begin_exchange(const lk_store *s, const lk__exchange *with, const lk__exchange_list *lists)
{
    exchange x = {.store = s, .comm = with->comm, .lists = lists, .ranks = 1};
    if (with->comm) x.ranks = lk_comm_size(with->comm), x.me = lk_comm_rank(with->comm);
    if (!with->memory) return x;
    size_t ranks = (size_t)x.ranks;
    x.cursors = with->memory; /* then the arrays; buffers are bytes, and need no alignment */
    x.send_counts = (size_t *)(x.cursors + ranks);
    x.send_at = x.send_counts + ranks;
    x.recv_counts = x.send_at + ranks;
    x.recv_at = x.recv_counts + ranks;
    x.send = (char *)with->memory + arrays_bytes(x.ranks);
    x.recv = x.send + lk__exchange_window(x.ranks) * ranks;
    memset(x.cursors, 0, ranks * sizeof *x.cursors);
    return x;
}

/* ---- pieces of a list: bytes that are together in the memory of one slice ---- */

typedef struct piece {
    const lk__exchange_range *range;
    size_t                    first, bytes;  /* of the whole array */
    size_t                    at;            /* its first byte in the slice */
    int                       holder;        /* of a fetch: the rank that it is read from */
    int                       slice, stored; /* parts of the array, and of the stored copy of a master copy (else 0) */
} piece;

typedef struct walk {
    const exchange          *x;
    const lk__exchange_list *list;
    int                      rank; /* whose list it is */
    cursor                   at;
    size_t left; /* of the window: bytes that are sent. What a rank fetches from itself is not counted */
    const lk__exchange_range *range;
    lk__plan_slices           slices, stored; /* of that range; `stored` where `rounded` */
    bool                      rounded;
} walk;

static walk begin_walk(const exchange *x, int rank, cursor at, size_t window)
{
    return (walk){.x = x, .list = &x->lists[rank], .rank = rank, .at = at, .left = window};
}

static void enter_range(walk *w, const lk__exchange_range *range)
{
    w->range = range;
    w->slices = lk__store_slices(w->x->store, range->state, range->part);
    w->rounded = range->part == LK_STATE_VALUE && w->x->store->plan->states[range->state].master;
    if (w->rounded) w->stored = lk__plan_state_slices(w->x->store->plan, range->state, LK__ARRAY_STORED);
}

/* False: the window, or the list, is at its end. */
static bool next_piece(walk *w, piece *p)
{
    while (w->at.range < w->list->count && w->at.at == w->list->ranges[w->at.range].bytes)
        w->at = (cursor){w->at.range + 1, 0};
    if (w->at.range == w->list->count || w->left == 0) return false;
    const lk__exchange_range *range = &w->list->ranges[w->at.range];
    if (w->range != range) enter_range(w, range);
    size_t       size = lk_dtype_size(w->slices.dtype), first = range->first + w->at.at, inside = first % size;
    lk__plan_run run = lk__slices_find(&w->slices, (int64_t)(first / size));
    *p = (piece){.range = range,
                 .first = first,
                 .bytes = range->bytes - w->at.at,
                 .at = (size_t)run.at * size + inside,
                 .holder = lk__slices_holder(&w->slices, run.part, w->rank),
                 .slice = run.part};
    if (w->rounded) {
        lk__plan_run stored = lk__slices_find(&w->stored, run.first);
        p->stored = stored.part;
        if (stored.count < run.count) run.count = stored.count;
    }
    if ((size_t)run.count * size - inside < p->bytes) p->bytes = (size_t)run.count * size - inside;
    bool sent = w->x->scatters || p->holder != w->rank;
    if (sent && p->bytes > w->left) p->bytes = w->x->scatters ? w->left / size * size : w->left;
    w->at.at += p->bytes;
    if (sent) w->left = p->bytes ? w->left - p->bytes : 0;
    return p->bytes > 0;
}

static int count_unfinished(const exchange *x)
{
    int count = 0;
    for (int i = 0; i < x->ranks; i++) count += x->cursors[i].range < x->lists[i].count;
    return count;
}

/* Moves every rank's window on. */
static void advance_windows(exchange *x, size_t window)
{
    for (int i = 0; i < x->ranks; i++) {
        walk  w = begin_walk(x, i, x->cursors[i], window);
        piece p;
        while (next_piece(&w, &p)) {}
        while (w.at.range < w.list->count && w.at.at == w.list->ranges[w.at.range].bytes)
            w.at = (cursor){w.at.range + 1, 0};
        x->cursors[i] = w.at;
    }
}

static lk_status send_all(exchange *x)
{
    size_t at = 0;
    for (int i = 0; i < x->ranks; at += x->recv_counts[i], i++) x->recv_at[i] = at;
    return lk_comm_all_to_allv(x->comm, x->send, x->send_counts, x->send_at, x->recv, x->recv_counts, x->recv_at, LK_U8,
                               NULL);
}

/* A device that fails on one rank must not let the others use what it did not send. */
static lk_status end_round(exchange *x, lk_status status)
{
    if (status < 0 && lk_comm_status(x->comm) >= 0) lk_comm_abort(x->comm, lk_context_error(x->store->context));
    return status;
}

static lk_status fail_without_memory(const exchange *x)
{
    return lk__fail(x->store->context, LK_EINVAL, "out of memory: cannot exchange states between ranks");
}

/* ---- fetching ---- */

static bool is_fetched(const lk__plan_slices *slices, int ranks)
{
    return ranks > 1 && (slices->parts > 1 || slices->first_counts);
}

bool lk__plan_fetch_sends(const lk_plan *plan, int ranks)
{
    for (size_t i = 0; i < plan->graph->states_count; i++)
        for (int a = 0; a < LK__ARRAY_COUNT; a++) {
            if (!lk__plan_has_array(plan, i, (lk__plan_array)a)) continue;
            lk__plan_slices slices = lk__plan_state_slices(plan, i, (lk__plan_array)a);
            if (is_fetched(&slices, ranks) && !plan->graph->states[i].not_saved) return true;
        }
    return false;
}

bool lk__store_fetch_sends(const lk_store *s, int ranks) { return lk__plan_fetch_sends(s->plan, ranks); }

static lk_status read_piece(const exchange *x, const piece *p, char *to)
{
    const char *memory = lk__store_memory(x->store, p->range->state, p->range->part);
    return lk__device_read(x->store->device, NULL, to, memory + p->at, p->bytes);
}

/* Whether any rank wants what it does not have. */
static bool some_fetch(const exchange *x)
{
    for (int i = 0; i < x->ranks; i++)
        for (size_t k = 0; k < x->lists[i].count; k++) {
            const lk__exchange_range *range = &x->lists[i].ranges[k];
            lk__plan_slices           slices = lk__store_slices(x->store, range->state, range->part);
            if (is_fetched(&slices, x->ranks) && (slices.parts > 1 || lk__slices_holder(&slices, 0, i) != i))
                return true;
        }
    return false;
}

static lk_status fetch_round(exchange *x, size_t window, char *mine)
{
    piece     p;
    lk_status status = LK_OK;
    size_t    used = 0;
    memset(x->recv_counts, 0, (size_t)x->ranks * sizeof *x->recv_counts);
    for (int i = 0; i < x->ranks; i++) {
        walk w = begin_walk(x, i, x->cursors[i], window);
        x->send_at[i] = used;
        while (status >= 0 && next_piece(&w, &p)) {
            if (i == x->me && p.holder != i) x->recv_counts[p.holder] += p.bytes;
            if (i == x->me || p.holder != x->me) continue;
            status = read_piece(x, &p, x->send + used);
            used += p.bytes;
        }
        x->send_counts[i] = used - x->send_at[i];
    }
    if (status < 0 || (status = send_all(x)) < 0) return end_round(x, status);
    walk w = begin_walk(x, x->me, x->cursors[x->me], window);
    for (size_t to = 0; status >= 0 && next_piece(&w, &p); to += p.bytes) {
        if (p.holder == x->me) {
            status = read_piece(x, &p, mine + to);
            continue;
        }
        memcpy(mine + to, x->recv + x->recv_at[p.holder], p.bytes);
        x->recv_at[p.holder] += p.bytes;
    }
    return end_round(x, status);
}

static lk_status fetch_own(const exchange *x, char *mine)
{
    const lk__exchange_list *list = &x->lists[x->me];
    lk_status                status = LK_OK;
    for (size_t i = 0; i < list->count && status >= 0; mine += list->ranges[i].bytes, i++) {
        const lk__exchange_range *range = &list->ranges[i];
        status = lk__store_read_bytes(x->store, range->state, range->part, range->first, mine, range->bytes);
    }
    return status;
}

static size_t list_bytes(const lk__exchange_list *list, cursor end)
{
    size_t bytes = end.range < list->count ? end.at : 0;
    for (size_t i = 0; i < end.range; i++) bytes += list->ranges[i].bytes;
    return bytes;
}

lk_status lk__store_fetch(const lk_store *s, const lk__exchange *with, const lk__exchange_list *lists, void *mine)
{
    exchange  x = begin_exchange(s, with, lists);
    lk_status status = lk__store_check(s);
    if (status < 0 || !some_fetch(&x)) return status < 0 ? status : fetch_own(&x, mine);
    if (!with->memory) return fail_without_memory(&x);
    advance_windows(&x, 0); /* over empty ranges */
    for (int wanting; status >= 0 && (wanting = count_unfinished(&x)) > 0;) {
        /* One rank may have to send all that is wanted. */
        size_t window =
            lk__exchange_window(x.ranks) * (size_t)x.ranks / (size_t)wanting / sizeof(double) * sizeof(double);
        status = fetch_round(&x, window, (char *)mine + list_bytes(&lists[x.me], x.cursors[x.me]));
        advance_windows(&x, window);
    }
    return status;
}

/* ---- scattering ---- */

/* Whether `rank` writes a piece that `reader` has. Of ranks that share a copy one writes to it: where they are as many,
 * the one with the reader's index among its own. */
static bool is_written_by(const walk *w, const piece *p, int reader, int rank)
{
    const lk_plan *plan = w->x->store->plan;
    unsigned       apart = w->slices.apart;
    if (w->slices.holder != LK_HELD_BY_RANK &&
        lk__plan_sharer_apart(plan, apart, rank) !=
            lk__plan_sharer_apart(plan, apart, reader) % lk__plan_sharers_apart(plan, apart, rank))
        return false;
    return lk__slices_part(&w->slices, rank) == p->slice ||
           (w->rounded && lk__slices_part(&w->stored, rank) == p->stored);
}

/* Whether anything is sent: not where all ranks share one copy of the whole, and each writes what it has. */
static bool some_scatter(const exchange *x)
{
    for (int i = 0; i < x->ranks && x->ranks > 1; i++)
        for (size_t k = 0; k < x->lists[i].count; k++) {
            const lk__exchange_range *range = &x->lists[i].ranges[k];
            lk__plan_slices           slices = lk__store_slices(x->store, range->state, range->part);
            if (slices.holder == LK_HELD_BY_RANK || lk__plan_copies(x->store->plan) > 1 || slices.apart) return true;
        }
    return false;
}

/* Packs what `rank` is to write of this rank's window. */
static size_t pack_window(const exchange *x, size_t window, int rank, const char *mine, char *to)
{
    walk   w = begin_walk(x, x->me, x->cursors[x->me], window);
    size_t at = 0, used = 0;
    for (piece p; next_piece(&w, &p); at += p.bytes) {
        if (!is_written_by(&w, &p, x->me, rank)) continue;
        memcpy(to + used, mine + at, p.bytes);
        used += p.bytes;
    }
    return used;
}

static size_t count_received(const exchange *x, size_t window, int reader)
{
    walk   w = begin_walk(x, reader, x->cursors[reader], window);
    size_t bytes = 0;
    for (piece p; next_piece(&w, &p);)
        if (is_written_by(&w, &p, reader, x->me)) bytes += p.bytes;
    return bytes;
}

static lk_status write_received(const exchange *x, lk_store *s, size_t window, int reader, const char *from)
{
    walk      w = begin_walk(x, reader, x->cursors[reader], window);
    lk_status status = LK_OK;
    for (piece p; status >= 0 && next_piece(&w, &p);) {
        if (!is_written_by(&w, &p, reader, x->me)) continue;
        status = lk__store_write_own(s, p.range->state, p.range->part, p.first, from, p.bytes);
        from += p.bytes;
    }
    return status;
}

static lk_status scatter_round(exchange *x, lk_store *s, size_t window, const char *mine)
{
    size_t used = 0;
    for (int i = 0; i < x->ranks; i++) {
        x->send_at[i] = used;
        used += x->send_counts[i] = pack_window(x, window, i, mine, x->send + used);
        x->recv_counts[i] = count_received(x, window, i);
    }
    lk_status status = send_all(x);
    for (int i = 0; i < x->ranks && status >= 0; i++) status = write_received(x, s, window, i, x->recv + x->recv_at[i]);
    return end_round(x, status);
}

static lk_status scatter_own(const exchange *x, lk_store *s, const char *mine)
{
    const lk__exchange_list *list = &x->lists[x->me];
    lk_status                status = LK_OK;
    for (size_t i = 0; i < list->count && status >= 0; mine += list->ranges[i].bytes, i++) {
        const lk__exchange_range *range = &list->ranges[i];
        status = lk__store_write_own(s, range->state, range->part, range->first, mine, range->bytes);
    }
    return status;
}

lk_status lk__store_scatter(lk_store *s, const lk__exchange *with, const lk__exchange_list *lists, const void *mine)
{
    exchange  x = begin_exchange(s, with, lists);
    lk_status status = lk__store_check(s);
    if (status < 0 || !some_scatter(&x)) return status < 0 ? status : scatter_own(&x, s, mine);
    if (!with->memory) return fail_without_memory(&x);
    x.scatters = true;
    size_t window = lk__exchange_window(x.ranks); /* a rank may send all that it has to all, and receive from all */
    advance_windows(&x, 0);
    while (status >= 0 && count_unfinished(&x) > 0) {
        status = scatter_round(&x, s, window, (const char *)mine + list_bytes(&lists[x.me], x.cursors[x.me]));
        advance_windows(&x, window);
    }
    return status;
}
