/* test_matmul_precision.c - lk_plan_config.matmul_precision: products of f32 are those of operands rounded to bf16,
 * within the rounding of sums in f32, their gradients too; nothing else is rounded; a device without them refuses.
 *
 * Bound: a sum of k products in any order, with every addition rounded in some way to 24 bits, differs from the exact
 * one by at most about k · 2^-23 · Σ|a·b|; the products of bf16 numbers are exact in f32.
 *
 * ctest: timeout 240, label threaded */
#include "plan/plan.h"
#include "support.h"

#include "base/bf16.h"

static double rounded(double x) { return (double)lk__from_bf16(lk__to_bf16((float)x)); }

static bool is_supported(void)
{
    rig  r = rig_open(LK_F32, 1);
    bool cpu = strcmp(lk_context_device(r.context), "cuda") != 0;
    rig_close(&r);
    return cpu;
}

/* ---- one product with its gradients ---- */

typedef struct shape {
    int64_t m, n, k;
} shape;

static const shape shapes[] = {{1, 1, 1},   {3, 5, 7},      {2, 33, 129},  {17, 4, 31},
                               {31, 65, 9}, {64, 100, 256}, {130, 48, 96}, {5, 257, 64}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef enum kind { LINEAR, TRANSPOSED, RELU, BATCHED, KINDS } kind;

/* x (m, k) · w (n, k)' + b, times c: its gradients are those of the product with c. All are parameters. */
typedef struct numbers {
    shape  s;
    kind   kind;
    float *x, *w, *b, *c;
} numbers;

static float *draw(int64_t n, uint64_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)value_of(PLAIN, seed, i, n);
    return x;
}

static numbers draw_numbers(shape s, kind kind)
{
    return (numbers){s, kind, draw(s.m * s.k, 11), draw(s.n * s.k, 12), draw(s.n, 13), draw(s.m * s.n, 14)};
}

static void free_numbers(numbers *n) { free(n->x), free(n->w), free(n->b), free(n->c); }

static lk_tensor record_product(const numbers *v, lk_tensor x, lk_tensor w, lk_tensor b)
{
    if (v->kind == BATCHED) return lk_matmul(x, w, .transpose_b = true);
    lk_tensor y = v->kind == TRANSPOSED ? lk_addmm(b, x, w) : lk_f_linear(x, w, b);
    return v->kind == RELU ? lk_relu(y) : y;
}

static rig open_product(const numbers *v, lk_matmul_precision precision)
{
    rig                 r = rig_open(LK_F32, 2);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    shape               s = v->s;
    int                 first = v->kind == BATCHED ? 0 : 1, rank = 3 - first;
    int64_t             x[] = {1, s.m, s.k}, w[] = {1, s.n, s.k}, y[] = {1, s.m, s.n};
    int64_t             w_dims[] = {s.k, s.n};
    lk_tensor           tensors[] = {lk_parameter(r.graph, "x", rank, x + first),
                           v->kind == TRANSPOSED ? lk_parameter(r.graph, "w", 2, w_dims)
                                                           : lk_parameter(r.graph, "w", rank, w + first),
                                     lk_parameter(r.graph, "b", 1, &s.n)};
    lk_tensor           out = record_product(v, tensors[0], tensors[1], tensors[2]);
    config.loss = lk_sum(lk_mul(out, lk_parameter(r.graph, "c", rank, y + first)));
    config.outputs = &out;
    config.outputs_count = 1;
    config.optimizer = &sgd;
    config.matmul_precision = precision;
    rig_plan(&r, &config, 1);
    return r;
}

static void write_numbers(const rig *r, const numbers *v)
{
    shape  s = v->s;
    float *w = v->w, *turned = NULL;
    if (v->kind == TRANSPOSED) {
        turned = malloc((size_t)(s.n * s.k) * sizeof *turned);
        for (int64_t i = 0; i < s.n; i++)
            for (int64_t k = 0; k < s.k; k++) turned[k * s.n + i] = v->w[i * s.k + k];
        w = turned;
    }
    struct {
        const char  *name;
        const float *data;
        int64_t      count;
    } all[] = {{"x", v->x, s.m * s.k}, {"w", w, s.n * s.k}, {"b", v->b, s.n}, {"c", v->c, s.m * s.n}};
    for (int i = 0; i < 4; i++)
        REQUIRE(lk_store_write(r->store, all[i].name, LK_STATE_VALUE, 0, all[i].count, all[i].data,
                               (size_t)all[i].count * sizeof(float)) == LK_OK,
                "%s", lk_context_error(r->context));
    free(turned);
}

/* Σ over k of a[i*ai + k*ak] · b[j*bj + k*bk], of rounded operands; *size: Σ|…|; *exact: of operands as they are. */
static double product(const float *a, int64_t ak, const float *b, int64_t bk, int64_t count, double *size,
                      double *exact)
{
    double sum = *size = *exact = 0;
    for (int64_t k = 0; k < count; k++) {
        double one = rounded((double)a[k * ak]) * rounded((double)b[k * bk]);
        sum += one;
        *size += fabs(one);
        *exact += (double)a[k * ak] * (double)b[k * bk];
    }
    return sum;
}

/* Counts the elements that differ from the product of operands as they are. */
static void check_element(const char *what, double got, double want, double exact, double bound, int *rounds)
{
    CHECK(fabs(got - want) <= bound, "%s: %.9g; of rounded operands %.9g, bound %.2g", what, got, want, bound);
    *rounds += fabs(got - exact) > bound;
}

static double bound_of(int64_t k, double size) { return (double)(k + 2) * 0x1p-23 * size + 1e-30; }

static void check_forward(const numbers *v, const float *y, int *rounds)
{
    shape s = v->s;
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            double size, exact, want = product(v->x + i * s.k, 1, v->w + j * s.k, 1, s.k, &size, &exact);
            double bias = v->kind == BATCHED ? 0 : (double)v->b[j]; /* is not rounded */
            want += bias, exact += bias;
            if (v->kind == RELU) want = fmax(want, 0), exact = fmax(exact, 0);
            check_element("y", (double)y[i * s.n + j], want, exact, bound_of(s.k, size + fabs(bias)), rounds);
        }
}

/* dy: that before the activation. */
static void check_gradients(const rig *r, const numbers *v, const float *dy, int *rounds)
{
    shape  s = v->s;
    float *dx = malloc((size_t)(s.m * s.k) * sizeof *dx), *dw = malloc((size_t)(s.n * s.k) * sizeof *dw);
    REQUIRE(lk_program_gradient_read(r->program, "x", dx, (size_t)(s.m * s.k) * sizeof *dx) == LK_OK);
    REQUIRE(lk_program_gradient_read(r->program, "w", dw, (size_t)(s.n * s.k) * sizeof *dw) == LK_OK);
    double size, exact;
    for (int64_t k = 0; k < s.k; k++) {
        for (int64_t i = 0; i < s.m; i++) {
            double want = product(dy + i * s.n, 1, v->w + k, s.k, s.n, &size, &exact);
            check_element("dx", (double)dx[i * s.k + k], want, exact, bound_of(s.n, size), rounds);
        }
        for (int64_t j = 0; j < s.n; j++) {
            double want = product(dy + j, s.n, v->x + k, s.k, s.m, &size, &exact);
            float  got = v->kind == TRANSPOSED ? dw[k * s.n + j] : dw[j * s.k + k];
            check_element("dw", (double)got, want, exact, bound_of(s.m, size), rounds);
        }
    }
    free(dx);
    free(dw);
}

static void check_product(const numbers *v, int *rounds)
{
    rig     r = open_product(v, LK_MATMUL_BF16);
    shape   s = v->s;
    lk_step at = {.step = 1};
    float  *y = malloc((size_t)(s.m * s.n) * sizeof *y), *dy = malloc((size_t)(s.m * s.n) * sizeof *dy);
    write_numbers(&r, v);
    REQUIRE(lk_program_step(r.program, &at) == LK_OK && lk_program_run(r.program, LK_FORWARD) == LK_OK &&
                lk_program_run(r.program, LK_BACKWARD) == LK_OK && lk_program_run(r.program, LK_EVALUATE) == LK_OK,
            "%s", lk_context_error(r.context));
    REQUIRE(lk_program_output_read(r.program, 0, y, (size_t)(s.m * s.n) * sizeof *y) == LK_OK, "%s",
            lk_context_error(r.context));
    for (int64_t i = 0; i < s.m * s.n; i++) dy[i] = v->kind == RELU && !(y[i] > 0) ? 0 : v->c[i];
    check_forward(v, y, rounds);
    check_gradients(&r, v, dy, rounds);
    free(y);
    free(dy);
    rig_close(&r);
}

static void products_are_those_of_rounded_operands(void)
{
    if (!is_supported()) return;
    for (int kind = 0; kind < KINDS; kind++) {
        int rounds = 0;
        for (int i = 0; i < SHAPES; i++) {
            numbers v = draw_numbers(shapes[i], kind);
            check_product(&v, &rounds);
            free_numbers(&v);
        }
        CHECK(rounds > 100, "kind %d: %d elements differ from those of operands that are not rounded", kind, rounds);
    }
}

/* ---- a product with its loss in one operation ---- */

enum { ROWS = 70, CLASSES = 37, WIDTH = 48 };

/* Probabilities less the label's one, of logits of rounded operands. */
static double differentiate_row(const float *x, const float *w, int32_t label, double d[CLASSES])
{
    double logits[CLASSES], most = -HUGE_VAL, sum = 0, size, exact;
    for (int j = 0; j < CLASSES; j++) {
        logits[j] = product(x, 1, w + j * WIDTH, 1, WIDTH, &size, &exact);
        most = fmax(most, logits[j]);
    }
    for (int j = 0; j < CLASSES; j++) sum += exp(logits[j] - most);
    for (int j = 0; j < CLASSES; j++) d[j] = exp(logits[j] - most) / sum - (j == label);
    return log(sum) + most - logits[label];
}

/* The gradients of logits are rounded: by at most 2^-8 of each, and of what is lost in f32 before. */
static void check_loss_gradients(const rig *r, const float *x, const float *w, double (*d)[CLASSES])
{
    float dx[ROWS * WIDTH], dw[CLASSES * WIDTH];
    REQUIRE(lk_program_gradient_read(r->program, "x", dx, sizeof dx) == LK_OK);
    REQUIRE(lk_program_gradient_read(r->program, "w", dw, sizeof dw) == LK_OK);
    for (int k = 0; k < WIDTH; k++) {
        for (int i = 0; i < ROWS; i++) {
            double want = 0, size = 0;
            for (int j = 0; j < CLASSES; j++) {
                double one = d[i][j] * rounded((double)w[j * WIDTH + k]);
                want += one, size += fabs(one);
            }
            CHECK(fabs((double)dx[i * WIDTH + k] - want) <= 0x1p-8 * size, "dx %d %d: %g, %g", i, k,
                  (double)dx[i * WIDTH + k], want);
        }
        for (int j = 0; j < CLASSES; j++) {
            double want = 0, size = 0;
            for (int i = 0; i < ROWS; i++) {
                double one = d[i][j] * rounded((double)x[i * WIDTH + k]);
                want += one, size += fabs(one);
            }
            CHECK(fabs((double)dw[j * WIDTH + k] - want) <= 0x1p-8 * size, "dw %d %d: %g, %g", j, k,
                  (double)dw[j * WIDTH + k], want);
        }
    }
}

static void a_loss_of_products_rounds_what_it_multiplies(void)
{
    if (!is_supported()) return;
    rig                 r = rig_open(LK_F32, 2);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    int64_t             x_dims[] = {ROWS, WIDTH}, w_dims[] = {CLASSES, WIDTH}, rows = ROWS;
    int32_t             labels[ROWS];
    float              *x = draw(ROWS * WIDTH, 21), *w = draw(CLASSES * WIDTH, 22);
    static double       d[ROWS][CLASSES];
    double              sum = 0;
    for (int i = 0; i < ROWS; i++) labels[i] = (int32_t)(number_bits(23, (uint64_t)i) % CLASSES);
    for (int i = 0; i < ROWS; i++) sum += differentiate_row(x + i * WIDTH, w, labels[i], d[i]);
    config.loss = lk_linear_cross_entropy(lk_parameter(r.graph, "x", 2, x_dims), lk_parameter(r.graph, "w", 2, w_dims),
                                          lk_constant(r.graph, LK_I32, 1, &rows, labels));
    config.optimizer = &sgd;
    config.matmul_precision = LK_MATMUL_BF16;
    rig_plan(&r, &config, 1);
    REQUIRE(lk_store_write(r.store, "x", LK_STATE_VALUE, 0, ROWS * WIDTH, x, ROWS * WIDTH * sizeof *x) == LK_OK &&
            lk_store_write(r.store, "w", LK_STATE_VALUE, 0, CLASSES * WIDTH, w, CLASSES * WIDTH * sizeof *w) == LK_OK);
    lk_step at = {.step = 1};
    REQUIRE(lk_program_step(r.program, &at) == LK_OK && lk_program_run(r.program, LK_FORWARD) == LK_OK &&
                lk_program_run(r.program, LK_BACKWARD) == LK_OK,
            "%s", lk_context_error(r.context));
    CHECK(fabs(rig_metrics(&r).sum - sum) <= 1e-5 * sum, "%.9g, %.9g", rig_metrics(&r).sum, sum);
    check_loss_gradients(&r, x, w, d);
    free(x);
    free(w);
    rig_close(&r);
}

/* ---- what else is in a plan ---- */

/* What products multiply is bf16, by casts; all results are f32, or of the type that they have without. */
static void nothing_else_is_rounded(void)
{
    if (!is_supported()) return;
    numbers v = draw_numbers(shapes[3], RELU);
    rig     r = open_product(&v, LK_MATMUL_BF16), plain = open_product(&v, LK_MATMUL_HIGHEST);
    int     products = 0;
    for (int k = 0; k < 2; k++) {
        const lk__plan_list *list = k ? &r.plan->evaluate : &r.plan->train;
        for (size_t i = 0; i < list->order_count; i++) {
            const lk_graph       *g = list->graph;
            const lk__graph_node *n = &g->nodes[list->order[i]];
            unsigned              multiplied = lk__op_find(n->op)->matmul;
            products += multiplied != 0;
            for (int j = 0; j < n->inputs; j++)
                CHECK(n->in[j] < 0 || (g->values[n->in[j]].shape.dtype == LK_BF16) == (multiplied >> j & 1),
                      "%s, input %d", lk__op_name(n->op), j);
            for (int j = 0; j < n->outputs; j++)
                CHECK(n->out[j] < 0 || n->op == LK__OP_cast || g->values[n->out[j]].shape.dtype != LK_BF16,
                      "%s, output %d", lk__op_name(n->op), j);
        }
    }
    CHECK(products == 4, "%d products", products);
    CHECK(lk_plan_fingerprint(r.plan) != lk_plan_fingerprint(plain.plan));
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_PARAMETERS) == lk_plan_memory(plain.plan, LK_MEMORY_PARAMETERS));
    rig_close(&r);
    rig_close(&plain);
    free_numbers(&v);
}

static void a_graph_or_device_without_it_is_refused(void)
{
    for (int i = 0; i < 2; i++) {
        rig            r = rig_open(i ? LK_F32 : LK_F64, 1);
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        int64_t        n = 3;
        config.loss = lk_sum(lk_parameter(r.graph, "w", 1, &n));
        config.matmul_precision = i ? (lk_matmul_precision)9 : LK_MATMUL_BF16;
        CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), i ? "precision 9" : "recorded in f32, not in f64"),
              "%s", lk_context_error(r.context));
        config.matmul_precision = LK_MATMUL_BF16;
        if (i && !is_supported())
            CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EUNSUPPORTED &&
                      strstr(lk_context_error(r.context), "--tf32"),
                  "%s", lk_context_error(r.context));
        rig_close(&r);
    }
}

static void names_are_read_as_they_are_written(void)
{
    lk_matmul_precision precision;
    for (int i = 0; i < LK_MATMUL_COUNT; i++)
        CHECK(lk_matmul_precision_parse(lk_matmul_precision_name((lk_matmul_precision)i), &precision) &&
              (int)precision == i);
    CHECK(!lk_matmul_precision_parse("high", &precision) && precision == LK_MATMUL_HIGHEST);
    CHECK(!lk_matmul_precision_name(LK_MATMUL_COUNT));
}

int main(void)
{
    RUN(products_are_those_of_rounded_operands);
    RUN(a_loss_of_products_rounds_what_it_multiplies);
    RUN(nothing_else_is_rounded);
    RUN(a_graph_or_device_without_it_is_refused);
    RUN(names_are_read_as_they_are_written);
    return check_result();
}
