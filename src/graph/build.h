/* graph/build.h - helpers of the recording calls of lockstep/graph.h. */
#ifndef LK__GRAPH_BUILD_H
#define LK__GRAPH_BUILD_H

#include "graph/graph.h"

/* Adds a node and returns its first result. Operands whose graph is NULL are missing, which is allowed for all but the
 * first. */
lk_tensor lk__graph_record(lk_site site, lk__op op, const lk__op_attrs *attrs, const lk_tensor *x, int count);
lk_tensor lk__graph_record1(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor x);
lk_tensor lk__graph_record2(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor a,
                            lk_tensor b); /* both needed */

static inline int lk__normal_axis(lk_tensor x, int axis) { return axis < 0 ? axis + lk_tensor_rank(x) : axis; }

#endif
