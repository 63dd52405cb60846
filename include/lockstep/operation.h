/* operation.h - your own operations: callbacks that a graph records as a node. Such a node is planned, placed in memory
 * and traced like a built-in operation, and can be used in data-parallel and reproducible training; ranks compare it
 * before the first step. docs/operations.md has an example.
 *
 * An operation promises that
 *   - its shape rule derives the shapes of its outputs from its inputs' shapes alone;
 *   - forward and backward write every element of their outputs, and nothing else except the workspace;
 *   - their results depend on the operands and the attributes alone: not on the number of threads, nor on previous
 *     contents of the outputs or the workspace;
 *   - a sample's rows of the outputs depend on that sample alone, unless `coupled` is set, and outputs that are sums
 *     over samples are named in `sums`.
 * lk_operation_check finds broken promises; so does every run with LOCKSTEP_CHECK_OPERATIONS=1 in the environment. */
#ifndef LOCKSTEP_OPERATION_H
#define LOCKSTEP_OPERATION_H

#include <lockstep/graph.h>

LK_BEGIN_DECLS

enum { LK_OPERATION_INPUTS = 8, LK_OPERATION_OUTPUTS = 4 }; /* the maximum number of each */

/* An array that an operation reads or writes: dense, row-major. */
typedef struct lk_operand {
    /* NULL: missing or not needed, see below; always NULL in the shape and workspace callbacks */
    void    *data LK_ZERO;
    lk_dtype dtype LK_ZERO; /* f32 even if LK_POLICY_BF16 stores the value in bf16 */
    int      rank LK_ZERO;
    /* in shape and workspace: the capacity; in forward and backward: the part of it in use, possibly 0 */
    int64_t dims[LK_MAX_RANK] LK_ZERO;
    int     count_axis LK_ZERO; /* the batch axis, whose size changes from run to run; -1: none */
    int64_t count_unit LK_ZERO; /* rows of that axis per sample, 1 unless axes were merged */
} lk_operand;

/* The argument of a callback. Operands are in the order of lk_apply's arguments. */
typedef struct lk_operation_call {
    const void *attributes; /* the operation's copy */
    void       *user;
    int         inputs_count, outputs_count;
    lk_operand *inputs; /* to be read; backward: without data for unread_inputs */
    /* shape: to be set; initially scalars of the inputs' floating-point type. forward: to be written. backward: to be
     * read, with data only for saved_outputs. */
    lk_operand *outputs;
    lk_operand *output_gradients; /* backward: to be read; without data where the loss does not depend on that output */
    lk_operand *input_gradients;  /* backward: to be written, in the inputs' shapes; without data if not needed */
    /* whether this call is for backward; useful in the workspace callback, and in code shared by forward and
     * backward */
    bool  backward;
    void *workspace; /* as large as the workspace callback returned, aligned to 64 bytes; contents undefined */
    int   threads;   /* workers of lk_operation_parallel */
    struct lk_operation_run *run; /* internal to the library */
} lk_operation_call;

typedef lk_status (*lk_operation_callback)(const lk_operation_call *call);

/* lk_apply copies the struct, the name, the factors and the attributes. `user` is borrowed as long as graphs, plans or
 * programs with the operation exist. Callbacks may be called from any thread that records, plans or runs, but never
 * concurrently for one program. They return LK_OK or a negative status: lk_operation_fail sets the message and returns
 * such a status. */
typedef struct lk_operation {
    size_t      size LK_ZERO; /* sizeof this struct */
    const char *name LK_ZERO; /* consists of letters, digits, _ and -; shown in listings, traces and errors */
    int         inputs LK_ZERO, outputs LK_ZERO;
    /* For each input, the types that it accepts, as bits such as 1u << LK_I32. 0: f32 or f64, the same for all such
     * inputs. */
    unsigned types[LK_OPERATION_INPUTS] LK_ZERO;
    unsigned optional LK_ZERO;      /* bit i: input i may be missing */
    unsigned no_gradient LK_ZERO;   /* bit i: input i gets no gradient, even if the loss depends on it */
    unsigned unread_inputs LK_ZERO; /* bit i: backward does not read input i, so it need not be kept */
    unsigned saved_outputs LK_ZERO; /* bit i: backward reads output i */
    /* bit i: output i has no batch axis and is a sum over samples. Other outputs without a batch axis depend only on
     * inputs without one */
    unsigned sums LK_ZERO;
    /* a sample's rows depend on other samples, so reproducible programs run their leaves one after the other */
    bool coupled LK_ZERO;
    /* Sets the type, rank, dims and count_axis of the outputs. Assigning an input's lk_operand copies its batch
     * axis. */
    lk_operation_callback shape LK_ZERO;
    lk_operation_callback forward LK_ZERO;
    /* Writes the gradients of the inputs; gradients of inputs without a batch axis, such as parameters, are sums over
     * samples. NULL: there is no gradient, and it is an error if a loss needs it. Outputs that are not f32 or f64 have
     * no gradient. */
    lk_operation_callback backward LK_ZERO;
    /* returns the number of bytes needed for shapes at capacity; NULL: no workspace */
    size_t (*workspace)(const lk_operation_call *call) LK_ZERO;
    const char *device LK_ZERO;     /* the device whose memory the callbacks access: "cpu" or NULL */
    const void *attributes LK_ZERO; /* settings, without pointers, because ranks compare the bytes */
    size_t      attributes_bytes LK_ZERO;
    /* Describes the attributes for listings and errors, for example "delta 1.5". NULL: listings show a hash of them. */
    void (*print)(const void *attributes, char *text, size_t bytes) LK_ZERO;
    void *user LK_ZERO;
    /* Which dimensions correspond, as in an einsum, so that an axis of the mesh can split the operation:
     * "(rows.., in), (out, in) -> (rows.., out)", in the order of the operands; docs/operations.md explains the
     * notation. NULL: only the batch is split; otherwise every rank computes the whole operation. */
    const char *factors LK_ZERO;
} lk_operation;
#define LK_OPERATION_INIT {.size = sizeof(lk_operation)}

/* Records the operation on `count` inputs and returns output 0. A missing input is (lk_tensor){0}. outputs receives all
 * outputs; NULL: only output 0 is needed. */
LK_API lk_tensor lk_apply_at(lk_site site, const lk_operation *operation, const lk_tensor *inputs, int count,
                             lk_tensor *outputs);
#define lk_apply(...) lk_apply_at(LK_HERE, __VA_ARGS__)

/* ---- for callbacks ---- */

/* Runs the tiles 0 … tiles-1 on the threads of the context, each once, in any order, and returns when all are done. To
 * get results that do not depend on the number of threads, choose the tiles by the shape alone, and add their partial
 * sums in order afterwards. `worker`, 0 to call->threads - 1, selects scratch memory and nothing else. May be called in
 * forward and backward, but not within a tile. */
LK_API void lk_operation_parallel(const lk_operation_call *call, int64_t                        tiles,
                                  void (*tile)(void *argument, int64_t tile, int worker), void *argument);
/* Sets the message of the failure, which follows the operation's name, file and line; returns LK_EINVAL. Must not be
 * called within a tile. */
LK_API lk_status lk_operation_fail(const lk_operation_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
LK_API int64_t lk_operand_elements(const lk_operand *operand); /* the product of its dims */

/* ---- the check mode ---- */

/* Calls the operation on inputs of these shapes and checks whether it keeps its promises: that its shapes are valid;
 * that it writes all of its outputs, and nothing outside its outputs and workspace; that results do not change with the
 * number of threads, with previous memory contents, or with the number of samples; that sums over samples and parts
 * along its factors agree with the whole; and that backward agrees with finite differences of forward, in f64 if the
 * operation accepts it. `inputs` has operation->inputs elements, whose count_axis and count_unit must be set; rank -1:
 * missing. Their data may be NULL: floating-point inputs are then drawn from -1 … 1, and integers are 0 and 1. Every
 * broken promise is reported by passing a one-sentence line to `write` (which may be NULL). LK_OK: all promises are
 * kept. LK_EMISMATCH: at least one is broken, and lk_context_error returns the first. */
LK_API lk_status lk_operation_check(lk_context *context, const lk_operation *operation, const lk_operand *inputs,
                                    lk_text_callback write, void *user);

LK_END_DECLS
#endif
