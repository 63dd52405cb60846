/* plan/pieces.h - collectives of forward that are cut into pieces of the batch, so that products can start on the data
 * that has arrived. The product that reads an all_gather runs piece by piece, each as soon as its piece has arrived;
 * for a sum over ranks, one piece of the product's result is sent while the next one is computed. Rows of a product are
 * independent of each other, and each piece is written into its place in the whole result (joined.h): the bits are the
 * same. */
#ifndef LK__PLAN_PIECES_H
#define LK__PLAN_PIECES_H

#include "plan/plan.h"

enum { LK__PIECES_MOST = 8, LK__PIECES_PRODUCTS = 4, LK__PIECES_VIEWS = 4 };

/* A collective and the products that it feeds, or the product that feeds it, as nodes of the list before the pass. */
typedef struct lk__plan_exchange {
    bool    gathers; /* products read its result; else one makes its operand */
    int     start, wait;
    int     views[LK__PIECES_VIEWS], views_count; /* reshapes between collective and products, in their order */
    int     products[LK__PIECES_PRODUCTS], products_count;
    bool    whole; /* of an all_gather: something else reads its result, too */
    int     pieces;
    int64_t samples; /* of the batch, at the capacity */
    /* by piece, once they are made: the collective's operand and result */
    int operand[LK__PIECES_MOST], result[LK__PIECES_MOST];
} lk__plan_exchange;

typedef struct lk__plan_exchanges {
    lk__plan_exchange *all;
    size_t             count, capacity;
    int               *of_node; /* by node: the exchange that it belongs to; -1: none */
    size_t             nodes;
} lk__plan_exchanges;

/* pieces_find.c: the exchanges of forward, with lk_plan_config.pieces. */
lk_status lk__exchanges_find(const lk_plan *plan, const lk__plan_list *list, int asked, size_t forward,
                             lk__plan_exchanges *exchanges);
void      lk__exchanges_free(const lk_plan *plan, lk__plan_exchanges *exchanges); /* also after a failure */

/* Where a piece begins among the samples. */
static inline int64_t lk__piece_begin(const lk__plan_exchange *e, int piece) { return e->samples * piece / e->pieces; }

/* pieces.c: cuts the exchanges of a list; *forward: where the nodes of forward end. After the last pass that fuses
 * nodes. */
lk_status lk__pass_pieces(const lk_plan *plan, lk__plan_list *list, int asked, size_t *forward);

#endif
