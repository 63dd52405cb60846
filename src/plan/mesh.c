/* plan/mesh.c - the mesh of a plan: the mesh of its config, or one axis from lk_parallel's world and rank, which are
 * read only here. */
#include "plan/plan.h"

static lk_status check_short_form(lk_context *c, const lk_parallel *parallel)
{
    if (parallel->world < 0 || parallel->rank < 0 || (parallel->rank > 0 && parallel->rank >= parallel->world))
        return lk__fail(c, LK_EINVAL, "rank %d is out of range in a world of %d", parallel->rank, parallel->world);
    return LK_OK;
}

static lk__mesh_grid short_form(const lk_parallel *parallel)
{
    return lk__mesh_data(parallel->world > 1 ? parallel->world : 1, parallel->rank);
}

lk_status lk__plan_mesh(lk_context *c, const lk_plan_config *config, lk__mesh_grid *mesh)
{
    const lk_parallel *parallel = &config->parallel;
    lk_status          status = check_short_form(c, parallel);
    if (status < 0) return status;
    *mesh = config->mesh ? *lk__mesh_grid_of(config->mesh) : short_form(parallel);
    if (config->mesh && parallel->world && (parallel->world != mesh->size || parallel->rank != mesh->rank))
        return lk__fail(
            c, LK_EMISMATCH,
            "the plan's mesh is for rank %d of %d, but its lk_parallel is for rank %d of %d: set only one of them",
            mesh->rank, mesh->size, parallel->rank, parallel->world);
    return LK_OK;
}

int64_t lk_mesh_capacity(const lk_mesh *mesh, const lk_parallel *parallel, int64_t batch)
{
    lk__mesh_grid grid = mesh ? *lk__mesh_grid_of(mesh) : short_form(parallel);
    lk__split_job job = {lk__mesh_extent(&grid, LK__PLAN_BATCH_AXES), 0, parallel->leaves,
                         parallel->micro_batches > 1 ? parallel->micro_batches : 1};
    return lk__split_capacity(&job, batch);
}

int64_t lk_parallel_capacity(const lk_parallel *parallel, int64_t batch)
{
    return lk_mesh_capacity(NULL, parallel, batch);
}
