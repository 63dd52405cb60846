/* base/isa_list.h - the instruction sets of kernels: everything in which they differ, except compiler flags and loops
 * that measure their rate (CMakeLists.txt, device/peak.c). */
#ifndef LK__ISA_LIST_H
#define LK__ISA_LIST_H

/* X(name, types, extended, has, use, ...), the best first:
 * types: ALL, or BF16: kernels for bf16 alone, with its matrix instructions.
 * extended: the set whose kernels compute what this one has no kernels for; NONE.
 * has: the function of isa.c that asks whether the machine has it.
 * use: BEST, the first of these that the machine has is the default; BEST_ON_AMD, the same, but only on AMD's
 *      processors: on an Intel one, products with VDPBF16PS were slower than in f32; EMULATED: by name, with matrix
 *      instructions in C and kernels of products alone, in builds with tests.
 * Further arguments of the list are passed on to X. */
#define LK__ISA_LIST(X, ...)                           \
    LK__ISA_ROW_NEON_BF16(X, ##__VA_ARGS__)            \
    LK__ISA_ROW_AMX(X, ##__VA_ARGS__)                  \
    LK__ISA_ROW_AVX512_BF16(X, ##__VA_ARGS__)          \
    LK__ISA_ROWS_OF_MACHINE(X, ##__VA_ARGS__)          \
    LK__ISA_ROW_NEON_BF16_EMULATED(X, ##__VA_ARGS__)   \
    LK__ISA_ROW_AVX512_BF16_EMULATED(X, ##__VA_ARGS__) \
    LK__ISA_ROW_AMX_EMULATED(X, ##__VA_ARGS__)

/* What every build for a processor has, and which of these emulated sets extend. */
#if defined(__x86_64__)
#define LK__ISA_ROWS_OF_MACHINE(X, ...)                   \
    X(avx512, ALL, NONE, has_avx512, BEST, ##__VA_ARGS__) \
    X(avx2, ALL, NONE, has_avx2, BEST, ##__VA_ARGS__)     \
    X(generic, ALL, NONE, has_always, BEST, ##__VA_ARGS__)
#define LK__ISA_UNDER_EMULATED generic
#elif defined(__aarch64__)
#define LK__ISA_ROWS_OF_MACHINE(X, ...) X(neon, ALL, NONE, has_always, BEST, ##__VA_ARGS__)
#define LK__ISA_UNDER_EMULATED neon
#else
#define LK__ISA_ROWS_OF_MACHINE(X, ...) X(generic, ALL, NONE, has_always, BEST, ##__VA_ARGS__)
#define LK__ISA_UNDER_EMULATED generic
#endif

/* What it has where the compiler knows the instructions, and in builds with tests (CMakeLists.txt). */
#if defined(LK_ISA_NEON_BF16)
#define LK__ISA_ROW_NEON_BF16(X, ...) X(neon_bf16, BF16, neon, lk__has_bfmmla, BEST, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_NEON_BF16(X, ...)
#endif
#if defined(LK_ISA_AVX512_BF16)
#define LK__ISA_ROW_AVX512_BF16(X, ...) X(avx512_bf16, BF16, avx512, has_avx512_bf16, BEST_ON_AMD, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_AVX512_BF16(X, ...)
#endif
#if defined(LK_ISA_AMX)
#define LK__ISA_ROW_AMX(X, ...) X(amx, BF16, avx512, has_amx, BEST, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_AMX(X, ...)
#endif
#if defined(LK_ISA_NEON_BF16_EMULATED)
#define LK__ISA_ROW_NEON_BF16_EMULATED(X, ...) \
    X(neon_bf16_emulated, BF16, LK__ISA_UNDER_EMULATED, has_always, EMULATED, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_NEON_BF16_EMULATED(X, ...)
#endif
#if defined(LK_ISA_AVX512_BF16_EMULATED)
#define LK__ISA_ROW_AVX512_BF16_EMULATED(X, ...) \
    X(avx512_bf16_emulated, BF16, LK__ISA_UNDER_EMULATED, has_always, EMULATED, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_AVX512_BF16_EMULATED(X, ...)
#endif
#if defined(LK_ISA_AMX_EMULATED)
#define LK__ISA_ROW_AMX_EMULATED(X, ...) \
    X(amx_emulated, BF16, LK__ISA_UNDER_EMULATED, has_always, EMULATED, ##__VA_ARGS__)
#else
#define LK__ISA_ROW_AMX_EMULATED(X, ...)
#endif

#endif
