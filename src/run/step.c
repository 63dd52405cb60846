/* step.c - steps that are queued: the host copies a batch into pinned memory and queues its copy and the whole step, forward to update;
 * it reads the results one step later. With one rank, on a device that records its work (graphs.c). Elsewhere a step that is queued is done at once.
 *
 * Two pinned buffers and two in the device's memory hold the inputs of two micro-batches. A stream of its own copies one while the step
 * before runs; the step then begins with a copy within the device's memory to where its kernels read. */
#include "run/collective.h"
#include "run/timeline.h"

#include <math.h>
#include <string.h>

enum { BUFFERS = 2 };

struct lk__run_queue {
    lk__plan_queue_bytes bytes;
    lk__device_stream   *copies;
    lk__device_event    *copied[BUFFERS]; /* pinned → landed has ended */
    lk__device_event    *taken[BUFFERS];  /* landed → where kernels read has ended */
    lk__device_event    *done[BUFFERS];   /* the step has ended; by its number % 2 */
    char                *pinned[BUFFERS], *landed[BUFFERS];
    char                *numbers;        /* the device's: sums, then the word that halts updates */
    lk__device_result   *results;        /* pinned; by the step's number % 2 */
    int64_t              batches;        /* micro-batches so far */
    lk_step              steps[BUFFERS]; /* that were queued, the first first; their ids are copies */
    int                  pending;
    int64_t             *ids; /* of two steps, by number % 2 */
    size_t               ids_bytes;
    const int64_t       *read_ids; /* of the step that was read last */
};

static double  *sums_of(const lk__run_queue *q) { return (double *)q->numbers; }
static int32_t *halted_of(const lk__run_queue *q) { return (int32_t *)(sums_of(q) + LK__DEVICE_NUMBERS); }
static int64_t *ids_of(const lk__run_queue *q, int64_t step)
{
    return q->ids + (step & 1) * (int64_t)(q->ids_bytes / 16);
}

/* ---- creating and freeing ---- */

static lk_status make_buffers(lk_program *p, lk__run_queue *q)
{
    const lk__device_backend *backend = p->device->backend;
    lk_status                 status = backend->stream_create(p->device, &q->copies);
    for (int i = 0; i < BUFFERS && status >= 0; i++) {
        status = backend->event_create(p->device, &q->copied[i]);
        if (status >= 0) status = backend->event_create(p->device, &q->taken[i]);
        if (status >= 0) status = backend->event_create(p->device, &q->done[i]);
        if (status >= 0 && !(q->pinned[i] = backend->alloc_host(p->device, LK_MEMORY_STAGING, q->bytes.input)))
            status = LK_ENOMEM;
        if (status >= 0) status = lk__device_alloc(p->device, LK_MEMORY_STAGING, q->bytes.input, &q->landed[i]);
    }
    if (status >= 0) status = lk__device_alloc(p->device, LK_MEMORY_STAGING, q->bytes.numbers, &q->numbers);
    if (status >= 0 && !(q->results = backend->alloc_host(p->device, LK_MEMORY_STAGING, q->bytes.results)))
        status = LK_ENOMEM;
    return status;
}

lk_status lk__queue_create(lk_program *p)
{
    if (!lk__plan_queues(p->plan)) return LK_OK;
    lk__run_queue *q = p->queue = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *q);
    if (!q) return LK_ENOMEM;
    q->bytes = lk__plan_queue(p->plan);
    q->ids_bytes =
        2 * (size_t)lk__plan_staged_ids(p->capacity) * (size_t)p->plan->parallel.micro_batches * sizeof *q->ids;
    if (!(q->ids = lk__alloc(p->context, LK_MEMORY_OTHER, q->ids_bytes))) return LK_ENOMEM;
    lk_status status = make_buffers(p, q);
    if (status < 0) return status;
    lk__run_list *list = &p->slots[0].train;
    for (size_t i = 0; i < list->count; i++) list->instructions[i].call.halted = halted_of(q);
    return LK_OK;
}

void lk__queue_free(lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_queue            *q = p->queue;
    if (!q) return;
    backend->stream_free(p->device, q->copies);
    for (int i = 0; i < BUFFERS; i++) {
        backend->event_free(p->device, q->copied[i]);
        backend->event_free(p->device, q->taken[i]);
        backend->event_free(p->device, q->done[i]);
        if (q->pinned[i]) backend->free_host(p->device, LK_MEMORY_STAGING, q->pinned[i], q->bytes.input);
        lk__device_free(p->device, LK_MEMORY_STAGING, q->landed[i], q->bytes.input);
    }
    lk__device_free(p->device, LK_MEMORY_STAGING, q->numbers, q->bytes.numbers);
    if (q->results) backend->free_host(p->device, LK_MEMORY_STAGING, q->results, q->bytes.results);
    lk__free(p->context, LK_MEMORY_OTHER, q->ids, q->ids_bytes);
    lk__free(p->context, LK_MEMORY_OTHER, q, sizeof *q);
    p->queue = NULL;
}

/* ---- inputs ---- */

/* Copies step block, inputs and ids of slot 0 to `to`, where slot->staged has them. */
static lk_status gather_inputs(const lk_program *p, char *to)
{
    const lk__run_slot *slot = &p->slots[0];
    const lk_graph     *g = p->plan->graph;
    memcpy(to, &slot->step, sizeof slot->step);
    for (size_t i = 0; i < p->values; i++) {
        if (g->values[i].kind != LK__VALUE_INPUT || !slot->inputs[i]) continue;
        memcpy(to + p->input_offsets[i], slot->inputs[i], lk__bytes_at_count(&g->values[i].shape, slot->step.count));
    }
    if (slot->ids && slot->step.count)
        memcpy(to + p->input_offsets[p->values], slot->ids, (size_t)slot->step.count * sizeof *slot->ids);
    return LK_OK;
}

static lk_status copied(lk_program *p, lk__device_stream *stream, const char *name, size_t bytes)
{
    return lk__timeline_after(p, stream, &(lk__run_unit){.name = name, .work = LK__WORK_COPY, .bytes = bytes});
}

/* Queues the copies of slot 0's inputs: the caller's arrays may change when it returns. */
static lk_status send_inputs(lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_queue            *q = p->queue;
    lk__run_slot             *slot = &p->slots[0];
    int                       i = (int)(q->batches++ % BUFFERS);
    lk_status                 status = q->batches > BUFFERS ? backend->event_sync(p->device, q->copied[i]) : LK_OK;
    if (status >= 0) status = gather_inputs(p, q->pinned[i]);
    if (status >= 0 && q->batches > BUFFERS) status = backend->event_wait(p->device, q->taken[i], q->copies);
    if (status >= 0) status = lk__timeline_before(p, q->copies);
    if (status >= 0) status = backend->copy_in(p->device, q->copies, q->landed[i], q->pinned[i], q->bytes.input);
    if (status >= 0) status = copied(p, q->copies, "copy to the device", q->bytes.input);
    if (status >= 0) status = backend->event_record(p->device, q->copied[i], q->copies);
    if (status >= 0) status = backend->event_wait(p->device, q->copied[i], p->stream);
    if (status >= 0) status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = backend->copy(p->device, p->stream, slot->staged, q->landed[i], q->bytes.input);
    if (status >= 0) status = copied(p, p->stream, "copy within the device", q->bytes.input);
    if (status >= 0) status = backend->event_record(p->device, q->taken[i], p->stream);
    slot->step_staged = slot->step;
    return status;
}

/* ---- the step ---- */

static lk__device_numbers describe_numbers(const lk_program *p, bool first)
{
    const lk__plan_list *planned = &p->plan->train;
    const lk__run_queue *q = p->queue;
    int                  weight = planned->numbers[LK__NUMBER_WEIGHT];
    lk__device_numbers   n = {.count = planned->numbers_count,
                              .first = first,
                              .sums = sums_of(q),
                              .report = p->report,
                              .step = lk__step_memory(&p->slots[0]),
                              .halted = halted_of(q)};
    for (int i = 0; i < n.count; i++) {
        int v = planned->numbers[i];
        n.otherwise[i] = i == LK__NUMBER_WEIGHT && first;
        if (v < 0) continue;
        n.value[i] = lk__program_resolve(p, p->slots[0].arena, p->gradients, planned->places[v]);
        n.narrow[i] = planned->graph->values[v].shape.dtype == LK_F32;
    }
    if (weight >= 0) n.weight = (double *)n.value[LK__NUMBER_WEIGHT];
    return n;
}

/* Ends a unit of the timeline that is no instruction. */
static lk_status end_unit(lk_program *p, lk_status status, const char *name, lk__device_work work)
{
    return status < 0 ? status : lk__timeline_after(p, p->stream, &(lk__run_unit){.name = name, .work = work});
}

static lk_status clear_report(lk_program *p)
{
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->fill(p->device, p->stream, p->report, 0, sizeof *p->report);
    return end_unit(p, status, "fill", LK__WORK_FILL);
}

static lk_status accumulate_gradients(lk_program *p)
{
    lk_status status = lk__timeline_before(p, p->stream);
    for (size_t i = 0; status >= 0 && i < p->plan->buckets_count; i++)
        status = lk__gradients_accumulate(p, &p->plan->buckets[i]);
    return end_unit(p, status, "sum of gradients", LK__WORK_KERNEL);
}

static lk_status add_numbers(lk_program *p, const lk__device_numbers *numbers)
{
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->add_numbers(p->device, p->stream, numbers);
    return end_unit(p, status, "numbers of the step", LK__WORK_KERNEL);
}

static lk_status publish_result(lk_program *p, const lk__device_numbers *numbers)
{
    const lk__plan_list *planned = &p->plan->train;
    const double        *norm = planned->norm < 0
                                    ? NULL
                                    : lk__program_resolve(p, p->slots[0].arena, p->gradients, planned->places[planned->norm]);
    lk_status            status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->publish(p->device, p->stream, numbers, norm, p->queue->results);
    return end_unit(p, status, "result of the step", LK__WORK_KERNEL);
}

/* One micro-batch, with the update after the last one. */
static lk_status issue_batch(lk_program *p, const lk__run_key *key)
{
    lk__device_numbers numbers = describe_numbers(p, key->first);
    lk__run_key        part = *key;
    lk_status          status = key->first ? clear_report(p) : LK_OK;
    part.begin = key->list->begin[LK_FORWARD];
    part.end = key->list->end[LK_BACKWARD];
    if (status >= 0) status = lk__kernels_issue(p, &part);
    if (status >= 0 && !key->first) status = accumulate_gradients(p);
    if (status >= 0) status = add_numbers(p, &numbers);
    if (!key->last || status < 0) return status;
    if ((status = lk__operands_set(p, lk__gradient_set(p, 0))) < 0) return status; /* the update reads the sums */
    part.begin = key->list->begin[LK_UPDATE];
    part.end = key->list->end[LK_UPDATE];
    if ((status = lk__kernels_issue(p, &part)) < 0) return status;
    return publish_result(p, &numbers);
}

static lk_status queue_batch(lk_program *p, lk__range rows, bool first, bool last)
{
    lk__run_list *list = &p->slots[0].train;
    const char   *gradients = lk__gradient_set(p, first ? 0 : 1);
    lk_status     status = lk__slot_set(p, 0, rows.first, lk__range_count(rows));
    if (status >= 0) status = lk__operands_set(p, gradients);
    if (status >= 0) status = send_inputs(p);
    lk__run_key key = {.list = list, .samples = list->samples, .gradients = gradients, .first = first, .last = last};
    return status < 0 ? status : lk__run_recorded(p, &key, issue_batch);
}

bool lk__program_queues(const lk_program *p) { return p->queue != NULL; }

lk_status lk_program_queue(lk_program *p, const lk_step *step)
{
    lk__run_queue *q = p->queue;
    int64_t        micro_batches = p->plan->parallel.micro_batches;
    if (!q) return lk_program_train(p, step);
    lk_status status = lk__step_set(p, step);
    if (status < 0) return status;
    if (q->pending == BUFFERS)
        return lk__fail(p->context, LK_EINVAL, "two steps are queued already: read the result of the first");
    int64_t most = lk__plan_staged_ids(p->capacity) * micro_batches;
    if (step->count > most)
        return lk__fail(p->context, LK_EINVAL, "a batch of %lld samples; the plan's capacity is %lld",
                        (long long)step->count, (long long)most);
    if (step->sample_ids) memcpy(ids_of(q, step->step), step->sample_ids, (size_t)step->count * sizeof *q->ids);
    lk__drop_gradients(p); /* of sections that ran before; a queued step has its own */
    p->ready = false;
    p->evaluated = -1;
    for (int64_t i = 0; i < micro_batches && status >= 0; i++) {
        p->slots[0].step.micro_batch = (int)i;
        status = queue_batch(p, lk__split_part(step->count, micro_batches, i), i == 0, i + 1 == micro_batches);
    }
    if (status >= 0) status = p->device->backend->event_record(p->device, q->done[step->step & 1], p->stream);
    if (status < 0) return lk__fail_prefix(p->context, status, "step %lld: ", (long long)step->step);
    p->has_gradients = true;
    q->steps[q->pending] = *step;
    if (step->sample_ids) q->steps[q->pending].sample_ids = ids_of(q, step->step);
    q->pending++;
    return LK_OK;
}

/* ---- results ---- */

const int64_t *lk__program_result_ids(const lk_program *p) { return p->queue->read_ids; }

/* The step changed nothing, nor did what is queued behind it: later ones may again. */
static lk_status resume_updates(lk_program *p)
{
    lk__run_queue *q = p->queue;
    q->pending = 0;
    return p->device->backend->fill(p->device, p->stream, halted_of(q), 0, sizeof(int32_t));
}

/* The ids of the micro-batch that halted are not in the inputs any more: their position and the ids of the step are. */
static lk_status fail_ids(lk_program *p, const lk__device_result *r, const lk_step *step)
{
    char      text[LK__VERIFY_LINE];
    lk__range rows = lk__split_part(step->count, p->plan->parallel.micro_batches, r->halted - 1);
    lk_status status = lk__slot_set(p, 0, rows.first, lk__range_count(rows));
    p->step = *step;
    p->invalid = r->invalid;
    lk__describe_invalid(p, &p->plan->train, text, sizeof text);
    p->invalid.found = false;
    return status < 0 ? status : lk__fail(p->context, LK_EINVAL, "%s. The step was not taken", text);
}

lk_status lk_program_result(lk_program *p)
{
    lk__run_queue *q = p->queue;
    if (!q) return LK_OK;
    if (q->pending == 0) return lk__fail(p->context, LK_EINVAL, "no step is queued");
    lk_step                  step = q->steps[0];
    const lk__device_result *r = &q->results[step.step & 1];
    lk_status                status = p->device->backend->event_sync(p->device, q->done[step.step & 1]);
    if (status < 0) return lk__fail_prefix(p->context, status, "step %lld: ", (long long)step.step);
    q->steps[0] = q->steps[1];
    q->pending--;
    q->read_ids = step.sample_ids;
    memcpy(p->numbers, r->sums, (size_t)p->plan->train.numbers_count * sizeof *r->sums);
    if ((status = lk__gather_reports(p)) < 0) return status;
    lk__metrics_set(p, p->numbers);
    p->metrics.grad_norm = r->norm;
    if (!r->halted) return LK_OK;
    lk__device_result halted = *r;
    status = resume_updates(p);
    return status < 0 || !halted.invalid.found ? status : fail_ids(p, &halted, &step);
}

lk_status lk__step_train(lk_program *p, const lk_step *step)
{
    lk_status status = lk_program_queue(p, step);
    return status < 0 ? status : lk_program_result(p);
}
