/* context.h - allocator, log sink, thread pool and memory accounting. Every object belongs to a context. */
#ifndef LOCKSTEP_CONTEXT_H
#define LOCKSTEP_CONTEXT_H

#include <lockstep/base.h>

LK_BEGIN_DECLS

/* must outlive every object made from it; its functions may be called from any thread */
typedef struct lk_context lk_context;

typedef enum lk_log_level { LK_LOG_DEBUG, LK_LOG_INFO, LK_LOG_WARNING } lk_log_level;

/* What memory is used for. `lockstep plan` predicts the bytes of each kind; lk_context_memory returns the bytes in
 * use. */
typedef enum lk_memory {
    LK_MEMORY_PARAMETERS,
    LK_MEMORY_MASTER, /* f32 copies of parameters that are stored in bf16 */
    LK_MEMORY_GRADIENTS,
    LK_MEMORY_OPTIMIZER,
    LK_MEMORY_BUFFERS, /* running statistics and other state that is not trained */
    LK_MEMORY_ACTIVATIONS,
    LK_MEMORY_WORKSPACE,
    LK_MEMORY_STAGING, /* devices other than the CPU: their copies of inputs, and host copies of what ranks exchange */
    LK_MEMORY_LOADER,
    LK_MEMORY_CHECKPOINT,
    LK_MEMORY_DATA,  /* data sets in memory */
    LK_MEMORY_OTHER, /* bookkeeping: graphs, programs, names */
    LK_MEMORY_COUNT
} lk_memory;

LK_API const char *lk_memory_name(lk_memory kind);

/* Set both functions or neither. alloc returns memory aligned to `alignment`, or NULL. */
typedef struct lk_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment)LK_ZERO;
    void (*free)(void *user, void *memory, size_t bytes) LK_ZERO;
    void *user LK_ZERO;
} lk_allocator;

typedef struct lk_context_config {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_CONTEXT_CONFIG_INIT */
    /* size of the thread pool, including the calling thread; 0 means lk_default_threads */
    int threads LK_ZERO;
    /* an instruction set that `lockstep info` lists: "neon", "avx512"; NULL: LOCKSTEP_ISA or, if that is not set, the
     * one that `lockstep info` marks as in use */
    const char  *isa LK_ZERO;
    lk_allocator allocator LK_ZERO;
    /* Receives one line without a newline; may be called from any thread. NULL: nothing is logged */
    void (*log)(void *user, lk_log_level level, const char *text) LK_ZERO;
    void *log_user LK_ZERO;
    /* "auto", "cpu", "cuda", "cuda:N"; NULL: LOCKSTEP_DEVICE in the environment or, if that is not set, "cpu" */
    const char *device LK_ZERO;
    /* 0: an object that needs more memory than the machine has available is rejected with LK_ETOOLARGE before it is
     * allocated; 1: it is allocated, and the system may kill the process. Nothing is rejected if `allocator` is set,
     * because its memory may already exist. */
    int overcommit LK_ZERO;
    int plans_only LK_ZERO; /* 1: only for planning, which needs no device: a plan for "cuda" needs no GPU */
    /* Called during long calls, on the calling thread: `done` of `total` parts are finished; at the end the two are
     * equal. `what` names the work, for example "tune" while algorithms are measured. NULL: progress is not reported */
    void (*progress)(void *user, const char *what, int64_t done, int64_t total) LK_ZERO;
    void *progress_user LK_ZERO;
} lk_context_config;
#define LK_CONTEXT_CONFIG_INIT {.size = sizeof(lk_context_config)}

/* config may be NULL to use all defaults. LK_EUNSUPPORTED: this build or machine lacks the instruction set or device.
 * On failure, lk_context_error(NULL) says why. Environment variables (lockstep/environment.h) are read during this
 * call. Under `lockstep run` the calling thread and the context's threads are pinned to the rank's cores. */
LK_API lk_status lk_context_create(const lk_context_config *config, lk_context **context);
LK_API void      lk_context_free(lk_context *context); /* NULL is fine */

/* The message of the calling thread's latest failed call on this context: what failed, where, and what to do; "" if
 * none failed. Like errno, it is per thread: failures in other threads do not change it. A thread keeps the messages of
 * the last 4 contexts on which a call failed. The text stays valid until the calling thread calls this function again.
 * With context NULL, returns the message of the calling thread's latest lk_context_create that failed. */
LK_API const char *lk_context_error(lk_context *context);
/* If that message reports the failure of another rank, returns that rank, which also reports the failure itself. -1: no
 * other rank is known to have failed, so the caller should report the message. */
LK_API int lk_context_error_rank(lk_context *context);

/* Copies text for output on a terminal. Messages may contain names from files and text from other hosts: control
 * characters and bytes that are not UTF-8 become \n, \x1b and so on; everything else is unchanged. The copy is
 * truncated to `size` at a character boundary and NUL-terminated. Returns the length that the complete copy would
 * have. */
LK_API size_t lk_printable(const char *text, char *out, size_t size);

LK_API int         lk_context_threads(const lk_context *context);
LK_API const char *lk_context_isa(const lk_context *context);
LK_API const char *lk_context_device(const lk_context *context);
LK_API size_t      lk_context_memory(const lk_context *context, lk_memory kind); /* bytes in use now */
LK_API uint64_t    lk_context_allocations(const lk_context *context);            /* calls to the allocator so far */

/* The resources that this process may use, as limited by the host and by control groups (cgroups, versions 1 and 2: the
 * process's own group and all its ancestors). */
typedef struct lk_limits {
    double cores;        /* the smallest CPU quota, in cores; 0: no quota */
    size_t memory;       /* the smallest memory limit of a control group; 0: no limit */
    size_t available;    /* bytes that can still be allocated without swapping; SIZE_MAX: unknown */
    size_t available_of; /* limit of the control group that determines `available`; 0: the host's memory does */
} lk_limits;
LK_API void lk_limits_read(lk_limits *limits);
/* LK_ETOOLARGE: `bytes` is more than can be allocated now; the message says what the limit is. Otherwise LK_OK, even if
 * the available memory is unknown or the context overcommits. `who` begins the message, for example "the 4 ranks";
 * NULL: "this process". lk_comm_check_memory checks the total that the ranks of a host need. */
LK_API lk_status lk_context_check_memory(lk_context *context, const char *who, size_t bytes);

/* The number of threads that a context has if lk_context_config.threads is 0. Returns 0 if LOCKSTEP_THREADS is not a
 * number from 1 to 256; lk_context_create then returns LK_EINVAL. */
LK_API int lk_default_threads(void);
/* The instructions with which this machine computes SHA-256, the digest of checkpoints: "sha2" (ARMv8), "sha-ni" (x86)
 * or "portable". */
LK_API const char *lk_sha256_instructions(void);
/* Receives text in one or more parts. */
typedef void (*lk_text_callback)(void *user, const char *text, size_t bytes);

/* The name and the description of the i-th usable device; NULL past the last. */
LK_API const char *lk_device_name(size_t i);
LK_API const char *lk_device_text(size_t i);
/* Writes a report about a device that is loaded as a module, such as "cuda": its GPUs, the driver, the versions of its
 * libraries. LK_EUNSUPPORTED: there is no such module, and lk_context_error(NULL) says why. */
LK_API lk_status lk_device_report(const char *name, lk_text_callback write, void *user);

/* The measured speed of the context's device. */
typedef struct lk_device_speed {
    double flops;   /* operations per second in large matrix products of this type */
    double memory;  /* bytes per second, reads plus writes, in a large copy within the device's memory */
    double latency; /* seconds per kernel in a series of empty kernels */
} lk_device_speed;

/* Measures with data generated on the device, once per type (f32, f64 or bf16); takes about 50 ms. For f32, TF32 is
 * measured if matrix products use it. Must not be called while a program runs. LK_EUNSUPPORTED: the device is the
 * CPU. */
LK_API lk_status lk_device_measure(lk_context *context, lk_dtype type, lk_device_speed *speed);

/* The rate, in operations per second, of multiply-adds in registers with the context's instruction set on all its
 * threads at once: an upper bound for kernels of that type (f32, f64, or bf16, which is multiplied in f32 if the set
 * has no bf16 instructions). Takes about 30 ms. 0: the rate cannot be measured here, or the device is not the CPU. Must
 * not be called while a program runs. */
LK_API double lk_context_peak(lk_context *context, lk_dtype type);

/* The memory that a device's runtime and libraries need in addition to what plans count; 0 for the CPU. */
typedef struct lk_device_memory_overhead {
    size_t context, libraries; /* bytes: of a CUDA context; of cuBLASLt and cuDNN */
    bool   measured;           /* measured now, on this machine's GPU; false: the figures are for an NVIDIA H200 */
} lk_device_memory_overhead;
/* Measures only if this process has not used a GPU yet, so call it before creating the first context. `name` is as in
 * lk_context_config.device. */
LK_API lk_status lk_device_overhead(const char *name, lk_device_memory_overhead *overhead);
/* Former names; the next version will remove them. */
#define lk_device_held lk_device_overhead
#define lk_device_memory_held lk_device_memory_overhead
/* The device's free memory, which no process has allocated, and its total memory, in bytes; 0: the device is the CPU or
 * does not report them. */
LK_API void lk_context_device_memory(const lk_context *context, size_t *available, size_t *total);

LK_END_DECLS
#endif
