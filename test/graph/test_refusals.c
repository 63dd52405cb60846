/* test_refusals.c - calls of the library that cannot mean anything are refused with a message where they are made:
 * shapes with the batch on two axes, running statistics that are no buffers, names that are missing, settings that are
 * not numbers, counts without a pointer. */
#include "check.h"

#include <lockstep.h>
#include <lockstep/checkpoint.h>
#include <lockstep/transformer.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static lk_context *context;

/* The error of a graph once it is planned; NULL: there is none. */
static const char *error_of(lk_graph *g, lk_tensor loss)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *plan;
    config.loss = loss;
    lk_status status = lk_plan_create(g, &config, &plan);
    if (status >= 0) lk_plan_free(plan);
    lk_graph_free(g);
    return status < 0 ? lk_context_error(context) : NULL;
}
static lk_graph *new_graph(lk_tensor *x)
{
    lk_graph *g;
    CHECK(lk_graph_create(context, LK_F32, &g) == LK_OK);
    *x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){4, 3}));
    return g;
}
#define REFUSED(text, error)                                                  \
    do {                                                                      \
        const char *found = (error);                                          \
        CHECK(found && strstr(found, text), "%s", found ? found : "accepted"); \
    } while (0)

/* A shape has one axis whose length is the number of samples: results with two would contain those of an earlier,
 * larger batch. */
static void the_batch_is_one_axis(void)
{
    lk_tensor x, none = {0};
    lk_graph *g = new_graph(&x);
    REFUSED("would have two batch axes", error_of(g, lk_mean(lk_matmul(x, x, .transpose_b = true))));
    g = new_graph(&x);
    REFUSED("has a batch axis", error_of(g, lk_mean(lk_f_linear(x, x, none))));
    g = new_graph(&x);
    lk_tensor wide = lk_reshape(x, 3, ((int64_t[]){4, 1, 3}));
    REFUSED("would have two batch axes", error_of(g, lk_mean(lk_sub(wide, lk_permute(wide, (int[]){1, 0, 2})))));
    g = new_graph(&x);
    lk_tensor ids = lk_input(g, "ids", LK_I32, 2, ((int64_t[]){4, 2}));
    REFUSED("has a batch axis", error_of(g, lk_mean(lk_f_embedding(ids, x))));
    /* over the batch a product may sum: (3, 4*) × (4*, 3) */
    g = new_graph(&x);
    CHECK(!error_of(g, lk_mean(lk_matmul(x, x, .transpose_a = true))), "%s", lk_context_error(context));
}

static void running_statistics_are_buffers(void)
{
    lk_tensor x, none = {0};
    int64_t   three = 3;
    lk_graph *g = new_graph(&x);
    lk_tensor w = lk_parameter(g, "w", 1, &three), mean = lk_input(g, "mean", LK_F32, 1, &three, .fixed = true);
    lk_tensor var = lk_buffer(g, "var", LK_F32, 1, &three, 1);
    REFUSED("must be buffers", error_of(g, lk_mean(lk_f_batch_norm(x, w, none, mean, var, none))));
}

static void names_are_needed(void)
{
    lk_tensor   x;
    int64_t     three = 3;
    const char *missing = NULL;
    lk_graph   *g = new_graph(&x);
    (void)lk_input(g, missing, LK_F32, 1, &three);
    REFUSED("need a name", error_of(g, lk_mean(x)));
    g = new_graph(&x);
    (void)lk_parameter(g, missing, 1, &three);
    REFUSED("need a name", error_of(g, lk_mean(x)));
    g = new_graph(&x);
    lk_tie(lk_parameter(g, "w", 1, &three), missing);
    REFUSED("need a name", error_of(g, lk_mean(x)));
}

/* The error of a plan with this optimizer, or of a step with this rate. */
static const char *error_of_step(const lk_optimizer_config *optimizer, double rate)
{
    lk_tensor      x;
    lk_graph      *g = new_graph(&x);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *plan = NULL;
    lk_store      *store = NULL;
    lk_program    *program = NULL;
    static float   samples[12];
    config.loss = lk_mean(lk_linear(x, "f", 2));
    config.optimizer = optimizer;
    lk_status status = lk_plan_create(g, &config, &plan);
    if (status >= 0) status = lk_store_create_shared(plan, 1, NULL, &store); /* one rank: no group is needed */
    if (status >= 0) status = lk_program_create(plan, store, NULL, &program);
    if (status >= 0) status = lk_program_bind(program, "x", samples);
    if (status >= 0) status = lk_program_train(program, &(lk_step){.step = 1, .count = 4, .rate = rate});
    CHECK(status == LK_OK || status == LK_EINVAL, "%s", lk_status_name(status));
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(g);
    return status < 0 ? lk_context_error(context) : NULL;
}

static void settings_are_numbers_in_range(void)
{
    lk_optimizer_config good = LK_OPTIMIZER_CONFIG_INIT, o = good;
    CHECK(!error_of_step(&good, 0.1), "%s", lk_context_error(context));
    const double rates[] = {NAN, INFINITY, -0.5}; /* -1 is LK_RATE_OF_OPTIMIZER */
    for (int i = 0; i < 3; i++) REFUSED("expected a finite number", error_of_step(&good, rates[i]));
    o.kind = (lk_optimizer_kind)7;
    REFUSED("unknown optimizer 7", error_of_step(&o, 0.1));
    double *const settings[] = {&o.lr, &o.weight_decay, &o.momentum, &o.dampening, &o.epsilon};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        o = good;
        *settings[i] = INFINITY;
        REFUSED("out of range", error_of_step(&o, 0.1));
    }
    o = good;
    o.groups_count = 3;
    REFUSED("groups is NULL", error_of_step(&o, 0.1));
}

static void counts_fit_their_pointers(void)
{
    lk_tensor      x;
    lk_graph      *g = new_graph(&x);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *plan;
    config.outputs = &x;
    config.outputs_count = -1;
    CHECK(lk_plan_create(g, &config, &plan) == LK_EINVAL);
    config.outputs = NULL;
    config.outputs_count = 1;
    CHECK(lk_plan_create(g, &config, &plan) == LK_EINVAL);
    lk_graph_free(g);
}

static void transformers_have_known_parts(void)
{
    char                  why[256];
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    c.vocabulary = 10, c.context = 8, c.layers = 1, c.heads = 2, c.width = 4;
    CHECK(lk_transformer_check(&c, why, sizeof why), "%s", why);
    lk_transformer_config other = c;
    other.activation = (lk_activation)9;
    CHECK(!lk_transformer_check(&other, why, sizeof why) && strstr(why, "activation 9"));
    other = c;
    other.kind = (lk_transformer_kind)9;
    CHECK(!lk_transformer_check(&other, why, sizeof why));
    other = c;
    other.rope_scaling = (lk_rope_scaling)9;
    CHECK(!lk_transformer_check(&other, why, sizeof why));
}

/* Before, b + 2 + SIZE_MAX / 2 elements of 4 bytes was an address in front of the buffer. */
static void displacements_do_not_overflow(void)
{
    lk_comm     *comm;
    float        a[2] = {1, 2}, b[4] = {7, 7, 7, 7};
    const size_t counts[1] = {2}, far[1] = {SIZE_MAX / 2}, near[1] = {0};
    unsetenv("WORLD_SIZE");
    CHECK(lk_comm_create(context, NULL, &comm) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk_comm_all_gatherv(comm, a, b + 2, counts, far, LK_F32, NULL) == LK_EINVAL);
    CHECK(b[0] == 7 && b[1] == 7 && b[2] == 7 && b[3] == 7);
    CHECK(lk_comm_all_gatherv(comm, a, b + 2, counts, near, LK_F32, NULL) == LK_OK && b[2] == 1 && b[3] == 2);
    lk_comm_free(comm);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    RUN(the_batch_is_one_axis);
    RUN(running_statistics_are_buffers);
    RUN(names_are_needed);
    RUN(settings_are_numbers_in_range);
    RUN(counts_fit_their_pointers);
    RUN(transformers_have_known_parts);
    RUN(displacements_do_not_overflow);
    lk_context_free(context);
    return check_result();
}
