/* device/device.h - a device: its name, and one table each for memory (memory.h), kernels (kernels.h), recorded work
 * (recording.h) and, where it has any, memory that other ranks map (peers.h). */
#ifndef LK__DEVICE_H
#define LK__DEVICE_H

#include "device/kernels.h"
#include "device/memory.h"
#include "device/peers.h"
#include "device/recording.h"

typedef struct lk__device_backend {
    const char *name, *text; /* text: for `lockstep info` */

    /* number: which one of several; -1: this process's. */
    lk_status (*open)(lk_context *context, int number, lk__device **device);
    void (*close)(lk__device *device);

    lk__device_memory    memory;
    lk__device_kernels   kernels;
    lk__device_recording recording;
    /* NULL: no other process maps its memory. */
    const lk__device_peers *peers;
} lk__device_backend;

/* What tuning did since choose_begin (kernels.h). */
typedef struct lk__device_tuning {
    int    measured; /* shapes whose algorithms were measured */
    int    first;    /* shapes for which no time was left: they have the library's first choice */
    double seconds;  /* that measuring took */
} lk__device_tuning;

enum { LK__DEVICE_UUID = 16, LK__DEVICE_UUID_TEXT = 48 };

struct lk__device {
    const lk__device_backend *backend;
    lk_context               *context;
    unsigned char             uuid[LK__DEVICE_UUID]; /* of a GPU, the same in all processes; all 0: none */
    bool                      may_share; /* other ranks may use it too: on request, or where its number was given */
    lk__device_tuning         tuning;
    /* Kernels are chosen by shapes alone, never by measuring them, and a sample's results do not depend on how many
     * others there are: for plans with leaves. Set once, before kernels are prepared. */
    bool by_heuristic;
};

extern const lk__device_backend lk__device_cpu, lk__device_guarded;
extern const lk__device_fusion  lk__cpu_fusions[];

/* cuda.c: the CUDA module, loaded on first use; its backend is the backend of the device "cuda". LK_EUNSUPPORTED: there
 * is none. */
struct lk__cuda_module;
lk_status lk__cuda_load(lk_context *context, const struct lk__cuda_module **module);

/* cuda.c: whether the control daemon of MPS, with which processes that share a GPU run on it at the same time, has its
 * pipe where this process would look for it. */
bool lk__cuda_mps(const lk_context *context);

/* name NULL: LOCKSTEP_DEVICE, or the CPU. LK_EUNSUPPORTED: there is no such device. */
lk_status lk__device_open(lk_context *context, const char *name, bool plans_only, lk__device **device);
void      lk__device_close(lk__device *device); /* NULL is fine */

/* "GPU-…", as nvidia-smi -L prints it. Returns text. */
const char *lk__device_uuid_text(const unsigned char uuid[LK__DEVICE_UUID], char text[LK__DEVICE_UUID_TEXT]);

static inline bool lk__device_is_host(const lk__device *d) { return d->backend->memory.host; }

/* Zeroed; accounted under kind. bytes 0: *memory is NULL. */
lk_status lk__device_alloc(lk__device *device, lk_memory kind, size_t bytes, char **memory);
void      lk__device_free(lk__device *device, lk_memory kind, void *memory, size_t bytes); /* NULL is fine */

/* Regions that are allocated together: where the device says so, as aligned parts of one allocation, *block; otherwise
 * one by one, so that tools find writes past a region, and *block is NULL. Each is accounted under its kind; one of 0
 * bytes is NULL. */
typedef struct lk__device_part {
    lk_memory kind;
    size_t    bytes;
    char    **memory; /* where its address is kept */
} lk__device_part;
lk_status lk__device_alloc_parts(lk__device *device, const lk__device_part *parts, int count, char **block);
void      lk__device_free_parts(lk__device *device, const lk__device_part *parts, int count, char *block);

/* Copies that wait: before the first returns the numbers are there, before the second the host's memory may be
 * reused. */
lk_status lk__device_read(lk__device *device, lk__device_stream *stream, void *host, const void *from, size_t bytes);
lk_status lk__device_write(lk__device *device, lk__device_stream *stream, void *to, const void *host, size_t bytes);

/* Converts an array from one type to another, as the operation cast. */
lk_status lk__device_cast(lk__device *device, lk__device_stream *stream, void *from, lk_dtype type, void *to,
                          lk_dtype as, int64_t elements);

#endif
