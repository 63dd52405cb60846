/* peak.c - multiply-adds in registers: enough independent ones for every unit to begin one in each cycle (latency ×
 * units: 8 to 10 on x86, 16 on arm64), and no more than there are registers. It is in assembly because compilers
 * transform such a loop: they may move products out of it, or keep accumulators in memory. */
#include "device/peak.h"

#include "base/base.h"
#include "base/dtype.h"
#include "base/isa.h"

#include <lockstep/device.h>
#include <string.h>

enum { ROUNDS = 30000 };

typedef struct peak_loop {
    const char *isa;
    lk__tile    run;
    int         chains, products; /* independent sums, and multiply-adds of one instruction */
} peak_loop;

#if defined(__aarch64__)
enum { CHAINS = 16 };
/* As in a tile of a product, operands are loaded in each round: Neoverse V1 issues half as many that read registers
 * which were written long ago. */
#define FMLA(c, lane) "fmla v" #c ".4s, v16.4s, v17.s[" #lane "]\n\t"
#define ROW(at, c0, c1, c2, c3) "ldr q16, [%0, #" #at "]\n\t" FMLA(c0, 0) FMLA(c1, 1) FMLA(c2, 2) FMLA(c3, 3)
static void run_neon(void *argument, int64_t tile, int worker)
{
    float operands[20] __attribute__((aligned(16))) = {(float)tile, 0.5f};
    (void)argument, (void)worker;
    for (int round = 0; round < ROUNDS; round++)
        __asm__ volatile("ldr q17, [%0]\n\t" ROW(16, 0, 1, 2, 3) ROW(32, 4, 5, 6, 7) ROW(48, 18, 19, 20, 21)
                             ROW(64, 22, 23, 24, 25)
                         :
                         : "r"(operands)
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
                           "v22", "v23", "v24", "v25", "memory");
}

/* BFMMLA v(c), v(n), v(m), as a number: this file is compiled for any arm64. The registers are named as changed, since
 * the compiler does not read instructions. */
enum { MATRIX_CHAINS = 24 };
#define BFMMLA(c, n, m) ".inst 0x6e40ec00 | " #m " << 16 | " #n " << 5 | " #c "\n\t"
#define COLUMN(at, m, c0, c1, c2, c3) \
    "ldr q" #m ", [%0, #" #at "]\n\t" BFMMLA(c0, 26, m) BFMMLA(c1, 27, m) BFMMLA(c2, 28, m) BFMMLA(c3, 29, m)
static void run_neon_bf16(void *argument, int64_t tile, int worker)
{
    float operands[40] __attribute__((aligned(16))) = {(float)tile, 0.5f};
    (void)argument, (void)worker;
    for (int round = 0; round < ROUNDS; round++)
        __asm__ volatile("ldp q26, q27, [%0]\n\tldp q28, q29, [%0, #32]\n\t" COLUMN(64, 30, 0, 1, 2, 3)
                             COLUMN(80, 31, 4, 5, 6, 7) COLUMN(96, 30, 8, 9, 10, 11) COLUMN(112, 31, 12, 13, 14, 15)
                                 COLUMN(128, 30, 16, 17, 18, 19) COLUMN(144, 31, 20, 21, 22, 23)
                         :
                         : "r"(operands)
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
                           "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v26", "v27", "v28",
                           "v29", "v30", "v31", "memory");
}

static const peak_loop loops[] = {{"neon_bf16", run_neon_bf16, MATRIX_CHAINS, 16}, {"neon", run_neon, CHAINS, 4}};

#elif defined(__x86_64__)
/* Registers that this file's own code does not use need not be named as changed: it is compiled without AVX, so its
 * vectors are xmm0 to xmm15, and vzeroupper leaves the upper halves as that code expects them. */
enum { CHAINS = 12, CHAINS_SSE = 10 };
#define TWELVE(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define CHANGED                                                                                                \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
        "xmm13", "xmm14", "xmm15"

#define CLEAR(c) "vxorps %%xmm" #c ", %%xmm" #c ", %%xmm" #c "\n\t" /* clears the whole register */
#define LOOP_OF_FMA(name, width)                                                              \
    static void name(void *argument, int64_t tile, int worker)                                \
    {                                                                                         \
        float operands[2] = {0.999f, 0.5f};                                                   \
        int   rounds = ROUNDS;                                                                \
        (void)argument, (void)tile, (void)worker;                                             \
        __asm__ volatile("vbroadcastss (%1), %%" #width "12\n\t"                              \
                         "vbroadcastss 4(%1), %%" #width                                      \
                         "13\n\t" TWELVE(CLEAR) "1:\n\t" TWELVE(FMA_##width) "decl %0\n\t"    \
                                                                             "jnz 1b\n\t"     \
                                                                             "vzeroupper\n\t" \
                         : "+r"(rounds)                                                       \
                         : "r"(operands)                                                      \
                         : CHANGED, "cc", "memory");                                          \
    }
#define FMA_zmm(c) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #c "\n\t"
#define FMA_ymm(c) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #c "\n\t"
LOOP_OF_FMA(run_avx512, zmm)
LOOP_OF_FMA(run_avx2, ymm)

/* Without fused multiply-adds, as the generic kernels: a product in a register of its own, then a sum. */
#define MULTIPLY_ADD(c, product)            \
    "movaps %%xmm10, %%xmm" #product "\n\t" \
    "mulps %%xmm11, %%xmm" #product "\n\t"  \
    "addps %%xmm" #product ", %%xmm" #c "\n\t"
static void run_generic(void *argument, int64_t tile, int worker)
{
    float operands[8] __attribute__((aligned(16))) = {0.999f, 0.999f, 0.999f, 0.999f, 0.5f, 0.5f, 0.5f, 0.5f};
    int   rounds = ROUNDS;
    (void)argument, (void)tile, (void)worker;
    __asm__ volatile("movaps (%1), %%xmm10\n\t"
                     "movaps 16(%1), %%xmm11\n\t"
                     "xorps %%xmm0, %%xmm0\n\t"
                     "xorps %%xmm1, %%xmm1\n\t"
                     "xorps %%xmm2, %%xmm2\n\t"
                     "xorps %%xmm3, %%xmm3\n\t"
                     "xorps %%xmm4, %%xmm4\n\t"
                     "xorps %%xmm5, %%xmm5\n\t"
                     "xorps %%xmm6, %%xmm6\n\t"
                     "xorps %%xmm7, %%xmm7\n\t"
                     "xorps %%xmm8, %%xmm8\n\t"
                     "xorps %%xmm9, %%xmm9\n\t"
                     "1:\n\t" MULTIPLY_ADD(0, 12) MULTIPLY_ADD(1, 13) MULTIPLY_ADD(2, 14) MULTIPLY_ADD(3, 15)
                         MULTIPLY_ADD(4, 12) MULTIPLY_ADD(5, 13) MULTIPLY_ADD(6, 14) MULTIPLY_ADD(7, 15)
                             MULTIPLY_ADD(8, 12) MULTIPLY_ADD(9, 13) "decl %0\n\t"
                                                                     "jnz 1b\n\t"
                     : "+r"(rounds)
                     : "r"(operands)
                     : CHANGED, "cc", "memory");
}

#if defined(LK_ISA_AVX512_BF16)
#undef FMA_zmm
#define FMA_zmm(c) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #c "\n\t"
LOOP_OF_FMA(run_avx512_bf16, zmm)
#endif

#if defined(LK_ISA_AMX)
/* As in a tile of a product, four registers of sums; their operands are zero. The fields of the configuration: palette,
 * bytes of a row from byte 16 on, rows from byte 48 on. */
enum { CHAINS_AMX = 4, PRODUCTS_AMX = 16 * 16 * 32 };
static void run_amx(void *argument, int64_t tile, int worker)
{
    unsigned char config[64] __attribute__((aligned(64))) = {1};
    int           rounds = ROUNDS;
    (void)argument, (void)tile, (void)worker;
    for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;
    __asm__ volatile("ldtilecfg (%1)\n\t"
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
                     "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t"
                     "1:\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                     "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
                     "decl %0\n\t"
                     "jnz 1b\n\t"
                     "tilerelease"
                     : "+r"(rounds)
                     : "r"(config)
                     : "cc", "memory");
}
#endif

static const peak_loop loops[] = {
#if defined(LK_ISA_AMX)
    {"amx", run_amx, CHAINS_AMX, PRODUCTS_AMX},
#endif
#if defined(LK_ISA_AVX512_BF16)
    {"avx512_bf16", run_avx512_bf16, CHAINS, 32},
#endif
    {"avx512", run_avx512, CHAINS, 16},           {"avx2", run_avx2, CHAINS, 8},
    {"generic", run_generic, CHAINS_SSE, 4},
};

#else
static const peak_loop loops[] = {{NULL, NULL, 0, 0}};
#endif

static const peak_loop *find_loop(const char *isa)
{
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (loops[i].isa && strcmp(loops[i].isa, isa) == 0) return &loops[i];
    return NULL;
}

/* Of a set with instructions in C: the rate of the set that it extends. */
lk__tile lk__peak_loop(const char *isa, double *operations)
{
    const peak_loop *loop = NULL;
    for (; isa && !loop; isa = lk__isa_extended(isa)) loop = find_loop(isa);
    *operations = loop ? 2.0 * loop->chains * ROUNDS * loop->products : 0;
    return loop ? loop->run : NULL;
}

/* Several tiles for each thread, so that one that wakes late does not count as slow. In the first runs threads wake,
 * and cores change their clock to that of wide vectors on all of them. */
enum { TILES = 4, WARM_UP = 8 };
#define SECONDS 0.03

double lk__peak_measure(lk_context *c, const char *isa)
{
    double   operations, best = 0, began = lk__now();
    int      tiles = TILES * lk_context_threads(c);
    lk__tile loop = lk__peak_loop(isa, &operations);
    for (int run = 0; loop && (run < 2 * WARM_UP || lk__now() - began < SECONDS); run++) {
        double start = lk__now();
        lk__pool_run(lk__context_pool(c), tiles, loop, NULL);
        double rate = operations * tiles / (lk__now() - start);
        if (run >= WARM_UP && rate > best) best = rate;
    }
    return best;
}

/* Kernels compute in the type of sums, except that a matrix instruction set multiplies bf16; a vector has half as many
 * f64 as f32. */
double lk_context_peak(lk_context *c, lk_dtype type)
{
    const char *isa = lk_context_isa(c);
    bool        host = lk_context_on_host(c);
    if (!host || !lk__is_element(type)) return 0;
    if (type != LK_BF16 && lk__isa_extended(isa)) isa = lk__isa_extended(isa);
    return lk__peak_measure(c, isa) / (lk__wide_type(type) == LK_F64 ? 2 : 1);
}
