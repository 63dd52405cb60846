/* comm/mesh.h - a mesh without its groups: axes, extents and coordinates, as a plan keeps them; and groups over it. */
#ifndef LK__MESH_H
#define LK__MESH_H

#include "base/axes.h"
#include "base/base.h"

#include <lockstep/mesh.h>

/* Groups: one for each set of axes, and 8 of factored axes (base/axes.h). */
enum { LK__MESH_AXES = 5, LK__MESH_TEXT = 128, LK__MESH_GROUPS = (1 << LK__MESH_AXES) + 8 };

typedef struct lk__mesh_axis {
    unsigned axis;
    int      extent;
} lk__mesh_axis;

typedef struct lk__mesh_grid {
    lk__mesh_axis axes[LK__MESH_AXES]; /* the last joins neighbours */
    int           count;
    int           size, rank;
} lk__mesh_grid;

/* One axis, data. */
static inline lk__mesh_grid lk__mesh_data(int size, int rank)
{
    return (lk__mesh_grid){.axes = {{LK_AXIS_DATA, size}}, .count = 1, .size = size, .rank = rank};
}

/* "data=2,tensor=4" → the grid, of rank 0. */
lk_status   lk__mesh_parse(lk_context *context, const char *text, lk__mesh_grid *grid);
const char *lk__mesh_format(const lk__mesh_grid *grid, char text[LK__MESH_TEXT]);

/* "data, shard and tensor" */
const char *lk__mesh_list_axes(unsigned axes, char text[LK__MESH_TEXT]);
/* Of these axes, the ones along which there are several ranks. */
unsigned lk__mesh_used_axes(const lk__mesh_grid *grid, unsigned axes);

/* Like the public calls with these names; rank and coordinate are valid, and the set may be a factored axis. */
int lk__mesh_extent(const lk__mesh_grid *grid, unsigned axes);
int lk__mesh_coordinate(const lk__mesh_grid *grid, unsigned axes, int rank);
int lk__mesh_member(const lk__mesh_grid *grid, unsigned axes, int rank, int coordinate);

/* A mesh with the ranks of comm, which agrees with the grid in size and rank; comm NULL: without groups. */
lk_status            lk__mesh_over(lk_context *context, const lk__mesh_grid *grid, lk_comm *comm, lk_mesh **mesh);
const lk__mesh_grid *lk__mesh_grid_of(const lk_mesh *mesh);
/* Like lk_mesh_group; NULL: there is none, which is not a failure. */
lk_comm *lk__mesh_find_group(const lk_mesh *mesh, unsigned axes);
lk_comm *lk__mesh_group_at(const lk_mesh *mesh, int index); /* of LK__MESH_GROUPS; NULL: not created */

#endif
