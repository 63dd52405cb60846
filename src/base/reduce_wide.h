/* base/reduce_wide.h - sums of f32 over up to 16 inputs in one pass, with the widest vectors that the machine has. */
#ifndef LK__REDUCE_WIDE_H
#define LK__REDUCE_WIDE_H

#include <stdbool.h>
#include <stddef.h>

enum { LK__WIDE_MOST = 16 };

/* What is fetched ahead of the inputs that are being added. */
typedef enum lk__reduce_ahead {
    LK__AHEAD_NONE,
    LK__AHEAD_READ,
    LK__AHEAD_WRITE /* and it will be overwritten */
} lk__reduce_ahead;

/* Whether lk__reduce_wide is the fastest way on this machine, for this many inputs and outputs. */
bool lk__reduce_is_wide(int inputs, int outputs);

/* Every output is the sum of the inputs, as the pairwise tree of base/tree.h. An output may be one of the inputs: a
 * cache line of all inputs is read before it is written. Any alignment is allowed. */
void lk__reduce_wide(float *const *outputs, int count_out, const float *const *inputs, int count_in, size_t elements,
                     lk__reduce_ahead ahead);

#endif
