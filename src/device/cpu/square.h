/* device/cpu/square.h - transposes VL × VL numbers in registers. Include unscheduled.h first. */
#ifndef LK__SQUARE_H
#define LK__SQUARE_H

#include "device/cpu/cpu.h"

/* Lane i of a pair of rows after the blocks of s lanes off the diagonal are exchanged. */
#define LOW(i, s) ((i) & (s) ? VL + (i) - (s) : (i))
#define HIGH(i, s) ((i) & (s) ? VL + (i) : (i) + (s))
#define LANES_2(f, s, i) f(i, s), f(i + 1, s)
#define LANES_4(f, s, i) LANES_2(f, s, i), LANES_2(f, s, i + 2)
#define LANES_8(f, s, i) LANES_4(f, s, i), LANES_4(f, s, i + 4)
#define LANES_16(f, s, i) LANES_8(f, s, i), LANES_8(f, s, i + 8)
#if VECTOR_BYTES * 8 / LK_REAL_BITS == 2
#define LANES(f, s) LANES_2(f, s, 0)
#elif VECTOR_BYTES * 8 / LK_REAL_BITS == 4
#define LANES(f, s) LANES_4(f, s, 0)
#elif VECTOR_BYTES * 8 / LK_REAL_BITS == 8
#define LANES(f, s) LANES_8(f, s, 0)
#else
#define LANES(f, s) LANES_16(f, s, 0)
#endif

#define EXCHANGE(w, s)                                                         \
    UNROLL                                                                     \
    for (int i = 0; i < VL; i++)                                               \
        if (!(i & (s))) {                                                      \
            vec a = (w)[i], b = (w)[i + (s)];                                  \
            (w)[i] = __builtin_shufflevector(a, b, LANES(LOW, s));             \
            (w)[i + (s)] = __builtin_shufflevector(a, b, LANES(HIGH, s));      \
        }

INLINE void transpose_square(vec w[VL])
{
    EXCHANGE(w, 1)
#if VECTOR_BYTES * 8 / LK_REAL_BITS >= 4
    EXCHANGE(w, 2)
#endif
#if VECTOR_BYTES * 8 / LK_REAL_BITS >= 8
    EXCHANGE(w, 4)
#endif
#if VECTOR_BYTES * 8 / LK_REAL_BITS >= 16
    EXCHANGE(w, 8)
#endif
}

#endif
