/* gemm_block_matrix.c - one block of k of a product of a matrix instruction set: packing its operands, as they are
 * stored, and multiplying them. A panel's layout is in matrix_NAME.h. */
#include "device/cpu/unscheduled.h"

#define LK__MATRIX_TILE
#include "device/cpu/gemm_block.h"

/* One operand: lines, the rows of A or the columns of B, `line` elements apart, and k's `step` apart; one of the two
 * is 1. */
typedef struct lines {
    const ELEMENT *from;
    int64_t        line, step;
} lines;

/* (line, k) of a panel of `width` lines with groups of `group` k's. */
INLINE ELEMENT *place_in_panel(ELEMENT *to, int64_t line, int64_t k, const int64_t width, const int64_t group)
{
    return to + (k / group * width + line) * group + k % group;
}

/* k's of lines that are contiguous along k. */
INLINE void take_rows(lines x, int64_t count, int64_t k, ELEMENT *to, const int64_t width, const int64_t group)
{
    int64_t q = 0;
#if MATRIX_PAIRS
    for (; group == 2 && q + PAIR_DEPTH <= k; q += PAIR_DEPTH) {
        int64_t i = 0;
        for (; i + PAIR_LINES <= count; i += PAIR_LINES)
            matrix_take_lines(to + q * width + i * 2, width * 2, x.from + i * x.line + q, x.line);
        for (; i < count; i++)
            for (int64_t p = q; p < q + PAIR_DEPTH; p += 2)
                memcpy(to + (p * width + i * 2), x.from + i * x.line + p, 2 * sizeof *to);
    }
#endif
    for (; q + group <= k; q += group)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (q * width + i * group), x.from + i * x.line + q, (size_t)group * sizeof *to);
    for (int64_t i = 0; i < count && q < k; i++)
        memcpy(to + (q * width + i * group), x.from + i * x.line + q, (size_t)(k - q) * sizeof *to);
}

/* Fewer than MATRIX_B_GROUP k's of lines that are contiguous across lines, and zeros. */
INLINE void take_last_columns(lines x, int64_t count, int64_t ks, ELEMENT *to, const int64_t width)
{
    ELEMENT rest[MATRIX_B_GROUP * (MATRIX_ROWS > MATRIX_COLUMNS ? MATRIX_ROWS : MATRIX_COLUMNS)] = {0};
    for (int64_t p = 0; p < ks; p++) memcpy(rest + p * width, x.from + p * x.step, (size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i += 4) matrix_take_columns(to + i * MATRIX_B_GROUP, rest + i, width);
}

/* k's of lines that are contiguous across lines. */
INLINE void take_columns(lines x, int64_t count, int64_t k, ELEMENT *to, const int64_t width, const int64_t group)
{
    enum { AHEAD = 8 }; /* the hardware does not prefetch the next k */
    for (int64_t q = 0; q < k; q += group) {
        const ELEMENT *from = x.from + q * x.step;
        int64_t        i = 0, ks = min64(group, k - q);
        if (group == MATRIX_B_GROUP && ks < group) {
            take_last_columns((lines){from, x.line, x.step}, count, ks, to + q * width, width);
            return;
        }
        for (int64_t p = 0; p < ks; p++) __builtin_prefetch(from + min64(AHEAD + p, k - 1 - q) * x.step, 0, 2);
#if MATRIX_PAIRS
        for (; group == 2 && ks == 2 && i + PAIR_DEPTH <= count; i += PAIR_DEPTH)
            matrix_take_many_columns(to + q * width + i * group, from + i, x.step);
#endif
        for (; group == MATRIX_B_GROUP && ks == group && i + 4 <= count; i += 4)
            matrix_take_columns(to + q * width + i * group, from + i, x.step);
        for (; i < count; i++)
            for (int64_t p = 0; p < ks; p++) to[q * width + i * group + p] = from[p * x.step + i];
    }
}

#if MATRIX_PAIRS
/* Halves and quarters of a group: rows of 16 and 8 pixels. */
INLINE void turn_some(ELEMENT *to, const ELEMENT *from, int64_t step, int64_t count)
{
    switch (count) {
    case PAIR_DEPTH: matrix_turn_lines(to, from, step, PAIR_DEPTH); break;
    case PAIR_DEPTH / 2: matrix_turn_lines(to, from, step, PAIR_DEPTH / 2); break;
    case PAIR_DEPTH / 4: matrix_turn_lines(to, from, step, PAIR_DEPTH / 4); break;
    default: matrix_turn_lines(to, from, step, count);
    }
}

/* The same for groups of 32 k's, of which the first one may have begun. */
INLINE void turn_columns(lines x, int64_t count, int64_t k, int64_t first, ELEMENT *to, const int64_t width)
{
    for (int64_t q = 0; q < k;) {
        int64_t  begin = (first + q) % PAIR_DEPTH, end = min64(PAIR_DEPTH, begin + k - q), i = 0;
        ELEMENT *group = to + (first + q - begin) * width;
        for (int64_t p = q + PAIR_DEPTH; p < min64(k, q + 2 * PAIR_DEPTH); p++) /* the hardware does not */
            __builtin_prefetch(x.from + p * x.step, 0, 2);
        for (; i + PAIR_LINES <= count; i += PAIR_LINES)
            turn_some(group + i * PAIR_DEPTH + begin, x.from + q * x.step + i, x.step, end - begin);
        for (; i < count; i++)
            for (int64_t p = begin; p < end; p++) group[i * PAIR_DEPTH + p] = x.from[(q + p - begin) * x.step + i];
        q += end - begin;
    }
}
#endif

/* Zeros from k `last` on, up to `end`. Where the last group has some of the `first` k's, those stay. */
INLINE void clear_rest(ELEMENT *to, int64_t first, int64_t last, int64_t end, const int64_t width, const int64_t group)
{
    int64_t whole = last / group * group;
    if (whole >= first && whole < end) memset(to + whole * width, 0, (size_t)((end - whole) * width) * sizeof *to);
    for (int64_t p = whole * width; whole < first && p < end * width; p++)
        if (p % group >= last % group || p >= round_to(last, group) * width) to[p] = (ELEMENT){0};
}

/* `first` k's are in the panel. Those after the last k, up to a whole unit, and lines that are missing become zero. */
INLINE void pack_panel(lines x, int64_t count, int64_t k, int64_t first, ELEMENT *to, const int64_t width,
                       const int64_t group)
{
    int64_t begin = packed_depth(first), end = packed_depth(first + k), q = 0;
    if (count < width && begin < end) memset(to + begin * width, 0, (size_t)((end - begin) * width) * sizeof *to);
#if MATRIX_PAIRS
    if (group == PAIR_DEPTH && x.step != 1) {
        clear_rest(to, first, first + k, end, width, group);
        turn_columns(x, count, k, first, to, width);
        return;
    }
#endif
    for (; (first + q) % group != 0 && q < k; q++) /* the rest of a group that has begun */
        for (int64_t i = 0; i < count; i++)
            *place_in_panel(to, i, first + q, width, group) = x.from[i * x.line + q * x.step];
    clear_rest(to, first, first + k, end, width, group);
    x.from += q * x.step;
    if (x.step == 1)
        take_rows(x, count, k - q, to + (first + q) * width, width, group);
    else
        take_columns(x, count, k - q, to + (first + q) * width, width, group);
}

INLINE void pack_panels(lines x, int64_t count, int64_t k, int64_t first, ELEMENT *to, int64_t panel,
                        const int64_t width, const int64_t group)
{
    for (int64_t i = 0; i < count; i += width, to += panel, x.from += width * x.line) {
        if (count - i >= width)
            pack_panel(x, width, k, first, to, width, group);
        else
            pack_panel(x, count - i, k, first, to, width, group);
    }
}

void gemm_pack_b(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, PACKED *to, int64_t panel)
{
    pack_panels((lines){b, g->b_column, g->b_k}, n, k, first, to, panel, MATRIX_COLUMNS, MATRIX_B_GROUP);
}
void gemm_pack_b_large(const gemm *g, const ELEMENT *b, int64_t n, int64_t k, int64_t first, PACKED *to, int64_t panel)
{
    gemm_pack_b(g, b, n, k, first, to, panel);
}

void gemm_pack_a(const gemm *g, const ELEMENT *a, int64_t m, int64_t k, int64_t first, PACKED *to, int64_t panel)
{
    pack_panels((lines){a, g->a_row, g->a_k}, m, k, first, to, panel, MATRIX_ROWS, MATRIX_A_GROUP);
}

void gemm_take_a(const gemm *g, const ELEMENT *from, int64_t m, int64_t n, bool in_place, PACKED *scratch, gemm_step *s)
{
    (void)n, (void)in_place;
    s->a = scratch;
    s->by_rows = false;
    s->a_panel = packed_depth(s->k) * MATRIX_ROWS;
    gemm_pack_a(g, from, m, s->k, 0, scratch, s->a_panel);
}

void gemm_multiply(int64_t m, int64_t n, const gemm_step *s)
{
    const PACKED *panel = s->b;
    matrix_begin();
    for (int64_t j = 0; j < n; j += MATRIX_COLUMNS, panel += s->panel)
        micro_large(m, s->a, s->a_panel, packed_depth(s->k), panel, !s->start, s->c + j, s->c_row,
                    min64(MATRIX_COLUMNS, n - j));
    matrix_end();
}
