/* graph/optimizer.h - the descriptor of an optimizer: its options, its state and its operation. Each descriptor is in
 * the file of the operation (graph/op/adam.c). The plan, the comparison of ranks, checkpoints and, through
 * <lockstep/optimizer.h>, the command use it. docs/extending.md adds one. */
#ifndef LK__GRAPH_OPTIMIZER_H
#define LK__GRAPH_OPTIMIZER_H

#include "base/op.h"

#include <lockstep/optimizer.h>

/* The options of LK_OPTIMIZER_OPTION_LIST, as bits: LK__OPTION(betas). */
enum {
#define LK__OPTION_NUMBER(field, name, value, low, high, doc) LK__OPTION_ID_##field,
#define LK__OPTION_PAIR(id, first, second, name, argument, a, b, low, high, doc) LK__OPTION_ID_##id,
#define LK__OPTION_FLAG(field, name, doc) LK__OPTION_ID_##field,
    LK_OPTIMIZER_OPTION_LIST(LK__OPTION_NUMBER, LK__OPTION_PAIR, LK__OPTION_FLAG)
#undef LK__OPTION_NUMBER
#undef LK__OPTION_PAIR
#undef LK__OPTION_FLAG
        LK__OPTION_COUNT
};
#define LK__OPTION(id) (UINT32_C(1) << LK__OPTION_ID_##id)

typedef struct lk__graph_optimizer {
    const char *name;    /* as users write it */
    lk__op      op;      /* inputs: gradient, scale; outputs: parameter, a place for each moment, the stored copy */
    uint32_t    options; /* LK__OPTION(…) | … */
    /* The names of its arrays of state, as PyTorch has them, in the order of the operation's outputs; those that are
     * not used are NULL. */
    const char *moments[LK_MAX_MOMENTS];
    /* Which of them these settings need: bit i for moments[i]. NULL: all. */
    unsigned (*keeps)(const lk_optimizer_config *config);
    /* What moments[i] is before the first step. NULL: 0. */
    double (*initial)(const lk_optimizer_config *config, int moment);
    /* Settings that are in range but do not fit together: what is wrong with them, or NULL. The function itself may
     * be NULL. */
    const char *(*check)(const lk_optimizer_config *config);
    /* Sets the options whose defaults differ from the list's. NULL: none. */
    void (*defaults)(lk_optimizer_config *config);
    /* Sets attributes of the operation that are not options. NULL: there are none. */
    void (*attributes)(lk__op_attrs *attributes);
} lk__graph_optimizer;

const lk__graph_optimizer *lk__optimizer_find(lk_optimizer_kind kind); /* NULL: there is none */

/* The options of this optimizer as attributes of its operation, which have the names of the fields. */
void     lk__optimizer_attributes(const lk_optimizer_config *config, lk__op_attrs *attributes);
unsigned lk__optimizer_keeps(const lk_optimizer_config *config); /* which moments: bit i for moments[i] */
/* Checks the kind, lr, weight decay, clip and all options. False: why has the reason. */
bool lk__optimizer_check(const lk_optimizer_config *config, char *why, size_t bytes);
/* "adam, lr 0.001, betas 0.9 0.999, …": equal for equal optimizers; without groups. Returns text. */
const char *lk__optimizer_text(const lk_optimizer_config *config, char *text, size_t bytes);

#endif
