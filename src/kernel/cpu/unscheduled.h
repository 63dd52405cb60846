/* kernel/cpu/unscheduled.h - to be included before anything else by files whose loops fill the vector registers.
 *
 * On arm64 GCC schedules once before it allocates registers, and thereby lengthens the lives of loaded vectors until
 * accumulators are copied around or spilled: micro_nn gave 30 instead of 39 GFLOP/s where the peak is 40. The processor
 * reorders well enough by itself. (On x86 that pass is off anyway.) */
#if defined(__GNUC__) && !defined(__clang__) && defined(__aarch64__)
#pragma GCC optimize("no-schedule-insns")
#endif

/* Before a loop of few, known turns whose arrays are meant to live in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))
