/* place.c - rank, size, the job's name and where it meets, out of the environment. On one host nothing listens on a
 * port, and MASTER_PORT is only a name; over several hosts rank 0 listens on it where our own launcher chose it: under
 * any other the launcher's store holds that port, and LOCKSTEP_PORT or the program says another. */
#include "comm/rendezvous/identity.h"

#include "comm/mpi/mpi.h"

#include <ctype.h>
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

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static lk_status number(lk_context *context, const char *name, const char *text, int low, int *value)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*name == 'S' && (*end == '(' || *end == ',')) /* Slurm: 4(x2), so many tasks on each of two nodes; or 4,3 */
        end = "";
    if (end == text || *end || errno || n < low || n > 1000000)
        return lk__fail(context, LK_EINVAL, "%s is '%.40s' in the environment, which is no number from %d to 1000000",
                        name, text, low);
    *value = (int)n;
    return LK_OK;
}

/* How many ranks are on this host, where who gave the rank does not say it: srun --mpi=pmi2 and scripts that set RANK
 * from Slurm's words leave it to the step, which counts if it is as large. */
static const char *local_by_slurm(const char *world)
{
    const char *tasks = environment("SLURM_STEP_NUM_TASKS");
    return tasks && strcmp(tasks, world) == 0 ? environment("SLURM_STEP_TASKS_PER_NODE") : NULL;
}

static lk_status from_environment(lk_context *context, lk__rendezvous_identity *place)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *rank = environment(launchers[i].rank), *world = environment(launchers[i].world);
        const char *local = environment(launchers[i].local_world), *local_name = launchers[i].local_world;
        if (!world) continue;
        if (!local && (local = local_by_slurm(world))) local_name = "SLURM_STEP_TASKS_PER_NODE";
        if (!rank)
            return lk__fail(context, LK_EINVAL,
                            "%s is set in the environment but %s is not: which rank is this process?",
                            launchers[i].world, launchers[i].rank);
        int       here = 0;
        lk_status status = number(context, launchers[i].rank, rank, 0, &place->rank);
        if (status >= 0) status = number(context, launchers[i].world, world, 1, &place->world);
        if (status >= 0 && local) status = number(context, local_name, local, 1, &here);
        if (status < 0) return status;
        if (here > place->world)
            return lk__fail(context, LK_EINVAL, "%s is %d in the environment, and %s is %d: more here than there are",
                            local_name, here, launchers[i].world, place->world);
        place->many_hosts = here && here != place->world;
        snprintf(place->tried, sizeof place->tried, "%s in the environment", launchers[i].name);
        return LK_OK;
    }
    if (getenv("RANK"))
        return lk__fail(context, LK_EINVAL,
                        "RANK is set in the environment but WORLD_SIZE is not: how many ranks are there?");
    *place = (lk__rendezvous_identity){.rank = 0, .world = 1, .tried = "nothing in the environment"};
    return LK_OK;
}

/* The job's name: what whoever started it chose, else its port, else the process that started its ranks. The
 * generation tells a restarted job from what is left of it. */
static void name_job(int port, lk__rendezvous_identity *place)
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

bool lk__ports_parse(const char *text, lk__rendezvous_ports *ports)
{
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    long first = strtol(text, &end, 10), last = first;
    if (*end == '-' && isdigit((unsigned char)end[1])) last = strtol(end + 1, &end, 10);
    if (*end || first < 1 || last > 65535 || first > last) return false;
    *ports = (lk__rendezvous_ports){(int)first, (int)last};
    return true;
}

/* An address by which only this host is reached. */
static bool is_loopback(const char *address)
{
    return strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* Where rank 0 listens, and whence others may be reached. */
static lk_status find_address(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *place)
{
    const char *address = config->address ? config->address : environment("MASTER_ADDR");
    const char *ports = environment("LOCKSTEP_PORT"), *master = environment("MASTER_PORT");
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool        ours = environment("LOCKSTEP_JOB") && store && strcmp(store, "False") == 0;
    bool        shared = !config->backend || strcmp(config->backend, "shm") == 0;
    if (config->address && place->world > 1 && !(shared && is_loopback(config->address))) {
        place->many_hosts = true; /* or may be: the meeting shows it */
        snprintf(place->tried, sizeof place->tried, "the program gives rank 0's address, %.60s", config->address);
    }
    if (address && (size_t)snprintf(place->address, sizeof place->address, "%s", address) >= sizeof place->address)
        return lk__fail(context, LK_EINVAL, "the master's address is longer than a name can be: %.60s…", address);
    const char *local = environment("LOCKSTEP_LOCAL_ADDR");
    if (local && (size_t)snprintf(place->local, sizeof place->local, "%s", local) >= sizeof place->local)
        return lk__fail(context, LK_EINVAL, "LOCKSTEP_LOCAL_ADDR is longer than a name can be: %.60s…", local);
    if (ports && !lk__ports_parse(ports, &place->ports))
        return lk__fail(context, LK_EINVAL, "LOCKSTEP_PORT is '%.40s', which is no port and no range like 4000-4100",
                        ports);
    if (config->port) {
        place->master = (lk__rendezvous_ports){config->port, config->port};
        snprintf(place->port_from, sizeof place->port_from, "given by the program");
    } else if (ports) {
        place->master = place->ports;
        snprintf(place->port_from, sizeof place->port_from, "LOCKSTEP_PORT");
    } else if (ours && master) {
        if (!lk__ports_parse(master, &place->master) || place->master.first != place->master.last)
            return lk__fail(context, LK_EINVAL, "MASTER_PORT is '%.40s', which is no port", master);
        snprintf(place->port_from, sizeof place->port_from, "MASTER_PORT");
    }
    if (place->ports.first == place->ports.last) place->ports = (lk__rendezvous_ports){0}; /* that one is rank 0's */
    return LK_OK;
}

/* Why there is no token, and how to make one. */
static lk_status ask_for_token(lk_context *context, const lk__rendezvous_identity *place)
{
    bool        launched = environment("LOCKSTEP_JOB") != NULL;
    const char *why = launched
                          ? "were started by a lockstep run on each, which makes no token because the launchers do "
                            "not talk to each other (lockstep run --hosts makes one)"
                          : "were not started by lockstep run";
    return lk__fail(context, LK_EINVAL,
                    "the ranks are on several hosts (%s) and %s: set LOCKSTEP_TOKEN_FILE to a file that holds the same "
                    "secret on each host and that only you can read; " LK__TOKEN_RECIPE " makes one",
                    place->tried, why);
}

/* A file that was named counts; else what the launcher gave. */
static lk_status find_token(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *place)
{
    const char *file = environment("LOCKSTEP_TOKEN_FILE"), *token = environment("LOCKSTEP_TOKEN");
    const char *backend = config->backend ? config->backend : "mixed";
    bool        by_mpi = strcmp(backend, "mpi") == 0 || (strcmp(backend, "mixed") == 0 && lk__mpi_offers(place));
    if (place->world == 1) return LK_OK; /* nobody to prove it to */
    if (file) return lk__token_read(context, file, place->token);
    if (place->many_hosts && !by_mpi && !(token && environment("LOCKSTEP_JOB"))) /* MPI hands out one of its own */
        return ask_for_token(context, place);
    if (!token) return LK_OK;
    lk_status status = lk__token_check(context, "LOCKSTEP_TOKEN", token);
    if (status >= 0) snprintf(place->token, sizeof place->token, "%s", token);
    return status;
}

lk_status lk__identity_find(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *place)
{
    lk_status status = LK_OK;
    *place = (lk__rendezvous_identity){.rank = -1, .world = -1, .tried = "given by the program"};
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
    if ((status = find_address(context, config, place)) < 0) return status;
    return find_token(context, config, place);
}
