/* device/cpu/attention.h - what attention and its gradient share: the operands of one head, the keys that a query may
 * attend to, and blocks of keys packed as panels for the micro-kernels. */
#ifndef LK__CPU_ATTENTION_H
#define LK__CPU_ATTENTION_H

#include "base/random.h"
#include "device/cpu/gemm.h"
#include "device/cpu/vmath.h"

/* Queries and keys of a block: scores of a block stay in the first-level cache. Multiples of NR. */
enum { QUERIES = 64, KEYS = 64 };

typedef struct attention {
    int64_t        batch, t, s;       /* samples, queries, keys */
    int64_t        heads, groups;     /* of queries; of keys and values: each serves heads / groups of queries */
    int64_t        d, width;          /* of a head; rounded up to NR */
    const ELEMENT *q, *k, *v;         /* of head 0 */
    int64_t        q_row, k_row;      /* elements from a token to the next */
    const int32_t *first, *last;      /* (batch, t): the keys that a query may attend to; NULL: no such bound */
    const int32_t *lengths;           /* (batch): keys that exist; NULL: s */
    bool           causal;
    int64_t        window;            /* keys that a query attends to, itself included; 0: all */
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

/* `count` rows of a head as REALs: in place, or converted. */
static inline void attention_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, REAL *converted,
                                  const REAL **rows)
{
    for (int64_t i = 0; i < count; i++) {
#if NARROW
        copy_wide(converted + i * a->d, from + i * row, a->d);
        rows[i] = converted + i * a->d;
#else
        (void)converted, (void)a;
        rows[i] = from + i * row;
#endif
    }
}

/* Multiplies the probabilities of keys first … first + count - 1 of a query by 0 or `kept`. Whether one is kept is a
 * function of (seed, epoch, op, sample, head, query, key). first is a multiple of 4. */
#define attention_drop KERNEL(attention_drop)
void attention_drop(const attention *a, int64_t sample, int64_t head, int64_t query, int64_t first, int64_t count,
                    const REAL *from, REAL *to);

/* to = panels of NR keys of (d × NR), for products with queries: rows of `from` become columns; missing keys are
 * zeros. */
#define pack_columns KERNEL(attention_pack_columns)
void pack_columns(const attention *a, const ELEMENT *from, int64_t row, int64_t count, REAL *to);
/* to = panels of NR columns of (rows × NR), for products with probabilities; missing rows and columns are zeros. */
#define pack_rows KERNEL(attention_pack_rows)
void pack_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, int64_t rows, REAL *to);

/* Queries of a block that are computed together, from `begin` on; and of the keys from `first` on, how many of the
 * block they need: on the diagonal of a causal attention fewer than all. A multiple of NR, 0: none. hi: the last key of
 * each query. */
static inline int64_t attention_strip(const int64_t *hi, int64_t begin, int64_t end, int64_t first, int64_t *keys)
{
    int64_t at = begin;
    *keys = 0;
    while (at < end) {
        int64_t last = -1, next = min64(end, at + NR);
        for (int64_t i = at; i < next; i++) last = max64(last, hi[i]);
        int64_t need = min64(KEYS, round_to(max64(0, last - first + 1), NR));
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

/* Of a block: scores (count × KEYS) = the rows a times the first `keys` packed keys. */
#define attention_scores KERNEL(attention_scores)
void attention_scores(const attention *a, const REAL *const *rows, int64_t count, int64_t keys, const REAL *packed,
                      REAL *scores);
/* out (count × width) += the rows x (count × KEYS) times the first `keys` rows of a packed block. */
#define attention_add KERNEL(attention_add)
void attention_add(const attention *a, const REAL *x, int64_t count, int64_t keys, const REAL *packed, REAL *out);

#endif
