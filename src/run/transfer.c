/* transfer.c - sends and receives between the stages of a pipeline. Both are always in flight, whether or not a core is
 * free for the group's thread: two stages that each completed its own send first would wait for each other. A message
 * has as many rows as its micro-batch; the transport compares its length with what the receiver expects. */
#include "run/collective.h"
#include "run/interpreter.h"

#include "comm/comm.h"
#include "plan/pipeline_schedule.h"

/* What the instruction moves: the operand of a send, the result of a receive. */
static const lk__kernel_operand *moved(const lk__run_instruction *in)
{
    return in->op == LK__OP_send ? &in->call.in[0] : &in->call.out[0];
}

static size_t bytes_of(const lk__kernel_operand *x)
{
    return (size_t)lk__operand_elements(x) * lk_dtype_size(x->dtype);
}

size_t lk__transfer_bytes(const lk__run_instruction *in)
{
    return lk__action_transfers(in->action) ? bytes_of(moved(in)) : 0;
}

static lk_status start_transfer(lk_program *p, const lk__schedule_run *run, size_t at, void *memory)
{
    const lk__run_instruction *in = lk__run_at(p, run, at);
    const lk__op_attrs        *attrs = in->call.attrs;
    const lk__kernel_operand  *x = moved(in);
    lk__run_collective        *c = lk__collective_at(p, run, at);
    lk__comm_call              call = {.kind = in->op == LK__OP_send ? LK__SEND : LK__RECV,
                                       .type = x->dtype,
                                       .root = attrs->transfer.stage,
                                       .tag = attrs->transfer.number * LK__PIPELINE_PARTS + run->part,
                                       .count = (size_t)lk__operand_elements(x),
                                       .send = memory,
                                       .recv = memory,
                                       .site = LK_HERE};
    return lk__comm_run(lk__run_group(p, attrs->mesh), &call, &c->work);
}

lk_status lk__run_start_send(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)next;
    return start_transfer(p, run, at, moved(lk__run_at(p, run, at))->data);
}

lk_status lk__run_start_receive(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)next;
    return start_transfer(p, run, at, moved(lk__run_at(p, run, at))->data);
}

lk_status lk__run_wait_received(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective *c = lk__collective_at(p, run, at);
    (void)next;
    return c->work ? lk__collective_take(p, c) : LK_OK;
}

/* ---- where the group does not reach the device's memory ---- */

lk_status lk__run_start_send_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__kernel_operand *x = moved(lk__run_at(p, run, at));
    char                     *memory = lk__collective_at(p, run, at)->staged;
    (void)next;
    lk_status status = lk__device_read(p->device, p->stream, memory, x->data, bytes_of(x));
    return status < 0 ? status : start_transfer(p, run, at, memory);
}

lk_status lk__run_start_receive_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)next;
    return start_transfer(p, run, at, lk__collective_at(p, run, at)->staged);
}

lk_status lk__run_wait_received_staged(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collective       *c = lk__collective_at(p, run, at);
    const lk__kernel_operand *y = moved(&lk__run_slot_list(p, run, 0)->instructions[c->start]);
    lk_status                 status = lk__run_wait_received(p, run, at, next);
    return status < 0 ? status : lk__device_write(p->device, p->stream, y->data, c->staged, bytes_of(y));
}

/* ---- sends ---- */

static bool sends(const lk__run_collective *c) { return c->list && c->list->instructions[c->start].op == LK__OP_send; }

/* Of the training list those of the run's slot, or, behind the last backward, of all; of another list all. */
lk_status lk__run_wait_sent(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_collectives *x = p->collectives;
    bool                 train = run->list == &p->plan->train, one = train && run->section != LK_SYNC;
    size_t               first = train ? (size_t)run->slot * x->each : x->evaluate;
    size_t               end = one ? first + x->each : train ? x->evaluate : x->count;
    lk_status            status = LK_OK;
    (void)at, (void)next;
    for (size_t i = first; i < end && status >= 0; i++)
        if (x->all[i].work && sends(&x->all[i])) status = lk__collective_take(p, &x->all[i]);
    return status;
}
