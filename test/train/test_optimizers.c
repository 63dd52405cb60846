/* test_optimizers.c - all optimizers compared with PyTorch's (Lion: the paper's formula) over 100 steps, with clipping
 * and parameter groups; their descriptors and state; and learning-rate schedules. The values come from
 * golden/make_optimizers.py. */
#include "support.h"

#include "graph/op.h"
#include "graph/optimizer.h"

enum { STEPS = 100, ROWS = 6, INSIDE = 5, OUTSIDE = 3, GIVEN = 203 };

typedef struct trajectory {
    const char         *name;
    lk_optimizer_config config;
} trajectory;

#define SETTINGS(...)                                                                                   \
    {                                                                                                   \
        .size = sizeof(lk_optimizer_config), .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .alpha = 0.99, __VA_ARGS__ \
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
    {"sgd_nesterov_decay",
     SETTINGS(.kind = LK_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true, .weight_decay = 0.05)},
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
    /* PyTorch's default is 0.01 */
    {"adam", SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .weight_decay = 0, .decay_all = true)},
    {"adamw_no_decay",
     SETTINGS(.kind = LK_ADAMW, .lr = 1e-2, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.1, GROUPS(unchanged))},
    {"adam_frozen", SETTINGS(.kind = LK_ADAM, .lr = 1e-2, GROUPS(frozen))},
    {"lion", SETTINGS(.kind = LK_LION, .lr = 1e-3, .beta2 = 0.99)},
    {"lion_decay",
     SETTINGS(.kind = LK_LION, .lr = 2e-3, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .decay_all = true)},
    {"lion_clip", SETTINGS(.kind = LK_LION, .lr = 1e-3, .beta2 = 0.99, .clip = 0.05)},
    {"lion_groups", SETTINGS(.kind = LK_LION, .lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, GROUPS(groups))},
    {"lion_frozen", SETTINGS(.kind = LK_LION, .lr = 1e-3, .beta2 = 0.99, GROUPS(frozen))},
    {"rmsprop", SETTINGS(.kind = LK_RMSPROP, .lr = 2e-3)},
    {"rmsprop_decay",
     SETTINGS(.kind = LK_RMSPROP, .lr = 2e-3, .alpha = 0.9, .epsilon = 1e-6, .weight_decay = 0.1, .decay_all = true)},
    {"rmsprop_momentum", SETTINGS(.kind = LK_RMSPROP, .lr = 1e-3, .momentum = 0.9)},
    {"rmsprop_centered", SETTINGS(.kind = LK_RMSPROP, .lr = 2e-3, .centered = true)},
    {"rmsprop_all", SETTINGS(.kind = LK_RMSPROP, .lr = 1e-3, .alpha = 0.95, .epsilon = 1e-7, .momentum = 0.8,
                             .centered = true, .clip = 0.1, .weight_decay = 0.05)},
    {"rmsprop_groups", SETTINGS(.kind = LK_RMSPROP, .lr = 1e-2, .weight_decay = 0.1, GROUPS(groups))},
    {"adagrad", SETTINGS(.kind = LK_ADAGRAD, .lr = 5e-2, .epsilon = 1e-10)},
    {"adagrad_decay", SETTINGS(.kind = LK_ADAGRAD, .lr = 5e-2, .lr_decay = 0.02, .epsilon = 1e-6, .weight_decay = 0.1,
                               .decay_all = true)},
    {"adagrad_initial",
     SETTINGS(.kind = LK_ADAGRAD, .lr = 1e-1, .epsilon = 1e-10, .initial_accumulator_value = 0.1, .clip = 0.2)},
    {"adagrad_groups", SETTINGS(.kind = LK_ADAGRAD, .lr = 1e-2, .epsilon = 1e-10, .weight_decay = 0.1, GROUPS(groups))},
};

/* With gradients that do not depend on the parameters. */
static const trajectory given[] = {
    {"sgd", SETTINGS(.kind = LK_SGD, .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1)},
    {"adam", SETTINGS(.kind = LK_ADAM, .lr = 1e-3, .weight_decay = 0.1)},
    {"adamw", SETTINGS(.kind = LK_ADAMW, .lr = 1e-3, .weight_decay = 0.1)},
    {"lion", SETTINGS(.kind = LK_LION, .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1)},
    {"rmsprop", SETTINGS(.kind = LK_RMSPROP, .lr = 1e-3, .weight_decay = 0.1)},
    {"rmsprop_momentum", SETTINGS(.kind = LK_RMSPROP, .lr = 1e-3, .momentum = 0.9)},
    {"rmsprop_all",
     SETTINGS(.kind = LK_RMSPROP, .lr = 1e-3, .alpha = 0.95, .momentum = 0.8, .centered = true, .weight_decay = 0.05)},
    {"adagrad", SETTINGS(.kind = LK_ADAGRAD, .lr = 1e-2, .epsilon = 1e-10, .lr_decay = 0.02, .weight_decay = 0.1)},
    {"adagrad_initial", SETTINGS(.kind = LK_ADAGRAD, .lr = 1e-2, .epsilon = 1e-10, .initial_accumulator_value = 0.1)},
};
static const struct {
    lk_optimizer_config config;
    const char         *why;
} refused[] = {
    {SETTINGS(.kind = LK_RMSPROP, .alpha = 1), "alpha is out of range: it is 1; expected 0 to 0.9999999"},
    {SETTINGS(.kind = LK_RMSPROP, .momentum = -0.5), "momentum is out of range: it is -0.5"},
    {SETTINGS(.kind = LK_ADAGRAD, .lr_decay = -1), "lr-decay is out of range"},
    {SETTINGS(.kind = LK_ADAGRAD, .initial_accumulator_value = NAN), "initial-accumulator-value is out of range"},
    {SETTINGS(.kind = LK_LION, .beta1 = 1), "beta1 is out of range"},
    {SETTINGS(.kind = LK_SGD, .nesterov = true), "nesterov requires a momentum above 0"},
    {SETTINGS(.kind = LK_SGD, .lr = -1), "lr is out of range: it is -1; expected a finite number of at least 0"},
    {SETTINGS(.kind = (lk_optimizer_kind)99), "unknown optimizer 99"},
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

/* A parameter times an input: the input is its gradient. */
static lk_tensor product_loss(rig *r, lk_dtype type)
{
    int64_t   n = GIVEN;
    lk_tensor x = lk_input(r->graph, "x", type, 2, ((int64_t[]){1, n}));
    lk_tensor p = lk_parameter(r->graph, "p", 1, &n, .init = LK_INIT_CONSTANT);
    return lk_sum(lk_mul(x, p));
}

static void widen(lk_dtype type, const void *data, double out[GIVEN])
{
    if (type == LK_F64) memcpy(out, data, GIVEN * sizeof *out);
    for (int i = 0; i < GIVEN && type == LK_F32; i++) out[i] = (double)((const float *)data)[i];
}

static void fill_plain(lk_dtype type, uint64_t seed, void *data)
{
    for (uint64_t i = 0; i < GIVEN; i++) {
        double u = 2 * number(seed, i) - 1;
        if (type == LK_F32)
            ((float *)data)[i] = (float)u;
        else
            ((double *)data)[i] = u;
    }
}

static void check_given(const trajectory *t, lk_dtype type, double tolerance)
{
    rig            r = rig_open(type, 1);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    double         x[GIVEN], off = 0, largest = 0;
    config.loss = product_loss(&r, type);
    config.optimizer = &t->config;
    rig_plan(&r, &config, 1);
    lk__safetensors *file = golden_open(r.context, "optimizers.safetensors");
    double          *expected = golden(file, "given/", t->name, NULL);
    fill_plain(type, 7, x);
    REQUIRE(lk_store_write(r.store, "p", LK_STATE_VALUE, 0, GIVEN, x, GIVEN * lk_dtype_size(type)) == LK_OK);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK);
    for (int step = 1; step <= STEPS; step++) {
        fill_plain(type, 3000 + (uint64_t)step, x);
        lk_step now = {.step = step, .count = 1, .rate = t->config.lr * (1 - 0.005 * step)};
        REQUIRE(lk_program_train(r.program, &now) == LK_OK);
    }
    widen(type, state_copy(r.store, "p"), x);
    for (int i = 0; i < GIVEN; i++) {
        largest = fmax(largest, fabs(expected[i]));
        off = fmax(off, fabs(x[i] - expected[i]));
    }
    CHECK(off <= tolerance * largest, "%s in %s differs by %g of %g", t->name, lk_dtype_name(type), off, largest);
    free(expected);
    lk__safetensors_close(file);
    rig_close(&r);
}

static void optimizers_follow_pytorch_in_both_types(void)
{
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        check_given(&given[i], LK_F64, 1e-12);
        check_given(&given[i], LK_F32, 1e-6);
    }
}

/* ---- descriptors ---- */

/* Help begins with the optimizers that have the option: "sgd, rmsprop: momentum". */
static void check_help(const char *option, const char *help)
{
    char owners[256] = "";
    for (int i = 0; lk_optimizer_name((lk_optimizer_kind)i); i++)
        if (lk_optimizer_has((lk_optimizer_kind)i, option))
            snprintf(owners + strlen(owners), sizeof owners - strlen(owners), "%s%s", *owners ? ", " : "",
                     lk_optimizer_name((lk_optimizer_kind)i));
    CHECK(*owners && strncmp(help, owners, strlen(owners)) == 0 && help[strlen(owners)] == ':',
          "%s: %s, but %s have it", option, help, owners);
}

static void descriptors_agree_with_each_other(void)
{
    lk_optimizer_config init = LK_OPTIMIZER_CONFIG_INIT, adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_optimizer_defaults(LK_ADAM, &adam);
    CHECK(memcmp(&init, &adam, sizeof init) == 0);
#define NUMBER(field, name, value, low, high, doc) check_help(name, doc);
#define PAIR(id, first, second, name, argument, a, b, low, high, doc) check_help(name, doc);
#define FLAG(field, name, doc) check_help(name, doc);
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    for (int i = 0; lk_optimizer_name((lk_optimizer_kind)i); i++) {
        const lk__graph_optimizer *o = lk__optimizer_find((lk_optimizer_kind)i);
        const lk__graph_op        *op = lk__op_find(o->op);
        int                        moments = 0;
        while (moments < LK_MAX_MOMENTS && o->moments[moments]) moments++;
        CHECK(op->outputs == 2 + moments, "%s: %d outputs, and %d moments", o->name, op->outputs, moments);
        lk_optimizer_defaults((lk_optimizer_kind)i, &adam);
        char why[256];
        CHECK(lk__optimizer_check(&adam, why, sizeof why), "%s: %s", o->name, why);
        CHECK(lk__optimizer_keeps(&adam) >> moments == 0);
        lk__op_attrs attrs = {.weight_decay = 1, .lr_scale = 1};
        lk__optimizer_attributes(&adam, &attrs);
        CHECK((lk__attrs_set(&attrs) & ~op->attributes) == 0, "%s sets attributes that its operation lacks", o->name);
    }
    CHECK(!lk_optimizer_name((lk_optimizer_kind)-1) && !lk_optimizer_has(LK_SGD, "betas") &&
          !lk_optimizer_has(LK_SGD, "lr"));
    lk_optimizer_defaults(LK_LION, &adam);
    CHECK(adam.kind == LK_LION && adam.beta2 == 0.99);
    lk_optimizer_defaults(LK_ADAGRAD, &adam);
    CHECK(adam.epsilon == 1e-10 && adam.beta2 == 0.999);
}

static bool has_same_text(const lk_optimizer_config *a, const lk_optimizer_config *b)
{
    char text[2][512];
    return strcmp(lk__optimizer_text(a, text[0], sizeof text[0]), lk__optimizer_text(b, text[1], sizeof text[1])) == 0;
}

/* Ranks compare this text: it shows every option that the optimizer has, and none that it ignores. */
static void texts_differ_where_optimizers_do(void)
{
    for (int i = 0; lk_optimizer_name((lk_optimizer_kind)i); i++) {
        lk_optimizer_config a = LK_OPTIMIZER_CONFIG_INIT, b;
        lk_optimizer_defaults((lk_optimizer_kind)i, &a);
        b = a;
        CHECK(has_same_text(&a, &b));
        b.kind = (lk_optimizer_kind)(i ? 0 : 1);
        CHECK(!has_same_text(&a, &b));
#define NUMBER(field, name, value, low, high, doc)                                              \
    b = a, b.field += 1e-15;                                                                    \
    CHECK(has_same_text(&a, &b) != lk_optimizer_has((lk_optimizer_kind)i, name), "%s: %s", name, \
          lk_optimizer_name((lk_optimizer_kind)i));
#define PAIR(id, first, second, name, argument, x, y, low, high, doc) \
    NUMBER(first, name, x, low, high, doc) NUMBER(second, name, y, low, high, doc)
#define FLAG(field, name, doc) \
    b = a, b.field = true;     \
    CHECK(has_same_text(&a, &b) != lk_optimizer_has((lk_optimizer_kind)i, name), "%s", name);
        LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    }
}

static void options_out_of_range_are_named(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char why[256] = "";
        CHECK(!lk__optimizer_check(&refused[i].config, why, sizeof why) && strstr(why, refused[i].why), "%s", why);
    }
}

/* ---- state ---- */

static void check_moments(const lk_optimizer_config *o, int count, const char *const *names, double initial)
{
    rig            r = rig_open(LK_F32, 1);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = product_loss(&r, LK_F32);
    config.optimizer = o;
    rig_plan(&r, &config, 1);
    lk_state s = lk_store_at(r.store, 0);
    CHECK(s.moments == count && s.moment[0] == lk_store_moment(r.store, 0, 0), "%d moments", s.moments);
    for (int m = 0; m < count; m++) {
        float first;
        CHECK(strcmp(lk_store_moment_name(r.store, 0, m), names[m]) == 0, "%s", lk_store_moment_name(r.store, 0, m));
        REQUIRE(lk_store_read(r.store, "p", (lk_state_part)(LK_STATE_MOMENT_0 + m), GIVEN - 1, 1, &first, 4) == LK_OK);
        CHECK(first == (float)initial, "%s begins with %g", names[m], (double)first);
    }
    CHECK(!lk_store_moment_name(r.store, 0, count) && !lk_store_moment(r.store, 0, count) &&
          !lk_store_moment(r.store, 0, -1));
    rig_close(&r);
}

static void moments_are_those_that_the_settings_need(void)
{
    lk_optimizer_config o = LK_OPTIMIZER_CONFIG_INIT;
    check_moments(&o, 2, (const char *const[]){"exp_avg", "exp_avg_sq"}, 0);
    o.kind = LK_SGD;
    check_moments(&o, 0, NULL, 0);
    o.kind = LK_LION;
    check_moments(&o, 1, (const char *const[]){"exp_avg"}, 0);
    o.kind = LK_RMSPROP;
    check_moments(&o, 1, (const char *const[]){"square_avg"}, 0);
    o.momentum = 0.5;
    check_moments(&o, 2, (const char *const[]){"square_avg", "momentum_buffer"}, 0);
    o.centered = true;
    check_moments(&o, 3, (const char *const[]){"square_avg", "grad_avg", "momentum_buffer"}, 0);
    o.kind = LK_ADAGRAD;
    o.initial_accumulator_value = 0.25;
    check_moments(&o, 1, (const char *const[]){"sum"}, 0.25);
}

/* ---- schedules and names ---- */

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
    CHECK(lk_optimizer_parse("rmsprop", &o) && o == LK_RMSPROP && strcmp(lk_optimizer_name(o), "rmsprop") == 0);
    CHECK(lk_schedule_parse("cosine", &s) && s == LK_SCHEDULE_COSINE && lk_schedule_parse("step", &s) &&
          s == LK_SCHEDULE_STEP);
    CHECK(lk_schedule_parse("constant", &s) && s == LK_SCHEDULE_CONSTANT && !lk_schedule_parse("linear", &s));
}

int main(void)
{
    RUN(optimizers_follow_pytorch_for_100_steps);
    RUN(optimizers_follow_pytorch_in_both_types);
    RUN(descriptors_agree_with_each_other);
    RUN(texts_differ_where_optimizers_do);
    RUN(options_out_of_range_are_named);
    RUN(moments_are_those_that_the_settings_need);
    RUN(schedules_give_pytorchs_rates);
    RUN(names_are_parsed);
    return check_result();
}
