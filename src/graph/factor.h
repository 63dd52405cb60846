/* graph/factor.h - which dimensions of an operation's operands belong together, as the indices of an einsum do. A
 * descriptor has them as one line:
 *
 *     x(rows.., in) weight(out, in)@transposed +bias(out) -> y(rows.., out)
 *
 * Each dimension belongs to a factor, or is made of several. A factor is free if the parts of an operation along it are
 * independent: the operands that have it can be cut along it, and each part of the outputs depends only on the
 * corresponding parts.
 * Where an output does not have it, but depends on an operand that does, the parts of that output are summands. A
 * coupled factor (!width) cannot be cut.
 *
 *     a           a dimension
 *     a*b         made of a and b, b the faster one
 *     a|b         a, then b: concatenated
 *     a..         any number of dimensions, aligned at the end; one of extent 1 is broadcast
 *     a*..        all dimensions of a.. in one
 *     _           of no factor
 *     !a          a is coupled
 *     ?a          a is selected from: of the summands over it, at most one is not zero, so any order adds them to the
 *                 same bits
 *     #a          of an output: lists parts of a, one element for each. It is what each part must know of the others:
 *                 a is cut all the same, and what the parts make is concatenated
 *     ()          a scalar
 *     +x(…)       is added after the sum, once
 *     ^x(…)       is applied after the sum: nothing is summed where it is present
 *     *(…)        all operands of this side
 *     x(…)@flag   its last two dimensions are swapped where the attribute is set
 *     y(…):x,w    depends on these inputs alone
 *     ; a=heads   the attribute is the extent of a, or of a product: ; a*b=heads
 *     ; a!causal  a is coupled where the attribute is set
 *     ; ^pool     the attribute is applied after the sum: nothing is summed where it is set
 *     ; a..#axis  a.. has as many dimensions as the attribute says
 *     ; !axis     the factor of the dimension that the attribute names is coupled
 *     ; -axis     that dimension is of no factor; operands of one rank less do not have it
 *     ; -mask     the dimensions of the attribute's mask are missing, or 1, in operands of lower rank
 *     ; axes      output 0 is input 0 with its dimensions in that order
 *     ; reshape   output 0 is input 0 with its dimensions merged or divided
 *
 * Several lines, one below the other, are alternatives: the first that has all present operands holds. "-": no operand
 * can be cut.
 *
 * A user's operation (lk_operation.factors) has no names for its operands: (rows.., in), (out, in) -> (rows..,
 * out):0,1. There are no ?, +, ^, @ and rules, since its attributes are not known. */
#ifndef LK__FACTOR_H
#define LK__FACTOR_H

#include "device/kernel.h"

struct lk__graph_node;

enum { LK__FACTORS = 20, LK__FACTOR_SEGMENTS = 3, LK__FACTOR_PRODUCT = 8, LK__FACTOR_NAME = 24 };

typedef struct lk__factor {
    char    name[LK__FACTOR_NAME];
    int64_t extent;
    bool    coupled, selected;
} lk__factor;

/* Factors, the slowest first: the extent of a dimension is the product of theirs, or the sum of its segments'. */
typedef struct lk__factor_product {
    int count, factor[LK__FACTOR_PRODUCT];
} lk__factor_product;
typedef struct lk__factor_dim {
    int                segments; /* 0: of no factor */
    int                listed;   /* 1 + the factor whose parts it lists; 0: none */
    lk__factor_product segment[LK__FACTOR_SEGMENTS];
} lk__factor_dim;

/* The extents of an operand; a pointer of NULL: it is absent. */
typedef struct lk__factor_shape {
    const int64_t *dims;
    int            rank;
} lk__factor_shape;

/* What is asked: an operation, its attributes, and the shapes of its operands. */
typedef struct lk__factor_query {
    lk__op              op;
    const lk__op_attrs *attrs;
    lk__factor_shape    in[LK__MAX_IN], out[LK__MAX_OUT];
    int                 inputs, outputs;
} lk__factor_query;

typedef struct lk__factors {
    int            count;
    lk__factor     factor[LK__FACTORS];
    lk__factor_dim in[LK__MAX_IN][LK_MAX_RANK], out[LK__MAX_OUT][LK_MAX_RANK];
    unsigned       added;                /* inputs that are added once, after the sum */
    unsigned       depends[LK__MAX_OUT]; /* inputs */
    struct {
        lk__factor_product product;
        int attribute; /* whose attribute is the extent of the product; the number of them is `extents` */
    } extent[4];
    int extents;
} lk__factors;

/* The factors of an operation at these shapes. Returns NULL, or why the line does not fit, in *text. */
const char *lk__factors_find(const lk__factor_query *query, lk__factors *factors, char text[static 128]);
/* The same for a given line, which is the descriptor's otherwise: of a user's operation (LK__OP_custom), and for
 * tests. */
const char *lk__factors_solve(const char *line, const lk__factor_query *query, lk__factors *factors,
                              char text[static 128]);

/* The factors of a node; of a user's operation, too. */
const char *lk__node_factors(const struct lk_graph *graph, const struct lk__graph_node *node, lk__factors *factors,
                             char text[static 128]);
/* The factors of backward of a user's operation, from the factors of forward. */
void lk__factors_of_backward(const lk__factors *forward, int inputs, int outputs, lk__factors *factors);

/* The factor that the samples are, of an operand with a run-time count along this axis; -1: none. */
int lk__factor_of_samples(const lk__factor_dim dims[LK_MAX_RANK], int count_axis);

bool lk__factor_in_dim(const lk__factor_dim *dim, int factor);
/* Whether an operand's dimensions have the factor. */
bool lk__factor_in(const lk__factor_dim dims[LK_MAX_RANK], int factor);
/* Whether output k is a sum over the parts of a factor: it does not have it, but depends on an input that does. */
bool lk__factor_is_summed(const lk__factors *factors, int inputs, int k, int factor);
/* Sets the attributes that are the extents of factors to the extents of a part: extents[i] of factor i. */
void lk__factors_attributes(const lk__factors *factors, const int64_t *extents, lk__op_attrs *attrs);

#endif
