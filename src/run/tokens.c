/* tokens.c - steps of generation that are queued: a step's kernels and the choice of its tokens are one recording,
 * which leaves the inputs of the next step in the device's memory. The host queues steps ahead, and reads tokens from
 * pinned memory as each step ends. */
#include "run/generator_interface.h"
#include "run/interpreter.h"

#include <string.h>

struct lk__run_tokens {
    lk_program       *p;
    lk__op_attrs      attrs;
    lk__device_kernel kernel; /* of choose_tokens */
    lk__kernel_call   work;
    lk__device_event *ended[LK__DEVICE_TOKEN_STEPS]; /* by the step's number */
    int32_t          *chosen;                        /* pinned */
    char             *block;                         /* the device's: sampling, prompts */
    char             *pinned;                        /* from which it is copied */
    char             *workspace;
    int64_t           most, vocabulary; /* most: prompts */
    size_t            workspace_bytes;
    int64_t           queued, read; /* steps since lk__tokens_begin */
};

static size_t chosen_bytes(const lk__run_tokens *t)
{
    return (size_t)t->most * LK__DEVICE_TOKEN_STEPS * sizeof *t->chosen;
}
static size_t block_bytes(const lk__run_tokens *t)
{
    return sizeof(lk__device_sampling) + (size_t)t->most * sizeof(lk__device_prompt);
}

static void set_operand(lk__kernel_operand *o, void *data, lk_dtype type, int rank, const int64_t *dims)
{
    *o = (lk__kernel_operand){.data = data, .dtype = type, .rank = rank};
    memcpy(o->dims, dims, (size_t)rank * sizeof *dims);
}

/* Of so many prompts. Memory that is not allocated yet is NULL. */
static void set_operands(lk__run_tokens *t, int64_t rows)
{
    lk__kernel_operand *in = t->work.in, *out = t->work.out;
    char               *prompts = t->block ? t->block + sizeof(lk__device_sampling) : NULL;
    set_operand(&in[LK__TOKENS_LOGITS], in[LK__TOKENS_LOGITS].data, in[LK__TOKENS_LOGITS].dtype, 2,
                (int64_t[]){rows, t->vocabulary});
    set_operand(&in[LK__TOKENS_SAMPLING], t->block, LK_U8, 1, (int64_t[]){sizeof(lk__device_sampling)});
    set_operand(&out[LK__TOKENS_CHOSEN], t->chosen, LK_I32, 2, (int64_t[]){LK__DEVICE_TOKEN_STEPS, rows});
    set_operand(&out[LK__TOKENS_PROMPTS], prompts, LK_U8, 2, (int64_t[]){rows, sizeof(lk__device_prompt)});
    for (int i = LK__TOKENS_PLACES; i < LK__TOKENS_OUTPUTS; i++) set_operand(&out[i], out[i].data, LK_I32, 1, &rows);
}

/* The device's memory of an input becomes an output. */
static lk_status find_input(lk__run_tokens *t, int output, const char *name)
{
    lk_program     *p = t->p;
    const lk_graph *g = p->plan->graph;
    void          **memory = &t->work.out[output].data;
    for (size_t i = 0; i < p->values && name; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && strcmp(g->values[i].name, name) == 0)
            *memory = (void *)lk__input_memory(p, &p->slots[0], i);
    return *memory || !name ? LK_OK : lk__fail(p->context, LK_EINVAL, "input \"%s\" is not bound", name);
}

static lk_status describe_work(lk__run_tokens *t, const lk__run_token_inputs *in)
{
    lk_program            *p = t->p;
    const lk__plan_list   *planned = &p->plan->evaluate;
    int                    logits = planned->outputs[0];
    const lk__graph_shape *s = &planned->graph->values[logits].shape;
    lk__kernel_operand    *from = &t->work.in[LK__TOKENS_LOGITS];
    lk_status              status = find_input(t, LK__TOKENS_TOKENS, in->tokens);
    if (status >= 0) status = find_input(t, LK__TOKENS_POSITIONS, in->positions);
    if (status >= 0) status = find_input(t, LK__TOKENS_PLACES, in->rows);
    if (status >= 0) status = find_input(t, LK__TOKENS_FIRST, in->first);
    if (status >= 0) status = find_input(t, LK__TOKENS_LAST, in->last);
    t->attrs.window = in->window;
    t->vocabulary = s->dims[s->rank - 1];
    t->most = lk__shape_elements(s) / t->vocabulary;
    from->data = lk__program_resolve(p, p->slots[0].arena, p->memory.gradients, planned->places[logits]);
    from->dtype = s->dtype;
    t->work.attrs = &t->attrs;
    t->work.inputs = LK__TOKENS_INPUTS;
    t->work.outputs = LK__TOKENS_OUTPUTS;
    t->work.device = p->device;
    set_operands(t, t->most);
    return status;
}

static lk_status find_kernel(lk__run_tokens *t)
{
    lk__device *d = t->p->device;
    t->kernel = d->backend->kernels.find(d, LK__OP_choose_tokens, t->work.in[LK__TOKENS_LOGITS].dtype, &t->work);
    if (!t->kernel.run) return LK_OK;
    if (t->kernel.workspace) t->workspace_bytes = t->kernel.workspace(&t->work, 1);
    return t->kernel.prepare ? t->kernel.prepare(d, &t->kernel, &t->work) : LK_OK;
}

static lk_status make_memory(lk__run_tokens *t)
{
    lk__device               *d = t->p->device;
    const lk__device_backend *backend = d->backend;
    lk_status                 status = lk__device_alloc(d, LK_MEMORY_WORKSPACE, t->workspace_bytes, &t->workspace);
    if (status >= 0) status = lk__device_alloc(d, LK_MEMORY_STAGING, block_bytes(t), &t->block);
    if (status >= 0 && (!(t->chosen = backend->memory.alloc_host(d, LK_MEMORY_STAGING, chosen_bytes(t))) ||
                        !(t->pinned = backend->memory.alloc_host(d, LK_MEMORY_STAGING, block_bytes(t)))))
        status = LK_ENOMEM;
    for (int i = 0; i < LK__DEVICE_TOKEN_STEPS && status >= 0; i++)
        status = backend->memory.event_create(d, &t->ended[i]);
    t->work.workspace = t->workspace;
    return status;
}

lk_status lk__tokens_create(lk_program *p, const lk__run_token_inputs *inputs, lk__run_tokens **tokens)
{
    *tokens = NULL;
    if (!p->graphs || p->comm) return LK_OK;
    lk__run_tokens *t = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->p = p;
    lk_status status = describe_work(t, inputs);
    if (status >= 0) status = find_kernel(t);
    if (status >= 0 && t->kernel.run) status = make_memory(t);
    if (status < 0 || !t->kernel.run) {
        lk__tokens_free(t);
        return status;
    }
    p->tokens = *tokens = t;
    return LK_OK;
}

void lk__tokens_free(lk__run_tokens *t)
{
    if (!t) return;
    lk__device               *d = t->p->device;
    const lk__device_backend *backend = d->backend;
    lk_context               *context = t->p->context;
    if (t->block) (void)backend->memory.stream_wait(d, t->p->stream); /* what was queued and is not wanted */
    for (int i = 0; i < LK__DEVICE_TOKEN_STEPS; i++) backend->memory.event_free(d, t->ended[i]);
    if (t->chosen) backend->memory.free_host(d, LK_MEMORY_STAGING, t->chosen, chosen_bytes(t));
    if (t->pinned) backend->memory.free_host(d, LK_MEMORY_STAGING, t->pinned, block_bytes(t));
    lk__device_free(d, LK_MEMORY_STAGING, t->block, block_bytes(t));
    lk__device_free(d, LK_MEMORY_WORKSPACE, t->workspace, t->workspace_bytes);
    t->p->tokens = NULL;
    lk__free(context, LK_MEMORY_OTHER, t, sizeof *t);
}

size_t lk__tokens_memory(const lk__run_tokens *t, lk_memory kind)
{
    if (!t) return 0;
    if (kind == LK_MEMORY_WORKSPACE) return t->workspace_bytes;
    return kind == LK_MEMORY_STAGING ? chosen_bytes(t) + 2 * block_bytes(t) : 0;
}

lk_status lk__tokens_begin(lk__run_tokens *t, const lk__device_sampling *sampling, const lk__device_prompt *prompts)
{
    lk_program        *p = t->p;
    lk__device_prompt *to = (lk__device_prompt *)(t->pinned + sizeof *sampling);
    lk_status status = p->device->backend->memory.stream_wait(p->device, p->stream); /* until here `pinned` is read */
    lk__schedule_run run = lk__schedule_run_of(&p->plan->evaluate, LK__IF_QUEUED);
    if (status >= 0) status = lk__operands_prepare(p, &run);
    if (status >= 0) status = lk__stage_inputs(p, &p->slots[0]);
    if (status < 0) return status;
    t->queued = t->read = 0;
    int64_t rows = p->slots[0].step.count;
    set_operands(t, rows);
    t->attrs.sorts = lk__sampling_sorts(sampling, t->vocabulary);
    memcpy(t->pinned, sampling, sizeof *sampling);
    memcpy(to, prompts, (size_t)rows * sizeof *prompts);
    for (int64_t i = 0; i < rows; i++) to[i].step = 0;
    p->progress.evaluated = -1; /* outputs are those of the latest step that was queued */
    return p->device->backend->memory.copy_in(p->device, p->stream, t->block, t->pinned, block_bytes(t));
}

lk_status lk__run_choose_tokens(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    p->tokens->work.stream = p->stream;
    return p->tokens->kernel.run(&p->tokens->work);
}

static lk_status issue_step(lk_program *p, const lk__run_key *key)
{
    lk__schedule_run run = lk__schedule_run_of(&p->plan->evaluate, LK__IF_QUEUED);
    (void)key;
    return lk__interpret(p, &run);
}

lk_status lk__tokens_queue(lk__run_tokens *t)
{
    lk_program   *p = t->p;
    lk__run_list *list = &p->evaluate;
    lk__run_key   key = {.list = list,
                         .begin = list->at.begin[LK_EVALUATE],
                         .end = list->at.end[LK_EVALUATE],
                         .samples = list->samples,
                         .total = list->total,
                         .gradients = list->gradients,
                         .way = t->attrs.sorts ? 2 : 1};
    if (t->queued - t->read == LK__DEVICE_TOKEN_STEPS)
        return lk__fail(p->context, LK_EINVAL, "%d steps are already queued: read the tokens of the first",
                        LK__DEVICE_TOKEN_STEPS);
    lk_status status = lk__run_recorded(p, &key, issue_step);
    if (status < 0) return status;
    return p->device->backend->memory.event_record(p->device, t->ended[t->queued++ % LK__DEVICE_TOKEN_STEPS],
                                                   p->stream);
}

lk_status lk__tokens_read(lk__run_tokens *t, const int32_t **chosen)
{
    lk_program *p = t->p;
    int         slot = (int)(t->read % LK__DEVICE_TOKEN_STEPS);
    if (t->read == t->queued) return lk__fail(p->context, LK_EINVAL, "no step is queued");
    lk_status status = p->device->backend->memory.event_sync(p->device, t->ended[slot]);
    *chosen = t->chosen + (int64_t)slot * t->work.in[LK__TOKENS_LOGITS].dims[0];
    t->read++;
    return status;
}
