/* test_kernels_gemm.c - linear and matmul kernels, and their gradients, at awkward shapes and with few rows.
 *
 * ctest: timeout 300, label threaded */
#include "kernel_values.h"

/* transposed: the weight is (in, out). */
static void check_layout(int64_t rows, int64_t inputs, int64_t outputs, bool bias, bool relu, bool transposed)
{
    int64_t rank3 = rows > 3 && rows % 2 == 0 ? 1 : 0; /* (…, I): sometimes two leading axes */
    int64_t xd[] = {rank3 ? rows / 2 : rows, rank3 ? 2 : inputs, inputs}, yd[] = {xd[0], rank3 ? 2 : outputs, outputs};
    int64_t wd[] = {transposed ? inputs : outputs, transposed ? outputs : inputs}, bd[] = {outputs};
    int64_t of_output = transposed ? 1 : inputs, of_input = transposed ? outputs : 1;
    int     rank = rank3 ? 3 : 2;
    values  x = make_random(rank, xd, false), w = make_random(2, wd, false), b = make_random(1, bd, false);
    values  dy = make_random(rank, yd, false), y = make_wanted(rank, yd, false), dx = make_wanted(rank, xd, false);
    values  dw = make_wanted(2, wd, false), db = make_wanted(1, bd, false);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            double g = dy.v[r * outputs + o];
            if (bias) add_product(&y, r * outputs + o, b.v[o]);
            add_product(&db, o, g);
            for (int64_t i = 0; i < inputs; i++) {
                int64_t at = o * of_output + i * of_input;
                add_product(&y, r * outputs + o, x.v[r * inputs + i] * w.v[at]);
                add_product(&dx, r * inputs + i, g * w.v[at]);
                add_product(&dw, at, g * x.v[r * inputs + i]);
            }
            if (relu && y.v[r * outputs + o] < 0) y.v[r * outputs + o] = 0;
        }
    char         name[128];
    lk__op_attrs attrs = {.activation = relu ? LK__RELU : LK__IDENTITY, .transposed = transposed};
    int64_t      extra = pick(3);
    snprintf(name, sizeof name, "linear%s %lldx%lld to %lld%s%s", transposed ? " transposed" : "", (long long)rows,
             (long long)inputs, (long long)outputs, bias ? " bias" : "", relu ? " relu" : "");
    run(&(spec){LK__OP_linear, attrs, {&x, &w, bias ? &b : NULL}, {&y, NULL}, extra, 0x101, NULL, NULL, false}, name);
    snprintf(name, sizeof name, "linear_grad_input %lldx%lld to %lld", (long long)rows, (long long)inputs,
             (long long)outputs);
    run(&(spec){LK__OP_linear_grad_input, attrs, {&dy, &w, NULL}, {&dx, NULL}, extra, 0x101, NULL, NULL, false}, name);
    snprintf(name, sizeof name, "linear_grad_weight %lldx%lld to %lld%s", (long long)rows, (long long)inputs,
             (long long)outputs, bias ? " bias" : "");
    run(
        &(spec){
            LK__OP_linear_grad_weight, attrs, {&x, &dy, NULL}, {&dw, bias ? &db : NULL}, extra, 3, NULL, NULL, false},
        name);
    values *all[] = {&x, &w, &b, &dy, &y, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_values(all[i]);
}

static void check_linear(int64_t rows, int64_t inputs, int64_t outputs, bool bias, bool relu)
{
    check_layout(rows, inputs, outputs, bias, relu, false);
    check_layout(rows, inputs, outputs, bias, relu, true);
}

static void linear_layers(void)
{
    static const int64_t sizes[] = {1, 3, 4, 5, 7, 10, 16, 17, 31, 32, 33, 64, 70, 130};
    check_linear(64, 1024, 128, true, true);
    check_linear(33, 700, 600, true, true);
    check_linear(600, 70, 600, true, false);
    check_linear(2, 4096, 40, true, true);
    check_linear(32, 64, 128, true, true);
    check_linear(32, 128, 10, true, false);
    check_linear(1, 1, 1, true, true);
    check_linear(0, 16, 8, true, true);
    for (int rows = 1; rows <= 9; rows++) check_linear(rows, 300 + rows, 130 - rows, rows % 2, rows % 3 == 0);
    for (int i = 0; i < repetitions(120); i++)
        check_linear(sizes[pick(14)], sizes[pick(14)], sizes[pick(14)], pick(2), pick(2));
}

/* left, right: whether that operand has a batch; sum: the output has none. */
static void check_matmul(int64_t batch, int64_t m, int64_t n, int64_t k, bool left, bool right, bool sum, bool ta,
                         bool tb)
{
    int64_t ad[] = {batch, ta ? k : m, ta ? m : k}, bd[] = {batch, tb ? n : k, tb ? k : n}, yd[] = {batch, m, n};
    bool    out = (left || right) && !sum;
    values  a = make_random(left ? 3 : 2, left ? ad : ad + 1, false),
           b = make_random(right ? 3 : 2, right ? bd : bd + 1, false);
    values y = make_wanted(out ? 3 : 2, out ? yd : yd + 1, false);
    for (int64_t q = 0; q < (left || right ? batch : 1); q++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t p = 0; p < k; p++)
                    add_product(&y, (out ? q * m * n : 0) + i * n + j,
                                a.v[(left ? q * m * k : 0) + (ta ? p * m + i : i * k + p)] *
                                    b.v[(right ? q * k * n : 0) + (tb ? j * k + p : p * n + j)]);
    char name[160];
    snprintf(name, sizeof name, "matmul %lld of %lldx%lldx%lld%s%s%s%s%s", (long long)batch, (long long)m, (long long)n,
             (long long)k, left ? " left" : "", right ? " right" : "", sum ? " sum" : "", ta ? " ta" : "",
             tb ? " tb" : "");
    lk__op_attrs attrs = {.transpose_a = ta, .transpose_b = tb};
    run(&(spec){LK__OP_matmul,
                attrs,
                {&a, &b, NULL},
                {&y, NULL},
                pick(3),
                (left ? 1 : 0) | (right ? 2 : 0) | (out ? 0x100 : 0),
                NULL,
                NULL,
                false},
        name);
    free_values(&a), free_values(&b), free_values(&y);
}

static void matrix_products(void)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 30, 33, 64, 100};
    for (int t = 0; t < 4; t++) {
        check_matmul(1, 260, 270, 530, false, false, false, t & 1, t >> 1);
        check_matmul(3, 64, 64, 32, true, true, false, t & 1, t >> 1);
        check_matmul(0, 4, 5, 6, true, true, true, t & 1, t >> 1);
        check_matmul(0, 4, 5, 6, true, true, false, t & 1, t >> 1);
        check_matmul(1, 4, 5, 0, true, true, false, t & 1, t >> 1);
        check_matmul(1, 300, 20, 600, false, false, false, t & 1, t >> 1);
    }
    for (int i = 0; i < repetitions(200); i++) {
        bool left = pick(2), right = pick(2);
        check_matmul(1 + pick(4), sizes[pick(11)], sizes[pick(11)], sizes[pick(11)], left, right,
                     (left || right) && pick(2), pick(2), pick(2));
    }
}

/* ---- few rows ---- */

/* The bits of one product of `rows` rows, with workspace for `capacity` of them; the caller frees them. */
static unsigned char *product_bits(const char *isa, lk_dtype real, lk__op op, const lk__op_attrs *attrs,
                                   const values *x, const values *w, const values *b, int64_t rows, int threads)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(real, isa, op);
    bool                    columns = op == LK__OP_linear ? !attrs->transposed : attrs->transpose_b;
    int64_t                 n = columns ? w->dims[0] : w->dims[1], yd[] = {rows, n};
    values                  y = make(2, yd, false);
    lk__kernel_call         call = {
                .attrs = attrs, .inputs = b ? 3 : 2, .outputs = 1, .pool = lk__context_pool(contexts[threads - 1])};
    call.in[0] = operand(x, real), call.in[1] = operand(w, real), call.out[0] = operand(&y, real);
    if (b) call.in[2] = operand(b, real);
    call.out[0].dims[0] = x->dims[0];
    size_t bytes = entry->workspace(&call, threads);
    call.in[0].dims[0] = call.out[0].dims[0] = rows;
    call.workspace = require_memory(aligned_alloc(LK__ALIGN, lk__round_up(bytes + 1, LK__ALIGN)));
    entry->run(&call);
    unsigned char *bits = call.out[0].data;
    free(call.workspace), free(call.in[0].data), free(call.in[1].data), free(call.in[2].data), free_values(&y);
    return bits;
}

/* Products with few rows have kernels of their own: a row's bits must not depend on how many others there are. */
static void check_skinny(int64_t n, int64_t k, lk__op op, lk__op_attrs attrs, bool bias)
{
    enum { MANY_ROWS = 23 };
    bool    columns = op == LK__OP_linear ? !attrs.transposed : attrs.transpose_b;
    int64_t xd[] = {MANY_ROWS, k}, wd[] = {columns ? n : k, columns ? k : n};
    values  x = make_random(2, xd, false), w = make_random(2, wd, false), b = make_random(1, &n, false);
    attrs.activation = op == LK__OP_linear ? LK__RELU : LK__IDENTITY;
    const char *const *isas = tested_isas();
    for (int i = 0; isas[i]; i++)
        for (int real = (int)first_tested_type(isas[i]); real <= LK_BF16 && lk__isa_available(isas[i]); real++) {
            const char    *isa = isas[i];
            size_t         row = (size_t)n * element((lk_dtype)real);
            unsigned char *all = product_bits(isa, (lk_dtype)real, op, &attrs, &x, &w, bias ? &b : NULL, MANY_ROWS, 1);
            for (int64_t rows = 1; rows <= 9; rows++) {
                unsigned char *few =
                    product_bits(isa, (lk_dtype)real, op, &attrs, &x, &w, bias ? &b : NULL, rows, 1 + (int)rows % 3);
                CHECK(memcmp(all, few, (size_t)rows * row) == 0,
                      "%s %s: %lld of %d rows of %s %lldx%lld%s, %lld parts, differ", isa,
                      lk_dtype_name((lk_dtype)real), (long long)rows, MANY_ROWS, lk__op_name(op), (long long)k,
                      (long long)n, columns ? " transposed" : "", (long long)attrs.sum.parts);
                free(few);
            }
            free(all);
        }
    free_values(&x), free_values(&w), free_values(&b);
}

static void a_row_does_not_depend_on_the_number_of_rows(void)
{
    static const int64_t sizes[][2] = {{1, 1},    {3, 5},    {16, 16},   {17, 33},    {31, 255},
                                       {64, 256}, {65, 257}, {300, 514}, {257, 1030}, {1031, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_skinny(sizes[i][0], sizes[i][1], LK__OP_linear, (lk__op_attrs){0}, i % 2);
        check_skinny(sizes[i][0], sizes[i][1], LK__OP_matmul, (lk__op_attrs){0}, false);
        check_skinny(sizes[i][0], sizes[i][1], LK__OP_matmul, (lk__op_attrs){.transpose_b = true}, false);
    }
}

/* Sums in parts, with whole heads, of one block and of several, and blocks that have some of each segment. */
static void nor_where_its_sums_have_parts(void)
{
    static const struct {
        int64_t          n, k;
        lk__op_summation sum;
    } all[] = {{1, 8, {.parts = 8}},
               {17, 66, {.parts = 4}},
               {300, 384, {.parts = 4, .unit = 64}},
               {33, 1536, {.parts = 8}},
               {40, 2400, {.parts = 8, .unit = 3}},
               {1100, 700, {.parts = 2}},
               {65, 96, {.parts = 8, .segment = {64, 16, 16}}},
               {48, 1152, {.parts = 8, .unit = 16, .segment = {384, 384, 384}}},
               {20, 4320, {.parts = 4, .segment = {1440, 1440, 1440}}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_skinny(all[i].n, all[i].k, LK__OP_linear, (lk__op_attrs){.sum = all[i].sum}, i % 2);
        check_skinny(all[i].n, all[i].k, LK__OP_linear, (lk__op_attrs){.sum = all[i].sum, .transposed = true}, i % 2);
    }
}

static size_t linear_workspace(const char *isa, int64_t rows, int64_t k, int64_t n, int threads)
{
    lk__op_attrs    attrs = {.activation = LK__IDENTITY};
    lk__kernel_call call = {.attrs = &attrs, .inputs = 2, .outputs = 1};
    int64_t         dims[3][2] = {{rows, k}, {n, k}, {rows, n}};
    for (int i = 0; i < 3; i++) {
        lk__kernel_operand *o = i < 2 ? &call.in[i] : &call.out[0];
        o->rank = 2;
        memcpy(o->dims, dims[i], sizeof dims[i]);
    }
    return lk__cpu_kernels(first_tested_type(isa), isa)[LK__OP_linear].workspace(&call, threads);
}

/* Workspace is planned for a whole batch; the last one of an epoch may be smaller. */
static void a_smaller_batch_needs_no_more_workspace(void)
{
    static const int64_t sizes[][2] = {{10, 100}, {192, 2048}, {384, 2048}, {500, 4096}, {768, 3072}, {4100, 300}};
    for (const char *const *isa = tested_isas(); *isa; isa++)
        for (size_t s = 0; lk__isa_available(*isa) && s < sizeof sizes / sizeof *sizes; s++) {
            size_t most = 0;
            for (int64_t rows = 1; rows <= 700; rows++) {
                size_t bytes = linear_workspace(*isa, rows, sizes[s][1], sizes[s][0], 2);
                CHECK(bytes >= most, "%s: %lld rows of %lld to %lld need %zu bytes, fewer rows %zu", *isa,
                      (long long)rows, (long long)sizes[s][1], (long long)sizes[s][0], bytes, most);
                most = bytes > most ? bytes : most;
            }
        }
}

/* On a GPU they have kernels of their own where algorithms need not be a function of the shape alone. Columns that are
 * cut into segments, more of them than a GPU has warps, and rows that are no multiple of what a warp reads at once. */
static void products_of_skinny(void)
{
    static const int64_t sizes[][2] = {{64, 256}, {40, 512}, {12, 2048}, {300, 264}, {560, 72}, {24, 8 * 331}};
    bool                 by_heuristic = kernel_device && kernel_device->by_heuristic;
    if (kernel_device) kernel_device->by_heuristic = false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t rows = 1 + (int64_t)i % 2; rows <= 8; rows = 3 * rows - 1)
            check_linear(rows, sizes[i][1], sizes[i][0], i % 2, rows % 2);
    check_linear(1, 16, 20000, true, true);
    if (kernel_device) kernel_device->by_heuristic = by_heuristic;
}

int main(void)
{
    open_contexts();
    for (int pass = first_tested_type(*tested_isas()) == LK_BF16; pass < 2; pass++) {
        narrow = pass == 1;
        draw_index = 0; /* the same cases and numbers, rounded to bf16 */
        RUN(linear_layers);
        RUN(products_of_skinny);
        RUN(matrix_products);
    }
    narrow = true; /* numbers that every type holds */
    if (kernel_device)
        printf("skipped: a row's bits may depend on the number of rows on a device\n");
    else {
        RUN(a_row_does_not_depend_on_the_number_of_rows);
        RUN(nor_where_its_sums_have_parts);
    }
    RUN(a_smaller_batch_needs_no_more_workspace);
    list_kernels_ran(__BASE_FILE__);
    list_mutants_tried(__BASE_FILE__);
    return close_contexts();
}
