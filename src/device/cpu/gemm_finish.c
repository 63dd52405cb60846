/* gemm_finish.c - operations on a tile after the last block of k of a product. */
#include "device/cpu/gemm_block.h"

void gemm_finish_line(REAL *line, int64_t n, const ELEMENT *bias, int64_t step, lk__op_unary activation)
{
    int64_t j = 0;
    bool    relu = activation == LK__RELU;
    vec     b = bias && step == 0 ? load_one(bias) - (vec){0} : (vec){0};
    for (; j + VL <= n; j += VL) {
        vec x = load(line + j);
        if (bias) x += step ? load(bias + j) : b;
        store(line + j, relu ? choose(x < splat(0), splat(0), x) : x);
    }
    for (; j < n; j++) {
        REAL x = bias ? line[j] + load_one(bias + j * step) : line[j];
        line[j] = relu && x < 0 ? 0 : x;
    }
    if (activates(activation)) activate(line, n, activation);
}
