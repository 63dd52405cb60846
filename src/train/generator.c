/* generator.c - the programs of generation: two over one store, which share the cache of keys and values. One runs
 * chunks of prompts, the other one token of each prompt. All memory is allocated before the first step. The last token
 * of a prompt runs in the second program, so the first computes no logits, and the planner leaves out what its last
 * layer would need for them. */
#include "train/generator.h"

#include "base/config.h"
#include "base/dtype.h"
#include "plan/like.h"
#include "train/load.h"
#include "train/writers.h"

#include <lockstep/program.h>
#include <stdio.h>
#include <string.h>

enum { COPIED = 1 << 16 }; /* elements that are copied at a time from another store */

static const char *const input_names[LK__GENERATOR_INPUTS] = {"tokens", "positions", "rows", "first", "last"};

/* ---- creation ---- */

static size_t inputs_bytes(const lk_generator *g)
{
    return (size_t)(g->config.batch * g->width[LK__GENERATOR_CHUNK]) * sizeof(int32_t);
}
static size_t logits_bytes(const lk_generator *g) { return lk__generator_logits_bytes(g, g->config.batch); }
static size_t prompts_bytes(const lk_generator *g) { return (size_t)g->config.batch * sizeof *g->prompts; }
static size_t scratch_bytes(const lk_generator *g) { return g->kernel->workspace(&g->choice, 1); }

static lk_status check_config(lk_context *c, lk_generator_config *config)
{
    if (!config->model) return lk__fail(c, LK_EINVAL, "lk_generator_config.model is missing");
    char why[300];
    if (!lk_transformer_check(config->model, why, sizeof why)) return lk__fail(c, LK_EINVAL, "%s", why);
    if (config->model->kind == LK_TRANSFORMER_ENCODER)
        return lk__fail(c, LK_EINVAL, "an encoder predicts classes, not text: use gpt or llama");
    if (config->weights && config->store) return lk__fail(c, LK_EINVAL, "weights and a store are mutually exclusive");
    if (config->batch == 0) config->batch = 1;
    if (config->context == 0) config->context = config->model->context;
    if (config->chunk == 0) config->chunk = 32;
    if (config->context < 1 || config->context > config->model->context)
        return lk__fail(c, LK_EINVAL, "a context of %lld tokens is invalid: the model supports 1 to %lld",
                        (long long)config->context, (long long)config->model->context);
    if (config->batch < 1 || config->batch > 1 << 20 || config->chunk < 1)
        return lk__fail(c, LK_EINVAL,
                        "%lld prompts at once in chunks of %lld tokens are invalid: expected 1 to 1048576 prompts, and "
                        "chunks of at least 1 token",
                        (long long)config->batch, (long long)config->chunk);
    if (config->chunk > config->context) config->chunk = config->context;
    return LK_OK;
}

/* The model over the cache, and the logits, which the program of chunks does not compute: both have the same states. */
static lk_status record_model(lk_generator *g, int which, const lk_plan *like)
{
    int64_t   dims[] = {g->config.batch, g->width[which]};
    lk_tensor in[LK__GENERATOR_INPUTS] = {{0}};
    lk_status status = lk_graph_create(g->context, g->config.dtype, &g->graph[which]);
    if (status < 0) return status;
    for (int i = 0; i < LK__GENERATOR_INPUTS; i++)
        if (i != LK__GENERATOR_FIRST || g->model.window > 0)
            in[i] = lk_input(g->graph[which], input_names[i], LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(
        in[LK__GENERATOR_TOKENS], &g->model, .positions = in[LK__GENERATOR_POSITIONS], .first = in[LK__GENERATOR_FIRST],
        .last = in[LK__GENERATOR_LAST], .cache = g->config.context, .rows = in[LK__GENERATOR_ROWS]);
    lk_tensor      logits = lk_f_linear(result.hidden, result.head, ((lk_tensor){0}));
    lk_plan_config plan = LK_PLAN_CONFIG_INIT;
    plan.policy = g->config.policy;
    plan.outputs = &logits;
    plan.outputs_count = which == LK__GENERATOR_STEP ? 1 : 0;
    plan.mesh = g->config.mesh;
    return like ? lk__plan_create_like(g->graph[which], &plan, like, &g->plan[which])
                : lk_plan_create(g->graph[which], &plan, &g->plan[which]);
}

/* Both programs have one store: states are split as the step's program has them, which reads all of them. */
static lk_status record_models(lk_generator *g)
{
    lk_status status = record_model(g, LK__GENERATOR_STEP, NULL);
    return status < 0 ? status : record_model(g, LK__GENERATOR_CHUNK, g->plan[LK__GENERATOR_STEP]);
}

/* One parameter of another store, which may have another type. */
static lk_status copy_state(lk_generator *g, const lk_state *to, void *buffer)
{
    lk_state from;
    int64_t  elements = 1;
    bool     same = lk_store_find(g->config.store, to->name, &from) && from.rank == to->rank;
    for (int i = 0; i < to->rank; i++) {
        elements *= to->dims[i];
        same = same && from.dims[i] == to->dims[i];
    }
    if (!same)
        return lk__fail(g->context, LK_EMISMATCH,
                        "the store has no \"%s\" with the model's shape: it belongs to a different model", to->name);
    size_t from_size = lk_dtype_size(from.dtype), size = lk_dtype_size(to->dtype);
    char  *converted = from.dtype == to->dtype ? buffer : (char *)buffer + COPIED * sizeof(double);
    for (int64_t at = 0; at < elements; at += COPIED) {
        int64_t   count = elements - at < COPIED ? elements - at : COPIED;
        lk_status status =
            lk_store_read(g->config.store, to->name, LK_STATE_VALUE, at, count, buffer, (size_t)count * from_size);
        if (status < 0) return status;
        if (from.dtype != to->dtype) lk__dtype_convert(from.dtype, buffer, to->dtype, converted, (size_t)count);
        status = lk_store_write(g->store, to->name, LK_STATE_VALUE, at, count, converted, (size_t)count * size);
        if (status < 0) return status;
    }
    return LK_OK;
}

static lk_status copy_store(lk_generator *g)
{
    size_t    bytes = 2 * COPIED * sizeof(double);
    void     *buffer = lk__alloc(g->context, LK_MEMORY_OTHER, bytes);
    lk_status status = buffer ? LK_OK : LK_ENOMEM;
    for (size_t i = 0; i < lk_store_count(g->store) && status >= 0; i++) {
        lk_state state = lk_store_at(g->store, i);
        if (!state.not_saved) status = copy_state(g, &state, buffer);
    }
    lk__free(g->context, LK_MEMORY_OTHER, buffer, bytes);
    return status;
}

/* Rank 0 reads them, and sends the others what they have of them. */
static lk_status load_weights(lk_generator *g)
{
    lk_comm       *comm = g->config.comm;
    lk__load_group group = {.store = g->store, .comm = comm};
    lk_status      status = LK_OK;
    if (!comm) return lk_weights_load(g->store, g->config.weights);
    if (lk_comm_rank(comm) == 0) {
        g->store->alone = true; /* the others wait below */
        status = lk__weights_load_group(g->store, &group, g->config.weights);
        g->store->alone = false;
        lk_status ended = lk__load_group_end(&group);
        if (status >= 0) status = ended;
    } else if ((status = lk__load_group_serve(&group)) < 0 && lk_comm_status(comm) < 0) {
        return status;
    }
    status = lk__group_tell(g->context, comm, 0, status, NULL);
    bool whole = !g->plan[LK__GENERATOR_CHUNK]->splits; /* then rank 0 has read for itself alone */
    return status >= 0 && whole ? lk_program_broadcast(g->program[LK__GENERATOR_CHUNK]) : status;
}

static lk_status make_programs(lk_generator *g)
{
    lk_comm  *comm = g->config.comm;
    lk_plan  *plan = g->plan[LK__GENERATOR_CHUNK];
    lk_status status = comm ? lk_store_create_shared(plan, g->config.seed, comm, &g->store)
                            : lk_store_create(plan, g->config.seed, &g->store);
    for (int which = 0; which < LK__GENERATOR_PROGRAMS && status >= 0; which++) {
        status = lk_program_create(g->plan[which], g->store, comm, &g->program[which]);
        for (int i = 0; i < LK__GENERATOR_INPUTS && status >= 0; i++)
            if (i != LK__GENERATOR_FIRST || g->model.window > 0)
                status = lk_program_bind(g->program[which], input_names[i], g->inputs[i]);
    }
    if (status >= 0 && g->config.weights) status = load_weights(g);
    return status >= 0 && g->config.store ? copy_store(g) : status;
}

/* Tokens of steps that are chosen where the logits are, where the device does that. */
static lk_status make_queue(lk_generator *g)
{
    if (g->config.comm) return LK_OK; /* the host runs the collectives within a step */
    bool                 window = g->model.window > 0;
    lk__run_token_inputs inputs = {.tokens = input_names[LK__GENERATOR_TOKENS],
                                   .positions = input_names[LK__GENERATOR_POSITIONS],
                                   .rows = input_names[LK__GENERATOR_ROWS],
                                   .first = window ? input_names[LK__GENERATOR_FIRST] : NULL,
                                   .last = input_names[LK__GENERATOR_LAST],
                                   .window = g->model.window};
    lk_status            status = lk__tokens_create(g->program[LK__GENERATOR_STEP], &inputs, &g->queue);
    if (status < 0 || !g->queue) return status;
    g->prompts = lk__alloc(g->context, LK_MEMORY_OTHER, prompts_bytes(g));
    return g->prompts ? LK_OK : LK_ENOMEM;
}

/* What chooses a token on the host: the caller sets the data of a prompt. */
static void describe_choice(lk_generator *g)
{
    static const lk__op_attrs none;
    lk__kernel_operand       *in = g->choice.in, *out = g->choice.out;
    g->kernel = lk__cpu_kernel(g->config.dtype, lk_context_isa(g->context), LK__OP_choose_tokens);
    g->choice = (lk__kernel_call){.attrs = &none, .inputs = LK__TOKENS_INPUTS, .outputs = LK__TOKENS_PLACES};
    in[LK__TOKENS_LOGITS] = (lk__kernel_operand){.dtype = g->config.dtype, .rank = 2, .dims = {1, g->model.vocabulary}};
    in[LK__TOKENS_SAMPLING] = (lk__kernel_operand){.dtype = LK_U8, .rank = 1, .dims = {sizeof(lk__device_sampling)}};
    out[LK__TOKENS_CHOSEN] = (lk__kernel_operand){.dtype = LK_I32, .rank = 2, .dims = {LK__DEVICE_TOKEN_STEPS, 1}};
    out[LK__TOKENS_PROMPTS] = (lk__kernel_operand){.dtype = LK_U8, .rank = 2, .dims = {1, sizeof(lk__device_prompt)}};
}

/* Of the host: a GPU's memory says itself when it is not enough. */
static lk_status check_memory(lk_generator *g)
{
    size_t bytes = 0, available, total;
    lk_context_device_memory(g->context, &available, &total);
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) bytes += lk_generator_memory(g, (lk_memory)kind);
    if (g->config.comm) return lk_comm_check_memory(g->config.comm, total > 0 ? 0 : bytes);
    return total > 0 ? LK_OK : lk_context_check_memory(g->context, NULL, bytes);
}

/* The mesh of the config or, where it has none, one axis over the ranks of its group, which is freed again. */
static lk_status choose_mesh(lk_context *c, lk_generator_config *config, lk_mesh **own)
{
    int            ranks = config->comm ? lk_comm_size(config->comm) : 1;
    char           axes[32];
    lk_mesh_config about = LK_MESH_CONFIG_INIT;
    *own = NULL;
    if (ranks == 1) config->comm = NULL;
    if (config->mesh && config->comm &&
        (lk_mesh_size(config->mesh) != ranks || lk_mesh_rank(config->mesh) != lk_comm_rank(config->comm)))
        return lk__fail(c, LK_EMISMATCH, "the mesh %s does not match the %d rank%s of the group",
                        lk_mesh_text(config->mesh), ranks, ranks == 1 ? "" : "s");
    if (config->mesh && lk_mesh_extent(config->mesh, LK_AXIS_DATA) > 1)
        return lk__fail(c, LK_EUNSUPPORTED,
                        "the mesh %s has %d ranks along data, but all generating ranks must have the same prompts: use "
                        "the tensor and pipeline axes, or generate once for each part of the prompts",
                        lk_mesh_text(config->mesh), lk_mesh_extent(config->mesh, LK_AXIS_DATA));
    if (config->mesh || ranks == 1) return LK_OK;
    snprintf(axes, sizeof axes, "tensor=%d", ranks);
    about.axes = axes;
    about.rank = lk_comm_rank(config->comm);
    lk_status status = lk_mesh_create(c, &about, own);
    config->mesh = *own;
    return status;
}

/* Reads the config, records the model and plans it: nothing large is allocated. */
static lk_status begin_generator(lk_context *context, const lk_generator_config *given, lk_generator **generator)
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    lk_mesh            *own_mesh = NULL;
    *generator = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_generator_config, given, &config);
    if (status >= 0) status = check_config(context, &config);
    if (status >= 0) status = choose_mesh(context, &config, &own_mesh);
    lk_generator *g = status >= 0 ? lk__alloc(context, LK_MEMORY_OTHER, sizeof *g) : NULL;
    if (status >= 0 && !g) status = LK_ENOMEM;
    if (status >= 0) {
        g->context = context;
        g->config = config;
        g->model = *config.model;
        g->config.model = &g->model;
        g->model.dropout = g->model.attention_dropout = 0;
        if (g->model.kind == LK_TRANSFORMER_LLAMA) g->model.context = config.context; /* rows of the table of angles */
        describe_choice(g);
        g->width[LK__GENERATOR_CHUNK] = config.chunk;
        g->width[LK__GENERATOR_STEP] = 1;
    }
    if (status >= 0) status = record_models(g);
    lk_mesh_free(own_mesh);
    if (g) g->config.mesh = NULL; /* the plans have it */
    *generator = g;
    return status;
}

lk_status lk_generator_plan(lk_context *context, const lk_generator_config *config, size_t memory[LK_MEMORY_COUNT])
{
    lk_generator *g;
    lk_status     status = begin_generator(context, config, &g);
    for (int kind = 0; kind < LK_MEMORY_COUNT && status >= 0; kind++)
        memory[kind] = lk_generator_memory(g, (lk_memory)kind);
    lk_generator_free(g);
    return status;
}

lk_status lk_generator_create(lk_context *context, const lk_generator_config *config, lk_generator **generator)
{
    lk_generator *g;
    lk_status     status = begin_generator(context, config, &g);
    *generator = NULL;
    if (status >= 0) status = check_memory(g);
    for (int i = 0; i < LK__GENERATOR_INPUTS && status >= 0; i++)
        if (!(g->inputs[i] = lk__alloc(context, LK_MEMORY_WORKSPACE, inputs_bytes(g)))) status = LK_ENOMEM;
    if (status >= 0 && (!(g->logits = lk__alloc(context, LK_MEMORY_WORKSPACE, logits_bytes(g))) ||
                        !(g->choice.workspace = lk__alloc(context, LK_MEMORY_WORKSPACE, scratch_bytes(g)))))
        status = LK_ENOMEM;
    if (status >= 0) status = make_programs(g);
    if (status >= 0) status = make_queue(g);
    if (status < 0) {
        lk_generator_free(g);
        return status;
    }
    g->config.weights = NULL; /* borrowed */
    g->config.store = NULL;
    *generator = g;
    return LK_OK;
}

void lk_generator_free(lk_generator *g)
{
    if (!g) return;
    for (int i = 0; i < LK__GENERATOR_INPUTS; i++)
        lk__free(g->context, LK_MEMORY_WORKSPACE, g->inputs[i], inputs_bytes(g));
    lk__free(g->context, LK_MEMORY_WORKSPACE, g->logits, logits_bytes(g));
    lk__free(g->context, LK_MEMORY_WORKSPACE, g->choice.workspace, scratch_bytes(g));
    lk__tokens_free(g->queue);
    lk__free(g->context, LK_MEMORY_OTHER, g->prompts, prompts_bytes(g));
    for (int which = 0; which < LK__GENERATOR_PROGRAMS; which++) lk_program_free(g->program[which]);
    lk_store_free(g->store);
    for (int which = 0; which < LK__GENERATOR_PROGRAMS; which++) {
        lk_plan_free(g->plan[which]);
        lk_graph_free(g->graph[which]);
    }
    lk__free(g->context, LK_MEMORY_OTHER, g, sizeof *g);
}

/* The store belongs to the first plan; both programs have activations and a workspace. */
size_t lk_generator_memory(const lk_generator *g, lk_memory kind)
{
    bool   stored = kind == LK_MEMORY_PARAMETERS || kind == LK_MEMORY_MASTER || kind == LK_MEMORY_BUFFERS;
    size_t bytes =
        kind == LK_MEMORY_WORKSPACE ? LK__GENERATOR_INPUTS * inputs_bytes(g) + logits_bytes(g) + scratch_bytes(g) : 0;
    if (kind == LK_MEMORY_OTHER) return 0;
    bytes += lk__tokens_memory(g->queue, kind);
    for (int which = 0; which < (stored ? 1 : LK__GENERATOR_PROGRAMS); which++)
        bytes += lk_plan_memory(g->plan[which], kind);
    return bytes;
}

size_t lk_generator_weight_bytes(const lk_generator *g)
{
    size_t total = 0;
    for (size_t i = 0; i < lk_store_count(g->store); i++) {
        lk_state s = lk_store_at(g->store, i);
        bool     looked_up = strcmp(s.name, "transformer.wpe.weight") == 0 ||
                         (g->model.untied && strcmp(s.name, "model.embed_tokens.weight") == 0);
        size_t elements = 1;
        for (int k = 0; k < s.rank; k++) elements *= (size_t)s.dims[k];
        if (!s.buffer && !looked_up) total += elements * lk_dtype_size(s.stored);
    }
    return total;
}
