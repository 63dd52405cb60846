/* graph/graph.h - the internals of a graph: values, nodes, states, and how passes add to them. */
#ifndef LK__GRAPH_H
#define LK__GRAPH_H

#include "base/base.h"
#include "device/kernel.h"

#include <lockstep/graph.h>

typedef struct lk__graph_shape {
    lk_dtype dtype;
    int      rank;
    int64_t  dims[LK_MAX_RANK]; /* capacities */
    int      count_axis;        /* the axis with a run-time count, or -1 */
    int64_t  count_unit;        /* elements of that axis per sample: its extent is step.count × count_unit */
    int64_t  count_first;       /* of a piece of another value (plan/pieces.h): samples before its own; else 0 */
} lk__graph_shape;

typedef enum lk__graph_kind {
    LK__VALUE_RESULT,    /* of a node */
    LK__VALUE_INPUT,     /* bound by the caller */
    LK__VALUE_STATE,     /* a parameter or buffer, in the store */
    LK__VALUE_MASTER,    /* the master copy of a parameter that is stored in a narrower type, in the store */
    LK__VALUE_OPTIMIZER, /* optimizer state of a parameter, in the store */
    LK__VALUE_CONSTANT,  /* recorded data, in the store, never saved */
    LK__VALUE_BUCKET,    /* gradients of several parameters that are contiguous in memory: plan/bucket.c */
    LK__VALUE_UNIT,      /* parameters that are contiguous in the store, or this rank's slice of them: plan/shard.h */
    LK__VALUE_SLICE,     /* this rank's part of the gradient of a state, with the state's shape: plan/shard.h */
} lk__graph_kind;

typedef struct lk__graph_value {
    lk__graph_shape shape;
    lk__graph_kind  kind;
    int             node; /* producer, for results */
    int  state; /* index into states, for state, master and optimizer values; into constants or buckets, for those */
    int  slot;  /* optimizer values: which moment, from 0; buckets: 1 for this rank's slice */
    bool channels_last; /* how an image is stored; set by the layout pass */
    bool needs_gradient;
    unsigned    placed_axis; /* by lk_place: the axis of the mesh, and the dimension that it splits; 0: not placed */
    int         placed_dim;  /* -1: it is whole on every rank */
    lk__op_part part; /* what this rank has of it, where an axis of the mesh cuts it (plan/placement.h) */
    /* Not 0: its rows come from all ranks that have experts (plan/experts.h), and its shape is their capacity. 1 + the
     * value that says how many there are: offsets (ranks, experts + 1). */
    int         routed;
    const char *name; /* inputs; else NULL */
    lk_site     site;
} lk__graph_value;

typedef struct lk__graph_node {
    lk__op       op;
    lk__op_attrs attrs;
    int          in[LK__MAX_IN], out[LK__MAX_OUT]; /* value ids; -1: absent */
    int          inputs, outputs;
    int          block; /* innermost block it was recorded in; 0 is the whole model */
    bool         dead;  /* removed by a pass */
    lk_site      site;
} lk__graph_node;

typedef struct lk__graph_state {
    char          *name;
    char         **aliases; /* further names: tied weights */
    size_t         aliases_count, aliases_capacity;
    int            value;
    bool           buffer, frozen, no_decay;
    bool           not_saved; /* a buffer that no file holds */
    lk_initializer init;
    double         a;
    lk_site        site;
} lk__graph_state;

typedef struct lk__graph_constant {
    int      value;
    size_t   bytes;
    void    *data; /* NULL in copies that passes work on */
    uint64_t hash; /* of the data */
} lk__graph_constant;

typedef struct lk__graph_metric {
    char *name;
    int   sum, weight; /* values: outputs of a node `total`, or of a loss */
} lk__graph_metric;

typedef struct lk__graph_block {
    char *name; /* full, dotted; "" for the model */
    int   parent;
    bool  recompute;
} lk__graph_block;

struct lk_graph {
    lk_context         *context;
    lk_dtype            real;
    lk__graph_value    *values;
    lk__graph_node     *nodes;
    lk__graph_state    *states;
    lk__graph_block    *blocks;
    lk__graph_constant *constants;
    lk__graph_metric   *metrics;
    lk__kernel_custom **customs; /* users' operations, by the attribute custom - 1 */
    size_t    values_count, nodes_count, states_count, blocks_count, constants_count, metrics_count, customs_count;
    size_t    values_capacity, nodes_capacity, states_capacity, blocks_capacity, constants_capacity;
    size_t    metrics_capacity, customs_capacity;
    int       block;    /* the open one */
    uint64_t  dropouts; /* number recorded so far: the stream of the next one */
    lk_status status;
    char      error[1024];
};

/* For an empty tensor: the line of the first recording call that had only empty tensors; 0: unknown. */
static inline int lk__empty_line(lk_tensor x) { return !x.graph && x.id < 0 ? -x.id : 0; }

/* The graph that all present tensors belong to and that has not failed; NULL otherwise, with the failure recorded.
 * name: the call's. */
lk_graph *lk__common_graph(lk_site site, const char *name, const lk_tensor *x, int count);
/* The result of a call that records nothing: an invalid tensor of its graph, or an empty tensor where no argument has a
 * graph. */
lk_tensor lk__no_result(lk_site site, const lk_tensor *x, int count);
/* Whether a value is added or averaged over samples, and is not the sum of a loss, whose weight is known. false with
 * the failure recorded if there is no memory to find out. */
bool lk__graph_lacks_weight(lk_graph *graph, int value);

/* terms.c: a loss as a sum of losses, each multiplied by a number. */
typedef struct lk__graph_term {
    double factor;
    int    sum;  /* value: the sum of a loss, or a number that does not depend on samples */
    int    node; /* of that loss; -1: it is such a number, and its weight is 1 */
} lk__graph_term;
typedef enum lk__graph_reasons {
    LK__TERMS_KNOWN,
    LK__TERMS_OTHER,     /* something other than a sum is computed from the sum of a loss */
    LK__TERMS_NO_WEIGHT, /* a term is added over samples, and its weight is not known */
    LK__TERMS_TOO_MANY,
    LK__TERMS_NO_MEMORY
} lk__graph_reasons;
/* Writes at most LK_MAX_LOSSES terms. *count 0: it is one loss, or one number, as it is. *at: the value because of
 * which it is refused. */
lk__graph_reasons lk__graph_terms(lk_graph *graph, int loss, lk__graph_term *terms, int *count, int *at);
void lk__graph_terms_text(const lk_graph *graph, lk__graph_reasons reason, int at, char *text, size_t bytes);
int  lk__graph_loss_node(const lk_graph *graph, int value); /* the loss whose sum the value is, or -1 */
/* Records a failure, prefixed with the site; only the first is kept. */
void lk__graph_fail(lk_graph *graph, lk_site site, const char *format, ...) __attribute__((format(printf, 3, 4)));
void lk__graph_no_memory(lk_graph *graph);                               /* records that */
int  lk__graph_add_value(lk_graph *graph, const lk__graph_value *value); /* adds one; -1 on failure */

/* Adds a node: the shape rule checks the inputs and makes the outputs whose bit is set in `wanted`. Returns the node,
 * or -1 with the failure recorded in the graph. inputs may hold -1 for optional ones. */
enum { LK__ALL_OUTPUTS = -1 };
int lk__emit(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
             int wanted);
/* The same, giving output 0's id or -1. */
int lk__emit1(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs);

/* For ops whose output shapes do not follow from their inputs (reshape, expand, gradients): the shapes are given. */
int lk__emit_shaped(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const lk__graph_shape *shapes, int outputs);
/* The same with only those outputs whose bit is set in `wanted`. */
int lk__emit_wanted(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const lk__graph_shape *shapes, int outputs, int wanted);
/* For ops that update state in place (optimizers): the outputs are existing values. */
int lk__emit_update(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                    const int *out, int outputs);

/* Sets the capacity of the batch in every shape; at most the recorded one. */
void lk__graph_set_capacity(lk_graph *graph, int64_t capacity);
/* A value with x's elements in another type; x itself where it has that type. -1: failure, recorded in the graph. */
int lk__emit_cast(lk_graph *graph, lk_site site, int x, lk_dtype type);

/* This many f64 fill the 47-bit address space of a process. Bounded so, the bytes of all values of a plan are added
 * without overflow. */
#define LK__MOST_ELEMENTS ((int64_t)1 << 44)

int64_t lk__shape_elements(const lk__graph_shape *shape);
/* The extent of its axis with a run-time count, with this many samples in the batch: at most its capacity. */
int64_t lk__shape_extent(const lk__graph_shape *shape, int64_t samples);
/* it has at most LK__MOST_ELEMENTS, and none of its axes is negative */
bool lk__shape_fits(const lk__graph_shape *shape);
bool lk__shape_equal(const lk__graph_shape *a, const lk__graph_shape *b);    /* dims and count; not type */
void lk__shape_text(const lk__graph_shape *shape, char *text, size_t bytes); /* "(64*, 3, 32, 32)": * marks the count */

/* grad.c: appends the backward of `loss` to the graph. gradients[i] is the value of the gradient of state i, or -1. */
lk_status lk__graph_grad(lk_graph *graph, int loss, int *gradients);
/* The same for a sum of numbers, each multiplied by a value of its type. */
lk_status lk__graph_grad_sum(lk_graph *graph, const int *numbers, const int *factors, int count, int *gradients);

/* A copy for passes to change; values, nodes and states keep their ids. It has neither tied names nor the constants'
 * data. */
lk_status lk__graph_copy(const lk_graph *graph, lk_graph **copy);
/* Adds them to a copy that outlives its source. */
lk_status lk__graph_copy_rest(const lk_graph *graph, lk_graph *copy);
/* "constant0 i32 (2, 3), data 0x1234…: 1, 2, 3, …": the line that ranks compare. */
void lk__constant_text(const lk_graph *graph, size_t index, char *text, size_t bytes);

uint64_t lk__node_hash(const lk_graph *graph, const lk__graph_node *node, uint64_t seed); /* of all that runs */
void     lk__node_text(const lk_graph *graph, const lk__graph_node *node, char *text, size_t bytes);

#endif
