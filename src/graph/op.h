/* graph/op.h - the descriptor of an operation: everything about it except its kernels. Passes read the descriptor and
 * have no lists of operations. Descriptors are in graph/op/, one file per family. Every field must be set: 0 means "not
 * set", and test_op_table fails on it. docs/extending.md adds an operation step by step. */
#ifndef LK__GRAPH_OP_H
#define LK__GRAPH_OP_H

#include "base/collective.h"
#include "base/dtype.h"
#include "base/fusion.h"
#include "graph/graph.h"

/* ---- operands ---- */

/* A node has one element type, the type of its REAL operands (lk__node_element). Its kernel is found by it. */
typedef enum lk__graph_types {
    /* the element type, one for all such operands: f32, f64, or a narrower one unless lk__op_is_wide */
    LK__TYPE_REAL = 1,
    LK__TYPE_WIDE, /* the type of sums over the element type (base/dtype_list.h) */
    LK__TYPE_F64,
    LK__TYPE_I32,
    LK__TYPE_I64,
    LK__TYPE_U8,
    LK__TYPE_ANY,      /* an output: that of input 0 */
    /* elements that are moved, not computed with: as REAL where the value has a floating-point type, else its own type;
     * an output: that of input 0 */
    LK__TYPE_MOVED,
    LK__TYPE_ANY_WIDE, /* an input of any type; a narrow one is cast to the type of its sums */
    LK__TYPE_GIVEN,    /* an output: the caller or the shape rule gives it */
    /* an output of products: REAL; WIDE with the attribute sum_batch, which makes it a sum, or where it is a summand of
     * what other ranks have. Kernels make both. */
    LK__TYPE_PRODUCT,
} lk__graph_types;

/* How an operand with four axes is stored: (N, C, H, W) row-major, or with the channels last. Others are row-major. */
typedef enum lk__graph_layout {
    LK__LAYOUT_ROWS = 1,
    LK__LAYOUT_LAST,
    LK__LAYOUT_FOLLOW, /* as the other operands are, where all inputs have one shape; else row-major */
} lk__graph_layout;

typedef enum lk__graph_presence {
    LK__REQUIRED = 1,
    LK__OPTIONAL,
    LK__REPEATED, /* the last input, up to LK__MAX_IN in all */
    LK__IF_READ,  /* an output that is made only where something reads it; the kernel gets NULL otherwise */
} lk__graph_presence;

typedef struct lk__graph_operand {
    const char        *name;
    lk__graph_types    types;
    lk__graph_presence presence;
    lk__graph_layout   layout;
} lk__graph_operand;

/* ---- shape rule: checks the inputs and gives the outputs' shapes ---- */

typedef struct lk__graph_shapes {
    lk_graph              *graph;
    lk_site                site;
    lk__op                 op;
    const lk__op_attrs    *attrs;
    const lk__graph_shape *in[LK__MAX_IN]; /* NULL: absent */
    int                    inputs;
    lk__graph_shape       *out; /* LK__MAX_OUT */
} lk__graph_shapes;

/* Returns the number of outputs, or -1 with the failure recorded in the graph. */
typedef int (*lk__graph_shape_rule)(lk__graph_shapes *shapes);
int lk__shape_given(lk__graph_shapes *shapes); /* for shapes that do not follow from the inputs: lk__emit_shaped */

/* ---- gradient rule: appends the nodes that compute the inputs' gradients (lk__grad_give) from dy, output 0's
 * gradient: of built-in operations only output 0 has a gradient. It may also use a value that forward computed: an
 * output with LK__IF_READ, which evaluation then omits. ---- */

typedef struct lk__graph_backward {
    lk_graph      *g;
    int           *gradient; /* by value id */
    int           *now;      /* by value id: what backward reads for it (its recomputed copy, or itself) */
    size_t         capacity, now_capacity;
    lk__graph_node n; /* the node whose gradient is being made: a copy, since nodes move as they grow */
} lk__graph_backward;

typedef void (*lk__graph_gradient_rule)(lk__graph_backward *backward, int dy);
void lk__gradient_none(lk__graph_backward *backward, int dy);    /* an operation of backward or update: fails */
void lk__gradient_stopped(lk__graph_backward *backward, int dy); /* its inputs get no gradient */

/* ---- the rest ---- */

/* In masks of inputs or outputs (bit i): none of them, stated explicitly. */
#define LK__NO_OPERAND (1u << 31)

typedef enum lk__graph_runs {
    LK__RUNS_KERNEL = 1,
    LK__RUNS_NOTHING,    /* output 0 has the bytes of input 0 and shares its memory */
    LK__RUNS_COLLECTIVE, /* starts together with other ranks; its output is complete once a wait has run */
    LK__RUNS_WAIT, /* completes a collective or a receive; output 0 has the bytes of input 0 and shares its memory */
    LK__RUNS_TRANSFER,   /* starts a send or a receive, between two ranks */
} lk__graph_runs;

typedef enum lk__graph_effect {
    LK__EFFECT_NONE = 1,
    LK__EFFECT_STATE,     /* writes its outputs, which are states: runs even if nothing reads them */
    LK__EFFECT_IF_UPDATE, /* writes states among its inputs where the attribute `update` is set */
    /* writes input 0, a buffer that nothing else reads; output 0 shares its memory. In evaluation only */
    LK__EFFECT_CACHE,
    LK__EFFECT_SENDS, /* another rank gets what it reads: runs even if nothing reads its output */
} lk__graph_effect;

/* Of a sum over samples, which the leaves of a batch have each for itself: what makes it. */
typedef enum lk__graph_leaves {
    LK__LEAVES_SEPARATE = 1, /* a run of its kernel for each leaf */
    LK__LEAVES_ADDED,        /* one run, in which the kernel adds over the leaves, in their order (lk__kernel_leaves) */
} lk__graph_leaves;

typedef enum lk__graph_evaluation {
    LK__EVALUATE_SAME = 1,
    LK__EVALUATE_IDENTITY,    /* its result is its first input */
    LK__EVALUATE_KEEPING_ALL, /* attention: its dropout keeps every element */
    LK__EVALUATE_BY_BUFFERS,  /* batch_norm: uses the running statistics instead of the batch's */
} lk__graph_evaluation;

typedef enum lk__graph_recompute {
    LK__RECOMPUTE = 1,
    LK__KEEP, /* its results are small, and computing them again would communicate again */
} lk__graph_recompute;

/* What else its kernel can compute, in this order: patterns that plan/fuse.c applies where the device has such a
 * kernel. */
enum { LK__FUSIONS = 2 };
typedef struct lk__graph_fusion {
    lk__fusion_kind kind;
    int             operand; /* base/fusion.h says which, by kind */
    /* after the gradients are made: of nodes of backward, or because backward reads what the neighbour gives */
    bool late;
} lk__graph_fusion;
#define LK__FUSE_NOTHING {{LK__FUSION_NONE}}

/* The outputs of a loss are a sum over samples, then the weight that the mean divides by; its gradient rule gets
 * LK__GRAD_ONE instead of dy where that loss is minimised. */
typedef enum lk__graph_loss {
    LK__LOSS_NO = 1,
    LK__LOSS_SUM_WEIGHT,
    LK__LOSS_SUM_WEIGHT_CORRECT, /* and the number of samples whose label has the largest logit */
} lk__graph_loss;

/* How an operation is computed where ranks have parts of a factor that is coupled. */
typedef struct lk__graph_coupled {
    int input, dim; /* the operand that has the factor, and in which dimension; below 0: counted from its end */
    /* Appends nodes that make the node's outputs from `parts` parts of the factor: what the parts must know of each
     * other is an output that lists them (# in graph/factor.h). Returns a node that makes an output, after
     * which there is none; -1: the graph has failed. NULL: the factor cannot be cut. */
    int (*divide)(lk_graph *graph, const lk__graph_node *node, int64_t parts);
} lk__graph_coupled;

enum { LK__NOT_UNPACKED = -2 };

/* Which operand has several things side by side along the attribute `axis`, of which the others have one each: a rank
 * may have a part of each of them. */
typedef enum lk__graph_segments {
    LK__SEGMENTS_NONE,
    LK__SEGMENTS_SLICED, /* input 0; output 0 is the one at the attributes start and length */
    LK__SEGMENTS_FILLED, /* output 0; input 0 is the one at start and length, and the others are zeros */
    LK__SEGMENTS_JOINED, /* output 0; the inputs are all of them, in their order */
} lk__graph_segments;

/* An output other than 0 that may reuse the memory of input 0, in nodes that have the input `with`; output 0: none. */
typedef struct lk__graph_replaced {
    int output, with;
} lk__graph_replaced;

/* For an operation on rows that are grouped by expert, which runs where the weights of these experts are. */
typedef struct lk__graph_grouped {
    int      offsets;            /* 1 + the input that says where the rows of each expert begin; 0: it has none */
    unsigned weights, gradients; /* inputs, and outputs, whose dimension 0 is the experts; the others have the rows */
} lk__graph_grouped;

typedef struct lk__graph_op {
    const char             *factors;         /* the line of graph/factor.h */
    int                     inputs, outputs; /* at most; -1: none */
    lk__graph_operand       in[LK__MAX_IN], out[LK__MAX_OUT];
    lk__attr_set            attributes; /* LK__HAS(…) | …, or LK__NO_ATTRIBUTES */
    lk__graph_shape_rule    shape;
    lk__graph_gradient_rule gradient;
    unsigned                no_gradient; /* inputs that get no gradient and do not make outputs need one */
    unsigned                in_place;    /* inputs whose memory output 0 may reuse */
    lk__graph_replaced      replaces;
    lk__graph_leaves        leaves;
    lk__graph_runs          runs;
    lk__comm_kind           collective; /* LK__RUNS_COLLECTIVE: which one */
    lk__graph_effect        effect;
    lk__graph_evaluation    evaluation;
    lk__graph_recompute     recompute;
    lk__graph_fusion        fuse[LK__FUSIONS];
    lk__graph_loss          loss;
    /* For a loss: appends what computes its weight without its sum, from what the weight depends on; *value -1: the
     * weight is the number of elements of operand 0. false: the graph has failed. NULL: it is not a loss. */
    bool (*weigh)(lk_graph *graph, const lk__graph_node *node, int *value);
    /* For a matrix product: the inputs that are multiplied, which lk_plan_config.matmul_precision rounds. 0: not a
     * matrix product. */
    unsigned           matmul;
    lk__graph_coupled  coupled;
    lk__graph_grouped  grouped;
    lk__graph_segments segments;
    /* For an operation that may read several things in one operand: appends nodes that make the node's outputs from
     * slices of it, where `parts` ranks can have more of them so. Returns the last one; LK__NOT_UNPACKED: they cannot,
     * and nothing is appended; -1: the graph has failed. NULL: it does not read such operands. */
    int (*unpack)(lk_graph *graph, const lk__graph_node *node, int64_t parts);
    /* For the cost of a step: multiplications and additions, 0 where bytes bound it; bytes read and written. */
    double (*arithmetic)(const lk_graph *graph, const lk__graph_node *node);
    double (*bytes)(const lk_graph *graph, const lk__graph_node *node);
} lk__graph_op;

const lk__graph_op *lk__op_find(lk__op op);
/* The number of ranks for whose rows a value has room: estimates assume that each sends an equal part of its rows. */
static inline double lk__value_ranks(const lk_graph *g, int value)
{
    int routed = g->values[value].routed;
    return routed ? (double)g->values[routed - 1].shape.dims[0] : 1;
}
/* Operand i of a node of this operation: the last input may be repeated. */
const lk__graph_operand *lk__op_input(const lk__graph_op *op, int i);
/* type.c: whether operand o, with a value of this type, has the element type of its node. */
bool lk__operand_is_real(const lk__graph_operand *o, lk_dtype type);
/* The element type of a node. */
lk_dtype lk__node_element(const lk_graph *graph, const lk__graph_node *node);
/* The type that input i of a node of this operation must have, for an element type and the type that it has;
 * LK_DTYPE_COUNT: any. */
lk_dtype lk__input_type(lk__op op, int i, lk_dtype element, lk_dtype type);
/* Casts the inputs where they have another type. false: impossible, recorded in the graph. */
bool lk__cast_inputs(lk_graph *graph, lk_site site, lk__op op, int *in, int inputs, lk_dtype element);
/* The type of output i of the node; `given`: the type of its shape. */
lk_dtype lk__output_type(const lk_graph *graph, const lk__graph_node *node, int output, lk_dtype element,
                         lk_dtype given);
/* The element type of a node with these inputs: narrow where there are narrow and wide operands, unless the operation
 * needs wide ones. `given`: the type where no operand determines it. false: the types cannot be combined, which is
 * recorded in the graph. */
bool lk__choose_element(lk_graph *graph, lk_site site, lk__op op, const int *in, int inputs, lk_dtype given,
                        lk_dtype *element);
/* Whether output 0 of a node is in the memory of its input 0. */
static inline bool lk__op_shares_memory(lk__op op)
{
    const lk__graph_op *d = lk__op_find(op);
    return d->runs == LK__RUNS_NOTHING || d->runs == LK__RUNS_WAIT || d->effect == LK__EFFECT_CACHE;
}

/* Inputs of a node whose memory an output may reuse. */
static inline unsigned lk__node_in_place(const lk__graph_node *n, int output)
{
    const lk__graph_op *d = lk__op_find(n->op);
    bool                with = d->replaces.with < n->inputs && n->in[d->replaces.with] >= 0;
    return output == 0 ? d->in_place : output == d->replaces.output && with ? 1u << 0 : 0;
}

/* collective.c: appends a collective of x and its wait; returns the complete value, or -1. */
int lk__emit_collective(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, int x);
int lk__emit_all_reduce(lk_graph *graph, lk_site site, const lk__op_attrs *attrs, int x);
int lk__emit_all_gather(lk_graph *graph, lk_site site, const lk__op_attrs *attrs,
                        int x); /* the same; attrs has `parts` */
int lk__emit_reduce_scatter(lk_graph *graph, lk_site site, const lk__op_attrs *attrs, int x); /* the same */

/* transfer.c: between stages of a pipeline (attributes mesh and transfer). Appends the send of x; returns its node, or
 * -1. What is sent stays as it is until the slot of its micro-batch is used again. */
int lk__emit_send(lk_graph *graph, lk_site site, const lk__op_attrs *attrs, int x);
/* Appends the receive of a value with the type, shape and part of `like`, and its wait; returns the complete value, or
 * -1. It starts with its section, or before, wherever it is there. */
int lk__emit_receive(lk_graph *graph, lk_site site, const lk__op_attrs *attrs, int like);

/* op/custom.c: what a descriptor says, except that for a user's operation its own struct says it. */
const lk__kernel_custom *lk__node_custom(const lk_graph *graph, const lk__graph_node *node); /* NULL: a built-in one */
const char              *lk__node_name(const lk_graph *graph, const lk__graph_node *node);
unsigned                 lk__node_no_gradient(const lk_graph *graph, const lk__graph_node *node);

/* node_factors.c: what follows from the line of factors. An output without a run-time count, made from inputs with one,
 * is a sum over samples, unless it is the same for every leaf of a batch. Whether a sample's rows of the outputs depend
 * on all samples of the batch, so that leaves cannot run as one batch. */
bool lk__node_couples_samples(const lk_graph *graph, const lk__graph_node *node);
/* Whether an output is the same for every leaf, although the node reads samples. */
bool lk__node_is_same(const lk_graph *graph, const lk__graph_node *node, int output);

/* Whether input i of a node is present, needs a gradient, and gets one from this operation. */
bool lk__node_wants_gradient(const lk_graph *graph, const lk__graph_node *node, int i);
/* Whether the node's outputs need a gradient: they do if any of its inputs needs one. */
bool lk__node_needs_gradient(const lk_graph *graph, const lk__graph_node *node);

double lk__arithmetic_none(const lk_graph *graph, const lk__graph_node *node);
double lk__bytes_operands(const lk_graph *graph, const lk__graph_node *node); /* each operand once */
double lk__bytes_updated(const lk_graph *graph, const lk__graph_node *node);  /* of an optimizer's operation */
double lk__bytes_none(const lk_graph *graph, const lk__graph_node *node);

/* ---- for shape rules (graph/shape.c) ---- */

#define LK__SHAPE_FAIL(s, ...) (lk__graph_fail((s)->graph, (s)->site, __VA_ARGS__), -1)

typedef struct lk__graph_shape_text {
    char text[128];
} lk__graph_shape_text;
lk__graph_shape_text lk__shape_show(const lk__graph_shape *shape);
lk__graph_shape      lk__shape_fixed(lk_dtype type, int rank, const int64_t *dims); /* no run-time count */
lk__graph_shape      lk__shape_scalar(lk_dtype type);
lk__graph_shape      lk__shape_vector(lk_dtype type, int64_t n);
/* Copies the run-time count of axis `from` of x to axis `to` of y. */
void lk__shape_carry_count(lk__graph_shape *y, const lk__graph_shape *x, int from, int to);
/* Whether inputs 1 … last, weight and bias, are without the batch; false: the shape rule has failed. */
bool lk__shape_check_weights(lk__graph_shapes *shapes, int last);
/* Output 0 of a window of kh × kw that moves over input 0 (N, C, H, W) by the attributes stride and padding; -1: it
 * does not fit. */
int lk__shape_window(lk__graph_shapes *shapes, int64_t channels, int64_t kh, int64_t kw);
int lk__shape_same(lk__graph_shapes *shapes);        /* one output, of input 0's shape */
int lk__shape_same_second(lk__graph_shapes *shapes); /* one output, of input 1's */

/* ---- for gradient rules (graph/grad.c) ---- */

enum { LK__GRAD_NONE = -1, LK__GRAD_ONE = -2 }; /* no gradient; the gradient of the loss itself, the number 1 */

/* The values that backward reads for input and output i of the node; -1: absent. */
int             lk__grad_in(const lk__graph_backward *backward, int i);
int             lk__grad_out(const lk__graph_backward *backward, int i);
bool            lk__grad_wants(const lk__graph_backward *backward, int i); /* whether input i needs a gradient */
lk__graph_shape lk__grad_shape(const lk__graph_backward *backward, int value);
/* Adds g to the gradient of the node's input i. g below 0: nothing. */
void lk__grad_give(lk__graph_backward *backward, int i, int g);
/* A node whose output has the shape of the value `like`; its output or -1. */
int lk__grad_emit_like(lk__graph_backward *backward, lk__op op, const lk__op_attrs *attrs, const int *operands,
                       int inputs, int like);
/* Sums dy down to the shape of `like`: the gradient of broadcasting. */
int lk__grad_reduce_to(lk__graph_backward *backward, int dy, int like);
/* The gradient before a fused activation. */
int lk__grad_before_activation(lk__graph_backward *backward, int dy);
/* Norms: one node gives dx, dw and db; `last` is the node's last input that may need a gradient. */
void lk__grad_norm(lk__graph_backward *backward, lk__op op, const int *operands, int inputs, int last);
/* A node's output 0, or -1: LK__GRAD_EMIT(backward, LK__OP_mul, NULL, 2, dy, lk__grad_in(backward, 0)). */
#define LK__GRAD_EMIT(backward, op, attrs, inputs, ...) \
    lk__emit1((backward)->g, (backward)->n.site, op, attrs, (int[]){__VA_ARGS__}, inputs)

#endif
