/* run/interpreter.h - one interpreter for everything that a program runs: any run of a schedule (plan/schedule.h).
 * Sections that the caller runs by hand, micro-batches, leaves, evaluation, steps that are queued and steps of
 * generation differ only in their runs. */
#ifndef LK__RUN_INTERPRETER_H
#define LK__RUN_INTERPRETER_H

#include "plan/schedule.h"
#include "run/program.h"

/* Instruction `at` of the run's list. *next: the first that it has not run, at + 1 unless it says otherwise. */
typedef lk_status (*lk__run_action)(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

lk_status lk__interpret(lk_program *program, const lk__schedule_run *run);
lk_status lk__operands_prepare(lk_program *program, const lk__schedule_run *run); /* which lk__interpret begins with */

/* Slot `slot` of the run, counted from its first. */
static inline lk__run_slot *lk__run_slot_at(const lk_program *p, const lk__schedule_run *run, int slot)
{
    return &p->slots[run->slot + slot];
}
/* The instructions of the run's list; of the training list each slot has its own. */
static inline lk__run_list *lk__run_slot_list(const lk_program *p, const lk__schedule_run *run, int slot)
{
    if (run->list == &p->plan->train) return &lk__run_slot_at(p, run, slot)->train;
    return (lk__run_list *)(run->list == &p->plan->evaluate ? &p->evaluate : &p->weights);
}
static inline lk__run_instruction *lk__run_at(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    return &lk__run_slot_list(p, run, 0)->instructions[at];
}

/* ---- interpreter.c: kernels ---- */
lk_status lk__run_kernels(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_leaves(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_sources(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_slice(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- shard_norm.c ---- */
lk_status lk__run_fetch_parts(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_square_parts(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_add_squares(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- staging.c, losses.c: around kernels ---- */
lk_status lk__run_inputs(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_bound(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_read_ids(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_step_block(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_loss_scales(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- collective.c ---- */
lk_status lk__run_start(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
/* shard_host.c */
lk_status lk__run_start_host(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
/* routes.c */
lk_status lk__run_start_exchange(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_exchange_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_alone(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_leaves(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_refuse_leaves(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_leaf_batch(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_bucket(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_scatter(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_sources(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_slices(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_wait(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- transfer.c: between stages of a pipeline ---- */
lk_status lk__run_start_send(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_send_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_receive(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_receive_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_wait_received(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_wait_received_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_wait_sent(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- bucket.c ---- */
lk_status lk__run_add_sets(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_add_leaves(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_round(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_widen(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_widen_slice(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_copy_out(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_copy_out_sets(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_copy_in(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- shard.c ---- */
lk_status lk__run_start_shard(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_start_shard_staged(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_add_slices(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- results.c ---- */
lk_status lk__run_loss(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_numbers(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_leaf_numbers(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_report_step(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_check_loss(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_weight(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_divide(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_norm(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_outputs(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- lend.c, shared_*.c: a state that the ranks of a host share ---- */
lk_status lk__run_lend_cores(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_report_shared(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_divide_shared(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_barrier_buffers(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_exchange(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_barrier_begin(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_wait_slices(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_square_slices(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_barrier_norm(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_update_slices(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_barrier_update(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

/* ---- step.c, tokens.c: what is queued ---- */
lk_status lk__run_batch_begin(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_batch_numbers(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_sum_numbers(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_step_end(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_step_result(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);
lk_status lk__run_choose_tokens(lk_program *program, const lk__schedule_run *run, size_t at, size_t *next);

#endif
