/* slice.c - determines which ranks share one copy of the state, where each of them sums and updates a slice of every
 * bucket (state_slices.c), and on which hosts that is possible. */
#include "plan/plan.h"

#include "base/tree.h"

#include <stdio.h>

/* ---- copies ---- */

static int ranks_of_host(const lk_plan *p)
{
    int each = lk__plan_ranks(p) / p->parallel.hosts;
    return each > 0 ? each : 1;
}

/* Ranks that have the same coordinates along them have the same slices of all states but experts', and compute the same
 * values of them. One copy has the parts of all experts that are on its host. */
static unsigned copy_axes(const lk_plan *p) { return (p->split_axes | p->placed_axes) & ~p->expert_axes; }

int lk__plan_copies(const lk_plan *p) { return p->parallel.hosts * lk__mesh_extent(&p->mesh, copy_axes(p)); }

int lk__plan_copy(const lk_plan *p, int rank)
{
    return rank / ranks_of_host(p) * lk__mesh_extent(&p->mesh, copy_axes(p)) +
           lk__mesh_coordinate(&p->mesh, copy_axes(p), rank);
}

/* How many ranks of the host, before `end`, have the copy that `rank` has, and the same part of it along `apart`. */
static int count_sharers(const lk_plan *p, unsigned apart, int rank, int end)
{
    int copy = lk__plan_copy(p, rank), part = lk__mesh_coordinate(&p->mesh, apart, rank), count = 0;
    for (int i = rank - rank % ranks_of_host(p); i < end; i++)
        count += lk__plan_copy(p, i) == copy && lk__mesh_coordinate(&p->mesh, apart, i) == part;
    return count;
}

int lk__plan_sharers(const lk_plan *p, int rank) { return lk__plan_sharers_apart(p, 0, rank); }

int lk__plan_sharer(const lk_plan *p, int rank) { return lk__plan_sharer_apart(p, 0, rank); }

int lk__plan_sharers_apart(const lk_plan *p, unsigned apart, int rank)
{
    int each = ranks_of_host(p);
    return copy_axes(p) | apart ? count_sharers(p, apart, rank, rank - rank % each + each) : each;
}

int lk__plan_sharer_apart(const lk_plan *p, unsigned apart, int rank)
{
    return copy_axes(p) | apart ? count_sharers(p, apart, rank, rank) : rank % ranks_of_host(p);
}

/* ---- hosts ---- */

/* Whether ranks that have different parts of values are on one host, where each part has as many sharers. */
static bool places_on_hosts(const lk__mesh_grid *mesh, int hosts)
{
    int each = mesh->size / hosts, extent = lk__mesh_extent(mesh, LK__PLAN_PLACED_AXES);
    for (int rank = 0; rank < mesh->size; rank++)
        for (int i = 0; i < extent; i++)
            if (lk__mesh_member(mesh, LK__PLAN_PLACED_AXES, rank, i) / each != rank / each) return false;
    return true;
}

/* The sum of each host's ranks, or leaves, then that of the hosts, must be the sum in the canonical order. */
bool lk__plan_hosts_share(const lk__mesh_grid *mesh, int leaves, int hosts, char *why, size_t bytes)
{
    if (lk__mesh_used_axes(mesh, LK__PLAN_EXPERT_AXES) && (leaves || hosts > 1)) {
        snprintf(why, bytes, "have different experts %s", leaves ? "and train with leaves" : "on several hosts");
        return false;
    }
    if (lk__mesh_used_axes(mesh, LK__PLAN_STAGE_AXES) && hosts > 1) {
        snprintf(why, bytes, "have different stages of the model on several hosts");
        return false;
    }
    if (hosts <= 1) return true;
    int  parts = lk__mesh_extent(mesh, LK__PLAN_BATCH_AXES), each = parts / hosts;
    char axes[LK__MESH_TEXT];
    if (mesh->size % hosts == 0 && !places_on_hosts(mesh, hosts))
        snprintf(why, bytes, "along %s are on several hosts",
                 lk__mesh_list_axes(lk__mesh_used_axes(mesh, LK__PLAN_PLACED_AXES), axes));
    else if (parts % hosts != 0)
        snprintf(why, bytes, "are on %d hosts with different numbers of ranks", hosts);
    else if (each == 1)
        snprintf(why, bytes, "are each on a different host");
    else if (leaves && !lk__tree_nests(leaves, hosts))
        snprintf(why, bytes,
                 "on a host do not hold a complete subtree of the %d leaves, in whose order gradients are added",
                 leaves);
    else if (!leaves && !lk__tree_nests(parts, hosts))
        snprintf(why, bytes, "number %d on each host, but sums keep their order only if that is a power of two", each);
    else
        return true;
    return false;
}
