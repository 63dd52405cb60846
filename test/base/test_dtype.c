/* test_dtype.c - the table of element types: sizes, names, conversions of every number of the 16-bit types against
 * arithmetic in double, and that the lists which name types agree with it. */
#include "check.h"

#include "base/dtype.h"

#include <lockstep/plan.h>
#include <math.h>

static void sizes_and_names_are_those_of_the_types(void)
{
    static const struct {
        lk_dtype    type;
        size_t      size;
        const char *name;
    } known[] = {{LK_F32, 4, "f32"}, {LK_F64, 8, "f64"}, {LK_BF16, 2, "bf16"}, {LK_F16, 2, "f16"},
                 {LK_I8, 1, "i8"},   {LK_U8, 1, "u8"},   {LK_I32, 4, "i32"},   {LK_I64, 8, "i64"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        lk_dtype found = LK_DTYPE_COUNT;
        CHECK(lk_dtype_size(known[i].type) == known[i].size, "%s", known[i].name);
        CHECK(strcmp(lk_dtype_name(known[i].type), known[i].name) == 0, "%s", known[i].name);
        CHECK(lk_dtype_parse(known[i].name, &found) && found == known[i].type, "%s", known[i].name);
    }
    lk_dtype none;
    CHECK(lk_dtype_size(LK_DTYPE_COUNT) == 0 && strcmp(lk_dtype_name((lk_dtype)-1), "?") == 0);
    CHECK(!lk_dtype_parse("", &none) && !lk_dtype_parse("?", &none) && !lk_dtype_parse("f3", &none));
    CHECK(!lk__is_element(LK_DTYPE_COUNT) && !lk__is_narrow((lk_dtype)99) && !lk__dtype_is_real((lk_dtype)99));
}

/* Names and places in files belong to one type each. */
static void rows_of_the_table_differ(void)
{
    for (int i = 0; i < LK_DTYPE_COUNT; i++) {
        const lk__dtype *a = lk__dtype_of((lk_dtype)i);
        CHECK(a->name && a->text && a->safetensors && a->size && a->to_double && a->from_double && a->from_float, "%d",
              i);
        CHECK(lk__dtype_of(a->sums)->sums == a->sums && lk_dtype_size(a->sums) >= a->size, "%s", a->name);
        CHECK(lk__is_narrow((lk_dtype)i) == (lk__is_element((lk_dtype)i) && a->sums != (lk_dtype)i), "%s", a->name);
        for (int j = 0; j < i; j++) {
            const lk__dtype *b = lk__dtype_of((lk_dtype)j);
            CHECK(strcmp(a->name, b->name) && strcmp(a->text, b->text) && strcmp(a->safetensors, b->safetensors), "%s",
                  a->name);
            CHECK(a->order != b->order && (!a->numpy || !b->numpy || strcmp(a->numpy, b->numpy)), "%s", a->name);
        }
    }
}

/* The number with these bits, of a type with `fraction` bits of fraction and `exponent` bits of exponent. */
static double decode(unsigned bits, int fraction, int exponent)
{
    int    e = (int)(bits >> fraction & ((1u << exponent) - 1)), bias = (1 << (exponent - 1)) - 1;
    double f = (double)(bits & ((1u << fraction) - 1)), sign = bits >> 15 ? -1 : 1;
    if (e == (1 << exponent) - 1) return f != 0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(f + (double)(1 << fraction), e - bias - fraction) : ldexp(f, 1 - bias - fraction));
}

static bool same_number(double a, double b) { return a == b ? signbit(a) == signbit(b) : isnan(a) && isnan(b); }

static void check_halves(lk_dtype type, int fraction, int exponent)
{
    const lk__dtype *t = lk__dtype_of(type);
    double           before = NAN;
    for (unsigned bits = 0; bits < 65536; bits++) {
        uint16_t stored = (uint16_t)bits, back = 0;
        double   want = decode(bits, fraction, exponent), got;
        t->to_double(&got, &stored, 1);
        CHECK(same_number(got, want), "%s %04x is %g, not %g", t->name, bits, got, want);
        t->from_double(&back, &want, 1);
        if (!isnan(want)) CHECK(back == stored, "%s %04x comes back as %04x", t->name, bits, back);
        /* Between two neighbours: to the nearest, and in the middle to the one whose last bit is 0. */
        if (bits % 32768 > 0 && isfinite(want)) {
            double middle = (before + want) / 2, near[3] = {nextafter(middle, before), middle, nextafter(middle, want)};
            float  floats[3] = {nextafterf((float)middle, (float)before), (float)middle,
                                nextafterf((float)middle, (float)want)};
            uint16_t rounded[3];
            uint16_t expected[3] = {(uint16_t)(bits - 1), (uint16_t)(bits & 1 ? bits - 1 : bits), (uint16_t)bits};
            t->from_float(rounded, floats, 3);
            CHECK(memcmp(rounded, expected, sizeof rounded) == 0, "%s: about %g", t->name, middle);
            t->from_double(rounded, near, 3); /* to f32 first, where the three are one */
            CHECK(rounded[1] == expected[1], "%s: %g", t->name, middle);
        }
        before = want;
    }
}

static void conversions_of_16_bits_are_exact_and_round_to_nearest(void)
{
    check_halves(LK_BF16, 7, 8);
    check_halves(LK_F16, 10, 5);
}

static void conversions_of_integers_drop_fractions(void)
{
    const double numbers[] = {-1.75, 0, 2.5, 100};
    int64_t      i64[4];
    int8_t       i8[4];
    double       back[4];
    lk__dtype_of(LK_I64)->from_double(i64, numbers, 4);
    lk__dtype_of(LK_I8)->from_double(i8, numbers, 4);
    CHECK(i64[0] == -1 && i64[1] == 0 && i64[2] == 2 && i64[3] == 100);
    CHECK(i8[0] == -1 && i8[1] == 0 && i8[2] == 2 && i8[3] == 100);
    lk__dtype_of(LK_I8)->to_double(back, i8, 4);
    CHECK(back[0] == -1 && back[3] == 100);
}

static void arrays_are_converted_at_any_length(void)
{
    static const size_t lengths[] = {0, 1, 255, 256, 257, 1000};
    static double       from[1000], to[1000];
    static uint16_t     narrow[1000];
    for (int i = 0; i < 1000; i++) from[i] = (i - 500) / 64.0; /* exact in f16 and in bf16 up to 2^8 */
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        memset(to, 0, sizeof to);
        lk__dtype_convert(LK_F64, from, LK_F16, narrow, lengths[k]);
        lk__dtype_convert(LK_F16, narrow, LK_F64, to, lengths[k]);
        for (size_t i = 0; i < 1000; i++) CHECK(to[i] == (i < lengths[k] ? from[i] : 0), "%zu of %zu", i, lengths[k]);
    }
}

/* A type that kernels store has a policy, and policies have no other types. */
static void policies_are_the_narrow_types(void)
{
    int policies = 0;
    for (int i = 0; i < LK_DTYPE_COUNT; i++) {
        lk_policy policy;
        lk_dtype  recorded;
        bool      found = lk_policy_parse(lk_dtype_name((lk_dtype)i), &policy, &recorded);
        CHECK(found == lk__is_element((lk_dtype)i), "%s", lk_dtype_name((lk_dtype)i));
        if (!found) continue;
        CHECK(lk_policy_dtype(policy, recorded) == (lk_dtype)i, "%s", lk_dtype_name((lk_dtype)i));
        CHECK((policy != LK_POLICY_RECORDED) == lk__is_narrow((lk_dtype)i), "%s", lk_dtype_name((lk_dtype)i));
        CHECK(recorded == lk__wide_type((lk_dtype)i), "%s", lk_dtype_name((lk_dtype)i));
        policies += policy != LK_POLICY_RECORDED;
    }
    CHECK(policies == LK_POLICY_COUNT - 1, "%d", policies);
    lk_policy policy;
    lk_dtype  recorded;
    CHECK(!lk_policy_parse("recorded", &policy, &recorded) && !lk_policy_parse("i32", &policy, &recorded));
    CHECK(strcmp(lk_policy_name(LK_POLICY_RECORDED), "recorded") == 0 &&
          strcmp(lk_policy_name(LK_POLICY_COUNT), "?") == 0);
    CHECK(lk_policy_dtype(LK_POLICY_RECORDED, LK_F64) == LK_F64 && lk_policy_dtype(LK_POLICY_BF16, LK_F32) == LK_BF16);
}

static bool is_bf16(lk_dtype type) { return type == LK_BF16; }

static void types_are_listed_in_words(void)
{
    lk__dtype_names one = lk__dtype_names_of(is_bf16), real = lk__dtype_names_of(lk__dtype_is_real);
    CHECK(strcmp(one.text, "bf16") == 0, "%s", one.text);
    CHECK(strcmp(real.text, "f32, f64, bf16 or f16") == 0, "%s", real.text);
}

int main(void)
{
    RUN(sizes_and_names_are_those_of_the_types);
    RUN(rows_of_the_table_differ);
    RUN(conversions_of_16_bits_are_exact_and_round_to_nearest);
    RUN(conversions_of_integers_drop_fractions);
    RUN(arrays_are_converted_at_any_length);
    RUN(policies_are_the_narrow_types);
    RUN(types_are_listed_in_words);
    return check_result();
}
