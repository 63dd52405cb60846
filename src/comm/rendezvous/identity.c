/* identity.c - finds rank, size, the job's name and rank 0's address in the environment. On one host nothing listens on
 * a port, and MASTER_PORT is only a name. Over several hosts rank 0 listens on it if it was chosen by `lockstep run`,
 * or by a user who starts the ranks by hand. Under any other launcher, that launcher's store listens on this port, and
 * LOCKSTEP_PORT or the program gives another one. */
#define _GNU_SOURCE
#include "comm/rendezvous/identity.h"

#include "base/environment.h"
#include "comm/transports.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The variables that launchers set. Of Slurm's, only those of a step (srun) count: a batch script has others too. */
static const struct {
    const char        *name;
    lk__environment_id rank, world, local_world;
} launchers[] = {
    {"RANK and WORLD_SIZE", LK__ENV_RANK, LK__ENV_WORLD_SIZE, LK__ENV_LOCAL_WORLD_SIZE},
    {"Open MPI", LK__ENV_OMPI_COMM_WORLD_RANK, LK__ENV_OMPI_COMM_WORLD_SIZE, LK__ENV_OMPI_COMM_WORLD_LOCAL_SIZE},
    {"PMI", LK__ENV_PMI_RANK, LK__ENV_PMI_SIZE, LK__ENV_MPI_LOCALNRANKS},
    {"Slurm", LK__ENV_SLURM_PROCID, LK__ENV_SLURM_STEP_NUM_TASKS, LK__ENV_SLURM_STEP_TASKS_PER_NODE},
};

static lk_status parse_number(lk_context *context, const char *name, const char *text, int low, int *value)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*name == 'S' && (*end == '(' || *end == ',')) /* Slurm: 4(x2), 4 tasks on each of two nodes; or 4,3 */
        end = "";
    if (end == text || *end || errno || n < low || n > 1000000)
        return lk__fail(context, LK_EINVAL, "%s is '%.40s' in the environment; it must be a number from %d to 1000000",
                        name, text, low);
    *value = (int)n;
    return LK_OK;
}

/* How many ranks are on this host, for launchers that do not set it: srun --mpi=pmi2, and scripts that set RANK from
 * Slurm's variables. The step's value is used if the step is as large as the world. */
static const char *slurm_local_size(const lk_context *context, const char *world)
{
    const char *tasks = lk__environment_text(context, LK__ENV_SLURM_STEP_NUM_TASKS);
    return tasks && strcmp(tasks, world) == 0 ? lk__environment_text(context, LK__ENV_SLURM_STEP_TASKS_PER_NODE) : NULL;
}

static lk_status read_environment(lk_context *context, lk__rendezvous_identity *identity)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *rank = lk__environment_text(context, launchers[i].rank);
        const char *world = lk__environment_text(context, launchers[i].world);
        const char *local = lk__environment_text(context, launchers[i].local_world);
        const char *rank_name = lk__environment_name(launchers[i].rank);
        const char *world_name = lk__environment_name(launchers[i].world);
        const char *local_name = lk__environment_name(launchers[i].local_world);
        if (!world) continue;
        if (!local && (local = slurm_local_size(context, world))) local_name = "SLURM_STEP_TASKS_PER_NODE";
        if (!rank)
            return lk__fail(context, LK_EINVAL,
                            "%s is set in the environment but %s is not: which rank is this process?", world_name,
                            rank_name);
        int       here = 0;
        lk_status status = parse_number(context, rank_name, rank, 0, &identity->rank);
        if (status >= 0) status = parse_number(context, world_name, world, 1, &identity->world);
        if (status >= 0 && local) status = parse_number(context, local_name, local, 1, &here);
        if (status < 0) return status;
        if (here > identity->world)
            return lk__fail(context, LK_EINVAL,
                            "%s is %d in the environment, but %s is %d: one host cannot have more ranks than the job",
                            local_name, here, world_name, identity->world);
        identity->many_hosts = here && here != identity->world;
        identity->local_unknown = !here;
        snprintf(identity->tried, sizeof identity->tried, "%s in the environment", launchers[i].name);
        return LK_OK;
    }
    if (lk__environment(context, LK__ENV_RANK))
        return lk__fail(context, LK_EINVAL,
                        "RANK is set in the environment but WORLD_SIZE is not: how many ranks are there?");
    *identity = (lk__rendezvous_identity){.rank = 0, .world = 1, .tried = "nothing in the environment"};
    return LK_OK;
}

/* The job's name: LOCKSTEP_JOB, else its port, else the process that started its ranks. The generation separates a
 * restarted job from leftover ranks of its last attempt. */
static void name_job(const lk_context *context, int port, lk__rendezvous_identity *identity)
{
    const char *job = lk__environment_text(context, LK__ENV_LOCKSTEP_JOB);
    const char *master = lk__environment_text(context, LK__ENV_MASTER_PORT);
    const char *id = lk__environment(context, LK__ENV_TORCHELASTIC_RUN_ID);
    const char *generation = lk__environment(context, LK__ENV_TORCHELASTIC_RESTART_COUNT);
    char        what[128];
    if (port)
        snprintf(what, sizeof what, "port-%d", port);
    else if (job)
        snprintf(what, sizeof what, "job-%.100s", job);
    else if (master)
        snprintf(what, sizeof what, "port-%.16s-%.80s", master, id ? id : "");
    else
        snprintf(what, sizeof what, "parent-%ld", (long)getppid());
    snprintf(identity->key, sizeof identity->key, "%s-%.10s", what, !port && generation ? generation : "0");
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

/* A name that does not resolve counts as one of this host, where all ranks may be. */
static bool is_own_address(const char *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    if (getaddrinfo(address, NULL, &hints, &found) != 0) return true;
    bool own = false;
    for (const struct addrinfo *a = found; a && !own; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        own = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    return own;
}

static bool is_within_host(const char *transport)
{
    const lk__comm_backend *found = lk__transport_find(transport);
    return found && found->scope == LK__SCOPE_HOST;
}

/* Ranks that were started by hand on several hosts, with nothing but RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
 * Where rank 0 runs its address is an own one, and only a token shows that there are other hosts; the rendezvous finds
 * out which ranks share a host. */
static void find_other_hosts(const lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *identity)
{
    const char *address = lk__environment_text(context, LK__ENV_MASTER_ADDR);
    bool        shared = config->backend && is_within_host(config->backend);
    if (!identity->local_unknown || identity->world == 1 || config->address || !address || is_loopback(address) ||
        shared)
        return;
    if (!lk__environment_text(context, LK__ENV_LOCKSTEP_TOKEN_FILE) && is_own_address(address)) return;
    identity->many_hosts = true;
    snprintf(identity->tried, sizeof identity->tried, "MASTER_ADDR is %.60s, and LOCAL_WORLD_SIZE is not set", address);
}

/* Where rank 0 listens, and where this rank does. */
static lk_status find_address(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *identity)
{
    const char *address = config->address ? config->address : lk__environment_text(context, LK__ENV_MASTER_ADDR);
    const char *ports = lk__environment_text(context, LK__ENV_LOCKSTEP_PORT),
               *master = lk__environment_text(context, LK__ENV_MASTER_PORT);
    const char *store = lk__environment(context, LK__ENV_TORCHELASTIC_USE_AGENT_STORE);
    bool own_launcher = lk__environment_text(context, LK__ENV_LOCKSTEP_JOB) && store && strcmp(store, "False") == 0;
    bool by_hand = !lk__environment_text(context, LK__ENV_LOCKSTEP_JOB) && !store &&
                   !lk__environment_text(context, LK__ENV_TORCHELASTIC_RUN_ID);
    bool shared = !config->backend || is_within_host(config->backend);
    if (config->address && identity->world > 1 && !(shared && is_loopback(config->address))) {
        identity->many_hosts = true; /* or may be: the rendezvous shows it */
        snprintf(identity->tried, sizeof identity->tried, "the program sets rank 0's address, %.60s", config->address);
    }
    if (address &&
        (size_t)snprintf(identity->address, sizeof identity->address, "%s", address) >= sizeof identity->address)
        return lk__fail(context, LK_EINVAL, "the address of rank 0 is too long for a host name: %.60s…", address);
    const char *local = lk__environment_text(context, LK__ENV_LOCKSTEP_LOCAL_ADDR);
    if (local && (size_t)snprintf(identity->local, sizeof identity->local, "%s", local) >= sizeof identity->local)
        return lk__fail(context, LK_EINVAL, "LOCKSTEP_LOCAL_ADDR is too long for a host name: %.60s…", local);
    if (ports && !lk__ports_parse(ports, &identity->ports))
        return lk__fail(context, LK_EINVAL, "LOCKSTEP_PORT is '%.40s'; it must be a port or a range like 4000-4100",
                        ports);
    if (config->port) {
        identity->master = (lk__rendezvous_ports){config->port, config->port};
        snprintf(identity->port_from, sizeof identity->port_from, "set by the program");
    } else if (ports) {
        identity->master = identity->ports;
        snprintf(identity->port_from, sizeof identity->port_from, "LOCKSTEP_PORT");
    } else if ((own_launcher || by_hand) && master) {
        if (!lk__ports_parse(master, &identity->master) || identity->master.first != identity->master.last)
            return lk__fail(context, LK_EINVAL, "MASTER_PORT is '%.40s'; it must be a port", master);
        snprintf(identity->port_from, sizeof identity->port_from, "MASTER_PORT");
    }
    if (identity->ports.first == identity->ports.last)
        identity->ports = (lk__rendezvous_ports){0}; /* that one is for rank 0 alone */
    return LK_OK;
}

/* Explains why there is no token and how to make one. */
static lk_status fail_missing_token(lk_context *context, const lk__rendezvous_identity *identity)
{
    bool        by_launcher = lk__environment_text(context, LK__ENV_LOCKSTEP_JOB) != NULL;
    const char *why = by_launcher ? "were started by a separate lockstep run on each host, without a common token "
                                    "(lockstep run --hosts creates one)"
                                  : "were not started by lockstep run";
    return lk__fail(context, LK_EINVAL,
                    "the ranks are on several hosts (%s) and %s: set LOCKSTEP_TOKEN_FILE to a file that holds the same "
                    "secret on each host and that only you can read; " LK__TOKEN_RECIPE " creates one",
                    identity->tried, why);
}

/* LOCKSTEP_TOKEN_FILE first, then the launcher's LOCKSTEP_TOKEN. */
static lk_status find_token(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *identity)
{
    const char *file = lk__environment_text(context, LK__ENV_LOCKSTEP_TOKEN_FILE),
               *token = lk__environment_text(context, LK__ENV_LOCKSTEP_TOKEN);
    const lk__comm_backend *backend = config->backend ? lk__transport_find(config->backend) : &lk__backend_mixed;
    bool                    makes_token = lk__transport_makes_token(context, backend, identity);
    if (identity->world == 1) return LK_OK; /* there is no peer */
    if (file) return lk__token_read(context, file, identity->token);
    /* over MPI a token is generated */
    if (identity->many_hosts && !makes_token && !(token && lk__environment_text(context, LK__ENV_LOCKSTEP_JOB)))
        return fail_missing_token(context, identity);
    if (!token) return LK_OK;
    lk_status status = lk__token_check(context, "LOCKSTEP_TOKEN", token);
    if (status >= 0) snprintf(identity->token, sizeof identity->token, "%s", token);
    return status;
}

lk_status lk__identity_find(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *identity)
{
    lk_status status = LK_OK;
    *identity = (lk__rendezvous_identity){.rank = -1, .world = -1, .tried = "set by the program"};
    if (config->rank < 0 && config->world < 0) status = read_environment(context, identity);
    if (config->rank >= 0) identity->rank = config->rank;
    if (config->world >= 0) identity->world = config->world;
    if (status < 0) return status;
    if (identity->rank < 0 || identity->world < 1)
        return lk__fail(
            context, LK_EINVAL,
            "the rank is %d and the world size is %d: set both, or neither to take them from the environment",
            identity->rank, identity->world);
    if (identity->rank >= identity->world)
        return lk__fail(context, LK_EINVAL, "rank %d does not exist in a world of %d (%s); ranks are numbered from 0",
                        identity->rank, identity->world, identity->tried);
    if (config->port < 0 || config->port > 65535)
        return lk__fail(context, LK_EINVAL, "port %d is out of range: expected 0 to 65535", config->port);
    name_job(context, config->port, identity);
    find_other_hosts(context, config, identity);
    if ((status = find_address(context, config, identity)) < 0) return status;
    return find_token(context, config, identity);
}
