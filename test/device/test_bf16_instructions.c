/* test_bf16_instructions.c - BFMMLA, VDPBF16PS and TDPBF16PS in C (device/cpu/bf16_instructions.h) against exact
 * integers and, where the machine has the instruction, against the instruction: every bit of drawn operands, among them
 * zeros, denormal numbers, infinities and NaN, sums that cancel, and results about the least and the largest number.
 *
 *   test_bf16_instructions [DRAWS [PRINTED]]   so many draws for each; results of both are printed, so many
 *
 * ctest: timeout 300 */
#define _GNU_SOURCE
#include "check.h"
#include "exact.h"

#include "base/cpu_features.h"
#include "device/cpu/bf16_instructions.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static long draws = SANITIZED ? 20000 : 200000, printed;

/* ---- operands ---- */

static uint64_t random_state = 35;

static uint32_t draw(uint32_t below) /* xorshift64* */
{
    random_state ^= random_state >> 12, random_state ^= random_state << 25, random_state ^= random_state >> 27;
    return (uint32_t)(random_state * 0x2545f4914f6cdd1du >> 32) % below;
}

/* What the operands of one call have in common: about which exponent their products are. */
typedef struct range {
    int exponent, width; /* of products, biased by 127; how far they differ */
    int specials;        /* one operand of so many is special; 0: none */
} range;

static range draw_range(void)
{
    static const int about[] = {127, 127, 127, 1, 0, -10, 254, 260, 100};
    static const int widths[] = {1, 3, 12, 30, 60};
    static const int specials[] = {0, 0, 3, 20};
    return (range){about[draw(9)], widths[draw(5)], specials[draw(4)]};
}

static uint32_t draw_special(void)
{
    static const uint32_t values[] = {0,          1,          0x10000,    0x7fffff,   0x7f0000,   0x800000,  0x7f7fffff,
                                      0x7f7f0000, 0x7f800000, 0x7f810000, 0x7fc00000, 0x7fd50000, 0x3f800000};
    return values[draw(sizeof values / sizeof *values)] | draw(2) << 31;
}

static uint32_t draw_number(int exponent, int width, uint32_t fraction)
{
    int e = exponent + (int)draw((uint32_t)(2 * width + 1)) - width;
    return draw(2) << 31 | (uint32_t)(e < 0 ? 0 : e > 254 ? 254 : e) << 23 | fraction;
}

static lk__bf16 draw_bf16(range r)
{
    if (r.specials && draw((uint32_t)r.specials) == 0) return (lk__bf16){(uint16_t)(draw_special() >> 16)};
    uint32_t fraction = draw(3) ? draw(128) << 16 : 0; /* a power of two cancels more often */
    return (lk__bf16){(uint16_t)(draw_number((r.exponent + 127) / 2, (r.width + 1) / 2, fraction) >> 16)};
}

static float draw_f32(range r)
{
    if (r.specials && draw((uint32_t)r.specials) == 0) return lk__float_of_bits(draw_special());
    uint32_t fraction = draw(4) == 0 ? draw(256) << 15 : draw(4) == 0 ? 0x7fffff - draw(4) : draw(1 << 23);
    return lk__float_of_bits(draw_number(r.exponent, r.width, fraction));
}

enum { ROWS = 16, COLUMNS = 16, PAIRS = 16 };
typedef struct operands {
    int      m, n, pairs; /* of TDPBF16PS */
    lk__bf16 a[ROWS * 2 * PAIRS], b[PAIRS * 2 * COLUMNS];
    float    sum[ROWS * COLUMNS];
} operands;

static void draw_operands(operands *x, int a, int b, int sums)
{
    range r = draw_range();
    for (int i = 0; i < a; i++) x->a[i] = draw_bf16(r);
    for (int i = 0; i < b; i++) x->b[i] = draw_bf16(r);
    for (int i = 0; i < sums; i++) x->sum[i] = draw_f32(r);
}

/* ---- by exact integers ---- */

static float exact_pair_to_odd(float sum, const lk__bf16 *a, const lk__bf16 *b)
{
    float first = exact_fused(-0.0f, lk__from_bf16(a[0]), lk__from_bf16(b[0]), TO_ODD);
    float second = exact_fused(-0.0f, lk__from_bf16(a[1]), lk__from_bf16(b[1]), TO_ODD);
    float pair = exact_fused(second, first, 1, TO_ODD), total = exact_fused(sum, pair, 1, TO_ODD);
    return isnan(total) ? lk__float_of_bits(0x7fc00000) : total;
}

static void bfmmla_exact(operands *x)
{
    for (int o = 0; o < 8; o++) /* the first pair of each sum, then the second one */
        x->sum[o % 4] =
            exact_pair_to_odd(x->sum[o % 4], x->a + o % 4 / 2 * 4 + o / 4 * 2, x->b + o % 2 * 4 + o / 4 * 2);
}

/* The NaN of Intel's table of priorities, quiet; of none, the one that invalid operations make. */
static float propagated_nan(float sum, const lk__bf16 *a, const lk__bf16 *b)
{
    uint32_t bits = 0xffc00000;
    if (isnan(sum)) bits = lk__bits_of_float(sum) | 0x400000;
    for (int i = 2; i-- > 0;) {
        if (isnan(lk__from_bf16(b[i]))) bits = (uint32_t)(b[i].bits | 0x40) << 16;
        if (isnan(lk__from_bf16(a[i]))) bits = (uint32_t)(a[i].bits | 0x40) << 16;
    }
    return lk__float_of_bits(bits);
}

static void vdpbf16ps_exact(operands *x)
{
    for (int i = 0; i < COLUMNS; i++) {
        const lk__bf16 *a = x->a + 2 * i, *b = x->b + 2 * i;
        float           sum = exact_fused(x->sum[i], lk__from_bf16(a[1]), lk__from_bf16(b[1]), TO_EVEN);
        sum = exact_fused(sum, lk__from_bf16(a[0]), lk__from_bf16(b[0]), TO_EVEN);
        x->sum[i] = isnan(sum) ? propagated_nan(x->sum[i], a, b) : sum;
    }
}

static void tdpbf16ps_exact(operands *x)
{
    for (int o = 0; o < x->m * x->n; o++) {
        float part[2] = {0, 0};
        int   i = o / x->n, j = o % x->n;
        for (int k = 0; k < 2 * x->pairs; k++) {
            float left = lk__from_bf16(x->a[i * 2 * PAIRS + k]);
            float right = lk__from_bf16(x->b[k / 2 * 2 * COLUMNS + 2 * j + k % 2]);
            part[k % 2] = exact_fused(part[k % 2], left, right, TO_EVEN);
        }
        float *sum = &x->sum[i * COLUMNS + j];
        *sum = exact_fused(*sum, exact_fused(part[0], part[1], 1, TO_EVEN), 1, TO_EVEN);
        if (isnan(*sum)) *sum = lk__float_of_bits(0xffc00000);
    }
}

/* ---- in C ---- */

static void bfmmla_in_c(operands *x) { lk__bfmmla(x->sum, x->a, x->b); }
static void vdpbf16ps_in_c(operands *x)
{
    for (int i = 0; i < COLUMNS; i++) x->sum[i] = lk__vdpbf16ps(x->sum[i], x->a + 2 * i, x->b + 2 * i);
}
static void tdpbf16ps_in_c(operands *x)
{
    lk__tdpbf16ps(x->m, x->n, x->pairs, x->sum, COLUMNS, x->a, 2 * PAIRS, x->b, 2 * COLUMNS);
}

/* ---- the instructions ---- */

static void bfmmla_instruction(operands *x)
{
#if defined(__aarch64__) /* by its number, bfmmla v0.4s, v1.8h, v2.8h: not every assembler has the extension's name */
    __asm__ volatile("ldr q0, [%0]\n"
                     "ldr q1, [%1]\n"
                     "ldr q2, [%2]\n"
                     ".inst 0x6e42ec20\n"
                     "str q0, [%0]"
                     :
                     : "r"(x->sum), "r"(x->a), "r"(x->b)
                     : "v0", "v1", "v2", "memory");
#else
    (void)x;
#endif
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl,avx512bf16"))) static void vdpbf16ps_instruction(operands *x)
{
    __m512i a = _mm512_loadu_si512(x->a), b = _mm512_loadu_si512(x->b);
    __m512  sum = _mm512_dpbf16_ps(_mm512_loadu_ps(x->sum), (__m512bh)a, (__m512bh)b);
    _mm512_storeu_ps(x->sum, sum);
}

__attribute__((target("amx-tile,amx-bf16"))) static void tdpbf16ps_instruction(operands *x)
{
    struct {
        uint8_t  palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } config = {.palette = 1};
    config.rows[0] = (uint8_t)x->m, config.row_bytes[0] = (uint16_t)(4 * x->n);
    config.rows[1] = (uint8_t)x->m, config.row_bytes[1] = (uint16_t)(4 * x->pairs);
    config.rows[2] = (uint8_t)x->pairs, config.row_bytes[2] = (uint16_t)(4 * x->n);
    _tile_loadconfig(&config);
    _tile_loadd(0, x->sum, 4 * COLUMNS);
    _tile_loadd(1, x->a, 4 * PAIRS);
    _tile_loadd(2, x->b, 4 * COLUMNS);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, x->sum, 4 * COLUMNS);
    _tile_release();
}
#else
static void vdpbf16ps_instruction(operands *x) { (void)x; }
static void tdpbf16ps_instruction(operands *x) { (void)x; }
#endif

/* ---- comparisons ---- */

typedef void method(operands *x);

typedef struct comparison {
    const char *name;
    method     *expected, *in_c;
    int         a, b, sums, shares; /* operands of a call; one of so many draws */
    bool        any_nan;            /* is right where one is expected */
} comparison;

static bool same_bits(float a, float b, bool any_nan)
{
    return lk__bits_of_float(a) == lk__bits_of_float(b) || (any_nan && isnan(a) && isnan(b));
}

static void compare(comparison c, long calls)
{
    long differ = 0, show = printed;
    for (long call = 0; call < calls / c.shares; call++) {
        operands x = {.m = 1 + (int)draw(ROWS), .n = 1 + (int)draw(COLUMNS), .pairs = 1 + (int)draw(PAIRS)}, y;
        draw_operands(&x, c.a, c.b, c.sums);
        y = x;
        float first = x.sum[0];
        c.expected(&x);
        c.in_c(&y);
        if (show-- > 0)
            printf("  %08x + %04x %04x … × %04x %04x … = %08x, in C %08x\n", lk__bits_of_float(first), x.a[0].bits,
                   x.a[1].bits, x.b[0].bits, x.b[1].bits, lk__bits_of_float(x.sum[0]), lk__bits_of_float(y.sum[0]));
        for (int i = 0; i < c.sums; i++) differ += !same_bits(x.sum[i], y.sum[i], c.any_nan);
    }
    printf("     %s: %ld calls, %ld results differ\n", c.name, calls / c.shares, differ);
    CHECK(differ == 0, "%s", c.name);
}

static void bfmmla_is_exact_sums_rounded_to_odd(void)
{
    compare((comparison){"BFMMLA in C and integers", bfmmla_exact, bfmmla_in_c, 8, 8, 4, 1, false}, draws);
}
static void vdpbf16ps_is_two_fused_products(void)
{
    compare((comparison){"VDPBF16PS in C and integers", vdpbf16ps_exact, vdpbf16ps_in_c, 32, 32, 16, 4, false}, draws);
}
static void tdpbf16ps_is_two_sums_of_fused_products(void)
{
    compare((comparison){"TDPBF16PS in C and integers", tdpbf16ps_exact, tdpbf16ps_in_c, 512, 512, 256, 400, false},
            draws);
}

static void instructions_of_this_machine_have_the_bits_of_those_in_c(void)
{
    comparison bfmmla = {"BFMMLA and in C", bfmmla_instruction, bfmmla_in_c, 8, 8, 4, 1, false};
    comparison vdpbf16ps = {"VDPBF16PS and in C", vdpbf16ps_instruction, vdpbf16ps_in_c, 32, 32, 16, 4, false};
    comparison tdpbf16ps = {"TDPBF16PS and in C", tdpbf16ps_instruction, tdpbf16ps_in_c, 512, 512, 256, 400, true};
    if (lk__has_bfmmla()) compare(bfmmla, 10 * draws);
    if (lk__has_avx512_bf16()) compare(vdpbf16ps, 10 * draws);
    if (lk__has_amx_bf16()) compare(tdpbf16ps, 10 * draws);
}

/* What the rules say about single sums, by hand. */
static void single_sums_are_what_the_rules_say(void)
{
    lk__bf16 one = {0x3f80}, zero = {0}, small = {0x3300}, least = {0x0080}, half = {0x3f00}; /* small: 2^-25 */
    lk__bf16 pair[2] = {one, zero}, ones[2] = {one, one}, smalls[2] = {small, zero}, leasts[2] = {least, zero};
    lk__bf16 halves[2] = {half, zero};
    CHECK(lk__bf16_dot_arm(1, smalls, pair) == 0x1.000002p0f); /* inexact: the last bit is set */
    CHECK(lk__vdpbf16ps(1, smalls, pair) == 1);
    CHECK(lk__bf16_dot_arm(0, leasts, halves) == 0 && lk__vdpbf16ps(0, leasts, halves) == 0); /* denormal */
    CHECK(lk__bf16_dot_arm(0x1p-149f, ones, pair) == 1 && lk__vdpbf16ps(0x1p-149f, pair, ones) == 1);
    CHECK(lk__bits_of_float(lk__vdpbf16ps(-INFINITY, (lk__bf16[]){{0x7f80}, one}, ones)) == 0xffc00000);
    CHECK(lk__bits_of_float(lk__bf16_dot_arm(-INFINITY, (lk__bf16[]){{0x7f80}, one}, ones)) == 0x7fc00000);
}

int main(int count, char **arguments)
{
    if (count > 1) draws = atol(arguments[1]);
    if (count > 2) printed = atol(arguments[2]);
    RUN(bfmmla_is_exact_sums_rounded_to_odd);
    RUN(vdpbf16ps_is_two_fused_products);
    RUN(tdpbf16ps_is_two_sums_of_fused_products);
    RUN(instructions_of_this_machine_have_the_bits_of_those_in_c);
    RUN(single_sums_are_what_the_rules_say);
    return check_failures != 0;
}
