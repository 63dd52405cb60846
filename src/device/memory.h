/* device/memory.h - what a device does with memory: allocation, copies, and the streams and events that order them.
 * Nothing outside a device dereferences its memory, unless the device says that it is the host's (`host`).
 *
 * Work given to a stream runs in order, and copies and kernels may return before they have run: stream_wait waits for
 * all of a stream's work. A failure of such work is returned by the next call on the stream. The CPU runs everything at
 * once, so its streams and events are NULL. */
#ifndef LK__DEVICE_MEMORY_H
#define LK__DEVICE_MEMORY_H

#include "base/base.h"

#include <lockstep/context.h>

typedef struct lk__device        lk__device;
typedef struct lk__device_stream lk__device_stream;
typedef struct lk__device_event  lk__device_event;

typedef struct lk__device_memory {
    bool host; /* it is the host's: anyone may dereference it, and kernels read the caller's inputs where they are */
    bool one_block; /* what is allocated together (lk__device_alloc_parts) is one allocation */

    /* LK_OK, or why nothing can be allocated: a device may be opened only to make plans. NULL: allocation is always
     * possible. */
    lk_status (*check)(lk__device *device);
    /* Zeroed memory of the device, aligned to LK__ALIGN and accounted under kind; NULL: a message is set. */
    void *(*alloc)(lk__device *device, lk_memory kind, size_t bytes);
    void (*free)(lk__device *device, lk_memory kind, void *memory, size_t bytes);
    /* Bytes of its memory that can still be allocated, and of all of it; 0: not known. NULL: as for the host's. */
    void (*available)(lk__device *device, size_t *free, size_t *total);
    /* Allocates host memory from and to which the device copies quickly. */
    void *(*alloc_host)(lk__device *device, lk_memory kind, size_t bytes);
    void (*free_host)(lk__device *device, lk_memory kind, void *memory, size_t bytes);
    /* The same for host memory that others allocated; where that fails, copies are slower. NULL: there is nothing to
     * do. */
    void (*pin)(lk__device *device, void *memory, size_t bytes);
    void (*unpin)(lk__device *device, void *memory);

    lk_status (*copy_in)(lk__device *device, lk__device_stream *stream, void *to, const void *host, size_t bytes);
    lk_status (*copy_out)(lk__device *device, lk__device_stream *stream, void *host, const void *from, size_t bytes);
    lk_status (*copy)(lk__device *device, lk__device_stream *stream, void *to, const void *from, size_t bytes);
    lk_status (*fill)(lk__device *device, lk__device_stream *stream, void *memory, int byte, size_t bytes);

    lk_status (*stream_create)(lk__device *device, lk__device_stream **stream);
    void (*stream_free)(lk__device *device, lk__device_stream *stream);
    lk_status (*stream_wait)(lk__device *device, lk__device_stream *stream); /* the caller waits for all of its work */
    /* LK_OK: all work of the stream has ended; LK_END: some has not. Of devices that record work. */
    lk_status (*stream_query)(lk__device *device, lk__device_stream *stream);
    lk_status (*event_create)(lk__device *device, lk__device_event **event);
    void (*event_free)(lk__device *device, lk__device_event *event);
    lk_status (*event_record)(lk__device *device, lk__device_event *event, lk__device_stream *stream);
    lk_status (*event_wait)(lk__device *device, lk__device_event *event,
                            lk__device_stream *stream);                   /* the stream waits */
    lk_status (*event_sync)(lk__device *device, lk__device_event *event); /* the caller waits */
    /* Events that note the time, and the seconds between two that are done. NULL: the device has none. */
    lk_status (*timed_event_create)(lk__device *device, lk__device_event **event);
    lk_status (*event_seconds)(lk__device *device, lk__device_event *from, lk__device_event *to, double *seconds);
} lk__device_memory;

#endif
