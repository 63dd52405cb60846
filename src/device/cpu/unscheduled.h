/* device/cpu/unscheduled.h - included first by files whose loops use all vector registers.
 *
 * On arm64 GCC schedules once before register allocation, which extends the live ranges of loaded vectors until
 * accumulators are copied or spilled: micro_nn gave 30 instead of 39 GFLOP/s where the peak is 40. The processor
 * reorders well enough by itself. (On x86 that pass is off by default.) */
#if defined(__GNUC__) && !defined(__clang__) && defined(__aarch64__)
#pragma GCC optimize("no-schedule-insns")
#endif

/* Before a loop with a small constant trip count whose arrays should be kept in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Before a long loop whose body fills the issue slots of a core: counting, once in four rounds, leaves more of them to
 * products. On x86 products take longer, and it gains nothing. */
#if !defined(__aarch64__)
#define UNROLL_LONG
#elif defined(__clang__)
#define UNROLL_LONG _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL_LONG _Pragma("GCC unroll 4")
#endif
#define INLINE static inline __attribute__((always_inline))
