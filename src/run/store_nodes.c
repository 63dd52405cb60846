/* store_nodes.c - a store that the ranks of a host share where these run on several memory nodes (NUMA). What all ranks
 * read, parameters and shared buffers, is there once for each node, in pages of that node; what only the owner of a
 * slice reads and writes in a step, master copies and optimizer state, is there once, each slice in pages of its
 * owner's node. */
#include "run/store.h"

#include "comm/abort.h"
#include "comm/memory_nodes.h"

#include <string.h>
#include <unistd.h>

/* Where everything is, in bytes from the beginning. */
typedef struct layout {
    size_t copy, copies; /* bytes of what is there for each node, and of all that */
    size_t master, optimizer, end;
} layout;

static layout lay_out(const lk_store *s)
{
    const size_t *bytes = s->plan->memory;
    layout        l = {.copy = bytes[LK_MEMORY_PARAMETERS]};
    if (lk__store_shares_buffers(s)) l.copy += bytes[LK_MEMORY_BUFFERS];
    if (s->nodes > 1) l.copy = lk__round_up(l.copy, (size_t)sysconf(_SC_PAGESIZE));
    l.copies = l.copy * (size_t)s->nodes;
    l.master = l.copies;
    l.optimizer = l.master + bytes[LK_MEMORY_MASTER];
    l.end = l.optimizer + bytes[LK_MEMORY_OPTIMIZER];
    return l;
}

/* ---- on whose node ---- */

static int first_rank(const lk_store *s, int node)
{
    int rank = 0;
    while (lk__comm_node(s->comm, rank) != node) rank++;
    return rank;
}

/* What each owner updates of an array that is there once, on its node. Returns how many ranges; NULL: only counts. */
static size_t place_array(const lk_store *s, size_t begin, size_t state, lk__plan_array array,
                          lk__comm_node_range *ranges)
{
    lk__plan_slices slices = lk__plan_state_slices(s->plan, state, array);
    if (slices.apart) return 0; /* in pages of the node of whoever fills it first: an owner */
    size_t count = 0, size = lk_dtype_size(slices.dtype);
    for (int owner = 0; owner < slices.owners; owner++) {
        lk__range owned = lk__slices_owned(&slices, owner);
        if (lk__range_count(owned) == 0) continue;
        if (ranges)
            ranges[count] = (lk__comm_node_range){begin + slices.offset + (size_t)owned.first * size,
                                                  (size_t)lk__range_count(owned) * size, owner};
        count++;
    }
    return count;
}

/* All ranges; NULL: only counts. */
static size_t place_ranges(const lk_store *s, const layout *l, lk__comm_node_range *ranges)
{
    size_t count = 0;
    for (int i = 0; i < s->nodes; i++, count++)
        if (ranges) ranges[count] = (lk__comm_node_range){l->copy * (size_t)i, l->copy, first_rank(s, i)};
    for (size_t i = 0; i < s->plan->graph->states_count && s->plan->trains; i++)
        for (int a = LK__ARRAY_MASTER; a < LK__ARRAY_COUNT && s->plan->states[i].trained; a++)
            if (lk__plan_has_array(s->plan, i, (lk__plan_array)a))
                count += place_array(s, a == LK__ARRAY_MASTER ? l->master : l->optimizer, i, (lk__plan_array)a,
                                     ranges ? ranges + count : NULL);
    return count;
}

static lk_status alloc_on_nodes(lk_store *s, const layout *l, size_t each)
{
    size_t               bytes = place_ranges(s, l, NULL) * sizeof(lk__comm_node_range), count = 0;
    lk__comm_node_range *ranges = lk__alloc(s->context, LK_MEMORY_OTHER, bytes);
    if (ranges) count = place_ranges(s, l, ranges);
    /* Without memory for the list this rank still has to take part. */
    lk_status status = lk__comm_alloc_on_nodes(s->comm, each, ranges, count, &s->symmetric);
    lk__free(s->context, LK_MEMORY_OTHER, ranges, bytes);
    return status;
}

/* ---- the store's memory ---- */

/* Every rank allocates the same, also where hosts have different numbers of nodes. */
static lk_status agree_on_part(const lk_store *s, size_t *each)
{
    int64_t   most = (int64_t)*each;
    lk_status status = LK_OK;
    if (lk__store_hosts(s) > 1) status = lk_comm_all_reduce(s->comm, &most, &most, 1, LK_I64, LK_MAX, NULL);
    *each = (size_t)most;
    return status;
}

lk_status lk__store_alloc_nodes(lk_store *s)
{
    size_t sharers = (size_t)s->sharers;
    s->nodes = lk__comm_nodes(s->comm);
    s->node = lk__comm_node(s->comm, s->sharer);
    s->writes_buffers = !lk__store_shares_buffers(s) || first_rank(s, s->node) == s->sharer;
    layout    l = lay_out(s);
    size_t    each = (l.end + sharers - 1) / sharers;
    bool      places = s->nodes > 1 && s->sharer == 0;
    lk_status status = agree_on_part(s, &each);
    if (status < 0) return status;
    status = places ? alloc_on_nodes(s, &l, each) : lk__comm_alloc_on_nodes(s->comm, each, NULL, 0, &s->symmetric);
    if (status < 0) return status;
    const size_t *bytes = s->plan->memory;
    /* A rank that alone has its slices has no other one's part. */
    s->copies = s->sharers == 1 ? s->symmetric : lk__comm_peer(s->comm, s->symmetric, 0);
    s->copy_bytes = l.copy;
    char *own = s->copies + l.copy * (size_t)s->node;
    if (bytes[LK_MEMORY_PARAMETERS]) s->parameters = own;
    if (lk__store_shares_buffers(s) && bytes[LK_MEMORY_BUFFERS]) s->buffers = own + bytes[LK_MEMORY_PARAMETERS];
    if (bytes[LK_MEMORY_MASTER]) s->master = s->copies + l.master;
    if (bytes[LK_MEMORY_OPTIMIZER]) s->optimizer = s->copies + l.optimizer;
    return LK_OK;
}

void lk__store_replicate(const lk_store *s, const void *from, size_t bytes)
{
    if (s->nodes < 2 || bytes == 0) return;
    size_t offset = (size_t)((const char *)from - (s->copies + s->copy_bytes * (size_t)s->node));
    for (int i = 0; i < s->nodes; i++)
        if (i != s->node) memcpy(s->copies + s->copy_bytes * (size_t)i + offset, from, bytes);
}

void lk__store_replicate_all(const lk_store *s)
{
    if (s->nodes > 1) lk__store_replicate(s, s->copies + s->copy_bytes * (size_t)s->node, s->copy_bytes);
}
