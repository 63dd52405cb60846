/* meet.c - the rendezvous of one host. Rank 0 listens on an abstract Unix socket, which leaves nothing behind; both
 * sides look at the other's user, prove that they know the token, and rank 0 hands out the memory once all have come:
 *
 *     rank 0 → rank    greeting: a random number
 *     rank → rank 0    hello: rank, size, a random number of its own, a MAC over all of it
 *     rank 0 → rank    answer: yes and the memory's descriptor, or no and why; a MAC over the rank's number
 *     rank → rank 0    one byte: it has mapped the memory
 *     rank 0 → rank    one byte: so have all
 *
 * All messages have a fixed size, so there is no length to lie about. */
#define _GNU_SOURCE
#include "comm/meet.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { NONCE = 32, MAC = 32, STRANGERS = 64 };
static const char magic[8] = "lkmeet1";

typedef struct greeting {
    char          magic[8];
    unsigned char nonce[NONCE];
} greeting;

typedef struct hello {
    char          magic[8];
    int32_t       rank, size;
    int64_t       pid;
    unsigned char greeted[NONCE], nonce[NONCE], mac[MAC];
} hello;

typedef struct answer {
    char          magic[8];
    int32_t       status, reserved; /* LK_OK: a descriptor comes along */
    uint64_t      bytes;
    char          text[512];
    unsigned char nonce[NONCE], mac[MAC];
} answer;

/* One who came: everything about it is unknown until its hello is whole and right. */
typedef struct guest {
    int      fd, rank; /* rank -1: a stranger so far */
    long     pid;
    double   since;
    size_t   have;
    bool     mapped;
    greeting greeting;
    hello    hello;
} guest;

static void sign(const char *token, const void *message, size_t bytes, unsigned char mac[MAC])
{
    lk__hmac(token, message, bytes, mac);
}

/* In a time that does not depend on where they differ. */
static bool same(const unsigned char *a, const unsigned char *b)
{
    unsigned char differ = 0;
    for (int i = 0; i < MAC; i++) differ |= a[i] ^ b[i];
    return differ == 0;
}

static socklen_t address_of(const char *key, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "lockstep/%u/%s", (unsigned)geteuid(), key);
    if (n > (int)sizeof address->sun_path - 2) /* too long for a name */
        n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "lockstep/%u/%016llx", (unsigned)geteuid(),
                     (unsigned long long)lk__hash64(key, strlen(key), 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool own_user(int fd, long *pid)
{
    struct ucred peer = {0};
    socklen_t    length = sizeof peer;
    bool         known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
    *pid = known ? (long)peer.pid : 0;
    return known && (peer.uid == geteuid() || peer.uid == 0);
}

/* ---- the memory ---- */

static lk_status make_memory(lk_context *context, size_t bytes, int *fd)
{
    double mib = (double)bytes / 1048576;
    *fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return lk__fail(context, LK_EIO, "cannot create shared memory: %s", strerror(errno));
    if (ftruncate(*fd, (off_t)bytes) != 0 || fallocate(*fd, 0, 0, (off_t)bytes) != 0) {
        lk__fail(context, LK_ENOMEM, "no memory for %.1f MiB that the ranks share: %s", mib, strerror(errno));
    } else if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        return LK_OK;
    } else {
        lk__fail(context, LK_EIO, "cannot seal shared memory: %s", strerror(errno));
    }
    close(*fd);
    *fd = -1;
    return LK_ENOMEM;
}

static lk_status map_memory(lk_context *context, int fd, size_t bytes, void **memory)
{
    struct stat about;
    int         seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &about) != 0 || (size_t)about.st_size != bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
        return lk__fail(
            context, LK_EMISMATCH,
            "rank 0 shares memory of another size than the %zu bytes this rank expects: are these the same program?",
            bytes);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (start == MAP_FAILED)
        return lk__fail(context, LK_ENOMEM, "no memory to map %.1f MiB that the ranks share: %s",
                        (double)bytes / 1048576, strerror(errno));
    *memory = start;
    return LK_OK;
}

void lk__unmeet(void *memory, size_t bytes)
{
    if (memory) munmap(memory, bytes);
}

/* ---- rank 0 ---- */

static void send_answer(const lk__meeting *m, guest *g, lk_status status, uint64_t bytes, int fd, const char *text)
{
    answer a = {.status = status, .bytes = bytes};
    memcpy(a.magic, magic, sizeof magic);
    memcpy(a.nonce, g->hello.nonce, NONCE);
    snprintf(a.text, sizeof a.text, "%s", text);
    sign(m->token, &a, offsetof(answer, mac), a.mac);
    union {
        struct cmsghdr header;
        char           space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct iovec  part = {&a, sizeof a};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    (void)sendmsg(g->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* who cannot take a kilobyte is found missing below */
}

static void drop(const lk__meeting *m, guest *g, const char *why)
{
    if (why)
        lk__log(m->context, LK_LOG_WARNING, "dropped process %ld, which came to the meeting of the ranks: %s", g->pid,
                why);
    close(g->fd);
    g->fd = -1;
}

/* The hello is whole: is it one of ours? */
static void judge(const lk__meeting *m, guest *g, guest *const *seats)
{
    unsigned char mac[MAC];
    char          text[256];
    if (memcmp(g->hello.magic, magic, sizeof magic) != 0 || memcmp(g->hello.greeted, g->greeting.nonce, NONCE) != 0) {
        drop(m, g, "it does not speak as a rank does");
        return;
    }
    sign(m->token, &g->hello, offsetof(hello, mac), mac);
    if (!same(mac, g->hello.mac)) {
        send_answer(m, g, LK_EINVAL, 0, -1, "rank 0 says: wrong token (LOCKSTEP_TOKEN)");
        drop(m, g, "wrong token");
        return;
    }
    int rank = g->hello.rank;
    if (g->hello.size != m->size)
        snprintf(text, sizeof text, "rank 0 is in a world of %d, and this rank in one of %d", m->size, g->hello.size);
    else if (rank < 1 || rank >= m->size)
        snprintf(text, sizeof text, "rank %d cannot join a world of %d that rank 0 opened", rank, m->size);
    else if (seats[rank])
        snprintf(text, sizeof text, "rank %d is there already, as process %ld", rank, seats[rank]->pid);
    else {
        g->rank = rank;
        g->pid = g->pid ? g->pid : (long)g->hello.pid;
        return;
    }
    send_answer(m, g, LK_EMISMATCH, 0, -1, text);
    drop(m, g, text);
}

static void hear(const lk__meeting *m, guest *g, guest **seats)
{
    if (g->rank >= 0) { /* it waits for the others, or has mapped the memory */
        char    byte;
        ssize_t n = recv(g->fd, &byte, 1, MSG_DONTWAIT);
        if (n == 1 && !g->mapped)
            g->mapped = true;
        else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            if (seats[g->rank] == g && !g->mapped) seats[g->rank] = NULL; /* it may come again */
            drop(m, g, NULL);
        }
        return;
    }
    ssize_t n = recv(g->fd, (char *)&g->hello + g->have, sizeof g->hello - g->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop(m, g, g->have ? "it left in the middle of a word" : "it said nothing");
        return;
    }
    if ((g->have += (size_t)n) < sizeof g->hello) return;
    judge(m, g, seats);
    if (g->fd >= 0) seats[g->rank] = g;
}

static void welcome(const lk__meeting *m, int listener, guest *guests, int most)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    guest *g = NULL;
    for (int i = 0; i < most && !g; i++)
        if (guests[i].fd < 0) g = &guests[i];
    guest unknown = {.fd = fd};
    if (!own_user(fd, &unknown.pid)) {
        drop(m, &unknown, "it belongs to another user");
    } else if (!g || getrandom(unknown.greeting.nonce, NONCE, 0) != NONCE) {
        drop(m, &unknown, "too many came at once");
    } else {
        *g = unknown;
        g->rank = -1;
        g->since = lk__now();
        memcpy(g->greeting.magic, magic, sizeof magic);
        if (send(fd, &g->greeting, sizeof g->greeting, MSG_NOSIGNAL) != sizeof g->greeting) drop(m, g, NULL);
    }
}

/* Turns to whoever has something to say, for a moment. */
static void attend(const lk__meeting *m, int listener, guest *guests, int most, guest **seats, struct pollfd *polls)
{
    double now = lk__now();
    polls[most] =
        (struct pollfd){.fd = listener, .events = POLLIN}; /* below 0 is skipped, once nobody may come any more */
    for (int i = 0; i < most; i++) {
        guest *g = &guests[i];
        if (g->fd >= 0 && g->rank < 0 && now - g->since > 1) drop(m, g, "it said nothing for a second");
        polls[i] = (struct pollfd){.fd = g->fd, .events = POLLIN};
    }
    if (poll(polls, (nfds_t)most + 1, 20) <= 0) return;
    for (int i = 0; i < most; i++)
        if (polls[i].fd >= 0 && polls[i].revents) hear(m, &guests[i], seats);
    if (listener >= 0 && polls[most].revents) welcome(m, listener, guests, most);
}

static int listen_on(const lk__meeting *m, double end)
{
    struct sockaddr_un address;
    socklen_t          length = address_of(m->key, &address);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 4096) == 0) return fd;
        int why = errno;
        if (fd >= 0) close(fd);
        if (fd < 0 || why != EADDRINUSE || lk__now() > end) {
            lk__fail(m->context, LK_EIO, "rank 0 cannot listen on the Unix socket @%s: %s%s", address.sun_path + 1,
                     strerror(why),
                     why == EADDRINUSE ? "; another job uses that name: choose another MASTER_PORT" : "");
            return -1;
        }
        usleep(2000); /* an earlier meeting of the same job may be about to end */
    }
}

static lk_status say_missing(const lk__meeting *m, guest *const *seats, const char *did)
{
    char   names[256] = "";
    size_t used = 0;
    int    missing = 0;
    for (int i = 1; i < m->size; i++)
        if (!seats[i]) {
            missing++;
            if (used + 32 < sizeof names)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", i);
        }
    return lk__fail(
        m->context, LK_ETIMEOUT,
        "rank%s %s of %d never %s within %.1f s; rank 0 listened on the Unix socket @lockstep/%u/%s, and %d of %d came",
        missing > 1 ? "s" : "", names, m->size, did, m->seconds, (unsigned)geteuid(), m->key, m->size - 1 - missing,
        m->size - 1);
}

typedef struct party {
    guest         *guests;
    guest        **seats;
    struct pollfd *polls;
    int            most, listener;
} party;

static int seated(const lk__meeting *m, const party *p, bool mapped)
{
    int count = 0;
    for (int i = 1; i < m->size; i++) count += p->seats[i] && (!mapped || p->seats[i]->mapped);
    return count;
}

static lk_status receive_all(const lk__meeting *m, party *p, double end, size_t bytes, void **memory)
{
    int       fd = -1;
    lk_status status = LK_OK;
    while (seated(m, p, false) < m->size - 1) {
        if (lk__now() > end) {
            status = say_missing(m, p->seats, "came");
            break;
        }
        attend(m, p->listener, p->guests, p->most, p->seats, p->polls);
    }
    close(p->listener); /* before anyone is let go: who comes to the next meeting must not find this one */
    p->listener = -1;
    if (status >= 0) status = make_memory(m->context, bytes, &fd);
    if (status >= 0) status = map_memory(m->context, fd, bytes, memory);
    char why[512] = "";
    if (status < 0) snprintf(why, sizeof why, "rank 0 says: %.480s", lk_context_error(m->context));
    for (int i = 1; i < m->size; i++)
        if (p->seats[i]) send_answer(m, p->seats[i], status, bytes, status < 0 ? -1 : fd, why);
    while (status >= 0 && seated(m, p, true) < m->size - 1) {
        attend(m, -1, p->guests, p->most, p->seats, p->polls);
        if (seated(m, p, false) < m->size - 1 || lk__now() > end)
            status = say_missing(m, p->seats, "took the memory that it was handed");
    }
    for (int i = 1; i < m->size && status >= 0; i++) (void)!send(p->seats[i]->fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (status < 0 && *memory) {
        munmap(*memory, bytes);
        *memory = NULL;
    }
    if (fd >= 0) close(fd);
    return status;
}

static lk_status host_meeting(const lk__meeting *m, size_t bytes, void **memory)
{
    double end = lk__now() + m->seconds;
    party  p = {.most = m->size + STRANGERS, .listener = -1};
    size_t guests = (size_t)p.most * sizeof *p.guests, seats = (size_t)m->size * sizeof *p.seats,
           polls = ((size_t)p.most + 1) * sizeof *p.polls;
    lk_status status = LK_ENOMEM;
    p.guests = lk__alloc(m->context, LK_MEMORY_OTHER, guests);
    p.seats = lk__alloc(m->context, LK_MEMORY_OTHER, seats);
    p.polls = lk__alloc(m->context, LK_MEMORY_OTHER, polls);
    if (!p.guests || !p.seats || !p.polls) goto done;
    for (int i = 0; i < p.most; i++) p.guests[i].fd = -1;
    status = LK_EIO;
    if ((p.listener = listen_on(m, end)) >= 0) status = receive_all(m, &p, end, bytes, memory);
    for (int i = 0; i < p.most; i++)
        if (p.guests[i].fd >= 0) close(p.guests[i].fd);
    if (p.listener >= 0) close(p.listener);
done:
    lk__free(m->context, LK_MEMORY_OTHER, p.guests, guests);
    lk__free(m->context, LK_MEMORY_OTHER, p.seats, seats);
    lk__free(m->context, LK_MEMORY_OTHER, p.polls, polls);
    return status;
}

/* ---- the others ---- */

bool lk__read_whole(int fd, void *into, size_t bytes, double end)
{
    for (size_t have = 0; have < bytes;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int           left = (int)((end - lk__now()) * 1000) + 1;
        if (left <= 0 || poll(&one, 1, left) == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        ssize_t n = recv(fd, (char *)into + have, bytes - have, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) return false;
        have += (size_t)n;
    }
    return true;
}

/* The answer, and the descriptor that comes with its first byte. */
static bool read_answer(int fd, answer *a, int *shared, double end)
{
    union {
        struct cmsghdr header;
        char           space[CMSG_SPACE(sizeof(int))];
    } control;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct iovec  part = {a, sizeof *a};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    int left = (int)((end - lk__now()) * 1000) + 1, ready;
    while ((ready = poll(&one, 1, left > 0 ? left : 0)) < 0 && errno == EINTR) {}
    if (ready <= 0) {
        errno = ETIMEDOUT;
        return false;
    }
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (n <= 0) {
        if (n == 0) errno = ECONNRESET;
        return false;
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(shared, CMSG_DATA(c), sizeof *shared);
    return (size_t)n == sizeof *a || lk__read_whole(fd, (char *)a + n, sizeof *a - (size_t)n, end);
}

typedef enum outcome { MET, AGAIN, REFUSED, SILENT } outcome;

/* One attempt on a connection. AGAIN: rank 0 was not ready, or it was another's meeting. */
static outcome talk(const lk__meeting *m, int fd, double end, size_t bytes, void **memory, lk_status *status)
{
    greeting      g;
    hello         h = {.rank = m->rank, .size = m->size, .pid = getpid()};
    answer        a;
    unsigned char mac[MAC];
    int           shared = -1;
    long          pid;
    if (!own_user(fd, &pid)) {
        *status = lk__fail(m->context, LK_EIO, "process %ld of another user listens where rank 0 should", pid);
        return REFUSED;
    }
    if (!lk__read_whole(fd, &g, sizeof g, end) || memcmp(g.magic, magic, sizeof magic) != 0) return AGAIN;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.greeted, g.nonce, NONCE);
    if (getrandom(h.nonce, NONCE, 0) != NONCE) return AGAIN;
    sign(m->token, &h, offsetof(hello, mac), h.mac);
    if (send(fd, &h, sizeof h, MSG_NOSIGNAL) != sizeof h) return AGAIN;
    /* Rank 0 waits for the others as long as this rank would: it, not we, should say who is missing. */
    if (!read_answer(fd, &a, &shared, end + 0.5)) return errno == ETIMEDOUT ? SILENT : AGAIN;
    a.text[sizeof a.text - 1] = 0;
    sign(m->token, &a, offsetof(answer, mac), mac);
    if (memcmp(a.magic, magic, sizeof magic) != 0 || memcmp(a.nonce, h.nonce, NONCE) != 0 ||
        (!same(mac, a.mac) && a.status == LK_OK))
        *status =
            lk__fail(m->context, LK_EIO, "process %ld listens where rank 0 should, and does not know the token", pid);
    else if (a.status != LK_OK)
        *status = lk__fail(m->context, a.status < 0 ? (lk_status)a.status : LK_EIO, "rank %d of %d cannot join: %s",
                           m->rank, m->size, a.text);
    else if (shared < 0 || a.bytes != bytes)
        *status =
            lk__fail(m->context, LK_EMISMATCH,
                     "rank 0 (process %ld) offers %llu bytes and this rank expects %zu: are these the same program?",
                     pid, (unsigned long long)a.bytes, bytes);
    else
        *status = map_memory(m->context, shared, bytes, memory);
    if (shared >= 0) close(shared);
    if (*status < 0) return REFUSED;
    char all;
    if (send(fd, "m", 1, MSG_NOSIGNAL) == 1 && lk__read_whole(fd, &all, 1, end + 0.5)) return MET;
    munmap(*memory, bytes);
    *memory = NULL;
    *status = lk__fail(
        m->context, LK_EIO,
        "rank %d could not join: another rank cannot map the memory that all share, or rank 0 (process %ld) went away",
        m->rank, pid);
    return REFUSED;
}

static lk_status join_meeting(const lk__meeting *m, size_t bytes, void **memory)
{
    double             end = lk__now() + m->seconds;
    struct sockaddr_un address;
    socklen_t          length = address_of(m->key, &address);
    lk_status          status = LK_OK;
    int                why = 0;
    useconds_t         pause = 200;
    do {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return lk__fail(m->context, LK_EIO, "rank %d cannot open a Unix socket: %s", m->rank, strerror(errno));
        if (connect(fd, (struct sockaddr *)&address, length) == 0) {
            outcome o = talk(m, fd, end, bytes, memory, &status);
            why = errno;
            close(fd);
            if (o == MET) return LK_OK;
            if (o == REFUSED) return status;
            if (o == SILENT)
                return lk__fail(m->context, LK_ETIMEOUT,
                                "rank 0 answered rank %d of %d on the Unix socket @%s, then said nothing for %.1f s",
                                m->rank, m->size, address.sun_path + 1, m->seconds);
        } else {
            why = errno;
            close(fd);
        }
        usleep(pause);
        if (pause < 5000) pause *= 2;
    } while (lk__now() < end);
    return lk__fail(m->context, LK_ETIMEOUT,
                    "rank 0 of %d never came: rank %d tried the Unix socket @%s for %.1f s (%s)", m->size, m->rank,
                    address.sun_path + 1, m->seconds, why == ECONNREFUSED ? "nobody listens there" : strerror(why));
}

lk_status lk__meet(const lk__meeting *m, size_t bytes, void **memory)
{
    *memory = NULL;
    return m->rank == 0 ? host_meeting(m, bytes, memory) : join_meeting(m, bytes, memory);
}
