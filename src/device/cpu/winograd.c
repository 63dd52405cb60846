/* winograd.c - the transforms. Each is a matrix with rows for the points 0, a, -a, b, -b and infinity, applied along
 * both axes of a tile; the rows of a point and its opposite share their even and odd parts. */
#include "device/cpu/winograd.h"
#include "device/cpu/unscheduled.h"

#if HAS_WINOGRAD

bool winograd_fits(const conv *v)
{
    int64_t tiles = tiles_of(v->oh, 4) * tiles_of(v->ow, 4);
    return LK_REAL_BITS == 32 && v->kh == 3 && v->kw == 3 && v->stride == 1 && v->whole_groups == 1 &&
           v->padding <= 2 && v->pool <= 2 && v->whole_c % VL == 0 && v->whole_o % VL == 0 && v->whole_c >= 16 &&
           v->whole_o >= 16 && v->oh * v->ow >= 9 * tiles;
}

tiling tiling_of(int64_t h, int64_t w, int64_t channels, int64_t wanted)
{
    tiling  t = {.tall = tiles_of(h, 4), .wide = tiles_of(w, 4)};
    int64_t rows = max64(1, wanted / max64(1, t.wide));
    t.bands = max64(1, tiles_of(t.tall, rows));
    t.band = tiles_of(t.tall, t.bands);
    t.bands = tiles_of(t.tall, max64(1, t.band));
    t.units = max64(1, wanted / max64(1, t.band * t.wide));
    t.tiles = round_to(t.units * t.band * t.wide, MR);
    t.window = (4 * t.band + 2) * (4 * t.wide + 2) * channels;
    return t;
}

/* One line of the input's transform: x(x²-b²)(x±a) and so on, as polynomials in the pixel's position. */
INLINE void input_line(vec d0, vec d1, vec d2, vec d3, vec d4, vec d5, vec out[6])
{
    vec even_a = d4 - B2 * d2, odd_a = d3 - B2 * d1;
    vec even_b = d4 - A2 * d2, odd_b = d3 - A2 * d1;
    out[0] = AB * d0 + (d4 - SUM * d2);
    out[1] = even_a + A1 * odd_a;
    out[2] = even_a - A1 * odd_a;
    out[3] = even_b + B1 * odd_b;
    out[4] = even_b - B1 * odd_b;
    out[5] = AB * d1 + (d5 - SUM * d3);
}

void transform_input(const REAL *from, int64_t row, int64_t pixel, int64_t channels, REAL *to, int64_t plane)
{
    for (int64_t c = 0; c < channels; c += VL, from += VL, to += VL) {
        vec t[6][6];
        UNROLL
        for (int j = 0; j < 6; j++) {
            const REAL *d = from + j * pixel;
            input_line(load(d), load(d + row), load(d + 2 * row), load(d + 3 * row), load(d + 4 * row),
                       load(d + 5 * row), t[j]);
        }
        UNROLL
        for (int i = 0; i < 6; i++) {
            vec out[6];
            input_line(t[0][i], t[1][i], t[2][i], t[3][i], t[4][i], t[5][i], out);
            UNROLL
            for (int j = 0; j < 6; j++) store(to + (i * 6 + j) * plane, out[j]);
        }
    }
}

/* Values of the polynomial g0 + g1 x + g2 x² + g3 x³ at the points. */
INLINE void gradient_line(vec g0, vec g1, vec g2, vec g3, vec out[6])
{
    vec even_a = g0 + A2 * g2, odd_a = g1 + A2 * g3;
    vec even_b = g0 + B2 * g2, odd_b = g1 + B2 * g3;
    out[0] = g0;
    out[1] = even_a + A1 * odd_a;
    out[2] = even_a - A1 * odd_a;
    out[3] = even_b + B1 * odd_b;
    out[4] = even_b - B1 * odd_b;
    out[5] = g3;
}

void transform_gradient(const REAL *from, int64_t row, int64_t channels, REAL *to, int64_t plane)
{
    for (int64_t c = 0; c < channels; c += VL, from += VL, to += VL) {
        vec t[4][6];
        UNROLL
        for (int j = 0; j < 4; j++) {
            const REAL *g = from + j * channels;
            gradient_line(load(g), load(g + row), load(g + 2 * row), load(g + 3 * row), t[j]);
        }
        UNROLL
        for (int i = 0; i < 6; i++) {
            vec out[6];
            gradient_line(t[0][i], t[1][i], t[2][i], t[3][i], out);
            UNROLL
            for (int j = 0; j < 6; j++) store(to + (i * 6 + j) * plane, out[j]);
        }
    }
}

INLINE void weight_sum_line(const vec m[6], vec out[3])
{
    vec even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    out[0] = (m[0] + even_a) + even_b;
    out[1] = A1 * odd_a + B1 * odd_b;
    out[2] = A2 * even_a + (B2 * even_b + m[5]);
}

void transform_weight_sum(const REAL *from, int64_t plane, REAL *to, int64_t tap)
{
    static const REAL factor[6] = {(REAL)AT_0, (REAL)AT_A, (REAL)AT_A, (REAL)AT_B, (REAL)AT_B, 1};
    for (int64_t q = 0; q < NR; q += VL, from += VL, to += VL) {
        vec t[3][6];
        UNROLL
        for (int j = 0; j < 6; j++) {
            vec m[6], line[3];
            UNROLL
            for (int i = 0; i < 6; i++) m[i] = load(from + (i * 6 + j) * plane) * factor[i];
            weight_sum_line(m, line);
            UNROLL
            for (int i = 0; i < 3; i++) t[i][j] = line[i] * factor[j];
        }
        UNROLL
        for (int i = 0; i < 3; i++) {
            vec out[3];
            weight_sum_line(t[i], out);
            UNROLL
            for (int j = 0; j < 3; j++) store(to + (i * 3 + j) * tap, out[j]);
        }
    }
}

INLINE void weight_line(vec g0, vec g1, vec g2, vec out[6])
{
    vec even_a = (REAL)AT_A * (g0 + A2 * g2), odd_a = (REAL)(AT_A * 0.75) * g1;
    vec even_b = (REAL)AT_B * (g0 + B2 * g2), odd_b = (REAL)(AT_B * 1.5) * g1;
    out[0] = (REAL)AT_0 * g0;
    out[1] = even_a + odd_a;
    out[2] = even_a - odd_a;
    out[3] = even_b + odd_b;
    out[4] = even_b - odd_b;
    out[5] = g2;
}

/* The nine taps of a row of filters, as rows of NR columns → its 36 planes. */
INLINE void transform_taps(const REAL *taps, bool backward, REAL *to, int64_t plane)
{
    for (int64_t q = 0; q < NR; q += VL) {
        vec t[3][6], g[9];
        UNROLL
        for (int i = 0; i < 9; i++) g[i] = load(taps + (backward ? 8 - i : i) * NR + q);
        UNROLL
        for (int j = 0; j < 3; j++) weight_line(g[j], g[3 + j], g[6 + j], t[j]);
        UNROLL
        for (int i = 0; i < 6; i++) {
            vec out[6];
            weight_line(t[0][i], t[1][i], t[2][i], out);
            UNROLL
            for (int j = 0; j < 6; j++) store(to + (i * 6 + j) * plane + q, out[j]);
        }
    }
}

void transform_weights(const conv *v, const ELEMENT *w, bool backward, int64_t panel, int64_t first, int64_t count,
                       REAL *to, int64_t plane)
{
    enum { ROWS = 4 }; /* of filters whose taps are transposed at a time */
    int64_t outer = v->c * 9, columns = min64(NR, (backward ? v->c : v->o) - panel * NR);
    int64_t end = backward ? v->o : v->c;
    REAL    taps[ROWS * 9 * NR];
    if (columns < NR) memset(taps, 0, sizeof taps);
    for (int64_t k = first; k < first + count; k += ROWS) {
        int64_t rows = min64(ROWS, first + count - k), filled = max64(0, min64(rows, end - k));
        if (backward)
            for (int64_t i = 0; i < filled; i++)
                transpose_wide(taps + i * 9 * NR, NR, w + (k + i) * outer + panel * NR * 9, 9, columns, 9);
        else
            transpose_wide(taps, NR, w + panel * NR * outer + k * 9, outer, columns, filled * 9);
        if (filled < rows) memset(taps + filled * 9 * NR, 0, (size_t)((rows - filled) * 9 * NR) * sizeof(REAL));
        for (int64_t i = 0; i < rows; i++, to += NR) transform_taps(taps + i * 9 * NR, backward, to, plane);
    }
}

#endif
