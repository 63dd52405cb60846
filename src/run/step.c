/* step.c - steps that are queued: the host copies a batch into pinned memory and queues its copy and the whole step,
 * forward to update; it reads the results one step later. This requires a device that records its work (graphs.c), and
 * one rank or ranks whose collectives are also queued on the device. Elsewhere a queued step runs immediately.
 *
 * Ranks add loss, weight and whether one of them must halt on the device, before the update. What else they report, the
 * host gathers when it reads the results.
 *
 * Two pinned buffers and two in the device's memory hold the inputs of two micro-batches. A separate stream copies one
 * while the previous step runs; the step then begins with a copy within the device's memory to where its kernels read,
 * or, where the host sends samples as they are stored, with the kernel that converts them.
 *
 * Where the data set is in the device's memory, a micro-batch is a step block and ids. These stay in pinned memory, in
 * a ring: the step's first kernel reads them over the bus and writes the inputs, so that the host only starts one
 * graph. */
#define _GNU_SOURCE
#include "comm/queue.h"
#include "run/collective.h"
#include "run/interpreter.h"
#include "run/timeline.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { BUFFERS = 2 };

struct lk__run_queue {
    lk__plan_schedule    schedule; /* a run for each micro-batch, then the update */
    lk__plan_queue_bytes bytes;
    lk__device_stream   *copies;
    lk__device_event    *copied[BUFFERS];         /* pinned → staging buffer has ended */
    lk__device_event    *taken[BUFFERS];          /* staging buffer → where kernels read has ended */
    char                *pinned, *device_staging; /* bytes.pinned and bytes.device_staging buffers */
    /* the device's: sums, the number of micro-batches, the word that halts updates; with other ranks what they add */
    char              *numbers;
    lk__device_result *results;        /* pinned; by ring slot */
    int64_t            batches;        /* micro-batches so far */
    int64_t            queued;         /* steps so far; the ring slot of one is its number % 2 */
    lk_step            steps[BUFFERS]; /* that were queued, the first first; their ids are copies */
    int                pending;
    int64_t           *ids; /* of two steps, by ring slot */
    size_t             ids_bytes;
    const int64_t     *read_ids; /* of the step that was read last */
};

static double  *sums_of(const lk__run_queue *q) { return (double *)q->numbers; }
static int64_t *ring_slot_of(const lk__run_queue *q) { return (int64_t *)(sums_of(q) + LK__DEVICE_NUMBERS); }
static int32_t *halted_of(const lk__run_queue *q) { return (int32_t *)(ring_slot_of(q) + 1); }
static double  *ranks_of(const lk__run_queue *q) { return (double *)(ring_slot_of(q) + 2); }
static int32_t *own_of(const lk__run_queue *q) { return (int32_t *)(ranks_of(q) + LK__DEVICE_RANKS_NUMBERS); }
static int64_t *ids_of(const lk__run_queue *q, int64_t ring_slot)
{
    return q->ids + ring_slot * (int64_t)(q->ids_bytes / 16);
}
int32_t    *lk__queue_halted(const lk_program *p) { return p->queue ? halted_of(p->queue) : NULL; }
static bool is_by_id(const lk_program *p) { return p->plan->source.train == LK__INPUTS_BY_ID; }

/* ---- creating and freeing ---- */

static size_t pinned_bytes(const lk__run_queue *q) { return (size_t)q->bytes.pinned * q->bytes.input; }

static lk_status make_buffers(lk_program *p, lk__run_queue *q)
{
    const lk__device_backend *backend = p->device->backend;
    lk_status                 status = backend->memory.stream_create(p->device, &q->copies);
    for (int i = 0; i < BUFFERS && status >= 0; i++) {
        status = backend->memory.event_create(p->device, &q->copied[i]);
        if (status >= 0) status = backend->memory.event_create(p->device, &q->taken[i]);
    }
    if (status >= 0 && !(q->pinned = backend->memory.alloc_host(p->device, LK_MEMORY_STAGING, pinned_bytes(q))))
        status = LK_ENOMEM;
    q->device_staging = p->memory.device_staging;
    q->numbers = p->memory.queue_numbers;
    if (status >= 0 && !(q->results = backend->memory.alloc_host(p->device, LK_MEMORY_STAGING, q->bytes.results)))
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
    lk_status status = lk__plan_schedule_make(p->plan, LK__SCHEDULE_QUEUED, &q->schedule);
    if (status >= 0) status = make_buffers(p, q);
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
    backend->memory.stream_free(p->device, q->copies);
    for (int i = 0; i < BUFFERS; i++) {
        backend->memory.event_free(p->device, q->copied[i]);
        backend->memory.event_free(p->device, q->taken[i]);
    }
    if (q->pinned) backend->memory.free_host(p->device, LK_MEMORY_STAGING, q->pinned, pinned_bytes(q));
    if (q->results) backend->memory.free_host(p->device, LK_MEMORY_STAGING, q->results, q->bytes.results);
    lk__plan_schedule_free(p->context, &q->schedule);
    lk__free(p->context, LK_MEMORY_OTHER, q->ids, q->ids_bytes);
    lk__free(p->context, LK_MEMORY_OTHER, q, sizeof *q);
    p->queue = NULL;
}

/* ---- inputs ---- */

/* Copies step block and ids of slot 0 to where slot->staged has them. */
static void write_header(const lk_program *p, char *to)
{
    const lk__run_slot *slot = &p->slots[0];
    memcpy(to, &slot->step, sizeof slot->step);
    if (slot->ids && slot->step.count)
        memcpy(to + LK__STAGED_STEP, slot->ids, (size_t)slot->step.count * sizeof *slot->ids);
}

/* The same with the inputs, or with what the device makes them of. */
static void write_inputs(const lk_program *p, char *to)
{
    const lk__run_slot *slot = &p->slots[0];
    const lk_graph     *g = p->plan->graph;
    write_header(p, to);
    for (size_t i = 0; i < p->values && !p->source; i++) {
        if (g->values[i].kind != LK__VALUE_INPUT || !slot->inputs[i]) continue;
        memcpy(to + p->memory.input_offsets[i], slot->inputs[i],
               lk__bytes_at_count(&g->values[i].shape, slot->step.count));
    }
    for (int i = 0; i < p->plan->source.count && p->source; i++)
        memcpy(to + lk__plan_sent_offset(p->plan, i), lk__source_samples(p, slot, i),
               (size_t)slot->step.count * p->plan->source.row_bytes[i]);
}

static lk_status copied(lk_program *p, lk__device_stream *stream, const char *name, size_t bytes)
{
    return lk__timeline_after(p, stream, &(lk__run_unit){.name = name, .work = LK__WORK_COPY, .bytes = bytes});
}

static lk_status copy_from_staging(lk_program *p, const char *device_staging)
{
    size_t    bytes = p->queue->bytes.input;
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0)
        status = p->device->backend->memory.copy(p->device, p->stream, p->slots[0].staged, device_staging, bytes);
    return status < 0 ? status : copied(p, p->stream, "copy within the device", bytes);
}

/* Queues the copies of slot 0's inputs: the caller's arrays may change when it returns. */
static lk_status send_inputs(lk_program *p)
{
    const lk__device_backend *backend = p->device->backend;
    lk__run_queue            *q = p->queue;
    lk__run_slot             *slot = &p->slots[0];
    int                       i = (int)(q->batches++ % BUFFERS);
    char                     *pinned = q->pinned + (size_t)i * q->bytes.input;
    char                     *device_staging = q->device_staging + (size_t)i * q->bytes.input;
    lk_status status = q->batches > BUFFERS ? backend->memory.event_sync(p->device, q->copied[i]) : LK_OK;
    if (status >= 0) write_inputs(p, pinned);
    if (status >= 0 && q->batches > BUFFERS) status = backend->memory.event_wait(p->device, q->taken[i], q->copies);
    if (status >= 0) status = lk__timeline_before(p, q->copies);
    if (status >= 0) status = backend->memory.copy_in(p->device, q->copies, device_staging, pinned, q->bytes.input);
    if (status >= 0) status = copied(p, q->copies, "copy to the device", q->bytes.input);
    if (status >= 0) status = backend->memory.event_record(p->device, q->copied[i], q->copies);
    if (status >= 0) status = backend->memory.event_wait(p->device, q->copied[i], p->stream);
    if (status >= 0)
        status = p->source ? lk__source_gather(p, slot, &(lk__run_headers){.headers = device_staging}, device_staging)
                           : copy_from_staging(p, device_staging);
    if (status >= 0) status = backend->memory.event_record(p->device, q->taken[i], p->stream);
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
                              .report = p->memory.report,
                              .step = lk__step_memory(&p->slots[0]),
                              .ring_slot = is_by_id(p) ? ring_slot_of(q) : NULL,
                              .halted = halted_of(q)};
    for (int i = 0; i < n.count; i++) {
        int v = planned->numbers[i];
        n.otherwise[i] = i == LK__NUMBER_WEIGHT && first;
        if (v < 0) continue;
        n.value[i] = lk__program_resolve(p, p->slots[0].arena, p->memory.gradients, planned->places[v]);
        n.narrow[i] = planned->graph->values[v].shape.dtype == LK_F32;
    }
    if (weight >= 0) n.weight = (double *)n.value[LK__NUMBER_WEIGHT];
    if (p->group.queued) n.ranks = ranks_of(q), n.own = own_of(q);
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
    if (status >= 0)
        status = p->device->backend->memory.fill(p->device, p->stream, p->memory.report, 0, sizeof *p->memory.report);
    return end_unit(p, status, "fill", LK__WORK_FILL);
}

static bool is_first(const lk__schedule_run *run) { return !(run->flags & LK__IF_ADDS); }

lk_status lk__run_batch_numbers(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__device_numbers numbers = describe_numbers(p, is_first(run));
    lk_status          status = lk__timeline_before(p, p->stream);
    (void)at, (void)next;
    if (status >= 0) status = p->device->backend->recording.add_numbers(p->device, p->stream, &numbers);
    return end_unit(p, status, lk__action_name(LK__DO_BATCH_NUMBERS), LK__WORK_KERNEL);
}

/* Behind the buckets, for which the stream has waited. */
lk_status lk__run_sum_numbers(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__device_numbers numbers = describe_numbers(p, is_first(run));
    lk__comm_call      call = {.kind = LK__ALL_REDUCE,
                               .type = LK_F64,
                               .reduce = LK_SUM,
                               .count = LK__DEVICE_RANKS_NUMBERS,
                               .send = numbers.ranks,
                               .recv = numbers.ranks,
                               .site = LK_HERE};
    lk_status          status = lk__collective_enqueue(p, p->batch, &call);
    (void)at, (void)next;
    if (status >= 0) status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = p->device->backend->recording.judge_numbers(p->device, p->stream, &numbers);
    return end_unit(p, status, lk__action_name(LK__DO_SUM_NUMBERS), LK__WORK_KERNEL);
}

lk_status lk__run_step_result(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__plan_list *planned = &p->plan->train;
    lk__device_numbers   numbers = describe_numbers(p, is_first(run));
    const double        *norm = planned->norm < 0 ? NULL
                                                  : lk__program_resolve(p, p->slots[0].arena, p->memory.gradients,
                                                                        planned->places[planned->norm]);
    lk_status            status = lk__timeline_before(p, p->stream);
    (void)at, (void)next;
    if (status >= 0)
        status = p->device->backend->recording.publish(p->device, p->stream, &numbers, norm, p->queue->results);
    return end_unit(p, status, lk__action_name(LK__DO_STEP_RESULT), LK__WORK_KERNEL);
}

/* Numbers, update and result together, of a step that is one batch. */
lk_status lk__run_step_end(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_list      *list = &p->slots[0].train;
    lk__run_unit       unit = {.list = list, .begin = at, .end = list->at.end[LK_UPDATE]};
    lk__device_numbers numbers = describe_numbers(p, true);
    bool               done = false;
    if (!is_first(run) || p->waits) return LK_OK;
    while (list->instructions[unit.begin].node < 0) unit.begin++;
    while (list->instructions[unit.end - 1].node < 0) unit.end--;
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = lk__launch_end_step(p, list, at, &numbers, p->queue->results, &done);
    if (status < 0 || !done) return status;
    *next = list->at.end[LK_UPDATE];
    return lk__timeline_after(p, p->stream, &unit);
}

/* The report of ids is cleared in the first micro-batch of a step; inputs are made in each, unless they were sent. */
lk_status lk__run_batch_begin(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_queue *q = p->queue;
    (void)at, (void)next;
    if (!is_by_id(p)) return is_first(run) ? clear_report(p) : LK_OK;
    lk__run_headers headers = {.headers = q->pinned,
                               .ring_slot = ring_slot_of(q),
                               .slots = q->bytes.pinned,
                               .bytes = q->bytes.input,
                               .report = is_first(run) ? p->memory.report : NULL};
    return lk__source_gather(p, &p->slots[0], &headers, NULL);
}

/* One micro-batch of the step's schedule, with what follows the last. */
static lk_status issue_batch(lk_program *p, const lk__run_key *key)
{
    const lk__plan_schedule *s = &p->queue->schedule;
    bool                     ends = key->batch + 1 == p->plan->parallel.micro_batches;
    size_t                   first = (size_t)key->batch, last = ends ? s->count : first + 1;
    lk_status                status = LK_OK;
    for (size_t i = first; i < last && status >= 0; i++) status = lk__interpret(p, &s->runs[i]);
    return status;
}

/* A batch is recorded for each of the first, the last and those between, which differ in nothing else. */
static lk_status queue_batch(lk_program *p, lk__range rows, int64_t index)
{
    lk__run_list           *list = &p->slots[0].train;
    lk__run_queue          *q = p->queue;
    const lk__schedule_run *run = &q->schedule.runs[index];
    int64_t                 batches = p->plan->parallel.micro_batches;
    lk_status               status = lk__slot_set(p, 0, rows.first, lk__range_count(rows));
    if (status >= 0) status = lk__operands_prepare(p, run);
    if (status >= 0 && !is_by_id(p)) status = send_inputs(p);
    if (status < 0) return status;
    lk__run_key key = {.list = list,
                       .samples = list->samples,
                       .gradients = lk__gradient_set(p, run->set),
                       .batch = index == 0 || index + 1 == batches ? index : 1};
    if (!is_by_id(p)) return lk__run_recorded(p, &key, issue_batch);
    /* The steps whose headers were here have been read: two are pending at most. */
    write_header(p, q->pinned + (size_t)(q->batches % q->bytes.pinned) * q->bytes.input);
    p->slots[0].step_staged = p->slots[0].step;
    status = lk__run_recorded(p, &key, issue_batch);
    q->batches += status >= 0; /* as the device counts: at the end */
    return status;
}

bool lk__program_queues(const lk_program *p) { return p->queue != NULL; }

lk_status lk_program_queue(lk_program *p, const lk_step *step)
{
    lk__run_queue *q = p->queue;
    int64_t        micro_batches = p->plan->parallel.micro_batches;
    if (!q) return lk_program_train(p, step);
    lk_status status = lk__collective_queue_check(p);
    if (status < 0) return q->pending ? lk__collective_queue_spoil(p, status) : status;
    if ((status = lk__step_set(p, step)) < 0) return status;
    if (q->pending == BUFFERS)
        return lk__fail(p->context, LK_EINVAL, "two steps are already queued: read the result of the first");
    int64_t most = lk__plan_staged_ids(p->capacity) * micro_batches;
    if (step->count > most)
        return lk__fail(p->context, LK_EINVAL, "a batch of %lld samples is out of range: the plan's capacity is %lld",
                        (long long)step->count, (long long)most);
    int ring_slot = (int)(q->queued & 1);
    if (step->sample_ids) memcpy(ids_of(q, ring_slot), step->sample_ids, (size_t)step->count * sizeof *q->ids);
    lk__source_use(p, p->sources[0]);
    p->slots[0].step.ring_slot = ring_slot;
    __atomic_store_n(&q->results[ring_slot].step, 0, __ATOMIC_RELEASE);
    lk__drop_gradients(p); /* of sections that ran before; a queued step has its own */
    lk__drop_activations(p);
    p->progress.evaluated = -1;
    for (int64_t i = 0; i < micro_batches && status >= 0; i++) {
        p->slots[0].step.micro_batch = (int)i;
        status = queue_batch(p, lk__split_part(step->count, micro_batches, i), i);
    }
    status = lk__collective_queue_explain(p, status);
    if (status < 0)
        return lk__fail_prefix(p->context, lk__collective_queue_spoil(p, status), "step %lld: ", (long long)step->step);
    p->progress.has_gradients = true;
    q->steps[q->pending] = *step;
    if (step->sample_ids) q->steps[q->pending].sample_ids = ids_of(q, ring_slot);
    q->pending++;
    q->queued++;
    return LK_OK;
}

/* ---- results ---- */

const int64_t *lk__program_result_ids(const lk_program *p) { return p->queue->read_ids; }

/* The step changed nothing, nor did what is queued behind it: later ones may again. */
static lk_status resume_updates(lk_program *p)
{
    lk__run_queue *q = p->queue;
    q->pending = 0;
    return p->device->backend->memory.fill(p->device, p->stream, halted_of(q), 0, sizeof(int32_t));
}

/* The ids of the micro-batch that halted are not in the inputs any more: their position and the ids of the step are. */
static lk_status describe_ids(lk_program *p, const lk__device_result *r, const lk_step *step, char *text, size_t bytes)
{
    lk__range rows = lk__split_part(step->count, p->plan->parallel.micro_batches, r->halted - 1);
    lk_status status = lk__slot_set(p, 0, rows.first, lk__range_count(rows));
    p->step = *step;
    p->ids.invalid = r->invalid;
    lk__describe_invalid(p, &p->plan->train, text, bytes);
    p->ids.invalid.found = false;
    return status;
}

static lk_status fail_ids(lk_program *p, const lk__device_result *r, const lk_step *step)
{
    char      text[LK__VERIFY_LINE];
    lk_status status = describe_ids(p, r, step, text, sizeof text);
    return status < 0 ? status : lk__fail(p->context, LK_EINVAL, "%s. The step was not taken", text);
}

/* With other ranks: their reports, as behind a step that is waited for. All ranks have halted, or none has, unless a
 * collective failed. */
static lk_status end_with_ranks(lk_program *p, const lk__device_result *r, const lk_step *step)
{
    lk_status status = lk__collective_queue_check(p);
    if (status >= 0 && r->halted == LK__HALTED_BY_GROUP)
        status = lk__fail(p->context, LK_EIO, "a collective of the step failed on the device");
    if (status < 0) return lk__collective_queue_spoil(p, status);
    if (r->halted && r->invalid.found)
        status = describe_ids(p, r, step, p->ids.invalid_text, sizeof p->ids.invalid_text);
    lk_status gathered = lk__gather_reports(p);
    if (status >= 0) status = gathered;
    if (status >= 0 && r->halted) status = resume_updates(p);
    p->step = *step;
    if (status >= 0) status = lk__use_reports(p, &p->plan->train);
    p->ids.invalid_text[0] = 0;
    p->metrics.grad_norm = r->norm;
    return status < 0 ? status : lk__check_losses(p, step->step);
}

/* Polls the number of the step, which the device writes last. Without events, which would cost a call and a pause
 * between two graphs. Now and then it looks whether a group has failed: what another one's calls wait for then does not
 * come. */
static lk_status wait_result(lk_program *p, const lk__device_result *r, int64_t step)
{
    enum { SPINS = 256, CHECK_MS = 50 };
    const struct timespec pause = {.tv_nsec = 50000};
    double                begin = lk__now(), checked = begin, now;
    lk_status             status = LK_END;
    for (int64_t spins = 1; __atomic_load_n(&r->step, __ATOMIC_ACQUIRE) != step; spins++) {
        if (status == LK_OK)
            return lk__fail(p->context, LK_EIO, "the device finished without producing the results of the step");
        if (spins % SPINS != 0) {
            lk__cpu_relax();
            continue;
        }
        if ((status = p->device->backend->memory.stream_query(p->device, p->stream)) < 0) return status;
        if ((now = lk__now()) - checked > CHECK_MS / 1e3) {
            lk_status group = lk__collective_queue_check(p);
            if (group < 0) return group;
            checked = now;
        }
        if (now - begin > 0.002) nanosleep(&pause, NULL);
    }
    return LK_OK;
}

lk_status lk_program_result(lk_program *p)
{
    lk__run_queue *q = p->queue;
    if (!q) return LK_OK;
    if (q->pending == 0) return lk__fail(p->context, LK_EINVAL, "no step is queued");
    lk_step                  step = q->steps[0];
    const lk__device_result *r = &q->results[(q->queued - q->pending) & 1];
    lk_status                status = lk__collective_queue_explain(p, wait_result(p, r, step.step));
    if (status < 0)
        return lk__fail_prefix(p->context, lk__collective_queue_spoil(p, status), "step %lld: ", (long long)step.step);
    q->steps[0] = q->steps[1];
    q->pending--;
    q->read_ids = step.sample_ids;
    memcpy(p->numbers, r->sums, (size_t)p->plan->train.numbers_count * sizeof *r->sums);
    if (p->comm) {
        lk__device_result result = *r;
        return end_with_ranks(p, &result, &step);
    }
    if ((status = lk__gather_reports(p)) < 0) return status;
    lk__metrics_set(p, p->numbers);
    p->metrics.grad_norm = r->norm;
    if (!r->halted) return LK_OK;
    lk__device_result halted = *r;
    status = resume_updates(p);
    if (status < 0) return status;
    if (halted.invalid.found) return fail_ids(p, &halted, &step);
    return lk__fail(p->context, LK_ENAN, "step %lld: the loss is %g: the update was skipped, and no state has changed",
                    (long long)step.step, p->metrics.sum);
}

lk_status lk__step_train(lk_program *p, const lk_step *step)
{
    lk_status status = lk_program_queue(p, step);
    return status < 0 ? status : lk_program_result(p);
}
