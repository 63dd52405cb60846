/* test_kernels_sum_parts.c - products whose summed factor consists of parts (base/sum_parts.h): the result of the whole
 * has the bits of its parts, each computed alone by the same kernel without parts and added in the pairwise tree; and
 * the results of 2, 4 and 8 ranks, added in the tree, have those bits, too. They are also compared with sums in double.
 *
 * ctest: timeout 300, label threaded */
#include "check.h"

#include "base/bf16.h"
#include "base/dtype.h"
#include "device/sum_parts.h"

#include "tested_isas.h"

#include <math.h>

enum { GUARD = 256, SLICES = LK__SUM_SEGMENTS * LK__SUM_PARTS };

static lk_context *contexts[2]; /* of one thread and of three */

/* What is cut: dimension `dim` of an operand; -1: nothing. In memory the dimensions may be in another order. */
typedef struct tested {
    lk__op       op;
    lk__op_attrs attrs;
    int          inputs;
    int          rank[4], dim[4];
    int64_t      in[4][4];
    bool         image[4], indices[4]; /* images have their channels last; i32 from 0 to `rows` */
    int          out_rank;
    int64_t      out[4];
    int64_t      rows; /* of indices: what the last one is */
    bool         bias; /* input 2 is added after the sum */
    bool         deep; /* without parts it may be computed as one long sum: its parts alone have other bits */
} tested;

static size_t bytes_of(const lk__kernel_operand *x)
{
    return (size_t)lk__operand_elements(x) * lk_dtype_size(x->dtype);
}

static void *guarded(size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    REQUIRE(p);
    memset(p, 0xA5, bytes + GUARD);
    return p;
}

static bool is_intact(const void *memory, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (((const unsigned char *)memory)[bytes + (size_t)i] != 0xA5) return false;
    return true;
}

static uint32_t state = 1;
static double   next_number(void)
{
    state = state * 1664525u + 1013904223u;
    return ((double)(state >> 8) / (1 << 24) - 0.5) * (state & 64 ? 3 : 0.01);
}

static double number_at(const lk__kernel_operand *x, int64_t i)
{
    if (x->dtype == LK_F64) return ((const double *)x->data)[i];
    return x->dtype == LK_F32 ? (double)((const float *)x->data)[i]
                              : (double)lk__load_bf16(((const uint16_t *)x->data)[i]);
}

static void fill(lk__kernel_operand *x)
{
    for (int64_t i = 0; i < lk__operand_elements(x); i++) {
        double v = next_number();
        if (x->dtype == LK_F64)
            ((double *)x->data)[i] = v;
        else if (x->dtype == LK_F32)
            ((float *)x->data)[i] = (float)v;
        else
            ((uint16_t *)x->data)[i] = lk__store_bf16((float)v);
    }
}

static lk__kernel_operand make_operand(lk_dtype type, int rank, const int64_t *dims)
{
    lk__kernel_operand x = {.dtype = type, .rank = rank};
    memcpy(x.dims, dims, (size_t)rank * sizeof *dims);
    x.data = guarded(bytes_of(&x));
    return x;
}

static lk_dtype wide_type(lk_dtype real) { return real == LK_F64 ? LK_F64 : LK_F32; }

/* Expert e has the rows from offsets[e] on; some have none. */
static void fill_offsets(const tested *t, lk__kernel_operand *x)
{
    int32_t *offsets = x->data;
    int64_t  last = x->dims[0] - 1;
    for (int64_t i = 0; i <= last; i++) offsets[i] = (int32_t)(i == 1 ? 0 : t->rows * i / last);
}

static lk__kernel_call make_call(const tested *t, lk_dtype real)
{
    lk__kernel_call call = {.attrs = &t->attrs, .inputs = t->inputs, .outputs = 1};
    for (int i = 0; i < t->inputs; i++) {
        call.in[i] = make_operand(t->indices[i] ? LK_I32 : real, t->rank[i], t->in[i]);
        if (t->indices[i])
            fill_offsets(t, &call.in[i]);
        else
            fill(&call.in[i]);
    }
    return call;
}

/* Elements of the dimension, which are taken one after the other. */
typedef struct slices {
    int     count;
    int64_t begin[SLICES], length[SLICES];
} slices;

static int64_t length_of(const slices *s)
{
    int64_t length = 0;
    for (int i = 0; i < s->count; i++) length += s->length[i];
    return length;
}

/* Of the dimensions in memory order. */
static lk__kernel_operand take_slices(const lk__kernel_operand *x, int dim, bool image, const slices *s)
{
    lk__kernel_operand y = *x;
    int64_t            outer = 1, inner = 1, extent = x->dims[dim], to = 0;
    size_t             size = lk_dtype_size(x->dtype);
    y.dims[dim] = length_of(s);
    y.data = guarded(bytes_of(&y));
    for (int i = 0; i < x->rank; i++) {
        bool before = image && dim == 1 ? i != 1 : i < dim;
        if (i != dim) *(before ? &outer : &inner) *= x->dims[i];
    }
    for (int64_t o = 0; o < outer; o++)
        for (int k = 0; k < s->count; k++) {
            memcpy((char *)y.data + (size_t)to * size,
                   (const char *)x->data + (size_t)((o * extent + s->begin[k]) * inner) * size,
                   (size_t)(s->length[k] * inner) * size);
            to += s->length[k] * inner;
        }
    return y;
}

static void free_call(lk__kernel_call *call)
{
    for (int i = 0; i < call->inputs; i++) free(call->in[i].data);
    free(call->out[0].data);
}

/* Runs it with every number of threads, which gives the same bits. */
static void run_call(const tested *t, lk__kernel_call *call, lk_dtype real, lk_dtype type, const char *isa)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(real, isa, t->op);
    void                   *first = NULL;
    for (int threads = 0; threads < 2; threads++) {
        call->out[0] = make_operand(type, t->out_rank, t->out);
        call->pool = lk__context_pool(contexts[threads]);
        size_t bytes = entry->workspace ? entry->workspace(call, lk__pool_threads(call->pool)) : 0;
        call->workspace = guarded(bytes);
        entry->run(call);
        CHECK(is_intact(call->workspace, bytes), "%s %s: past its workspace", lk__op_name(t->op), isa);
        CHECK(is_intact(call->out[0].data, bytes_of(&call->out[0])), "%s %s: past its output", lk__op_name(t->op), isa);
        free(call->workspace);
        if (threads == 0)
            first = call->out[0].data;
        else {
            CHECK(memcmp(first, call->out[0].data, bytes_of(&call->out[0])) == 0, "%s %s: threads change bits",
                  lk__op_name(t->op), isa);
            free(first);
        }
    }
}

/* Of some elements of the summed factor; with `parts`, as a rank that has `first` of the whole. Wide results. */
static lk__kernel_operand run_slices(const tested *t, const lk__kernel_call *whole, const slices *s, bool parts,
                                     int64_t first, lk_dtype real, const char *isa)
{
    lk__kernel_call call = *whole;
    lk__op_attrs    attrs = t->attrs;
    lk__op_part     part[4] = {{0}};
    if (!parts) attrs.sum = (lk__op_summation){0};
    call.attrs = &attrs;
    for (int i = 0; i < t->inputs; i++) {
        slices all = {1, {0}, {t->dim[i] < 0 ? t->in[i][0] : t->in[i][t->dim[i]]}};
        int    dim = t->dim[i] < 0 ? 0 : t->dim[i];
        call.in[i] = take_slices(&whole->in[i], dim, t->image[i], t->dim[i] < 0 ? &all : s);
        if (!parts || t->dim[i] < 0) continue;
        part[i].rank = t->rank[i];
        memcpy(part[i].whole, t->in[i], sizeof t->in[i]);
        part[i].first[t->dim[i]] = first;
        call.in[i].part = &part[i];
    }
    if (t->bias) free(call.in[2].data), call.in[2].data = NULL;
    run_call(t, &call, real, wide_type(real), isa);
    lk__kernel_operand made = call.out[0];
    call.out[0].data = NULL;
    free_call(&call);
    return made;
}

static void add_operand(lk__kernel_operand *to, lk__kernel_operand *more)
{
    for (int64_t i = 0; i < lk__operand_elements(to); i++) {
        if (to->dtype == LK_F64)
            ((double *)to->data)[i] += ((double *)more->data)[i];
        else
            ((float *)to->data)[i] += ((float *)more->data)[i];
    }
    free(more->data);
}

static lk__kernel_operand add_in_tree(lk__kernel_operand *made, int count)
{
    lk__kernel_operand stack[8];
    int                depth = 0;
    for (int i = 0; i < count; i++) {
        stack[depth++] = made[i];
        for (int merges = lk__tree_merges(i, count); merges > 0; merges--, depth--)
            add_operand(&stack[depth - 2], &stack[depth - 1]);
    }
    return stack[0];
}

static void expect_same(const tested *t, const lk__kernel_operand *a, const lk__kernel_operand *b, const char *what,
                        lk_dtype real, const char *isa)
{
    size_t size = lk_dtype_size(a->dtype);
    for (int64_t i = 0; i < lk__operand_elements(a); i++)
        if (memcmp((char *)a->data + (size_t)i * size, (char *)b->data + (size_t)i * size, size) != 0) {
            CHECK(false, "%s %s %s, %lld parts, output (%lld, %lld): %s: element %lld is %.17g, not %.17g",
                  lk__op_name(t->op), lk_dtype_name(real), isa, (long long)t->attrs.sum.parts, (long long)t->out[0],
                  (long long)t->out[1], what, (long long)i, number_at(a, i), number_at(b, i));
            return;
        }
}

static int64_t summed_extent(const tested *t)
{
    int i = 0;
    while (t->dim[i] < 0) i++;
    return t->in[i][t->dim[i]];
}

/* The definition: each part by itself, without parts. */
static lk__kernel_operand run_parts_alone(const tested *t, const lk__kernel_call *whole, lk_dtype real, const char *isa)
{
    lk__kernel_operand made[LK__SUM_PARTS];
    lk__sum_parts      parts;
    int64_t            extent = summed_extent(t);
    REQUIRE(lk__sum_parts_of(&t->attrs.sum, extent, 0, extent, &parts) && parts.count == t->attrs.sum.parts);
    for (int i = 0; i < parts.count; i++) {
        slices s = {.count = parts.segments};
        for (int k = 0; k < parts.segments; k++) {
            s.begin[k] = parts.begin[k][i];
            s.length[k] = parts.begin[k][i + 1] - s.begin[k];
        }
        made[i] = run_slices(t, whole, &s, false, 0, real, isa);
    }
    return add_in_tree(made, parts.count);
}

/* A rank has an equal share of each segment. */
static lk__kernel_operand run_ranks(const tested *t, const lk__kernel_call *whole, int ranks, lk_dtype real,
                                    const char *isa)
{
    lk__kernel_operand made[LK__SUM_PARTS];
    int64_t            only[LK__SUM_SEGMENTS] = {summed_extent(t)};
    const int64_t     *segment = t->attrs.sum.segment[0] ? t->attrs.sum.segment : only;
    for (int rank = 0; rank < ranks; rank++) {
        slices  s = {0};
        int64_t at = 0;
        for (int k = 0; k < LK__SUM_SEGMENTS && segment[k]; at += segment[k++]) {
            s.begin[k] = at + segment[k] / ranks * rank;
            s.length[k] = segment[k] / ranks;
            s.count++;
        }
        made[rank] = run_slices(t, whole, &s, true, segment[0] / ranks * rank, real, isa);
    }
    return add_in_tree(made, ranks);
}

static lk__kernel_operand run_whole(const tested *t, const lk__kernel_call *whole, lk_dtype type, lk_dtype real,
                                    const char *isa, bool bias)
{
    lk__kernel_call call = *whole;
    if (!bias && t->bias) call.in[2].data = NULL;
    run_call(t, &call, real, type, isa);
    return call.out[0];
}

/* Rounded once, after the bias and the function. */
static void check_narrow(const tested *t, const lk__kernel_call *whole, const char *isa)
{
    lk__kernel_operand wide = run_whole(t, whole, LK_F32, LK_BF16, isa, true);
    lk__kernel_operand narrow = run_whole(t, whole, LK_BF16, LK_BF16, isa, true), rounded = narrow;
    rounded.data = guarded(bytes_of(&narrow));
    for (int64_t i = 0; i < lk__operand_elements(&wide); i++)
        ((uint16_t *)rounded.data)[i] = lk__store_bf16(((float *)wide.data)[i]);
    expect_same(t, &narrow, &rounded, "rounded", LK_BF16, isa);
    free(wide.data), free(narrow.data), free(rounded.data);
}

/* Without parts, of the same numbers. */
static lk__kernel_operand run_in_double(const tested *t, const lk__kernel_call *whole, const char *isa)
{
    lk__kernel_call call = *whole;
    slices          all = {1, {0}, {summed_extent(t)}};
    for (int i = 0; i < t->inputs; i++) {
        if (t->indices[i]) continue;
        call.in[i] = make_operand(LK_F64, t->rank[i], t->in[i]);
        for (int64_t k = 0; k < lk__operand_elements(&call.in[i]); k++)
            ((double *)call.in[i].data)[k] = number_at(&whole->in[i], k);
    }
    lk__kernel_operand made = run_slices(t, &call, &all, false, 0, LK_F64, isa);
    for (int i = 0; i < t->inputs; i++)
        if (!t->indices[i]) free(call.in[i].data);
    return made;
}

static void check_type(const tested *t, lk_dtype real, const char *isa)
{
    lk__kernel_call    whole = make_call(t, real);
    lk__kernel_operand made = run_whole(t, &whole, wide_type(real), real, isa, false);
    lk__kernel_operand alone = run_parts_alone(t, &whole, real, isa), plain = run_in_double(t, &whole, isa);
    if (!t->deep) expect_same(t, &made, &alone, "parts alone", real, isa);
    for (int ranks = 2; ranks <= t->attrs.sum.parts; ranks *= 2) {
        if (!lk__sum_parts_nest(&t->attrs.sum, summed_extent(t), ranks)) continue;
        lk__kernel_operand of_ranks = run_ranks(t, &whole, ranks, real, isa);
        expect_same(t, &made, &of_ranks,
                    ranks == 2   ? "two ranks"
                    : ranks == 4 ? "four ranks"
                                 : "eight ranks",
                    real, isa);
        free(of_ranks.data);
    }
    double worst = 0, tolerance = real == LK_F64 ? 1e-12 : 2e-4;
    for (int64_t i = 0; i < lk__operand_elements(&made); i++)
        worst = fmax(worst, fabs(number_at(&made, i) - number_at(&plain, i)) / (1 + fabs(number_at(&plain, i))));
    CHECK(worst < tolerance, "%s %s %s: %g from the sum in double", lk__op_name(t->op), lk_dtype_name(real), isa,
          worst);
    if (real == LK_BF16) check_narrow(t, &whole, isa);
    free(made.data), free(alone.data), free(plain.data);
    whole.out[0].data = NULL;
    free_call(&whole);
}

static void check_tested(const tested *t)
{
    for (const char *const *isa = tested_isas(); *isa; isa++)
        for (int type = (int)first_tested_type(*isa); type <= LK_BF16 && lk__isa_available(*isa); type++)
            if (lk__cpu_kernel((lk_dtype)type, *isa, t->op)) check_type(t, (lk_dtype)type, *isa);
}

/* ---- products ---- */

static void check_linear(int64_t rows, int64_t inputs, int64_t outputs, bool transposed, lk__op_summation sum)
{
    tested t = {.op = LK__OP_linear, .attrs = {.transposed = transposed, .sum = sum}, .inputs = 3, .bias = true};
    t.rank[0] = t.rank[1] = t.out_rank = 2;
    t.rank[2] = 1;
    t.in[0][0] = t.out[0] = rows;
    t.in[0][1] = t.in[1][!transposed] = inputs;
    t.in[1][transposed] = t.out[1] = t.in[2][0] = outputs;
    t.dim[0] = 1, t.dim[1] = !transposed, t.dim[2] = -1;
    check_tested(&t);
}

static void check_grad_input(int64_t rows, int64_t outputs, int64_t inputs, bool transposed, lk__op_summation sum)
{
    tested t = {.op = LK__OP_linear_grad_input, .attrs = {.transposed = transposed, .sum = sum}, .inputs = 2};
    t.rank[0] = t.rank[1] = t.out_rank = 2;
    t.in[0][0] = t.out[0] = rows;
    t.in[0][1] = t.in[1][transposed] = outputs;
    t.in[1][!transposed] = t.out[1] = inputs;
    t.dim[0] = 1, t.dim[1] = transposed;
    check_tested(&t);
}

static void linear_layers_and_their_gradients(void)
{
    static const int64_t rows[] = {1, 3, 7, 33, 200}, widths[] = {1, 5, 24, 50, 210};
    for (int i = 0; i < 5; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            check_linear(rows[i], 64, widths[4 - i], transposed, (lk__op_summation){.parts = 8});
            check_linear(rows[i], 40, widths[i], transposed, (lk__op_summation){.parts = 4, .unit = 5});
            check_grad_input(rows[i], 72, widths[i], transposed, (lk__op_summation){.parts = 8, .unit = 6});
            check_grad_input(rows[i], 96, widths[4 - i], transposed,
                             (lk__op_summation){.parts = 8, .segment = {64, 16, 16}});
        }
}

/* Parts of several blocks, chunks of several parts, and slabs of which partial results are in memory. */
static void long_sums(void)
{
    check_linear(40, 384, 50, false, (lk__op_summation){.parts = 4});
    check_linear(40, 1536, 50, true, (lk__op_summation){.parts = 8});
    check_linear(9, 2400, 30, false, (lk__op_summation){.parts = 8, .unit = 3});
    check_linear(9, 1232, 30, true, (lk__op_summation){.parts = 2});
    check_grad_input(30, 1152, 48, false, (lk__op_summation){.parts = 8, .unit = 16, .segment = {384, 384, 384}});
    check_grad_input(5, 4320, 20, true, (lk__op_summation){.parts = 4, .segment = {1440, 1440, 1440}});
    check_linear(SANITIZED ? 60 : 300, 600, 1100, false, (lk__op_summation){.parts = 8});
}

static void check_matmul(int64_t batch, bool left, bool right, bool sum, int transposed, int64_t k)
{
    int64_t m = 9, n = 14;
    bool    ta = transposed & 1, tb = transposed >> 1;
    tested t = {.op = LK__OP_matmul, .attrs = {.transpose_a = ta, .transpose_b = tb, .sum = {.parts = 8}}, .inputs = 2};
    t.attrs.sum_batch = sum;
    t.deep = sum;
    t.rank[0] = 2 + left, t.rank[1] = 2 + right;
    t.out_rank = (left || right) && !sum ? 3 : 2;
    t.in[0][0] = t.in[1][0] = t.out[0] = batch;
    t.in[0][left + ta] = t.out[t.out_rank - 2] = m;
    t.in[0][left + !ta] = t.in[1][right + tb] = k;
    t.in[1][right + !tb] = t.out[t.out_rank - 1] = n;
    t.dim[0] = left + !ta, t.dim[1] = right + tb;
    check_tested(&t);
}

static void matrix_products(void)
{
    for (int transposed = 0; transposed < 4; transposed++) {
        check_matmul(1, false, false, false, transposed, 48);
        check_matmul(3, true, true, false, transposed, 40);
        check_matmul(3, true, false, false, transposed, 56);
        check_matmul(2, false, true, false, transposed, 56);
        check_matmul(3, true, true, true, transposed, 48);
        check_matmul(4, true, true, true, transposed, 640);
        check_matmul(2, true, false, true, transposed, 64);
    }
}

static void products_of_experts(void)
{
    for (int transposed = 0; transposed < 2; transposed++) {
        tested t = {.op = LK__OP_grouped_linear, .attrs = {.transposed = transposed, .sum = {.parts = 8}}, .inputs = 3};
        t.rank[0] = t.out_rank = 2, t.rank[1] = 3, t.rank[2] = 1;
        t.in[0][0] = t.out[0] = t.rows = 37;
        t.in[0][1] = t.in[1][2 - transposed] = 80;
        t.in[1][0] = 5, t.in[2][0] = 6;
        t.in[1][1 + transposed] = t.out[1] = 22;
        t.dim[0] = 1, t.dim[1] = 2 - transposed, t.dim[2] = -1;
        t.indices[2] = true;
        check_tested(&t);
    }
}

int main(void)
{
    for (int i = 0; i < 2; i++)
        REQUIRE(lk_context_create(&(lk_context_config){.size = sizeof(lk_context_config), .threads = i ? 3 : 1},
                                  &contexts[i]) == LK_OK);
    RUN(linear_layers_and_their_gradients);
    RUN(long_sums);
    RUN(matrix_products);
    RUN(products_of_experts);
    for (int i = 0; i < 2; i++) lk_context_free(contexts[i]);
    return check_result();
}
