/* spin.h - multiply-adds in registers and nothing else: what a core computes at most. */
#ifndef BENCH_SPIN_H
#define BENCH_SPIN_H

#include "base/pool.h"

#include <string.h>

enum { CHAINS = 32, ROUNDS = 15000 };

/* Independent chains of multiply-add in registers, enough for four units with a latency of four. */
#if defined(__aarch64__)
/* As in a tile of a product, operands are loaded in each round: Neoverse V1 issues half as many that read registers which were written long
 * ago. */
#define FMLA(c, lane) "fmla v" #c ".4s, v16.4s, v17.s[" #lane "]\n\t"
#define ROW(at, c0, c1, c2, c3) "ldr q16, [%0, #" #at "]\n\t" FMLA(c0, 0) FMLA(c1, 1) FMLA(c2, 2) FMLA(c3, 3)
static void spin_neon(void *argument, int64_t tile, int worker)
{
    float operands[20] __attribute__((aligned(16))) = {(float)tile, 0.5f};
    (void)worker;
    for (int round = 0; round < ROUNDS * 2; round++)
        __asm__ volatile("ldr q17, [%0]\n\t" ROW(16, 0, 1, 2, 3) ROW(32, 4, 5, 6, 7) ROW(48, 18, 19, 20, 21)
                             ROW(64, 22, 23, 24, 25)
                         :
                         : "r"(operands)
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
                           "v22", "v23", "v24", "v25", "memory");
    *(volatile float *)argument = operands[0];
}
#else
/* The barriers keep the compiler from moving products out of the loop. */
#define SPIN(name, bytes, target, registers)                                                                           \
    target static void name(void *argument, int64_t tile, int worker)                                                  \
    {                                                                                                                  \
        typedef float   wide __attribute__((vector_size(bytes)));                                                      \
        wide            a = (wide){0} + 0.999f, b = (wide){0} + (float)tile, d = a * 0.5f, e = b * 0.5f;               \
        wide            c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a, c6 = a, c7 = a, c8 = a, c9 = a, c10 = a, c11 = a; \
        wide            c12 = a, c13 = a, c14 = a, c15 = a;                                                            \
        volatile float *sink = argument;                                                                               \
        (void)worker;                                                                                                  \
        for (int round = 0; round < ROUNDS * 2; round++) {                                                             \
            __asm__ volatile("" : "+" registers(a), "+" registers(b), "+" registers(d), "+" registers(e));             \
            c0 += a * b, c1 += d * e, c2 += a * e, c3 += d * b, c4 += a * b, c5 += d * e, c6 += a * e, c7 += d * b;    \
            c8 += a * b, c9 += d * e, c10 += a * e, c11 += d * b, c12 += a * b, c13 += d * e, c14 += a * e, c15 += d * b; \
            __asm__ volatile("" : "+" registers(c0), "+" registers(c1), "+" registers(c2), "+" registers(c3),          \
                                  "+" registers(c4), "+" registers(c5), "+" registers(c6), "+" registers(c7));         \
            __asm__ volatile("" : "+" registers(c8), "+" registers(c9), "+" registers(c10), "+" registers(c11),        \
                                  "+" registers(c12), "+" registers(c13), "+" registers(c14), "+" registers(c15));     \
        }                                                                                                              \
        wide sum = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11 + c12 + c13 + c14 + c15;                \
        *sink = sum[0];                                                                                                \
    }
#endif
#if defined(__x86_64__)
SPIN(spin_avx512, 64, __attribute__((target("avx512f"))), "v")
SPIN(spin_avx2, 32, __attribute__((target("avx2,fma"))), "x")
SPIN(spin_generic, 16, , "x")
#endif

/* The loop for an instruction set; a call does 2 CHAINS ROUNDS `lanes` operations. */
static inline lk__tile spin_for(const char *isa, double *lanes)
{
#if defined(__x86_64__)
    *lanes = strcmp(isa, "avx512") == 0 ? 16 : strcmp(isa, "avx2") == 0 ? 8 : 4;
    return *lanes == 16 ? spin_avx512 : *lanes == 8 ? spin_avx2 : spin_generic;
#else
    (void)isa;
    *lanes = 4;
    return spin_neon;
#endif
}

#endif
