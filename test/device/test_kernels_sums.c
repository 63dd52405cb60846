/* test_kernels_sums.c - sums over rows, heads and classes in parts (attrs.sum): gradients of norms' weights, sums over
 * axes, gradients of keys and values, and cross-entropy. What 2, 4 and 8 ranks have of a sum, added in the tree, has
 * the bits of the whole; and the whole is the sum without parts, up to rounding, which the other tests of kernels
 * compare with naive ones. */
#include "kernel_trees.h"

static double tolerance(void) { return t.real == LK_F64 ? 1e-12 : t.real == LK_F32 ? 2e-5 : 2e-2; }

/* Runs the case without parts and with `parts`, and compares. */
static void run_parts(int64_t parts, int64_t unit)
{
    double *plain[LK__MAX_OUT] = {0};
    t.attrs.sum = (lk__op_summation){0};
    run_case();
    for (int k = 0; k < t.outputs && !t.skipped; k++) {
        size_t n = t.y[k] ? (size_t)lk__operand_elements(&t.out[k]) : 0;
        plain[k] = malloc((n + 1) * sizeof(double));
        if (n) memcpy(plain[k], t.y[k], n * sizeof(double));
    }
    t.attrs.sum = (lk__op_summation){.parts = parts, .unit = unit};
    run_case();
    for (int k = 0; k < t.outputs && !t.skipped; k++) {
        int64_t n = t.y[k] ? lk__operand_elements(&t.out[k]) : 0;
        double  most = 1;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(plain[k][i]));
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(t.y[k][i] - plain[k][i]) <= tolerance() * most)) {
                fail_case("the sum in parts is not the sum");
                break;
            }
    }
    for (int k = 0; k < t.outputs; k++) free(plain[k]);
}

/* ---- rows ---- */

static void add_norm_operands(const int64_t *x, bool layer)
{
    int64_t rows[] = {x[0] * x[1]}, width[] = {x[2]};
    in(t.real, 3, x), in(t.real, 3, x);
    in(t.wide, 1, width);
    if (layer) in(t.wide, 1, rows);
    double *rstd = in(t.wide, 1, rows);
    for (int64_t i = 0; i < rows[0]; i++) rstd[i] = 0.5 + uniform(0, 1);
    out(t.real, 3, x, NULL);
    for (int i = 0; i <= layer; i++) out(t.wide, 1, width, NULL);
}

static void norms_over_samples_and_tokens(void)
{
    static const struct {
        int64_t x[3], parts;
        int     ranks;
    } cases[] = {{{3, 16, 5}, 8, 8},  {{1, 8, 33}, 8, 8}, {{2, 40, 17}, 4, 4},
                 {{5, 24, 64}, 8, 8}, {{70, 8, 3}, 2, 2}, {{40, 16, 48}, 8, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int layer = 0; layer < 2; layer++) {
            begin(layer ? LK__OP_layer_norm_grad : LK__OP_rms_norm_grad);
            t.attrs.axis = 1;
            t.attrs.epsilon = 1e-5;
            add_norm_operands(cases[i].x, layer);
            run_parts(cases[i].parts, 0);
            check_tree("rows1", cases[i].ranks);
            end_case();
        }
}

static void sums_over_axes(void)
{
    static const struct {
        int64_t  x[3];
        uint32_t mask;
        int64_t  parts;
    } cases[] = {{{3, 16, 5}, 3, 8},   {{1, 8, 130}, 3, 8}, {{4, 24, 64}, 2, 4},
                 {{300, 32, 7}, 3, 8}, {{6, 64, 1}, 3, 8},  {{2, 3, 400}, 6, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t y[3];
        int     rank = 0, last = 31 - __builtin_clz(cases[i].mask);
        for (int d = 0; d < 3; d++)
            if (!(cases[i].mask >> d & 1)) y[rank++] = cases[i].x[d];
        begin(LK__OP_sum);
        t.attrs.mask = cases[i].mask;
        in(t.real, 3, cases[i].x);
        out(t.real, rank, y, NULL);
        run_parts(cases[i].parts, 0);
        check_tree(last == 1 ? "d1" : "d2", (int)cases[i].parts);
        end_case();
    }
}

/* ---- heads ---- */

static void keys_of_heads(void)
{
    static const struct {
        int64_t batch, tokens, heads, kv_heads, width;
        int     ranks; /* that have whole subtrees of the heads of a group */
    } cases[] = {{2, 7, 4, 1, 3, 4}, {1, 70, 8, 2, 16, 4}, {2, 5, 8, 1, 4, 8}, {1, 9, 6, 1, 8, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t q[] = {cases[i].batch, cases[i].tokens, cases[i].heads * cases[i].width};
        int64_t k[] = {cases[i].batch, cases[i].tokens, cases[i].kv_heads * cases[i].width};
        int64_t lse[] = {cases[i].batch, cases[i].heads, cases[i].tokens}, per = cases[i].heads / cases[i].kv_heads;
        begin(LK__OP_attention_grad);
        t.attrs.heads = cases[i].heads;
        t.attrs.kv_heads = cases[i].kv_heads;
        t.attrs.scale = 0.3;
        t.attrs.causal = i % 2;
        in(t.real, 3, q), in(t.real, 3, q), in(t.real, 3, k), in(t.real, 3, k), in(t.real, 3, q);
        double *log_sums = in(t.wide, 3, lse);
        for (int64_t j = 0; j < lse[0] * lse[1] * lse[2]; j++) log_sums[j] = 3 + uniform(0, 1);
        out(t.real, 3, q, NULL), out(t.real, 3, k, NULL), out(t.real, 3, k, NULL);
        run_parts(per, 0);
        check_tree("per", cases[i].ranks);
        end_case();
    }
}

/* ---- classes ---- */

/* The kernel on classes first … first + extent of `whole`, beside its statistics unless NULL, into new memory. */
typedef struct class_part {
    lk__kernel_operand logits, labels, statistics, probabilities;
    lk__op_part        place;
    double             sums[3];
} class_part;

enum { ROWS_MOST = 64, CLASS_PARTS = 8 };

static void make_class_part(const lk__kernel_operand *logits, int rank, int ranks, class_part *p)
{
    int64_t rows = logits->dims[0], whole = logits->dims[1], each = whole / ranks;
    size_t  size = lk_dtype_size(logits->dtype);
    *p = (class_part){.logits = *logits, .labels = t.in[1], .probabilities = *logits};
    p->place = (lk__op_part){.rank = 2, .whole = {rows, whole}, .first = {0, rank * each}};
    p->logits.dims[1] = p->probabilities.dims[1] = each;
    p->logits.part = p->probabilities.part = &p->place;
    p->logits.data = part_memory((size_t)(rows * each) * size);
    p->probabilities.data = part_memory((size_t)(rows * each) * size);
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)p->logits.data + (size_t)(r * each) * size,
               (char *)logits->data + (size_t)(r * whole + rank * each) * size, (size_t)each * size);
}

static void free_class_part(class_part *p)
{
    free(p->logits.data);
    free(p->probabilities.data);
}

static void run_kernel(lk__op op, lk__kernel_call *call)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(t.real, t.isa, op);
    call->attrs = &t.attrs;
    call->step = &t.step;
    call->pool = lk__context_pool(contexts[0]);
    call->workspace = part_memory(entry->workspace ? entry->workspace(call, 1) : 0);
    entry->run(call);
    free(call->workspace);
}

/* Ranks make their records, which all have then, and compute the loss from them and from their own logits. */
static void run_class_parts(int ranks)
{
    static double records[CLASS_PARTS * ROWS_MOST * LK__CLASS_STATISTICS];
    int64_t       rows = t.in[0].dims[0], whole = t.in[0].dims[1], each = whole / ranks, own = CLASS_PARTS / ranks;
    size_t        size = lk_dtype_size(t.real);
    class_part    p[CLASS_PARTS];
    for (int r = 0; r < ranks; r++) {
        lk__kernel_call call = {.inputs = 2, .outputs = 1};
        make_class_part(&t.in[0], r, ranks, &p[r]);
        call.in[0] = p[r].logits;
        call.in[1] = p[r].labels;
        call.out[0] = (lk__kernel_operand){.data = records + r * own * rows * LK__CLASS_STATISTICS,
                                           .dtype = LK_F64,
                                           .rank = 3,
                                           .dims = {own, rows, LK__CLASS_STATISTICS}};
        run_kernel(LK__OP_class_statistics, &call);
    }
    for (int r = 0; r < ranks; r++) {
        lk__kernel_call call = {.in = {p[r].logits, p[r].labels}, .inputs = 4, .outputs = 4};
        call.in[3] = (lk__kernel_operand){
            .data = records, .dtype = LK_F64, .rank = 3, .dims = {CLASS_PARTS, rows, LK__CLASS_STATISTICS}};
        for (int k = 0; k < 3; k++) call.out[k] = (lk__kernel_operand){.data = &p[r].sums[k], .dtype = LK_F64};
        call.out[3] = p[r].probabilities;
        run_kernel(LK__OP_cross_entropy, &call);
        for (int k = 0; k < 3; k++)
            if (memcmp(&p[r].sums[k], t.out[k].data, sizeof(double))) fail_case("a rank's sum is not that of one");
        for (int64_t row = 0; row < rows; row++)
            if (memcmp((char *)p[r].probabilities.data + (size_t)(row * each) * size,
                       (char *)t.out[3].data + (size_t)(row * whole + r * each) * size, (size_t)each * size)) {
                fail_case("probabilities of a rank are not those of one");
                break;
            }
    }
    for (int r = 0; r < ranks; r++) free_class_part(&p[r]);
}

static void losses_over_classes(void)
{
    static const struct {
        int64_t rows, classes;
        double  smoothing;
    } cases[] = {{5, 16, 0}, {7, 136, 0.1}, {64, 1000, 0}, {3, 50264, 0.2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t rows = cases[i].rows, logits[] = {rows, cases[i].classes};
        begin(LK__OP_cross_entropy);
        t.attrs.label_smoothing = cases[i].smoothing;
        t.attrs.ignore_index = -100;
        double *x = in(t.real, 2, logits), *labels = in(LK_I32, 1, &rows);
        for (int64_t k = 0; k < rows; k++) labels[k] = k == 2 ? -100 : (double)(k * 977 % cases[i].classes);
        for (int64_t k = 0; k < rows * cases[i].classes; k++) x[k] *= 4;
        for (int k = 0; k < 3; k++) out(LK_F64, 0, NULL, NULL);
        out(t.real, 2, logits, NULL);
        run_parts(CLASS_PARTS, 0);
        for (int ranks = 1; ranks <= CLASS_PARTS && !t.skipped && !kernel_device; ranks *= 2) run_class_parts(ranks);
        end_case();
    }
}

/* ---- channels of convolutions ---- */

typedef struct conv_case {
    int64_t n, c, o, side, kernel, stride, parts;
    int     ranks, pool;
} conv_case;

static const conv_case convolutions[] = {
    {2, 8, 5, 6, 3, 1, 8, 8, 0},   {1, 24, 16, 9, 3, 2, 4, 4, 0},   {3, 16, 3, 7, 1, 1, 8, 8, 0},
    {9, 64, 32, 8, 3, 1, 2, 2, 0}, {1, 128, 64, 16, 3, 1, 4, 4, 0},
};

static void set_convolution(const conv_case *k)
{
    t.attrs.stride = k->stride;
    t.attrs.padding = k->kernel / 2;
    t.attrs.groups = 1;
}

static void convolutions_over_channels(void)
{
    for (size_t i = 0; i < sizeof convolutions / sizeof convolutions[0]; i++) {
        conv_case k = convolutions[i];
        int64_t   side = (k.side + 2 * (k.kernel / 2) - k.kernel) / k.stride + 1;
        int64_t   x[] = {k.n, k.c, k.side, k.side}, w[] = {k.o, k.c, k.kernel, k.kernel}, y[] = {k.n, k.o, side, side};
        begin(LK__OP_conv2d);
        set_convolution(&k);
        in(t.real, 4, x), in(t.real, 4, w);
        out(t.real, 4, y, NULL);
        run_parts(k.parts, 0);
        check_tree("c", k.ranks);
        end_case();
        int64_t dy[] = {k.n, k.c, side, side}, of[] = {k.c, k.o, k.kernel, k.kernel}, dx[] = {k.n, k.o, k.side, k.side};
        begin(LK__OP_conv2d_grad_input); /* over c outputs */
        set_convolution(&k);
        in(t.real, 4, dy), in(t.real, 4, of);
        out(t.real, 4, dx, NULL);
        run_parts(k.parts, 0);
        check_tree("o", k.ranks);
        end_case();
    }
}

/* What follows the sum: a bias, a function, a pool; and the gradient behind a pool. */
static void convolutions_with_what_follows(void)
{
    const int64_t x[] = {9, 16, 8, 8}, w[] = {12, 16, 3, 3}, b[] = {12}, y[] = {9, 12, 8, 8}, pooled[] = {9, 12, 4, 4};
    for (int k = 0; k < 3; k++) {
        begin(LK__OP_conv2d);
        t.attrs = (lk__op_attrs){.stride = 1, .padding = 1, .groups = 1, .pool = k == 2 ? 2 : 0};
        t.attrs.activation = k ? LK__RELU : LK__IDENTITY;
        in(t.real, 4, x), in(t.real, 4, w), in(t.real, 1, b);
        out(t.real, 4, k == 2 ? pooled : y, NULL);
        run_parts(8, 0);
        end_case();
    }
    begin(LK__OP_conv2d_grad_input);
    t.attrs = (lk__op_attrs){.stride = 1, .padding = 1, .groups = 1, .pool = 2, .activation = LK__RELU};
    const int64_t dx[] = {9, 5, 8, 8}, of[] = {12, 5, 3, 3};
    in(t.real, 4, pooled), in(t.real, 4, of);
    double *index = in(LK_U8, 4, pooled);
    for (int64_t i = 0; i < 9 * 12 * 16; i++) index[i] = i % 5 == 4 ? 255 : (double)(i % 4);
    out(t.real, 4, dx, NULL);
    run_parts(4, 0);
    check_tree("o", 4);
    end_case();
}

static void tests(void)
{
    convolutions_over_channels();
    convolutions_with_what_follows();
    losses_over_classes();
    norms_over_samples_and_tokens();
    sums_over_axes();
    keys_of_heads();
}

int main(void) { return run_all(tests); }
