/* graph/op/loss_parts.h - losses whose classes are divided over ranks: the functions lk__graph_coupled.divide of
 * descriptors. */
#ifndef LK__GRAPH_OP_LOSS_PARTS_H
#define LK__GRAPH_OP_LOSS_PARTS_H

#include "graph/op.h"

enum { LK__LOSS_BLOCK = 22 << 20 }; /* logits of a block of rows, over all classes, at most */

int lk__divide_cross_entropy(lk_graph *graph, const lk__graph_node *node, int64_t parts); /* and cross_entropy_each */
int lk__divide_linear_cross_entropy(lk_graph *graph, const lk__graph_node *node, int64_t parts);

#endif
