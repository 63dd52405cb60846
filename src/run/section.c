/* section.c - runs a step's sections, by its schedule or by hand: checks their order; each section is one run of the
 * interpreter. */
#include "comm/mesh.h"
#include "run/collective.h"
#include "run/interpreter.h"

#include "run/lend.h"

void lk__drop_activations(lk_program *p)
{
    for (int i = 0; i < p->plan->slots; i++) p->slots[i].ready = false;
}

#define STEP_ORDER "the order of a step is LK_FORWARD, LK_BACKWARD, LK_UPDATE"

/* ---- forward and backward ---- */

/* Whether other slots have micro-batches whose backward is still to come. */
static bool keeps_others(const lk_program *p)
{
    for (int i = 0; i < p->plan->slots; i++)
        if (p->slots[i].ready) return true;
    return false;
}

static lk_status run_forward(lk_program *p, const lk__schedule_run *run)
{
    lk__run_slot *slot = lk__run_slot_at(p, run, 0);
    slot->ready = p->progress.overwritten = p->ids.invalid.found = false;
    if (!keeps_others(p)) p->ids.invalid_forward = false;
    if (!p->ids.invalid_backward && !p->ids.invalid_forward)
        p->ids.invalid_text[0] = 0; /* of a forward that no backward followed */
    lk_status status = lk__interpret(p, run);
    if (status < 0) return status;
    slot->ready = true;
    return LK_OK;
}

/* Whether a backward may run now; waits for what it would overwrite. */
static lk_status begin_backward(lk_program *p, const lk__schedule_run *run)
{
    const lk__plan_division *d = &p->division;
    if (!lk__run_slot_at(p, run, 0)->ready)
        return lk__fail(p->context, LK_EINVAL, "LK_BACKWARD %s; " STEP_ORDER,
                        p->progress.overwritten ? "after LK_EVALUATE, which has overwritten what LK_BACKWARD reads"
                                                : "without its LK_FORWARD");
    if (!d->several && p->progress.no_sync)
        return lk__fail(
            p->context, LK_EINVAL,
            "lk_program_no_sync accumulates gradients, but the plan has memory for only one set of gradients: "
            "plan with micro_batches above 1");
    /* its gradients are in flight */
    if (p->comm && d->by_hand && !p->progress.synced && p->progress.pending && p->progress.sent) {
        if (d->several)
            return lk__fail(
                p->context, LK_EINVAL,
                "the gradients of the previous LK_BACKWARD have already been sent to the other ranks, so nothing can "
                "be added to them: call lk_program_no_sync(program, true) before every LK_BACKWARD but the last");
        lk_status status = lk__collectives_drain(p);
        if (status < 0) return status;
    }
    lk_status status = p->progress.synced ? p->gradients->reuse(p) : LK_OK;
    if (status < 0) return status;
    if (p->progress.synced || (!d->several && p->progress.pending)) { /* gradients that no update used are replaced */
        p->progress.pending = 0;
        p->progress.synced = p->progress.written = false;
        p->ids.invalid_backward = false;
        if (!p->ids.invalid_forward) p->ids.invalid_text[0] = 0;
    }
    return LK_OK;
}

static lk_status run_backward(lk_program *p, const lk__schedule_run *run)
{
    bool      whole = run->half != LK__HALF_WEIGHTS;
    lk_status status = whole ? begin_backward(p, run) : LK_OK;
    if (status < 0) return status;
    /* A step may follow backward runs by hand. */
    if (whole && p->progress.pending == 0) p->progress.earlier = false;
    lk__schedule_run now = p->progress.earlier ? lk__schedule_behind(p->plan, run) : *run;
    lk__run_slot_at(p, run, 0)->ready = false; /* gradients overwrite activations */
    p->progress.sent = run->flags & LK__IF_LAST;
    if ((status = lk__interpret(p, &now)) < 0) return status;
    if (whole) p->progress.pending++;
    p->progress.has_gradients = true;
    p->ids.invalid_backward |= p->ids.invalid_forward;
    return LK_OK;
}

/* ---- sync and update ---- */

static lk_status run_sync(lk_program *p, const lk__schedule_run *run)
{
    if (p->progress.synced) return LK_OK;
    if (p->progress.pending == 0)
        return lk__fail(p->context, LK_EINVAL, "there are no gradients to synchronise: run LK_BACKWARD first");
    lk_status status = lk__interpret(p, run);
    if (status < 0) { /* where one bucket fails, the others are still waited for, since they use the gradients */
        (void)lk__collectives_drain(p);
        p->progress.allows_update = false;
        return status;
    }
    p->progress.synced = true;
    return LK_OK;
}

/* The run by hand that the state of the step asks for. */
static lk__schedule_run run_by_hand(const lk_program *p, lk_section section)
{
    const lk__run_progress *now = &p->progress;
    unsigned                flags = 0;
    switch (section) {
    case LK_FORWARD: flags = LK__IF_BY_HAND; break;
    case LK_BACKWARD: flags = now->no_sync ? LK__IF_MORE : LK__IF_LAST; break;
    case LK_SYNC: flags = now->sent ? 0 : LK__IF_HELD; break;
    case LK_UPDATE: flags = LK__IF_LAST; break;
    default: break;
    }
    return lk__schedule_by_hand(p->plan, section, flags);
}

static lk_status run_update(lk_program *p, const lk__schedule_run *run)
{
    if (p->progress.pending == 0)
        return lk__fail(p->context, LK_EINVAL,
                        "LK_UPDATE has no gradients: " STEP_ORDER
                        "; or call lk_program_gradient_write before LK_UPDATE");
    if (!p->progress.synced) lk__program_allow_update(p); /* nothing is between the two */
    lk__schedule_run now = run_by_hand(p, LK_SYNC);
    lk_status        status = p->progress.synced ? LK_OK : run_sync(p, &now);
    if (status < 0) return status;
    now = *run;
    /* The ranks' reports say so, whatever each of them runs. */
    now.flags = (now.flags & ~(unsigned)LK__IF_SEPARATE) | (p->progress.update_allowed ? 0 : LK__IF_SEPARATE);
    if ((status = lk__collective_queue_check(p)) < 0) return status; /* nothing has changed */
    if ((status = lk__interpret(p, &now)) < 0) return lk__collective_queue_spoil(p, status);
    lk__drop_activations(p);
    lk__drop_gradients(p);
    return LK_OK;
}

/* ---- evaluation ---- */

static lk_status run_evaluate(lk_program *p, const lk__schedule_run *run)
{
    lk_status status = lk__operands_prepare(p, run);
    if (status < 0) return status;
    p->progress.overwritten |= p->slots[0].ready;
    lk__drop_activations(p);
    p->ids.invalid.found = false;
    return lk__interpret(p, run);
}

/* ---- all of them ---- */

/* Buffers that the ranks share may be partly new if one of them died here. */
static lk_status check_buffers(lk_program *p, lk_status status)
{
    bool changed = status < 0 && p->group.awaits_buffers;
    return changed && lk_comm_status(p->comm) < 0 ? lk__store_invalidate(p->store, status) : status;
}

static lk_status run_helped(lk_program *p, const lk__schedule_run *run,
                            lk_status (*section)(lk_program *, const lk__schedule_run *))
{
    lk__pool *pool = lk__context_pool(p->context);
    lk__pool_begin_at(pool, p->tiles_first, p->tiles_of);
    lk__lend_begin(p);
    lk_status status = section(p, run);
    lk__lend_end(p);
    lk__pool_begin_at(pool, 0, 1);
    return status;
}

/* Ranks that wait for this one along other axes would otherwise learn only that it left: they fail with what failed
 * this one, which names the rank that did. */
static void abort_groups(const lk_program *p)
{
    bool failed = false;
    for (int i = 0; p->mesh && i < LK__MESH_GROUPS; i++) {
        lk_comm *group = lk__mesh_group_at(p->mesh, i);
        failed |= group && lk_comm_status(group) < 0;
    }
    for (int i = 0; failed && i < LK__MESH_GROUPS; i++) {
        lk_comm *group = lk__mesh_group_at(p->mesh, i);
        if (group && group != p->comm && lk_comm_status(group) >= 0) lk_comm_abort(group, lk_context_error(p->context));
    }
}

static lk_status run_section(lk_program *p, const lk__schedule_run *run)
{
    if (run->receives == LK__RECEIVES_ALONE) return lk__interpret(p, run);
    switch (run->section) {
    case LK_FORWARD: return check_buffers(p, run_helped(p, run, run_forward));
    case LK_BACKWARD: return run_helped(p, run, run_backward);
    case LK_SYNC: return run_sync(p, run);
    case LK_UPDATE: return run_update(p, run);
    default: return run_evaluate(p, run);
    }
}

lk_status lk__section_run(lk_program *p, const lk__schedule_run *run)
{
    lk_status status = lk__store_check(p->store);
    p->progress.evaluated = -1; /* its outputs are overwritten */
    if (status >= 0 && (status = run_section(p, run)) < 0) abort_groups(p);
    return status;
}

lk_status lk__section_by_hand(lk_program *p, lk_section section)
{
    p->progress.earlier = p->progress.pending > 0;
    lk__schedule_run run = run_by_hand(p, section);
    return lk__section_run(p, &run);
}
