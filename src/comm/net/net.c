/* net.c - a group over a mesh: creating, freeing, and its thread.
 *
 * A thread that waits in an operation polls the epoll set itself, which saves a switch between threads. The group's
 * thread polls it while no thread is in an operation, so that other ranks' queries are answered also while the program
 * computes. */
#define _GNU_SOURCE
#include "comm/net/net.h"

#include "comm/rendezvous/identity.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SPINS = 60, IDLE_MS = 20, HEARTBEAT_MS = 1000, HEARTBEATS_MOST = 64 };

/* ---- the epoll set ---- */

lk_status lk__net_watch(lk__net *net, int fd, lk__net_handler *handler)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = handler};
    if (epoll_ctl(net->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return lk__fail(net->comm->context, LK_EIO, "cannot poll a connection: %s", strerror(errno));
    return LK_OK;
}

static void signal_eventfd(int fd) { (void)!write(fd, &(uint64_t){1}, sizeof(uint64_t)); }
void        lk__net_wake(lk__net *net) { signal_eventfd(net->wakeup); }

static void on_wakeup(lk__net_handler *handler, uint32_t events)
{
    lk__net *net = (lk__net *)((char *)handler - offsetof(lk__net, wakeup_handler));
    uint64_t count;
    (void)events;
    (void)!read(net->wakeup, &count, sizeof count);
    atomic_fetch_add(&net->events, 1);
}

int lk__net_poll(lk__net *net, int milliseconds)
{
    struct epoll_event events[32];
    int                n = epoll_wait(net->epoll, events, 32, milliseconds);
    if (n <= 0) return 0;
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < n; i++) {
        lk__net_handler *handler = events[i].data.ptr;
        handler->ready(handler, events[i].events);
    }
    pthread_mutex_unlock(&net->lock);
    return n;
}

bool lk__net_pump(lk__net *net, double seconds)
{
    if (atomic_load_explicit(&net->watching, memory_order_relaxed)) signal_eventfd(net->thread_wakeup);
    for (int i = 0; i < net->spins; i++)
        if (lk__net_poll(net, 0) > 0) return true;
    int  milliseconds = seconds >= LK__NET_SLICE_MS / 1e3 ? LK__NET_SLICE_MS : (int)(seconds * 1e3 + 0.999);
    bool any = lk__net_poll(net, milliseconds) > 0;
    atomic_store_explicit(&net->driven, lk__now(), memory_order_relaxed);
    return any;
}

/* ---- the thread ---- */

/* Ranks that were not informed of this rank's state get it now and then, so that they know it if this rank dies. */
static void send_heartbeats(lk__net *net)
{
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < net->size && net->unreported; i++) {
        if (i == net->rank || net->peers[i].heartbeats >= HEARTBEATS_MOST) continue;
        net->peers[i].heartbeats++;
        lk__net_send_state(net, i);
    }
    net->unreported = false;
    pthread_mutex_unlock(&net->lock);
}

static bool driven_by_caller(lk__net *net)
{
    double ago = lk__now() - atomic_load_explicit(&net->driven, memory_order_relaxed);
    /* A caller that has not polled for long is computing, for example a large reduction. */
    return ago < (atomic_load(&net->drivers) > 0 ? 2 * LK__NET_SLICE_MS / 1e3 : IDLE_MS / 1e3);
}

static void *thread_main(void *argument)
{
    lk__net *net = argument;
    double   last_heartbeat = lk__now();
    while (!atomic_load(&net->stop)) {
        bool          driven = driven_by_caller(net);
        struct pollfd polls[2] = {{.fd = net->thread_wakeup, .events = POLLIN}, {.fd = net->epoll, .events = POLLIN}};
        atomic_store(&net->watching, !driven);
        int ready = poll(polls, driven ? 1 : 2, driven ? IDLE_MS : HEARTBEAT_MS / 4);
        atomic_store(&net->watching, false);
        if (ready > 0 && polls[0].revents) (void)!read(net->thread_wakeup, &(uint64_t){0}, sizeof(uint64_t));
        if (ready > 0 && !driven && polls[1].revents && !driven_by_caller(net)) {
            lk__net_poll(net, 0);
            if (atomic_load(&net->drivers) > 0) lk__net_wake(net); /* the caller may sleep for what was received */
        }
        if (lk__now() - last_heartbeat < HEARTBEAT_MS / 1e3) continue;
        last_heartbeat = lk__now();
        send_heartbeats(net);
    }
    return NULL;
}

/* ---- the table's functions ---- */

lk_status lk__net_table_failure(lk_comm *c) { return lk__net_failure(c->state); }
void      lk__net_table_raise(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    lk__net_raise_because(c->state, status, text, cause);
}
void     lk__net_table_wake(lk_comm *c) { lk__net_wake(c->state); }
uint64_t lk__net_table_sent(const lk_comm *c) { return atomic_load(&((lk__net *)c->state)->sent); }

void lk__net_table_busy(lk_comm *c, const char *what)
{
    lk__net *net = c->state;
    pthread_mutex_lock(&net->lock);
    net->mine.busy = what != NULL;
    snprintf(net->mine.busy_with, sizeof net->mine.busy_with, "%s", what ? what : "");
    for (int i = 0; i < net->size; i++)
        if (i != net->rank) lk__net_send_state(net, i);
    pthread_mutex_unlock(&net->lock);
}

struct lk__net_allocation {
    lk__net_allocation *next;
    size_t              bytes;
    _Alignas(LK__ALIGN) char memory[];
};

lk_status lk__net_allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    lk__net            *net = c->state;
    lk__net_allocation *p = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *p + bytes);
    (void)secret;
    if (!p) return LK_ENOMEM;
    p->next = net->pieces;
    p->bytes = bytes;
    net->pieces = p;
    *memory = p->memory;
    return LK_OK;
}

void lk__net_release(lk_comm *c, void *memory)
{
    lk__net *net = c->state;
    for (lk__net_allocation **at = &net->pieces; *at; at = &(*at)->next) {
        lk__net_allocation *p = *at;
        if (p->memory != memory) continue;
        *at = p->next;
        lk__free(c->context, LK_MEMORY_OTHER, p, sizeof *p + p->bytes);
        return;
    }
}

/* ---- create and free ---- */

static size_t peer_bytes(const lk__net *net) { return (size_t)net->size * sizeof *net->peers; }

static void free_peer(lk__net *net, lk__net_peer *p)
{
    lk_context *context = net->comm->context;
    if (p->fd >= 0) close(p->fd);
    while (p->notes) lk__net_forget_note(net, p);
    for (int i = 0; i < 2; i++) lk__free(context, LK_MEMORY_OTHER, p->arrivals[i].payload, LK__NET_SMALL);
    lk__free(context, LK_MEMORY_OTHER, p->in, LK__MESSAGE_MOST);
    lk__free(context, LK_MEMORY_OTHER, p->out, p->out_room);
}

void lk__net_table_free(lk_comm *c)
{
    lk__net *net = c->state;
    if (net->running) {
        atomic_store(&net->stop, true);
        signal_eventfd(net->thread_wakeup);
        pthread_join(net->thread, NULL);
        lk__net_disconnect(net);
    }
    if (net->collective_state) lk__net_collective_free(net);
    if (net->transfer_state) lk__net_transfer_free(net);
    if (net->transport) net->transport->free(net);
    while (net->pieces) lk__net_release(c, net->pieces->memory);
    for (int i = 0; net->peers && i < net->size; i++)
        if (i != net->rank) free_peer(net, &net->peers[i]);
    int fds[] = {net->epoll, net->wakeup, net->thread_wakeup};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) close(fds[i]);
    pthread_mutex_destroy(&net->lock);
    lk__mesh_close(&net->mesh);
    lk__free(c->context, LK_MEMORY_OTHER, net->inbox, LK__NET_INBOX);
    lk__free(c->context, LK_MEMORY_OTHER, net->peers, peer_bytes(net));
    lk__free(c->context, LK_MEMORY_OTHER, net->pending, (size_t)net->size * sizeof *net->pending);
    lk__free(c->context, LK_MEMORY_OTHER, net, sizeof *net);
    c->state = NULL;
}

static lk_status open_peers(lk__net *net)
{
    lk_status status = LK_OK;
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *p = &net->peers[i];
        *p = (lk__net_peer){.handler = {lk__net_receive}, .net = net, .rank = i, .fd = -1};
        p->last_note = &p->notes;
        if (i == net->rank || status < 0) continue;
        if (!(p->in = lk__alloc(net->comm->context, LK_MEMORY_OTHER, LK__MESSAGE_MOST))) {
            status = LK_ENOMEM;
            continue;
        }
        p->fd = net->mesh.ranks[i].fds[0];
        net->mesh.ranks[i].fds[0] = -1;
        status = lk__net_watch(net, p->fd, &p->handler);
    }
    return status;
}

/* Spin only where every rank of the host has a core. */
static int choose_spins(const lk_comm *c)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) >= c->local_size ? SPINS : 0;
}

static lk_status run_first_barrier(lk_comm *c)
{
    int64_t       timeout = c->timeout_ms;
    lk__comm_call o = {.kind = LK__BARRIER, .type = LK_U8, .site = {"lk_comm_create", 0}};
    c->timeout_ms = c->connect_ms;
    lk_status status = lk__net_collective(c, &o);
    c->timeout_ms = timeout;
    if (status < 0) {
        if (lk__net_failure(c->state) < 0) status = lk__comm_report_failure(c);
        lk__net_table_free(c);
    }
    return status;
}

lk_status lk__net_create(lk_comm *c, lk__net_mesh *mesh, const lk__net_transport *transport)
{
    lk__net *net = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *net);
    if (!net) {
        lk__mesh_close(mesh);
        return LK_ENOMEM;
    }
    *net = (lk__net){.comm = c,
                     .rank = mesh->rank,
                     .size = mesh->size,
                     .mesh = *mesh,
                     .since = lk__now(),
                     .wakeup_handler = {on_wakeup},
                     .epoll = epoll_create1(EPOLL_CLOEXEC),
                     .wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                     .thread_wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    mesh->ranks = NULL; /* owned by net now */
    c->state = net;
    lk__mesh_locals(&net->mesh, &c->local_rank, &c->local_size);
    net->spins = choose_spins(c);
    pthread_mutex_init(&net->lock, NULL);
    net->inbox = lk__alloc(c->context, LK_MEMORY_OTHER, LK__NET_INBOX);
    net->peers = lk__alloc(c->context, LK_MEMORY_OTHER, peer_bytes(net));
    net->pending = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)net->size * sizeof *net->pending);
    lk_status status = net->inbox && net->peers && net->pending ? LK_OK : LK_ENOMEM;
    if (status >= 0 && (net->epoll < 0 || net->wakeup < 0 || net->thread_wakeup < 0))
        status = lk__fail(c->context, LK_EIO, "rank %d cannot poll its connections: %s", c->rank, strerror(errno));
    if (net->peers) {
        lk_status opened = open_peers(net);
        if (status >= 0) status = opened;
    }
    if (status >= 0) status = lk__net_watch(net, net->wakeup, &net->wakeup_handler);
    if (status >= 0) {
        net->transport = transport;
        status = transport->open(net);
    }
    if (status >= 0 && pthread_create(&net->thread, NULL, thread_main, net) != 0)
        status = lk__fail(c->context, LK_ENOMEM, "cannot start the thread that serves a group's connections");
    if (status < 0) {
        lk__net_table_free(c);
        return status;
    }
    net->running = true;
    return run_first_barrier(c);
}

lk_status lk__net_open(lk_comm *c, const struct lk__rendezvous_identity *identity, const lk__net_transport *transport)
{
    lk__net_mesh mesh;
    int          streams = transport->streams > 1 && !identity->many_hosts
                               ? 1
                               : transport->streams; /* more than one help only between hosts */
    lk_status    status = lk__mesh_join(c, identity, streams, &mesh);
    return status < 0 ? status : lk__net_create(c, &mesh, transport);
}
