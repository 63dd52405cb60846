/* cause.c - finds the rank that caused a job's failure, from how and when ranks ended, which rank their groups'
 * failures are due to (comm/flight_recorder.h), and the states of ranks that still run. A rank whose failure is due to
 * another one is not the cause. */
#include "comm/flight_recorder.h"
#include "comm/process.h"
#include "launch/launch.h"

#include <sys/wait.h>

/* How long to wait for the end of a rank that another one names as the cause, in seconds from the other's end. */
#define DYING_SECONDS 5.0  /* it is dead or ending: exit may wait for a write to a slow disk */
#define LATE_SECONDS 0.5   /* it missed a deadline: if it still runs, it learns of the failure and ends */
#define OUTPUT_SECONDS 1.0 /* the last output of a remote launcher may arrive after its end */

void lk__cause_record_end(lk__launch_job *job, lk__launch_child *child)
{
    int64_t  pid;
    uint64_t started;
    if (!job->uses_ssh && !lk__flight_recorder_look(child->flight_recorder, &child->cause, &pid, &started))
        child->cause = (lk__comm_cause){LK__CAUSE_UNKNOWN, 0};
}

static bool has_failed(const lk__launch_child *child)
{
    return child->pid > 0 && !child->running && !child->stop_requested && (child->status != 0 || child->no_answer);
}

/* A remote launcher has several ranks. NULL: that rank was not started from here. */
static lk__launch_child *find_child(lk__launch_job *job, int rank)
{
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (rank >= child->rank && rank < child->rank + (child->ranks > 0 ? child->ranks : 1)) return child;
    }
    return NULL;
}

/* Of the rank's process, which may be a descendant of the child. 0: unknown. */
static char state_of(const lk__launch_child *child)
{
    lk__process    process;
    lk__comm_cause cause;
    int64_t        pid;
    uint64_t       started;
    if (lk__flight_recorder_look(child->flight_recorder, &cause, &pid, &started) && lk__process_look(pid, &process) &&
        process.started == started)
        return process.state;
    return lk__process_look(child->pid, &process) ? process.state : 0;
}

typedef struct finding {
    lk__launch_child *child;   /* the cause, as this chain shows it */
    bool              pending; /* it may be about to end */
    bool              runs;    /* it did not end by itself, but is the cause */
    char              state;
    int               kind;     /* of the cause that led there */
    lk__launch_child *reporter; /* the child that named it; NULL: none did */
} finding;

/* `by` names `next`, which still runs, as the cause. */
static finding judge_running(const lk__launch_job *job, lk__launch_child *next, lk__launch_child *by, double now)
{
    lk__process process = {.state = job->uses_ssh ? 0 : state_of(next)};
    bool        late = by->cause.kind == LK__CAUSE_LATE || by->cause.kind == LK__CAUSE_STOPPED;
    bool        stopped = lk__process_stopped(&process);
    finding     f = {next, false, true, process.state, by->cause.kind, by};
    if (late && stopped) return f;
    f.pending = now < by->ended + (late && !job->uses_ssh ? LATE_SECONDS : DYING_SECONDS);
    /* Its connection ended, but its process runs: the connection failed, and nothing more is known. */
    bool lost = by->cause.kind == LK__CAUSE_DEAD || by->cause.kind == LK__CAUSE_CUT_OFF;
    if (!f.pending && lost && !stopped && process.state != 'D' && !lk__process_over(&process) && !job->uses_ssh)
        f = (finding){.child = by};
    return f;
}

/* Follows the causes from a failed rank to the rank that caused its failure. */
static finding follow_causes(lk__launch_job *job, lk__launch_child *child, double now)
{
    finding f = {.child = child};
    for (int steps = 0; steps < job->count; steps++) {
        lk__launch_child *at = f.child, *next;
        if (job->uses_ssh && at->streams[0].fd >= 0 && now < at->ended + OUTPUT_SECONDS) {
            f.pending = true;
            return f;
        }
        if (WIFSIGNALED(at->status) || at->cause.kind == LK__CAUSE_UNKNOWN) return f;
        next = find_child(job, at->cause.rank);
        if (!next || next == at) return f;
        if (next->running) return judge_running(job, next, at, now);
        if (!has_failed(next)) return f; /* it had finished, and others still waited for it */
        f = (finding){.child = next, .kind = at->cause.kind, .reporter = at};
    }
    return f;
}

/* Prefers a signal to an exit code, then the earlier end, then a rank that others name. Ends found in one pass have the
 * same time. */
static bool is_better(const finding *f, const finding *best)
{
    if (!best->child) return true;
    bool signal = !f->runs && WIFSIGNALED(f->child->status);
    bool best_signal = !best->runs && WIFSIGNALED(best->child->status);
    if (signal != best_signal) return signal;
    double time = f->runs ? f->reporter->ended : f->child->ended;
    double best_time = best->runs ? best->reporter->ended : best->child->ended;
    if (time < best_time || time > best_time) return time < best_time;
    return f->reporter && !best->reporter;
}

bool lk__cause_find(lk__launch_job *job)
{
    double  now = lk__now();
    finding best = {.child = NULL};
    bool    pending = false;
    job->decide_by = 0;
    for (int i = 0; i < job->count; i++) {
        if (!has_failed(&job->children[i])) continue;
        finding f = follow_causes(job, &job->children[i], now);
        pending |= f.pending;
        if (!f.pending && is_better(&f, &best)) best = f;
    }
    bool signal = best.child && !best.runs && WIFSIGNALED(best.child->status);
    if (pending && !signal) {
        job->decide_by = now + 0.05; /* states are polled; SIGCHLD reports an end at once */
        return false;
    }
    if (!best.child) return false;
    job->first = best.child;
    job->reporter = best.reporter;
    if (best.runs) {
        job->first->unresponsive = true;
        job->first->state = best.state;
        job->first->cause_kind = best.kind;
        job->first->ended = best.reporter->ended;
        if (job->uses_ssh ||
            !lk__flight_recorder_read(job->first->flight_recorder, job->last_operation, sizeof job->last_operation))
            job->last_operation[0] = 0;
    }
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        child->consequence =
            child != job->first && has_failed(child) && follow_causes(job, child, now).child == job->first;
    }
    return true;
}

lk__launch_child *lk__cause_elsewhere(lk__launch_job *job)
{
    lk__launch_child *child = job->first;
    bool              names_another =
        child && !child->unresponsive && !WIFSIGNALED(child->status) && child->cause.kind != LK__CAUSE_UNKNOWN;
    return names_another && !find_child(job, child->cause.rank) ? child : NULL;
}
