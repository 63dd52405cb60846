/* collective.c - the table of collectives, and the names of the mesh axes along which their groups extend. */
#include "base/collective.h"

#include <stdio.h>

const lk__collective_facts lk__collectives[LK__KIND_COUNT] = {
#define ROW(id, text, ...) [LK__##id] = {.name = text, __VA_ARGS__},
    LK__COLLECTIVE_LIST(ROW)
#undef ROW
};

const char *const lk__axis_names[LK__AXES] = {"data", "shard", "tensor", "pipeline", "expert"};

const char *lk__axes_text(unsigned axes, char *text, size_t bytes)
{
    size_t used = 0;
    snprintf(text, bytes, "no axis");
    for (int i = 0; i < LK__AXES; i++)
        if (axes & 1u << i && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? " × " : "", lk__axis_names[i]);
    if (lk__axes_factor(axes) && used < bytes)
        snprintf(text + used, bytes - used, " in %s of %d", axes & LK__AXES_ACROSS ? "steps" : "groups",
                 lk__axes_factor(axes));
    return text;
}
