/* server.c - rank 0 waits for the other ranks, on one host or on several: each joins once, and missing ranks are
 * named. */
#define _GNU_SOURCE
#include "comm/process.h"
#include "comm/rendezvous/acceptor.h"
#include "comm/socket.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

lk__rendezvous_pending *lk__server_peer(const lk__rendezvous_server *server, int rank)
{
    lk__rendezvous_pending *connection = server->ranks[rank];
    return connection && connection->fd >= 0 && connection->authenticated && connection->request.rank == rank
               ? connection
               : NULL;
}

static void on_accepted(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, void *user)
{
    lk__rendezvous_server  *server = user;
    int                     rank = connection->request.rank;
    lk__rendezvous_reply    refusal = {.status = LK_EMISMATCH};
    lk__rendezvous_pending *earlier = connection->request.size == server->size ? lk__server_peer(server, rank) : NULL;
    if (connection->request.purpose != server->purpose)
        snprintf(refusal.text, sizeof refusal.text,
                 "rank %d sent a different kind of request before all ranks had joined", rank);
    else if (rank == 0) /* of another job, which asks before it listens in the same range of ports */
        snprintf(refusal.text, sizeof refusal.text, "process %ld is already rank 0", (long)getpid());
    else if (connection->request.size != server->size)
        snprintf(refusal.text, sizeof refusal.text, "rank 0 has a world size of %d, but this rank has %d", server->size,
                 connection->request.size);
    else if (earlier && earlier != connection) /* the same slot: it disconnected and connected again */
        snprintf(refusal.text, sizeof refusal.text, "rank %d has already joined, as process %lld on %.60s", rank,
                 (long long)earlier->request.endpoint.pid, earlier->request.endpoint.host);
    else {
        server->ranks[rank] = connection;
        server->pids[rank] = connection->request.endpoint.pid;
        return;
    }
    lk__acceptor_reply(acceptor, connection, &refusal);
    lk__acceptor_drop(acceptor, connection, refusal.text);
}

static size_t rank_bytes(const lk__rendezvous_server *server) { return (size_t)server->size * sizeof *server->ranks; }
static size_t pid_bytes(const lk__rendezvous_server *server) { return (size_t)server->size * sizeof *server->pids; }
static size_t missing_bytes(const lk__rendezvous_server *server)
{
    return (size_t)server->size * sizeof *server->missing;
}
static size_t poll_bytes(const lk__rendezvous_server *server)
{
    return (size_t)(server->acceptor.most + 1) * sizeof *server->polls;
}

lk_status lk__server_open(lk__rendezvous_server *server, lk_context *context, lk__rendezvous_listener *listener,
                          const char *token, lk__rendezvous_purpose purpose, int size)
{
    *server = (lk__rendezvous_server){.purpose = purpose, .size = size};
    lk_status status = lk__acceptor_open(&server->acceptor, context, listener, token, size);
    server->acceptor.accepted = on_accepted;
    server->acceptor.user = server;
    if (status >= 0) server->ranks = lk__alloc(context, LK_MEMORY_OTHER, rank_bytes(server));
    if (status >= 0) server->polls = lk__alloc(context, LK_MEMORY_OTHER, poll_bytes(server));
    if (status >= 0) server->pids = lk__alloc(context, LK_MEMORY_OTHER, pid_bytes(server));
    if (status >= 0) server->missing = lk__alloc(context, LK_MEMORY_OTHER, missing_bytes(server));
    return server->ranks && server->polls && server->pids && server->missing ? LK_OK : LK_ENOMEM;
}

void lk__server_close(lk__rendezvous_server *server)
{
    lk_context *context = server->acceptor.context;
    if (!context) return; /* it was never opened */
    lk__free(context, LK_MEMORY_OTHER, server->ranks, rank_bytes(server));
    lk__free(context, LK_MEMORY_OTHER, server->polls, poll_bytes(server));
    lk__free(context, LK_MEMORY_OTHER, server->pids, pid_bytes(server));
    lk__free(context, LK_MEMORY_OTHER, server->missing, missing_bytes(server));
    lk__acceptor_close(&server->acceptor);
}

static lk_status fail_missing(const lk__rendezvous_server *server, double seconds, const char *from)
{
    lk_context *context = server->acceptor.context;
    char        names[200] = "", where[LK__ADDRESS_TEXT];
    size_t      used = 0;
    int         missing = 0;
    for (int i = 1; i < server->size; i++) {
        if (lk__server_peer(server, i)) continue;
        missing++;
        if (used + 16 < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", i);
    }
    lk__address_show(&server->acceptor.listener->bound, where, sizeof where);
    if (server->acceptor.why)
        return lk__fail(context, LK_EIO,
                        "rank 0 of %d could not accept a connection from rank%s %s on %s for %.1f s: %s", server->size,
                        missing > 1 ? "s" : "", names, where, seconds, lk__comm_reason_of(server->acceptor.why).text);
    return lk__fail(context, LK_ETIMEOUT,
                    "rank%s %s of %d did not join within %.1f s; rank 0 listened on %s%s%s%s, %d of %d joined%s",
                    missing > 1 ? "s" : "", names, server->size, seconds, where, *from ? " (" : "", from,
                    *from ? ")" : "", server->size - 1 - missing, server->size - 1,
                    server->acceptor.dropped ? ", and other connections were dropped (see the log)" : "");
}

int lk__server_missing(const lk__rendezvous_server *server)
{
    for (int i = 1; i < server->size; i++)
        if (!lk__server_peer(server, i)) return i;
    return -1;
}

/* A rank of this host that joined and died does not join again. On other hosts its process cannot be checked, and a
 * user may start it again. */
static lk_status check_dead_ranks(lk__rendezvous_server *server)
{
    if (server->acceptor.listener->bound.ss_family != AF_UNIX) return LK_OK;
    for (int i = 1; i < server->size; i++)
        if (server->pids[i] && !lk__server_peer(server, i) && lk__process_gone(server->pids[i])) {
            server->dead = i;
            return lk__fail(server->acceptor.context, LK_EIO,
                            "rank %d of %d (process %lld) died before all ranks had joined", i, server->size,
                            (long long)server->pids[i]);
        }
    return LK_OK;
}

void lk__server_note_failure(const lk__rendezvous_server *server, const lk_comm *comm)
{
    int missing = server->dead ? server->dead : lk__server_missing(server);
    if (missing >= 0) lk__comm_join_failed(comm, missing, server->dead ? LK__CAUSE_DEAD : LK__CAUSE_LATE);
}

static void log_missing(lk__rendezvous_server *server, lk__rendezvous_waiting *waiting)
{
    if (!lk__waiting_due(waiting)) return;
    for (int i = 1; i < server->size; i++) server->missing[i] = !lk__server_peer(server, i);
    lk__waiting_for_ranks(waiting, server->missing);
}

lk_status lk__server_receive(lk__rendezvous_server *server, lk__rendezvous_waiting *waiting, const char *from)
{
    while (lk__server_missing(server) >= 0) {
        double    now = lk__now();
        lk_status status = server->check ? server->check(server->comm) : LK_OK;
        if (status >= 0) status = check_dead_ranks(server);
        if (status < 0) return status;
        if (now > waiting->end) return fail_missing(server, now - waiting->begun, from);
        log_missing(server, waiting);
        int n = lk__acceptor_watch(&server->acceptor, server->polls);
        int ready = lk__poll_until(server->polls, (nfds_t)n, now + 0.02);
        if (ready < 0)
            return lk__fail(server->acceptor.context, LK_EIO, "rank 0 of %d cannot wait for the others: %s",
                            server->size, lk__comm_reason_of(errno).text);
        if (ready > 0) lk__acceptor_serve(&server->acceptor, server->polls);
    }
    return LK_OK;
}

lk_status lk__reply_check(lk_context *context, const lk__rendezvous_reply *reply, lk__rendezvous_trust trust,
                          const lk__rendezvous_request *request, const char *where)
{
    if (trust == LK__WRONG_TOKEN)
        return lk__fail(context, LK_EINVAL,
                        "rank %d of %d cannot join: wrong token, according to the process that listens on %s: "
                        "LOCKSTEP_TOKEN or the file "
                        "LOCKSTEP_TOKEN_FILE differs between this rank and that process",
                        request->rank, request->size, where);
    if (reply->status != LK_OK)
        return lk__fail(context, (lk_status)reply->status, "rank %d of %d cannot join: rank 0 reports: %s",
                        request->rank, request->size, reply->text);
    return LK_OK;
}
