/* mpi.c - bulk data over MPI. Control messages use Lockstep's own mesh, so that a mismatch, a dead rank or a late rank
 * is reported as by other backends. Addresses and a random token for the mesh are exchanged over MPI, so nothing has to
 * be configured under mpirun or srun. A group that failed never calls MPI again, and what it had in flight is leaked on
 * purpose: MPI cannot cancel it. */
#define _GNU_SOURCE
#include "comm/mpi/mpi.h"

#include "base/entropy.h"
#include "comm/rendezvous/connect.h"
#include "comm/transports.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* MPI's state of one group. */
typedef struct mpi_state {
    const lk__mpi_module *mpi;
    lk__mpi_group        *group;
    int                  *world; /* by rank of the group: its rank in MPI's world */
    int                   size;
    bool                  in_order;
    /* finished, to be reused: repeated calls allocate nothing besides what MPI does */
    lk__net_transfer_state *spare;
} mpi_state;

struct lk__net_transfer_state {
    lk__mpi_request        *request;
    bool                    done;
    lk__net_transfer_state *next; /* spare */
};

enum { TESTS = 100, PAUSE_US = 50, PAUSE_MOST_US = 1000 };

static void free_mpi_state(lk_context *context, mpi_state *k)
{
    if (!k) return;
    if (k->group) k->mpi->leave(k->group, k->in_order);
    for (lk__net_transfer_state *f = k->spare, *next; f; f = next) {
        next = f->next;
        lk__free(context, LK_MEMORY_OTHER, f, sizeof *f);
    }
    lk__free(context, LK_MEMORY_OTHER, k->world, (size_t)k->size * sizeof *k->world);
    lk__free(context, LK_MEMORY_OTHER, k, sizeof *k);
}

/* ---- the transport ---- */

static lk_status raise_mpi_failure(lk__net *net, const char *text)
{
    char why[LK__MPI_TEXT + 64];
    snprintf(why, sizeof why, "MPI failed on rank %d: %s", net->rank, text);
    return lk__net_raise_because(net, LK_EIO, why, lk__comm_cause_make(net->comm, net->rank, LK__CAUSE_OWN));
}

static lk_status open_transport(lk__net *net)
{
    (void)net; /* its state exists before the mesh */
    return LK_OK;
}

static lk_status reserve_flights(lk__net *net, int count)
{
    mpi_state *k = net->transport_state;
    for (int i = 0; i < count; i++) {
        lk__net_transfer_state *f = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *f);
        if (!f) return LK_ENOMEM;
        f->next = k->spare;
        k->spare = f;
    }
    return LK_OK;
}

static lk__net_transfer_state *take_flight(lk__net *net)
{
    mpi_state *k = net->transport_state;
    if (!k->spare && reserve_flights(net, 1) < 0) return NULL;
    lk__net_transfer_state *f = k->spare;
    k->spare = f->next;
    *f = (lk__net_transfer_state){.request = NULL};
    return f;
}

static void put_flight(lk__net *net, lk__net_transfer_state *f)
{
    mpi_state *k = net->transport_state;
    if (!f) return;
    f->next = k->spare;
    k->spare = f;
}

static lk_status begin_flight(lk__net *net, int code, const char *text, lk__mpi_request *request,
                              lk__net_transfer_state **flight)
{
    lk__net_transfer_state *f = take_flight(net);
    if (code != 0 || !f) {
        if (request) atomic_store(&net->abandoned, true);
        put_flight(net, f);
        return code != 0 ? raise_mpi_failure(net, text)
                         : lk__net_raise(net, LK_ENOMEM, "out of memory: cannot start an exchange over MPI");
    }
    f->request = request;
    *flight = f;
    return LK_OK;
}

_Static_assert(sizeof(lk__net_part) == sizeof(lk__mpi_part) &&
                   offsetof(lk__net_part, recv) == offsetof(lk__mpi_part, recv) &&
                   offsetof(lk__net_part, send_bytes) == offsetof(lk__mpi_part, send_bytes) &&
                   offsetof(lk__net_part, recv_bytes) == offsetof(lk__mpi_part, recv_bytes),
               "the module, which includes no other header, declares the same part");

static lk_status exchange(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight)
{
    mpi_state       *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    for (int i = 0; i < net->size; i++)
        if (i != net->rank) atomic_fetch_add_explicit(&net->sent, parts[i].send_bytes, memory_order_relaxed);
    int code = k->mpi->exchange(k->group, (const lk__mpi_part *)parts, &request, text);
    return begin_flight(net, code, text, request, flight);
}

static lk_status send_message(lk__net *net, int peer, uint64_t id, const void *data, size_t bytes,
                              lk__net_transfer_state **flight)
{
    mpi_state       *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    int code = k->mpi->send(k->group, peer, id, data, bytes, &request, text);
    return begin_flight(net, code, text, request, flight);
}

static lk_status receive_message(lk__net *net, int peer, uint64_t id, void *data, size_t bytes,
                                 lk__net_transfer_state **flight)
{
    mpi_state       *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    int code = k->mpi->recv(k->group, peer, id, data, bytes, &request, text);
    return begin_flight(net, code, text, request, flight);
}

/* MPI progresses only inside its calls, and cannot wait with a deadline: so it is polled, first often, then with
 * pauses. */
static lk_status wait_flight(lk__net *net, lk__net_transfer_state *f, double seconds)
{
    mpi_state *k = net->transport_state;
    double     end = 0;
    useconds_t pause = PAUSE_US;
    uint32_t   seen = atomic_load(&net->events);
    char       text[LK__MPI_TEXT];
    for (int tries = 0; !f->done; tries++) {
        lk_status status = lk__net_failure(net);
        if (status < 0) return status;
        int code = k->mpi->test(f->request, text);
        if (code < 0) return raise_mpi_failure(net, text);
        if (code > 0) {
            f->done = true;
            atomic_fetch_add_explicit(&net->progress, 1, memory_order_relaxed);
            break;
        }
        if (seconds <= 0) return LK_END;
        if (tries < TESTS) {
            sched_yield();
            continue;
        }
        double now = lk__now();
        if (end == 0) end = now + seconds;
        if (now >= end) return LK_END;
        (void)lk__connections_poll(net->connections, 0);
        if (atomic_load(&net->events) != seen) return LK_END; /* a control message may report why it takes so long */
        usleep(pause);
        if (pause < PAUSE_MOST_US) pause *= 2;
    }
    return LK_OK;
}

static void finish(lk__net *net, lk__net_transfer_state *f)
{
    mpi_state *k = net->transport_state;
    if (f->done) {
        k->mpi->drop(f->request);
    } else {
        k->in_order = false;
        atomic_store(&net->abandoned, true);
    }
    put_flight(net, f);
}

static void free_transport(lk__net *net)
{
    mpi_state *k = net->transport_state;
    if (k && lk__net_failure(net) < 0) k->in_order = false;
    free_mpi_state(net->comm->context, k);
    net->transport_state = NULL;
}

static const lk__net_transport transport = {.name = "mpi",
                                            .open = open_transport,
                                            .exchange = exchange,
                                            .send = send_message,
                                            .recv = receive_message,
                                            .reserve = reserve_flights,
                                            .wait = wait_flight,
                                            .finish = finish,
                                            .free = free_transport};

/* ---- create ---- */

/* Makes a communicator of ranks of MPI's world, which all call this within join_ms. */
static lk_status join_communicator(lk_comm *c, const lk__mpi_module *mpi, const int *world, int tag, mpi_state **made)
{
    char       text[LK__MPI_TEXT];
    mpi_state *k = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *k);
    if (!k) return LK_ENOMEM;
    *k = (mpi_state){.mpi = mpi, .size = c->size, .in_order = true};
    k->world = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)c->size * sizeof *k->world);
    if (!k->world) {
        free_mpi_state(c->context, k);
        return LK_ENOMEM;
    }
    memcpy(k->world, world, (size_t)c->size * sizeof *world);
    if (mpi->join(world, c->size, tag, (double)c->join_ms / 1e3, &k->group, text) != 0) {
        free_mpi_state(c->context, k);
        return lk__fail(c->context, LK_ETIMEOUT, "rank %d of %d cannot join over MPI: %s", c->rank, c->size, text);
    }
    *made = k;
    return LK_OK;
}

/* Gathers `bytes` of every rank on every rank, before there is a mesh. */
static lk_status gather_over_mpi(lk_comm *c, mpi_state *k, const void *mine, void *all, size_t bytes)
{
    char             text[LK__MPI_TEXT];
    lk__mpi_request *request = NULL;
    double           end = lk__now() + (double)c->connect_ms / 1e3;
    int              code = k->mpi->all_gather(k->group, mine, all, bytes, &request, text);
    while (code == 0 && (code = k->mpi->test(request, text)) == 0 && lk__now() < end) usleep(PAUSE_US);
    if (code > 0) {
        k->mpi->drop(request);
        return LK_OK;
    }
    k->in_order = false;
    if (code < 0) return lk__fail(c->context, LK_EIO, "rank %d cannot join over MPI: %s", c->rank, text);
    return lk__fail(c->context, LK_ETIMEOUT,
                    "rank %d of %d joined over MPI, but other ranks did not exchange addresses within %.1f s", c->rank,
                    c->size, (double)c->connect_ms / 1e3);
}

enum { ADDRESSES = 8 };
/* from a host to an address: the higher the better */
typedef enum reachability { UNREACHABLE, ROUTED, SAME_NETWORK } reachability;

/* What ranks exchange: their identity, then how they would reach rank 0, then where they listen. */
typedef struct join_info {
    lk__rendezvous_endpoint endpoint;
    unsigned char           secret[LK__NONCE];         /* rank 0's is used */
    lk__rendezvous_address  addresses[ADDRESSES];      /* of this rank's host: rank 0's are used */
    unsigned char           reachabilities[ADDRESSES]; /* to each of rank 0's, as `reachability` */
} join_info;

static bool is_candidate(const struct ifaddrs *i, int family)
{
    return i->ifa_addr && i->ifa_addr->sa_family == family && (i->ifa_flags & IFF_UP) &&
           !(i->ifa_flags & IFF_LOOPBACK) &&
           !(family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

static void convert_address(const struct sockaddr *from, lk__rendezvous_address *a)
{
    struct sockaddr_storage storage = {0};
    memcpy(&storage, from, from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    (void)lk__address_from_socket(a, &storage);
}

/* The addresses of this host by which others might reach it, IPv4 first. */
static void list_own_addresses(lk__rendezvous_address addresses[ADDRESSES])
{
    struct ifaddrs *list = NULL;
    int             count = 0;
    if (getifaddrs(&list) != 0) return;
    for (int pass = 0; pass < 2; pass++)
        for (struct ifaddrs *i = list; i && count < ADDRESSES; i = i->ifa_next)
            if (is_candidate(i, pass ? AF_INET6 : AF_INET)) convert_address(i->ifa_addr, &addresses[count++]);
    freeifaddrs(list);
}

/* The source address that this host would use towards `to`. Nothing is sent. */
static bool source_address_for(const lk__rendezvous_address *to, struct sockaddr_storage *address)
{
    struct sockaddr_storage there;
    socklen_t               bytes = lk__address_to_socket(to, 0, &there), length = sizeof *address;
    int                     fd = bytes ? socket(there.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    bool                    found = fd >= 0 && connect(fd, (const struct sockaddr *)&there, bytes) == 0 &&
                 getsockname(fd, (struct sockaddr *)address, &length) == 0;
    if (fd >= 0) close(fd);
    return found;
}

/* Whether two addresses are in one network of this mask. */
static bool in_network(const lk__rendezvous_address *a, const lk__rendezvous_address *b, const struct sockaddr *mask)
{
    const unsigned char *bits = a->family == 6 ? ((const struct sockaddr_in6 *)mask)->sin6_addr.s6_addr
                                               : (const unsigned char *)&((const struct sockaddr_in *)mask)->sin_addr;
    for (int i = 0; i < (a->family == 6 ? 16 : 4); i++)
        if ((a->bytes[i] ^ b->bytes[i]) & bits[i]) return false;
    return true;
}

/* How another host's address is reached from this one. An address that this host has too, such as that of a container
 * bridge, which may be equal on every host, would reach this host only. */
static reachability reachability_of(const lk__rendezvous_address *to)
{
    struct sockaddr_storage from;
    struct ifaddrs         *list = NULL;
    reachability            found = source_address_for(to, &from) ? ROUTED : UNREACHABLE;
    if (found == UNREACHABLE || getifaddrs(&list) != 0) return found;
    for (struct ifaddrs *i = list; i && found != UNREACHABLE; i = i->ifa_next) {
        lk__rendezvous_address own = {0};
        if (!is_candidate(i, to->family == 6 ? AF_INET6 : AF_INET)) continue;
        convert_address(i->ifa_addr, &own);
        if (memcmp(own.bytes, to->bytes, sizeof own.bytes) == 0)
            found = UNREACHABLE;
        else if (i->ifa_netmask && in_network(&own, to, i->ifa_netmask))
            found = SAME_NETWORK;
    }
    freeifaddrs(list);
    return found;
}

/* Whether two ranks have the same interfaces: a host id begins with the boot id and the network namespace. */
static bool same_network(const join_info *a, const join_info *b)
{
    const char *end = strchr(a->endpoint.host_id, ':');
    end = end ? strchr(end + 1, ':') : NULL;
    return end && strncmp(a->endpoint.host_id, b->endpoint.host_id, (size_t)(end + 1 - a->endpoint.host_id)) == 0;
}

/* The address of rank 0 that all other hosts reach best. All ranks have the same data and choose the same. */
static lk_status choose_address(lk_comm *c, const join_info *all, const lk__rendezvous_address **chosen)
{
    reachability best = UNREACHABLE;
    int          unreachable_rank = 0;
    for (int i = 0; i < ADDRESSES && all[0].addresses[i].family; i++) {
        reachability worst = SAME_NETWORK;
        for (int rank = 1; rank < c->size; rank++) {
            reachability one = (reachability)all[rank].reachabilities[i];
            if (one >= worst || same_network(&all[rank], &all[0])) continue;
            worst = one;
            if (one == UNREACHABLE) unreachable_rank = rank;
        }
        if (worst <= best) continue;
        best = worst;
        *chosen = &all[0].addresses[i];
    }
    if (best > UNREACHABLE) return LK_OK;
    if (!all[0].addresses[0].family)
        return lk__fail(c->context, LK_EIO, "rank 0 on %s has no network interface that is up, except loopback",
                        all[0].endpoint.host);
    return lk__fail(c->context, LK_EIO, "rank %d on %s has no route to any address of rank 0 on %s", unreachable_rank,
                    all[unreachable_rank].endpoint.host, all[0].endpoint.host);
}

/* Listens on the interface of the route to rank 0; on loopback where all ranks share it. */
static lk_status open_listener(lk_comm *c, mpi_state *k, lk__rendezvous_ports ports, join_info *mine, join_info *all,
                               lk__rendezvous_listener *listener)
{
    struct sockaddr_storage       where = {0};
    const lk__rendezvous_address *master = NULL;
    bool                          alone = true;
    for (int i = 1; i < c->size; i++) alone = alone && same_network(&all[i], &all[0]);
    if (alone) {
        *(struct sockaddr_in *)&where =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return lk__listen(c->context, &where, ports, listener);
    }
    for (int i = 0; i < ADDRESSES; i++)
        mine->reachabilities[i] =
            (unsigned char)(all[0].addresses[i].family ? reachability_of(&all[0].addresses[i]) : UNREACHABLE);
    lk_status status = gather_over_mpi(c, k, mine, all, sizeof *mine);
    if (status >= 0) status = choose_address(c, all, &master);
    if (status < 0) return status;
    if (!source_address_for(master, &where)) /* on rank 0's host this is that address itself */
        return lk__fail(c->context, LK_EIO, "rank %d no longer has a route to rank 0 on %s", c->rank,
                        all[0].endpoint.host);
    return lk__listen(c->context, &where, ports, listener);
}

static lk_status make_mesh(lk_comm *c, mpi_state *k, lk__rendezvous_ports ports, lk__net_mesh *mesh)
{
    size_t bytes = (size_t)c->size * sizeof(join_info),
           endpoint_bytes = (size_t)c->size * sizeof(lk__rendezvous_endpoint);
    join_info               *all = lk__alloc(c->context, LK_MEMORY_OTHER, bytes), mine = {.endpoint = {.pid = 0}};
    lk__rendezvous_endpoint *endpoints = lk__alloc(c->context, LK_MEMORY_OTHER, endpoint_bytes);
    lk__rendezvous_listener  listener = {.fd = -1};
    lk_status status = all && endpoints ? lk__mesh_make(mesh, c->context, c->rank, c->size, 0) : LK_ENOMEM;
    lk__endpoint_make(c->context, &mine.endpoint);
    list_own_addresses(mine.addresses);
    if (status >= 0 && !lk__entropy(mine.secret, sizeof mine.secret))
        status = lk__fail(c->context, LK_EIO, "cannot get random numbers from the system");
    if (status >= 0) status = gather_over_mpi(c, k, &mine, all, sizeof mine);
    if (status >= 0) status = open_listener(c, k, ports, &mine, all, &listener);
    mine.endpoint.address = listener.address;
    if (status >= 0) status = gather_over_mpi(c, k, &mine, all, sizeof mine);
    if (status >= 0) {
        lk__token_derive("", all[0].secret, sizeof all[0].secret, mesh->token);
        memcpy(&mesh->secret, all[0].secret, sizeof mesh->secret);
        for (int i = 0; i < c->size; i++) endpoints[i] = all[i].endpoint;
        status = lk__mesh_connect(mesh, endpoints, &listener, (double)c->connect_ms / 1e3);
    }
    lk__listener_close(&listener);
    lk__free(c->context, LK_MEMORY_OTHER, all, bytes);
    lk__free(c->context, LK_MEMORY_OTHER, endpoints, endpoint_bytes);
    if (status < 0) lk__mesh_close(mesh);
    return status;
}

/* Takes the MPI state, also when the group that was to have it failed. */
static lk_status finish_group(lk_comm *c, mpi_state *k, lk_status status)
{
    if (status >= 0) return status;
    k->in_order = false;
    free_mpi_state(c->context, k);
    return status;
}

static lk_status create(lk_comm *c, const lk__rendezvous_identity *identity)
{
    const lk__mpi_module *mpi;
    mpi_state            *k;
    int                   rank, size;
    char                  text[LK__MPI_TEXT];
    size_t                bytes = (size_t)c->size * sizeof(int);
    lk_status             status = lk__mpi_load(c->context, &mpi);
    if (status < 0) return status;
    if (mpi->start(&rank, &size, text) != 0) return lk__fail(c->context, LK_EIO, "backend mpi: %s", text);
    if (rank != c->rank || size != c->size)
        return lk__fail(c->context, LK_EMISMATCH,
                        "backend mpi: this is rank %d of %d (%s), but rank %d of %d according to MPI: let MPI set both "
                        "the rank and the number of ranks",
                        c->rank, c->size, identity->tried, rank, size);
    int *world = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    if (!world) return LK_ENOMEM;
    for (int i = 0; i < size; i++) world[i] = i;
    status = join_communicator(c, mpi, world, 0, &k);
    lk__free(c->context, LK_MEMORY_OTHER, world, bytes);
    if (status < 0) return status;
    lk__net_mesh mesh = {.context = c->context};
    status = make_mesh(c, k, identity->ports, &mesh);
    if (status >= 0) status = lk__net_create(c, &mesh, &transport, k);
    return finish_group(c, k, status);
}

static lk_status split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk__net   *parent_net = parent->state;
    mpi_state *from = parent_net->transport_state, *k;
    size_t     bytes = (size_t)c->size * sizeof(int);
    int       *world = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    if (!world) return LK_ENOMEM;
    for (int i = 0; i < c->size; i++) world[i] = from->world[ranks[i]];
    lk_status status = join_communicator(c, from->mpi, world, (int)(all[ranks[0]].secret % 32749), &k);
    lk__free(c->context, LK_MEMORY_OTHER, world, bytes);
    if (status < 0) return status;
    return finish_group(c, k, lk__net_split_with(parent, c, all, ranks, k));
}

const lk__comm_backend lk__backend_mpi =
    LK__NET_TABLE(create, split, .name = "mpi", .text = "the MPI library that started the ranks", .preference = 2,
                  .available = lk__mpi_available, .makes_token = true);
