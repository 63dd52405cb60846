/* run/store.h - the internals of a store: one block of memory per kind, laid out by the plan. */
#ifndef LK__STORE_H
#define LK__STORE_H

#include "plan/plan.h"

#include <lockstep/store.h>

struct lk_store {
    lk_context *context;
    lk_plan    *plan; /* must outlive the store */
    char       *parameters, *buffers, *optimizer;
};

#endif
