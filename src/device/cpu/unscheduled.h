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
#define INLINE static inline __attribute__((always_inline))
