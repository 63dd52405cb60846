/* transpose.c - transposed copies of a matrix, VL × VL, then 4×4 f32 or 2×2 f64 at a time. It is not in its callers'
 * files because, when GCC knows the number of rows, it warns of an overflow that cannot happen. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/gemm.h"
#include "device/cpu/square.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef REAL quad __attribute__((vector_size(16)));
typedef REAL quad_unaligned __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));
enum { QL = 16 / sizeof(REAL) };

static inline quad load_quad_real(const REAL *p) { return (quad) * (const quad_unaligned *)p; }
static inline void store_quad_real(REAL *p, quad v) { *(quad_unaligned *)p = (quad_unaligned)v; }
#if NARROW && VECTOR_BYTES == 16
static inline quad load_quad_element(const ELEMENT *p) { return load_element(p); }
static inline void store_quad_element(ELEMENT *p, quad v) { store_element(p, v); }
#elif NARROW
static inline quad load_quad_element(const ELEMENT *p)
{
    quad v;
    for (int l = 0; l < QL; l++) v[l] = load_one(p + l);
    return v;
}
static inline void store_quad_element(ELEMENT *p, quad v)
{
    for (int l = 0; l < QL; l++) store_one(p + l, v[l]);
}
#endif
#define load_quad(p) BY_TYPE(load_quad, p)(p)
#define store_quad(p, v) BY_TYPE(store_quad, p)(p, v)

/* What follows a sum: its row's bias, then relu, which keeps NaN. NULL and false: nothing. */
static inline vec finish_vector(vec v, const REAL *bias, bool relu)
{
    if (bias) v += load(bias);
    return relu ? choose(v < splat(0), splat(0), v) : v;
}
static inline quad finish_quad(quad v, const REAL *bias, bool relu)
{
    if (bias) v += load_quad_real(bias);
    return relu ? (quad)((__typeof__(v < v))v & ~(v < (quad){0})) : v;
}
static inline REAL finish_one(REAL v, const REAL *bias, bool relu)
{
    if (bias) v += *bias;
    return relu && v < 0 ? 0 : v;
}

#if LK_REAL_BITS == 32 && defined(__aarch64__)
#define TRANSPOSE_QUADS(to, to_row, from, from_row, bias, relu)                                                       \
    do {                                                                                                              \
        quad a = load_quad(from), b = load_quad((from) + from_row);                                                   \
        quad c = load_quad((from) + 2 * from_row), d = load_quad((from) + 3 * from_row);                              \
        quad ab_low = __builtin_shufflevector(a, b, 0, 4, 2, 6), ab_high = __builtin_shufflevector(a, b, 1, 5, 3, 7); \
        quad cd_low = __builtin_shufflevector(c, d, 0, 4, 2, 6), cd_high = __builtin_shufflevector(c, d, 1, 5, 3, 7); \
        store_quad(to, finish_quad(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), bias, relu));                 \
        store_quad((to) + to_row, finish_quad(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), bias, relu));    \
        store_quad((to) + 2 * to_row, finish_quad(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), bias, relu));  \
        store_quad((to) + 3 * to_row, finish_quad(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), bias, relu));\
    } while (0)
#elif LK_REAL_BITS == 32 /* shuffles that are one instruction of x86 each */
#define TRANSPOSE_QUADS(to, to_row, from, from_row, bias, relu)                                                       \
    do {                                                                                                              \
        quad a = load_quad(from), b = load_quad((from) + from_row);                                                   \
        quad c = load_quad((from) + 2 * from_row), d = load_quad((from) + 3 * from_row);                              \
        quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7); \
        quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7); \
        store_quad(to, finish_quad(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), bias, relu));                 \
        store_quad((to) + to_row, finish_quad(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), bias, relu));      \
        store_quad((to) + 2 * to_row, finish_quad(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), bias, relu));\
        store_quad((to) + 3 * to_row, finish_quad(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), bias, relu));\
    } while (0)
#else
#define TRANSPOSE_QUADS(to, to_row, from, from_row, bias, relu)                                                       \
    do {                                                                                                              \
        quad a = load_quad(from), b = load_quad((from) + from_row);                                                   \
        store_quad(to, finish_quad(__builtin_shufflevector(a, b, 0, 2), bias, relu));                                 \
        store_quad((to) + to_row, finish_quad(__builtin_shufflevector(a, b, 1, 3), bias, relu));                      \
    } while (0)
#endif
/* Rows first … end, from column `column` on. TO and FROM are REAL or ELEMENT. bias: of row `first`. */
#define DEFINE_QUADS(name, TO, FROM)                                                                                  \
    static void name##_quads(TO *to, int64_t to_row, const FROM *from, int64_t from_row, int64_t first, int64_t end,  \
                             int64_t column, int64_t columns, const REAL *bias, bool relu)                            \
    {                                                                                                                 \
        int64_t i = first;                                                                                            \
        for (; i + QL <= end; i += QL, bias += bias ? QL : 0) {                                                       \
            int64_t j = column;                                                                                       \
            for (; j + QL <= columns; j += QL)                                                                        \
                TRANSPOSE_QUADS(to + j * to_row + i, to_row, from + i * from_row + j, from_row, bias, relu);          \
            for (; j < columns; j++)                                                                                  \
                for (int64_t q = 0; q < QL; q++)                                                                      \
                    store_one(to + j * to_row + i + q,                                                                \
                              finish_one(load_one(from + (i + q) * from_row + j), bias ? bias + q : NULL, relu));     \
        }                                                                                                             \
        for (; i < end; i++, bias += bias ? 1 : 0)                                                                    \
            for (int64_t j = column; j < columns; j++)                                                                \
                store_one(to + j * to_row + i, finish_one(load_one(from + i * from_row + j), bias, relu));            \
    }

#define DEFINE_BY_SQUARES(name, TO, FROM)                                                                             \
    INLINE void name##_rows(TO *to, int64_t to_row, const FROM *from, int64_t from_row, int64_t rows, int64_t columns,\
                            const REAL *bias, bool relu)                                                              \
    {                                                                                                                 \
        int64_t i = 0;                                                                                                \
        for (; VECTOR_BYTES > 16 && i + VL <= rows; i += VL) {                                                        \
            int64_t j = 0;                                                                                            \
            for (; j + VL <= columns; j += VL) {                                                                      \
                vec w[VL];                                                                                            \
                UNROLL                                                                                                \
                for (int l = 0; l < VL; l++) w[l] = load(from + (i + l) * from_row + j);                              \
                transpose_square(w);                                                                                  \
                UNROLL                                                                                                \
                for (int l = 0; l < VL; l++)                                                                          \
                    store(to + (j + l) * to_row + i, finish_vector(w[l], bias ? bias + i : NULL, relu));              \
            }                                                                                                         \
            name##_quads(to, to_row, from, from_row, i, i + VL, j, columns, bias ? bias + i : NULL, relu);            \
        }                                                                                                             \
        name##_quads(to, to_row, from, from_row, i, rows, 0, columns, bias ? bias + i : NULL, relu);                  \
    }
#define DEFINE_PLAIN(name, TO, FROM)                                                                                  \
    void name(TO *to, int64_t to_row, const FROM *from, int64_t from_row, int64_t rows, int64_t columns)              \
    {                                                                                                                 \
        name##_rows(to, to_row, from, from_row, rows, columns, NULL, false);                                          \
    }
DEFINE_QUADS(transpose, REAL, REAL)
#if NARROW
DEFINE_QUADS(transpose_wide, REAL, ELEMENT)
DEFINE_QUADS(transpose_narrow, ELEMENT, REAL)
DEFINE_BY_SQUARES(transpose_wide, REAL, ELEMENT)
DEFINE_BY_SQUARES(transpose_narrow, ELEMENT, REAL)
DEFINE_PLAIN(transpose_wide, REAL, ELEMENT)
DEFINE_PLAIN(transpose_narrow, ELEMENT, REAL)
#endif

#if defined(__AVX512F__) && LK_REAL_BITS == 32
/* The four quads of a vector, each from a row of its own: so that only shuffles within quads remain, for which there is
 * one unit. */
static inline vec load_quads(const REAL *a, const REAL *b, const REAL *c, const REAL *d)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(a));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(b), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(c), 2);
    return (vec)_mm512_insertf32x4(v, _mm_loadu_ps(d), 3);
}

/* Transposes the 4 × 4 elements in each quad of four vectors. */
INLINE void transpose_in_quads(vec w[4])
{
    __m512 a = (__m512)w[0], b = (__m512)w[1], c = (__m512)w[2], d = (__m512)w[3];
    __m512 ab_low = _mm512_unpacklo_ps(a, b), ab_high = _mm512_unpackhi_ps(a, b);
    __m512 cd_low = _mm512_unpacklo_ps(c, d), cd_high = _mm512_unpackhi_ps(c, d);
    w[0] = (vec)_mm512_shuffle_ps(ab_low, cd_low, 0x44);
    w[1] = (vec)_mm512_shuffle_ps(ab_low, cd_low, 0xee);
    w[2] = (vec)_mm512_shuffle_ps(ab_high, cd_high, 0x44);
    w[3] = (vec)_mm512_shuffle_ps(ab_high, cd_high, 0xee);
}

INLINE void transpose_16_rows(REAL *to, int64_t to_row, const REAL *from, int64_t row, const REAL *bias,
                              bool relu) /* 4 columns */
{
    vec w[4];
    UNROLL
    for (int l = 0; l < 4; l++)
        w[l] = load_quads(from + l * row, from + (l + 4) * row, from + (l + 8) * row, from + (l + 12) * row);
    transpose_in_quads(w);
    UNROLL
    for (int l = 0; l < 4; l++) store(to + l * to_row, finish_vector(w[l], bias, relu));
}

INLINE void transpose_8_rows(REAL *to, int64_t to_row, const REAL *from, int64_t row, const REAL *bias,
                             bool relu) /* 8 columns */
{
    vec w[4];
    UNROLL
    for (int l = 0; l < 4; l++) {
        const REAL *a = from + l * row, *b = from + (l + 4) * row;
        w[l] = load_quads(a, b, a + 4, b + 4);
    }
    transpose_in_quads(w);
    if (bias) {
        __m512 both = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(bias)), _mm256_loadu_ps(bias), 1);
        UNROLL
        for (int l = 0; l < 4; l++) w[l] += (vec)both;
    }
    UNROLL
    for (int l = 0; l < 4; l++) {
        w[l] = finish_vector(w[l], NULL, relu);
        _mm256_storeu_ps(to + l * to_row, _mm512_castps512_ps256((__m512)w[l]));
        _mm256_storeu_ps(to + (l + 4) * to_row, _mm512_extractf32x8_ps((__m512)w[l], 1));
    }
}

INLINE void transpose_rows(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows, int64_t columns,
                           const REAL *bias, bool relu)
{
    int64_t i = 0, fours = columns / 4 * 4, eights = columns / 8 * 8;
    for (; i + 16 <= rows; i += 16, bias += bias ? 16 : 0) {
        for (int64_t j = 0; j < fours; j += 4)
            transpose_16_rows(to + j * to_row + i, to_row, from + i * from_row + j, from_row, bias, relu);
        transpose_quads(to, to_row, from, from_row, i, i + 16, fours, columns, bias, relu);
    }
    for (; i + 8 <= rows; i += 8, bias += bias ? 8 : 0) {
        for (int64_t j = 0; j < eights; j += 8)
            transpose_8_rows(to + j * to_row + i, to_row, from + i * from_row + j, from_row, bias, relu);
        transpose_quads(to, to_row, from, from_row, i, i + 8, eights, columns, bias, relu);
    }
    transpose_quads(to, to_row, from, from_row, i, rows, 0, columns, bias, relu);
}
#else
DEFINE_BY_SQUARES(transpose, REAL, REAL)
#endif
DEFINE_PLAIN(transpose, REAL, REAL)

void transpose_finish(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int64_t rows, int64_t columns,
                      const REAL *bias, bool relu)
{
    transpose_rows(to, to_row, from, from_row, rows, columns, bias, relu);
}
