/* slice.c - on which hosts ranks can hold their state together, each of them summing and updating a slice of every bucket (state_slices.c). */
#include "plan/plan.h"

#include "base/tree.h"

#include <stdio.h>

/* The sum of each host's ranks, or leaves, then that of the hosts, must be the sum in the canonical order. */
bool lk__plan_hosts_share(int parts, int leaves, int hosts, char *why, size_t bytes)
{
    if (hosts <= 1) return true;
    int each = parts / hosts;
    if (parts % hosts != 0)
        snprintf(why, bytes, "are on %d hosts, with different numbers of ranks", hosts);
    else if (each == 1)
        snprintf(why, bytes, "are each alone on their host");
    else if (leaves && !lk__tree_nests(leaves, hosts))
        snprintf(why, bytes,
                 "of a host do not hold a whole subtree of the %d leaves, in whose order gradients are added", leaves);
    else if (!leaves && !lk__tree_nests(parts, hosts))
        snprintf(why, bytes, "number %d on each host, and sums keep their order only with a power of two", each);
    else
        return true;
    return false;
}
