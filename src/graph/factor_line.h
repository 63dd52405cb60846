/* graph/factor_line.h - a parsed line of factors, for factor.c. */
#ifndef LK__FACTOR_LINE_H
#define LK__FACTOR_LINE_H

#include "graph/factor.h"
#include "graph/op.h"

enum { LK__FACTOR_LINE_GROUPS = 4, LK__FACTOR_LINE_ITEMS = 6, LK__FACTOR_LINE_OPERANDS = LK__MAX_IN + LK__MAX_OUT };

typedef enum lk__factor_line_kind {
    LK__FACTOR_LINE_DIM,
    LK__FACTOR_LINE_GROUP,
    LK__FACTOR_LINE_MERGED,
    LK__FACTOR_LINE_NONE
} lk__factor_line_kind;

/* A dimension, or a list of them. */
typedef struct lk__factor_line_item {
    lk__factor_line_kind kind;
    int                  group; /* GROUP, MERGED */
    lk__factor_dim       dim;   /* DIM */
} lk__factor_line_item;

typedef struct lk__factor_line_operand {
    bool                 present, output, swapped, applied;
    int                  index; /* among the inputs or outputs */
    lk__factor_line_item items[LK__FACTOR_LINE_ITEMS];
    int                  count;
} lk__factor_line_operand;

/* A list of dimensions, a.. */
typedef struct lk__factor_line_group {
    char name[LK__FACTOR_NAME];
    int  length, first; /* dimensions, -1: not known yet; the first factor */
    bool coupled;
} lk__factor_line_group;

typedef struct lk__factor_line {
    const lk__factor_query *query;
    const lk__graph_op     *op;
    lk__factors            *f;
    const char             *at;         /* what is still to be read */
    bool                    positional; /* operands have no names: those of a user's operation */
    lk__factor_line_operand operands[LK__FACTOR_LINE_OPERANDS];
    int                     count;
    lk__factor_line_group   groups[LK__FACTOR_LINE_GROUPS];
    int                     groups_count;
    int                     without; /* the dimension of groups[0] that is of no factor; -1: none */
    uint32_t                missing; /* dimensions of groups[0] that operands of lower rank do not have */
    bool                    axes, reshape, applied,
        mean;           /* applied: something follows the sum; mean: what `missing` names is divided by its extent */
    int   coupled_axis; /* of groups[0]; -1: none */
    char *text;         /* why it does not fit; 128 bytes */
} lk__factor_line;

#define LK__FACTOR_LINE_REFUSE(line, ...) (snprintf((line)->text, 128, __VA_ARGS__), (line)->text)

/* Reads one line: operands, factors and groups by name, and what its attributes say. Returns NULL, or what is wrong
 * with it. */
const char *lk__factor_line_read(lk__factor_line *line);
int64_t lk__factor_line_attribute(const lk__op_attrs *attrs, int id); /* as a number; a real one: whether it is not 0 */
void    lk__factor_line_set(lk__op_attrs *attrs, int id, int64_t value); /* one that counts something */

#endif
