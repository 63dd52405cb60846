/* device/cpu/activate.h - functions that are applied to the results of other kernels (device/fusion.h). relu is part of
 * their loops; any other function is applied to results that are still in the cache. */
#ifndef LK__CPU_ACTIVATE_H
#define LK__CPU_ACTIVATE_H

#include "device/cpu/cpu.h"

/* Whether the function is one that only `activate` computes. */
static inline bool activates(lk__op_unary function) { return function != LK__IDENTITY && function != LK__RELU; }

/* x = function(x). */
#define activate KERNEL(activate)
void activate(REAL *x, int64_t n, lk__op_unary function);

#endif
