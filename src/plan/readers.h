/* plan/readers.h - the nodes that read each value of a list, for the pass that fuses nodes. */
#ifndef LK__PLAN_READERS_H
#define LK__PLAN_READERS_H

#include "plan/plan.h"

typedef struct lk__plan_readers {
    bool  *needed; /* by node */
    int   *count;  /* by value: readers that are needed, from outside the list included */
    int   *first;  /* by value: the first node that reads it, if one does */
    size_t nodes, values;
} lk__plan_readers;

/* gradients: they are made; before that, every node counts as needed. */
lk_status lk__readers_find(const lk__plan_list *list, bool gradients, lk__plan_readers *readers);
void      lk__readers_free(const lk__plan_list *list, lk__plan_readers *readers); /* also after a failure */

#endif
