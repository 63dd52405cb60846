/* base/reduce.h - the canonical order in which ranks' values are combined. */
#ifndef LK__REDUCE_H
#define LK__REDUCE_H

#include <lockstep/comm.h>

enum { LK__REDUCE_MOST = 4096 }; /* inputs at once, so ranks of a group */

/* out[i] = in[0][i] op … op in[n-1][i] for `count` elements, as the pairwise tree of base/tree.h. out may be one of the
 * inputs. Any alignment is allowed. */
void lk__reduce(void *out, const void *const *in, int n, size_t count, lk_dtype type, lk_reduce_op op);

/* For a tree whose parts are reduced by different ranks: the type of partial results with which the result has the same
 * bits as if lk__reduce had all inputs. A part is widened, reduced with lk__reduce_step's op, and finished once it
 * contains all `n` inputs. */
lk_dtype     lk__reduce_partial(lk_dtype type, lk_reduce_op op);
lk_reduce_op lk__reduce_step(lk_reduce_op op); /* avg: sum, divided by lk__reduce_finish */
void         lk__reduce_widen(void *out, const void *in, size_t count, lk_dtype type, lk_dtype partial);
/* out may be in where type and partial are the same. */
void lk__reduce_finish(void *out, const void *in, int n, size_t count, lk_dtype type, lk_reduce_op op);

#endif
