/* attention.c - scaled dot-product attention without a matrix of all scores: each block of queries is multiplied with
 * blocks of keys, and the softmax is corrected as larger scores appear (Milakov and Gimelshein 2018; Dao et al. 2022).
 * Both products run on the micro-kernels; they are bound by arithmetic, and exp takes a few per cent. A single query,
 * as in generation, reads keys and values once and is bound by memory. */
#include "device/cpu/attention.h"

/* ---- shared with the gradient ---- */

attention attention_describe(const lk__kernel_call *call, int operand, int bounds)
{
    const lk__op_attrs       *attrs = call->attrs;
    const lk__kernel_operand *q = &call->in[operand], *k = &call->in[operand + 1];
    bool                      packed = !input(call, operand + 1);
    attention a = {.batch = q->dims[0], .t = q->dims[1], .heads = attrs->heads, .groups = attrs->kv_heads};
    int64_t   together = packed ? a.heads + 2 * a.groups : a.heads; /* heads in a row of q */
    a.s = packed ? a.t : k->dims[1];
    a.d = q->dims[2] / together;
    a.width = round_to(a.d, PANEL_COLUMNS);
    a.q_row = q->dims[2];
    a.k_row = packed ? a.q_row : k->dims[2];
    a.q = q->data;
    a.k = packed ? a.q + a.heads * a.d : k->data;
    a.v = packed ? a.k + a.groups * a.d : call->in[operand + 2].data;
    a.first = input(call, bounds);
    a.last = input(call, bounds + 1);
    a.lengths = input(call, bounds + 2);
    a.causal = attrs->causal;
    a.window = attrs->window;
    a.scale = (REAL)attrs->scale;
    a.whole_t = lk__whole_extent(q, 1);
    if (attrs->probability > 0 && call->step) { /* there is none when the workspace is planned */
        uint64_t turn = call->step->sample_ids ? (uint64_t)call->step->epoch : ~(uint64_t)call->step->step;
        double   threshold = ceil(attrs->probability * 4294967296.0 - 0.5);
        a.threshold = threshold > 4294967295.0 ? UINT32_MAX : (uint32_t)threshold;
        a.kept = (REAL)(1 / (1 - attrs->probability));
        a.random = lk__random_make(call->step->seed, LK__FOR_DROPOUT, attrs->stream ^ (turn * 0x9E3779B97F4A7C15u));
        a.ids = call->step->sample_ids;
        a.first_sample = lk__part_first(q, 0);
        a.first_row = (a.d > 0 ? lk__part_first(q, 2) / a.d : 0) * a.whole_t + lk__part_first(q, 1);
        int64_t repetitions = !packed && q->part && q->part->outer[2] > 1 ? q->part->outer[2] : 1;
        a.each = a.heads / repetitions;
        a.whole_each = a.d > 0 ? lk__whole_extent(q, 2) / a.d / repetitions : 0;
    }
    return a;
}

void attention_drop(const attention *a, int64_t sample, int64_t head, int64_t query, int64_t first, int64_t count,
                    const REAL *from, REAL *to)
{
    int64_t  at = head / a->each * a->whole_each + head % a->each; /* of the whole, from the first one here on */
    int64_t  whole = sample + a->first_sample, row = at * a->whole_t + query + a->first_row;
    uint64_t item = (uint64_t)(a->ids ? a->ids[whole] : whole);
    uint32_t index = (uint32_t)((row * round_to(a->s, 4) + first) / 4), bits[4];
    for (int64_t j = 0; j < count; j++) {
        if (j % 4 == 0) lk__random4(&a->random, item, index++, bits);
        to[j] = bits[j % 4] >= a->threshold ? from[j] * a->kept : 0;
    }
}

/* ---- forward ---- */

typedef struct forward {
    attention a;
    ELEMENT  *y;
    REAL     *lse;           /* (batch, heads, t): the logarithm of the sum of exp(scores); NULL: not needed */
    int64_t   chunks, tiles; /* parts of the queries of a (sample, group) */
    char     *workspace;
    size_t    per_worker;
} forward;

/* A worker's scratch. Packed keys and values: of all blocks of one group. */
typedef struct scratch {
    PACKED *keys, *values, *rows;
    REAL   *scores, *sums;
    REAL    most[QUERIES];
    double  total[QUERIES];
    int64_t lo[QUERIES], hi[QUERIES];
} scratch;

static int64_t key_blocks(int64_t s) { return tiles_of(s, KEYS); }

static size_t keys_space(const attention *a) { return packed_space_of(columns_size(a, key_blocks(a->s) * KEYS)); }
static size_t values_space(const attention *a) { return packed_space_of(rows_size(a, key_blocks(a->s) * KEYS)); }
static size_t forward_space(const attention *a)
{
    return keys_space(a) + values_space(a) + space_of(QUERIES * KEYS) + space_of(QUERIES * a->width) +
           packed_space_of(taken_size(a));
}

static void lay_out(const forward *f, int worker, scratch *w)
{
    char *at = f->workspace + (size_t)worker * f->per_worker;
    w->keys = (PACKED *)at;
    w->values = (PACKED *)(at += keys_space(&f->a));
    w->scores = (REAL *)(at += values_space(&f->a));
    w->sums = (REAL *)(at += space_of(QUERIES * KEYS));
    w->rows = (PACKED *)(at + space_of(QUERIES * f->a.width));
}

/* Of `least` and scale times `count` scores, a multiple of NR. */
static REAL largest(const REAL *s, int64_t count, REAL scale, REAL least)
{
    vec best[NV];
    for (int v = 0; v < NV; v++) best[v] = splat(least);
    for (int64_t j = 0; j < count; j += NR)
        for (int v = 0; v < NV; v++) best[v] = vmax(load(s + j + v * VL) * scale, best[v]);
    for (int v = 1; v < NV; v++) best[0] = vmax(best[v], best[0]);
    return lanes_max(best[0]);
}

/* Row i of the block: its probabilities, not yet divided by their sum, of `keys` keys from `first` on; corrects what
 * was summed. */
static void soften_row(const attention *a, scratch *w, int64_t i, int64_t first, int64_t keys)
{
    REAL   *s = w->scores + i * KEYS, *sums = w->sums + i * a->width;
    REAL    unseen = a->scale < 0 ? R(1e30) : -R(1e30);
    int64_t lo = max64(0, w->lo[i] - first), hi = min64(keys - 1, w->hi[i] - first);
    if (lo > hi) {
        memset(s, 0, KEYS * sizeof *s);
        return;
    }
    for (int64_t j = 0; j < lo; j++) s[j] = unseen;
    for (int64_t j = hi + 1; j < keys; j++) s[j] = unseen;
    REAL most = largest(s, keys, a->scale, w->most[i]);
    if (most > w->most[i]) {
        REAL factor = w->total[i] > 0 ? (REAL)exp((double)(w->most[i] - most)) : 0;
        w->most[i] = most;
        w->total[i] *= (double)factor;
        for (int64_t j = 0; j < a->width; j += VL) store(sums + j, load(sums + j) * factor);
    }
    /* What is not seen would add e^-87 at most to a sum of 1 at least. */
    w->total[i] += attention_exp(s, keys, a->scale, most);
    memset(s, 0, (size_t)lo * sizeof *s);
    memset(s + hi + 1, 0, (size_t)(KEYS - 1 - hi) * sizeof *s);
}

static void soften_rows(const forward *f, scratch *w, int64_t sample, int64_t head, int64_t query, int64_t begin,
                        int64_t end, int64_t first, int64_t keys)
{
    const attention *a = &f->a;
    for (int64_t i = begin; i < end; i++) {
        soften_row(a, w, i, first, keys);
        REAL *s = w->scores + i * KEYS;
        if (a->threshold) attention_drop(a, sample, head, query + i, first, KEYS, s, s);
    }
}

static void finish_row(const forward *f, scratch *w, int64_t i, ELEMENT *y, REAL *lse)
{
    REAL *sums = w->sums + i * f->a.width;
    bool  none = !(w->total[i] > 0) && w->total[i] == w->total[i]; /* no key; NaN stays */
    REAL  factor = none ? 0 : (REAL)(1 / w->total[i]);
    for (int64_t j = 0; j < f->a.width; j += VL) store(sums + j, load(sums + j) * factor);
    copy_narrow(y, sums, f->a.d);
    if (lse) *lse = none ? 0 : w->most[i] + (REAL)log(w->total[i]);
}

/* Queries query … query + count - 1 of one head. */
static void attend(const forward *f, scratch *w, int64_t sample, int64_t head, int64_t query, int64_t count)
{
    const attention *a = &f->a;
    const PACKED    *rows[QUERIES];
    int64_t          lowest = a->s, highest = -1;
    attention_take_rows(a, a->q + (sample * a->t + query) * a->q_row + head * a->d, a->q_row, count, w->rows, rows);
    for (int64_t i = 0; i < count; i++) {
        attention_range(a, sample, query + i, &w->lo[i], &w->hi[i]);
        if (w->lo[i] <= w->hi[i]) lowest = min64(lowest, w->lo[i]), highest = max64(highest, w->hi[i]);
        w->most[i] = -INFINITY;
        w->total[i] = 0;
    }
    memset(w->sums, 0, (size_t)(count * a->width) * sizeof(REAL));
    for (int64_t block = lowest / KEYS; block * KEYS <= highest; block++) {
        int64_t first = block * KEYS, begin = 0, end = count; /* rows that this block concerns */
        while (begin < end && (w->hi[begin] < first || w->lo[begin] >= first + KEYS)) begin++;
        while (end > begin && (w->hi[end - 1] < first || w->lo[end - 1] >= first + KEYS)) end--;
        if (begin == end) continue;
        begin -= begin % FIRST_UNIT;
        for (int64_t keys, strip; begin < end; begin += strip) {
            strip = attention_strip(w->hi, begin, end, first, &keys);
            attention_scores(a, rows + begin, strip, keys, w->keys + columns_size(a, first), w->scores + begin * KEYS);
            soften_rows(f, w, sample, head, query, begin, begin + strip, first, keys);
            attention_add(a, w->scores + begin * KEYS, strip, keys, w->values + rows_size(a, first),
                          w->sums + begin * a->width);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t token = sample * a->t + query + i;
        finish_row(f, w, i, f->y + (token * a->heads + head) * a->d,
                   f->lse ? f->lse + (sample * a->heads + head) * a->t + query + i : NULL);
    }
}

/* One query: the products of a row with keys and values where they are, each read once. */
static void attend_one(const forward *f, scratch *w, int64_t sample, int64_t head)
{
    const attention *a = &f->a;
    int64_t          group = head / (a->heads / a->groups), lo, hi;
    const ELEMENT   *k = a->k + sample * a->s * a->k_row + group * a->d,
                  *v = a->v + sample * a->s * a->k_row + group * a->d;
    REAL *scores = (void *)w->keys,
         *q = (void *)w->rows; /* nothing is packed: their memory holds s scores, d numbers */
    copy_wide(q, a->q + sample * a->t * a->q_row + head * a->d, a->d);
    attention_range(a, sample, 0, &lo, &hi);
    w->most[0] = -INFINITY;
    for (int64_t j = lo; j <= hi; j++) {
        double dot = 0;
        SUM_VECTORS(dot, i, a->d, load_part(q + i, lanes) * load_part(k + j * a->k_row + i, lanes));
        scores[j] = (REAL)dot * a->scale;
        if (!(scores[j] <= w->most[0])) w->most[0] = scores[j];
    }
    w->total[0] = 0;
    for (int64_t j = lo; j <= hi; j++) w->total[0] += (double)(scores[j] = (REAL)exp((double)(scores[j] - w->most[0])));
    memset(w->sums, 0, (size_t)a->width * sizeof(REAL));
    for (int64_t j = lo; j <= hi; j++) {
        REAL p = scores[j];
        if (a->threshold) {
            REAL four[4];
            attention_drop(a, sample, head, 0, j / 4 * 4, 4, (REAL[]){p, p, p, p}, four);
            p = four[j % 4];
        }
        EACH_VECTOR(i, a->d,
                    store_part(w->sums + i, load_part(w->sums + i, lanes) + load_part(v + j * a->k_row + i, lanes) * p,
                               lanes););
    }
    finish_row(f, w, 0, f->y + (sample * a->heads + head) * a->d, f->lse ? f->lse + sample * a->heads + head : NULL);
}

/* Packs the blocks of keys that queries `begin` … `end` - 1 attend to: of a cache, those that have been written. */
static void pack_group(const attention *a, scratch *w, int64_t sample, int64_t group, int64_t begin, int64_t end)
{
    const ELEMENT *k = a->k + sample * a->s * a->k_row + group * a->d,
                  *v = a->v + sample * a->s * a->k_row + group * a->d;
    int64_t lowest = a->s, highest = -1;
    for (int64_t i = begin; i < end; i++) {
        int64_t lo, hi;
        attention_range(a, sample, i, &lo, &hi);
        if (lo <= hi) lowest = min64(lowest, lo), highest = max64(highest, hi);
    }
    for (int64_t first = lowest / KEYS * KEYS; first <= highest; first += KEYS) {
        int64_t count = min64(KEYS, a->s - first);
        attention_pack_columns(a, k + first * a->k_row, a->k_row, count, w->keys + columns_size(a, first));
        attention_pack_rows(a, v + first * a->k_row, a->k_row, count, KEYS, w->values + rows_size(a, first));
    }
}

static void forward_tile(void *argument, int64_t tile, int worker)
{
    const forward   *f = argument;
    const attention *a = &f->a;
    int64_t chunk = tile % f->chunks, group = tile / f->chunks % a->groups, sample = tile / f->chunks / a->groups;
    int64_t each = a->heads / a->groups, blocks = tiles_of(a->t, QUERIES);
    int64_t begin = tile_begin(blocks, f->chunks, chunk) * QUERIES;
    int64_t end = min64(a->t, tile_begin(blocks, f->chunks, chunk + 1) * QUERIES);
    scratch w;
    lay_out(f, worker, &w);
    if (a->whole_t == 1) {
        for (int64_t h = 0; h < each; h++) attend_one(f, &w, sample, group * each + h);
        return;
    }
    pack_group(a, &w, sample, group, begin, end);
    matrix_begin();
    for (int64_t h = 0; h < each; h++)
        for (int64_t query = begin; query < end; query += QUERIES)
            attend(f, &w, sample, group * each + h, query, min64(QUERIES, end - query));
    matrix_end();
}

enum { ENOUGH = 32 }; /* tiles: the queries of a head are split only if there are fewer */

size_t KERNEL(attention_workspace)(const lk__kernel_call *call, int threads)
{
    attention a = attention_describe(call, 0, 3);
    return (size_t)threads * forward_space(&a);
}

void KERNEL(attention)(const lk__kernel_call *call)
{
    forward f = {.a = attention_describe(call, 0, 3), .y = call->out[0].data, .lse = output(call, 1)};
    int64_t groups = f.a.batch * f.a.groups;
    if (groups == 0) return;
    f.chunks = max64(1, min64(tiles_of(f.a.t, QUERIES), tiles_of(ENOUGH, groups)));
    f.workspace = call->workspace;
    f.per_worker = forward_space(&f.a);
    lk__pool_run(call->pool, groups * f.chunks, forward_tile, &f);
}
