/* schedule_plans.h - the plans whose schedules test_schedule.c verifies: every way to split a step over ranks, leaves,
 * micro-batches and memory, for any rank, without a group. */
#ifndef SCHEDULE_PLANS_H
#define SCHEDULE_PLANS_H

#include "check.h"
#include "plan/verify_schedule.h"

#include <lockstep/nn.h>
#include <lockstep/transformer.h>

#define ENVIRONMENT "" /* the device that LOCKSTEP_DEVICE names: cuda where the test runs on the emulation */

typedef enum net { MLP, CNN, RESNET, GPT, CACHED, HEADS } net;

typedef struct layout {
    const char   *name;
    net           net;
    int           world, micro_batches, leaves, hosts;
    lk_state_mode state;
    double        clip;
    lk_policy     policy;
    lk_dtype      gradients;
    bool          sync, one_by_one, recompute, overlaps, adam;
    bool          queues;  /* on a device that records */
    const char   *device;  /* NULL: the CPU */
    size_t        buckets; /* bytes; 0: 2048 */
} layout;

static const layout layouts[] = {
    {"one rank", CNN, .world = 1},
    {"one rank, micro-batches", CNN, 1, .micro_batches = 3},
    {"one rank, leaves as one batch", MLP, 1, .leaves = 6, .clip = 1},
    {"one rank, leaves one by one", MLP, 1, .leaves = 5, .one_by_one = true},
    {"one rank, leaves together", RESNET, 1, .leaves = 3, .sync = true},
    {"one rank, recomputed blocks", GPT, 1, .recompute = true, .adam = true, .clip = 1},
    {"one rank, several losses", HEADS, 1, .micro_batches = 2},
    {"one rank, several losses, leaves", HEADS, 1, .leaves = 4},
    {"one rank, guarded", CNN, 1, .micro_batches = 2, .device = "guarded"},
    {"one rank, queued", CNN, 1, .queues = true, .device = "guarded"},
    {"one rank, queued, micro-batches", MLP, 1, .micro_batches = 3, .clip = 1, .queues = true, .device = "guarded"},
    {"cached generation", CACHED, .world = 1},
    {"replicated", CNN, 3, .overlaps = true},
    {"replicated, micro-batches", MLP, 4, .micro_batches = 3, .clip = 1, .adam = true, .overlaps = true},
    {"replicated, bf16 gradients", MLP, 2, .gradients = LK_BF16, .overlaps = true},
    {"replicated, policy bf16", GPT, 2, .policy = LK_POLICY_BF16, .adam = true, .overlaps = true},
    {"replicated, synchronised norm", RESNET, 2, .sync = true, .overlaps = true},
    {"replicated, guarded", MLP, 3, .device = "guarded"},
    {"replicated, guarded, bf16 gradients", MLP, 2, .micro_batches = 2, .gradients = LK_BF16, .device = "guarded"},
    {"replicated, several losses", HEADS, 3, .micro_batches = 2},
    {"replicated, aligned leaves", MLP, 4, .leaves = 8, .clip = 1, .overlaps = true},
    {"replicated, aligned leaves one by one", MLP, 2, .leaves = 4, .one_by_one = true},
    {"replicated, unaligned leaves", MLP, 3, .leaves = 8},
    {"replicated, unaligned leaves, guarded", MLP, 3, .leaves = 7, .one_by_one = true, .device = "guarded"},
    {"replicated, leaves together", RESNET, 2, .leaves = 5, .sync = true},
    {"shared", CNN, 3, .state = LK_STATE_SHARED},
    {"shared, reduced while backward runs", CNN, 2, .state = LK_STATE_SHARED, .overlaps = true, .buckets = 65536},
    {"shared, clipped", MLP, 4, .state = LK_STATE_SHARED, .clip = 1, .adam = true},
    {"shared, micro-batches, bf16 gradients", MLP, 2, .micro_batches = 2, .state = LK_STATE_SHARED,
     .gradients = LK_BF16},
    {"shared, policy bf16", GPT, 2, .state = LK_STATE_SHARED, .policy = LK_POLICY_BF16, .adam = true, .clip = 1},
    {"shared, unaligned leaves", MLP, 3, .leaves = 8, .state = LK_STATE_SHARED, .clip = 1},
    {"shared on hosts", MLP, 4, .hosts = 2, .state = LK_STATE_SHARED, .clip = 1},
    {"shared on hosts, bf16 gradients", MLP, 4, .hosts = 2, .state = LK_STATE_SHARED, .gradients = LK_BF16},
    {"shared on hosts, leaves", MLP, 4, .hosts = 2, .leaves = 8, .state = LK_STATE_SHARED},
    {"the environment's device, micro-batches", CNN, 1, .micro_batches = 3, .clip = 1, .device = ENVIRONMENT},
    {"the environment's device, bf16", GPT, 1, .policy = LK_POLICY_BF16, .adam = true, .device = ENVIRONMENT},
    {"the environment's device, cached generation", CACHED, 1, .device = ENVIRONMENT},
    {"the environment's device, ranks", CNN, 2, .gradients = LK_BF16, .overlaps = true, .device = ENVIRONMENT},
    {"the environment's device, unaligned leaves", MLP, 3, .leaves = 7, .device = ENVIRONMENT},
    {"shared on hosts, unaligned leaves", MLP, 6, .hosts = 2, .leaves = 8, .state = LK_STATE_SHARED, .clip = 1},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* ---- models ---- */

static lk_tensor record_gpt(lk_graph *g, int64_t capacity, bool recompute)
{
    lk_transformer_config config = LK_TRANSFORMER_CONFIG_INIT;
    config.vocabulary = 11;
    config.context = 6;
    config.layers = 2;
    config.heads = 2;
    config.width = 8;
    config.dropout = 0.1;
    config.recompute = recompute ? -1 : 0;
    lk_tensor             tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){capacity, 6}));
    lk_tensor             labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){capacity, 6}));
    lk_transformer_result r = lk_transformer(tokens, &config);
    return lk_linear_cross_entropy(r.hidden, r.head, labels);
}

/* Logits of a model that keeps keys and values. */
static lk_tensor record_cached(lk_graph *g)
{
    lk_transformer_config config = LK_TRANSFORMER_CONFIG_INIT;
    config.vocabulary = 11;
    config.context = 6;
    config.layers = 2;
    config.heads = 2;
    config.width = 8;
    static const char *const names[] = {"tokens", "positions", "rows", "last"};
    lk_tensor                in[4];
    for (int i = 0; i < 4; i++) in[i] = lk_input(g, names[i], LK_I32, 2, ((int64_t[]){2, 1}));
    lk_transformer_result r =
        lk_transformer(in[0], &config, .positions = in[1], .rows = in[2], .last = in[3], .cache = 6);
    return lk_f_linear(r.hidden, r.head, (lk_tensor){0});
}

static lk_tensor record_heads(lk_graph *g, int64_t capacity)
{
    lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){capacity, 5}));
    lk_tensor label = lk_input(g, "label", LK_I32, 1, ((int64_t[]){capacity}));
    lk_tensor target = lk_input(g, "target", LK_F32, 2, ((int64_t[]){capacity, 2}));
    lk_tensor h = lk_tanh(lk_linear(x, "trunk", 4));
    lk_tensor a = lk_cross_entropy(lk_linear(h, "a", 3), label), b = lk_mse(lk_linear(h, "b", 2), target);
    return lk_add(a, lk_scale(b, 0.5));
}

static lk_tensor record_images(lk_graph *g, const layout *l, int64_t capacity)
{
    static const char *const names[] = {[MLP] = "mlp", [CNN] = "cnn", [RESNET] = "resnet20"};
    lk_tensor                x = lk_input(g, "x", LK_F32, 4, ((int64_t[]){capacity, 3, 8, 8}));
    lk_tensor                y = lk_input(g, "y", LK_I32, 1, ((int64_t[]){capacity}));
    return lk_cross_entropy(lk_model_find(names[l->net])(x, (lk_model_options){.hidden = 16}), y);
}

/* ---- plans ---- */

/* A device that records its work, as far as plans ask for it. */
static lk_status record_nothing(lk__device *device, lk__device_stream *stream)
{
    (void)device, (void)stream;
    return LK_EUNSUPPORTED;
}
static lk__device_backend recording_backend;
static lk__device         recording_device;

typedef struct planned {
    lk_context    *context;
    lk_plan       *plan;
    lk__plan_group group;
} planned;

static planned open_plan(const layout *l, int rank)
{
    planned             p = {.group.overlaps = l->overlaps};
    lk_context_config   setting = LK_CONTEXT_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_graph           *g;
    setting.threads = 1;
    setting.device = !l->device ? "cpu" : *l->device ? l->device : NULL;
    REQUIRE(lk_context_create(&setting, &p.context) == LK_OK);
    REQUIRE(lk_graph_create(p.context, LK_F32, &g) == LK_OK);
    config.parallel = (lk_parallel){.world = l->world,
                                    .rank = rank,
                                    .micro_batches = l->micro_batches,
                                    .leaves = l->leaves,
                                    .state = l->state,
                                    .hosts = l->hosts,
                                    .bucket_bytes = l->buckets ? l->buckets : 2048};
    optimizer.kind = l->adam ? LK_ADAMW : LK_SGD;
    optimizer.momentum = 0.9;
    optimizer.clip = l->clip;
    config.policy = l->policy;
    config.gradient_dtype = l->gradients;
    config.sync_batch_norm = l->sync;
    config.optimizer = l->net == CACHED ? NULL : &optimizer;
    int64_t   capacity = lk_parallel_capacity(&config.parallel, 24);
    lk_tensor made = l->net == GPT      ? record_gpt(g, capacity, l->recompute)
                     : l->net == CACHED ? record_cached(g)
                     : l->net == HEADS  ? record_heads(g, capacity)
                                        : record_images(g, l, capacity);
    if (l->net == CACHED)
        config.outputs = &made, config.outputs_count = 1;
    else
        config.loss = made;
    REQUIRE(lk__plan_create(g, &config, l->one_by_one, &p.plan) == LK_OK, "%s: %s", l->name,
            lk_context_error(p.context));
    lk_graph_free(g);
    p.group.staged = !lk__device_is_host(p.plan->device); /* no backend reaches another memory than the host's */
    if (!l->queues) return p;
    recording_backend = *p.plan->device->backend;
    recording_backend.recording.record_begin = record_nothing;
    recording_device = *p.plan->device;
    recording_device.backend = &recording_backend;
    p.plan->device = &recording_device;
    return p;
}

static void close_plan(planned *p)
{
    lk_plan_free(p->plan);
    lk_context_free(p->context);
}

#endif
