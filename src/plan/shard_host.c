/* shard_host.c - which ranks gather parameters once for all of them (plan/shard.h, lk__plan_host). */
#include "plan/plan.h"

static int host_of(const lk__mesh_grid *mesh, int hosts, int rank) { return rank / (mesh->size / hosts); }

/* How many ranks of this rank's group are on its host, where those of every host follow each other and are as many;
 * else 0. */
static int count_neighbours(const lk__mesh_grid *mesh, unsigned axes, int hosts, int rank)
{
    int extent = lk__mesh_extent(mesh, axes), each = 1;
    while (each < extent && host_of(mesh, hosts, lk__mesh_member(mesh, axes, rank, each)) ==
                                host_of(mesh, hosts, lk__mesh_member(mesh, axes, rank, 0)))
        each++;
    for (int i = each; i < extent; i++) {
        bool next = host_of(mesh, hosts, lk__mesh_member(mesh, axes, rank, i)) !=
                    host_of(mesh, hosts, lk__mesh_member(mesh, axes, rank, i - 1));
        if (next != (i % each == 0)) return 0;
    }
    return extent % each == 0 ? each : 0;
}

lk__plan_host lk__plan_find_host(const lk__mesh_grid *mesh, unsigned axes, int hosts)
{
    int each = 0;
    if (hosts < 1 || mesh->size % hosts != 0) return (lk__plan_host){0};
    for (int rank = 0; rank < mesh->size; rank++) { /* all groups, so that all ranks decide the same */
        if (lk__mesh_coordinate(mesh, axes, rank) != 0) continue;
        int own = count_neighbours(mesh, axes, hosts, rank);
        if (own < 2 || (each && own != each)) return (lk__plan_host){0};
        each = own;
    }
    return (lk__plan_host){.sharers = each, .hosts = lk__mesh_extent(mesh, axes) / each};
}

/* Experts of which this rank has some are those of other groups. */
bool lk__unit_on_host(const lk_plan *p, const lk__plan_unit *u)
{
    return p->host.sharers > 1 && u->axes == lk__plan_shard_axes(p);
}

size_t lk__plan_host_share(const lk_plan *p)
{
    size_t sharers = (size_t)p->host.sharers;
    return sharers ? (p->host.bytes + sharers - 1) / sharers : 0;
}
