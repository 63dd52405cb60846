/* test_kernels_experts.c - the largest of each row, rows grouped by expert and back, and one product for each expert,
 * against naive loops in double: experts without a row, all rows at one expert, a capacity, ids out of range. */
#include "kernel_case.h"

/* ---- topk ---- */

/* Selection by repeated maxima: the first of equal ones; NaN is the largest. */
static void choose_naively(const double *x, int64_t n, int64_t k, double *values, double *index)
{
    bool *taken = calloc((size_t)n, sizeof *taken);
    if (!taken) abort();
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || x[i] > x[best] || (isnan(x[i]) && !isnan(x[best])))) best = i;
        taken[best] = true;
        values[j] = x[best];
        index[j] = (double)best;
    }
    free(taken);
}

static void topk_case(int64_t rows, int64_t n, int64_t k, bool ties)
{
    double *values = zeros(rows * k), *index = zeros(rows * k), *dx = zeros(rows * n);
    begin(LK__OP_topk);
    t.attrs.k = k;
    double *x = in(t.real, 2, DIMS(rows, n));
    for (int64_t i = 0; ties && i < rows * n; i++) x[i] = floor(x[i] * 2);
    if (ties && rows > 0 && n > 2) x[n / 2] = x[n - 1] = NAN, x[0] = INFINITY;
    out(t.real, 2, DIMS(rows, k), NULL);
    out(LK_I32, 2, DIMS(rows, k), NULL);
    run_case();
    for (int64_t i = 0; i < rows; i++) choose_naively(t.x[0] + i * n, n, k, values + i * k, index + i * k);
    expect(0, values, 0);
    expect(1, index, 0);
    end_case();
    begin(LK__OP_topk_grad);
    double *dy = in(t.real, 2, DIMS(rows, k));
    memcpy(in(LK_I32, 2, DIMS(rows, k)), index, (size_t)(rows * k) * sizeof *index);
    out(t.real, 2, DIMS(rows, n), NULL);
    run_case();
    for (int64_t i = 0; i < rows * k; i++) dx[i / k * n + (int64_t)index[i]] = dy[i];
    expect(0, dx, 0);
    end_case();
    free(values), free(index), free(dx);
}

static void topk_takes_the_largest_first(void)
{
    topk_case(3, 8, 2, false);
    topk_case(1, 1, 1, false);
    topk_case(5, 7, 7, false);
    topk_case(0, 8, 2, false);
    topk_case(7, 64, 8, true);
    topk_case(1009, 5, 1, true);
    topk_case(130, 129, 3, false);
}

/* ---- groups ---- */

typedef struct routes {
    int64_t rows, k, experts, capacity;
    double *ids, *order, *place, *offsets, *counts;
} routes;

typedef enum spread { EVEN, ALL_TO_ONE, SOME_UNUSED } spread;

/* Experts of each row, all different unless all go to one; and where a stable sort puts them. */
static routes make_routes(int64_t rows, int64_t k, int64_t experts, int64_t capacity, spread how)
{
    int64_t n = rows * k, at = 0;
    routes  r = {.rows = rows, .k = k, .experts = experts, .capacity = capacity};
    r.ids = zeros(n), r.order = zeros(n), r.place = zeros(n), r.offsets = zeros(experts + 1), r.counts = zeros(experts);
    for (int64_t i = 0; i < rows; i++) {
        int64_t first = (int64_t)(uniform(0, 0.999) * (double)experts);
        for (int64_t j = 0; j < k; j++)
            r.ids[i * k + j] = how == ALL_TO_ONE    ? (double)(experts / 2)
                               : how == SOME_UNUSED ? (double)((first + j) % experts / 3 * 3)
                                                    : (double)((first + j) % experts);
    }
    for (int64_t i = 0; i < n; i++) r.place[i] = r.order[i] = -1;
    for (int64_t e = 0; e < experts; e++) {
        r.offsets[e] = (double)at;
        for (int64_t i = 0; i < n; i++) {
            if (r.ids[i] != (double)e) continue;
            if (r.counts[e]++ < (double)(capacity ? capacity : n)) {
                r.place[i] = (double)at;
                r.order[at++] = (double)i;
            }
        }
    }
    r.offsets[experts] = (double)at;
    return r;
}

static void free_routes(routes *r) { free(r->ids), free(r->order), free(r->place), free(r->offsets), free(r->counts); }

static void input_of(lk_dtype type, int rank, const int64_t *dims, const double *values)
{
    double *x = in(type, rank, dims);
    memcpy(x, values, (size_t)lk__operand_elements(&t.in[t.inputs - 1]) * sizeof *x);
}

static void group_case(const routes *r, bool counts)
{
    begin(LK__OP_group_rows);
    t.attrs.experts = r->experts;
    t.attrs.capacity = r->capacity;
    input_of(LK_I32, 2, DIMS(r->rows, r->k), r->ids);
    out(LK_I32, 1, DIMS(r->rows * r->k), NULL);
    out(LK_I32, 2, DIMS(r->rows, r->k), NULL);
    out(LK_I32, 1, DIMS(r->experts + 1), NULL);
    if (counts)
        out(LK_F64, 1, DIMS(r->experts), NULL);
    else
        no_out();
    run_case();
    expect(0, r->order, 0);
    expect(1, r->place, 0);
    expect(2, r->offsets, 0);
    if (counts) expect(3, r->counts, 0);
    expect_invalid(-1, 0, 0, 0);
    end_case();
}

static void ids_out_of_range_are_nowhere(void)
{
    static const double ids[] = {1, -1, 0, 2, 3, 1}, order[] = {2, 0, 5, 3, -1, -1}, place[] = {1, -1, 0, 3, -1, 2};
    static const double offsets[] = {0, 1, 3, 4};
    begin(LK__OP_group_rows);
    t.attrs.experts = 3;
    input_of(LK_I32, 2, DIMS(3, 2), ids);
    out(LK_I32, 1, DIMS(6), NULL);
    out(LK_I32, 2, DIMS(3, 2), NULL);
    out(LK_I32, 1, DIMS(4), NULL);
    run_case();
    expect(0, order, 0);
    expect(1, place, 0);
    expect(2, offsets, 0);
    expect_invalid(1, 0, -1, 3);
    end_case();
}

/* Three ranks with two experts each send to rank 1: by expert 2, 0 and 3 rows, then 1, 0 and 0. */
static void rows_of_ranks_are_ordered_by_expert(void)
{
    static const double all[] = {0, 1, 1, 3, 4, 9, 9, 0, 0, 0, 0, 0, 5, 5, 0, 0, 2, 5, 5, 5, 6};
    static const double offsets[] = {0, 5, 6}, order[] = {0, 1, 3, 4, 5, 2, -1, -1},
                        place[] = {0, 1, 5, 2, 3, 4, -1, -1};
    begin(LK__OP_route_rows);
    t.attrs.start = 1;
    input_of(LK_I32, 2, DIMS(3, 7), all);
    out(LK_I32, 1, DIMS(3), NULL);
    out(LK_I32, 1, DIMS(8), NULL);
    out(LK_I32, 2, DIMS(8, 1), NULL);
    run_case();
    expect(0, offsets, 0);
    expect(1, order, 0);
    expect(2, place, 0);
    end_case();
}

/* ---- rows ---- */

static void gather_case(const routes *r, int64_t width, bool weighted)
{
    int64_t n = r->rows * r->k;
    double *want = zeros(n * width);
    begin(LK__OP_gather_rows);
    in(t.real, 2, DIMS(r->rows, width));
    input_of(LK_I32, 1, DIMS(n), r->order);
    input_of(LK_I32, 2, DIMS(r->rows, r->k), r->place);
    if (weighted) in(t.real, 2, DIMS(r->rows, r->k));
    out(t.real, 2, DIMS(n, width), NULL);
    run_case();
    for (int64_t i = 0; i < n * width; i++) {
        int64_t from = (int64_t)r->order[i / width];
        if (from >= 0) want[i] = t.x[0][from / r->k * width + i % width] * (weighted ? t.x[3][from] : 1);
    }
    expect(0, want, 1e-6);
    end_case();
    free(want);
}

static void combine_case(const routes *r, int64_t width, bool weighted)
{
    int64_t n = r->rows * r->k;
    double *want = zeros(r->rows * width), *size = zeros(r->rows * width);
    begin(LK__OP_combine_rows);
    in(t.real, 2, DIMS(n, width));
    input_of(LK_I32, 1, DIMS(n), r->order);
    input_of(LK_I32, 2, DIMS(r->rows, r->k), r->place);
    if (weighted) in(t.real, 2, DIMS(r->rows, r->k));
    out(t.real, 2, DIMS(r->rows, width), NULL);
    t.terms = 4;
    run_case();
    for (int64_t i = 0; i < n * width; i++) {
        int64_t assignment = i / width, from = (int64_t)r->place[assignment],
                to = assignment / r->k * width + i % width;
        double term = from < 0 ? 0 : t.x[0][from * width + i % width] * (weighted ? t.x[3][assignment] : 1);
        want[to] += term;
        size[to] += fabs(term);
    }
    expect_within(0, want, size, 2 + (double)r->k);
    end_case();
    free(want), free(size);
}

static void combine_weight_case(const routes *r, int64_t width)
{
    int64_t n = r->rows * r->k;
    double *want = zeros(n), *size = zeros(n);
    begin(LK__OP_combine_rows_grad_weight);
    in(t.real, 2, DIMS(r->rows, width));
    in(t.real, 2, DIMS(n, width));
    input_of(LK_I32, 2, DIMS(r->rows, r->k), r->place);
    out(t.real, 2, DIMS(r->rows, r->k), NULL);
    t.terms = 4 * (double)width;
    run_case();
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width && r->place[i] >= 0; c++) {
            double term = t.x[0][i / r->k * width + c] * t.x[1][(int64_t)r->place[i] * width + c];
            want[i] += term;
            size[i] += fabs(term);
        }
    expect_within(0, want, size, 4 + sqrt((double)width));
    end_case();
    free(want), free(size);
}

/* ---- products ---- */

static void grouped_linear_case(const routes *r, int64_t inputs, int64_t outputs, bool transposed)
{
    int64_t n = r->rows * r->k;
    double *want = zeros(n * outputs), *size = zeros(n * outputs);
    begin(LK__OP_grouped_linear);
    t.attrs.transposed = transposed;
    in(t.real, 2, DIMS(n, inputs));
    in(t.real, 3, transposed ? DIMS(r->experts, inputs, outputs) : DIMS(r->experts, outputs, inputs));
    input_of(LK_I32, 1, DIMS(r->experts + 1), r->offsets);
    out(t.real, 2, DIMS(n, outputs), NULL);
    t.terms = 4 * (double)inputs;
    run_case();
    for (int64_t e = 0; e < r->experts; e++)
        for (int64_t i = (int64_t)r->offsets[e]; i < (int64_t)r->offsets[e + 1]; i++)
            for (int64_t j = 0; j < outputs; j++)
                for (int64_t c = 0; c < inputs; c++) {
                    int64_t at = e * inputs * outputs + (transposed ? c * outputs + j : j * inputs + c);
                    double  term = t.x[0][i * inputs + c] * t.x[1][at];
                    want[i * outputs + j] += term;
                    size[i * outputs + j] += fabs(term);
                }
    expect_within(0, want, size, 4 + (double)inputs);
    end_case();
    free(want), free(size);
}

static void grouped_weight_case(const routes *r, int64_t inputs, int64_t outputs, bool transposed)
{
    int64_t n = r->rows * r->k, each = inputs * outputs;
    double *want = zeros(r->experts * each), *size = zeros(r->experts * each);
    begin(LK__OP_grouped_linear_grad_weight);
    t.attrs.transposed = transposed;
    in(t.real, 2, DIMS(n, inputs));
    in(t.real, 2, DIMS(n, outputs));
    input_of(LK_I32, 1, DIMS(r->experts + 1), r->offsets);
    out(t.wide, 3, transposed ? DIMS(r->experts, inputs, outputs) : DIMS(r->experts, outputs, inputs), NULL);
    t.terms = 4 * (double)n;
    run_case();
    for (int64_t e = 0; e < r->experts; e++)
        for (int64_t i = (int64_t)r->offsets[e]; i < (int64_t)r->offsets[e + 1]; i++)
            for (int64_t j = 0; j < outputs; j++)
                for (int64_t c = 0; c < inputs; c++) {
                    int64_t at = e * each + (transposed ? c * outputs + j : j * inputs + c);
                    double  term = t.x[0][i * inputs + c] * t.x[1][i * outputs + j];
                    want[at] += term;
                    size[at] += fabs(term);
                }
    expect_within(0, want, size, 4 + (double)n);
    end_case();
    free(want), free(size);
}

static void operations_of_routes(int64_t rows, int64_t k, int64_t experts, int64_t capacity, spread how)
{
    static const int64_t widths[][2] = {{5, 3}, {16, 24}, {33, 17}, {1, 1}};
    routes               r = make_routes(rows, k, experts, capacity, how);
    int64_t              inputs = widths[(rows + k + experts) % 4][0], outputs = widths[(rows + k + experts) % 4][1];
    group_case(&r, true);
    group_case(&r, false);
    for (int weighted = 0; weighted < 2; weighted++) {
        gather_case(&r, inputs, weighted);
        combine_case(&r, inputs, weighted);
        grouped_linear_case(&r, inputs, outputs, weighted);
        grouped_weight_case(&r, inputs, outputs, weighted);
    }
    combine_weight_case(&r, inputs);
    free_routes(&r);
}

static void rows_go_to_their_experts_and_back(void)
{
    operations_of_routes(6, 2, 4, 0, EVEN);
    operations_of_routes(7, 2, 4, 0, ALL_TO_ONE);
    operations_of_routes(13, 3, 8, 0, SOME_UNUSED);
    operations_of_routes(12, 2, 3, 5, EVEN);
    operations_of_routes(5, 1, 1, 2, EVEN);
    operations_of_routes(1, 1, 5, 0, EVEN);
    operations_of_routes(0, 2, 4, 0, EVEN);
    operations_of_routes(301, 2, 7, 0, EVEN);
    operations_of_routes(300, 4, 64, 0, SOME_UNUSED);
}

/* Large enough for every way in which products are computed, and for several tiles of one expert on a GPU. */
static void products_of_many_rows(void)
{
    routes r = make_routes(kernel_device ? 100 : 400, 2, 3, 0, SOME_UNUSED);
    grouped_linear_case(&r, 72, 100, false);
    grouped_linear_case(&r, 100, 72, true);
    grouped_weight_case(&r, 72, 100, false);
    free_routes(&r);
}

/* Lines of 16 bytes and more than one tile in each direction: bf16 on tensor cores. */
static void products_of_packs(void)
{
    static const spread all[] = {EVEN, ALL_TO_ONE, SOME_UNUSED};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        routes r = make_routes(150, 2, 4, i == 0 ? 70 : 0, all[i]);
        grouped_linear_case(&r, 72, 136, false);
        grouped_linear_case(&r, 200, 264, true);
        grouped_weight_case(&r, 264, 72, false);
        grouped_weight_case(&r, 136, 200, true);
        free_routes(&r);
    }
}

/* The product of 201 rows with one weight, which four experts have. */
static void equal_experts_case(int64_t inputs, int64_t outputs, bool transposed, const double *offsets, double *made)
{
    enum { ROWS = 201, EXPERTS = 4 };
    begin(LK__OP_grouped_linear);
    t.attrs.transposed = transposed;
    double *x = in(t.real, 2, DIMS(ROWS, inputs));
    double *w = in(t.real, 3, transposed ? DIMS(EXPERTS, inputs, outputs) : DIMS(EXPERTS, outputs, inputs));
    input_of(LK_I32, 1, DIMS(EXPERTS + 1), offsets);
    out(t.real, 2, DIMS(ROWS, outputs), NULL);
    for (int64_t i = 0; i < ROWS * inputs; i++) x[i] = sin(0.7 + (double)(i * i % 1013));
    for (int64_t i = 0; i < EXPERTS * inputs * outputs; i++) w[i] = cos((double)(i % (inputs * outputs) % 997));
    t.terms = 4 * (double)inputs;
    run_case();
    memcpy(made, t.y[0], (size_t)(ROWS * outputs) * sizeof *made);
    if (t.skipped) memset(made, 0, (size_t)(ROWS * outputs) * sizeof *made);
    end_case();
}

/* Which way a product is computed follows from the number of rows, and must not be seen: ranks have other numbers. */
static void a_row_does_not_depend_on_the_rows_of_its_expert(void)
{
    static const double  all[] = {0, 201, 201, 201, 201}, some[] = {0, 3, 50, 98, 201}, few[] = {0, 1, 8, 56, 201};
    static const int64_t widths[][2] = {{72, 200}, {300, 193}, {64, 17}};
    for (int i = 0; i < 6 && !kernel_device; i++) {
        int64_t inputs = widths[i / 2][0], outputs = widths[i / 2][1];
        size_t  bytes = (size_t)(201 * outputs) * sizeof(double);
        double *one = zeros(201 * outputs), *parts = zeros(201 * outputs);
        equal_experts_case(inputs, outputs, i % 2, all, one);
        equal_experts_case(inputs, outputs, i % 2, some, parts);
        if (memcmp(one, parts, bytes) != 0) fail_case("a row depends on the number of rows");
        equal_experts_case(inputs, outputs, i % 2, few, parts);
        if (memcmp(one, parts, bytes) != 0) fail_case("a row depends on a few others");
        free(one), free(parts);
    }
}

static void tests(void)
{
    a_row_does_not_depend_on_the_rows_of_its_expert();
    topk_takes_the_largest_first();
    ids_out_of_range_are_nowhere();
    rows_of_ranks_are_ordered_by_expert();
    rows_go_to_their_experts_and_back();
    products_of_many_rows();
    products_of_packs();
}

int main(void) { return run_types(tests, LK_BF16); }
