/* state_mode.c - where the ranks of a trainer have their state: once on every host, where they compute in its memory and the order of sums
 * allows it; else each its own. */
#include "comm/hosts.h"
#include "train/trainer.h"

#include <stdio.h>

static int world_of(const lk_trainer_config *config)
{
    return config->comm ? lk_comm_size(config->comm) : config->plan_world > 0 ? config->plan_world : 1;
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
    const char *reason;
    int         hosts = lk__trainer_hosts(config, &reason);
    if (!lk__device_is_host(lk__context_device(c)))
        snprintf(why, bytes, "compute on %s, not in the host's memory", lk_context_device(c));
    else if (hosts == 0)
        snprintf(why, bytes, "%s", reason);
    else
        return lk__plan_hosts_share(world_of(config), config->leaves, hosts, why, bytes);
    return false;
}

lk_state_mode lk__trainer_state_mode(lk_context *c, const lk_trainer_config *config, char *why, size_t bytes)
{
    char          reason[256] = "";
    bool          can = can_share(c, config, reason, sizeof reason);
    lk_state_mode mode = config->state != LK_STATE_AUTO ? config->state : can ? LK_STATE_SHARED : LK_STATE_REPLICATED;
    int           world = world_of(config), hosts = lk__trainer_hosts(config, NULL);
    if (world == 1) mode = config->state == LK_STATE_AUTO ? LK_STATE_REPLICATED : config->state;
    if (!why) return mode;
    if (world == 1)
        snprintf(why, bytes, "of one rank");
    else if (mode == LK_STATE_REPLICATED && can)
        snprintf(why, bytes, "replicated, as requested");
    else if (mode == LK_STATE_REPLICATED)
        snprintf(why, bytes, "replicated: the ranks %s", reason);
    else if (hosts > 1)
        snprintf(why, bytes, "shared by the %d ranks of each of %d hosts", world / hosts, hosts);
    else
        snprintf(why, bytes, "shared by %d ranks", world);
    return mode;
}
