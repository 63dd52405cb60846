/* mesh.c - ranks as a grid: its text, coordinates, and the groups along its axes. Groups are created only from a list
 * that is the same on all ranks: creating one at its first use would be a collective call that some ranks may never
 * make. */
#include "comm/mesh.h"

#include "base/collective.h"
#include "base/config.h"
#include "base/hash.h"
#include "comm/comm.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { SETS = 1 << LK__MESH_AXES, FACTORED = LK__MESH_GROUPS - SETS };
_Static_assert((int)LK__MESH_AXES == (int)LK__AXES, "the axes of a mesh");

struct lk_mesh {
    lk_context   *context;
    lk__mesh_grid grid;
    char          text[LK__MESH_TEXT];
    lk_comm      *comm;
    /* by the axes of the mesh along which they are, then those of factored axes, in the order in which they were made;
     * NULL: not made */
    lk_comm *groups[LK__MESH_GROUPS];
    unsigned factored[FACTORED]; /* 0: none */
};

const char *lk_axis_name(lk_axis axis)
{
    for (int i = 0; i < LK__MESH_AXES; i++)
        if ((unsigned)axis == 1u << i) return lk__axis_names[i];
    return NULL;
}

/* ---- text ---- */

/* Copies what is before `end` to out, without blanks around it; what does not fit is cut off. */
static void copy_part(const char *text, const char *end, char *out, size_t size)
{
    while (text < end && *text == ' ') text++;
    while (end > text && end[-1] == ' ') end--;
    size_t length = (size_t)(end - text) < size ? (size_t)(end - text) : size - 1;
    memcpy(out, text, length);
    out[length] = 0;
}

static bool parse_extent(const char *text, int *extent)
{
    long long value = 0;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9' || (value = 10 * value + (*c - '0')) > INT_MAX) return false;
    }
    *extent = (int)value;
    return value > 0;
}

/* One "data=2". */
static lk_status parse_axis(lk_context *c, const char *part, const char *end, lk__mesh_grid *g)
{
    char        name[64], extent[64], shown[LK__SHOWN];
    const char *equals = memchr(part, '=', (size_t)(end - part));
    copy_part(part, equals ? equals : end, name, sizeof name);
    if (!name[0])
        return lk__fail(c, LK_EINVAL, "an axis of the mesh has no name; axes are written as in data=2,tensor=4");
    int index = 0;
    while (index < LK__MESH_AXES && strcmp(lk__axis_names[index], name) != 0) index++;
    if (index == LK__MESH_AXES) {
        const char *near = lk__suggest(name, lk__axis_names, LK__MESH_AXES);
        return lk__fail(c, LK_EINVAL,
                        "a mesh has no axis '%s'%s%s%s; its axes are data, shard, tensor, pipeline and expert",
                        lk__shown(name, shown), near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    }
    for (int i = 0; i < g->count; i++)
        if (g->axes[i].axis == 1u << index) return lk__fail(c, LK_EINVAL, "the mesh names the %s axis twice", name);
    if (!equals)
        return lk__fail(c, LK_EINVAL, "the mesh's %s axis has no extent: give its number of ranks, as in %s=2", name,
                        name);
    lk__mesh_axis *axis = &g->axes[g->count];
    axis->axis = 1u << index;
    copy_part(equals + 1, end, extent, sizeof extent);
    if (!parse_extent(extent, &axis->extent))
        return lk__fail(c, LK_EINVAL,
                        "the extent of the mesh's %s axis is '%s': expected the number of ranks, 1 or more, as in %s=2",
                        name, lk__shown(extent, shown), name);
    if (axis->extent > INT_MAX / g->size) return lk__fail(c, LK_EINVAL, "the mesh has too many ranks");
    g->size *= axis->extent;
    g->count++;
    return LK_OK;
}

lk_status lk__mesh_parse(lk_context *c, const char *text, lk__mesh_grid *grid)
{
    *grid = (lk__mesh_grid){.size = 1};
    for (const char *part = text;; part++) {
        const char *end = part + strcspn(part, ",");
        lk_status   status = parse_axis(c, part, end, grid);
        if (status < 0) return status;
        if (!*end) return LK_OK;
        part = end;
    }
}

const char *lk__mesh_format(const lk__mesh_grid *g, char text[LK__MESH_TEXT])
{
    int used = 0;
    text[0] = 0;
    for (int i = 0; i < g->count; i++)
        used += snprintf(text + used, (size_t)(LK__MESH_TEXT - used), "%s%s=%d", i ? "," : "",
                         lk_axis_name((lk_axis)g->axes[i].axis), g->axes[i].extent);
    return text;
}

const char *lk__mesh_list_axes(unsigned axes, char text[LK__MESH_TEXT])
{
    int used = 0;
    text[0] = 0;
    for (unsigned axis = 1, rest = axes & LK_AXES_ALL; rest; rest &= ~axis, axis <<= 1) {
        const char *before = !used ? "" : rest == axis ? " and " : ", ";
        if (rest & axis)
            used += snprintf(text + used, (size_t)(LK__MESH_TEXT - used), "%s%s", before, lk_axis_name((lk_axis)axis));
    }
    return text;
}

unsigned lk__mesh_used_axes(const lk__mesh_grid *g, unsigned axes)
{
    unsigned used = 0;
    for (int i = 0; i < g->count; i++)
        if (g->axes[i].extent > 1) used |= g->axes[i].axis & axes;
    return used;
}

/* ---- coordinates: ranks are numbered row by row, the last axis running fastest ---- */

/* So many ranks of an axis, each so far behind the one before. */
typedef struct mesh_factor {
    int extent, step;
} mesh_factor;

/* What a set of axes has of one of them: all its ranks, or those of a factor. */
static mesh_factor factor_of(const lk__mesh_axis *axis, unsigned axes)
{
    int factor = lk__axes_factor(axes);
    if (!(axis->axis & axes)) return (mesh_factor){1, axis->extent};
    if (!factor) return (mesh_factor){axis->extent, 1};
    if (axes & LK__AXES_ACROSS) return (mesh_factor){axis->extent / factor, factor};
    return (mesh_factor){factor, 1};
}

int lk__mesh_extent(const lk__mesh_grid *g, unsigned axes)
{
    int extent = 1;
    for (int i = 0; i < g->count; i++) extent *= factor_of(&g->axes[i], axes).extent;
    return extent;
}

int lk__mesh_coordinate(const lk__mesh_grid *g, unsigned axes, int rank)
{
    int coordinate = 0, unit = 1;
    for (int i = g->count - 1; i >= 0; i--) {
        mesh_factor f = factor_of(&g->axes[i], axes);
        coordinate += rank % g->axes[i].extent / f.step % f.extent * unit;
        unit *= f.extent;
        rank /= g->axes[i].extent;
    }
    return coordinate;
}

int lk__mesh_member(const lk__mesh_grid *g, unsigned axes, int rank, int coordinate)
{
    int member = 0, unit = 1;
    for (int i = g->count - 1; i >= 0; i--) {
        mesh_factor f = factor_of(&g->axes[i], axes);
        int         extent = g->axes[i].extent, at = rank % extent;
        at += (coordinate % f.extent - at / f.step % f.extent) * f.step;
        coordinate /= f.extent;
        member += at * unit;
        rank /= extent;
        unit *= extent;
    }
    return member;
}

/* ---- the mesh ---- */

const lk__mesh_grid *lk__mesh_grid_of(const lk_mesh *m) { return &m->grid; }

lk_status lk__mesh_over(lk_context *c, const lk__mesh_grid *grid, lk_comm *comm, lk_mesh **mesh)
{
    lk_mesh *m = *mesh = lk__alloc(c, LK_MEMORY_OTHER, sizeof *m);
    if (!m) return LK_ENOMEM;
    m->context = c;
    m->grid = *grid;
    m->comm = comm;
    lk__mesh_format(grid, m->text);
    return LK_OK;
}

lk_status lk_mesh_create(lk_context *c, const lk_mesh_config *given, lk_mesh **mesh)
{
    lk_mesh_config config = LK_MESH_CONFIG_INIT;
    lk__mesh_grid  grid;
    char           text[LK__MESH_TEXT];
    if (!mesh) return lk__fail(c, LK_EINVAL, "lk_mesh_create: the mesh pointer is NULL");
    *mesh = NULL;
    lk_status status = LK__CONFIG_READ(c, lk_mesh_config, given, &config);
    if (status < 0) return status;
    int world = config.comm ? lk_comm_size(config.comm) : config.world;
    int rank = config.comm ? lk_comm_rank(config.comm) : config.rank;
    if (config.axes && (status = lk__mesh_parse(c, config.axes, &grid)) < 0) return status;
    if (!config.axes) grid = lk__mesh_data(world ? world : 1, 0);
    if (world == 0) world = grid.size;
    if (world < 0 || rank < 0 || rank >= world)
        return lk__fail(c, LK_EINVAL, "rank %d is out of range in a mesh of %d ranks", rank, world);
    if (grid.size != world)
        return lk__fail(
            c, LK_EMISMATCH,
            "the mesh %s has %d rank%s, but there %s %d: the product of its extents must be the number of ranks",
            lk__mesh_format(&grid, text), grid.size, grid.size == 1 ? "" : "s", world == 1 ? "is" : "are", world);
    grid.rank = rank;
    return lk__mesh_over(c, &grid, config.comm, mesh);
}

void lk_mesh_free(lk_mesh *m)
{
    if (!m) return;
    for (int i = LK__MESH_GROUPS - 1; i >= 0; i--)
        if (m->groups[i] != m->comm) lk_comm_free(m->groups[i]);
    lk__free(m->context, LK_MEMORY_OTHER, m, sizeof *m);
}

const char *lk_mesh_text(const lk_mesh *m) { return m->text; }
int         lk_mesh_size(const lk_mesh *m) { return m->grid.size; }
int         lk_mesh_rank(const lk_mesh *m) { return m->grid.rank; }
int         lk_mesh_extent(const lk_mesh *m, unsigned axes) { return lk__mesh_extent(&m->grid, axes); }

int lk_mesh_coordinate(const lk_mesh *m, unsigned axes, int rank)
{
    return rank < 0 || rank >= m->grid.size ? -1 : lk__mesh_coordinate(&m->grid, axes, rank);
}

int lk_mesh_member(const lk_mesh *m, unsigned axes, int rank, int coordinate)
{
    if (rank < 0 || rank >= m->grid.size || coordinate < 0 || coordinate >= lk_mesh_extent(m, axes)) return -1;
    return lk__mesh_member(&m->grid, axes, rank, coordinate);
}

/* ---- groups ---- */

/* The axes among them that matter: sets that differ in axes of extent 1 have the same group. A factor of 1, or of all
 * ranks, is none. */
static unsigned effective_axes(const lk_mesh *m, unsigned axes)
{
    unsigned used = lk__mesh_used_axes(&m->grid, axes), factor = axes & ~(unsigned)LK__AXES_PLAIN;
    int      extent = lk__mesh_extent(&m->grid, axes);
    if (!factor || extent == lk__mesh_extent(&m->grid, used)) return used;
    return extent == 1 ? 0 : used | factor;
}

/* Where the group along effective axes is; -1: it is factored, and no such group was made. */
static int find_slot(const lk_mesh *m, unsigned axes)
{
    if (!lk__axes_factor(axes)) return (int)axes;
    for (int i = 0; i < FACTORED; i++)
        if (m->factored[i] == axes) return SETS + i;
    return -1;
}

static lk_status make_slot(lk_mesh *m, unsigned axes, int *slot)
{
    int free = 0;
    if ((*slot = find_slot(m, axes)) >= 0) return LK_OK;
    while (free < FACTORED && m->factored[free]) free++;
    if (free == FACTORED)
        return lk__fail(m->context, LK_EUNSUPPORTED, "the mesh %s has more than %d groups along combined axes", m->text,
                        FACTORED);
    m->factored[free] = axes;
    *slot = SETS + free;
    return LK_OK;
}

/* A split gives each rank the group that it asks for, also where others mean another one: so meshes and lists are
 * compared before. */
static lk_status compare_lists(lk_site site, lk_mesh *m, const unsigned *axes, int count)
{
    uint64_t  mine = lk__hash64(axes, (size_t)count * sizeof *axes, lk__hash64(m->text, strlen(m->text), 1));
    size_t    bytes = (size_t)m->grid.size * sizeof mine;
    uint64_t *all = lk__alloc(m->context, LK_MEMORY_OTHER, bytes);
    if (!all) return LK_ENOMEM;
    lk_status status = lk_comm_all_gather_at(site, m->comm, &mine, all, 1, LK_I64, NULL);
    for (int i = 0; i < m->grid.size && status >= 0; i++)
        if (all[i] != all[0])
            status = lk__fail(m->context, LK_EMISMATCH,
                              "%s:%d: rank %d does not have the same mesh as rank 0, or creates different groups; on "
                              "this rank the mesh is %s",
                              site.file ? site.file : "?", site.line, i, m->text);
    lk__free(m->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

/* Messages about the group's ranks name their coordinates, where there are several axes. */
static void name_members(const lk_mesh *m, lk_comm *group, unsigned along)
{
    unsigned axes = effective_axes(m, LK_AXES_ALL);
    bool     several = (axes & (axes - 1)) != 0 || lk__axes_factor(along);
    group->grid = several ? m->grid : (lk__mesh_grid){.size = 0}; /* not those of a mesh before this one */
    group->along = several ? along : 0;
}

const char *lk__comm_member_text(const lk_comm *c, int rank, char text[LK__MEMBER_TEXT])
{
    bool many = c->grid.size > 0 && c->along;
    int  in_mesh = many ? lk__mesh_member(&c->grid, c->along, c->grid.rank, rank) : rank;
    int  used = snprintf(text, LK__MEMBER_TEXT, "rank %d", in_mesh), named = 0;
    for (int i = 0; i < c->grid.count && c->grid.size; i++)
        if (c->grid.axes[i].extent > 1)
            used += snprintf(text + used, (size_t)(LK__MEMBER_TEXT - used), "%s%s %d", named++ ? " " : ", ",
                             lk_axis_name((lk_axis)c->grid.axes[i].axis),
                             lk__mesh_coordinate(&c->grid, c->grid.axes[i].axis, in_mesh));
    return text;
}

lk_status lk_mesh_create_groups_at(lk_site site, lk_mesh *m, const unsigned *axes, int count)
{
    lk_status status = LK_OK;
    bool      compared = false;
    if (!m->comm)
        return lk__fail(m->context, LK_EINVAL, "the mesh %s has no communicator, which groups require", m->text);
    for (int i = 0; i < count && status >= 0; i++) {
        unsigned set = effective_axes(m, axes[i]);
        int      slot;
        if ((status = make_slot(m, set, &slot)) < 0) return status;
        lk_comm **group = &m->groups[slot];
        if (*group) continue;
        if (lk__mesh_extent(&m->grid, set) == m->grid.size) {
            *group = m->comm;
            name_members(m, *group, 0);
            continue;
        }
        if (!compared && (status = compare_lists(site, m, axes, count)) < 0) return status;
        compared = true;
        /* the same for all members, and no other group's */
        int first = lk__mesh_member(&m->grid, set, m->grid.rank, 0);
        status = lk_comm_split_at(site, m->comm, first, lk__mesh_coordinate(&m->grid, set, m->grid.rank), group);
        if (status >= 0) name_members(m, *group, set);
    }
    name_members(m, m->comm, 0);
    return status;
}

lk_comm *lk__mesh_find_group(const lk_mesh *m, unsigned axes)
{
    int slot = find_slot(m, effective_axes(m, axes));
    return slot < 0 ? NULL : m->groups[slot];
}

lk_comm *lk__mesh_group_at(const lk_mesh *m, int index) { return m->groups[index]; }

lk_status lk_mesh_group(const lk_mesh *m, unsigned axes, lk_comm **group)
{
    char text[LK__MESH_TEXT];
    if ((*group = lk__mesh_find_group(m, axes))) return LK_OK;
    return lk__fail(m->context, LK_EINVAL,
                    "the mesh %s has no group along %s: create it with lk_mesh_create_groups, on all ranks", m->text,
                    lk__axes_text(axes, text, sizeof text));
}
