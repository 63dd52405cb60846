/* plan/joined.h - values that are written into their place in a larger one: the operands of `join`, or what they are
 * views of. The memory pass gives them addresses there, and the verifier knows their bytes as bytes of the larger
 * value. */
#ifndef LK__PLAN_JOINED_H
#define LK__PLAN_JOINED_H

#include "plan/plan.h"

typedef struct lk__plan_joined {
    int    *whole;  /* by value: the value of which it is a part; -1: none */
    int    *first;  /* the same: the part with which that begins */
    size_t *offset; /* bytes of the whole before it */
    size_t  values;
} lk__plan_joined;

lk_status lk__joined_find(const lk__plan_list *list, lk__plan_joined *joined);
void      lk__joined_free(const lk__plan_list *list, lk__plan_joined *joined); /* also after a failure */

#endif
