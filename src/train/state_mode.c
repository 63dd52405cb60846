/* state_mode.c - decides where the ranks of a trainer keep their state: one copy per host, if they compute in the
 * host's memory and the order of sums allows it; otherwise one copy per rank. */
#include "comm/hosts.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

lk__mesh_grid lk__trainer_mesh(const lk_trainer_config *config)
{
    if (config->mesh) return *lk__mesh_grid_of(config->mesh);
    if (config->comm) return lk__mesh_data(lk_comm_size(config->comm), lk_comm_rank(config->comm));
    return lk__mesh_data(config->plan_world > 0 ? config->plan_world : 1, 0);
}

lk_status lk__trainer_check_mesh(lk_context *c, const lk_trainer_config *config)
{
    const lk_mesh *m = config->mesh;
    if (m && config->comm &&
        (lk_mesh_size(m) != lk_comm_size(config->comm) || lk_mesh_rank(m) != lk_comm_rank(config->comm)))
        return lk__fail(c, LK_EMISMATCH, "the mesh %s is for rank %d of %d, but this is rank %d of %d", lk_mesh_text(m),
                        lk_mesh_rank(m), lk_mesh_size(m), lk_comm_rank(config->comm), lk_comm_size(config->comm));
    if (m && !config->comm && config->plan_world > 0 && config->plan_world != lk_mesh_size(m))
        return lk__fail(c, LK_EMISMATCH, "the mesh %s has %d ranks, but plan_world is %d", lk_mesh_text(m),
                        lk_mesh_size(m), config->plan_world);
    return LK_OK;
}

lk__split_job lk__trainer_split(const lk_trainer_config *config)
{
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    return (lk__split_job){lk__mesh_extent(&mesh, LK__PLAN_BATCH_AXES),
                           lk__mesh_coordinate(&mesh, LK__PLAN_BATCH_AXES, mesh.rank), config->leaves,
                           config->accumulate > 1 ? config->accumulate : 1};
}

int lk__trainer_hosts(const lk_trainer_config *config, const char **why)
{
    if (why) *why = "";
    if (!config->comm) return config->plan_hosts > 0 ? config->plan_hosts : 1;
    return lk__comm_hosts(config->comm, why);
}

/* Whether they can share it. If not, why continues "the ranks". */
static bool can_share(lk_context *c, const lk_trainer_config *config, char *why, size_t bytes)
{
    const char   *reason;
    int           hosts = lk__trainer_hosts(config, &reason);
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    if (!lk__device_is_host(lk__context_device(c)))
        snprintf(why, bytes, "compute on %s, not in host memory", lk_context_device(c));
    else if (hosts == 0)
        snprintf(why, bytes, "%s", reason);
    else
        return lk__plan_hosts_share(&mesh, config->leaves, hosts, why, bytes);
    return false;
}

/* Whether ranks along an axis are on several hosts, with so many ranks on each. */
static bool crosses_hosts(const lk__mesh_grid *mesh, unsigned axis, int each)
{
    for (int rank = 0; rank < mesh->size; rank++)
        if (lk__mesh_member(mesh, axis, rank, 0) / each != rank / each) return true;
    return false;
}

/* Along shard: then the state is to be divided over these, too, of which each would have all of it if it were
 * shared. */
static bool shards_hosts(const lk__mesh_grid *mesh, int hosts)
{
    return crosses_hosts(mesh, LK_AXIS_SHARD, hosts > 0 && mesh->size % hosts == 0 ? mesh->size / hosts : mesh->size);
}

/* Of hosts with different numbers of ranks, or one each, lk_comm_hosts knows nothing. */
int lk__trainer_pieces(const lk_trainer_config *config)
{
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    int           hosts = lk__trainer_hosts(config, NULL);
    bool          alike = hosts > 0 && mesh.size % hosts == 0;
    if (config->pieces) return config->pieces;
    if (config->comm && lk_comm_local_size(config->comm) == lk_comm_size(config->comm)) return 1;
    return crosses_hosts(&mesh, LK__PLAN_PLACED_AXES, alike ? mesh.size / hosts : 1) ? LK_PIECES_ESTIMATED : 1;
}

/* Ranks of a host that gather parameters once; 0: each does for itself. */
static int count_gatherers(lk_context *c, const lk_trainer_config *config)
{
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    unsigned      axes = LK_AXIS_SHARD | lk__mesh_used_axes(&mesh, LK__PLAN_EXPERT_AXES);
    if ((config->shard_stage && config->shard_stage < 3) || !lk__device_is_host(lk__context_device(c))) return 0;
    return lk__plan_find_host(&mesh, axes, lk__trainer_hosts(config, NULL)).sharers;
}

/* "split over 2 ranks along tensor and 4 along shard (stage 3), gathered once for 2 ranks on a host" */
static void describe_split(lk_context *c, const lk_trainer_config *config, unsigned placed, int shards, char *why,
                           size_t bytes)
{
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    char          along_placed[LK__MESH_TEXT + 32] = "", along_shard[64] = "", axes[LK__MESH_TEXT], once[64] = "";
    int           gatherers = shards > 1 ? count_gatherers(c, config) : 0;
    if (placed)
        snprintf(along_placed, sizeof along_placed, "%d ranks along %s", lk__mesh_extent(&mesh, placed),
                 lk__mesh_list_axes(placed, axes));
    if (shards > 1)
        snprintf(along_shard, sizeof along_shard, "%d %salong shard (stage %d)", shards, placed ? "" : "ranks ",
                 config->shard_stage ? config->shard_stage : 3);
    if (gatherers > 1) snprintf(once, sizeof once, ", gathered once for %d ranks on a host", gatherers);
    snprintf(why, bytes, "split over %s%s%s%s", along_placed, placed && shards > 1 ? " and " : "", along_shard, once);
}

/* "split over 2 ranks along tensor, each part shared by 4 ranks" */
static void describe_sharing(int world, int hosts, bool parts, char *why, size_t bytes)
{
    size_t used = strlen(why);
    if (parts) used += (size_t)snprintf(why + used, bytes - used, ", each part ");
    if (hosts > 1)
        snprintf(why + used, bytes - used, "shared by %s%d ranks of each of %d hosts", parts ? "" : "the ",
                 world / hosts, hosts);
    else
        snprintf(why + used, bytes - used, "shared by %d ranks", world);
}

lk_state_mode lk__trainer_state_mode(lk_context *c, const lk_trainer_config *config, char *why, size_t bytes)
{
    char          reason[256] = "";
    bool          can = can_share(c, config, reason, sizeof reason);
    int           world = lk__trainer_split(config).world, hosts = lk__trainer_hosts(config, NULL);
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    bool          shares_if_free = can && !shards_hosts(&mesh, hosts);
    lk_state_mode mode = config->state != LK_STATE_AUTO ? config->state
                         : shares_if_free               ? LK_STATE_SHARED
                                                        : LK_STATE_REPLICATED;
    int           shards = lk__mesh_extent(&mesh, LK_AXIS_SHARD);
    if (world == 1) mode = config->state == LK_STATE_AUTO ? LK_STATE_REPLICATED : config->state;
    bool     shares = mode == LK_STATE_SHARED && world > 1;
    unsigned placed =
        lk__mesh_used_axes(&mesh, LK__PLAN_PLACED_AXES | LK__PLAN_STAGE_AXES | (shares ? 0 : LK__PLAN_EXPERT_AXES));
    if (!why) return mode;
    why[0] = '\0';
    if (mesh.size == 1)
        snprintf(why, bytes, "of one rank");
    else if (placed || (mode == LK_STATE_REPLICATED && shards > 1))
        describe_split(c, config, placed, shares ? 1 : shards, why, bytes);
    else if (mode == LK_STATE_REPLICATED && can)
        snprintf(why, bytes, "replicated, as requested");
    else if (mode == LK_STATE_REPLICATED)
        snprintf(why, bytes, "replicated: the ranks %s", reason);
    if (mesh.size > 1 && shares) describe_sharing(world, hosts, placed != 0, why, bytes);
    int experts = lk__mesh_extent(&mesh, LK__PLAN_EXPERT_AXES);
    if (shares && experts > 1)
        snprintf(why + strlen(why), bytes - strlen(why), ", and the experts split over %d ranks along expert", experts);
    return mode;
}
