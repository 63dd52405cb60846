/* list_names.c - names of the tensors of a list. */
#include "train/list_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The component "*" of a name; NULL: it has none. */
static const char *find_star(const char *name)
{
    const char *star = name;
    for (; (star = strchr(star, '*')); star++)
        if ((star == name || star[-1] == '.') && (star[1] == '.' || star[1] == 0)) return star;
    return NULL;
}

bool lk__list_is(const char *name, int rank) { return rank > 0 && find_star(name) != NULL; }

bool lk__list_name(const char *name, size_t index, char *out, size_t size)
{
    const char *star = find_star(name);
    int         n = star ? snprintf(out, size, "%.*s%zu%s", (int)(star - name), name, index, star + 1) : -1;
    return n > 0 && (size_t)n < size;
}

bool lk__list_pattern(const char *name, int i, char *out, size_t size, size_t *index)
{
    for (const char *part = name; part; part = strchr(part, '.'), part += part != NULL) {
        size_t length = strspn(part, "0123456789");
        bool   number =
            length > 0 && length <= 9 && (part[length] == '.' || part[length] == 0) && (part[0] != '0' || length == 1);
        if (!number || i-- > 0) continue;
        int n = snprintf(out, size, "%.*s*%s", (int)(part - name), name, part + length);
        *index = (size_t)strtoul(part, NULL, 10);
        return n > 0 && (size_t)n < size;
    }
    return false;
}
