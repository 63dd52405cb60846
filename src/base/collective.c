/* collective.c - the table of collectives. */
#include "base/collective.h"

const lk__collective_facts lk__collectives[LK__KIND_COUNT] = {
#define ROW(id, text, ...) [LK__##id] = {.name = text, __VA_ARGS__},
    LK__COLLECTIVE_LIST(ROW)
#undef ROW
};
