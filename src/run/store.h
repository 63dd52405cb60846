/* run/store.h - the inside of a store: one piece of memory a kind, as the plan laid it out. */
#ifndef LK__STORE_H
#define LK__STORE_H

#include "plan/plan.h"

#include <lockstep/store.h>

struct lk_store {
    lk_context *context;
    lk_plan    *plan; /* outlives the store */
    char       *parameters, *buffers, *optimizer;
};

#endif
