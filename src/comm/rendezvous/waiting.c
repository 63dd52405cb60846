/* waiting.c - log lines about ranks that have not joined yet. `lockstep run --nnodes` sets LOCKSTEP_JOIN_COMMAND for
 * its ranks: the command that starts the other hosts, with {node} for the host's number. */
#define _GNU_SOURCE
#include "comm/rendezvous/waiting.h"

#include "base/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST = 120, COMMAND = 700 };

static const double first_after = 5, repeat_after = 60; /* seconds */

void lk__waiting_begin(lk__rendezvous_waiting *waiting, lk_context *context, const lk__rendezvous_identity *identity,
                       int rank, int size, double end)
{
    double now = lk__now();
    *waiting = (lk__rendezvous_waiting){context, identity, rank, size, now, end, now + first_after};
}

bool lk__waiting_due(lk__rendezvous_waiting *waiting)
{
    double now = lk__now();
    if (!waiting->identity || now < waiting->next) return false;
    waiting->next = now + repeat_after;
    return true;
}

/* "2-3, 7": the numbers i below count with selected[i]; returns how many there are. */
static int write_numbers(const bool *selected, int count, char *out, size_t size)
{
    size_t used = 0;
    int    numbers = 0;
    out[0] = 0;
    for (int i = 0; i < count; i++) {
        if (!selected[i]) continue;
        int last = i;
        while (last + 1 < count && selected[last + 1]) last++;
        numbers += last - i + 1;
        if (used + 32 < size)
            used += (size_t)snprintf(out + used, size - used, last > i ? "%s%d-%d" : "%s%d", used ? ", " : "", i, last);
        else if (used + 8 < size)
            used += (size_t)snprintf(out + used, size - used, ", …");
        i = last;
    }
    return numbers;
}

static int number_in_environment(const lk_context *context, lk__environment_id id)
{
    const char *text = lk__environment(context, id);
    return text ? atoi(text) : 0;
}

/* The number of hosts where each has the same number of ranks; 0: unknown. */
static int count_hosts(const lk__rendezvous_waiting *waiting, int *each)
{
    int hosts = number_in_environment(waiting->context, LK__ENV_GROUP_WORLD_SIZE);
    *each = number_in_environment(waiting->context, LK__ENV_LOCAL_WORLD_SIZE);
    return hosts > 1 && *each > 0 && hosts * *each == waiting->size ? hosts : 0;
}

static bool write_command(const lk_context *context, int node, char *out, size_t size)
{
    static const char placeholder[] = "{node}";
    const char       *command = lk__environment(context, LK__ENV_LOCKSTEP_JOIN_COMMAND);
    const char       *at = command ? strstr(command, placeholder) : NULL;
    if (!at) return false;
    snprintf(out, size, "%.*s%d%s", (int)(at - command), command, node, at + sizeof placeholder - 1);
    return true;
}

/* How ranks without a launcher are started. */
static void describe_environment(const lk__rendezvous_waiting *waiting, char *out, size_t size)
{
    const lk__rendezvous_identity *identity = waiting->identity;
    const char                    *master = lk__environment(waiting->context, LK__ENV_MASTER_PORT);
    out[0] = 0;
    if (lk__environment(waiting->context, LK__ENV_LOCKSTEP_JOB) || !lk__environment(waiting->context, LK__ENV_RANK))
        return; /* a launcher starts them, or the program itself */
    if (identity->many_hosts)
        snprintf(out, size, "; start each rank with its RANK and WORLD_SIZE=%d MASTER_ADDR=%s LOCKSTEP_PORT=%d",
                 waiting->size, identity->address, identity->master.first);
    else
        snprintf(out, size, "; start each rank with its RANK and WORLD_SIZE=%d%s%s%s", waiting->size,
                 master ? " MASTER_PORT=" : "", master ? master : "",
                 identity->local_unknown && identity->address[0]
                     ? "on this host; for several hosts, set LOCAL_WORLD_SIZE (the number of ranks on each host) and "
                       "LOCKSTEP_TOKEN_FILE"
                     : "");
}

/* Which hosts have missing ranks, and how they are started; "" where that is not known. */
static void describe_hosts(const lk__rendezvous_waiting *waiting, const bool *missing, char *out, size_t size)
{
    char  list[LIST], command[COMMAND];
    int   each, hosts = count_hosts(waiting, &each), first = -1;
    bool *absent = hosts ? lk__alloc(waiting->context, LK_MEMORY_OTHER, (size_t)hosts * sizeof *absent) : NULL;
    describe_environment(waiting, out, size);
    if (!absent) return;
    for (int i = waiting->size - 1; i >= 0; i--)
        if (missing[i]) absent[first = i / each] = true;
    int count = write_numbers(absent, hosts, list, sizeof list);
    lk__free(waiting->context, LK_MEMORY_OTHER, absent, (size_t)hosts * sizeof *absent);
    int used = snprintf(out, size, "; host%s %s of %d %s missing", count > 1 ? "s" : "", list, hosts,
                        count > 1 ? "are" : "is");
    if (write_command(waiting->context, first, command, sizeof command))
        snprintf(out + used, size - (size_t)used, ", start %s with: %s%s", count > 1 ? "the first" : "it", command,
                 count > 1 ? " (and each other host with its own --node-rank)" : "");
}

void lk__waiting_for_ranks(const lk__rendezvous_waiting *waiting, const bool *missing)
{
    char   list[LIST], hosts[COMMAND + 300];
    double now = lk__now();
    int    count = write_numbers(missing, waiting->size, list, sizeof list);
    describe_hosts(waiting, missing, hosts, sizeof hosts);
    lk__log(waiting->context, LK_LOG_INFO,
            "rank 0 of %d has waited %.0f s for rank%s %s to join, and will wait %.0f s more%s", waiting->size,
            now - waiting->begun, count > 1 ? "s" : "", list, waiting->end - now, hosts);
}

void lk__waiting_for_master(const lk__rendezvous_waiting *waiting, const char *where, const char *why)
{
    char        command[COMMAND];
    double      now = lk__now();
    const char *local = lk__environment(waiting->context, LK__ENV_LOCAL_RANK);
    if (local && strcmp(local, "0") != 0) return;
    bool has_command = write_command(waiting->context, 0, command, sizeof command);
    lk__log(waiting->context, LK_LOG_INFO,
            "rank %d of %d has waited %.0f s for rank 0 at %s (%s), and will wait %.0f s more%s%s", waiting->rank,
            waiting->size, now - waiting->begun, where, why, waiting->end - now,
            has_command ? "; start its host with: " : "", has_command ? command : "");
}
