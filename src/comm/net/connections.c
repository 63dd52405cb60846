/* connections.c - the connections that groups share: the epoll set and the thread that polls it, and the list of
 * groups.
 *
 * A thread that waits in an operation polls the set itself, which saves a switch between threads. The connections'
 * thread polls it while no thread is in an operation, so that other ranks' queries are answered also while the program
 * computes. */
#define _GNU_SOURCE
#include "comm/net/connections.h"

#include "base/futex.h"
#include "comm/net/net.h"
#include "comm/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { IDLE_MS = 20, HEARTBEAT_MS = 1000, HEARTBEATS_MOST = 64 };

/* ---- the epoll set ---- */

lk_status lk__connections_watch(lk__net_connections *cs, int fd, lk__net_handler *handler)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = handler};
    if (epoll_ctl(cs->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return lk__fail(cs->context, LK_EIO, "cannot poll a connection: %s", strerror(errno));
    return LK_OK;
}

static void signal_eventfd(int fd) { (void)!write(fd, &(uint64_t){1}, sizeof(uint64_t)); }

static void on_wakeup(lk__net_handler *handler, uint32_t events)
{
    lk__net_connections *cs = (lk__net_connections *)((char *)handler - offsetof(lk__net_connections, wakeup_handler));
    uint64_t             count;
    (void)events;
    (void)!read(cs->wakeup, &count, sizeof count);
}

static void handle_events(lk__net_connections *cs, const struct epoll_event *events, int n)
{
    pthread_mutex_lock(&cs->lock);
    for (int i = 0; i < n; i++) {
        lk__net_handler *handler = events[i].data.ptr;
        handler->ready(handler, events[i].events);
    }
    pthread_mutex_unlock(&cs->lock);
}

enum { EVENTS = 32 };

int lk__connections_poll(lk__net_connections *cs, int milliseconds)
{
    struct epoll_event events[EVENTS];
    int                n = epoll_wait(cs->epoll, events, EVENTS, milliseconds);
    if (n > 0) handle_events(cs, events, n);
    return n > 0 ? n : 0;
}

/* ---- who polls it ---- */

void lk__net_notify(lk__net *net)
{
    atomic_fetch_add(&net->events, 1);
    if (atomic_load(&net->sleepers)) lk__futex_wake(&net->events);
    if (atomic_load(&net->connections->poller) == net) signal_eventfd(net->connections->wakeup);
}

void lk__connections_notify_flights(lk__net_connections *cs)
{
    for (lk__net *net = cs->groups; net; net = net->next)
        if (atomic_load(&net->flights)) lk__net_notify(net);
}

/* A caller that stops polling, or that was to begin and does not wait any more, wakes one of those that rely on it. */
static void hand_over(lk__net_connections *cs)
{
    if (!atomic_load(&cs->followers) || atomic_load(&cs->polling)) return;
    pthread_mutex_lock(&cs->lock);
    lk__net *net = cs->groups;
    while (net && !atomic_load(&net->sleepers)) net = net->next;
    if (net) lk__net_notify(net);
    pthread_mutex_unlock(&cs->lock);
}

static bool is_seen(lk__net *net, uint32_t seen) { return atomic_load(&net->events) == seen; }

/* Polls for all, until something of this group changed. The order of stores and loads here and in lk__net_notify:
 * whoever changes `events` either sees `poller`, or is seen before this thread sleeps. */
static void poll_for_all(lk__net *net, uint32_t seen, double end, int milliseconds)
{
    lk__net_connections *cs = net->connections;
    struct epoll_event   events[EVENTS];
    while (is_seen(net, seen) && milliseconds > 0) {
        atomic_store(&cs->poller, net);
        int n = is_seen(net, seen) ? epoll_wait(cs->epoll, events, EVENTS, milliseconds) : 0;
        atomic_store(&cs->poller, NULL);
        if (n > 0) handle_events(cs, events, n);
        double now = lk__now();
        atomic_store_explicit(&cs->driven, now, memory_order_relaxed);
        milliseconds = now < end ? (int)((end - now) * 1e3 + 0.999) : 0;
    }
    atomic_store(&cs->polling, false);
}

static void sleep_while_polled(lk__net *net, uint32_t seen, int milliseconds)
{
    lk__net_connections *cs = net->connections;
    atomic_fetch_add(&net->sleepers, 1);
    atomic_fetch_add(&cs->followers, 1);
    if (is_seen(net, seen) && atomic_load(&cs->polling)) lk__futex_wait(&net->events, seen, milliseconds);
    atomic_fetch_sub(&cs->followers, 1);
    atomic_fetch_sub(&net->sleepers, 1);
}

bool lk__net_pump(lk__net *net, uint32_t seen, double seconds)
{
    lk__net_connections *cs = net->connections;
    if (atomic_load_explicit(&cs->watching, memory_order_relaxed)) signal_eventfd(cs->thread_wakeup);
    for (int i = 0; i < cs->spins; i++) {
        if (!is_seen(net, seen)) return true;
        (void)lk__connections_poll(cs, 0);
    }
    if (seconds > LK__NET_SLICE_MS / 1e3) seconds = LK__NET_SLICE_MS / 1e3;
    double now = lk__now(), end = now + seconds;
    while (is_seen(net, seen) && now < end) {
        int milliseconds = (int)((end - now) * 1e3 + 0.999);
        if (!atomic_exchange(&cs->polling, true))
            poll_for_all(net, seen, end, milliseconds);
        else
            sleep_while_polled(net, seen, milliseconds);
        now = lk__now();
    }
    hand_over(cs);
    atomic_store_explicit(&cs->driven, now, memory_order_relaxed);
    return !is_seen(net, seen);
}

/* ---- the thread ---- */

/* Ranks that were not informed of this rank's state get it now and then, so that they know it if this rank dies. */
static void send_heartbeats(lk__net_connections *cs)
{
    pthread_mutex_lock(&cs->lock);
    for (lk__net *net = cs->groups; net; net = net->next) {
        for (int i = 0; i < net->size && net->unreported; i++) {
            lk__net_connection *c = net->peers[i].connection;
            if (i == net->rank || c->heartbeats >= HEARTBEATS_MOST) continue;
            c->heartbeats++;
            lk__net_send_state(net, i);
        }
        net->unreported = false;
    }
    pthread_mutex_unlock(&cs->lock);
}

static bool driven_by_caller(lk__net_connections *cs)
{
    double ago = lk__now() - atomic_load_explicit(&cs->driven, memory_order_relaxed);
    /* A caller that has not polled for long is computing, for example a large reduction. */
    return ago < (atomic_load(&cs->drivers) > 0 ? 2 * LK__NET_SLICE_MS / 1e3 : IDLE_MS / 1e3);
}

static void *thread_main(void *argument)
{
    lk__net_connections *cs = argument;
    double               last_heartbeat = lk__now();
    while (!atomic_load(&cs->stop)) {
        bool          driven = driven_by_caller(cs);
        struct pollfd polls[2] = {{.fd = cs->thread_wakeup, .events = POLLIN}, {.fd = cs->epoll, .events = POLLIN}};
        atomic_store(&cs->watching, !driven);
        int ready = poll(polls, driven ? 1 : 2, driven ? IDLE_MS : HEARTBEAT_MS / 4);
        atomic_store(&cs->watching, false);
        if (ready > 0 && polls[0].revents) (void)!read(cs->thread_wakeup, &(uint64_t){0}, sizeof(uint64_t));
        if (ready > 0 && !driven && polls[1].revents && !driven_by_caller(cs)) lk__connections_poll(cs, 0);
        if (lk__now() - last_heartbeat < HEARTBEAT_MS / 1e3) continue;
        last_heartbeat = lk__now();
        send_heartbeats(cs);
    }
    return NULL;
}

lk_status lk__connections_start(lk__net_connections *cs)
{
    if (pthread_create(&cs->thread, NULL, thread_main, cs) != 0)
        return lk__fail(cs->context, LK_ENOMEM, "cannot start the thread that serves a group's connections");
    cs->running = true;
    return LK_OK;
}

void lk__connections_stop(lk__net_connections *cs)
{
    if (!cs->running) return;
    atomic_store(&cs->stop, true);
    signal_eventfd(cs->thread_wakeup);
    pthread_join(cs->thread, NULL);
    cs->running = false;
}

/* ---- the list of groups ---- */

/* Under the lock. */
static void lose_in_group(lk__net *net, int rank, bool cut_off)
{
    lk__net_peer *p = &net->peers[rank];
    if (!atomic_load(&p->gone)) {
        atomic_store(&p->lost_at, lk__now());
        atomic_store(cut_off ? &p->cut_off : &p->dead, true);
    }
    lk__net_notify(net);
}

/* Of groups that were freed, this rank sends nothing more to. */
static void expect_nothing(lk__net_connections *cs, int rank)
{
    for (lk__net_retired **at = &cs->retired; *at;) {
        lk__net_retired *r = *at;
        r->left -= r->expected[rank];
        r->expected[rank] = false;
        if (r->left > 0) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        lk__free(cs->context, LK_MEMORY_OTHER, r, sizeof *r + (size_t)cs->size * sizeof *r->expected);
    }
}

void lk__connection_lose(lk__net_connection *c, int why)
{
    lk__net_connections *cs = c->connections;
    if (c->fd < 0) return;
    close(c->fd);
    c->fd = -1;
    if (lk__error_is_cut_off(why)) atomic_store(&c->cut_off, true);
    for (lk__net *net = cs->groups; net; net = net->next)
        if (net->rank_of[c->rank] >= 0) lose_in_group(net, net->rank_of[c->rank], atomic_load(&c->cut_off));
    expect_nothing(cs, c->rank);
}

void lk__connections_drained(lk__net_connections *cs, int rank, bool cut_off)
{
    lk__net_connection *c = &cs->all[rank];
    pthread_mutex_lock(&cs->lock);
    if (cut_off) atomic_store(&c->cut_off, true);
    atomic_store(&c->drained, true);
    for (lk__net *net = cs->groups; net; net = net->next) {
        if (net->rank_of[rank] < 0) continue;
        lk__net_peer *p = &net->peers[net->rank_of[rank]];
        if (cut_off && !atomic_exchange(&p->cut_off, true)) atomic_store(&p->lost_at, lk__now());
        atomic_store(&p->drained, true);
        lk__net_notify(net);
    }
    pthread_mutex_unlock(&cs->lock);
}

void lk__connections_add(lk__net *net)
{
    lk__net_connections *cs = net->connections;
    pthread_mutex_lock(&cs->lock);
    net->next = cs->groups;
    cs->groups = net;
    for (int i = 0; i < net->size; i++) {
        lk__net_connection *c = net->peers[i].connection;
        if (i == net->rank) continue;
        atomic_store(&net->peers[i].drained, atomic_load(&c->drained));
        lk__connection_replay(c, net);
        if (c->fd < 0) lose_in_group(net, i, atomic_load(&c->cut_off)); /* since the split */
    }
    pthread_mutex_unlock(&cs->lock);
}

void lk__connections_remove(lk__net *net)
{
    lk__net_connections *cs = net->connections;
    lk__net_retired     *r = net->retired;
    pthread_mutex_lock(&cs->lock);
    lk__net_send_departure(net);
    lk__net **at = &cs->groups;
    while (*at != net) at = &(*at)->next;
    *at = net->next;
    r->group = net->id;
    for (int i = 0; i < net->size; i++) {
        const lk__net_peer *p = &net->peers[i];
        if (i == net->rank || p->connection->fd < 0 || atomic_load(&p->gone)) continue;
        r->expected[p->connection->rank] = true;
        r->left++;
    }
    if (r->left > 0) {
        r->next = cs->retired;
        cs->retired = r;
        net->retired = NULL;
    }
    pthread_mutex_unlock(&cs->lock);
}

void lk__connections_decline(lk__net_connections *cs, uint64_t group, const int *members, int size)
{
    lk__net_message_header gone = {.bytes = sizeof gone, .kind = LK__MESSAGE_GONE, .group = group};
    pthread_mutex_lock(&cs->lock);
    for (int i = 0; i < size; i++)
        if (members[i] != cs->rank) lk__connection_send(&cs->all[members[i]], &gone, sizeof gone, NULL, 0);
    pthread_mutex_unlock(&cs->lock);
}

/* ---- make and close ---- */

static lk_status open_connections(lk__net_connections *cs, lk__net_mesh *mesh)
{
    lk_status status = LK_OK;
    for (int i = 0; i < cs->size; i++) {
        lk__net_connection *c = &cs->all[i];
        *c = (lk__net_connection){.handler = {lk__connection_receive}, .connections = cs, .rank = i, .fd = -1};
        c->last_early = &c->early;
        while (strcmp(mesh->ranks[c->host].host_id, mesh->ranks[i].host_id) != 0) c->host++;
        if (i == cs->rank || status < 0) continue;
        if (!(c->in = lk__alloc(cs->context, LK_MEMORY_OTHER, LK__MESSAGE_MOST))) {
            status = LK_ENOMEM;
            continue;
        }
        c->fd = mesh->ranks[i].fds[0];
        mesh->ranks[i].fds[0] = -1;
        status = lk__connections_watch(cs, c->fd, &c->handler);
    }
    return status;
}

lk_status lk__connections_make(lk_context *context, lk__net_mesh *mesh, const lk__net_transport *transport,
                               lk__net_connections **made)
{
    lk__net_connections *cs = *made = lk__alloc(context, LK_MEMORY_OTHER, sizeof *cs);
    if (!cs) return LK_ENOMEM;
    *cs = (lk__net_connections){.context = context,
                                .rank = mesh->rank,
                                .size = mesh->size,
                                .transport = transport,
                                .wakeup_handler = {on_wakeup},
                                .epoll = epoll_create1(EPOLL_CLOEXEC),
                                .wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                .thread_wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    int error = errno;
    pthread_mutex_init(&cs->lock, NULL);
    cs->inbox = lk__alloc(context, LK_MEMORY_OTHER, LK__NET_INBOX);
    cs->all = lk__alloc(context, LK_MEMORY_OTHER, (size_t)cs->size * sizeof *cs->all);
    lk_status status = cs->inbox && cs->all ? LK_OK : LK_ENOMEM;
    if (status >= 0 && (cs->epoll < 0 || cs->wakeup < 0 || cs->thread_wakeup < 0))
        status = lk__fail(context, LK_EIO, "rank %d cannot poll its connections: %s", cs->rank, strerror(error));
    if (cs->all) {
        lk_status opened = open_connections(cs, mesh);
        if (status >= 0) status = opened;
    }
    if (status >= 0) status = lk__connections_watch(cs, cs->wakeup, &cs->wakeup_handler);
    return status;
}

static void free_connection(lk__net_connection *c)
{
    lk_context *context = c->connections->context;
    if (c->fd >= 0) close(c->fd);
    for (lk__net_early *early = c->early, *next; early; early = next) {
        next = early->next;
        lk__free(context, LK_MEMORY_OTHER, early, sizeof *early + early->bytes);
    }
    lk__free(context, LK_MEMORY_OTHER, c->in, LK__MESSAGE_MOST);
    lk__free(context, LK_MEMORY_OTHER, c->out, c->out_room);
}

void lk__connections_close(lk__net_connections *cs)
{
    if (!cs) return;
    if (cs->transport->close) cs->transport->close(cs);
    for (int i = 0; cs->all && i < cs->size; i++) {
        if (i == cs->rank) continue;
        if (cs->all[i].connections) expect_nothing(cs, i);
        free_connection(&cs->all[i]);
    }
    int fds[] = {cs->epoll, cs->wakeup, cs->thread_wakeup};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) close(fds[i]);
    pthread_mutex_destroy(&cs->lock);
    lk__free(cs->context, LK_MEMORY_OTHER, cs->inbox, LK__NET_INBOX);
    lk__free(cs->context, LK_MEMORY_OTHER, cs->all, (size_t)cs->size * sizeof *cs->all);
    lk__free(cs->context, LK_MEMORY_OTHER, cs, sizeof *cs);
}
