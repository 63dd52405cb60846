/* device/cpu/skinny.h - what the two kinds of skinny products share (skinny.c, skinny_matrix.c): how they are split,
 * and the operations on the finished sums. */
#ifndef LK__SKINNY_H
#define LK__SKINNY_H

#include "device/cpu/gemm_block.h"
#include "device/cpu/lanes.h"

enum {
    FEW = 8,         /* rows of A: with more, arithmetic bounds the product */
    TILE = 32 << 10, /* elements of B that justify a separate tile */
    STRIP = 1024,    /* the most columns of a tile, where B has its rows in memory: wide ones are read faster */
    TILES = 16,      /* of such a product: enough for as many threads */
};

/* c = sum (+ bias, then the activation), n columns of row i from column j on. */
static inline void finish_columns(const gemm *g, int64_t i, int64_t j, int64_t n, REAL *sum)
{
    for (int64_t q = 0; q < n; q++) {
        REAL x = g->bias ? sum[q] + load_one(g->bias + j + q) : sum[q];
        sum[q] = g->activation == LK__RELU && x < 0 ? 0 : x;
    }
    if (activates(g->activation)) activate(sum, n, g->activation);
    if (NARROW && !g->c_wide)
        copy_narrow((ELEMENT *)g->c + i * g->c_row + j, sum, n);
    else
        memcpy((REAL *)g->c + i * g->c_row + j, sum, (size_t)n * sizeof *sum);
}

#endif
