/* bench_trainer.c - times the steps of a trainer whose data set is in the device's memory. */
#define _GNU_SOURCE
#include "bench_trainer.h"

#include "clock.h"
#include "times.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 10000, BYTES = 64 << 20 /* of all, about */, FEWEST = 20, MOST = 100000 /* steps */ };

typedef struct timing {
    double  started, first, begin; /* begin: when the steps that are measured began */
    double  last[2];       /* when the latest two ended. Two are in flight, and may end for the host at once: … */
    double *seconds;       /* … of each step, half the time of it and the one before */
    int64_t count, wanted; /* wanted 0: until two seconds have passed */
    bool    warm;          /* two steps have run: the second is recorded */
} timing;

static int on_event(void *user, const lk_event *e)
{
    timing *t = user;
    double  time = now();
    if (e->kind != LK_EVENT_STEP) return 0;
    if (t->first == 0) {
        t->first = time - t->started;
    } else if (!t->warm) {
        t->warm = true;
        t->begin = time;
    } else if (t->count < (t->wanted ? t->wanted : MOST)) {
        t->seconds[t->count++] = (time - t->last[1]) / 2;
    }
    t->last[1] = t->last[0];
    t->last[0] = time;
    if (t->wanted) return t->count >= t->wanted;
    return t->count >= MOST || (t->count >= FEWEST && time - t->begin > 2);
}

/* Uniform numbers: the speed of a step does not depend on the values. */
static void fill_column(const lk_field *f, int64_t count, void *column)
{
    uint64_t state = 1;
    int64_t  elements = count * lk_field_elements(f);
    uint32_t classes = f->classes > 0 ? (uint32_t)f->classes : 1;
    /* elements of a number: bytes are most of the data, and this is part of the start */
    int64_t each = f->dtype == LK_U8 ? 4 : 1;
    for (int64_t i = 0; i < elements; i += each) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(state >> 32) >> 1;
        switch (f->dtype) {
        case LK_U8: memcpy((unsigned char *)column + i, &bits, (size_t)(elements - i < 4 ? elements - i : 4)); break;
        case LK_F32: ((float *)column)[i] = (float)bits / 1073741824.0f - 1; break;
        case LK_I32: ((int32_t *)column)[i] = (int32_t)(bits % classes); break;
        default: ((int64_t *)column)[i] = bits; break;
        }
    }
}

static int64_t choose_count(const lk_dataset *like, int64_t batch)
{
    size_t  bytes = 0;
    int64_t count = SAMPLES;
    for (int i = 0; i < lk_dataset_fields(like); i++) bytes += lk_field_bytes(lk_dataset_field(like, i));
    if ((size_t)count * bytes > BYTES) count = (int64_t)(BYTES / bytes);
    return count < 4 * batch ? 4 * batch : count;
}

static lk_status make_data(setup *s, void **columns, lk_dataset **data)
{
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_field                 fields[LK_MAX_FIELDS];
    config.count = choose_count(s->train, s->config.batch);
    config.fields = fields;
    config.fields_count = lk_dataset_fields(s->train);
    config.data = (const void *const *)columns;
    for (int i = 0; i < config.fields_count; i++) {
        fields[i] = *lk_dataset_field(s->train, i);
        if (!(columns[i] = malloc((size_t)config.count * lk_field_bytes(&fields[i])))) return LK_ENOMEM;
        fill_column(&fields[i], config.count, columns[i]);
    }
    return lk_dataset_from_arrays(s->context, &config, data);
}

/* Whether the plan holds data: it may still be the table by which bytes are converted. */
static lk_status may_hold_data(setup *s)
{
    size_t    memory[LK_MEMORY_COUNT];
    lk_graph *graph;
    lk_plan  *plan;
    if (s->config.data_on_device == LK_DATA_AUTO && lk_context_on_host(s->context)) return LK_END;
    if (s->config.data_on_device == LK_DATA_ON_HOST) return LK_END;
    lk_status status = lk_trainer_plan(s->context, &s->config, &graph, &plan, memory);
    if (status < 0) return status;
    lk_plan_free(plan);
    lk_graph_free(graph);
    return memory[LK_MEMORY_DATA] > 0 ? LK_OK : LK_END;
}

static lk_status measure(setup *s, const lk_dataset *data, int64_t steps, double started, bench_times *times)
{
    lk_trainer_config config = s->config;
    lk_trainer       *t = NULL;
    timing            timing = {.started = started, .wanted = steps < MOST ? steps : MOST};
    config.train = data;
    config.test = NULL;
    config.eval_every = -1;
    config.steps = INT64_C(1) << 40; /* events stop it */
    config.event = on_event;
    config.event_user = &timing;
    if (!(timing.seconds = malloc(MOST * sizeof *timing.seconds))) return LK_ENOMEM;
    lk_status status = lk_trainer_create(s->context, &config, &t);
    if (status >= 0 && !lk_trainer_data_on_device(t)) status = LK_END;
    if (status == LK_OK) status = lk_trainer_run(t);
    if (status == LK_ECANCELED && timing.count > 0) {
        int64_t warm = timing.count / 4, count = timing.count - warm;
        *times = (bench_times){timing.first, times_median(timing.seconds + warm, count),
                               times_mean(timing.seconds + warm, count), count};
        status = LK_OK;
    }
    lk_trainer_free(t);
    free(timing.seconds);
    return status;
}

lk_status bench_trainer(setup *s, int64_t steps, double started, bench_times *times)
{
    void       *columns[LK_MAX_FIELDS] = {NULL};
    lk_dataset *data = NULL;
    lk_status   status = may_hold_data(s);
    if (status != LK_OK) return status;
    status = make_data(s, columns, &data);
    if (status >= 0) status = measure(s, data, steps, started, times);
    lk_dataset_free(data);
    for (int i = 0; i < LK_MAX_FIELDS; i++) free(columns[i]);
    return status;
}
