/* device/peak.h - measures the peak arithmetic rate of the cores: multiply-adds in registers and nothing else. */
#ifndef LK__PEAK_H
#define LK__PEAK_H

#include "base/pool.h"

/* A loop of multiply-adds with an instruction set, in f32, or of bf16 where it has matrix instructions, some 50 µs;
 * *operations: of one call, which a multiply-add counts as two. NULL: there is none for this machine. */
lk__tile lk__peak_loop(const char *isa, double *operations);

/* Operations a second of the context's threads, all at once: the best of many runs in some 30 ms. 0: there is no
 * loop. */
double lk__peak_measure(lk_context *context, const char *isa);

#endif
