/* device/kernel.h - how a kernel is called, and the table in which the CPU finds its kernels. */
#ifndef LK__KERNEL_H
#define LK__KERNEL_H

#include "base/base.h"
#include "base/op.h"
#include "base/pool.h"

#include <lockstep/operation.h>

/* Operands of a node; custom_grad has the most: the inputs, outputs and gradients of outputs of a user's operation. */
enum { LK__MAX_IN = LK_OPERATION_INPUTS + 2 * LK_OPERATION_OUTPUTS, LK__MAX_OUT = LK_OPERATION_INPUTS };

/* The step block: everything that changes from step to step. Kernels read it; instructions hold none of it. */
typedef struct lk__kernel_step {
    int64_t        step;  /* updates so far, this one included: Adam's t, from 1 */
    int64_t        epoch; /* from 0 */
    int64_t        count; /* samples in the batch, at most the capacity */
    uint64_t       seed;
    double         rate;            /* learning rate of this step */
    const int64_t *sample_ids;      /* count of them; NULL: 0, 1, 2, … */
    bool           updates_buffers; /* of leaves that run together, one updates the running statistics */
    int            part;            /* the number of this rank, or of this leaf, in its group */
    int            micro_batch;     /* from 0 */
    int            ring_slot;       /* of a step that is queued: which of two results are its own */
} lk__kernel_step;

typedef struct lk__kernel_operand {
    void    *data; /* NULL: an absent optional operand */
    lk_dtype dtype;
    int      rank;
    int64_t  dims[LK_MAX_RANK];
    /* The whole value, of which this is a part; NULL: this is the whole. The host's memory. */
    const lk__op_part *part;
} lk__kernel_operand;

/* The leaves of a batch, for kernels that add over samples (linear_grad_weight): the leaves' sums are added in the
 * pairwise tree of base/tree.h. */
typedef struct lk__kernel_leaves {
    int            count;
    const int64_t *rows; /* count + 1: the first row of each leaf, and the end */
    void          *sums; /* lk__kernel_leaves_bytes per thread: partial results */
} lk__kernel_leaves;

enum {
    LK__LEAVES_MOST = 64,
    LK__LEAVES_TILE = 16 << 10, /* elements */
    LK__LEAVES_DEPTH = 7,       /* partial results held at once */
};
static inline size_t lk__kernel_leaves_bytes(void)
{
    return (size_t)LK__LEAVES_TILE * LK__LEAVES_DEPTH * sizeof(double);
}

/* The first id out of range in a run: kernels that look up by id (cross_entropy, embedding) report it here, and the
 * program makes an error of it, since it knows its inputs by address. */
typedef struct lk__kernel_invalid_id {
    bool           found;
    lk__op         op;
    const int32_t *at; /* its address in the operand; the host must not dereference it */
    int32_t        value;
    int64_t        limit; /* ids are 0 … limit - 1 */
    int            busy;  /* a lock of devices whose kernels run on many threads */
} lk__kernel_invalid_id;

/* A user's operation as one node has it. Graphs own copies, the graphs of plans included. */
typedef struct lk__kernel_custom {
    lk_operation operation; /* its name and attributes are in this allocation, after the struct */
    lk_context  *context;
    lk_site      site;
    size_t       bytes;   /* of the allocation */
    bool         check;   /* its promises are checked in every run */
    unsigned     missing; /* bit i: the node has no input i */
    /* as recorded, at the capacity; without data */
    lk_operand inputs[LK_OPERATION_INPUTS], outputs[LK_OPERATION_OUTPUTS];
} lk__kernel_custom;

typedef struct lk__kernel_call {
    const lk__op_attrs *attrs;
    lk__kernel_operand  in[LK__MAX_IN];
    lk__kernel_operand  out[LK__MAX_OUT];
    int       inputs, outputs; /* operands named above, absent optional ones included up to the last present */
    void     *workspace; /* as large as the workspace function returned, aligned to LK__ALIGN; undefined contents */
    lk__pool *pool;
    /* the host's: for kernels of devices that read its memory, and for what launches others */
    const lk__kernel_step *step;
    /* the same in the device's memory: its contents change after a kernel was queued */
    const lk__kernel_step    *step_memory;
    const lk__kernel_leaves  *leaves;   /* NULL: the batch is one leaf */
    lk__kernel_invalid_id    *invalid;  /* receives an id out of range; NULL: not reported */
    const void               *prepared; /* by the kernel, before its first run (device/kernels.h) */
    const lk__kernel_custom  *custom;   /* of a user's operation; NULL: the operation is built in */
    struct lk__device        *device;   /* that runs it */
    struct lk__device_stream *stream;   /* in whose order it runs */
    /* In the device's memory: not 0 where this step must change no state (a loss that is not finite, an id out of
     * range); NULL: it may. Of devices that run a step without waiting for its loss. */
    const int32_t *halted;
    /* In the device's memory: how many rows of the first axis are used, where only the device knows it, as with tokens
     * that were routed to an expert; NULL: all of them. Nothing sets it yet. */
    const int64_t *rows_used;
} lk__kernel_call;

/* Runs on the stream. Ids out of range are no failure; they are reported in `invalid`. */
typedef lk_status (*lk__kernel)(const lk__kernel_call *call);
/* Bytes of scratch at the capacity's dims; operands have data == (void *)1 where present. threads is the pool's
 * size. */
typedef size_t (*lk__kernel_workspace)(const lk__kernel_call *call, int threads);

typedef struct lk__kernel_entry {
    void (*run)(const lk__kernel_call *call); /* cannot fail */
    lk__kernel_workspace workspace;           /* NULL: none */
} lk__kernel_entry;

/* The CPU's table for one element type (lk__is_element) and instruction set ("neon", …): LK__OP_COUNT entries; NULL if
 * not built. WIDE operations (base/op.h) have no kernel for narrow types: run is NULL there. */
const lk__kernel_entry *lk__cpu_kernels(lk_dtype element, const char *isa);
/* One kernel: the instruction set's, or the kernel of the set that it extends; NULL if there is none. */
const lk__kernel_entry *lk__cpu_kernel(lk_dtype element, const char *isa, lk__op op);

/* How the CPU's square_sum divides an array: each part is summed by itself, and the parts in their order. Part i is
 * elements lk__square_begin(n, i) to lk__square_begin(n, i + 1); as an array of its own it is one part. */
enum { LK__SQUARE_PART = 16384 }; /* elements at most */
static inline int64_t lk__square_parts(int64_t n) { return (n + LK__SQUARE_PART - 1) / LK__SQUARE_PART; }
static inline int64_t lk__square_begin(int64_t n, int64_t part)
{
    int64_t parts = lk__square_parts(n), more = n % parts;
    return part * (n / parts) + (part < more ? part : more);
}

/* Of the whole value, of which an operand may be a part; of a dimension with a run-time count, at the capacity. */
static inline int64_t lk__whole_extent(const lk__kernel_operand *x, int dim)
{
    return x->part ? x->part->whole[dim] : x->dims[dim];
}
static inline int64_t lk__part_first(const lk__kernel_operand *x, int dim) { return x->part ? x->part->first[dim] : 0; }

static inline int64_t lk__operand_elements(const lk__kernel_operand *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) n *= x->dims[i];
    return n;
}

#endif
