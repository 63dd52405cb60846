/* attention_products.c - the products of a block of attention and of its gradient, and how their operands are packed:
 * REALs, on the micro-kernels. */
#include "device/cpu/attention.h"

void attention_pack_columns(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *to)
{
    for (int64_t key = 0; key < KEYS; key += NR, to += a->d * NR) {
        int64_t here = min64(NR, max64(0, count - key));
        if (here < NR) memset(to, 0, (size_t)(a->d * NR) * sizeof(REAL));
        if (here > 0) transpose_wide(to, NR, from + key * row, row, here, a->d);
    }
}

void attention_pack_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, int64_t rows, PACKED *to)
{
    for (int64_t column = 0; column < a->width; column += NR, to += rows * NR) {
        int64_t here = min64(NR, a->d - column);
        if (here < NR || count < rows) memset(to, 0, (size_t)(rows * NR) * sizeof(REAL));
        for (int64_t i = 0; i < count; i++) copy_wide(to + i * NR, from + i * row + column, here);
    }
}

void attention_take_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *taken,
                         const PACKED **rows)
{
    for (int64_t i = 0; i < count; i++) {
#if NARROW
        copy_wide(taken + i * a->d, from + i * row, a->d);
        rows[i] = taken + i * a->d;
#else
        (void)taken, (void)a;
        rows[i] = from + i * row;
#endif
    }
}

void attention_scores(const attention *a, const PACKED *const *rows, int64_t count, int64_t keys, const PACKED *packed,
                      REAL *scores)
{
    runs  r = {.runs = 1, .length = a->d, .a_run = 0, .a_k = 1};
    REAL *to[QUERIES];
    for (int64_t i = 0; i < count; i++) to[i] = scores + i * KEYS;
    for (int64_t key = 0; key < keys; key += NR, packed += a->d * NR)
        micro_nn(count, rows, &r, packed, zeros, to, key, NR);
}

void attention_add(const attention *a, const REAL *x, int64_t count, int64_t keys, const PACKED *packed, REAL *out)
{
    runs        r = {.runs = 1, .length = keys, .a_run = 0, .a_k = 1};
    const REAL *from[QUERIES];
    REAL       *to[QUERIES];
    for (int64_t i = 0; i < count; i++) from[i] = x + i * KEYS, to[i] = out + i * a->width;
    for (int64_t column = 0; column < a->width; column += NR, packed += KEYS * NR)
        micro_nn(count, from, &r, packed, NULL, to, column, NR);
}

void attention_add_transposed(const attention *a, const REAL *x, int64_t begin, int64_t end, int64_t keys,
                              const PACKED *packed, REAL *out)
{
    runs r = {.runs = 1, .length = end - begin, .a_run = 0, .a_k = KEYS};
    for (int64_t column = 0; column < a->width; column += NR, packed += QUERIES * NR)
        micro_tn(keys, x + begin * KEYS, &r, packed + begin * NR, NULL, out + column, a->width, NR);
}
