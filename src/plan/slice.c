/* slice.c - which ranks hold one copy of the state together, each of them summing and updating a slice of every bucket
 * (state_slices.c), and on which hosts they can. */
#include "plan/plan.h"

#include "base/tree.h"

#include <stdio.h>

/* ---- copies ---- */

static int ranks_of_host(const lk_plan *p)
{
    int each = lk__plan_ranks(p) / p->parallel.hosts;
    return each > 0 ? each : 1;
}

int lk__plan_copies(const lk_plan *p) { return p->parallel.hosts * lk__mesh_extent(&p->mesh, p->split_axes); }

int lk__plan_copy(const lk_plan *p, int rank)
{
    return rank / ranks_of_host(p) * lk__mesh_extent(&p->mesh, p->split_axes) +
           lk__mesh_coordinate(&p->mesh, p->split_axes, rank);
}

/* How many ranks of the host, before `end`, have the copy that `rank` has. */
static int count_sharers(const lk_plan *p, int rank, int end)
{
    int copy = lk__plan_copy(p, rank), count = 0;
    for (int i = rank - rank % ranks_of_host(p); i < end; i++) count += lk__plan_copy(p, i) == copy;
    return count;
}

int lk__plan_sharers(const lk_plan *p, int rank)
{
    int each = ranks_of_host(p);
    return p->split_axes ? count_sharers(p, rank, rank - rank % each + each) : each;
}

int lk__plan_sharer(const lk_plan *p, int rank)
{
    return p->split_axes ? count_sharers(p, rank, rank) : rank % ranks_of_host(p);
}

/* ---- hosts ---- */

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
