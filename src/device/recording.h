/* device/recording.h - steps that are queued as a whole: work that is recorded once and run again, the numbers of such
 * a step, which the device checks itself, and reports of what ran when. */
#ifndef LK__DEVICE_RECORDING_H
#define LK__DEVICE_RECORDING_H

#include "device/kernels.h"

typedef struct lk__device_graph lk__device_graph; /* recorded work */

/* The numbers of a step (loss, weight, metrics), added over its micro-batches and judged by the device, so that the
 * host need not wait for them. All addresses are the device's. */
enum { LK__DEVICE_NUMBERS = 3 + 2 * LK_MAX_METRICS };
typedef struct lk__device_numbers {
    const void                  *value[LK__DEVICE_NUMBERS];     /* one f32 or f64 each; NULL: there is none */
    bool                         narrow[LK__DEVICE_NUMBERS];    /* it is f32 */
    double                       otherwise[LK__DEVICE_NUMBERS]; /* counts where there is none */
    int                          count;
    bool                         first;  /* sets the sums; otherwise adds to them */
    double                      *sums;   /* count of them */
    double                      *weight; /* where the update reads sums[1]; NULL: nowhere */
    const lk__kernel_invalid_id *report;
    const lk__kernel_step       *step;
    int64_t                     *ring_slot; /* counts micro-batches: device/batch.h; NULL: nothing does */
    /* where sums[0] is not finite or an id is out of range: 1 + the number of the micro-batch; stays so */
    int32_t *halted;
    /* With other ranks, which must halt together: sums[0], sums[1] and whether this rank would halt. add_numbers writes
     * them, and the number of the micro-batch to `own`, where it would write `halted`; once they are added over all
     * ranks, judge_numbers writes `weight` and `halted`. NULL: there are no others. */
    double  *ranks; /* LK__DEVICE_RANKS_NUMBERS of them */
    int32_t *own;
} lk__device_numbers;
enum { LK__DEVICE_RANKS_NUMBERS = 3 };

/* What a step gave, in the host's memory. */
typedef struct lk__device_result {
    int64_t               step; /* written last: once the step's number is there, so is the rest */
    double                sums[LK__DEVICE_NUMBERS], norm;
    lk__kernel_invalid_id invalid;
    int32_t               halted;
} lk__device_result;

/* A kernel, a copy or a fill that ran, by the device's own clock. */
typedef enum lk__device_work { LK__WORK_KERNEL, LK__WORK_COPY, LK__WORK_FILL, LK__WORK_COUNT } lk__device_work;
typedef struct lk__device_span {
    double          begin, end; /* as lk__now counts */
    lk__device_work work;
    /* the same for all spans of one graph_run, and larger than in earlier runs; 0: part of none */
    uint64_t    graph;
    int64_t     bytes; /* of a copy or a fill */
    const char *name;  /* the device's; valid until it is closed */
} lk__device_span;

typedef struct lk__device_recording {
    /* Work that is recorded once and queued again as a whole. Between record_begin and record_end the stream's calls
     * record and run nothing, and the host waits for nothing. All NULL: the device records nothing. */
    lk_status (*record_begin)(lk__device *device, lk__device_stream *stream);
    lk_status (*record_end)(lk__device *device, lk__device_stream *stream,
                            lk__device_graph **graph); /* also after a failure */
    lk_status (*graph_run)(lk__device *device, lk__device_stream *stream, lk__device_graph *graph);
    void (*graph_free)(lk__device *device, lk__device_graph *graph);
    lk_status (*add_numbers)(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers);
    lk_status (*judge_numbers)(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers);
    /* Writes a step's result into results[ring slot of the step block], which alloc_host allocated. norm: NULL, or
     * f64. */
    lk_status (*publish)(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers,
                         const double *norm, lk__device_result *results);

    /* The end of a step in as few launches as its update takes: numbers of its only micro-batch, all calls of the
     * update (a group STEP_END), and the result, whose norm is 0. The result may be there before the update has ended.
     * *done false: nothing was queued. */
    lk_status (*end_step)(lk__device *device, const lk__device_numbers *numbers, const lk__device_group *update,
                          lk__device_result *results, bool *done);

    /* The device reports what runs between the two calls, also inside of graphs that are recorded after the first. Each
     * is called when no work is queued. LK_EUNSUPPORTED: it cannot here, with the reason. The spans are in no order,
     * valid until the next call. NULL: it never can. */
    lk_status (*spans_begin)(lk__device *device);
    lk_status (*spans_end)(lk__device *device, lk__device_span **spans, size_t *count);
    /* How much work of each kind the stream has recorded since record_begin. */
    lk_status (*record_counts)(lk__device *device, lk__device_stream *stream, int64_t counts[LK__WORK_COUNT]);
} lk__device_recording;

#endif
