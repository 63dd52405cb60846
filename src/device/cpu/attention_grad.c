/* attention_grad.c - the gradient of attention. Probabilities are computed again from the scores and the saved
 * logarithm of their sum, so nothing of size queries × keys is kept (Dao et al. 2022). A tile is a (sample, group of
 * heads): it alone adds to the gradients of its keys and values, in the order of heads and queries, so threads do not
 * change bits. Where ranks may divide the heads of a group (attrs.sum), each part of them, usually one head, has
 * separate sums, which are added in the pairwise tree. It is bound by five products on the micro-kernels. */
#include "device/cpu/attention.h"

#include "device/sum_parts.h"

typedef struct backward {
    attention      a;
    const ELEMENT *dy, *y;
    const REAL    *lse;
    ELEMENT       *dq, *dk, *dv; /* of head 0, laid out as q, k and v */
    bool           wide;         /* dk and dv are summands of what other ranks have, and REALs */
    lk__sum_parts  parts;        /* of the heads of a group */
    int64_t        sums;         /* of dk and dv, that a tile keeps: those of the tree over the parts */
    char          *workspace;
    size_t         per_worker;
} backward;

typedef struct scratch {
    PACKED *keys, *values, *key_rows; /* packed, of all blocks: columns of K and V, rows of K */
    REAL   *dk, *dv;                  /* (blocks × KEYS, width): the current sums, of those that are kept */
    PACKED *queries, *dout;           /* packed rows of the block's queries and of dy */
    REAL   *p, *dp;                   /* (QUERIES, KEYS): probabilities, and their gradients */
    REAL   *dq;                       /* (QUERIES, width) */
    PACKED *query_rows, *dout_rows;   /* taken for products with keys and values */
    REAL    delta[QUERIES];
    int64_t lo[QUERIES], hi[QUERIES];
} scratch;

/* The parts of a worker's scratch, in bytes. */
enum { SPACES = 12 };
static int64_t sum_size(const attention *a) { return tiles_of(a->s, KEYS) * KEYS * a->width; }
static void    measure(const backward *g, size_t parts[SPACES])
{
    const attention *a = &g->a;
    int64_t          keys = tiles_of(a->s, KEYS) * KEYS;
    size_t           columns = packed_space_of(columns_size(a, keys)), sums = space_of(g->sums * sum_size(a));
    size_t           rows = packed_space_of(rows_size(a, QUERIES)), taken = packed_space_of(taken_size(a));
    size_t           scores = space_of(QUERIES * KEYS + MR);
    size_t           sizes[SPACES] = {columns, columns, packed_space_of(rows_size(a, keys)), sums,  sums, rows, rows,
                                      scores,  scores,  space_of(QUERIES * a->width),        taken, taken};
    memcpy(parts, sizes, sizeof sizes);
}

static size_t backward_space(const backward *g)
{
    size_t parts[SPACES], bytes = 0;
    measure(g, parts);
    for (int i = 0; i < SPACES; i++) bytes += parts[i];
    return bytes;
}

static void lay_out(const backward *g, int worker, scratch *w)
{
    size_t parts[SPACES];
    char  *at = g->workspace + (size_t)worker * g->per_worker, *start[SPACES];
    measure(g, parts);
    for (int i = 0; i < SPACES; at += parts[i++]) start[i] = at;
    w->keys = (PACKED *)start[0], w->values = (PACKED *)start[1], w->key_rows = (PACKED *)start[2];
    w->dk = (REAL *)start[3], w->dv = (REAL *)start[4];
    w->queries = (PACKED *)start[5], w->dout = (PACKED *)start[6];
    w->p = (REAL *)start[7], w->dp = (REAL *)start[8], w->dq = (REAL *)start[9];
    w->query_rows = (PACKED *)start[10], w->dout_rows = (PACKED *)start[11];
}

static void pack_group(const attention *a, scratch *w, int64_t sample, int64_t group)
{
    const ELEMENT *k = a->k + sample * a->s * a->k_row + group * a->d,
                  *v = a->v + sample * a->s * a->k_row + group * a->d;
    for (int64_t first = 0; first < a->s; first += KEYS) {
        int64_t count = min64(KEYS, a->s - first);
        attention_pack_columns(a, k + first * a->k_row, a->k_row, count, w->keys + columns_size(a, first));
        attention_pack_columns(a, v + first * a->k_row, a->k_row, count, w->values + columns_size(a, first));
        attention_pack_rows(a, k + first * a->k_row, a->k_row, count, KEYS, w->key_rows + rows_size(a, first));
    }
}

/* A block of queries of one head. */
typedef struct query_block {
    int64_t       sample, head, query; /* query: the block's first one */
    const PACKED *queries[QUERIES], *douts[QUERIES];
} query_block;

/* Row i: probabilities from scores, gradients of scores from those of probabilities; both 0 for keys that are not
 * attended to. */
static void differentiate_row(const backward *g, scratch *w, const query_block *b, int64_t i, int64_t first,
                              int64_t keys)
{
    const attention *a = &g->a;
    REAL            *p = w->p + i * KEYS, *dp = w->dp + i * KEYS;
    int64_t          query = b->query + i;
    REAL             lse = g->lse[(b->sample * a->heads + b->head) * a->t + query];
    int64_t          lo = max64(0, w->lo[i] - first), hi = min64(keys - 1, w->hi[i] - first);
    if (lo > hi) lo = keys, hi = keys - 1;
    attention_exp(p, keys, a->scale, lse);
    if (a->threshold) attention_drop(a, b->sample, b->head, query, first, keys, dp, dp);
    for (int64_t j = 0; j < keys; j += VL) store(dp + j, load(p + j) * (load(dp + j) - w->delta[i]) * a->scale);
    if (a->threshold) attention_drop(a, b->sample, b->head, query, first, keys, p, p);
    memset(p, 0, (size_t)lo * sizeof *p);
    memset(p + hi + 1, 0, (size_t)(keys - 1 - hi) * sizeof *p);
    memset(dp, 0, (size_t)lo * sizeof *dp);
    memset(dp + hi + 1, 0, (size_t)(keys - 1 - hi) * sizeof *dp);
}

/* delta = dy · y: what the softmax subtracts from each gradient of a probability. */
static void set_delta(const attention *a, scratch *w, int64_t count, const ELEMENT *dy, const ELEMENT *y)
{
    int64_t row = a->heads * a->d;
    for (int64_t i = 0; i < count; i++) {
        double total = 0;
        SUM_VECTORS(total, j, a->d, load_part(dy + i * row + j, lanes) * load_part(y + i * row + j, lanes));
        w->delta[i] = (REAL)total;
    }
}

/* Queries begin … end - 1 of the block, and `keys` keys from `first` on. */
static void differentiate_strip(const backward *g, scratch *w, const query_block *b, int64_t begin, int64_t end,
                                int64_t first, int64_t keys)
{
    const attention *a = &g->a;
    int64_t          count = end - begin;
    attention_scores(a, b->queries + begin, count, keys, w->keys + columns_size(a, first), w->p + begin * KEYS);
    attention_scores(a, b->douts + begin, count, keys, w->values + columns_size(a, first), w->dp + begin * KEYS);
    for (int64_t i = begin; i < end; i++) differentiate_row(g, w, b, i, first, keys);
    attention_add_transposed(a, w->p, begin, end, keys, w->dout, w->dv + first * a->width);
    attention_add_transposed(a, w->dp, begin, end, keys, w->queries, w->dk + first * a->width);
    attention_add(a, w->dp + begin * KEYS, count, keys, w->key_rows + rows_size(a, first), w->dq + begin * a->width);
}

static void differentiate_block(const backward *g, scratch *w, int64_t sample, int64_t head, int64_t query,
                                int64_t count)
{
    const attention *a = &g->a;
    int64_t          token = sample * a->t + query, row = a->heads * a->d, lowest = a->s, highest = -1;
    const ELEMENT   *q = a->q + token * a->q_row + head * a->d, *dy = g->dy + token * row + head * a->d;
    query_block      b = {.sample = sample, .head = head, .query = query};
    attention_take_rows(a, q, a->q_row, count, w->query_rows, b.queries);
    attention_take_rows(a, dy, row, count, w->dout_rows, b.douts);
    attention_pack_rows(a, q, a->q_row, count, QUERIES, w->queries);
    attention_pack_rows(a, dy, row, count, QUERIES, w->dout);
    set_delta(a, w, count, dy, g->y + token * row + head * a->d);
    for (int64_t i = 0; i < count; i++) {
        attention_range(a, sample, query + i, &w->lo[i], &w->hi[i]);
        if (w->lo[i] <= w->hi[i]) lowest = min64(lowest, w->lo[i]), highest = max64(highest, w->hi[i]);
    }
    memset(w->dq, 0, (size_t)(count * a->width) * sizeof(REAL));
    for (int64_t block = lowest / KEYS; block * KEYS <= highest; block++) {
        int64_t first = block * KEYS, begin = 0, end = count;
        while (begin < end && (w->hi[begin] < first || w->lo[begin] >= first + KEYS)) begin++;
        while (end > begin && (w->hi[end - 1] < first || w->lo[end - 1] >= first + KEYS)) end--;
        if (begin == end) continue;
        begin -= begin % FIRST_UNIT;
        for (int64_t keys, strip; begin < end; begin += strip) {
            strip = attention_strip(w->hi, begin, end, first, &keys);
            differentiate_strip(g, w, &b, begin, begin + strip, first, keys);
        }
    }
    for (int64_t i = 0; i < count && g->dq; i++)
        copy_narrow(g->dq + (token + i) * a->q_row + head * a->d, w->dq + i * a->width, a->d);
}

static void add_sums(REAL *to, const REAL *more, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) store(to + i, load(to + i) + load(more + i)); /* n is a multiple of NR */
}

/* The sums of all heads of a group are in w->dk and w->dv then. */
static void differentiate_heads(const backward *g, scratch *w, int64_t sample, int64_t group)
{
    const attention     *a = &g->a;
    const lk__sum_parts *parts = &g->parts;
    int64_t              first = group * (a->heads / a->groups), size = sum_size(a);
    for (int part = 0; part < parts->count; part++, w->dk += size, w->dv += size) {
        memset(w->dk, 0, (size_t)size * sizeof(REAL));
        memset(w->dv, 0, (size_t)size * sizeof(REAL));
        for (int64_t h = first + parts->begin[0][part]; h < first + parts->begin[0][part + 1]; h++)
            for (int64_t query = 0; query < a->t; query += QUERIES)
                differentiate_block(g, w, sample, h, query, min64(QUERIES, a->t - query));
        for (int merges = lk__tree_merges(part, parts->count); merges > 0; merges--) {
            w->dk -= size, w->dv -= size;
            add_sums(w->dk, w->dk + size, size);
            add_sums(w->dv, w->dv + size, size);
        }
    }
    w->dk -= size, w->dv -= size;
}

static void store_sums(const backward *g, ELEMENT *to, int64_t at, const REAL *sums)
{
    if (to && g->wide)
        memcpy((REAL *)(void *)to + at, sums, (size_t)g->a.d * sizeof(REAL));
    else if (to)
        copy_narrow(to + at, sums, g->a.d);
}

static void backward_tile(void *argument, int64_t tile, int worker)
{
    const backward  *g = argument;
    const attention *a = &g->a;
    int64_t          group = tile % a->groups, sample = tile / a->groups;
    scratch          w;
    lay_out(g, worker, &w);
    pack_group(a, &w, sample, group);
    matrix_begin();
    differentiate_heads(g, &w, sample, group);
    matrix_end();
    for (int64_t j = 0; j < a->s; j++) {
        int64_t at = (sample * a->s + j) * a->k_row + group * a->d;
        store_sums(g, g->dk, at, w.dk + j * a->width);
        store_sums(g, g->dv, at, w.dv + j * a->width);
    }
}

/* Ranks may have some heads of each group, or of one group whose keys other ranks have, too. */
static backward describe_call(const lk__kernel_call *call)
{
    const lk__kernel_operand *q = &call->in[1], *k = &call->in[2];
    const lk__op_summation    none = {0};
    backward                  g = {.a = attention_describe(call, 1, 6)};
    int64_t                   each = g.a.groups ? g.a.heads / g.a.groups : 1, groups = 0, whole = each, first = 0;
    if (input(call, 2) && g.a.d > 0) groups = lk__whole_extent(k, 2) / g.a.d;
    if (groups > 0) whole = lk__whole_extent(q, 2) / g.a.d / groups;
    if (groups > 0 && whole > 0) first = lk__part_first(q, 2) / g.a.d % whole;
    if (!lk__sum_parts_of(&call->attrs->sum, whole, first, each, &g.parts))
        lk__sum_parts_of(&none, each, 0, each, &g.parts);
    g.sums = lk__tree_depth(g.parts.count);
    return g;
}

size_t KERNEL(attention_grad_workspace)(const lk__kernel_call *call, int threads)
{
    backward g = describe_call(call);
    return (size_t)threads * backward_space(&g);
}

void KERNEL(attention_grad)(const lk__kernel_call *call)
{
    backward g = describe_call(call);
    bool     packed = !input(call, 2);
    g.dy = call->in[0].data;
    g.y = call->in[4].data;
    g.lse = call->in[5].data;
    g.dq = output(call, 0);
    g.dk = packed ? g.dq + g.a.heads * g.a.d : output(call, 1);
    g.dv = packed ? g.dk + g.a.groups * g.a.d : output(call, 2);
    for (int i = 1; i <= 2 && !packed; i++)
        g.wide |= output(call, i) && lk_dtype_size(call->out[i].dtype) == sizeof(REAL);
    g.workspace = call->workspace;
    g.per_worker = backward_space(&g);
    lk__pool_run(call->pool, g.a.batch * g.a.groups, backward_tile, &g);
}
