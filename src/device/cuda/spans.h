/* device/cuda/spans.h - measures when work ran on a GPU: by events (spans.cu), or as CUPTI reports it (cupti.cu). */
#ifndef LK__CUDA_SPANS_H
#define LK__CUDA_SPANS_H

#include "device/cuda/cuda.h"

/* ---- spans.cu: the functions of these names in device/memory.h and device/recording.h ---- */
lk_status lk__cuda_timed_event_create(lk__device *device, lk__device_event **event);
lk_status lk__cuda_event_seconds(lk__device *device, lk__device_event *from, lk__device_event *to, double *seconds);
lk_status lk__cuda_record_counts(lk__device *device, lk__device_stream *stream, int64_t counts[LK__WORK_COUNT]);

/* ---- cupti.cu ---- */
lk_status lk__cuda_spans_begin(lk__device *device);
lk_status lk__cuda_spans_end(lk__device *device, lk__device_span **spans, size_t *count);
void      lk__cuda_spans_free(lk__cuda_device *device); /* what it holds for the device */
/* "13.0", or why there is none. */
void lk__cuda_cupti_text(char *text, size_t bytes);

/* ---- speed.cu: device/kernels.h's measure ---- */
lk_status lk__cuda_measure(lk__device *device, lk_dtype type, lk_device_speed *speed);

#endif
