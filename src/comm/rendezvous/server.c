/* server.c - rank 0 receives the others, on one host or on several: each once, and who does not come is named. */
#define _GNU_SOURCE
#include "comm/process.h"
#include "comm/rendezvous/acceptor.h"
#include "comm/socket.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

lk__rendezvous_pending *lk__server_peer(const lk__rendezvous_server *p, int rank)
{
    lk__rendezvous_pending *v = p->ranks[rank];
    return v && v->fd >= 0 && v->known && v->hello.rank == rank ? v : NULL;
}

static void came(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *v, void *user)
{
    lk__rendezvous_server  *p = user;
    int                     rank = v->hello.rank;
    lk__rendezvous_reply    no = {.status = LK_EMISMATCH};
    lk__rendezvous_pending *there = v->hello.size == p->size ? lk__server_peer(p, rank) : NULL;
    if (v->hello.purpose != p->purpose)
        snprintf(no.text, sizeof no.text, "rank %d comes for something else, and the meeting is not over", rank);
    else if (v->hello.size != p->size)
        snprintf(no.text, sizeof no.text, "rank 0 is in a world of %d, and this rank in one of %d", p->size,
                 v->hello.size);
    else if (rank == 0)
        snprintf(no.text, sizeof no.text, "there is a rank 0 already, as process %ld", (long)getpid());
    else if (there && there != v) /* v itself: it left, and came again into the same place of the acceptor */
        snprintf(no.text, sizeof no.text, "rank %d is there already, as process %lld of %.60s", rank,
                 (long long)there->hello.card.pid, there->hello.card.host);
    else {
        p->ranks[rank] = v;
        p->pids[rank] = v->hello.card.pid;
        return;
    }
    lk__acceptor_reply(acceptor, v, &no);
    lk__acceptor_drop(acceptor, v, no.text);
}

static size_t seat_bytes(const lk__rendezvous_server *p) { return (size_t)p->size * sizeof *p->ranks; }
static size_t pid_bytes(const lk__rendezvous_server *p) { return (size_t)p->size * sizeof *p->pids; }
static size_t missing_bytes(const lk__rendezvous_server *p) { return (size_t)p->size * sizeof *p->missing; }
static size_t poll_bytes(const lk__rendezvous_server *p) { return (size_t)(p->acceptor.most + 1) * sizeof *p->polls; }

lk_status lk__server_open(lk__rendezvous_server *p, lk_context *context, lk__rendezvous_listener *listener,
                          const char *token, lk__rendezvous_purpose purpose, int size)
{
    *p = (lk__rendezvous_server){.purpose = purpose, .size = size};
    lk_status status = lk__acceptor_open(&p->acceptor, context, listener, token, size);
    p->acceptor.came = came;
    p->acceptor.user = p;
    if (status >= 0) p->ranks = lk__alloc(context, LK_MEMORY_OTHER, seat_bytes(p));
    if (status >= 0) p->polls = lk__alloc(context, LK_MEMORY_OTHER, poll_bytes(p));
    if (status >= 0) p->pids = lk__alloc(context, LK_MEMORY_OTHER, pid_bytes(p));
    if (status >= 0) p->missing = lk__alloc(context, LK_MEMORY_OTHER, missing_bytes(p));
    return p->ranks && p->polls && p->pids && p->missing ? LK_OK : LK_ENOMEM;
}

void lk__server_close(lk__rendezvous_server *p)
{
    lk_context *context = p->acceptor.context;
    if (!context) return; /* it was never opened */
    lk__free(context, LK_MEMORY_OTHER, p->ranks, seat_bytes(p));
    lk__free(context, LK_MEMORY_OTHER, p->polls, poll_bytes(p));
    lk__free(context, LK_MEMORY_OTHER, p->pids, pid_bytes(p));
    lk__free(context, LK_MEMORY_OTHER, p->missing, missing_bytes(p));
    lk__acceptor_close(&p->acceptor);
}

static lk_status say_missing(const lk__rendezvous_server *p, double seconds, const char *from)
{
    lk_context *context = p->acceptor.context;
    char        names[200] = "", where[LK__ADDRESS_TEXT];
    size_t      used = 0;
    int         missing = 0;
    for (int i = 1; i < p->size; i++) {
        if (lk__server_peer(p, i)) continue;
        missing++;
        if (used + 16 < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", i);
    }
    lk__address_show(&p->acceptor.listener->bound, where, sizeof where);
    if (p->acceptor.why)
        return lk__fail(context, LK_EIO, "rank 0 of %d could not let rank%s %s in on %s for %.1f s: %s", p->size,
                        missing > 1 ? "s" : "", names, where, seconds, lk__comm_reason_of(p->acceptor.why).text);
    return lk__fail(
        context, LK_ETIMEOUT, "rank%s %s of %d never came within %.1f s; rank 0 listened on %s%s%s%s, %d of %d came%s",
        missing > 1 ? "s" : "", names, p->size, seconds, where, *from ? " (" : "", from, *from ? ")" : "",
        p->size - 1 - missing, p->size - 1, p->acceptor.dropped ? ", and others who were dropped (see the log)" : "");
}

/* The first that is not there; -1: all are. */
static int first_missing(const lk__rendezvous_server *p)
{
    for (int i = 1; i < p->size; i++)
        if (!lk__server_peer(p, i)) return i;
    return -1;
}

/* A rank of this host that came and whose process is gone will not come again. Of other hosts' nobody knows, and there a user may
 * start one anew. */
static lk_status check_deaths(lk__rendezvous_server *p)
{
    if (p->acceptor.listener->bound.ss_family != AF_UNIX) return LK_OK;
    for (int i = 1; i < p->size; i++)
        if (p->pids[i] && !lk__server_peer(p, i) && lk__process_gone(p->pids[i])) {
            p->dead = i;
            return lk__fail(p->acceptor.context, LK_EIO, "rank %d of %d (process %lld) died before all ranks had joined",
                            i, p->size, (long long)p->pids[i]);
        }
    return LK_OK;
}

void lk__server_note_failure(const lk__rendezvous_server *p, const lk_comm *comm)
{
    int missing = p->dead ? p->dead : first_missing(p);
    if (missing >= 0) lk__comm_join_failed(comm, missing, p->dead ? LK__CAUSE_DEAD : LK__CAUSE_LATE);
}

static void report_missing(lk__rendezvous_server *p, lk__rendezvous_waiting *waiting)
{
    if (!lk__waiting_due(waiting)) return;
    for (int i = 1; i < p->size; i++) p->missing[i] = !lk__server_peer(p, i);
    lk__waiting_for_ranks(waiting, p->missing);
}

lk_status lk__server_receive(lk__rendezvous_server *p, lk__rendezvous_waiting *waiting, const char *from)
{
    while (first_missing(p) >= 0) {
        double    now = lk__now();
        lk_status status = check_deaths(p);
        if (status < 0) return status;
        if (now > waiting->end) return say_missing(p, now - waiting->begun, from);
        report_missing(p, waiting);
        int n = lk__acceptor_watch(&p->acceptor, p->polls);
        int ready = lk__poll_until(p->polls, (nfds_t)n, now + 0.02);
        if (ready < 0)
            return lk__fail(p->acceptor.context, LK_EIO, "rank 0 of %d cannot wait for the others: %s", p->size,
                            lk__comm_reason_of(errno).text);
        if (ready > 0) lk__acceptor_serve(&p->acceptor, p->polls);
    }
    return LK_OK;
}

lk_status lk__reply_check(lk_context *context, const lk__rendezvous_reply *answer, lk__rendezvous_trust belief,
                          const lk__rendezvous_request *hello, const char *where)
{
    if (belief == LK__WRONG_TOKEN)
        return lk__fail(context, LK_EINVAL,
                        "rank %d of %d cannot join: wrong token, says who listens on %s: LOCKSTEP_TOKEN or the file "
                        "LOCKSTEP_TOKEN_FILE differs between this rank and that one",
                        hello->rank, hello->size, where);
    if (answer->status != LK_OK)
        return lk__fail(context, (lk_status)answer->status, "rank %d of %d cannot join: rank 0 says: %s", hello->rank,
                        hello->size, answer->text);
    return LK_OK;
}
