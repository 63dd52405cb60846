/* cache.c - writes rows into a buffer that earlier runs have filled: keys and values of generation. Bound by memory. A
 * tile is a sample, so if two rows have the same place, the later one is kept, whatever the number of threads. */
#include "device/cpu/lanes.h"

typedef struct writing {
    const ELEMENT *x;
    ELEMENT       *cache;
    const int32_t *rows;
    int64_t        t, s, width;
    int64_t       *invalid; /* position of the first row out of range */
} writing;

static void write_sample(void *argument, int64_t sample, int worker)
{
    const writing *w = argument;
    (void)worker;
    for (int64_t i = sample * w->t; i < (sample + 1) * w->t; i++) {
        int64_t row = w->rows[i];
        if (row >= w->s)
            keep_first(w->invalid, i);
        else if (row >= 0)
            memcpy(w->cache + (sample * w->s + row) * w->width, w->x + i * w->width, (size_t)w->width * sizeof *w->x);
    }
}

void KERNEL(cache_write)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[1];
    int64_t                   invalid = INT64_MAX;
    writing w = {.x = x->data, .cache = call->out[0].data, .rows = call->in[2].data, .invalid = &invalid};
    w.t = x->dims[1];
    w.s = call->out[0].dims[1];
    w.width = x->dims[2];
    lk__pool_run(call->pool, x->dims[0], write_sample, &w);
    report_invalid(call, LK__OP_cache_write, w.rows, invalid, w.s);
}
