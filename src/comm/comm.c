/* comm.c - creates, splits, fails and frees groups. Operations are in collective.c, works in work.c. */
#define _GNU_SOURCE
#include "comm/comm.h"

#include "base/config.h"
#include "base/entropy.h"
#include "base/environment.h"
#include "base/reduce.h"
#include "comm/abort.h"
#include "comm/devices.h"
#include "comm/flight_recorder.h"
#include "comm/rendezvous/identity.h"
#include "comm/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- failure ---- */

static int world_rank(const lk_comm *c, int rank) { return c->world ? c->world[rank] : rank; }

lk_status lk__comm_set_world(lk_comm *c, const lk_comm *like, const int *ranks)
{
    c->world = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)c->size * sizeof *c->world);
    if (!c->world) return LK_ENOMEM;
    for (int i = 0; i < c->size; i++) c->world[i] = world_rank(like, ranks ? ranks[i] : i);
    return LK_OK;
}

lk__comm_cause lk__comm_cause_make(const lk_comm *c, int rank, lk__comm_cause_kind kind)
{
    return (lk__comm_cause){kind, world_rank(c, rank)};
}

void lk__comm_join_failed(const lk_comm *c, int rank, lk__comm_cause_kind kind)
{
    if (c) lk__flight_recorder_cause(c->outer ? c->outer->recorder : c->recorder, lk__comm_cause_make(c, rank, kind));
}

lk__comm_cause lk__comm_cause_for(const lk_comm *c, lk_status status)
{
    return lk__comm_cause_make(c, c->rank, status == LK_ENOMEM ? LK__CAUSE_OWN : LK__CAUSE_UNKNOWN);
}

lk_status lk__comm_record_failure(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    pthread_mutex_lock(&c->failing);
    if (atomic_load(&c->failed) == LK_OK) {
        snprintf(c->text, sizeof c->text, "%s", text);
        c->cause = cause;
        lk__flight_recorder_cause(c->recorder, cause);
        atomic_store(&c->failed, status);
    }
    status = atomic_load(&c->failed);
    pthread_mutex_unlock(&c->failing);
    return status;
}

/* The rank of the world that aborted the group, by itself or through a rank that knew of its failure; -1: none. Only
 * lk__comm_abort_for raises LK_ECANCELED. */
static int aborting_rank(const lk_comm *c)
{
    return atomic_load(&c->failed) == LK_ECANCELED && c->cause.kind == LK__CAUSE_OWN ? c->cause.rank : -1;
}

lk_status lk__comm_report_failure(lk_comm *c)
{
    return lk__fail_of_rank(c->context, atomic_load(&c->failed), aborting_rank(c), "%s", c->text);
}

lk_status lk_comm_status(lk_comm *c)
{
    if (atomic_load(&c->failed) == LK_OK) (void)c->backend->failure(c);
    return atomic_load(&c->failed);
}

const char *lk_comm_error(lk_comm *c) { return lk_comm_status(c) < 0 ? c->text : ""; }

/* Whether `why` is the text of the group's failure, which the context may have truncated. */
static bool is_failure_of_group(lk_comm *c, const char *why)
{
    char begin[200];
    if (!why || lk_comm_status(c) == LK_OK) return false;
    snprintf(begin, sizeof begin, "%.*s", (int)sizeof begin - 1, c->text);
    return strstr(why, begin) != NULL;
}

/* Whether `why` is the thread's latest failure, and another rank's: that one is the cause, not this rank. */
static bool is_failure_of_another(lk_comm *c, const char *why)
{
    int rank = lk_context_error_rank(c->context);
    return rank >= 0 && rank != world_rank(c, c->rank) && why && lk__is_message(c->context, why);
}

void lk__comm_abort_for(lk_comm *c, int rank, const char *why)
{
    char text[512];
    if (is_failure_of_group(c, why)) return;
    bool own = rank == c->rank && !is_failure_of_another(c, why);
    snprintf(text, sizeof text, "rank %d of %d aborted the group: %.400s", rank, c->size,
             why ? why : "no reason given");
    c->backend->raise(c, LK_ECANCELED, text, lk__comm_cause_make(c, rank, LK__CAUSE_OWN));
    /* Behind that: a transport may find another rank to be the cause, which is then recorded. */
    if (own) lk__flight_recorder_own_cause(c->recorder, lk__comm_cause_make(c, rank, LK__CAUSE_OWN));
}

void lk_comm_abort(lk_comm *c, const char *why) { lk__comm_abort_for(c, c->rank, why); }

void lk_comm_busy_begin(lk_comm *c, const char *what) { c->backend->busy(c, what ? what : "long work"); }
void lk_comm_busy_end(lk_comm *c) { c->backend->busy(c, NULL); }

char *lk__comm_peer(const lk_comm *c, const void *memory, int rank) { return c->backend->peer(c, memory, rank); }

lk_status lk__comm_adopt(lk_comm *c, const lk_comm *of, void *memory)
{
    return c != of && c->backend->adopt ? c->backend->adopt(c, of, memory) : LK_OK;
}

/* ---- create and free ---- */

lk_status lk__comm_make(lk_context *context, const lk_comm *like, const lk_comm_config *config, lk_comm **comm)
{
    lk_comm *c = *comm = lk__alloc(context, LK_MEMORY_OTHER, sizeof *c);
    if (!c) return LK_ENOMEM;
    c->context = context;
    c->owner = getpid();
    c->timeout_ms = like ? like->timeout_ms : config->timeout_ms;
    c->stall_ms = like ? like->stall_ms : config->stall_ms;
    if (like) {
        c->join_ms = like->join_ms;
        c->connect_ms = like->connect_ms;
    }
    pthread_mutex_init(&c->failing, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->queued, NULL);
    pthread_cond_init(&c->finished, NULL);
    return LK_OK;
}

void lk__comm_drop(lk_comm *c)
{
    if (!c) return;
    pthread_cond_destroy(&c->finished);
    pthread_cond_destroy(&c->queued);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->failing);
    lk__flight_recorder_close(c->recorder);
    lk__free(c->context, LK_MEMORY_OTHER, c->world, c->world ? (size_t)c->size * sizeof *c->world : 0);
    lk__free(c->context, LK_MEMORY_OTHER, c, sizeof *c);
}

enum { MOST_TRANSPORTS = 32 }; /* that an error names */

static const lk__comm_backend *default_backend(const lk_context *context, const lk__rendezvous_identity *identity)
{
    if (identity->world == 1) return &lk__backend_self;
    if (identity->many_hosts) return &lk__backend_mixed;
    return lk__comm_maps_device(context) ? &lk__backend_p2p : &lk__backend_shm;
}

static lk_status check_backend(lk_context *context, const lk__comm_backend *b, const lk__rendezvous_identity *identity)
{
    if (b->scope == LK__SCOPE_RANK && identity->world > 1)
        return lk__fail(context, LK_EINVAL, "backend %s supports only one rank, but the world size is %d", b->name,
                        identity->world);
    if (b->scope == LK__SCOPE_HOST && identity->many_hosts)
        return lk__fail(context, LK_EINVAL,
                        "backend %s supports only ranks on one host, but this job spans several (%s): choose another "
                        "backend, or do not set one",
                        b->name, identity->tried);
    return LK_OK;
}

/* Names what there is instead. */
static lk_status refuse_backend(lk_context *context, const char *wanted)
{
    const char *names[MOST_TRANSPORTS];
    size_t      count = 0;
    char        list[256] = "";
    while (count < MOST_TRANSPORTS && lk__transport_at(count)) names[count] = lk__transport_at(count)->name, count++;
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " and ", names[i]);
    }
    const char *suggestion = lk__suggest(wanted, names, count);
    return lk__fail(context, LK_EINVAL, "unknown backend '%s'%s%s%s; the backends are %s", wanted,
                    suggestion ? " (did you mean " : "", suggestion ? suggestion : "", suggestion ? "?)" : "", list);
}

static lk_status choose_backend(lk_context *context, const char *wanted, const lk__rendezvous_identity *identity,
                                const lk__comm_backend **backend)
{
    *backend = default_backend(context, identity);
    if (!wanted) return LK_OK;
    const lk__comm_backend *found = lk__transport_find(wanted);
    if (!found) return refuse_backend(context, wanted);
    if (identity->world > 1 || found->alone) *backend = found; /* otherwise there is no peer */
    return check_backend(context, *backend, identity);
}

enum { WEEK_MS = 7 * 24 * 3600 * 1000, JOIN_HERE_MS = 30000, JOIN_HOSTS_MS = 600000, CONNECT_MS = 30000 };

/* From config, else LOCKSTEP_JOIN_TIMEOUT. The default allows hosts to be started by hand, minutes after one
 * another. */
static lk_status choose_deadlines(lk_comm *c, const lk_comm_config *config, const lk__rendezvous_identity *identity)
{
    const char *no_deadlines = lk__environment(c->context, LK__ENV_LOCKSTEP_NO_DEADLINES),
               *text = lk__environment_text(c->context, LK__ENV_LOCKSTEP_JOIN_TIMEOUT);
    c->join_ms = c->connect_ms = config->join_ms;
    if (!config->join_ms && text) {
        char  *end;
        double seconds = strtod(text, &end);
        if (end == text || *end || !(seconds >= 0.001 && seconds <= 1e7))
            return lk__fail(
                c->context, LK_EINVAL,
                "LOCKSTEP_JOIN_TIMEOUT is '%.40s' in the environment; it must be a number of seconds from 0.001 to "
                "10000000",
                text);
        c->join_ms = c->connect_ms = (int64_t)(seconds * 1000);
    }
    if (!c->join_ms) {
        c->join_ms = identity->many_hosts ? JOIN_HOSTS_MS : JOIN_HERE_MS;
        c->connect_ms = CONNECT_MS;
    }
    if (no_deadlines && strcmp(no_deadlines, "1") == 0)
        c->timeout_ms = c->join_ms = c->connect_ms = WEEK_MS; /* for debuggers */
    return LK_OK;
}

lk_status lk_comm_create(lk_context *context, const lk_comm_config *given, lk_comm **comm)
{
    lk_comm_config          read = LK_COMM_CONFIG_INIT;
    const lk_comm_config   *config = &read;
    lk__rendezvous_identity identity;
    lk_comm                *c = NULL;
    *comm = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_comm_config, given, &read);
    if (status < 0) return status;
    if (config->timeout_ms <= 0 || config->stall_ms <= 0 || config->join_ms < 0)
        return lk__fail(context, LK_EINVAL,
                        "timeout_ms and stall_ms must be above 0, and join_ms must not be negative: unlimited waits "
                        "are not supported");
    if ((status = lk__identity_find(context, config, &identity)) < 0) return status;
    if (identity.world > LK__REDUCE_MOST)
        return lk__fail(context, LK_EUNSUPPORTED, "a world of %d ranks is too large: the maximum is %d", identity.world,
                        LK__REDUCE_MOST);
    const lk__comm_backend *backend;
    if ((status = choose_backend(context, config->backend, &identity, &backend)) < 0) return status;
    if ((status = lk__comm_make(context, NULL, config, &c)) < 0) return status;
    c->backend = backend;
    c->recorder = c->numbered = lk__flight_recorder_open(c->context);
    c->rank = c->local_rank = identity.rank;
    c->size = c->local_size = identity.world;
    status = choose_deadlines(c, config, &identity);
    if (status >= 0) status = backend->create(c, &identity);
    if (status < 0) {
        lk__comm_drop(c);
        return status;
    }
    lk__flight_recorder_joined(c->recorder);
    *comm = c;
    return LK_OK;
}

void lk_comm_free(lk_comm *c)
{
    if (!c || c->owner != getpid()) return; /* a forked child has none of its threads, and is not a rank */
    lk__work_close(c);
    c->backend->free(c);
    lk__comm_drop(c);
}

int         lk_comm_rank(const lk_comm *c) { return c->rank; }
int         lk_comm_size(const lk_comm *c) { return c->size; }
int         lk_comm_local_rank(const lk_comm *c) { return c->local_rank; }
int         lk_comm_local_size(const lk_comm *c) { return c->local_size; }
const char *lk_comm_backend(const lk_comm *c) { return c->backend->name; }
uint64_t    lk__comm_sent(const lk_comm *c) { return c->backend->sent(c); }

/* ---- splitting and symmetric memory: a few bytes of every rank are gathered, then the ranks of each group join ----
 */

static lk_status draw_secret(lk_context *context, uint64_t *secret)
{
    if (!lk__entropy(secret, sizeof *secret))
        return lk__fail(context, LK_EIO, "cannot get random numbers from the system");
    return LK_OK;
}

static lk_status gather_members(lk_comm *c, lk__comm_kind kind, size_t bytes, lk_site site, const lk__comm_member *mine,
                                lk__comm_member *all)
{
    lk__comm_call o = {
        .kind = kind, .type = LK_U8, .count = sizeof *mine, .bytes = bytes, .send = mine, .recv = all, .site = site};
    return lk__work_submit(c, &o, NULL);
}

/* The members with this colour, ordered by key, then rank. */
static int order_members(const lk__comm_member *all, int count, int colour, int *ranks)
{
    int size = 0;
    for (int i = 0; i < count; i++) {
        int at = size;
        if (all[i].colour != colour) continue;
        for (; at > 0 && all[ranks[at - 1]].key > all[i].key; at--) ranks[at] = ranks[at - 1];
        ranks[at] = i;
        size++;
    }
    return size;
}

static lk_status make_group(lk_comm *c, const lk__comm_member *all, const int *ranks, int size, lk_comm **group)
{
    lk_comm  *g = NULL;
    lk_status status = lk__comm_make(c->context, c, NULL, &g);
    if (status < 0) return status;
    g->recorder = g->numbered = lk__flight_recorder_open(g->context);
    g->join_ms = c->connect_ms; /* its ranks have joined the parent already */
    while (ranks[g->rank] != c->rank) g->rank++;
    g->size = g->local_size = size;
    g->local_rank = g->rank;
    g->backend = size == 1 ? &lk__backend_self : c->backend;
    status = lk__comm_set_world(g, c, ranks);
    if (status >= 0) status = size == 1 ? g->backend->create(g, NULL) : c->backend->split(c, g, all, ranks);
    if (status >= 0) {
        *group = g;
        return status;
    }
    lk__comm_drop(g);
    /* Where the parent failed, a rank that the new group misses left because of that, and is not the cause. */
    return lk_comm_status(c) < 0 ? lk__comm_report_failure(c) : status;
}

lk_status lk_comm_split_at(lk_site site, lk_comm *c, int colour, int key, lk_comm **group)
{
    size_t           bytes = (size_t)c->size * sizeof(lk__comm_member), rank_bytes = (size_t)c->size * sizeof(int);
    lk__comm_member *all = lk__alloc(c->context, LK_MEMORY_OTHER, bytes), mine = {.colour = colour, .key = key};
    int             *ranks = lk__alloc(c->context, LK_MEMORY_OTHER, rank_bytes);
    *group = NULL;
    lk_status status = all && ranks ? draw_secret(c->context, &mine.secret) : LK_ENOMEM;
    if (status >= 0) status = gather_members(c, LK__SPLIT, 0, site, &mine, all);
    if (status >= 0) c->splits++;
    if (status >= 0 && colour >= 0)
        status = make_group(c, all, ranks, order_members(all, c->size, colour, ranks), group);
    lk__free(c->context, LK_MEMORY_OTHER, all, bytes);
    lk__free(c->context, LK_MEMORY_OTHER, ranks, rank_bytes);
    return status;
}

/* Of the device, or of the host where it is NULL. */
static lk_status allocate_symmetric(lk_site site, lk_comm *c, lk__device *device, size_t bytes, void **memory)
{
    size_t           length = (size_t)c->size * sizeof(lk__comm_member);
    lk__comm_member *all = lk__alloc(c->context, LK_MEMORY_OTHER, length), mine = {0};
    *memory = NULL;
    lk_status status = all ? draw_secret(c->context, &mine.secret) : LK_ENOMEM;
    if (status >= 0 && bytes > SIZE_MAX / 4 / (size_t)c->size)
        status =
            lk__fail(c->context, LK_EINVAL,
                     "%zu bytes of symmetric memory on each of %d ranks is more than can be addressed", bytes, c->size);
    if (status >= 0) status = gather_members(c, LK__ALLOC, bytes, site, &mine, all);
    if (bytes == 0) bytes = 1;
    if (status >= 0 && device) status = c->backend->allocate_device(c, device, all[0].secret, bytes, memory);
    if (status >= 0 && !device) status = c->backend->allocate(c, all[0].secret, bytes, memory);
    lk__free(c->context, LK_MEMORY_OTHER, all, length);
    return status;
}

lk_status lk_comm_alloc_at(lk_site site, lk_comm *c, size_t bytes, void **memory)
{
    return allocate_symmetric(site, c, NULL, bytes, memory);
}

lk_status lk__comm_alloc_device_at(lk_site site, lk_comm *c, lk__device *device, size_t bytes, void **memory)
{
    *memory = NULL;
    if (!lk__comm_abilities_for(c, device).queues)
        return lk__fail(c->context, LK_EUNSUPPORTED, "backend %s does not support symmetric memory on the device %s",
                        c->backend->name, device->backend->name);
    return allocate_symmetric(site, c, device, bytes, memory);
}

bool lk__comm_overlaps(const lk_comm *c, int threads)
{
    bool own;
    int  cores = lk__cores(&own), wanted = threads + 1;
    return c->backend->progresses || cores >= wanted * (own ? 1 : c->local_size);
}

void lk_comm_release(lk_comm *c, void *memory)
{
    if (memory) c->backend->release(c, memory);
}
