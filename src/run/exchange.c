/* exchange.c - communication between ranks within a step: buckets of gradients, the sums of synchronised batch norm, and one small
 * all_gather of metrics and rank reports.
 *
 * Without leaves a bucket is one all_reduce, in the canonical order over ranks. With leaves the tree is over leaves: a rank first
 * adds the subtrees that it holds whole. Where every rank holds one subtree and all are of the same size, an all_reduce over ranks
 * completes the tree. Otherwise every rank gets its slice of all ranks' subtrees, completes the tree over its slice, and the slices
 * are gathered. */
#define _GNU_SOURCE
#include "run/program.h"

#include "base/tree.h"
#include "comm/reduce.h"

#include <sched.h>
#include <string.h>

enum {
    TILE = 16384, /* elements that one thread adds at a time */
    BLOCK = 4096, /* elements of a tree's intermediate results */
    DEPTH = 14,   /* of a tree over the maximum number of leaves */
};

/* A whole subtree of the fixed tree: leaves first … last-1. */
typedef struct subtree {
    int first, last, rank;
} subtree;

struct lk__run_exchange {
    lk_comm        *bulk;  /* for buckets; a separate group where sums within backward must not queue behind them */
    bool            split; /* bulk is a separate group and freed here */
    bool            overlaps;
    lk_work       **works;    /* by bucket: in flight, or NULL */
    subtree        *subtrees; /* of all ranks, in order */
    int             subtrees_count;
    bool            aligned; /* every rank has one subtree of the same size: an all_reduce completes the tree */
    char           *slices;  /* unless aligned: this rank's slice of a bucket, of every subtree */
    size_t          slice_bytes;
    size_t          bytes;                                                     /* of this struct and its arrays */
    char           *scratch;                                                   /* DEPTH blocks */
    size_t         *counts, *displacements, *more_counts, *more_displacements; /* one per rank */
    double         *gathered, *mine; /* of the small all_gathers: all leaves' numbers, then all ranks' reports */
    lk__run_report *reports;         /* by rank */
    lk__run_sums   *ranks;           /* by rank: the sums of its leaves */
    double          waited;
};

enum { SMALL = 64 }; /* numbers per leaf that are exchanged besides synchronised sums */

static size_t elements_of(const lk_program *p, size_t bytes) { return bytes / lk_dtype_size(p->plan->graph->real); }

/* ---- the tree over leaves ---- */

static void find_subtrees(lk__run_exchange *x, const lk_parallel *parallel)
{
    for (int rank = 0; rank < parallel->world; rank++) {
        lk__range own = lk__plan_leaves(parallel, rank);
        for (int leaf = (int)own.first, count; leaf < own.end; leaf += count) {
            count = lk__tree_subtree(parallel->leaves, leaf, (int)own.end);
            x->subtrees[x->subtrees_count++] = (subtree){leaf, leaf + count, rank};
        }
    }
}

/* The address of the sum over leaves lo … hi of `count` elements. A sum computed here is in scratch[depth]. */
static const char *add_tree(const lk_program *p, const char *const *at, int lo, int hi, size_t offset, size_t count,
                            int depth)
{
    const lk__run_exchange *x = p->exchange;
    for (int i = 0; i < x->subtrees_count; i++)
        if (x->subtrees[i].first == lo && x->subtrees[i].last == hi) return at[i] + offset;
    int         middle = lo + lk__tree_left(hi - lo);
    char       *out = x->scratch + (size_t)depth * BLOCK * sizeof(double);
    const void *sides[] = {add_tree(p, at, lo, middle, offset, count, depth), NULL};
    sides[1] = add_tree(p, at, middle, hi, offset, count, depth + 1);
    lk__reduce(out, sides, 2, count, p->plan->graph->real, LK_SUM);
    return out;
}

/* ---- additions on this rank ---- */

typedef struct addition {
    char        *out;
    const void **in;
    int          n;
    size_t       count;
    lk_dtype     type;
} addition;

static void add_tile(void *argument, int64_t tile, int worker)
{
    const addition *a = argument;
    size_t          begin = (size_t)tile * TILE, size = lk_dtype_size(a->type);
    size_t          count = a->count - begin < TILE ? a->count - begin : TILE;
    const void     *in[LK__LEAVES_MOST];
    (void)worker;
    for (int i = 0; i < a->n; i++) in[i] = (const char *)a->in[i] + begin * size;
    lk__reduce(a->out + begin * size, in, a->n, count, a->type, LK_SUM);
}

/* out = in[0] + … as a tree; n up to 64. */
static void add_arrays(const lk_program *p, void *out, const void **in, int n, size_t bytes)
{
    addition a = {out, in, n, elements_of(p, bytes), p->plan->graph->real};
    if (n > 1) lk__pool_run(lk__context_pool(p->context), (int64_t)((a.count + TILE - 1) / TILE), add_tile, &a);
}

int lk__exchange_subtree(const lk_program *p, int leaf)
{
    const lk__run_exchange *x = p->exchange;
    const lk_parallel      *parallel = &p->plan->parallel;
    int                     first = (int)lk__plan_leaves(parallel, parallel->rank).first + leaf;
    for (int i = 0; i < x->subtrees_count; i++)
        if (x->subtrees[i].first == first && x->subtrees[i].rank == parallel->rank) return x->subtrees[i].last - first;
    return 0;
}

/* Adds a range of the gradients over every subtree of this rank's leaves, into those of the subtree's first leaf. */
static void add_subtrees(lk_program *p, size_t offset, size_t bytes)
{
    for (int leaf = 0, n; leaf < lk__leaves_here(p); leaf += n) {
        const void *in[LK__LEAVES_MOST] = {NULL};
        n = lk__exchange_subtree(p, leaf);
        for (int k = 0; k < n; k++) in[k] = lk__gradient_set(p, leaf + k) + offset;
        add_arrays(p, (char *)in[0], in, n, bytes);
    }
}

static void add_leaves(lk_program *p, const lk__plan_bucket *b)
{
    const lk_plan *plan = p->plan;
    if (!plan->batch_leaves) {
        add_subtrees(p, b->offset, b->bytes);
        return;
    }
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        const lk__plan_state *s = &plan->states[i];
        bool here = s->trained && s->gradient_offset >= b->offset && s->gradient_offset < b->offset + b->bytes;
        if (here && !s->adds_leaves) add_subtrees(p, s->gradient_offset, s->wide_bytes);
    }
}

/* ---- buckets ---- */

static void slice_of(const lk_program *p, size_t elements, int rank, size_t *first, size_t *count)
{
    lk__range slice = lk__split_part((int64_t)elements, p->plan->parallel.world, rank);
    *first = (size_t)slice.first;
    *count = (size_t)lk__range_count(slice);
}

/* Exchanges subtree number `turn` of every rank that has so many: sends each rank its slice of ours, receives our slice of theirs. */
static lk_status exchange_slices(lk_program *p, const lk__plan_bucket *b, int turn, bool *more)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *parallel = &p->plan->parallel;
    size_t             elements = elements_of(p, b->bytes), size = lk_dtype_size(p->plan->graph->real), first, mine;
    const char        *send = NULL;
    *more = false;
    slice_of(p, elements, parallel->rank, &first, &mine);
    memset(x->more_counts, 0, (size_t)parallel->world * sizeof *x->more_counts);
    for (int rank = 0; rank < parallel->world; rank++) {
        int seen = 0;
        for (int i = 0; i < x->subtrees_count; i++) {
            if (x->subtrees[i].rank != rank || seen++ != turn) continue;
            x->more_counts[rank] = mine;
            x->more_displacements[rank] = (size_t)i * x->slice_bytes / size;
            *more = true;
            if (rank == parallel->rank)
                send =
                    lk__gradient_set(p, x->subtrees[i].first - (int)lk__plan_leaves(parallel, rank).first) + b->offset;
        }
    }
    for (int rank = 0; rank < parallel->world; rank++) {
        slice_of(p, elements, rank, &x->displacements[rank], &x->counts[rank]);
        if (!send) x->counts[rank] = 0;
    }
    if (!*more) return LK_OK;
    return lk_comm_all_to_allv(x->bulk, send ? send : x->slices, x->counts, x->displacements, x->slices, x->more_counts,
                               x->more_displacements, p->plan->graph->real, NULL);
}

static lk_status reduce_slices(lk_program *p, const lk__plan_bucket *b)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *parallel = &p->plan->parallel;
    size_t             elements = elements_of(p, b->bytes), size = lk_dtype_size(p->plan->graph->real), first, mine;
    const char        *at[LK__LEAVES_MOST] = {NULL}; /* at most as many subtrees as leaves */
    char              *bucket = lk__gradient_set(p, 0) + b->offset;
    bool               more = true;
    for (int turn = 0; more; turn++) {
        lk_status status = exchange_slices(p, b, turn, &more);
        if (status < 0) return status;
    }
    slice_of(p, elements, parallel->rank, &first, &mine);
    for (int i = 0; i < x->subtrees_count; i++) at[i] = x->slices + (size_t)i * x->slice_bytes;
    for (size_t i = 0; i < mine; i += BLOCK) {
        size_t count = mine - i < BLOCK ? mine - i : BLOCK;
        memcpy(bucket + (first + i) * size, add_tree(p, at, 0, parallel->leaves, i * size, count, 0), count * size);
    }
    for (int rank = 0; rank < parallel->world; rank++)
        slice_of(p, elements, rank, &x->displacements[rank], &x->counts[rank]);
    return lk_comm_all_gatherv(x->bulk, bucket + first * size, bucket, x->counts, x->displacements,
                               p->plan->graph->real, NULL);
}

bool lk__exchange_by_slices(const lk_program *p) { return p->plan->parallel.leaves && !p->exchange->aligned; }

static lk_status reduce_bucket(lk_program *p, size_t index)
{
    lk__run_exchange      *x = p->exchange;
    const lk__plan_bucket *b = &p->plan->buckets[index];
    char                  *data = lk__gradient_set(p, 0) + b->offset;
    if (!p->comm) return LK_OK;
    lk_dtype  type = p->plan->gradient_dtype;
    bool      rounds = type != p->plan->graph->real;
    lk_status status;
    if (rounds) data = lk__bucket_round(p, b);
    double start = lk__now();
    if (lk__exchange_by_slices(p))
        status = reduce_slices(p, b);
    else
        status = lk_comm_all_reduce(x->bulk, data, data, elements_of(p, b->bytes), type, LK_SUM,
                                    x->overlaps ? &x->works[index] : NULL);
    double end = lk__now();
    x->waited += end - start;
    if (x->works[index]) return status;
    lk__traced_bucket(p, index, start, end);
    if (rounds && status >= 0) lk__bucket_widen(p, b);
    return status;
}

lk_status lk__exchange_bucket(lk_program *p, size_t index, bool last)
{
    const lk__plan_bucket *b = &p->plan->buckets[index];
    if (p->plan->parallel.leaves) {
        if (!last) return LK_OK;
        add_leaves(p, b);
    } else if (p->pending > 0) {
        const void *in[] = {lk__gradient_set(p, 0) + b->offset, lk__gradient_set(p, 1) + b->offset};
        add_arrays(p, (char *)in[0], in, 2, b->bytes);
    }
    return last ? reduce_bucket(p, index) : LK_OK;
}

/* ---- sums within forward and backward ---- */

/* Gathers the numbers of this rank's leaves, contiguous in `mine`, on all ranks: x->gathered then holds those of all leaves in order. */
static lk_status gather_leaves(lk_program *p, const char *name, const double *mine, size_t numbers)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *parallel = &p->plan->parallel;
    size_t             leaves = parallel->leaves ? (size_t)parallel->leaves : (size_t)parallel->world;
    for (int rank = 0; rank < parallel->world; rank++) {
        lk__range own = lk__plan_leaves(parallel, rank);
        x->displacements[rank] = (size_t)own.first * numbers;
        x->counts[rank] = (size_t)lk__range_count(own) * numbers;
    }
    if (!p->comm) {
        memcpy(x->gathered, mine, leaves * numbers * sizeof *mine);
        return LK_OK;
    }
    double    start = lk__now();
    lk_status status = lk_comm_all_gatherv(p->comm, mine, x->gathered, x->counts, x->displacements, LK_F64, NULL);
    double    end = lk__now();
    x->waited += end - start;
    lk__traced(p, name, start, end, leaves * numbers * sizeof *mine);
    return status;
}

/* The tree over the numbers from gather_leaves. */
static void add_gathered(const lk_program *p, size_t numbers, double *out)
{
    const lk_parallel *parallel = &p->plan->parallel;
    const void        *in[LK__REDUCE_MOST];
    int                leaves = parallel->leaves ? parallel->leaves : parallel->world;
    for (int i = 0; i < leaves; i++) in[i] = p->exchange->gathered + (size_t)i * numbers;
    lk__reduce(out, in, leaves, numbers, LK_F64, LK_SUM);
}

lk_status lk__exchange_sync(lk_program *p, size_t index)
{
    lk__run_exchange *x = p->exchange;
    lk__kernel_call  *first = &p->slots[0].train.instructions[index].call;
    size_t            numbers = (size_t)lk__operand_elements(&first->in[0]), bytes = numbers * sizeof(double);
    lk_status         status = LK_OK;
    if (!p->plan->parallel.leaves) {
        if (!p->comm) {
            memcpy(first->out[0].data, first->in[0].data, bytes);
            return LK_OK;
        }
        double start = lk__now();
        status = lk_comm_all_reduce(p->comm, first->in[0].data, first->out[0].data, numbers, LK_F64, LK_SUM, NULL);
        double end = lk__now();
        x->waited += end - start;
        lk__traced(p, "all_reduce batch norm sums", start, end, bytes);
        return status;
    }
    for (int i = 0; i < lk__leaves_here(p); i++)
        memcpy(x->mine + (size_t)i * numbers,
               p->plan->batch_leaves ? lk__leaf_batch_source(p, index, i)
                                     : p->slots[i].train.instructions[index].call.in[0].data,
               bytes);
    if ((status = gather_leaves(p, "all_gather batch norm sums", x->mine, numbers)) < 0) return status;
    add_gathered(p, numbers, first->out[0].data);
    for (int i = 1; i < p->plan->slots; i++)
        memcpy(p->slots[i].train.instructions[index].call.out[0].data, first->out[0].data, bytes);
    return LK_OK;
}

lk_status lk__program_add_numbers(lk_program *p, const double *mine, int numbers, double *out)
{
    if (numbers > SMALL)
        return lk__fail(p->context, LK_EINVAL, "%d numbers are too many; at most %d are exchanged at once", numbers,
                        SMALL);
    lk_status status = gather_leaves(p, "all_gather metrics", mine, (size_t)numbers);
    if (status >= 0) add_gathered(p, (size_t)numbers, out);
    return status;
}

/* ---- the end of a step ---- */

/* The sums over each rank's samples, and the ranks' reports. */
static lk_status gather_reports(lk_program *p)
{
    lk__run_exchange *x = p->exchange;
    lk__run_sums      here = {0, 0, 0};
    for (int i = 0; i < lk__leaves_here(p); i++) {
        here.sum += p->sums[i].sum;
        here.weight += p->sums[i].weight;
        here.correct += p->sums[i].correct;
    }
    double mine[] = {here.sum, here.weight, here.correct, x->waited, p->stop_request, p->data, p->invalid_text[0] != 0};
    double *all = x->gathered;
    size_t  numbers = sizeof mine / sizeof *mine;
    x->waited = 0;
    if (!p->comm) {
        memcpy(all, mine, sizeof mine);
    } else {
        double    start = lk__now();
        lk_status status = lk_comm_all_gather(p->comm, mine, all, numbers, LK_F64, NULL);
        if (status < 0) return status;
        lk__traced(p, "all_gather rank status", start, lk__now(), sizeof mine);
    }
    for (int i = 0; i < p->plan->parallel.world; i++, all += numbers) {
        x->ranks[i] = (lk__run_sums){all[0], all[1], all[2]};
        x->reports[i] = (lk__run_report){all[3], all[4], all[5], all[6]};
    }
    return LK_OK;
}

/* The span must be read before lk_work_wait frees the work, so tracing waits for its end first. */
static lk_status wait_for_bucket(lk_program *p, size_t bucket)
{
    lk_work *work = p->exchange->works[bucket];
    double   began, ended;
    while (p->trace && lk_work_test(work) == LK_END) sched_yield();
    if (p->trace) {
        lk_work_span(work, &began, &ended);
        lk__traced_bucket(p, bucket, began, ended);
    }
    return lk_work_wait(work);
}

lk_status lk__exchange_finish(lk_program *p)
{
    lk__run_exchange *x = p->exchange;
    lk_status         status = LK_OK;
    for (; p->sent < p->plan->buckets_count && status >= 0; p->sent++) {
        if (p->plan->parallel.leaves) add_leaves(p, &p->plan->buckets[p->sent]);
        status = reduce_bucket(p, p->sent);
    }
    double start = lk__now();
    for (size_t i = 0; i < p->plan->buckets_count; i++) {
        if (!x->works[i]) continue;
        lk_status one = wait_for_bucket(p, i);
        x->works[i] = NULL;
        if (one >= 0 && p->plan->gradient_dtype != p->plan->graph->real) lk__bucket_widen(p, &p->plan->buckets[i]);
        if (status >= 0) status = one;
    }
    x->waited += lk__now() - start;
    return status < 0 ? status : gather_reports(p);
}

void lk__program_report(lk_program *p, bool stop_request, double data)
{
    p->stop_request = stop_request;
    p->data = data;
}

bool lk__program_stop_requested(const lk_program *p)
{
    bool any = false;
    for (int i = 0; i < p->plan->parallel.world; i++) any |= p->exchange->reports[i].stop_request > 0;
    return any;
}
lk__run_report lk__program_rank_report(const lk_program *p, int rank) { return p->exchange->reports[rank]; }
lk__run_sums   lk__program_rank_sums(const lk_program *p, int rank) { return p->exchange->ranks[rank]; }

/* ---- creating and freeing ---- */

/* Whether buckets are reduced while backward continues: always over a network; in shared memory only if a core is free for it,
 * because otherwise backward loses as much time as is hidden. */
static bool can_overlap(const lk_program *p)
{
    bool own;
    int  cores = lk__cores(&own), wanted = lk_context_threads(p->context) + 1;
    if (strcmp(lk_comm_backend(p->comm), "shm") != 0) return true;
    return cores >= wanted * (own ? 1 : lk_comm_local_size(p->comm));
}

static size_t largest_sync(const lk_plan *plan)
{
    size_t most = 0;
    for (size_t i = 0; plan->train.graph && i < plan->train.order_count; i++) {
        const lk__graph_node *n = &plan->train.graph->nodes[plan->train.order[i]];
        if (lk__op_find(n->op)->runs != LK__RUNS_COLLECTIVE) continue;
        size_t numbers = (size_t)lk__shape_elements(&plan->train.graph->values[n->in[0]].shape);
        if (numbers > most) most = numbers;
    }
    return most;
}

/* Reserves the next bytes of one block; with memory NULL it only measures. */
static void *reserve_bytes(char *memory, size_t *used, size_t bytes)
{
    char *at = memory ? memory + *used : NULL;
    *used += lk__round_up(bytes, LK__ALIGN);
    return at;
}

static size_t lay_out(const lk_program *p, lk__run_exchange *x, char *memory)
{
    const lk_plan *plan = p->plan;
    size_t         used = lk__round_up(sizeof *x, LK__ALIGN), world = (size_t)plan->parallel.world;
    size_t leaves = plan->parallel.leaves ? (size_t)plan->parallel.leaves : world, widest = largest_sync(plan), most = 0;
    if (widest < SMALL) widest = SMALL;
    for (size_t i = 0; i < plan->buckets_count; i++)
        if (plan->buckets[i].bytes > most) most = plan->buckets[i].bytes;
    x->works = reserve_bytes(memory, &used, plan->buckets_count * sizeof *x->works);
    x->subtrees = reserve_bytes(memory, &used, 2 * leaves * sizeof *x->subtrees);
    x->counts = reserve_bytes(memory, &used, world * sizeof(size_t));
    x->displacements = reserve_bytes(memory, &used, world * sizeof(size_t));
    x->more_counts = reserve_bytes(memory, &used, world * sizeof(size_t));
    x->more_displacements = reserve_bytes(memory, &used, world * sizeof(size_t));
    x->gathered = reserve_bytes(memory, &used, leaves * widest * sizeof(double));
    x->mine = reserve_bytes(memory, &used, leaves * widest * sizeof(double));
    x->reports = reserve_bytes(memory, &used, world * sizeof *x->reports);
    x->ranks = reserve_bytes(memory, &used, world * sizeof *x->ranks);
    if (!plan->parallel.leaves || x->aligned) return used;
    x->slice_bytes = lk__round_up(most / world + 2 * LK__ALIGN, LK__ALIGN);
    x->slices = reserve_bytes(memory, &used, x->slice_bytes * 2 * leaves);
    x->scratch = reserve_bytes(memory, &used, (size_t)DEPTH * BLOCK * sizeof(double));
    return used;
}

lk_status lk__exchange_create(lk_program *p)
{
    const lk_parallel *parallel = &p->plan->parallel;
    lk__run_exchange   measured = {.aligned = lk__tree_nests(parallel->leaves, parallel->world)};
    if (parallel->leaves > LK__LEAVES_MOST)
        return lk__fail(p->context, LK_EUNSUPPORTED, "%d leaves are too many; at most %d are supported",
                        parallel->leaves, LK__LEAVES_MOST);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_exchange *x = p->exchange = (lk__run_exchange *)memory;
    x->aligned = measured.aligned;
    lay_out(p, x, memory);
    x->bytes = bytes;
    if (parallel->leaves) find_subtrees(x, parallel);
    if (!p->comm) return LK_OK;
    x->bulk = p->comm;
    x->overlaps = can_overlap(p);
    lk_status status = LK_OK;
    if (x->overlaps && p->plan->syncs) {
        status = lk_comm_split(p->comm, 0, parallel->rank, &x->bulk);
        x->split = status >= 0;
    }
    /* All buckets at once, and one call that queues behind them. */
    if (status >= 0 && x->overlaps) status = lk_comm_reserve(x->bulk, (int)p->plan->buckets_count + 1);
    return status;
}

void lk__exchange_free(lk_program *p)
{
    lk__run_exchange *x = p->exchange;
    if (!x) return;
    for (size_t i = 0; i < p->plan->buckets_count; i++)
        if (x->works[i]) (void)lk_work_wait(x->works[i]);
    if (x->split) lk_comm_free(x->bulk);
    lk__free(p->context, LK_MEMORY_OTHER, x, x->bytes);
    p->exchange = NULL;
}
