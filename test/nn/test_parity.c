/* test_parity.c - training compared with PyTorch: from the same weights and batches, the losses of SimpleCNN and
 * ResNet-20 over 50 Adam steps in f64, their first gradients, and SimpleCNN in f32. The values come from
 * golden/make_training.py.
 *
 * ctest: timeout 300, label slow */
#include "training_batch.h"

enum { STEPS = 50, PROJECTIONS = 8, PIXELS = 3 * 32 * 32, MOST = 16 };

typedef struct model_run {
    rig      rig;
    lk_dtype real;
    int      size; /* of a batch */
    void    *images;
    int32_t  labels[MOST];
} model_run;

static void fill_batch(model_run *s, int step) { fill_rows(s->images, s->real, s->labels, 32, 0, s->size, step); }

static model_run open_run(const char *model, lk_dtype real, int size)
{
    model_run           s = {.rig = rig_open(real, 2), .real = real, .size = size};
    lk_tensor           x = lk_input(s.rig.graph, "x", real, 4, ((int64_t[]){size, 3, 32, 32}));
    lk_tensor           y = lk_input(s.rig.graph, "y", LK_I32, 1, ((int64_t[]){size}));
    lk_tensor           logits = lk_model_find(model)(x, (lk_model_options){0});
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_cross_entropy(logits, y);
    config.outputs = &logits;
    config.outputs_count = 1;
    config.optimizer = &optimizer;
    rig_plan(&s.rig, &config, 1);
    initialise(s.rig.store);
    s.images = malloc((size_t)(size * PIXELS) * lk_dtype_size(real));
    REQUIRE(lk_program_bind(s.rig.program, "x", s.images) == LK_OK);
    return s;
}

static void close_run(model_run *s)
{
    rig_close(&s->rig);
    free(s->images);
}

static double train(model_run *s, int step)
{
    fill_batch(s, step);
    REQUIRE(lk_program_bind(s->rig.program, "y", s->labels) == LK_OK);
    REQUIRE(lk_program_train(s->rig.program, &(lk_step){.step = step, .count = s->size, .rate = 1e-3}) == LK_OK);
    return rig_metrics(&s->rig).loss;
}

/* Norm and projections of every parameter's mean gradient after step 1. The error of a projection is relative to its
 * largest possible value: the norm of the gradient times that of the direction. */
static void check_first_gradients(model_run *s, lk__safetensors *file, const char *prefix, double tolerance)
{
    for (size_t i = 0; i < lk_store_count(s->rig.store); i++) {
        lk_state state = lk_store_at(s->rig.store, i);
        if (state.buffer) continue;
        double     *expected = golden(file, prefix, state.name, NULL), sum = 0;
        const void *gradient = gradient_copy(s->rig.program, s->rig.store, state.name);
        int64_t     n = state_elements(&state);
        for (int64_t j = 0; j < n; j++) sum += pow(real_at(gradient, s->real, j) / s->size, 2);
        CHECK(fabs(sqrt(sum) - expected[0]) <= tolerance * expected[0], "%s: norm %.17g, PyTorch %.17g", state.name,
              sqrt(sum), expected[0]);
        for (int k = 0; k < PROJECTIONS; k++) {
            double dot = 0, direction = 0;
            for (int64_t j = 0; j < n; j++) {
                double u = 2 * number(seed_of(state.name) + 1 + (uint64_t)k, (uint64_t)j) - 1;
                dot += u * real_at(gradient, s->real, j) / s->size;
                direction += u * u;
            }
            CHECK(fabs(dot - expected[1 + k]) <= tolerance * expected[0] * sqrt(direction),
                  "%s: projection %d is %.17g, PyTorch %.17g", state.name, k, dot, expected[1 + k]);
        }
        free(expected);
    }
}

static double worst_of(double worst, double a, double b, double scale)
{
    double off = fabs(a - b) / scale;
    return isnan(off) || off > worst ? off : worst;
}

static void check_f64(const char *model, int size)
{
    model_run        s = open_run(model, LK_F64, size);
    lk__safetensors *file = golden_open(s.rig.context, "training.safetensors");
    char             prefix[64], gradients[64];
    int64_t          count;
    snprintf(prefix, sizeof prefix, "%s/", model);
    snprintf(gradients, sizeof gradients, "%s/gradient/", model);
    double *losses = golden(file, prefix, "losses", &count), *logits = golden(file, prefix, "logits", NULL);
    double  worst = 0, largest = 0, off = 0;
    REQUIRE(count == STEPS);
    for (int step = 1; step <= STEPS; step++) {
        double loss = train(&s, step);
        worst = worst_of(worst, loss, losses[step - 1], losses[step - 1]);
        CHECK(fabs(loss - losses[step - 1]) <= 1e-9 * losses[step - 1], "%s step %d: loss %.17g, PyTorch %.17g", model,
              step, loss, losses[step - 1]);
        if (step == 1) check_first_gradients(&s, file, gradients, 1e-12);
    }
    /* Evaluation also checks the running statistics. */
    fill_batch(&s, 9999);
    REQUIRE(lk_program_run(s.rig.program, LK_EVALUATE) == LK_OK);
    const double *output = output_copy(s.rig.program, 0, (size_t)size * 10 * sizeof *output);
    for (int i = 0; i < size * 10; i++) largest = fmax(largest, fabs(logits[i]));
    for (int i = 0; i < size * 10; i++) off = worst_of(off, output[i], logits[i], largest);
    CHECK(off <= 1e-8, "%s: logits after training differ by %g", model, off);
    printf("     %s: losses within %.1e, logits after %d steps within %.1e\n", model, worst, STEPS, off);
    free(losses);
    free(logits);
    lk__safetensors_close(file);
    close_run(&s);
}

static void simple_cnn_trains_as_in_pytorch_in_f64(void) { check_f64("cnn", 16); }
static void resnet20_trains_as_in_pytorch_in_f64(void) { check_f64("resnet20", 8); }

/* f32 against f64 over the whole gradient; the f64 one is PyTorch's, as checked above. */
static void check_f32_gradients(const char *model, int size, int number)
{
    model_run narrow = open_run(model, LK_F32, size), wide = open_run(model, LK_F64, size);
    double    off = 0, all = 0, worst = 0;
    train(&narrow, number);
    train(&wide, number);
    for (size_t i = 0; i < lk_store_count(wide.rig.store); i++) {
        lk_state s = lk_store_at(wide.rig.store, i);
        if (s.buffer) continue;
        const float  *a = gradient_copy(narrow.rig.program, narrow.rig.store, s.name);
        const double *b = gradient_copy(wide.rig.program, wide.rig.store, s.name);
        double        one_off = 0, one = 0;
        for (int64_t j = 0; j < state_elements(&s); j++) {
            one_off += pow(a[j] - b[j], 2);
            one += b[j] * b[j];
        }
        worst = worst_of(worst, sqrt(one_off), 0, sqrt(one));
        CHECK(sqrt(one_off) <= 1e-5 * sqrt(one), "%s: %s: the gradient is off by %g of its norm", model, s.name,
              sqrt(one_off / one));
        off += one_off;
        all += one;
    }
    CHECK(sqrt(off) <= 1e-5 * sqrt(all), "%s: the gradient is off by %g of its norm", model, sqrt(off / all));
    printf("     %s: f32 gradient within %.1e of its norm, single parameters within %.1e\n", model, sqrt(off / all),
           worst);
    close_run(&narrow);
    close_run(&wide);
}

static void first_gradients_in_f32_agree_to_1e_5(void)
{
    check_f32_gradients("cnn", 16, 1);
    /* ResNet-20 has many relus, so this uses a batch for which PyTorch in f64 finds no relu input so close to 0 that
     * rounding changes its sign. */
    lk_context *context;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    lk__safetensors *file = golden_open(context, "training.safetensors");
    double          *clear = golden(file, "resnet20/", "clear", NULL);
    CHECK(clear[1] > 1e-5, "the batch has relu inputs near 0: %g", clear[1]);
    check_f32_gradients("resnet20", 2, (int)clear[0]);
    free(clear);
    lk__safetensors_close(file);
    lk_context_free(context);
}

static void simple_cnn_in_f32_follows_pytorch_for_20_steps(void)
{
    model_run        s = open_run("cnn", LK_F32, 16);
    lk__safetensors *file = golden_open(s.rig.context, "training.safetensors");
    double *f32 = golden(file, "cnn/", "f32_losses", NULL), *f64 = golden(file, "cnn/", "losses", NULL), worst = 0;
    for (int step = 1; step <= 20; step++) {
        double loss = train(&s, step);
        worst = worst_of(worst, loss, f32[step - 1], f32[step - 1]);
        CHECK(fabs(loss - f32[step - 1]) <= 1e-4 * f32[step - 1], "step %d: loss %.9g, PyTorch %.9g in f32", step, loss,
              f32[step - 1]);
        CHECK(fabs(loss - f64[step - 1]) <= 1e-4 * f64[step - 1], "step %d: loss %.9g, PyTorch %.9g in f64", step, loss,
              f64[step - 1]);
    }
    printf("     cnn: f32 losses within %.1e of PyTorch's f32\n", worst);
    free(f32);
    free(f64);
    lk__safetensors_close(file);
    close_run(&s);
}

int main(void)
{
    RUN(simple_cnn_trains_as_in_pytorch_in_f64);
    RUN(resnet20_trains_as_in_pytorch_in_f64);
    RUN(first_gradients_in_f32_agree_to_1e_5);
    RUN(simple_cnn_in_f32_follows_pytorch_for_20_steps);
    return check_result();
}
