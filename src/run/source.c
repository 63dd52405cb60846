/* source.c - inputs that the device makes itself, from a data set in its memory or from samples that the host sends as
 * they are stored. A program has one source for training steps and one for evaluations; a step without a source of its
 * kind uses the inputs that the caller bound. */
#include "run/timeline.h"

#include <string.h>

/* One call of sample_rows has at most LK__ROWS_FIELDS fields. */
enum { CALLS = (LK__DEVICE_FIELDS + LK__ROWS_FIELDS - 1) / LK__ROWS_FIELDS };

struct lk__run_source {
    lk__device_gather gather;
    lk__op_attrs      attrs; /* of the first call; others have only by_row */
    lk__op_attrs      others;
    lk__device_kernel kernel[CALLS];
    lk__kernel_call   call[CALLS];
    int               calls;
    size_t            input[LK__DEVICE_FIELDS]; /* by field: its value id in the plan's graph */
    size_t            bytes;                    /* of this struct */
    bool              made[];                   /* by value id */
};

static lk_status find_inputs(const lk_program *p, lk__run_source *source)
{
    const lk_graph *g = p->plan->graph;
    for (int k = 0; k < source->gather.count; k++) {
        const char *name = source->gather.fields[k].name;
        size_t      i = 0;
        while (i < p->values && !(g->values[i].kind == LK__VALUE_INPUT && strcmp(g->values[i].name, name) == 0)) i++;
        if (i == p->values) return lk__fail(p->context, LK_ENOENT, "the model has no input \"%s\"", name);
        source->input[k] = i;
        source->made[i] = true;
    }
    return LK_OK;
}

static void set_operand(lk__kernel_operand *o, const void *data, lk_dtype type, int rank, const int64_t *dims)
{
    *o = (lk__kernel_operand){.data = (void *)data, .dtype = type, .rank = rank};
    memcpy(o->dims, dims, (size_t)rank * sizeof *dims);
}

/* Field i of a source in a call: its samples and its rows, at the capacity. */
static void describe_field(const lk_program *p, const lk__device_gather *g, int i, lk__kernel_call *call)
{
    const lk__device_field     *f = &g->fields[i];
    const lk__device_transform *t = &g->transform;
    bool                        image = i == 0 && g->transformed;
    int64_t dims[] = {g->by_row ? p->capacity : g->samples, image ? t->channels : f->elements, t->height, t->width};
    set_operand(&call->in[call->inputs++], f->samples, f->in, image ? 4 : 2, dims);
    dims[0] = p->capacity;
    set_operand(&call->out[call->outputs++], NULL, f->out, image ? 4 : 2, dims);
}

static void describe_transform(const lk__device_gather *g, lk__kernel_call *call)
{
    const lk__device_transform *t = &g->transform;
    int64_t                     channels = t->per_channel ? t->channels : 1;
    if (t->table) set_operand(&call->in[LK__ROWS_TABLE], t->table, t->out, 2, (int64_t[]){channels, 256});
    if (t->mean) set_operand(&call->in[LK__ROWS_NORMAL], t->mean, LK_F64, 2, (int64_t[]){2, channels});
}

/* The calls that make its rows, without the memory of a step. */
static lk_status make_calls(lk_program *p, lk__run_source *source)
{
    const lk__device_gather *g = &source->gather;
    lk__device              *d = p->device;
    source->others = (lk__op_attrs){.by_row = g->by_row};
    source->attrs = (lk__op_attrs){.by_row = g->by_row,
                                   .padding = g->transform.padding,
                                   .probability = g->transform.flip,
                                   .cutout = g->transform.cutout};
    for (int first = 0; first < g->count; first += LK__ROWS_FIELDS) {
        int              n = source->calls++;
        lk__kernel_call *call = &source->call[n];
        lk_status        status = LK_OK;
        *call = (lk__kernel_call){.attrs = n == 0 ? &source->attrs : &source->others,
                                  .inputs = LK__ROWS_SAMPLES,
                                  .outputs = LK__ROWS_OUT,
                                  .pool = lk__context_pool(p->context),
                                  .device = d};
        if (n == 0 && g->transformed) describe_transform(g, call);
        for (int i = first; i < g->count && i < first + LK__ROWS_FIELDS; i++) describe_field(p, g, i, call);
        lk__device_kernel *kernel = &source->kernel[n];
        *kernel = d->backend->kernels.find(d, LK__OP_sample_rows, g->element, call);
        if (kernel->run && kernel->prepare) status = kernel->prepare(d, kernel, call);
        if (!kernel->run)
            status = lk__fail(p->context, LK_EUNSUPPORTED, "the device %s cannot prepare batches", d->backend->name);
        if (status < 0) return status;
    }
    return LK_OK;
}

static lk_status make_source(lk_program *p, const lk__device_gather *gather, lk__run_source **to)
{
    size_t bytes = sizeof **to + p->values * sizeof(bool);
    if (!gather) return LK_OK;
    lk__run_source *source = *to = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!source) return LK_ENOMEM;
    source->gather = *gather;
    source->bytes = bytes;
    lk_status status = find_inputs(p, source);
    return status < 0 ? status : make_calls(p, source);
}

lk_status lk__program_set_sources(lk_program *p, const lk__device_gather *train, const lk__device_gather *evaluate)
{
    lk__sources_free(p);
    lk_status status = make_source(p, train, &p->sources[0]);
    return status < 0 ? status : make_source(p, evaluate, &p->sources[1]);
}

void lk__sources_free(lk_program *p)
{
    p->source = NULL;
    for (int i = 0; i < 2; i++) {
        if (p->sources[i]) lk__free(p->context, LK_MEMORY_OTHER, p->sources[i], p->sources[i]->bytes);
        p->sources[i] = NULL;
    }
}

void lk__source_use(lk_program *p, lk__run_source *source) { p->source = source; }

bool lk__source_sends(const lk_program *p) { return p->source && p->source->gather.by_row; }

bool lk__source_makes(const lk_program *p, size_t input) { return p->source && p->source->made[input]; }

const void *lk__bound_memory(const lk_program *p, size_t input)
{
    return lk__source_makes(p, input) ? p->memory.staged : p->bound[input];
}

const void *lk__source_samples(const lk_program *p, const lk__run_slot *slot, int field)
{
    return (const char *)p->bound[p->source->input[field]] + (size_t)slot->first * p->plan->source.row_bytes[field];
}

/* The memory of a step, and so many rows. */
static void set_headers(lk__kernel_call *call, const lk__run_headers *from, char *header, int64_t rows)
{
    int64_t bytes = LK__DEVICE_IDS + rows * (int64_t)sizeof(int64_t);
    int64_t dims[] = {from->ring_slot ? from->slots : 1, from->ring_slot ? (int64_t)from->bytes : bytes};
    set_operand(&call->in[LK__ROWS_HEADERS], from->headers, LK_U8, 2, dims);
    set_operand(&call->in[LK__ROWS_RING_SLOT], from->ring_slot, LK_I64, 0, dims);
    set_operand(&call->out[LK__ROWS_HEADER], header, LK_U8, 1, &bytes);
    call->invalid = from->report;
}

lk_status lk__source_gather(lk_program *p, const lk__run_slot *slot, const lk__run_headers *headers, const char *sent)
{
    lk__run_source *source = p->source;
    int64_t         rows = slot->step.count;
    if (!slot->ids && rows > 0)
        return lk__fail(p->context, LK_EINVAL,
                        "the device prepares the inputs of this program: a step needs sample_ids");
    lk_status status = lk__timeline_before(p, p->stream);
    for (int n = 0; n < source->calls && status >= 0; n++) {
        lk__kernel_call *call = &source->call[n];
        set_headers(call, headers, slot->staged, rows);
        for (int k = LK__ROWS_OUT; k < call->outputs; k++) {
            int                 i = n * LK__ROWS_FIELDS + k - LK__ROWS_OUT;
            lk__kernel_operand *samples = &call->in[LK__ROWS_SAMPLES + k - LK__ROWS_OUT], *to = &call->out[k];
            to->data = (void *)lk__input_memory(p, slot, source->input[i]);
            to->dims[0] = rows;
            if (sent) samples->data = (void *)(sent + lk__plan_sent_offset(p->plan, i));
            if (source->gather.by_row) samples->dims[0] = rows;
        }
        call->stream = p->stream;
        status = source->kernel[n].run(call);
    }
    return status < 0 ? status
                      : lk__timeline_after(p, p->stream,
                                           &(lk__run_unit){.name = "rows of the batch", .work = LK__WORK_KERNEL});
}
