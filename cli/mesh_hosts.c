/* mesh_hosts.c - which axes of a mesh cross hosts. Axes are mapped to hosts from the right: the last joins
 * neighbours. */
#include "mesh_hosts.h"

#include "command.h"
#include "host_memory.h"
#include <string.h>

enum { MOST_TRAFFIC = 32 };

/* Whether some group along the axis has ranks of two hosts. */
static bool crosses_hosts(const lk_mesh *mesh, unsigned axis, int per_host)
{
    int extent = lk_mesh_extent(mesh, axis);
    for (int rank = 0; rank < lk_mesh_size(mesh); rank++)
        if (lk_mesh_member(mesh, axis, rank, extent - 1) / per_host != lk_mesh_member(mesh, axis, rank, 0) / per_host)
            return true;
    return false;
}

/* Bytes that a rank sends along an axis, alone or with others. */
static double axis_bytes(const lk_traffic *all, int count, unsigned axis)
{
    double bytes = 0;
    for (int i = 0; i < count; i++)
        if (all[i].axes & axis) bytes += all[i].bytes;
    return bytes;
}

/* The axes of the mesh with one of them last. */
static void move_last(const lk_mesh *mesh, unsigned last, char *out, size_t size)
{
    size_t      used = 0;
    const char *text = lk_mesh_text(mesh), *name = lk_axis_name((lk_axis)last);
    for (; *text; text += *text == ',') {
        size_t length = strcspn(text, ",");
        bool   moved = strncmp(text, name, strlen(name)) == 0 && text[strlen(name)] == '=';
        if (!moved && used < size) used += (size_t)snprintf(out + used, size - used, "%.*s,", (int)length, text);
        text += length;
    }
    if (used < size) snprintf(out + used, size - used, "%s=%d", name, lk_mesh_extent(mesh, last));
}

void mesh_hosts_note(const setup *s, const char *name, const lk_plan *plan, int per_host)
{
    lk_traffic all[MOST_TRAFFIC];
    unsigned   most = 0;
    double     bytes = 0;
    bool       other = false; /* an axis with less traffic stays within hosts */
    if (!s->mesh || per_host < 1 || per_host >= lk_mesh_size(s->mesh)) return;
    int count = lk_plan_traffic(plan, all, MOST_TRAFFIC);
    if (count > MOST_TRAFFIC) count = MOST_TRAFFIC;
    for (unsigned axis = 1; axis <= LK_AXES_ALL; axis <<= 1)
        if (lk_mesh_extent(s->mesh, axis) > 1 && axis_bytes(all, count, axis) > bytes)
            bytes = axis_bytes(all, count, axis), most = axis;
    bool alone = most && lk_mesh_extent(s->mesh, most) == lk_mesh_size(s->mesh) && most != LK_AXIS_TENSOR;
    if (!most || alone || !crosses_hosts(s->mesh, most, per_host)) return;
    for (unsigned axis = 1; axis <= LK_AXES_ALL; axis <<= 1)
        other |= axis != most && lk_mesh_extent(s->mesh, axis) > 1 && !crosses_hosts(s->mesh, axis, per_host);
    int  extent = lk_mesh_extent(s->mesh, most);
    char size[SIZE_TEXT], better[128], advice[192] = "limit the size of this axis to the number of ranks per host";
    move_last(s->mesh, most, better, sizeof better);
    if (extent < per_host && per_host % extent != 0)
        snprintf(advice, sizeof advice, "choose a size for this axis that divides the number of ranks per host");
    else if (other && extent <= per_host)
        snprintf(advice, sizeof advice, "--mesh %s keeps it within each host", better);
    print_note(name,
               "warning: the %s axis, along which each rank sends the most data (%s per step), crosses host "
               "boundaries, with %d rank%s per host: %s",
               lk_axis_name((lk_axis)most), size_text((size_t)bytes, size), per_host, per_host == 1 ? "" : "s", advice);
}

void mesh_hosts_note_joined(const setup *s, const char *name)
{
    lk_comm  *comm = s->config.comm;
    lk_graph *graph = NULL;
    lk_plan  *plan = NULL;
    size_t    memory[LK_MEMORY_COUNT];
    if (!s->mesh || !comm || lk_comm_rank(comm) != 0 || lk_comm_local_size(comm) == lk_comm_size(comm)) return;
    if (lk_trainer_plan(s->context, &s->config, &graph, &plan, memory) >= 0)
        mesh_hosts_note(s, name, plan, lk_comm_local_size(comm));
    lk_plan_free(plan);
    lk_graph_free(graph);
}
