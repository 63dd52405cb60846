/* reduce_wide.c - sums of f32 in one pass: a cache line of every input is added in registers and written to every
 * output. Bound by memory, and on x86 by how early its lines are requested and owned (`lockstep bench comm --ranks
 * 16`): fetching a line for writing saves a second transaction where another core has it. The vectors are the
 * compiler's, so all widths give the same bits. */
#include "base/reduce_wide.h"

enum { LINE = 16 /* elements */, DISTANCE = 256 /* elements that are fetched ahead: 1 KiB of each input */ };

#if defined(__x86_64__)
#define FETCH_TO_WRITE(p) __asm__ volatile("prefetchw %0" : : "m"(*(const char *)(p))) /* every x86-64 since 2008 */
#else
#define FETCH_TO_WRITE(p) __builtin_prefetch(p, 1, 3)
#endif
#define FETCH(p) __builtin_prefetch(p, 0, 3)
#define INLINE static inline __attribute__((always_inline))

typedef float float_unaligned __attribute__((aligned(1), may_alias));
typedef float v4 __attribute__((vector_size(16), aligned(1), may_alias));
typedef float v8 __attribute__((vector_size(32), aligned(1), may_alias));
typedef float v16 __attribute__((vector_size(64), aligned(1), may_alias));

/* The pairwise tree over inputs k … k + n - 1: its left part is the largest power of two below n. */
#define TREE_1(V, k) (*(const V *)(in[k] + i))
#define TREE_2(V, k) (TREE_1(V, k) + TREE_1(V, (k) + 1))
#define TREE_3(V, k) (TREE_2(V, k) + TREE_1(V, (k) + 2))
#define TREE_4(V, k) (TREE_2(V, k) + TREE_2(V, (k) + 2))
#define TREE_5(V, k) (TREE_4(V, k) + TREE_1(V, (k) + 4))
#define TREE_6(V, k) (TREE_4(V, k) + TREE_2(V, (k) + 4))
#define TREE_7(V, k) (TREE_4(V, k) + TREE_3(V, (k) + 4))
#define TREE_8(V, k) (TREE_4(V, k) + TREE_4(V, (k) + 4))
#define TREE_9(V, k) (TREE_8(V, k) + TREE_1(V, (k) + 8))
#define TREE_10(V, k) (TREE_8(V, k) + TREE_2(V, (k) + 8))
#define TREE_11(V, k) (TREE_8(V, k) + TREE_3(V, (k) + 8))
#define TREE_12(V, k) (TREE_8(V, k) + TREE_4(V, (k) + 8))
#define TREE_13(V, k) (TREE_8(V, k) + TREE_5(V, (k) + 8))
#define TREE_14(V, k) (TREE_8(V, k) + TREE_6(V, (k) + 8))
#define TREE_15(V, k) (TREE_8(V, k) + TREE_7(V, (k) + 8))
#define TREE_16(V, k) (TREE_8(V, k) + TREE_8(V, (k) + 8))

typedef void (*wide_sum)(float *const *out, int outs, const float *const *in, size_t count, lk__reduce_ahead ahead);

/* For N inputs and vectors V of W elements, of the instruction set TARGET. */
#define DEFINE(name, V, W, TARGET, N)                                                                                \
    TARGET INLINE void add_line_##name##_##N(float *const *out, int outs, const float *const *in, size_t at)          \
    {                                                                                                                \
        V      sum[LINE / W];                                                                                        \
        size_t i = at;                                                                                               \
        for (int w = 0; w < LINE / W; w++, i += W) sum[w] = TREE_##N(V, 0);                                          \
        for (int k = 0; k < outs; k++)                                                                               \
            for (int w = 0; w < LINE / W; w++) *(V *)(out[k] + at + w * W) = sum[w];                                 \
    }                                                                                                                \
    TARGET static void sum_##name##_##N(float *const *out, int outs, const float *const *in, size_t count,            \
                                        lk__reduce_ahead ahead)                                                      \
    {                                                                                                                \
        size_t i = 0, lines = count / LINE * LINE, fetched = lines > DISTANCE ? lines - DISTANCE : 0;                \
        for (; ahead == LK__AHEAD_WRITE && i < fetched; i += LINE) {                                                 \
            for (int k = 0; k < N; k++) FETCH_TO_WRITE(in[k] + i + DISTANCE);                                        \
            add_line_##name##_##N(out, outs, in, i);                                                                 \
        }                                                                                                            \
        for (; ahead == LK__AHEAD_READ && i < fetched; i += LINE) {                                                  \
            for (int k = 0; k < N; k++) FETCH(in[k] + i + DISTANCE);                                                 \
            add_line_##name##_##N(out, outs, in, i);                                                                 \
        }                                                                                                            \
        for (; i < lines; i += LINE) add_line_##name##_##N(out, outs, in, i);                                        \
        for (; i < count; i++) {                                                                                     \
            float sum = TREE_##N(float_unaligned, 0);                                                                \
            for (int k = 0; k < outs; k++) *(float_unaligned *)(out[k] + i) = sum;                                   \
        }                                                                                                            \
    }

#define DEFINE_ALL(name, V, W, TARGET)                                                                          \
    DEFINE(name, V, W, TARGET, 2) DEFINE(name, V, W, TARGET, 3) DEFINE(name, V, W, TARGET, 4)                     \
    DEFINE(name, V, W, TARGET, 5) DEFINE(name, V, W, TARGET, 6) DEFINE(name, V, W, TARGET, 7)                     \
    DEFINE(name, V, W, TARGET, 8) DEFINE(name, V, W, TARGET, 9) DEFINE(name, V, W, TARGET, 10)                    \
    DEFINE(name, V, W, TARGET, 11) DEFINE(name, V, W, TARGET, 12) DEFINE(name, V, W, TARGET, 13)                  \
    DEFINE(name, V, W, TARGET, 14) DEFINE(name, V, W, TARGET, 15) DEFINE(name, V, W, TARGET, 16)                  \
    static const wide_sum sums_##name[LK__WIDE_MOST + 1] = {                                                     \
        NULL,           NULL,           sum_##name##_2,  sum_##name##_3,  sum_##name##_4,  sum_##name##_5,         \
        sum_##name##_6, sum_##name##_7, sum_##name##_8,  sum_##name##_9,  sum_##name##_10, sum_##name##_11,        \
        sum_##name##_12, sum_##name##_13, sum_##name##_14, sum_##name##_15, sum_##name##_16};

DEFINE_ALL(line4, v4, 4, )
#if defined(__x86_64__)
DEFINE_ALL(line8, v8, 8, __attribute__((target("avx2"))))
DEFINE_ALL(line16, v16, 16, __attribute__((target("avx512f"))))
#endif

/* Vectors of 32 bytes at least, and fetches ahead that help; elsewhere the compiler's loops over 2 and 4 inputs are as
 * fast, and copies of a block that is in the cache are faster than writes to many places at once. */
static bool has_wide_vectors(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

bool lk__reduce_is_wide(int inputs, int outputs)
{
    if (inputs < 2 || inputs > LK__WIDE_MOST) return false;
    return has_wide_vectors() || (outputs == 1 && (inputs == 3 || inputs > 4));
}

void lk__reduce_wide(float *const *outputs, int count_out, const float *const *inputs, int count_in, size_t elements,
                     lk__reduce_ahead ahead)
{
    const wide_sum *sums = sums_line4;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        sums = sums_line16;
    else if (__builtin_cpu_supports("avx2"))
        sums = sums_line8;
#endif
    sums[count_in](outputs, count_out, inputs, elements, ahead);
}
