/* emulated_kernel.h - what kernels use: the thread's place in its grid, barriers, exchange within a warp, atomics,
 * mathematical functions. The threads of a block are fibers of one thread of the host (threads.cpp): one runs until it
 * waits or ends, so atomics need nothing. */
#ifndef LK_EMULATED_KERNEL_H
#define LK_EMULATED_KERNEL_H

#include "emulated_host.h"

#include <sched.h>
#include <time.h>
#include <type_traits>

/* Of the thread that runs now. peer_threads.cpp, whose ranks are threads of the host, has them once per thread. */
#if !defined(LK_EMULATED_PLACE)
#define LK_EMULATED_PLACE
#endif
extern LK_EMULATED_PLACE uint3 threadIdx, blockIdx;
extern LK_EMULATED_PLACE dim3  blockDim, gridDim;
static const int               warpSize = 32;

/* ---- launching ---- */

/* The dynamic shared memory of the block: exactly as many bytes as the launch stated, to 16; the page behind it
 * faults. */
void *lk__emulated_shared(void);
/* run(call) is called once for each thread, with a copy of these bytes. */
void lk__emulated_queue_kernel(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                               void (*run)(const void *call), const void *call, size_t bytes);
/* Aborts where an argument is a pointer to memory that a GPU cannot reach. */
void lk__emulated_check_pointer(const char *name, int argument, const void *pointer);

template <typename T> static inline void lk__emulated_check_argument(const char *name, int argument, const T &value)
{
    if constexpr (std::is_pointer<T>::value && !std::is_function<std::remove_pointer_t<T>>::value)
        lk__emulated_check_pointer(name, argument, (const void *)value);
}

/* The arguments are copied, as a launch does: a graph runs the kernel again later. Plain bytes instead of std::function
 * and std::tuple, which took half of the time of the compiler. */
template <typename F, typename... A>
static inline void lk__emulated_launch(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                       F kernel, A... arguments)
{
    int i = 0;
    (lk__emulated_check_argument(name, i++, arguments), ...);
    (void)i;
    auto call = [=] { kernel(arguments...); };
    static_assert(std::is_trivially_copyable<decltype(call)>::value && alignof(decltype(call)) <= 16,
                  "copied as bytes");
    lk__emulated_queue_kernel(
        name, grid, block, shared, stream, [](const void *copy) { (*(const decltype(call) *)copy)(); }, &call,
        sizeof call);
}

/* ---- waiting ---- */

enum lk__emulated_kind {
    LK_EMULATED_SYNC,
    LK_EMULATED_SHUFFLE,
    LK_EMULATED_BALLOT,
    LK_EMULATED_MATCH,
};
/* For all threads of the block that have not ended; the sum of what they passed. */
int lk__emulated_block_barrier(int value);
/* For the threads of the warp that mask names and that have not ended. Shuffle: the value of lane `source`; ballot: the
 * lanes that passed a value that is not 0; match: those that passed the same. */
uint64_t          lk__emulated_warp(lk__emulated_kind kind, unsigned mask, uint64_t value, int source);
int               lk__emulated_lane(void);
unsigned          lk__emulated_live_lanes(void);
[[noreturn]] void lk__emulated_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define LK_EMULATED_FENCE() __asm__ volatile("" ::: "memory")

static inline void __syncthreads(void)
{
    LK_EMULATED_FENCE();
    lk__emulated_block_barrier(0);
    LK_EMULATED_FENCE();
}
static inline int __syncthreads_count(int x)
{
    LK_EMULATED_FENCE();
    int sum = lk__emulated_block_barrier(x != 0);
    LK_EMULATED_FENCE();
    return sum;
}
static inline int      __syncthreads_or(int x) { return __syncthreads_count(x) != 0; }
static inline int      __syncthreads_and(int x) { return __syncthreads_count(!x) == 0; }
static inline uint64_t lk__emulated_exchange(lk__emulated_kind kind, unsigned mask, uint64_t value, int source)
{
    LK_EMULATED_FENCE();
    uint64_t result = lk__emulated_warp(kind, mask, value, source);
    LK_EMULATED_FENCE();
    return result;
}
static inline void     __syncwarp(unsigned mask = 0xffffffffu) { lk__emulated_exchange(LK_EMULATED_SYNC, mask, 0, 0); }
static inline unsigned __ballot_sync(unsigned mask, int x)
{
    return (unsigned)lk__emulated_exchange(LK_EMULATED_BALLOT, mask, x != 0, 0);
}
static inline int      __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline int      __all_sync(unsigned mask, int x) { return __ballot_sync(mask, !x) == 0; }
static inline unsigned __activemask(void) { return lk__emulated_live_lanes(); }

template <typename T> static inline uint64_t lk__emulated_bits(T x)
{
    static_assert(sizeof(T) <= 8, "a lane exchanges at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits;
}
template <typename T> static inline T lk__emulated_shuffle(unsigned mask, T x, int source)
{
    uint64_t bits = lk__emulated_exchange(LK_EMULATED_SHUFFLE, mask, lk__emulated_bits(x), source);
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    return (unsigned)lk__emulated_exchange(LK_EMULATED_MATCH, mask, lk__emulated_bits(x), 0);
}
/* Lanes are in segments of `width`; a source outside of the own segment is the own lane (shfl wraps). */
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int source, int width = 32)
{
    int lane = lk__emulated_lane();
    return lk__emulated_shuffle(mask, x, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    int lane = lk__emulated_lane(), source = lane ^ bits;
    return lk__emulated_shuffle(mask, x, source > (lane | (width - 1)) ? lane : source);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    int lane = lk__emulated_lane(), source = lane + (int)delta;
    return lk__emulated_shuffle(mask, x, source > (lane | (width - 1)) ? lane : source);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    int lane = lk__emulated_lane(), source = lane - (int)delta;
    return lk__emulated_shuffle(mask, x, source < (lane & ~(width - 1)) ? lane : source);
}

/* ---- atomics, and memory ---- */

#define LK_EMULATED_ATOMIC(name, update)                                                                       \
    template <typename T> static inline T name(T *address, typename std::common_type<T>::type x)               \
    {                                                                                                          \
        static_assert(std::is_integral<T>::value, #name ": on integers alone, because sums of floating-point " \
                                                        "numbers would depend on the order");                  \
        T old = *(volatile T *)address;                                                                        \
        *(volatile T *)address = (T)(update);                                                                  \
        return old;                                                                                            \
    }
LK_EMULATED_ATOMIC(atomicAdd, old + x)
LK_EMULATED_ATOMIC(atomicSub, old - x)
LK_EMULATED_ATOMIC(atomicMin, old < x ? old : x)
LK_EMULATED_ATOMIC(atomicMax, old > x ? old : x)
LK_EMULATED_ATOMIC(atomicOr, old | x)
LK_EMULATED_ATOMIC(atomicAnd, old &x)
LK_EMULATED_ATOMIC(atomicXor, old ^ x)
LK_EMULATED_ATOMIC(atomicExch, x)
LK_EMULATED_ATOMIC(atomicInc, old >= x ? 0 : old + 1)
#undef LK_EMULATED_ATOMIC
template <typename T>
static inline T atomicCAS(T *address, typename std::common_type<T>::type expected, typename std::common_type<T>::type x)
{
    T old = *(volatile T *)address;
    if (old == expected) *(volatile T *)address = x;
    return old;
}

static inline void     __threadfence(void) { LK_EMULATED_FENCE(); }
static inline void     __threadfence_block(void) { LK_EMULATED_FENCE(); }
static inline void     __threadfence_system(void) { LK_EMULATED_FENCE(); }
static inline void     __nanosleep(unsigned) { sched_yield(); } /* other processes have to go on */
static inline uint64_t lk__emulated_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
[[noreturn]] static inline void __trap(void) { lk__emulated_abort("__trap"); }

template <typename T> static inline T    __ldg(const T *p) { return *p; }
template <typename T> static inline T    __ldcs(const T *p) { return *p; }
template <typename T> static inline T    __ldcg(const T *p) { return *p; }
template <typename T> static inline T    __ldca(const T *p) { return *p; }
template <typename T> static inline T    __ldlu(const T *p) { return *p; }
template <typename T> static inline T    __ldcv(const T *p) { return *(const volatile T *)p; }
template <typename T> static inline void __stcs(T *p, T x) { *p = x; }
template <typename T> static inline void __stcg(T *p, T x) { *p = x; }
template <typename T> static inline void __stwb(T *p, T x) { *p = x; }
template <typename T> static inline void __stwt(T *p, T x) { *p = x; }

/* ---- integers and bits ---- */

static inline int      __popc(unsigned x) { return __builtin_popcount(x); }
static inline int      __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int      __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int      __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int      __ffs(int x) { return __builtin_ffs(x); }
static inline int      __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
static inline unsigned           __umulhi(unsigned x, unsigned y) { return (unsigned)((uint64_t)x * y >> 32); }
static inline int                __mulhi(int x, int y) { return (int)((int64_t)x * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
template <typename To, typename From> static inline To lk__emulated_cast(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline unsigned  __float_as_uint(float x) { return lk__emulated_cast<unsigned>(x); }
static inline int       __float_as_int(float x) { return lk__emulated_cast<int>(x); }
static inline float     __uint_as_float(unsigned x) { return lk__emulated_cast<float>(x); }
static inline float     __int_as_float(int x) { return lk__emulated_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return lk__emulated_cast<long long>(x); }
static inline double    __longlong_as_double(long long x) { return lk__emulated_cast<double>(x); }
static inline int       __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline int       __double2loint(double x) { return (int)__double_as_longlong(x); }
static inline double    __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

/* ---- numbers ----
 *
 * min and max of floating-point numbers return the other one where one is NaN. */

template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_same<T, float>::value)
        return fminf(a, b);
    else if constexpr (std::is_same<T, double>::value)
        return fmin(a, b);
    else
        return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_same<T, float>::value)
        return fmaxf(a, b);
    else if constexpr (std::is_same<T, double>::value)
        return fmax(a, b);
    else
        return (T)a < (T)b ? (T)b : (T)a;
}

static inline float  rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float  rsqrt(float x) { return rsqrtf(x); }
/* Macros, because the C library has functions of these names. */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) powf(10, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
/* A rounding that cannot be contracted: the compiler does not see through these. */
#if defined(__aarch64__)
#define LK_EMULATED_REGISTER "w"
#elif defined(__x86_64__)
#define LK_EMULATED_REGISTER "x"
#else
#define LK_EMULATED_REGISTER "m"
#endif
#define LK_EMULATED_ROUNDED(name, T, expression)        \
    static inline T name(T x, T y)                      \
    {                                                   \
        T result = (expression);                        \
        __asm__("" : "+" LK_EMULATED_REGISTER(result)); \
        return result;                                  \
    }
LK_EMULATED_ROUNDED(__fadd_rn, float, x + y)
LK_EMULATED_ROUNDED(__fsub_rn, float, x - y)
LK_EMULATED_ROUNDED(__fmul_rn, float, x *y)
LK_EMULATED_ROUNDED(__fdiv_rn, float, x / y)
LK_EMULATED_ROUNDED(__dadd_rn, double, x + y)
LK_EMULATED_ROUNDED(__dsub_rn, double, x - y)
LK_EMULATED_ROUNDED(__dmul_rn, double, x *y)
LK_EMULATED_ROUNDED(__ddiv_rn, double, x / y)
#undef LK_EMULATED_ROUNDED
static inline float  __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static inline float  __frcp_rn(float x) { return 1 / x; }
static inline float  __fsqrt_rn(float x) { return sqrtf(x); }
static inline float  __frsqrt_rn(float x) { return rsqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __drcp_rn(double x) { return 1 / x; }
static inline float  __double2float_rn(double x) { return (float)x; }
static inline int    __float2int_rn(float x) { return (int)rintf(x); }
static inline int    __float2int_rz(float x) { return (int)x; }
static inline int    __float2int_rd(float x) { return (int)floorf(x); }
static inline float  __int2float_rn(int x) { return (float)x; }
static inline float  __uint2float_rn(unsigned x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline float  __ll2float_rn(long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float  normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static inline float  rcbrtf(float x) { return 1 / cbrtf(x); }
static inline void   sincospif(float x, float *s, float *c)
{
    *s = (float)sin(3.14159265358979323846 * x), *c = (float)cos(3.14159265358979323846 * x);
}

#endif
