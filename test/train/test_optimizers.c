/* test_optimizers.c - SGD, Adam and AdamW compared with PyTorch's over 100 steps in f64, with clipping and parameter groups; and
 * learning-rate schedules. The values come from golden/make_optimizers.py. */
#include "support.h"

enum { STEPS = 100, ROWS = 6, INSIDE = 5, OUTSIDE = 3 };

typedef struct trajectory {
    const char         *name;
    lk_optimizer_config config;
} trajectory;

#define SETTINGS(...)                                                                                   \
    {                                                                                                   \
        .size = sizeof(lk_optimizer_config), .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, __VA_ARGS__ \
    }
#define GROUPS(array) .groups = array, .groups_count = sizeof(array) / sizeof *(array)

static const lk_parameter_group groups[] = {
    {.match = "fc1.*", .lr_scale = 0.1, .weight_decay = 0.3},
    {.match = "*.bias", .lr_scale = 2, .weight_decay = -1},
    {.match = "norm.w*", .lr_scale = 0.5, .weight_decay = 0.02},
};
static lk_parameter_group       unchanged[] = {LK_PARAMETER_GROUP_INIT}; /* match is set below */
static const lk_parameter_group undecayed[] = {{.match = "*", .lr_scale = 1, .weight_decay = 0}};
static const lk_parameter_group frozen[] = {{.match = "fc1.*", .lr_scale = 1, .weight_decay = -1, .frozen = true}};

#pragma GCC diagnostic  push
#pragma GCC diagnostic  ignored "-Woverride-init"
static const trajectory trajectories[] = {
    {"sgd", SETTINGS(.kind = LK_SGD, .lr = 0.05)},
    {"sgd_momentum", SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9)},
    {"sgd_dampening", SETTINGS(.kind = LK_SGD, .lr = 0.05, .momentum = 0.8, .dampening = 0.3)},
    {"sgd_nesterov", SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true)},
    {"sgd_decay", SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.05, .decay_all = true)},
    {"sgd_nesterov_decay", SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true, .weight_decay = 0.05)},
    {"sgd_clip", SETTINGS(.kind = LK_SGD, .lr = 0.1, .momentum = 0.5, .clip = 0.1)},
    {"adam", SETTINGS(.kind = LK_ADAM, .lr = 1e-2)},
    {"adam_decay", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6,
                            .weight_decay = 0.1, .decay_all = true)},
    {"adam_clip", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, .clip = 0.05)},
    {"adam_clip_never", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, .clip = 1000)},
    {"adamw", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .weight_decay = 0.1, .decay_all = true)},
    {"adamw_no_decay", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.1)},
    {"adamw_groups", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .weight_decay = 0.1, GROUPS(groups))},
    {"sgd_momentum", SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.05, .decay_all = true,
                              GROUPS(undecayed))}, /* weight decay 0 in a group: none */
    {"adam", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, .weight_decay = 0.1, .decay_all = true, GROUPS(undecayed))},
    {"adam", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .weight_decay = 0.1, .decay_all = true, GROUPS(undecayed))},
    {"adam", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .weight_decay = 0, .decay_all = true)}, /* PyTorch's default is 0.01 */
    {"adamw_no_decay",
     SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.1, GROUPS(unchanged))},
    {"adam_frozen", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, GROUPS(frozen))},
};
#pragma GCC diagnostic pop

static void initialise(lk_store *store)
{
    for (size_t i = 0; i < lk_store_count(store); i++) {
        lk_state s = lk_store_at(store, i);
        double   offset = strcmp(s.name, "norm.weight") == 0, *data = copy_room(state_bytes(&s));
        for (int64_t j = 0; j < state_elements(&s); j++)
            data[j] = (2 * number(seed_of(s.name), (uint64_t)j) - 1) / 2 + offset;
        write_state(store, &s, data);
    }
}

static void fill_batch(int step, double *x, double *target)
{
    for (int i = 0; i < ROWS * INSIDE; i++) x[i] = 2 * number(1000 + (uint64_t)step, (uint64_t)i) - 1;
    for (int i = 0; i < ROWS * OUTSIDE; i++)
        target[i] = 2 * number(2000 + (uint64_t)step, (uint64_t)i) - 1 + x[i / OUTSIDE * INSIDE + i % OUTSIDE];
}

static void check_trajectory(const trajectory *t)
{
    rig            r = rig_open(LK_F64, 1);
    lk_tensor      in = lk_input(r.graph, "x", LK_F64, 2, ((int64_t[]){ROWS, INSIDE}));
    lk_tensor      out = lk_input(r.graph, "target", LK_F64, 2, ((int64_t[]){ROWS, OUTSIDE}));
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_mse(lk_linear(lk_tanh(lk_layer_norm(lk_linear(in, "fc1", 7), "norm")), "fc2", OUTSIDE), out);
    config.optimizer = &t->config;
    rig_plan(&r, &config, 1);
    initialise(r.store);
    lk__safetensors *file = golden_open(r.context, "optimizers.safetensors");
    char             prefix[64];
    snprintf(prefix, sizeof prefix, "%s/", t->name);
    double *losses = golden(file, prefix, "losses", NULL),
           *norms = t->config.clip > 0 ? golden(file, prefix, "norms", NULL) : NULL;
    double x[ROWS * INSIDE], target[ROWS * OUTSIDE], worst = 0;
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "target", target) == LK_OK);
    for (int step = 1; step <= STEPS; step++) {
        fill_batch(step, x, target);
        REQUIRE(lk_program_train(r.program,
                                 &(lk_step){.step = step, .count = ROWS, .rate = t->config.lr * (1 - 0.005 * step)}) ==
                LK_OK);
        lk_metrics m = rig_metrics(&r);
        CHECK(fabs(m.loss - losses[step - 1]) <= 1e-12 * losses[step - 1], "%s step %d: loss %.17g, PyTorch %.17g",
              t->name, step, m.loss, losses[step - 1]);
        if (norms)
            CHECK(fabs(m.grad_norm - norms[step - 1]) <= 1e-12 * norms[step - 1],
                  "%s step %d: norm %.17g, PyTorch %.17g", t->name, step, m.grad_norm, norms[step - 1]);
    }
    for (size_t i = 0; i < lk_store_count(r.store); i++) {
        lk_state      s = lk_store_at(r.store, i);
        const double *x = state_copy(r.store, s.name);
        double       *expected = golden(file, prefix, s.name, NULL), largest = 0, off = 0;
        for (int64_t j = 0; j < state_elements(&s); j++) {
            largest = fmax(largest, fabs(expected[j]));
            off = fmax(off, fabs(x[j] - expected[j]));
        }
        CHECK(off <= 1e-12 * largest, "%s: %s differs by %g of %g", t->name, s.name, off, largest);
        worst = fmax(worst, off / largest);
        free(expected);
    }
    printf("     %s: parameters within %.1e after %d steps\n", t->name, worst, STEPS);
    free(losses);
    free(norms);
    lk__safetensors_close(file);
    rig_close(&r);
}

static void optimizers_follow_pytorch_for_100_steps(void)
{
    unchanged[0].match = "*";
    for (size_t i = 0; i < sizeof trajectories / sizeof *trajectories; i++) check_trajectory(&trajectories[i]);
}

static void schedules_give_pytorchs_rates(void)
{
    static const struct {
        const char *name;
        lk_schedule schedule;
    } all[] = {
        {"constant", {.kind = LK_SCHEDULE_CONSTANT}},
        {"step", {.kind = LK_SCHEDULE_STEP, .every = 7, .gamma = 0.3}},
        {"cosine", {.kind = LK_SCHEDULE_COSINE, .total = 40}},
        {"cosine_minimum", {.kind = LK_SCHEDULE_COSINE, .total = 40, .minimum = 0.1}},
        {"warm_constant", {.kind = LK_SCHEDULE_CONSTANT, .warmup = 5}},
        {"warm_step", {.kind = LK_SCHEDULE_STEP, .warmup = 6, .every = 9, .gamma = 0.5}},
        {"warm_cosine", {.kind = LK_SCHEDULE_COSINE, .warmup = 8, .total = 40, .minimum = 0.05}},
    };
    rig              r = rig_open(LK_F64, 1);
    lk__safetensors *file = golden_open(r.context, "optimizers.safetensors");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t count;
        double *rates = golden(file, "schedule/", all[i].name, &count);
        for (int64_t step = 0; step < count; step++) {
            double rate = lk_schedule_rate(&all[i].schedule, 0.3, step);
            CHECK(fabs(rate - rates[step]) <= 1e-14, "%s step %lld: %.17g, PyTorch %.17g", all[i].name, (long long)step,
                  rate, rates[step]);
        }
        free(rates);
    }
    /* After the end a cosine stays at its minimum. */
    CHECK(fabs(lk_schedule_rate(&all[3].schedule, 0.3, 40) - 0.03) < 1e-16 &&
          fabs(lk_schedule_rate(&all[3].schedule, 0.3, 4000) - 0.03) < 1e-16);
    lk__safetensors_close(file);
    rig_close(&r);
}

static void names_are_parsed(void)
{
    lk_optimizer_kind o = LK_SGD;
    lk_schedule_kind  s = LK_SCHEDULE_CONSTANT;
    CHECK(lk_optimizer_parse("adamw", &o) && o == LK_ADAMW && lk_optimizer_parse("sgd", &o) && o == LK_SGD);
    CHECK(lk_optimizer_parse("adam", &o) && o == LK_ADAM && !lk_optimizer_parse("Adam", &o) &&
          !lk_optimizer_parse("", &o) && o == LK_ADAM);
    CHECK(lk_schedule_parse("cosine", &s) && s == LK_SCHEDULE_COSINE && lk_schedule_parse("step", &s) &&
          s == LK_SCHEDULE_STEP);
    CHECK(lk_schedule_parse("constant", &s) && s == LK_SCHEDULE_CONSTANT && !lk_schedule_parse("linear", &s));
}

int main(void)
{
    RUN(optimizers_follow_pytorch_for_100_steps);
    RUN(schedules_give_pytorchs_rates);
    RUN(names_are_parsed);
    return check_result();
}
