/* schedule.c - learning-rate schedules: their names, and the rate of a step. */
#include <lockstep/optimizer.h>
#include <math.h>
#include <string.h>

bool lk_schedule_parse(const char *name, lk_schedule_kind *kind)
{
    static const char *const names[] = {"constant", "step", "cosine"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *kind = (lk_schedule_kind)i;
            return true;
        }
    return false;
}

double lk_schedule_rate(const lk_schedule *s, double lr, int64_t step)
{
    if (step < s->warmup) return lr * (double)(step + 1) / (double)s->warmup;
    int64_t after = step - s->warmup;
    switch (s->kind) {
    case LK_SCHEDULE_STEP: return s->every > 0 ? lr * pow(s->gamma, (double)(after / s->every)) : lr;
    case LK_SCHEDULE_COSINE: {
        int64_t length = s->total - s->warmup;
        if (length <= 0) return lr;
        double along = after >= length ? 1 : (double)after / (double)length;
        return lr * (s->minimum + (1 - s->minimum) * 0.5 * (1 + cos(3.141592653589793 * along)));
    }
    default: return lr;
    }
}
