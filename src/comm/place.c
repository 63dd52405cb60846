/* place.c - rank, size and the job's name out of the environment. Nothing here listens: MASTER_PORT is only a name
 * that the job's ranks share, so it does not matter that a launcher's own store may hold the port. */
#include "comm/place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whoever starts jobs says it in one of these ways. Slurm's words count inside a step of srun alone: a batch script
 * has them too. */
static const struct {
    const char *name, *rank, *world, *local_world;
} launchers[] = {
    {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"},
};

static lk_status number(lk_context *context, const char *name, const char *text, int low, int *value)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*name == 'S' && *end == '(')
        end = ""; /* Slurm: 4(x2), so many tasks on each of two nodes: too few, as it must be */
    if (end == text || *end || errno || n < low || n > 1000000)
        return lk__fail(context, LK_EINVAL, "%s is '%.40s' in the environment, which is no number from %d on", name,
                        text, low);
    *value = (int)n;
    return LK_OK;
}

static lk_status from_environment(lk_context *context, lk__place *place)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *rank = getenv(launchers[i].rank), *world = getenv(launchers[i].world);
        const char *local = getenv(launchers[i].local_world);
        if (!world || !*world) continue;
        if (!rank || !*rank)
            return lk__fail(context, LK_EINVAL,
                            "%s is set in the environment but %s is not: which rank is this process?",
                            launchers[i].world, launchers[i].rank);
        int       here = 0;
        lk_status status = number(context, launchers[i].rank, rank, 0, &place->rank);
        if (status >= 0) status = number(context, launchers[i].world, world, 1, &place->world);
        if (status >= 0 && local && *local) status = number(context, launchers[i].local_world, local, 1, &here);
        if (status < 0) return status;
        if (here && here != place->world)
            return lk__fail(context, LK_EUNSUPPORTED,
                            "%d of %d ranks are on this host (%s): groups over several hosts are not in this build",
                            here, place->world, launchers[i].local_world);
        snprintf(place->tried, sizeof place->tried, "%s in the environment", launchers[i].name);
        return LK_OK;
    }
    if (getenv("RANK"))
        return lk__fail(context, LK_EINVAL,
                        "RANK is set in the environment but WORLD_SIZE is not: how many ranks are there?");
    *place = (lk__place){.rank = 0, .world = 1, .tried = "nothing in the environment"};
    return LK_OK;
}

/* The job's name: what whoever started it chose, else its port, else the process that started its ranks. The
 * generation tells a restarted job from what is left of it. */
static void name_job(int port, lk__place *place)
{
    const char *job = getenv("LOCKSTEP_JOB"), *master = getenv("MASTER_PORT"), *id = getenv("TORCHELASTIC_RUN_ID");
    const char *generation = getenv("TORCHELASTIC_RESTART_COUNT");
    char        what[128];
    if (port)
        snprintf(what, sizeof what, "port-%d", port);
    else if (job && *job)
        snprintf(what, sizeof what, "job-%.100s", job);
    else if (master && *master)
        snprintf(what, sizeof what, "port-%.16s-%.80s", master, id ? id : "");
    else
        snprintf(what, sizeof what, "parent-%ld", (long)getppid());
    snprintf(place->key, sizeof place->key, "%s-%.10s", what, !port && generation ? generation : "0");
}

lk_status lk__place_find(lk_context *context, const lk_comm_config *config, lk__place *place)
{
    lk_status status = LK_OK;
    *place = (lk__place){.rank = -1, .world = -1, .tried = "given by the program"};
    if (config->rank < 0 && config->world < 0) status = from_environment(context, place);
    if (config->rank >= 0) place->rank = config->rank;
    if (config->world >= 0) place->world = config->world;
    if (status < 0) return status;
    if (place->rank < 0 || place->world < 1)
        return lk__fail(context, LK_EINVAL,
                        "rank %d of a world of %d: give both, or neither and let the environment say it", place->rank,
                        place->world);
    if (place->rank >= place->world)
        return lk__fail(context, LK_EINVAL, "rank %d does not exist in a world of %d (%s); ranks count from 0",
                        place->rank, place->world, place->tried);
    if (config->port < 0 || config->port > 65535)
        return lk__fail(context, LK_EINVAL, "port %d is not 0 … 65535", config->port);
    name_job(config->port, place);
    return LK_OK;
}
