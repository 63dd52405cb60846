/* device/cpu/attention.h - what attention and its gradient share: the operands of one head, the keys that a query may
 * attend to, and blocks of keys packed as panels for the micro-kernels. */
#ifndef LK__CPU_ATTENTION_H
#define LK__CPU_ATTENTION_H

#include "base/random.h"
#include "device/cpu/gemm.h"
#include "device/cpu/vmath.h"

/* Queries and keys of a block: scores of a block stay in the first-level cache. Keys are whole vectors, units and
 * panels of columns. */
#if MATRIX
enum { QUERIES = 64, KEYS = 96 };
#else
enum { QUERIES = 64, KEYS = 64 };
#endif
enum {
    STRIP = (int)NR > (int)PANEL_ROWS ? (int)NR : (int)PANEL_ROWS, /* queries that need as many keys; unit of those */
    FIRST_UNIT = MATRIX ? (int)PANEL_ROWS : 1                      /* a strip begins with a whole panel */
};
_Static_assert(KEYS % STRIP == 0 && KEYS % PANEL_COLUMNS == 0 && QUERIES % STRIP == 0 && STRIP % PANEL_UNIT == 0,
               "blocks of attention consist of whole panels");

typedef struct attention {
    int64_t        batch, t, s;   /* samples, queries, keys */
    int64_t        heads, groups; /* of queries; of keys and values: each serves heads / groups of queries */
    int64_t        d, width;      /* of a head; rounded up to PANEL_COLUMNS */
    const ELEMENT *q, *k, *v;     /* of head 0 */
    int64_t        q_row, k_row;  /* elements from a token to the next */
    const int32_t *first, *last;  /* (batch, t): the keys that a query may attend to; NULL: no such bound */
    const int32_t *lengths;       /* (batch): keys that exist; NULL: s */
    bool           causal;
    int64_t        window; /* keys that a query attends to, itself included; 0: all */
    REAL           scale;
    /* Dropout of the probabilities; threshold 0: none. */
    uint32_t       threshold;
    REAL           kept; /* factor on those that are kept */
    lk__random     random;
    const int64_t *ids;
    /* Where this is a part: its first sample, its first row of scores (head, query), and the whole's queries. */
    int64_t first_sample, first_row, whole_t;
    int64_t each, whole_each; /* heads in a row, and of the whole: of each group, where its queries are cut */
} attention;

/* in: the operands q, [k], [v] from `operand` on, then [first], [last], [lengths] from `bounds` on. */
#define attention_describe KERNEL(attention_describe)
attention attention_describe(const lk__kernel_call *call, int operand, int bounds);

/* Keys lo … hi (inclusive) of query i of a sample; lo > hi: none. */
static inline void attention_range(const attention *a, int64_t sample, int64_t i, int64_t *lo, int64_t *hi)
{
    *lo = a->first ? max64(0, a->first[sample * a->t + i]) : 0;
    *hi = a->s - 1;
    if (a->last) *hi = min64(*hi, a->last[sample * a->t + i]);
    if (a->lengths) *hi = min64(*hi, (int64_t)a->lengths[sample] - 1);
    if (a->causal) *hi = min64(*hi, i);
    if (a->window) *lo = max64(*lo, i - a->window + 1);
}

/* Multiplies the probabilities of keys first … first + count - 1 of a query by 0 or `kept`. Whether one is kept is a
 * function of (seed, epoch, op, sample, head, query, key). first is a multiple of 4. */
#define attention_drop KERNEL(attention_drop)
void attention_drop(const attention *a, int64_t sample, int64_t head, int64_t query, int64_t first, int64_t count,
                    const REAL *from, REAL *to);

/* Queries of a block that are computed together, from `begin` on; and of the keys from `first` on, how many of the
 * block they need: on the diagonal of a causal attention fewer than all. A multiple of STRIP, 0: none. hi: the last key
 * of each query. */
static inline int64_t attention_strip(const int64_t *hi, int64_t begin, int64_t end, int64_t first, int64_t *keys)
{
    int64_t at = begin;
    *keys = 0;
    while (at < end) {
        int64_t last = -1, next = min64(end, at + STRIP);
        for (int64_t i = at; i < next; i++) last = max64(last, hi[i]);
        int64_t need = min64(KEYS, round_to(max64(0, last - first + 1), STRIP));
        if (at > begin && need != *keys) break;
        *keys = need;
        at = next;
    }
    return at - begin;
}

/* s = exp(scale s - less) of `count` numbers, a multiple of NR; returns their sum. The vectors of a group hide each
 * other's latency. */
static inline double attention_exp(REAL *s, int64_t count, REAL scale, REAL less)
{
    vec sum = {0};
    for (int64_t j = 0; j < count; j += NR) {
        vec p[NV];
        UNROLL_4
        for (int v = 0; v < NV; v++) p[v] = vexp_bounded(load(s + j + v * VL) * scale - less);
        for (int v = 0; v < NV; v++) {
            store(s + j + v * VL, p[v]);
            sum += p[v];
        }
    }
    return lanes_sum(sum);
}

/* ---- the products of a block (attention_products.c): a matrix instruction set multiplies bf16, to which probabilities
 * and gradients of scores are rounded then ---- */

/* Packed operands, in PACKED elements. */
static inline int64_t columns_size(const attention *a, int64_t keys) { return keys * packed_depth(a->d); }
static inline int64_t rows_size(const attention *a, int64_t rows) { return rows * a->width; }
static inline int64_t taken_size(const attention *a) { return QUERIES * packed_depth(a->d); }

/* to = KEYS keys as panels of columns, for products with queries; missing keys are zeros. columns_size. */
#define attention_pack_columns KERNEL(attention_pack_columns)
void attention_pack_columns(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *to);
/* to = `rows` rows as panels of columns of the head, for products with probabilities; missing ones are zeros.
 * rows_size. */
#define attention_pack_rows KERNEL(attention_pack_rows)
void attention_pack_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, int64_t rows, PACKED *to);
/* `count` rows of a head, for products with packed keys: where they are, or in `taken`. rows[i]: row i, or the panel
 * that begins with it. taken_size. */
#define attention_take_rows KERNEL(attention_take_rows)
void attention_take_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *taken,
                         const PACKED **rows);

/* Of a block: scores (count × KEYS) = the rows, from a multiple of FIRST_UNIT on, times the first `keys` packed
 * keys. */
#define attention_scores KERNEL(attention_scores)
void attention_scores(const attention *a, const PACKED *const *rows, int64_t count, int64_t keys, const PACKED *packed,
                      REAL *scores);
/* out (count × width) += the rows x (count × KEYS) times the first `keys` rows of KEYS packed ones. */
#define attention_add KERNEL(attention_add)
void attention_add(const attention *a, const REAL *x, int64_t count, int64_t keys, const PACKED *packed, REAL *out);
/* out (keys × width) += rows begin … end - 1 of x (QUERIES × KEYS), transposed, times QUERIES packed rows. */
#define attention_add_transposed KERNEL(attention_add_transposed)
void attention_add_transposed(const attention *a, const REAL *x, int64_t begin, int64_t end, int64_t keys,
                              const PACKED *packed, REAL *out);

#endif
