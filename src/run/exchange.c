/* exchange.c - what travels between ranks in a step: buckets of gradients, the sums of synchronised batch norm, and one small
 * gathering of metrics.
 *
 * Without leaves a bucket is one all_reduce, in the canonical order over ranks. With leaves the leaves of that order are the
 * leaves: a rank first adds what is a whole subtree of its own. Where all ranks hold one subtree each, and as large as the
 * others', the order over ranks completes the tree and an all_reduce does it. Otherwise every rank gets a slice of everybody's
 * subtrees, completes the tree over its slice, and the slices are gathered. */
#define _GNU_SOURCE
#include "run/program.h"

#include "comm/reduce.h"

#include <sched.h>
#include <string.h>

enum {
    TILE = 16384, /* elements that one thread adds at a time */
    BLOCK = 4096, /* elements of a tree's intermediate results */
    DEPTH = 14,   /* of a tree over as many leaves as there can be */
};

/* A whole subtree of the fixed tree: leaves first … last-1. */
typedef struct subtree {
    int first, last, rank;
} subtree;

struct lk__run_exchange {
    lk_comm  *bulk;  /* buckets; a group of its own where sums in the midst of backward must not queue behind them */
    bool      split; /* bulk is ours to free */
    bool      overlaps;
    lk_work **works;    /* by bucket: under way, or NULL */
    subtree  *subtrees; /* of all ranks, in order */
    int       subtrees_count;
    bool      aligned; /* an all_reduce completes the tree */
    char     *slices;  /* unless aligned: of every subtree, this rank's slice of a bucket */
    size_t    slice_bytes;
    size_t    bytes;                                                     /* of all this */
    char     *scratch;                                                   /* DEPTH blocks */
    size_t   *counts, *displacements, *more_counts, *more_displacements; /* one a rank */
    double   *gathered, *mine; /* of the small gatherings: all leaves' numbers, then all ranks' words */
    lk__run_report *words;
    lk__run_sums   *ranks; /* what each rank's leaves gave */
    double          waited;
};

enum { SMALL = 64 }; /* numbers a leaf that are exchanged besides synchronised sums */

static size_t elements_of(const lk_program *p, size_t bytes) { return bytes / lk_dtype_size(p->plan->graph->real); }

/* ---- the tree over leaves ---- */

static int half(int n) /* the largest power of two below n */
{
    int h = 1;
    while (2 * h < n) h *= 2;
    return h;
}

/* The largest subtrees of lo … hi within first … last. */
static void cut_subtrees(lk__run_exchange *x, int lo, int hi, int first, int last, int rank)
{
    if (hi <= first || last <= lo) return;
    if (first <= lo && hi <= last) {
        x->subtrees[x->subtrees_count++] = (subtree){lo, hi, rank};
        return;
    }
    int middle = lo + half(hi - lo);
    cut_subtrees(x, lo, middle, first, last, rank);
    cut_subtrees(x, middle, hi, first, last, rank);
}

/* Every rank has one subtree, as large as the others': then an all_reduce completes the tree. */
static bool is_aligned(const lk_parallel *f)
{
    int each = f->leaves / f->world;
    return f->leaves % f->world == 0 && (each & (each - 1)) == 0;
}

static void find_subtrees(lk__run_exchange *x, const lk_parallel *f)
{
    for (int rank = 0; rank < f->world; rank++)
        cut_subtrees(x, 0, f->leaves, lk__first_leaf(f->leaves, f->world, rank),
                     lk__first_leaf(f->leaves, f->world, rank + 1), rank);
}

/* The sum over leaves lo … hi of `count` elements: where it is. A result that had to be added lies in scratch[depth]. */
static const char *tree(const lk_program *p, const char *const *at, int lo, int hi, size_t offset, size_t count,
                        int depth)
{
    const lk__run_exchange *x = p->exchange;
    for (int i = 0; i < x->subtrees_count; i++)
        if (x->subtrees[i].first == lo && x->subtrees[i].last == hi) return at[i] + offset;
    int         middle = lo + half(hi - lo);
    char       *out = x->scratch + (size_t)depth * BLOCK * sizeof(double);
    const void *sides[] = {tree(p, at, lo, middle, offset, count, depth), NULL};
    sides[1] = tree(p, at, middle, hi, offset, count, depth + 1);
    lk__reduce(out, sides, 2, count, p->plan->graph->real, LK_SUM);
    return out;
}

/* ---- adding here ---- */

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
static void add(const lk_program *p, void *out, const void **in, int n, size_t bytes)
{
    addition a = {out, in, n, elements_of(p, bytes), p->plan->graph->real};
    if (n > 1) lk__pool_run(lk__context_pool(p->context), (int64_t)((a.count + TILE - 1) / TILE), add_tile, &a);
}

int lk__exchange_subtree(const lk_program *p, int leaf)
{
    const lk__run_exchange *x = p->exchange;
    const lk_parallel      *f = &p->plan->parallel;
    int                     first = lk__first_leaf(f->leaves, f->world, f->rank) + leaf;
    for (int i = 0; i < x->subtrees_count; i++)
        if (x->subtrees[i].first == first && x->subtrees[i].rank == f->rank) return x->subtrees[i].last - first;
    return 0;
}

/* One piece of gradients over every subtree of this rank's leaves, into those of its first leaf. */
static void add_subtrees(lk_program *p, size_t offset, size_t bytes)
{
    for (int leaf = 0, n; leaf < lk__leaves_here(p); leaf += n) {
        const void *in[LK__LEAVES_MOST] = {NULL};
        n = lk__exchange_subtree(p, leaf);
        for (int k = 0; k < n; k++) in[k] = lk__gradient_set(p, leaf + k) + offset;
        add(p, (char *)in[0], in, n, bytes);
    }
}

static void add_leaves(lk_program *p, const lk__plan_bucket *b)
{
    const lk_plan *plan = p->plan;
    if (!plan->parallel.batch_leaves) {
        add_subtrees(p, b->offset, b->bytes);
        return;
    }
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        const lk__plan_state *s = &plan->states[i];
        bool here = s->trained && s->gradient_offset >= b->offset && s->gradient_offset < b->offset + b->bytes;
        if (here && !s->in_parts) add_subtrees(p, s->gradient_offset, s->bytes);
    }
}

/* ---- buckets ---- */

static void slice_of(const lk_program *p, size_t elements, int rank, size_t *first, size_t *count)
{
    size_t world = (size_t)p->plan->parallel.world;
    *first = elements * (size_t)rank / world;
    *count = elements * (size_t)(rank + 1) / world - *first;
}

/* Subtree number `turn` of every rank that has so many: to each rank its slice of ours, from each its own of theirs. */
static lk_status trade_slices(lk_program *p, const lk__plan_bucket *b, int turn, bool *more)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *f = &p->plan->parallel;
    size_t             elements = elements_of(p, b->bytes), size = lk_dtype_size(p->plan->graph->real), first, mine;
    const char        *send = NULL;
    *more = false;
    slice_of(p, elements, f->rank, &first, &mine);
    memset(x->more_counts, 0, (size_t)f->world * sizeof *x->more_counts);
    for (int rank = 0; rank < f->world; rank++) {
        int seen = 0;
        for (int i = 0; i < x->subtrees_count; i++) {
            if (x->subtrees[i].rank != rank || seen++ != turn) continue;
            x->more_counts[rank] = mine;
            x->more_displacements[rank] = (size_t)i * x->slice_bytes / size;
            *more = true;
            if (rank == f->rank)
                send = lk__gradient_set(p, x->subtrees[i].first - lk__first_leaf(f->leaves, f->world, rank)) + b->offset;
        }
    }
    for (int rank = 0; rank < f->world; rank++) {
        slice_of(p, elements, rank, &x->displacements[rank], &x->counts[rank]);
        if (!send) x->counts[rank] = 0;
    }
    if (!*more) return LK_OK;
    return lk_comm_all_to_allv(x->bulk, send ? send : x->slices, x->counts, x->displacements, x->slices, x->more_counts,
                               x->more_displacements, p->plan->graph->real, NULL);
}

static lk_status send_slices(lk_program *p, const lk__plan_bucket *b)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *f = &p->plan->parallel;
    size_t             elements = elements_of(p, b->bytes), size = lk_dtype_size(p->plan->graph->real), first, mine;
    const char        *at[LK__LEAVES_MOST] = {NULL}; /* as many subtrees as leaves at the most */
    char              *bucket = lk__gradient_set(p, 0) + b->offset;
    bool               more = true;
    for (int turn = 0; more; turn++) {
        lk_status status = trade_slices(p, b, turn, &more);
        if (status < 0) return status;
    }
    slice_of(p, elements, f->rank, &first, &mine);
    for (int i = 0; i < x->subtrees_count; i++) at[i] = x->slices + (size_t)i * x->slice_bytes;
    for (size_t i = 0; i < mine; i += BLOCK) {
        size_t count = mine - i < BLOCK ? mine - i : BLOCK;
        memcpy(bucket + (first + i) * size, tree(p, at, 0, f->leaves, i * size, count, 0), count * size);
    }
    for (int rank = 0; rank < f->world; rank++) slice_of(p, elements, rank, &x->displacements[rank], &x->counts[rank]);
    return lk_comm_all_gatherv(x->bulk, bucket + first * size, bucket, x->counts, x->displacements,
                               p->plan->graph->real, NULL);
}

bool lk__exchange_by_slices(const lk_program *p) { return p->plan->parallel.leaves && !p->exchange->aligned; }

static lk_status send_bucket(lk_program *p, size_t index)
{
    lk__run_exchange      *x = p->exchange;
    const lk__plan_bucket *b = &p->plan->buckets[index];
    char                  *data = lk__gradient_set(p, 0) + b->offset;
    if (!p->comm) return LK_OK;
    double    start = lk__now();
    lk_status status;
    if (lk__exchange_by_slices(p))
        status = send_slices(p, b);
    else
        status = lk_comm_all_reduce(x->bulk, data, data, elements_of(p, b->bytes), p->plan->graph->real, LK_SUM,
                                    x->overlaps ? &x->works[index] : NULL);
    double end = lk__now();
    x->waited += end - start;
    if (!x->works[index]) lk__traced_bucket(p, index, start, end);
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
        add(p, (char *)in[0], in, 2, b->bytes);
    }
    return last ? send_bucket(p, index) : LK_OK;
}

/* ---- sums in the midst of forward and backward ---- */

/* Numbers of every leaf of this rank, side by side, to all ranks: x->gathered then holds all leaves' in order. */
static lk_status gather_leaves(lk_program *p, const char *name, const double *mine, size_t numbers)
{
    lk__run_exchange  *x = p->exchange;
    const lk_parallel *f = &p->plan->parallel;
    size_t             leaves = f->leaves ? (size_t)f->leaves : (size_t)f->world;
    for (int rank = 0; rank < f->world; rank++) {
        size_t first = (size_t)lk__first_leaf((int)leaves, f->world, rank);
        x->displacements[rank] = first * numbers;
        x->counts[rank] = ((size_t)lk__first_leaf((int)leaves, f->world, rank + 1) - first) * numbers;
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

/* The tree over what gather_leaves brought. */
static void add_gathered(const lk_program *p, size_t numbers, double *out)
{
    const lk_parallel *f = &p->plan->parallel;
    const void        *in[LK__REDUCE_MOST];
    int                leaves = f->leaves ? f->leaves : f->world;
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
               p->plan->parallel.batch_leaves ? lk__leaf_batch_source(p, index, i)
                                              : p->slots[i].train.instructions[index].call.in[0].data,
               bytes);
    if ((status = gather_leaves(p, "all_gather batch norm sums", x->mine, numbers)) < 0) return status;
    add_gathered(p, numbers, first->out[0].data);
    for (int i = 1; i < p->plan->slots; i++)
        memcpy(p->slots[i].train.instructions[index].call.out[0].data, first->out[0].data, bytes);
    return LK_OK;
}

lk_status lk__exchange_numbers(lk_program *p, const double *mine, int numbers, double *out)
{
    if (numbers > SMALL) return lk__fail(p->context, LK_EINVAL, "%d numbers at once; at most %d", numbers, SMALL);
    lk_status status = gather_leaves(p, "all_gather metrics", mine, (size_t)numbers);
    if (status >= 0) add_gathered(p, (size_t)numbers, out);
    return status;
}

/* ---- the end of a step ---- */

/* What each rank's own samples gave, and what it says of itself. */
static lk_status gather_words(lk_program *p)
{
    lk__run_exchange *x = p->exchange;
    lk__run_sums      here = {0, 0, 0};
    for (int i = 0; i < lk__leaves_here(p); i++) {
        here.sum += p->sums[i].sum;
        here.weight += p->sums[i].weight;
        here.correct += p->sums[i].correct;
    }
    double  mine[] = {here.sum, here.weight, here.correct, x->waited, p->wish, p->data, p->invalid_text[0] != 0};
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
        x->words[i] = (lk__run_report){all[3], all[4], all[5], all[6]};
    }
    return LK_OK;
}

/* The span is read before the wait takes the work; while tracing, the wait is for its end. */
static lk_status await(lk_program *p, size_t bucket)
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
        status = send_bucket(p, p->sent);
    }
    double start = lk__now();
    for (size_t i = 0; i < p->plan->buckets_count; i++) {
        if (!x->works[i]) continue;
        lk_status one = await(p, i);
        x->works[i] = NULL;
        if (status >= 0) status = one;
    }
    x->waited += lk__now() - start;
    return status < 0 ? status : gather_words(p);
}

void lk__program_report(lk_program *p, double wish, double data)
{
    p->wish = wish;
    p->data = data;
}

double lk__program_stop_requested(const lk_program *p)
{
    double most = 0;
    for (int i = 0; i < p->plan->parallel.world; i++)
        if (p->exchange->words[i].wish > most) most = p->exchange->words[i].wish;
    return most;
}
lk__run_report lk__program_rank_report(const lk_program *p, int rank) { return p->exchange->words[rank]; }
lk__run_sums   lk__program_sums(const lk_program *p, int rank) { return p->exchange->ranks[rank]; }

/* ---- life ---- */

/* Whether buckets travel while backward goes on: always where a network carries them; where memory does, only if a core is
 * free for it, because otherwise it takes from backward what it gives. */
static bool overlaps(const lk_program *p)
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

/* One piece after the other of one block; with memory NULL it only measures. */
static void *take(char *memory, size_t *used, size_t bytes)
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
    x->works = take(memory, &used, plan->buckets_count * sizeof *x->works);
    x->subtrees = take(memory, &used, 2 * leaves * sizeof *x->subtrees);
    x->counts = take(memory, &used, world * sizeof(size_t));
    x->displacements = take(memory, &used, world * sizeof(size_t));
    x->more_counts = take(memory, &used, world * sizeof(size_t));
    x->more_displacements = take(memory, &used, world * sizeof(size_t));
    x->gathered = take(memory, &used, leaves * widest * sizeof(double));
    x->mine = take(memory, &used, leaves * widest * sizeof(double));
    x->words = take(memory, &used, world * sizeof *x->words);
    x->ranks = take(memory, &used, world * sizeof *x->ranks);
    if (!plan->parallel.leaves || x->aligned) return used;
    x->slice_bytes = lk__round_up(most / world + 2 * LK__ALIGN, LK__ALIGN);
    x->slices = take(memory, &used, x->slice_bytes * 2 * leaves);
    x->scratch = take(memory, &used, (size_t)DEPTH * BLOCK * sizeof(double));
    return used;
}

lk_status lk__exchange_create(lk_program *p)
{
    const lk_parallel *f = &p->plan->parallel;
    lk__run_exchange   measured = {.aligned = is_aligned(f)};
    if (f->leaves > LK__LEAVES_MOST)
        return lk__fail(p->context, LK_EUNSUPPORTED, "%d leaves; at most %d", f->leaves, LK__LEAVES_MOST);
    size_t bytes = lay_out(p, &measured, NULL);
    char  *memory = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!memory) return LK_ENOMEM;
    lk__run_exchange *x = p->exchange = (lk__run_exchange *)memory;
    x->aligned = measured.aligned;
    lay_out(p, x, memory);
    x->bytes = bytes;
    if (f->leaves) find_subtrees(x, f);
    if (!p->comm) return LK_OK;
    x->bulk = p->comm;
    x->overlaps = overlaps(p);
    lk_status status = LK_OK;
    if (x->overlaps && p->plan->syncs) {
        status = lk_comm_split(p->comm, 0, f->rank, &x->bulk);
        x->split = status >= 0;
    }
    /* All buckets at once, and a call that waits behind them. */
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
