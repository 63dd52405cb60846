/* pipeline_schedule.c - the lists of gpipe, 1f1b and zero-bubble. */
#include "plan/pipeline_schedule.h"

const char *lk__pipeline_kind_name(lk__pipeline_schedule_kind kind)
{
    static const char *const names[LK__PIPELINE_KINDS] = {"forward", "backward", "weight gradient"};
    return names[kind];
}

static int parts_of(const lk__pipeline_schedule_shape *s) { return s->micro_batches > 1 ? s->micro_batches : 1; }

int lk__pipeline_slots(const lk__pipeline_schedule_shape *s, int stage)
{
    int parts = parts_of(s), most = s->stages - stage; /* forward is so many runs ahead of backward */
    if (s->early && s->stages > 1) most++;             /* or one more; the last stage receives it meanwhile */
    if (s->schedule == LK_PIPELINE_GPIPE) most = parts;
    if (s->schedule == LK_PIPELINE_ZERO_BUBBLE) most = s->stages; /* and weights `stage` runs behind it */
    return most < parts ? most : parts;
}

int lk__pipeline_count(const lk__pipeline_schedule_shape *s)
{
    return parts_of(s) * (s->schedule == LK_PIPELINE_ZERO_BUBBLE ? 3 : 2);
}

/* One forward and one backward in turn, once as many forward runs precede as stages follow: of any of these, the next
 * backward can be there no earlier. Where messages take long, one more: a stage has computed it before the next stage
 * can need it, and the last stage has room for it while it computes. Zero-bubble ("Zero Bubble Pipeline Parallelism",
 * section 2.2, ZB-H1) computes the gradients of weights as many runs later as stages precede: a later stage has nothing
 * else to do until its first backward is answered, and holds no more micro-batches than the first stage. */
void lk__pipeline_list(const lk__pipeline_schedule_shape *s, int stage, lk__pipeline_schedule_run *runs)
{
    int parts = parts_of(s), slots = lk__pipeline_slots(s, stage), count = 0;
    int ahead = s->schedule == LK_PIPELINE_GPIPE ? parts : s->stages - 1 - stage;
    if (s->schedule == LK_PIPELINE_1F1B && s->early && stage + 1 < s->stages) ahead++;
    bool apart = s->schedule == LK_PIPELINE_ZERO_BUBBLE;
    for (int i = -ahead; i < parts + (apart ? stage : 0); i++) {
        int forward = i + ahead, late = i - stage;
        if (forward < parts)
            runs[count++] = (lk__pipeline_schedule_run){LK__PIPELINE_FORWARD, forward, forward % slots};
        if (i >= 0 && i < parts) runs[count++] = (lk__pipeline_schedule_run){LK__PIPELINE_BACKWARD, i, i % slots};
        if (apart && late >= 0 && i >= 0 && late < parts)
            runs[count++] = (lk__pipeline_schedule_run){LK__PIPELINE_WEIGHTS, late, late % slots};
    }
}
