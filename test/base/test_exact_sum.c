/* test_exact_sum.c - sums of squares without rounding, compared with schoolbook arithmetic on long integers: every
 * number of either type, denormal ones, infinities and NaN, in any order and division, and the double nearest to the
 * sum. */
#include "check.h"

#include "base/exact_sum.h"
#include "base/isa.h"
#include "device/kernel.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A long integer of bits, in units of 2^-2148, the square of the smallest double. */
enum { BITS = 4400, ORIGIN = 2148 };
typedef struct big {
    unsigned char bit[BITS];
} big;

static void add_at(big *b, int at)
{
    while (b->bit[at]) b->bit[at++] = 0;
    b->bit[at] = 1;
}

/* x as an integer times a power of two. */
static uint64_t split_number(double x, int *exponent)
{
    int      e;
    uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(x), &e), 53);
    *exponent = e - 53;
    while (mantissa && !(mantissa & 1)) mantissa >>= 1, ++*exponent;
    return mantissa;
}

/* b += x², bit by bit. */
static void add_square(big *b, double x)
{
    int      exponent;
    uint64_t mantissa = split_number(x, &exponent);
    for (int i = 0; i < 53; i++)
        for (int k = 0; k < 53; k++)
            if (mantissa >> i & 1 && mantissa >> k & 1) add_at(b, ORIGIN + 2 * exponent + i + k);
}

static void set_number(big *b, double x)
{
    int      exponent;
    uint64_t mantissa = split_number(x, &exponent);
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 53; i++)
        if (mantissa >> i & 1) b->bit[ORIGIN + exponent + i] = 1;
}

static int compare_bigs(const big *a, const big *b)
{
    for (int i = BITS - 1; i >= 0; i--)
        if (a->bit[i] != b->bit[i]) return a->bit[i] ? 1 : -1;
    return 0;
}

/* c = a - b. */
static void subtract_bigs(const big *a, const big *b, big *c)
{
    int borrow = 0;
    for (int i = 0; i < BITS; i++) {
        int d = a->bit[i] - b->bit[i] - borrow;
        borrow = d < 0;
        c->bit[i] = (unsigned char)(d & 1);
    }
}

/* The double nearest to b, found by bisection over all of them. */
static double nearest_double(const big *b)
{
    uint64_t low = 0, high = UINT64_C(0x7fefffffffffffff); /* the largest */
    double   x, next;
    big      below, above, rest, missing;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        memcpy(&x, &middle, sizeof x);
        set_number(&below, x);
        if (compare_bigs(&below, b) <= 0)
            low = middle;
        else
            high = middle - 1;
    }
    memcpy(&x, &low, sizeof x);
    next = nextafter(x, INFINITY);
    if (isinf(next)) return x; /* not tested: the rounding of sums above the largest */
    set_number(&below, x);
    set_number(&above, next);
    subtract_bigs(b, &below, &rest);
    subtract_bigs(&above, b, &missing);
    int order = compare_bigs(&rest, &missing);
    return order < 0 || (order == 0 && !(low & 1)) ? x : next;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* xorshift64* */
static uint64_t draw(uint64_t *rng)
{
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return *rng * UINT64_C(2685821657736338717);
}

/* Finite numbers with exponents of a range of bits. */
static double draw_f64(uint64_t *rng, int from, int to)
{
    uint64_t exponent = (uint64_t)from + draw(rng) % (uint64_t)(to - from + 1);
    uint64_t bits = (draw(rng) & UINT64_C(0x800fffffffffffff)) | exponent << 52;
    double   x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float draw_f32(uint64_t *rng, int from, int to)
{
    uint32_t exponent = (uint32_t)from + (uint32_t)(draw(rng) % (uint64_t)(to - from + 1));
    uint32_t bits = ((uint32_t)draw(rng) & 0x807fffffu) | exponent << 23;
    float    x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { MOST = 700 };
static double numbers[MOST];
static float  narrow[MOST];
static big    total;

static void check_f64(int n, const char *what)
{
    double sum[LK__EXACT_F64];
    memset(&total, 0, sizeof total);
    for (int i = 0; i < n; i++) add_square(&total, numbers[i]);
    lk__exact_squares_f64(numbers, n, sum);
    double got = lk__exact_round(sum, LK__EXACT_F64), want = nearest_double(&total);
    CHECK(bits_of(got) == bits_of(want), "%s, %d numbers: %a, expected %a", what, n, got, want);
}

static void check_f32(int n, const char *what)
{
    double sum[LK__EXACT_F32];
    memset(&total, 0, sizeof total);
    for (int i = 0; i < n; i++) add_square(&total, narrow[i]);
    lk__exact_squares_f32(narrow, n, sum);
    double got = lk__exact_round(sum, LK__EXACT_F32), want = nearest_double(&total);
    CHECK(bits_of(got) == bits_of(want), "%s, %d numbers: %a, expected %a", what, n, got, want);
}

static void sums_are_the_nearest_doubles_of_long_integers(void)
{
    static const int sizes[] = {0, 1, 2, 3, 17, 256, MOST};
    static const int ranges[][2] = {{0, 0}, {0, 2046}, {1013, 1033}, {400, 600}, {0, 30}, {480, 520}, {1, 1}};
    uint64_t         rng = 7;
    for (size_t r = 0; r < COUNT(ranges); r++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            int from = ranges[r][0], to = ranges[r][1] > 1500 ? 1500 : ranges[r][1];
            for (int i = 0; i < sizes[s]; i++) numbers[i] = draw_f64(&rng, from, to);
            check_f64(sizes[s], "f64");
            int low = from * 255 / 2047, high = ranges[r][1] * 254 / 2046;
            for (int i = 0; i < sizes[s]; i++) narrow[i] = draw_f32(&rng, low, high);
            check_f32(sizes[s], "f32");
        }
}

/* A sum halfway between two doubles goes to the even one, one unit more or less to its side. */
static void ties_go_to_the_even_double(void)
{
    static const double parts[][3] = {
        {1, 0x1p-27, 0},         {1, 0x1p-27, 0x1p-1074},  {1, 0x1p-27, 0x1p-26}, {0x1p-537, 0x1p-538, 0},
        {0x1p-538, 0x1p-538, 0}, {0x1p-538, 0, 0x1p-1074}, {0x1p-538, 0, 0},      {0x1.8p-537, 0x1p-1000, 0x1p-538}};
    for (size_t i = 0; i < COUNT(parts); i++) {
        memcpy(numbers, parts[i], sizeof parts[i]);
        check_f64(3, "tie");
    }
}

static void the_largest_numbers_fit(void)
{
    double sum[LK__EXACT_F64], all[LK__EXACT_F64] = {0};
    for (int i = 0; i < MOST; i++) narrow[i] = i % 2 ? -0x1.fffffep127f : 0x1.fffffep127f;
    check_f32(MOST, "largest");
    lk__exact_squares_f32(narrow, MOST, sum);
    for (int i = 0; i < LK__EXACT_F32; i++) CHECK(sum[i] >= 0 && sum[i] < 0x1p24);
    for (int i = 0; i < MOST; i++) numbers[i] = 0x1.fffffffffffffp1023;
    lk__exact_squares_f64(numbers, MOST, sum);
    CHECK(lk__exact_round(sum, LK__EXACT_F64) == INFINITY);
    /* 2^29 sums of the largest digits, as 2^29 times one: the digits stay integers below 2^53. */
    for (int i = 0; i < LK__EXACT_DIGITS_F32; i++) all[i] = 0x1.fffffep23 * 0x1p29;
    CHECK(all[0] < 0x1p53 && isfinite(lk__exact_round(all, LK__EXACT_F32)));
}

static void infinities_and_nan_are_met(void)
{
    double sum[LK__EXACT_F64];
    for (int which = 0; which < 4; which++) {
        bool infinite = which & 1, nan = which & 2;
        for (int i = 0; i < MOST; i++) numbers[i] = narrow[i] = 0.5f;
        if (infinite) numbers[3] = narrow[3] = -INFINITY;
        if (nan) numbers[600] = narrow[600] = NAN;
        for (int f64 = 0; f64 < 2; f64++) {
            if (f64)
                lk__exact_squares_f64(numbers, MOST, sum);
            else
                lk__exact_squares_f32(narrow, MOST, sum);
            double got = lk__exact_round(sum, f64 ? LK__EXACT_F64 : LK__EXACT_F32);
            CHECK(nan ? isnan(got) : infinite ? got == INFINITY : got == MOST * 0.25, "%d: %g", which, got);
        }
    }
}

/* The same digits after carrying, whoever has which elements: more than a chunk of them, with the largest mantissas. */
static void any_division_and_order_gives_the_same_sum(void)
{
    enum { N = 3 * (1 << 15) + 5 };
    static float  x[N], y[N];
    static double wide[N];
    double        one[LK__EXACT_F64], part[LK__EXACT_F64], all[LK__EXACT_F64];
    uint64_t      rng = 11;
    for (int i = 0; i < N; i++) x[i] = i % 3 ? 0x1.fffffep0f : draw_f32(&rng, 90, 140);
    for (int i = 0; i < N; i++) y[(int)((int64_t)i * 7919 % N)] = x[i]; /* 7919 is prime and does not divide N */
    for (int i = 0; i < N; i++) wide[i] = x[i];
    lk__exact_squares_f32(x, N, one);
    double want = lk__exact_round(one, LK__EXACT_F32);
    for (int parts = 1; parts <= 7; parts += 3) {
        memset(all, 0, sizeof all);
        for (int i = 0; i < parts; i++) {
            int begin = N / parts * i, end = i + 1 == parts ? N : N / parts * (i + 1);
            lk__exact_squares_f32(y + begin, end - begin, part);
            lk__exact_add(all, part, LK__EXACT_F32);
        }
        CHECK(bits_of(lk__exact_round(all, LK__EXACT_F32)) == bits_of(want), "%d parts", parts);
    }
    lk__exact_squares_f64(wide, N, all);
    CHECK(bits_of(lk__exact_round(all, LK__EXACT_F64)) == bits_of(want));
}

/* The kernels: squares of integers, of several parts of square_sum, and the scale of a gradient with that norm. */
static void kernels_add_and_round_such_sums(void)
{
    enum { N = 2 * LK__SQUARE_PART + 77 };
    static float  x[N];
    static double workspace[3 * LK__EXACT_F32];
    double        sum[LK__EXACT_F32], weight = 1, scale, norm, squares = 0;
    lk__op_attrs  attrs = {.parts = LK__EXACT_F32, .clip = 2};
    for (int i = 0; i < N; i++) x[i] = (float)((i * 7 + 3) % 251 - 100), squares += (double)x[i] * (double)x[i];
    const lk__kernel_entry *kernels = lk__cpu_kernels(LK_F32, lk__isa_choose(NULL));
    lk__kernel_call         call = {.attrs = &attrs, .inputs = 1, .outputs = 1, .workspace = workspace};
    call.in[0] = (lk__kernel_operand){.data = x, .dtype = LK_F32, .rank = 1, .dims = {N}};
    call.out[0] = (lk__kernel_operand){.data = sum, .dtype = LK_F64, .rank = 1, .dims = {LK__EXACT_F32}};
    CHECK(kernels[LK__OP_square_sum].workspace(&call, 1) == sizeof workspace);
    kernels[LK__OP_square_sum].run(&call);
    CHECK(lk__exact_round(sum, LK__EXACT_F32) == squares);
    lk__kernel_call next = {.attrs = &attrs, .inputs = 2, .outputs = 2};
    next.in[0] = (lk__kernel_operand){.data = &weight, .dtype = LK_F64};
    next.in[1] = call.out[0];
    next.out[0] = (lk__kernel_operand){.data = &scale, .dtype = LK_F64};
    next.out[1] = (lk__kernel_operand){.data = &norm, .dtype = LK_F64};
    kernels[LK__OP_gradient_scale].run(&next);
    CHECK(norm == sqrt(squares) && scale == 2 / (norm + 1e-6));
}

int main(void)
{
    RUN(sums_are_the_nearest_doubles_of_long_integers);
    RUN(ties_go_to_the_even_double);
    RUN(the_largest_numbers_fit);
    RUN(infinities_and_nan_are_met);
    RUN(any_division_and_order_gives_the_same_sum);
    RUN(kernels_add_and_round_such_sums);
    return check_result();
}
