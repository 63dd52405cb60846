/* mpi.c - MPI carries the bulk; the words go over a mesh of Lockstep's own, so that a mismatch, a dead rank or a late one
 * is told as everywhere. Addresses and a random token for the mesh are exchanged by MPI itself, so nothing has to be
 * configured under mpirun or srun. A group that failed never enters MPI again, and what it had in flight is leaked on
 * purpose: MPI has no way to take it back. */
#define _GNU_SOURCE
#include "comm/mpi/mpi.h"

#include "base/entropy.h"
#include "comm/rendezvous/connect.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What this rank has of MPI for one group. */
typedef struct carrier {
    const lk__mpi_module *mpi;
    lk__mpi_group        *group;
    int                  *world; /* by rank of the group: its rank in MPI's world */
    int                   size;
    lk__rendezvous_ports  ports; /* where the group, and what is split off from it, may listen */
    bool                  in_order;
} carrier;

struct lk__net_transfer_state {
    lk__mpi_request *request;
    bool             done;
};

enum { TESTS = 100, NAP_US = 50, NAP_MOST_US = 1000 };

static void drop_carrier(lk_context *context, carrier *k)
{
    if (!k) return;
    if (k->group) k->mpi->leave(k->group, k->in_order);
    lk__free(context, LK_MEMORY_OTHER, k->world, (size_t)k->size * sizeof *k->world);
    lk__free(context, LK_MEMORY_OTHER, k, sizeof *k);
}

/* ---- the transport ---- */

static lk_status broken(lk__net *net, const char *text)
{
    char why[LK__MPI_TEXT + 64];
    snprintf(why, sizeof why, "MPI failed on rank %d: %s", net->rank, text);
    return lk__net_raise_because(net, LK_EIO, why, lk__comm_cause_make(net->comm, net->rank, LK__CAUSE_OWN));
}

static lk_status open_mover(lk__net *net)
{
    (void)net; /* the carrier was there before the mesh */
    return LK_OK;
}

static lk_status take_off(lk__net *net, int code, const char *text, lk__mpi_request *request,
                          lk__net_transfer_state **flight)
{
    lk__net_transfer_state *f = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *f);
    if (code != 0 || !f) {
        if (request) atomic_store(&net->abandoned, true);
        lk__free(net->comm->context, LK_MEMORY_OTHER, f, sizeof *f);
        return code != 0 ? broken(net, text) : lk__net_raise(net, LK_ENOMEM, "no memory for an exchange over MPI");
    }
    f->request = request;
    *flight = f;
    return LK_OK;
}

_Static_assert(sizeof(lk__net_part) == sizeof(lk__mpi_part) &&
                   offsetof(lk__net_part, recv) == offsetof(lk__mpi_part, recv) &&
                   offsetof(lk__net_part, send_bytes) == offsetof(lk__mpi_part, send_bytes) &&
                   offsetof(lk__net_part, recv_bytes) == offsetof(lk__mpi_part, recv_bytes),
               "a part is the same to the module, which knows no header of ours");

static lk_status exchange(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight)
{
    carrier         *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    for (int i = 0; i < net->size; i++)
        if (i != net->rank) atomic_fetch_add_explicit(&net->sent, parts[i].send_bytes, memory_order_relaxed);
    int code = k->mpi->exchange(k->group, (const lk__mpi_part *)parts, &request, text);
    return take_off(net, code, text, request, flight);
}

static lk_status send_one(lk__net *net, int peer, uint64_t id, const void *data, size_t bytes,
                          lk__net_transfer_state **flight)
{
    carrier         *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    int code = k->mpi->send(k->group, peer, id, data, bytes, &request, text);
    return take_off(net, code, text, request, flight);
}

static lk_status receive_one(lk__net *net, int peer, uint64_t id, void *data, size_t bytes,
                             lk__net_transfer_state **flight)
{
    carrier         *k = net->transport_state;
    lk__mpi_request *request = NULL;
    char             text[LK__MPI_TEXT];
    lk_status        status = lk__net_failure(net);
    if (status < 0) return status;
    int code = k->mpi->recv(k->group, peer, id, data, bytes, &request, text);
    return take_off(net, code, text, request, flight);
}

/* MPI moves when it is asked, and cannot wait with a deadline: so it is asked, first often, then with naps between. */
static lk_status wait_for(lk__net *net, lk__net_transfer_state *f, double seconds)
{
    carrier   *k = net->transport_state;
    double     end = 0;
    useconds_t nap = NAP_US;
    char       text[LK__MPI_TEXT];
    for (int tries = 0; !f->done; tries++) {
        lk_status status = lk__net_failure(net);
        if (status < 0) return status;
        int code = k->mpi->test(f->request, text);
        if (code < 0) return broken(net, text);
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
        if (lk__net_poll(net, 0) > 0) return LK_END; /* the words may say why it takes so long */
        usleep(nap);
        if (nap < NAP_MOST_US) nap *= 2;
    }
    return LK_OK;
}

static void finish(lk__net *net, lk__net_transfer_state *f)
{
    carrier *k = net->transport_state;
    if (f->done) {
        k->mpi->drop(f->request);
    } else {
        k->in_order = false;
        atomic_store(&net->abandoned, true);
    }
    lk__free(net->comm->context, LK_MEMORY_OTHER, f, sizeof *f);
}

static void free_mover(lk__net *net)
{
    carrier *k = net->transport_state;
    if (k && lk__net_failure(net) < 0) k->in_order = false;
    drop_carrier(net->comm->context, k);
    net->transport_state = NULL;
}

static const lk__net_transport transport = {.name = "mpi",
                                            .open = open_mover,
                                            .exchange = exchange,
                                            .send = send_one,
                                            .recv = receive_one,
                                            .wait = wait_for,
                                            .finish = finish,
                                            .free = free_mover};

/* ---- beginning ---- */

/* Ranks of MPI's world, all of which come here within the time to join. */
static lk_status join(lk_comm *c, const lk__mpi_module *mpi, const int *world, int tag, lk__rendezvous_ports ports,
                      carrier **made)
{
    char     text[LK__MPI_TEXT];
    carrier *k = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *k);
    if (!k) return LK_ENOMEM;
    *k = (carrier){.mpi = mpi, .size = c->size, .ports = ports, .in_order = true};
    k->world = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)c->size * sizeof *k->world);
    if (!k->world) {
        drop_carrier(c->context, k);
        return LK_ENOMEM;
    }
    memcpy(k->world, world, (size_t)c->size * sizeof *world);
    if (mpi->join(world, c->size, tag, (double)c->join_ms / 1e3, &k->group, text) != 0) {
        drop_carrier(c->context, k);
        return lk__fail(c->context, LK_ETIMEOUT, "rank %d of %d cannot join over MPI: %s", c->rank, c->size, text);
    }
    *made = k;
    return LK_OK;
}

/* Everyone's `bytes` to everyone, before there is a mesh. */
static lk_status gather(lk_comm *c, carrier *k, const void *mine, void *all, size_t bytes)
{
    char             text[LK__MPI_TEXT];
    lk__mpi_request *request = NULL;
    double           end = lk__now() + (double)c->connect_ms / 1e3;
    int              code = k->mpi->all_gather(k->group, mine, all, bytes, &request, text);
    while (code == 0 && (code = k->mpi->test(request, text)) == 0 && lk__now() < end) usleep(NAP_US);
    if (code > 0) {
        k->mpi->drop(request);
        return LK_OK;
    }
    k->in_order = false;
    if (code < 0) return lk__fail(c->context, LK_EIO, "rank %d cannot join over MPI: %s", c->rank, text);
    return lk__fail(c->context, LK_ETIMEOUT, "rank %d of %d joined over MPI, but others did not go on within %.1f s",
                    c->rank, c->size, (double)c->connect_ms / 1e3);
}

enum { ADDRESSES = 8 };
typedef enum way { NO_WAY, ROUTED, BESIDE } way; /* from a host to an address: the more the better */

/* What ranks tell each other: who they are, then how they would reach rank 0, then where they listen. */
typedef struct notice {
    lk__rendezvous_card    card;
    unsigned char          secret[LK__NONCE];    /* rank 0's counts */
    lk__rendezvous_address addresses[ADDRESSES]; /* of this rank's host: rank 0's count */
    unsigned char          ways[ADDRESSES];      /* to each of rank 0's, as `way` */
} notice;

static bool is_candidate(const struct ifaddrs *i, int family)
{
    return i->ifa_addr && i->ifa_addr->sa_family == family && (i->ifa_flags & IFF_UP) &&
           !(i->ifa_flags & IFF_LOOPBACK) &&
           !(family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

static void take_address(const struct sockaddr *from, lk__rendezvous_address *a)
{
    struct sockaddr_storage storage = {0};
    memcpy(&storage, from, from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    (void)lk__address_take(a, &storage);
}

/* The addresses of this host at which others might reach it, IPv4 first. */
static void own_addresses(lk__rendezvous_address addresses[ADDRESSES])
{
    struct ifaddrs *list = NULL;
    int             count = 0;
    if (getifaddrs(&list) != 0) return;
    for (int pass = 0; pass < 2; pass++)
        for (struct ifaddrs *i = list; i && count < ADDRESSES; i = i->ifa_next)
            if (is_candidate(i, pass ? AF_INET6 : AF_INET)) take_address(i->ifa_addr, &addresses[count++]);
    freeifaddrs(list);
}

/* The address from which this host would speak to `to`. Nothing is sent. */
static bool address_towards(const lk__rendezvous_address *to, struct sockaddr_storage *address)
{
    struct sockaddr_storage there;
    socklen_t               bytes = lk__address_give(to, 0, &there), length = sizeof *address;
    int                     fd = bytes ? socket(there.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    bool                    found = fd >= 0 && connect(fd, (const struct sockaddr *)&there, bytes) == 0 &&
                 getsockname(fd, (struct sockaddr *)address, &length) == 0;
    if (fd >= 0) close(fd);
    return found;
}

/* Whether address and other are in one network of this mask. */
static bool in_network(const lk__rendezvous_address *a, const lk__rendezvous_address *b, const struct sockaddr *mask)
{
    const unsigned char *bits = a->family == 6 ? ((const struct sockaddr_in6 *)mask)->sin6_addr.s6_addr
                                               : (const unsigned char *)&((const struct sockaddr_in *)mask)->sin_addr;
    for (int i = 0; i < (a->family == 6 ? 16 : 4); i++)
        if ((a->bytes[i] ^ b->bytes[i]) & bits[i]) return false;
    return true;
}

/* How another host's address is reached from this one. One that this host has too, as every host's bridge for
 * containers may have the same, leads nowhere but here. */
static way way_to(const lk__rendezvous_address *to)
{
    struct sockaddr_storage from;
    struct ifaddrs         *list = NULL;
    way                     found = address_towards(to, &from) ? ROUTED : NO_WAY;
    if (found == NO_WAY || getifaddrs(&list) != 0) return found;
    for (struct ifaddrs *i = list; i && found != NO_WAY; i = i->ifa_next) {
        lk__rendezvous_address own = {0};
        if (!is_candidate(i, to->family == 6 ? AF_INET6 : AF_INET)) continue;
        take_address(i->ifa_addr, &own);
        if (memcmp(own.bytes, to->bytes, sizeof own.bytes) == 0)
            found = NO_WAY;
        else if (i->ifa_netmask && in_network(&own, to, i->ifa_netmask))
            found = BESIDE;
    }
    freeifaddrs(list);
    return found;
}

/* Whether two ranks see the same interfaces: a host's id begins with its boot and its network's namespace. */
static bool same_network(const notice *a, const notice *b)
{
    const char *end = strchr(a->card.host_id, ':');
    end = end ? strchr(end + 1, ':') : NULL;
    return end && strncmp(a->card.host_id, b->card.host_id, (size_t)(end + 1 - a->card.host_id)) == 0;
}

/* Of rank 0's addresses the one to which all other hosts have the best way. All ranks know the same and choose alike. */
static lk_status choose_address(lk_comm *c, const notice *all, const lk__rendezvous_address **chosen)
{
    way best = NO_WAY;
    int stranded = 0;
    for (int i = 0; i < ADDRESSES && all[0].addresses[i].family; i++) {
        way worst = BESIDE;
        for (int rank = 1; rank < c->size; rank++) {
            way one = (way)all[rank].ways[i];
            if (one >= worst || same_network(&all[rank], &all[0])) continue;
            worst = one;
            if (one == NO_WAY) stranded = rank;
        }
        if (worst <= best) continue;
        best = worst;
        *chosen = &all[0].addresses[i];
    }
    if (best > NO_WAY) return LK_OK;
    if (!all[0].addresses[0].family)
        return lk__fail(c->context, LK_EIO, "rank 0 on %s has no interface that is up, but loopback", all[0].card.host);
    return lk__fail(c->context, LK_EIO, "rank %d on %s finds no interface towards any address of rank 0 on %s",
                    stranded, all[stranded].card.host, all[0].card.host);
}

/* The interface that leads to rank 0; loopback where all share one. */
static lk_status listen_somewhere(lk_comm *c, carrier *k, notice *mine, notice *all, lk__rendezvous_listener *listener)
{
    struct sockaddr_storage       where = {0};
    const lk__rendezvous_address *master = NULL;
    bool                          alone = true;
    for (int i = 1; i < c->size; i++) alone = alone && same_network(&all[i], &all[0]);
    if (alone) {
        *(struct sockaddr_in *)&where =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return lk__listen(c->context, &where, k->ports, listener);
    }
    for (int i = 0; i < ADDRESSES; i++)
        mine->ways[i] = (unsigned char)(all[0].addresses[i].family ? way_to(&all[0].addresses[i]) : NO_WAY);
    lk_status status = gather(c, k, mine, all, sizeof *mine);
    if (status >= 0) status = choose_address(c, all, &master);
    if (status < 0) return status;
    if (!address_towards(master, &where)) /* on rank 0's own host this is that address */
        return lk__fail(c->context, LK_EIO, "rank %d no longer finds an interface towards rank 0 on %s", c->rank,
                        all[0].card.host);
    return lk__listen(c->context, &where, k->ports, listener);
}

static lk_status make_mesh(lk_comm *c, carrier *k, lk__net_mesh *mesh)
{
    size_t  bytes = (size_t)c->size * sizeof(notice), card_bytes = (size_t)c->size * sizeof(lk__rendezvous_card);
    notice *all = lk__alloc(c->context, LK_MEMORY_OTHER, bytes), mine = {.card = {.pid = 0}};
    lk__rendezvous_card    *cards = lk__alloc(c->context, LK_MEMORY_OTHER, card_bytes);
    lk__rendezvous_listener listener = {.fd = -1};
    lk_status               status = all && cards ? lk__mesh_make(mesh, c->context, c->rank, c->size, 0) : LK_ENOMEM;
    lk__card_make(&mine.card);
    own_addresses(mine.addresses);
    if (status >= 0 && !lk__entropy(mine.secret, sizeof mine.secret))
        status = lk__fail(c->context, LK_EIO, "the system gives no random numbers");
    if (status >= 0) status = gather(c, k, &mine, all, sizeof mine);
    if (status >= 0) status = listen_somewhere(c, k, &mine, all, &listener);
    mine.card.address = listener.address;
    if (status >= 0) status = gather(c, k, &mine, all, sizeof mine);
    if (status >= 0) {
        lk__token_derive("", all[0].secret, sizeof all[0].secret, mesh->token);
        memcpy(&mesh->secret, all[0].secret, sizeof mesh->secret);
        for (int i = 0; i < c->size; i++) cards[i] = all[i].card;
        status = lk__mesh_connect(mesh, cards, &listener, (double)c->connect_ms / 1e3);
    }
    lk__listener_close(&listener);
    lk__free(c->context, LK_MEMORY_OTHER, all, bytes);
    lk__free(c->context, LK_MEMORY_OTHER, cards, card_bytes);
    if (status < 0) lk__mesh_close(mesh);
    return status;
}

/* The communicator stands: the words, then all of it. Takes the carrier, also when it fails. */
static lk_status complete(lk_comm *c, carrier *k)
{
    lk__net_mesh mesh = {.context = c->context};
    lk_status    status = make_mesh(c, k, &mesh);
    if (status >= 0) status = lk__net_create(c, &mesh, &transport);
    if (status < 0) {
        k->in_order = false;
        drop_carrier(c->context, k);
        return status;
    }
    ((lk__net *)c->state)->transport_state = k;
    return LK_OK;
}

static lk_status create(lk_comm *c, const lk__rendezvous_identity *place)
{
    const lk__mpi_module *mpi;
    carrier              *k;
    int                   rank, size;
    char                  text[LK__MPI_TEXT];
    size_t                bytes = (size_t)c->size * sizeof(int);
    lk_status             status = lk__mpi_load(c->context, &mpi);
    if (status < 0) return status;
    if (mpi->start(&rank, &size, text) != 0) return lk__fail(c->context, LK_EIO, "backend mpi: %s", text);
    if (rank != c->rank || size != c->size)
        return lk__fail(c->context, LK_EMISMATCH,
                        "backend mpi: this is rank %d of %d (%s), and MPI says rank %d of %d: leave both to MPI",
                        c->rank, c->size, place->tried, rank, size);
    int *world = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    if (!world) return LK_ENOMEM;
    for (int i = 0; i < size; i++) world[i] = i;
    status = join(c, mpi, world, 0, place->ports, &k);
    lk__free(c->context, LK_MEMORY_OTHER, world, bytes);
    return status < 0 ? status : complete(c, k);
}

static lk_status split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk__net *above = parent->state;
    carrier *from = above->transport_state, *k;
    if (!c) return LK_OK;
    size_t bytes = (size_t)c->size * sizeof(int);
    int   *world = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    if (!world) return LK_ENOMEM;
    for (int i = 0; i < c->size; i++) world[i] = from->world[ranks[i]];
    lk_status status = join(c, from->mpi, world, (int)(all[ranks[0]].secret % 32749), from->ports, &k);
    lk__free(c->context, LK_MEMORY_OTHER, world, bytes);
    return status < 0 ? status : complete(c, k);
}

const lk__comm_backend lk__backend_mpi = LK__NET_TABLE("mpi", create, NULL, split);
