/* mesh.h - arranges the ranks in a grid with named axes, and creates groups along these axes.
 *
 * "data=2,tensor=4" has 8 ranks, which are numbered along the last axis first: ranks 0 to 3 are one group along tensor,
 * and ranks 0 and 4 are one along data. Plans take a mesh (lk_plan_config.mesh); a plan that is given only a number of
 * ranks has one axis, data. */
#ifndef LOCKSTEP_MESH_H
#define LOCKSTEP_MESH_H

#include <lockstep/comm.h>

LK_BEGIN_DECLS

typedef struct lk_mesh lk_mesh; /* use from one thread */

/* An axis of a mesh; combine axes with | to form a set. The comments say what each rank along the axis is assigned. */
typedef enum lk_axis {
    LK_AXIS_DATA = 1,     /* "data": a part of the batch */
    LK_AXIS_SHARD = 2,    /* "shard": a part of the batch, and a part of the state */
    LK_AXIS_TENSOR = 4,   /* "tensor": a part of every large operation */
    LK_AXIS_PIPELINE = 8, /* "pipeline": some of the layers */
    LK_AXIS_EXPERT = 16   /* "expert": a part of the batch, as along data, and some of the experts */
} lk_axis;
#define LK_AXES_ALL 31u
/* The axes along which ranks have different parts of every batch; lk_mesh_coordinate along them is the index of a
 * rank's part. */
#define LK_AXES_BATCH 19u
LK_API const char *lk_axis_name(lk_axis axis); /* "data"; NULL: there is no such axis */

typedef struct lk_mesh_config {
    size_t      size LK_ZERO; /* sizeof this struct; set by LK_MESH_CONFIG_INIT */
    const char *axes LK_ZERO; /* "data=2,tensor=4"; NULL: one axis, data, over all ranks */
    /* the group whose ranks form the mesh; must outlive it. NULL: no group, to plan for ranks that do not exist here */
    lk_comm *comm LK_ZERO;
    int      world LK_ZERO, rank LK_ZERO; /* used without comm; world 0: the product of the extents */
} lk_mesh_config;
#define LK_MESH_CONFIG_INIT {.size = sizeof(lk_mesh_config)}

/* Not a collective. Fails if the product of the extents is not the number of ranks. config may be NULL: a mesh of one
 * rank. */
LK_API lk_status lk_mesh_create(lk_context *context, const lk_mesh_config *config, lk_mesh **mesh);
LK_API void      lk_mesh_free(lk_mesh *mesh); /* frees its groups too, but not comm; NULL is fine */

LK_API const char *lk_mesh_text(const lk_mesh *mesh); /* "data=2,tensor=4" */
LK_API int         lk_mesh_size(const lk_mesh *mesh); /* number of ranks */
LK_API int         lk_mesh_rank(const lk_mesh *mesh); /* this rank */
/* The number of ranks in one group along an axis, or a set of axes; 1 for axes that the mesh does not have. */
LK_API int lk_mesh_extent(const lk_mesh *mesh, unsigned axes);
/* The index of `rank` in its group along these axes, from 0; for a single axis, its coordinate. -1: there is no such
 * rank. */
LK_API int lk_mesh_coordinate(const lk_mesh *mesh, unsigned axes, int rank);
/* The rank with index `coordinate` in the group of `rank` along these axes; its other coordinates are those of `rank`.
 * -1: there is none. */
LK_API int lk_mesh_member(const lk_mesh *mesh, unsigned axes, int rank, int coordinate);

/* Creates the groups along these sets of axes, in this order. Collective over comm: all ranks must pass the same list,
 * and they compare it. Sets that already have a group are skipped; the group of a set that covers all ranks is comm
 * itself. */
LK_API lk_status lk_mesh_create_groups_at(lk_site site, lk_mesh *mesh, const unsigned *axes, int count);
#define lk_mesh_create_groups(...) lk_mesh_create_groups_at(LK_HERE, __VA_ARGS__)
/* This rank's group along these axes, created by lk_mesh_create_groups; this rank's number in it is its coordinate.
 * Owned by the mesh. Never communicates: it is an error if the group was not created. */
LK_API lk_status lk_mesh_group(const lk_mesh *mesh, unsigned axes, lk_comm **group);

LK_END_DECLS
#endif
