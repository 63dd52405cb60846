/* contents.c - intervals of memory and what they hold. A value is written and read as a whole nearly always, so an
 * access usually touches one interval, and the list has at most a few hundred. */
#include "plan/contents.h"

#include <string.h>

size_t lk__contents_find(const lk__plan_contents *c, size_t at)
{
    size_t low = 0, high = c->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->all[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Makes room for one interval in front of number `index`. */
static lk_status open_gap(lk_context *context, lk__plan_contents *c, size_t index)
{
    if (lk__grow(context, (void **)&c->all, &c->capacity, c->count + 1, sizeof *c->all) < 0) return LK_ENOMEM;
    memmove(c->all + index + 1, c->all + index, (c->count - index) * sizeof *c->all);
    c->count++;
    return LK_OK;
}

/* An interval that `at` is inside of becomes two. */
static lk_status split_at(lk_context *context, lk__plan_contents *c, size_t at)
{
    size_t i = lk__contents_find(c, at);
    if (i == c->count || c->all[i].begin >= at) return LK_OK;
    if (open_gap(context, c, i) < 0) return LK_ENOMEM;
    c->all[i].end = c->all[i + 1].begin = at;
    return LK_OK;
}

lk_status lk__contents_write(lk_context *context, lk__plan_contents *c, size_t begin, size_t end,
                             const lk__plan_content *content)
{
    if (begin >= end) return LK_OK;
    if (split_at(context, c, begin) < 0 || split_at(context, c, end) < 0) return LK_ENOMEM;
    size_t first = lk__contents_find(c, begin), last = first;
    while (last < c->count && c->all[last].begin < end) last++;
    if (first == last && open_gap(context, c, first) < 0) return LK_ENOMEM;
    if (last > first + 1) {
        memmove(c->all + first + 1, c->all + last, (c->count - last) * sizeof *c->all);
        c->count -= last - first - 1;
    }
    c->all[first] = (lk__plan_interval){.begin = begin, .end = end, .content = *content};
    return LK_OK;
}

lk_status lk__contents_mark(lk_context *context, lk__plan_contents *c, size_t begin, size_t end, int flight,
                            bool arrives)
{
    if (begin >= end) return LK_OK;
    if (split_at(context, c, begin) < 0 || split_at(context, c, end) < 0) return LK_ENOMEM;
    for (size_t i = lk__contents_find(c, begin); i < c->count && c->all[i].begin < end; i++) {
        c->all[i].flight = flight;
        c->all[i].arrives = arrives;
    }
    return LK_OK;
}

void lk__contents_land(lk__plan_contents *c, int flight)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->all[i].flight == flight) c->all[i].flight = 0, c->all[i].arrives = false;
}

void lk__contents_free(lk_context *context, lk__plan_contents *c)
{
    lk__free(context, LK_MEMORY_OTHER, c->all, c->capacity * sizeof *c->all);
    *c = (lk__plan_contents){.all = NULL};
}
