/* cause.c - finds the rank that caused a job's failure. The evidence: how and when ranks ended, whom their groups' failures are due to
 * (comm/diary.h), and the states of ranks that still run. A rank whose failure is due to another one is not the cause. */
#include "comm/process.h"
#include "launch/launch.h"

#include "comm/flight_recorder.h"

#include <sys/wait.h>

/* How long the end of a rank that others cause is waited for, in seconds from the end of the one that blames it. */
#define DYING_SECONDS 5.0  /* it is dead or about to end: exiting from a write to a slow disk takes its time */
#define LATE_SECONDS 0.5   /* it was waited for until a deadline: it hears of the failure if it still hears anything */
#define OUTPUT_SECONDS 1.0 /* what a far end said before it ended may still be on its way */

void lk__cause_note_end(lk__launch_job *job, lk__launch_child *child)
{
    int64_t  pid;
    uint64_t started;
    if (!job->head && !lk__flight_recorder_look(child->diary, &child->cause, &pid, &started))
        child->cause = (lk__comm_cause){LK__CAUSE_UNKNOWN, 0};
}

static bool has_failed(const lk__launch_child *child)
{
    return child->pid > 0 && !child->running && !child->asked && (child->status != 0 || child->silent);
}

/* A far end has several ranks. NULL: that rank is not started from here. */
static lk__launch_child *find_child(lk__launch_job *job, int rank)
{
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        if (rank >= child->rank && rank < child->rank + (child->ranks > 0 ? child->ranks : 1)) return child;
    }
    return NULL;
}

/* Of the process that is the rank, which may be a descendant of the one that was started. 0: not known. */
static char state_of(const lk__launch_child *child)
{
    lk__process    process;
    lk__comm_cause cause;
    int64_t        pid;
    uint64_t       started;
    if (lk__flight_recorder_look(child->diary, &cause, &pid, &started) && lk__process_look(pid, &process) &&
        process.started == started)
        return process.state;
    return lk__process_look(child->pid, &process) ? process.state : 0;
}

typedef struct finding {
    lk__launch_child *child;   /* the cause as far as this chain shows it */
    bool              pending; /* its end may come in a moment */
    bool              runs;    /* it did not end by itself, but is the cause */
    char              state;
    int               kind;     /* of the cause that led there */
    lk__launch_child *reporter; /* who blamed it; NULL: nobody did */
} finding;

/* `next`, which still runs, is blamed by `by`. */
static finding judge_running(const lk__launch_job *job, lk__launch_child *next, lk__launch_child *by, double now)
{
    lk__process process = {.state = job->head ? 0 : state_of(next)};
    bool        late = by->cause.kind == LK__CAUSE_LATE || by->cause.kind == LK__CAUSE_STOPPED;
    bool        stopped = lk__process_stopped(&process);
    finding     f = {next, false, true, process.state, by->cause.kind, by};
    if (late && stopped) return f;
    f.pending = now < by->ended + (late && !job->head ? LATE_SECONDS : DYING_SECONDS);
    /* Its connection ended, and it is well: something between the two failed, which is all that is known. */
    bool lost = by->cause.kind == LK__CAUSE_DEAD || by->cause.kind == LK__CAUSE_CUT_OFF;
    if (!f.pending && lost && !stopped && process.state != 'D' && !lk__process_over(&process) && !job->head)
        f = (finding){.child = by};
    return f;
}

/* From a rank that failed to the one whose fault that is. */
static finding follow(lk__launch_job *job, lk__launch_child *child, double now)
{
    finding f = {.child = child};
    for (int steps = 0; steps < job->count; steps++) {
        lk__launch_child *at = f.child, *next;
        if (job->head && at->streams[0].fd >= 0 && now < at->ended + OUTPUT_SECONDS) {
            f.pending = true;
            return f;
        }
        if (WIFSIGNALED(at->status) || at->cause.kind == LK__CAUSE_UNKNOWN) return f;
        next = find_child(job, at->cause.rank);
        if (!next || next == at) return f;
        if (next->running) return judge_running(job, next, at, now);
        if (!has_failed(next)) return f; /* it was done, and others still waited for it */
        f = (finding){.child = next, .kind = at->cause.kind, .reporter = at};
    }
    return f;
}

/* A signal comes before an exit code, then what came first, then whom others cause. Ends that were seen at one look have one time. */
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
        finding f = follow(job, &job->children[i], now);
        pending |= f.pending;
        if (!f.pending && is_better(&f, &best)) best = f;
    }
    bool signal = best.child && !best.runs && WIFSIGNALED(best.child->status);
    if (pending && !signal) {
        job->decide_by = now + 0.05; /* a state is asked for anew; an end is heard at once */
        return false;
    }
    if (!best.child) return false;
    job->first = best.child;
    job->reporter = best.reporter;
    if (best.runs) {
        job->first->unanswering = true;
        job->first->state = best.state;
        job->first->blamed = best.kind;
        job->first->ended = best.reporter->ended;
        if (job->head || !lk__flight_recorder_read(job->first->diary, job->was_in, sizeof job->was_in))
            job->was_in[0] = 0;
    }
    for (int i = 0; i < job->count; i++) {
        lk__launch_child *child = &job->children[i];
        child->consequence = child != job->first && has_failed(child) && follow(job, child, now).child == job->first;
    }
    return true;
}

lk__launch_child *lk__cause_elsewhere(lk__launch_job *job)
{
    lk__launch_child *child = job->first;
    bool blames = child && !child->unanswering && !WIFSIGNALED(child->status) && child->cause.kind != LK__CAUSE_UNKNOWN;
    return blames && !find_child(job, child->cause.rank) ? child : NULL;
}
