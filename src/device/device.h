/* device/device.h - a device: memory, copies, streams, events, and kernels by operation, types and shapes. Nothing outside a device
 * dereferences its memory, unless the device's backend says that it is the host's (`host`). What a device prefers (layouts,
 * fusions, typical rates) is asked of it by the planner.
 *
 * Work given to a stream runs in order, and copies and kernels may return before they have run: lk__device_wait waits for all of a
 * stream's work. A failure of such work is returned by the next call on the stream. The CPU runs everything at once, so its streams
 * and events are NULL. */
#ifndef LK__DEVICE_H
#define LK__DEVICE_H

#include "device/kernel.h"
#include "device/fusion.h"
#include "device/launch_group.h"

#include <lockstep/context.h>
#include <lockstep/graph.h>

typedef struct lk__device        lk__device;
typedef struct lk__device_stream lk__device_stream;
typedef struct lk__device_event  lk__device_event;
typedef struct lk__device_graph  lk__device_graph; /* recorded work */

/* A kernel for one operation, at the types and shapes that it was found for. */
typedef struct lk__device_kernel {
    lk__kernel           run;       /* NULL: the device has none */
    lk__kernel_workspace workspace; /* NULL: it needs none */
    /* Before a call runs for the first time: sets call->prepared. NULL: nothing is prepared. */
    lk_status (*prepare)(lk__device *device, const struct lk__device_kernel *kernel, lk__kernel_call *call);
    const void *entry; /* the device's own */
} lk__device_kernel;

/* Typical rates, the same on every rank, because plans are made from them. */
typedef struct lk__device_rates {
    double flops, memory; /* operations a second, bytes a second */
} lk__device_rates;

/* The numbers of a step (loss, weight, metrics), added over its micro-batches and judged by the device, so that the host need not wait
 * for them. All addresses are the device's. */
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
    int64_t                     *turn; /* counts micro-batches: lk__device_rows; NULL: nothing does */
    int32_t *halted; /* where sums[0] is not finite or an id is out of range: 1 + the number of the micro-batch; stays so */
} lk__device_numbers;

/* What a step gave, in the host's memory. */
typedef struct lk__device_result {
    int64_t               step; /* written last: who reads the number of the step finds the rest, too */
    double                sums[LK__DEVICE_NUMBERS], norm;
    lk__kernel_invalid_id invalid;
    int32_t               halted;
} lk__device_result;

/* A kernel, a copy or a fill that ran, by the device's own clock. */
typedef enum lk__device_work { LK__WORK_KERNEL, LK__WORK_COPY, LK__WORK_FILL, LK__WORK_COUNT } lk__device_work;
typedef struct lk__device_span {
    double          begin, end; /* as lk__now counts */
    lk__device_work work;
    uint64_t        graph; /* the same for all of one graph_run, and larger than those of earlier ones; 0: of none */
    int64_t         bytes; /* of a copy or a fill */
    const char     *name;  /* the device's; valid until it is closed */
} lk__device_span;

/* ---- batches from samples in the device's memory ----
 *
 * The device makes the rows of a batch itself: a sample is found by its id or by its row, and is copied, or converted, normalised, cropped
 * and flipped with the numbers and the rounding of data/transform.c. */
enum { LK__DEVICE_FIELDS = 16, LK__DEVICE_CHANNELS = 16 };

typedef enum lk__device_conversion {
    LK__DEVICE_COPIED,     /* as stored */
    LK__DEVICE_WIDENED,    /* f32 to f64 */
    LK__DEVICE_TRANSFORMED /* u8 or f32, by the transform; field 0 alone */
} lk__device_conversion;

typedef struct lk__device_field {
    const char           *name; /* of the program's input; borrowed */
    lk__device_conversion how;
    lk_dtype              in, out;
    int64_t               elements; /* of a sample; below 2^31 */
    const char           *samples;  /* one behind the other, as stored */
} lk__device_field;

/* An image is (channels, height, width): 1, 1, elements where the axes do not matter. */
typedef struct lk__device_transform {
    int         channels, height, width;
    bool        per_channel; /* mean, std and table; else the first is used for all */
    int         padding, cutout;
    double      flip;
    uint32_t    crop_block, cutout_block; /* of random numbers, by sample */
    const void *table; /* of u8: (channels or 1, 256) results, in the device's memory; NULL: (v - mean) / std */
    double      mean[LK__DEVICE_CHANNELS], std[LK__DEVICE_CHANNELS];
} lk__device_transform;

typedef struct lk__device_gather {
    lk__device_field     fields[LK__DEVICE_FIELDS];
    int                  count;
    bool                 by_row; /* `samples` are those of the batch; else those of the whole set, by id */
    lk__device_transform transform;
} lk__device_gather;

/* One batch: where its step block and ids are read, and what is written. A header is a step block, and behind LK__DEVICE_IDS bytes the ids
 * of its samples; it may be in pinned memory of the host. */
enum { LK__DEVICE_IDS = 128 };
typedef struct lk__device_rows {
    int64_t     rows;
    const char *headers; /* `turns` of them, header_bytes apart; number *turn % turns is read. turn NULL: the first */
    const int64_t         *turn; /* the device's */
    int                    turns;
    size_t                 header_bytes;
    char                  *header;                /* the device's copy, which is written unless it is what is read */
    void                  *to[LK__DEVICE_FIELDS]; /* by field: (rows, elements) */
    lk__kernel_invalid_id *report;                /* is cleared; NULL: nothing is */
} lk__device_rows;

/* How the next token of a prompt is chosen: as train/sample.c does. */
typedef struct lk__device_sampling {
    double   temperature; /* 0: the most probable token */
    double   top_p;       /* 0 and 1: all */
    int64_t  top_k;       /* 0: all */
    uint64_t seed;
} lk__device_sampling;

/* A prompt whose tokens the device chooses. */
typedef struct lk__device_prompt {
    uint64_t hash; /* with `earlier`, `position` and the seed: the random number (lk__sample_uniform) */
    int64_t  earlier;
    int64_t  position; /* of the next token; the device counts it, and the steps, on */
    int64_t  step;
} lk__device_prompt;

/* A token for each row of logits, which becomes the input of the next step. Addresses are the device's. */
enum { LK__DEVICE_TOKEN_STEPS = 4 }; /* whose tokens are kept for the host */
typedef struct lk__device_tokens {
    const void                *logits; /* (rows, vocabulary) of type f32 or f64 */
    lk_dtype                   type;
    int64_t                    rows, vocabulary;
    bool                       sorts;    /* top_k or top_p leave some out */
    const lk__device_sampling *sampling; /* what both hold changes after the work was recorded */
    lk__device_prompt         *prompts;
    int32_t                   *tokens, *positions, *places, *first,
        *last; /* inputs of the next step, one a row; first: NULL, or by window */
    int64_t  window;
    int32_t *chosen; /* the host's, from alloc_host: (LK__DEVICE_TOKEN_STEPS, rows), by step; -1: no logit is finite, or one is NaN */
    void    *workspace; /* zeroed once; tokens_workspace bytes */
} lk__device_tokens;

typedef struct lk__device_backend {
    const char *name, *text; /* text: for `lockstep info` */
    bool host; /* its memory is the host's: anyone may dereference it, and kernels read the caller's inputs where they are */
    lk__device_rates rates;

    /* number: which one of several; -1: that of this process. */
    lk_status (*open)(lk_context *context, int number, lk__device **device);
    void (*close)(lk__device *device);

    /* LK_OK, or why nothing can be allocated: a device may be opened for plans alone. NULL: it always can. */
    lk_status (*check)(lk__device *device);
    /* Zeroed memory of the device, aligned to LK__ALIGN and accounted under kind; NULL: a message is set. */
    void *(*alloc)(lk__device *device, lk_memory kind, size_t bytes);
    void (*free)(lk__device *device, lk_memory kind, void *memory, size_t bytes);
    /* Host memory from which and to which it copies quickly. */
    void *(*alloc_host)(lk__device *device, lk_memory kind, size_t bytes);
    void (*free_host)(lk__device *device, lk_memory kind, void *memory, size_t bytes);

    /* The same for host memory that others allocated; where that fails, copies are slower. NULL: there is nothing to do. */
    void (*pin)(lk__device *device, void *memory, size_t bytes);
    void (*unpin)(lk__device *device, void *memory);

    lk_status (*copy_in)(lk__device *device, lk__device_stream *stream, void *to, const void *host, size_t bytes);
    lk_status (*copy_out)(lk__device *device, lk__device_stream *stream, void *host, const void *from, size_t bytes);
    lk_status (*copy)(lk__device *device, lk__device_stream *stream, void *to, const void *from, size_t bytes);
    lk_status (*fill)(lk__device *device, lk__device_stream *stream, void *memory, int byte, size_t bytes);

    lk_status (*stream_create)(lk__device *device, lk__device_stream **stream);
    void (*stream_free)(lk__device *device, lk__device_stream *stream);
    lk_status (*stream_wait)(lk__device *device, lk__device_stream *stream); /* the caller waits for all of its work */
    lk_status (*event_create)(lk__device *device, lk__device_event **event);
    void (*event_free)(lk__device *device, lk__device_event *event);
    lk_status (*event_record)(lk__device *device, lk__device_event *event, lk__device_stream *stream);
    lk_status (*event_wait)(lk__device *device, lk__device_event *event,
                            lk__device_stream *stream);                   /* the stream waits */
    lk_status (*event_sync)(lk__device *device, lk__device_event *event); /* the caller waits */

    /* Events that note the time, and the seconds between two that are done. NULL: the device has none. */
    lk_status (*timed_event_create)(lk__device *device, lk__device_event **event);
    lk_status (*event_seconds)(lk__device *device, lk__device_event *from, lk__device_event *to, double *seconds);
    /* The device reports what runs between the two calls, also inside of graphs that are recorded after the first. Each is called when no
     * work is queued. LK_EUNSUPPORTED: it cannot here, with the reason. The spans are in no order, valid until the next call. NULL: it
     * never can. */
    lk_status (*spans_begin)(lk__device *device);
    lk_status (*spans_end)(lk__device *device, lk__device_span **spans, size_t *count);
    /* How much work of each kind the stream has recorded since record_begin. */
    lk_status (*record_counts)(lk__device *device, lk__device_stream *stream, int64_t counts[LK__WORK_COUNT]);
    /* lk_device_measure's. NULL: it cannot be measured. */
    lk_status (*measure)(lk__device *device, lk_dtype type, lk_device_speed *speed);

    /* Work that is recorded once and queued again as a whole. Between record_begin and record_end the stream's calls record and run
     * nothing, and the host waits for nothing. All NULL: the device records nothing. */
    lk_status (*record_begin)(lk__device *device, lk__device_stream *stream);
    lk_status (*record_end)(lk__device *device, lk__device_stream *stream,
                            lk__device_graph **graph); /* also after a failure */
    lk_status (*graph_run)(lk__device *device, lk__device_stream *stream, lk__device_graph *graph);
    void (*graph_free)(lk__device *device, lk__device_graph *graph);
    lk_status (*add_numbers)(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers);
    /* Writes a step's result into results[turn of the step block], which alloc_host allocated. norm: NULL, or f64. */
    lk_status (*publish)(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers,
                         const double *norm, lk__device_result *results);

    /* The end of a step in as few launches as its update takes: numbers of its only micro-batch, all calls of the update (a group
     * STEP_END), and the result, whose norm is 0. The result may be there before the update has ended. *done false: nothing was queued. */
    lk_status (*end_step)(lk__device *device, const lk__device_numbers *numbers, const lk__device_group *update,
                          lk__device_result *results, bool *done);

    /* LK_OK: all work of the stream has ended; LK_END: some has not. With record_begin. */
    lk_status (*stream_query)(lk__device *device, lk__device_stream *stream);
    /* Makes the rows of a batch. NULL: the host does. */
    lk_status (*gather)(lk__device *device, lk__device_stream *stream, const lk__device_gather *gather,
                        const lk__device_rows *rows);

    /* Chooses the tokens of a step of generation. Both NULL: the host does. tokens_workspace 0: it cannot for so many tokens. */
    lk_status (*choose_tokens)(lk__device *device, lk__device_stream *stream, const lk__device_tokens *tokens);
    size_t (*tokens_workspace)(lk__device *device, int64_t rows, int64_t vocabulary);

    /* The kernel of an operation whose tensors are stored as `element`; call has the operands' types and shapes at the capacity. */
    lk__device_kernel (*find)(lk__device *device, lk__op op, lk_dtype element, const lk__kernel_call *call);
    /* Which algorithms kernels choose, when they are prepared and more than one way was measured. choose_begin: kernels that are prepared
     * from now on take what the list `text` (NULL: none) of `whose` ("rank 0", "the checkpoint") has; other choices are measured or, with
     * `only`, left to the libraries' first choice. choose_list: what kernels took since, as lines of text and a NUL where `bytes` are
     * enough; its length. Equal for equal choices. *apart: some of what was given does not fit this GPU or its libraries, which was
     * logged. NULL: the device chooses by shapes alone. */
    lk_status (*choose_begin)(lk__device *device, const char *text, const char *whose, bool only);
    size_t (*choose_list)(lk__device *device, char *text, size_t bytes, bool *apart);
    /* Launch groups (launch_group.h) that it has kernels for: LK__GROUP_KINDS entries, by kind. For steps whose kernels are many and short.
     * NULL: it runs node by node. */
    const lk__device_group_kernel *group_kernels;
    /* out = in[0] + … + in[n-1], as the pairwise tree of base/tree.h; n up to LK__DEVICE_ADDENDS; out may be one of them. */
    lk_status (*add)(lk__device *device, lk__device_stream *stream, void *out, const void *const *in, int n,
                     size_t count, lk_dtype type);
    /* Of memory as it is now; both wait. The hash is lk__hash64's. Integers are finite. */
    lk_status (*hash)(lk__device *device, const void *memory, size_t bytes, uint64_t seed, uint64_t *hash);
    lk_status (*finite)(lk__device *device, const void *memory, int64_t elements, lk_dtype type, bool *finite);

    const lk__device_fusion *fusions; /* fusion.h: ends with kind 0; NULL: none */
    bool channels_last; /* its kernels read and write images with the channels last */

    /* Bytes of its memory that can still be allocated, and of all of it; 0: not known. NULL: as for the host's. */
    void (*available)(lk__device *device, size_t *free, size_t *total);
    bool together; /* what is allocated together (lk__device_alloc_parts) is one allocation */
} lk__device_backend;

enum { LK__DEVICE_ADDENDS = LK__LEAVES_MOST };

struct lk__device {
    const lk__device_backend *backend;
    lk_context               *context;
    /* Kernels are chosen by shapes alone, never by measuring them, and a sample's results do not depend on how many others there are:
     * for plans with leaves. Set once, before kernels are prepared. */
    bool by_heuristic;
};

extern const lk__device_backend lk__device_cpu, lk__device_guarded;
extern const lk__device_fusion  lk__cpu_fusions[];

/* cuda.c: the CUDA module, loaded on first use; its backend is that of the device "cuda". LK_EUNSUPPORTED: there is none. */
struct lk__cuda_module;
lk_status lk__cuda_load(lk_context *context, const struct lk__cuda_module **module);

static inline bool lk__device_is_host(const lk__device *d) { return d->backend->host; }

/* Zeroed; accounted under kind. bytes 0: *memory is NULL. */
lk_status lk__device_alloc(lk__device *device, lk_memory kind, size_t bytes, char **memory);
void      lk__device_free(lk__device *device, lk_memory kind, void *memory, size_t bytes); /* NULL is fine */

/* Regions that are allocated together: where the device says so, as aligned parts of one allocation, *block; otherwise one by one, so
 * that tools find writes past a region, and *block is NULL. Each is accounted under its kind; one of 0 bytes is NULL. */
typedef struct lk__device_part {
    lk_memory kind;
    size_t    bytes;
    char    **memory; /* where its address is kept */
} lk__device_part;
lk_status lk__device_alloc_parts(lk__device *device, const lk__device_part *parts, int count, char **block);
void      lk__device_free_parts(lk__device *device, const lk__device_part *parts, int count, char *block);

/* Copies that wait: before the first returns the numbers are there, before the second the host's memory may be reused. */
lk_status lk__device_read(lk__device *device, lk__device_stream *stream, void *host, const void *from, size_t bytes);
lk_status lk__device_write(lk__device *device, lk__device_stream *stream, void *to, const void *host, size_t bytes);

/* Converts an array from one type to another, as the operation cast. */
lk_status lk__device_cast(lk__device *device, lk__device_stream *stream, void *from, lk_dtype type, void *to,
                          lk_dtype as, int64_t elements);

#endif
