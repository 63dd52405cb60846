/* emulated_types.h - CUDA's vector types, and the qualifiers of functions and variables. */
#ifndef LK_EMULATED_TYPES_H
#define LK_EMULATED_TYPES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __host__
#define __device__
#define __global__
#define __constant__ static
#define __managed__
#define __forceinline__ inline /* not always: with -Og, that halves the time of the compiler */
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __builtin_align__(n) alignas(n)
#define __cluster_dims__(...)
/* The tag becomes part of the variable's name, and of its section's: shared.ld puts all of them together, so that they
 * can be filled before each block. GCC ignores an attribute `section` in templates. */
#define __shared__ static __attribute__((abi_tag("lk_shared")))
#define __CUDACC_EMULATED__ 1

#define LK_EMULATED_VECTORS(X)                                                                                      \
    X(char, signed char) X(uchar, unsigned char) X(short, short) X(ushort, unsigned short) X(int, int)              \
    X(uint, unsigned) X(long, long) X(ulong, unsigned long) X(longlong, long long) X(ulonglong, unsigned long long) \
    X(float, float)                                                                                                 \
    X(double, double)
#define LK_EMULATED_VECTOR(name, T)                                                                         \
    struct name##1 {                                                                                        \
        T x;                                                                                                \
    };                                                                                                      \
    struct alignas(2 * sizeof(T)) name##2 {                                                                 \
        T x, y;                                                                                             \
    };                                                                                                      \
    struct name##3 {                                                                                        \
        T x, y, z;                                                                                          \
    };                                                                                                      \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 {                                       \
        T x, y, z, w;                                                                                       \
    };                                                                                                      \
    static inline name##1 make_##name##1(T x) { return name##1{x}; }                                        \
    static inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                                \
    static inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }                        \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
LK_EMULATED_VECTORS(LK_EMULATED_VECTOR)
#undef LK_EMULATED_VECTOR
#undef LK_EMULATED_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif
