/* section.c - the sections of a step as the caller runs them: their order is checked here, and each is one run of the interpreter. */
#include "run/interpreter.h"

#include "comm/hosts.h"
#include "run/lend.h"
#include "run/shared.h"

#define STEP_ORDER "the order of a step is LK_FORWARD, LK_BACKWARD, LK_UPDATE"

/* The run that the state of the step asks for: in a step that nobody divides, the same as in its schedule. */
static lk__schedule_run next_run(const lk_program *p, lk_section section, unsigned flags)
{
    bool computes = section == LK_FORWARD || section == LK_BACKWARD;
    int  set = !computes ? 0 : p->plan->parallel.leaves ? p->progress.part : p->progress.pending > 0;
    return (lk__schedule_run){.list = &p->plan->train,
                              .section = section,
                              .through = section,
                              .slots = computes ? p->plan->slots : 1,
                              .part = p->progress.part,
                              .set = set,
                              .flags = flags | LK__IF_WAITED};
}

/* ---- forward and backward ---- */

static lk_status run_forward(lk_program *p)
{
    p->progress.ready = p->progress.overwritten = p->ids.invalid.found = p->ids.invalid_forward = false;
    if (!p->ids.invalid_backward) p->ids.invalid_text[0] = 0; /* of a forward that no backward followed */
    lk__schedule_run run = next_run(p, LK_FORWARD, 0);
    lk_status        status = lk__interpret(p, &run);
    if (status < 0) return status;
    p->progress.ready = true;
    return LK_OK;
}

/* Whether a backward may run now; waits for what it would overwrite. */
static lk_status begin_backward(lk_program *p)
{
    const lk_plan *plan = p->plan;
    bool           adds = plan->parallel.leaves || plan->sets > 1;
    if (!p->progress.ready)
        return lk__fail(p->context, LK_EINVAL, "LK_BACKWARD %s; " STEP_ORDER,
                        p->progress.overwritten ? "after LK_EVALUATE, which has overwritten what it reads"
                                                : "without a LK_FORWARD that it belongs to");
    if (!adds && p->progress.no_sync)
        return lk__fail(p->context, LK_EINVAL,
                        "lk_program_no_sync accumulates gradients, but the plan holds one set of them: plan it with "
                        "micro_batches above 1");
    if (p->comm && !plan->parallel.leaves && !p->progress.synced && p->progress.pending &&
        p->progress.sent) { /* its gradients are in flight */
        if (adds)
            return lk__fail(
                p->context, LK_EINVAL,
                "the gradients of the LK_BACKWARD before this one were sent to the other ranks already, so "
                "nothing can be added to them: call lk_program_no_sync(program, true) before all but the last");
        lk_status status = lk__collectives_drain(p);
        if (status < 0) return status;
    }
    lk_status status = p->progress.synced ? lk__shared_reuse(p) : LK_OK;
    if (status < 0) return status;
    if (p->progress.synced || (!adds && p->progress.pending)) { /* gradients that no update used are replaced */
        p->progress.pending = 0;
        p->progress.synced = p->progress.written = false;
        p->ids.invalid_backward = false;
        if (!p->ids.invalid_forward) p->ids.invalid_text[0] = 0;
    }
    return LK_OK;
}

static lk_status run_backward(lk_program *p)
{
    lk_status status = begin_backward(p);
    if (status < 0) return status;
    bool last = !p->progress.no_sync && !p->progress.more;
    bool adds = p->progress.pending > 0 && !p->plan->parallel.leaves;
    p->progress.sent = false;
    p->progress.ready = false; /* gradients overwrite activations */
    lk__schedule_run run = next_run(p, LK_BACKWARD, (last ? LK__IF_LAST : LK__IF_MORE) | (adds ? LK__IF_ADDS : 0));
    p->progress.sent = last;
    if ((status = lk__interpret(p, &run)) < 0) return status;
    p->progress.pending++;
    p->progress.has_gradients = true;
    p->ids.invalid_backward |= p->ids.invalid_forward;
    return LK_OK;
}

/* ---- sync and update ---- */

static lk_status run_sync(lk_program *p)
{
    if (p->progress.synced) return LK_OK;
    if (p->progress.pending == 0)
        return lk__fail(p->context, LK_EINVAL, "there are no gradients to synchronise: run LK_BACKWARD first");
    lk__schedule_run run = next_run(p, LK_SYNC, p->progress.sent ? 0 : LK__IF_HELD);
    lk_status        status = lk__interpret(p, &run);
    if (status < 0) { /* where one bucket fails, the others are still waited for, since they use the gradients */
        (void)lk__collectives_drain(p);
        lk__shared_unsynced(p);
        return status;
    }
    p->progress.synced = true;
    return LK_OK;
}

static lk_status run_update(lk_program *p)
{
    if (p->progress.pending == 0)
        return lk__fail(p->context, LK_EINVAL,
                        "LK_UPDATE without gradients; " STEP_ORDER ", or gradients of your own with "
                        "lk_program_gradient_write before LK_UPDATE");
    if (!p->progress.synced) lk__program_permit(p); /* nothing is between the two */
    lk_status status = p->progress.synced ? LK_OK : run_sync(p);
    if (status < 0) return status;
    lk__schedule_run run = next_run(p, LK_UPDATE, LK__IF_LAST | (lk__shared_apart(p) ? LK__IF_APART : 0));
    if ((status = lk__interpret(p, &run)) < 0) return status;
    p->progress.ready = false;
    lk__drop_gradients(p);
    return LK_OK;
}

/* ---- evaluation ---- */

static lk_status run_evaluate(lk_program *p)
{
    lk__schedule_run run = lk__schedule_run_of(&p->plan->evaluate, LK__IF_WAITED);
    lk_status        status = lk__operands_prepare(p, &run);
    if (status < 0) return status;
    p->progress.overwritten |= p->progress.ready;
    p->progress.ready = p->ids.invalid.found = false;
    return lk__interpret(p, &run);
}

/* ---- all of them ---- */

/* Buffers that the ranks share may be partly new if one of them died here. */
static lk_status check_buffers(lk_program *p, lk_status status)
{
    bool changed = status < 0 && p->plan->writes_buffers && lk__store_shares_buffers(p->store);
    return changed && lk_comm_status(p->comm) < 0 ? lk__store_invalidate(p->store, status) : status;
}

/* Parameters that all ranks share are in the caches of those that updated them: ranks begin at different ones. */
static lk_status run_helped(lk_program *p, lk_status (*section)(lk_program *))
{
    lk__pool *pool = lk__context_pool(p->context);
    if (p->shared) lk__pool_begin_at(pool, lk__plan_own(p->plan), lk__plan_owners(p->plan));
    lk__lend_begin(p);
    lk_status status = section(p);
    lk__lend_end(p);
    lk__pool_begin_at(pool, 0, 1);
    return status;
}

lk_status lk__section_run(lk_program *p, lk_section section)
{
    lk_status status = lk__store_check(p->store);
    p->progress.evaluated = -1; /* its outputs are overwritten */
    if (status < 0) return status;
    switch (section) {
    case LK_FORWARD: return check_buffers(p, run_helped(p, run_forward));
    case LK_BACKWARD: return run_helped(p, run_backward);
    case LK_SYNC: return run_sync(p);
    case LK_UPDATE: return run_update(p);
    default: return run_evaluate(p);
    }
}
