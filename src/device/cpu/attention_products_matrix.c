/* attention_products_matrix.c - the products of a block of attention and of its gradient with a matrix instruction set:
 * operands are packed as they are stored; probabilities and gradients of scores are rounded to ELEMENTs while they are
 * packed, in the first-level cache. */
#include "device/cpu/attention.h"

#include "device/cpu/gemm_block.h"

void attention_pack_columns(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *to)
{
    gemm    g = {.b_k = 1, .b_column = row};
    int64_t panel = columns_size(a, MATRIX_COLUMNS), whole = round_to(count, MATRIX_COLUMNS);
    gemm_pack_b(&g, from, count, a->d, 0, to, panel);
    memset(to + columns_size(a, whole), 0, (size_t)columns_size(a, KEYS - whole) * sizeof *to);
}

void attention_pack_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, int64_t rows, PACKED *to)
{
    gemm g = {.b_k = row, .b_column = 1};
    if (count < rows) memset(to, 0, (size_t)rows_size(a, rows) * sizeof *to);
    gemm_pack_b(&g, from, a->d, count, 0, to, rows * MATRIX_COLUMNS);
}

void attention_take_rows(const attention *a, const ELEMENT *from, int64_t row, int64_t count, PACKED *taken,
                         const PACKED **rows)
{
    gemm    g = {.a_row = row, .a_k = 1};
    int64_t depth = packed_depth(a->d);
    gemm_pack_a(&g, from, count, a->d, 0, taken, depth * MATRIX_ROWS);
    for (int64_t i = 0; i < count; i++) rows[i] = i % MATRIX_ROWS == 0 ? taken + i * depth : NULL;
}

void attention_scores(const attention *a, const PACKED *const *rows, int64_t count, int64_t keys, const PACKED *packed,
                      REAL *scores)
{
    int64_t depth = packed_depth(a->d);
    for (int64_t key = 0; key < keys; key += MATRIX_COLUMNS, packed += depth * MATRIX_COLUMNS)
        micro_large(count, rows[0], depth * MATRIX_ROWS, depth, packed, false, scores + key, KEYS, MATRIX_COLUMNS);
}

enum { GROUPS_ARE_VECTORS = (int)MATRIX_A_GROUP >= (int)VL };

/* Rows of x as a panel of A. */
static void round_panel(const REAL *x, int64_t count, int64_t keys, PACKED *to)
{
    if (count < MATRIX_ROWS) memset(to, 0, (size_t)(keys * MATRIX_ROWS) * sizeof *to);
    for (int64_t i = 0; i < count; i++, x += KEYS) {
        PACKED row[KEYS];
        if (!GROUPS_ARE_VECTORS) copy_narrow(row, x, keys);
        for (int64_t k = 0; k < keys; k += MATRIX_A_GROUP) {
            PACKED *group = to + k * MATRIX_ROWS + i * MATRIX_A_GROUP;
            if (GROUPS_ARE_VECTORS)
                copy_narrow(group, x + k, MATRIX_A_GROUP);
            else
                memcpy(group, row + k, MATRIX_A_GROUP * sizeof *group);
        }
    }
}

void attention_add(const attention *a, const REAL *x, int64_t count, int64_t keys, const PACKED *packed, REAL *out)
{
    PACKED  rounded[QUERIES * KEYS];
    int64_t panel = keys * MATRIX_ROWS;
    for (int64_t i = 0; i < count; i += MATRIX_ROWS)
        round_panel(x + i * KEYS, min64(MATRIX_ROWS, count - i), keys, rounded + i * keys);
    for (int64_t column = 0; column < a->width; column += MATRIX_COLUMNS, packed += KEYS * MATRIX_COLUMNS)
        micro_large(count, rounded, panel, keys, packed, true, out + column, a->width, MATRIX_COLUMNS);
}

void attention_add_transposed(const attention *a, const REAL *x, int64_t begin, int64_t end, int64_t keys,
                              const PACKED *packed, REAL *out)
{
    gemm    g = {.a_row = 1, .a_k = KEYS};
    PACKED  rounded[QUERIES * KEYS], panels[QUERIES * KEYS];
    int64_t count = end - begin, depth = packed_depth(count);
    for (int64_t i = 0; i < count; i++) copy_narrow(rounded + i * KEYS, x + (begin + i) * KEYS, keys);
    gemm_pack_a(&g, rounded, keys, count, 0, panels, depth * MATRIX_ROWS);
    packed += begin * MATRIX_COLUMNS;
    for (int64_t column = 0; column < a->width; column += MATRIX_COLUMNS, packed += QUERIES * MATRIX_COLUMNS)
        micro_large(keys, panels, depth * MATRIX_ROWS, depth, packed, true, out + column, a->width, MATRIX_COLUMNS);
}
