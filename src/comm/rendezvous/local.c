/* local.c - the rendezvous of one host. Rank 0 listens on an abstract Unix socket, which leaves no file behind. Both
 * sides check the other's user and authenticate by the token (handshake.h). Once all ranks have joined, rank 0 prepares
 * the memory; meanwhile it sends replies that say so, so that the others' deadlines begin again. It passes the memory's
 * descriptor with its last reply. Then
 *
 *     rank → rank 0    one byte: it has mapped the memory
 *     rank 0 → rank    one byte: all ranks have */
#define _GNU_SOURCE
#include "comm/rendezvous/local.h"

#include "base/hash.h"
#include "comm/comm.h"
#include "comm/process.h"
#include "comm/rendezvous/acceptor.h"
#include "comm/rendezvous/waiting.h"
#include "comm/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* in headers since glibc 2.37 */
#endif
enum { PIECE = 2 << 20 }; /* bytes: a huge page, well below a millisecond */

/* Bytes that are in a process's page tables before it uses them. Larger memory is mostly that of other ranks, of which
 * it uses a part, and the tables of all ranks would take seconds. */
enum { PREPARED = 64 << 20 };

enum { CHECKED = 64 << 20 }; /* bytes from which on memory is compared with what the machine has available */

static const double name_wait = 5; /* seconds for an earlier rendezvous of the same job to end */

static socklen_t address_of(const char *key, struct sockaddr_storage *address)
{
    struct sockaddr_un *a = (struct sockaddr_un *)address;
    size_t              room = sizeof a->sun_path - 1; /* an abstract name begins with a NUL */
    unsigned            user = geteuid();
    *address = (struct sockaddr_storage){.ss_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, room, "lockstep/%u/%s", user, key);
    if (n >= (int)room) /* too long for a name */
        n = snprintf(a->sun_path + 1, room, "lockstep/%u/%016llx", user,
                     (unsigned long long)lk__hash64(key, strlen(key), 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* ---- the memory ---- */

/* Of the memory, on rank 0, while the others wait. */
typedef struct preparation {
    const lk__rendezvous_local  *m;
    const lk__rendezvous_server *server;
    double                       next; /* when the others are told again */
} preparation;

/* A rank that does not receive it is reported by wait_mapped. */
static void send_reply(const preparation *p, lk__rendezvous_reply *reply, int fd)
{
    for (int i = 1; i < p->m->size; i++) {
        lk__rendezvous_pending *connection = lk__server_peer(p->server, i);
        if (!connection) continue;
        lk__reply_sign(reply, &connection->request, p->m->token);
        (void)lk__send_passed(connection->fd, reply, sizeof *reply, fd);
    }
}

/* Often enough that no deadline passes, but a rank that is stopped for minutes has room for all of them. */
static void report_progress(preparation *p)
{
    double now = lk__now();
    if (now < p->next) return;
    p->next = now + (p->m->seconds < 4 ? p->m->seconds / 4 : 1);
    send_reply(p, &(lk__rendezvous_reply){.preparing = 1}, -1);
}

/* In pieces: a signal undoes what one call has allocated, and a periodic timer would interrupt every long call. */
static bool allocate_pages(preparation *p, int fd, size_t bytes)
{
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < PIECE ? bytes - at : PIECE;
        report_progress(p);
        while (fallocate(fd, 0, (off_t)at, (off_t)piece) != 0)
            if (errno != EINTR) return false;
    }
    return true;
}

/* Where huge pages of the file can be mapped as such: at a multiple of their size, if there is room for one. */
static void *map_aligned(int fd, size_t bytes, int flags)
{
    if (bytes < PIECE) return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
    char *room = mmap(NULL, bytes + PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return MAP_FAILED;
    size_t before = lk__round_up((size_t)room, PIECE) - (size_t)room, page = (size_t)sysconf(_SC_PAGESIZE);
    char  *start = room + before, *end = start + lk__round_up(bytes, page),
         *last = room + lk__round_up(bytes + PIECE, page);
    if (before) munmap(room, before);
    if (end < last) munmap(end, (size_t)(last - end));
    void *mapped = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | flags, fd, 0);
    if (mapped == MAP_FAILED) munmap(start, (size_t)(end - start));
    return mapped;
}

/* Huge pages for what is allocated below, where the system has them to give: a step reads all parameters and writes all
 * gradients here, and on a virtual machine each miss of the translation cache costs a walk through two tables.
 * MADV_COLLAPSE (Linux 6.1) asks for them even where shared memory has none by default, and makes one of what a range
 * has: a byte at least. An older system refuses the first. */
static void take_huge_pages(preparation *p, int fd, size_t bytes)
{
    char *start = bytes < PIECE ? MAP_FAILED : map_aligned(fd, bytes, 0);
    if (start == MAP_FAILED) return;
    for (size_t at = 0; at + PIECE <= bytes; at += PIECE) {
        report_progress(p);
        if (fallocate(fd, 0, (off_t)at, 1) != 0 || madvise(start + at, PIECE, MADV_COLLAPSE) != 0) break;
    }
    munmap(start, bytes);
}

/* What a mapping says of the nodes of its pages is kept with the memory. */
static void place_pages(const lk__rendezvous_local *m, int fd, size_t bytes)
{
    void *start = m->place ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (start == MAP_FAILED) return;
    m->place(m->comm, start, bytes);
    munmap(start, bytes);
}

static size_t reserve_of(const lk__rendezvous_local *m) { return m->reserve ? *m->reserve : 0; }

/* A reserve counts towards limits on files and address space, though it has no pages. */
static bool allows_reserve(size_t bytes)
{
    struct rlimit file, space;
    return getrlimit(RLIMIT_FSIZE, &file) == 0 && bytes <= file.rlim_cur && getrlimit(RLIMIT_AS, &space) == 0 &&
           space.rlim_cur == RLIM_INFINITY;
}

static bool make_pages(preparation *p, int fd, size_t bytes)
{
    const lk__rendezvous_local *m = p->m;
    if (m->reserve && !allows_reserve(bytes + *m->reserve)) *m->reserve = 0;
    if (ftruncate(fd, (off_t)(bytes + reserve_of(m))) != 0) return false;
    place_pages(m, fd, bytes);
    take_huge_pages(p, fd, bytes);
    return allocate_pages(p, fd, bytes);
}

static lk_status make_memory(preparation *p, size_t bytes, int *fd)
{
    lk_context   *context = p->m->context;
    lk_status     status;
    struct rlimit limit;
    *fd = -1;
    report_progress(p);
    /* The system would take pages of this size from other processes, or end them, before it refuses one. */
    if (bytes >= CHECKED && (status = lk_context_check_memory(context, "the ranks' shared memory", bytes)) < 0)
        return status;
    /* The limit applies to this memory as to files, and exceeding it kills the process by SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        return lk__fail(context, LK_ENOMEM,
                        "out of memory: cannot allocate %.1f MiB of shared memory: the file size limit, which applies "
                        "to shared memory too, is %.1f MiB; raise it with ulimit -f",
                        (double)bytes / 1048576, (double)limit.rlim_cur / 1048576);
    *fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return lk__fail(context, LK_EIO, "cannot create shared memory: %s", lk__comm_reason_of(errno).text);
    if (!make_pages(p, *fd, bytes))
        status = lk__fail(context, LK_ENOMEM, "out of memory: cannot allocate %.1f MiB of shared memory: %s",
                          (double)bytes / 1048576, strerror(errno));
    else if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        status = lk__fail(context, LK_EIO, "cannot seal shared memory: %s", strerror(errno));
    else
        return LK_OK;
    close(*fd);
    *fd = -1;
    return status;
}

static lk_status map_memory(const lk__rendezvous_local *m, int fd, size_t bytes, void **memory)
{
    struct stat about;
    lk_context *context = m->context;
    int         seals = fcntl(fd, F_GET_SEALS), populate = bytes <= PREPARED ? MAP_POPULATE : 0;
    bool        sized = fstat(fd, &about) == 0;
    if (m->reserve && sized && (size_t)about.st_size == bytes) *m->reserve = 0; /* rank 0 has none */
    size_t total = bytes + reserve_of(m);
    if (!sized || (size_t)about.st_size != total || seals < 0 || !(seals & F_SEAL_SHRINK))
        return lk__fail(
            context, LK_EMISMATCH,
            "rank 0 does not share the %zu bytes that this rank expects: are all ranks running the same program?",
            bytes);
    void *start = map_aligned(fd, total, total == bytes ? populate : 0);
    /* the same again, and only of this part page tables are filled */
    if (start != MAP_FAILED && total > bytes && populate)
        (void)mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | populate, fd, 0);
    if (start == MAP_FAILED)
        return lk__fail(context, LK_ENOMEM, "out of memory: cannot map %.1f MiB of shared memory: %s",
                        (double)bytes / 1048576, strerror(errno));
    *memory = start;
    return LK_OK;
}

enum { POPULATE_WRITE = 23 }; /* MADV_POPULATE_WRITE (Linux 5.14), which not every libc has */

static bool populate(char *start, size_t bytes)
{
    while (madvise(start, bytes, POPULATE_WRITE) != 0)
        if (errno != EINTR) return false;
    return true;
}

bool lk__rendezvous_commit(lk_context *context, void *memory, size_t bytes)
{
    char *start = memory;
    bool  huge = true;
    if (bytes >= CHECKED && lk_context_check_memory(context, "the ranks' shared memory", bytes) < 0) return false;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t piece = bytes - at < PIECE ? bytes - at : PIECE;
        if (huge && piece == PIECE)
            huge =
                populate(start + at, (size_t)sysconf(_SC_PAGESIZE)) && madvise(start + at, PIECE, MADV_COLLAPSE) == 0;
        if (!populate(start + at, piece)) return false;
    }
    return true;
}

void lk__rendezvous_unmap(void *memory, size_t bytes)
{
    if (memory) munmap(memory, bytes);
}

/* ---- rank 0 ---- */

static lk_status listen_on(const lk__rendezvous_local *m, double end, lk__rendezvous_listener *l)
{
    double    until = lk__now() + name_wait;
    char      where[LK__ADDRESS_TEXT];
    socklen_t length = address_of(m->key, &l->bound);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&l->bound, length) == 0 && listen(fd, 4096) == 0) {
            l->fd = fd;
            return LK_OK;
        }
        int why = errno;
        if (fd >= 0) close(fd);
        if (fd < 0 || why != EADDRINUSE || lk__now() > (until < end ? until : end)) {
            lk__address_show(&l->bound, where, sizeof where);
            return lk__fail(m->context, LK_EIO, "rank 0 of %d cannot listen on %s: %s%s", m->size, where,
                            lk__comm_reason_of(why).text,
                            why == EADDRINUSE ? "; another job uses that name: choose another MASTER_PORT" : "");
        }
        usleep(2000); /* an earlier rendezvous of the same job may be about to end */
    }
}

/* Sends all ranks that joined the memory, or the failure. */
static void reply_to_all(const preparation *p, lk_status status, size_t bytes, int fd)
{
    lk__rendezvous_reply reply = {.status = status, .bytes = bytes};
    if (status < 0) snprintf(reply.text, sizeof reply.text, "%s", lk_context_error(p->m->context));
    send_reply(p, &reply, fd);
}

/* A connection ended. If that rank died, the group's failure says so; others that cannot map the memory leave the group
 * as it is. */
static lk_status check_group(const lk__rendezvous_local *m)
{
    lk_status status = m->check ? m->check(m->comm) : LK_OK;
    for (int tries = 0; tries < 50 && m->check && status >= 0; tries++) {
        usleep(2000); /* it is dead shortly after its files are closed */
        status = m->check(m->comm);
    }
    return status;
}

/* `rank` is late, which `status` and the context's error say. Where a group shares more memory, that is the group's
 * failure, as in any other operation: so all its ranks name the same cause. */
static lk_status fail_late(const lk__rendezvous_local *m, int rank, lk_status status)
{
    lk__comm_join_failed(m->comm, rank, LK__CAUSE_LATE);
    if (!m->check) return status;
    m->comm->backend->raise(m->comm, status, lk_context_error(m->context),
                            lk__comm_cause_make(m->comm, rank, LK__CAUSE_LATE));
    lk_status failed = m->check(m->comm);
    return failed < 0 ? failed : status;
}

/* No rank goes on before all have mapped the memory. */
static lk_status wait_mapped(const lk__rendezvous_local *m, const lk__rendezvous_server *server, double end)
{
    char byte;
    for (int i = 1; i < m->size; i++) {
        const lk__rendezvous_pending *connection = server->ranks[i];
        if (lk__read_whole(connection->fd, &byte, 1, end)) continue;
        int       why = errno;
        bool      left = why == ECONNRESET;
        lk_status status = left ? check_group(m) : LK_OK;
        if (status < 0) return status;
        status = lk__fail(m->context, LK_ETIMEOUT, "rank %d of %d (process %lld) did not map the shared memory: %s", i,
                          m->size, (long long)connection->request.endpoint.pid,
                          left ? "it closed the connection" : strerror(why));
        if (!left) return fail_late(m, i, status);
        lk__comm_join_failed(m->comm, i, LK__CAUSE_DEAD);
        return status;
    }
    for (int i = 1; i < m->size; i++) (void)!send(server->ranks[i]->fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return LK_OK;
}

static lk_status share_as_rank_0(const lk__rendezvous_local *m, size_t bytes, void **memory)
{
    double                  end = lk__now() + m->seconds;
    lk__rendezvous_waiting  waiting;
    lk__rendezvous_listener listener = {.fd = -1};
    lk__rendezvous_server   server = {.size = m->size};
    preparation             p = {.m = m, .server = &server};
    int                     fd = -1;
    lk_status               status = listen_on(m, end, &listener);
    if (status < 0) return status;
    status = lk__server_open(&server, m->context, &listener, m->token, LK__TO_SHARE, m->size);
    if (status < 0) goto done;
    server.check = m->check;
    server.comm = m->comm;
    lk__waiting_begin(&waiting, m->context, m->identity, 0, m->size, end);
    status = lk__server_receive(&server, &waiting, "");
    if (status == LK_ETIMEOUT)
        status = fail_late(m, lk__server_missing(&server), status);
    else if (status < 0)
        lk__server_note_failure(&server, m->comm);
    lk__listener_close(&listener); /* before any rank goes on: its next rendezvous must not connect to this one */
    if (status >= 0) status = make_memory(&p, bytes, &fd);
    if (status >= 0) status = map_memory(m, fd, bytes, memory);
    reply_to_all(&p, status, bytes, status < 0 ? -1 : fd);
    if (status >= 0) status = wait_mapped(m, &server, lk__now() + m->seconds);
    if (status < 0) {
        lk__rendezvous_unmap(*memory, bytes + reserve_of(m));
        *memory = NULL;
    }
    if (fd >= 0) close(fd);
done:
    lk__listener_close(&listener);
    lk__server_close(&server);
    return status;
}

/* ---- the others ---- */

typedef enum outcome { JOINED, RETRY, REFUSED, NO_REPLY } outcome;

static outcome outcome_of_read(void) { return errno == ETIMEDOUT ? NO_REPLY : RETRY; }

/* Maps the memory of the reply, and waits until all ranks have. */
static lk_status receive_memory(const lk__rendezvous_local *m, int fd, const lk__rendezvous_reply *reply, int shared,
                                double end, size_t bytes, void **memory)
{
    char all;
    if (shared < 0 || reply->bytes != bytes)
        return lk__fail(m->context, LK_EMISMATCH,
                        "rank 0 shares %llu bytes, but rank %d expects %zu: are all ranks running the same program?",
                        (unsigned long long)reply->bytes, m->rank, bytes);
    lk_status status = map_memory(m, shared, bytes, memory);
    if (status < 0) return status;
    if (lk__write_whole(fd, "m", 1, end) && lk__read_whole(fd, &all, 1, end)) return LK_OK;
    bool late = errno == ETIMEDOUT;
    lk__rendezvous_unmap(*memory, bytes + reserve_of(m));
    *memory = NULL;
    if ((status = check_group(m)) < 0) return status;
    /* Rank 0 knows which rank has not mapped it, unless it is late itself; both lead the launcher to the cause. */
    if (late)
        return fail_late(
            m, 0,
            lk__fail(m->context, LK_ETIMEOUT,
                     "rank 0 of %d gave rank %d the shared memory, but did not report within %.1f s that all ranks had "
                     "mapped it",
                     m->size, m->rank, m->seconds));
    lk__comm_join_failed(m->comm, 0, LK__CAUSE_OWN);
    return lk__fail(
        m->context, LK_EIO,
        "rank %d could not join: another rank failed to map the shared memory, or rank 0 closed the connection",
        m->rank);
}

static lk_status fail_dead_master(const lk__rendezvous_local *m, long pid)
{
    lk_status status = check_group(m);
    if (status < 0) return status;
    lk__comm_join_failed(m->comm, 0, LK__CAUSE_DEAD);
    return lk__fail(m->context, LK_EIO, "rank 0 of %d (process %ld) died before all ranks had joined", m->size, pid);
}

/* A killed process closes its sockets shortly before it is seen as dead. */
static bool dies_soon(long pid)
{
    if (pid <= 0) return false; /* in a pid namespace that is not visible from here */
    for (int tries = 0; tries < 50 && !lk__process_gone(pid); tries++) usleep(2000);
    return lk__process_gone(pid);
}

/* Rank 0's last reply to this rank's request. Each one begins the deadline again. */
static bool receive_reply(const lk__rendezvous_local *m, int fd, const lk__rendezvous_request *request,
                          lk__rendezvous_reply *reply, int *shared, double *end)
{
    bool preparing = true;
    while (preparing) {
        if (!lk__read_passed(fd, reply, sizeof *reply, shared, *end)) return false;
        preparing = lk__reply_verify(reply, request, m->token) == LK__TRUSTED && reply->preparing;
        *end = lk__now() + m->seconds + 0.5;
    }
    return true;
}

/* One attempt on a connection. RETRY: rank 0 was not ready, or another rendezvous listened; errno gives the reason.
 * *master: the process that sent a valid challenge. */
static outcome request_memory(const lk__rendezvous_local *m, int fd, const char *where, double end, size_t bytes,
                              void **memory, long *master, lk_status *status)
{
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.purpose = LK__TO_SHARE, .rank = m->rank, .size = m->size};
    lk__rendezvous_reply     reply;
    int                      shared;
    long                     pid;
    if (!lk__peer_is_own_user(fd, &pid)) {
        *status =
            lk__fail(m->context, LK_EIO, "process %ld of another user listens on %s instead of rank 0", pid, where);
        return REFUSED;
    }
    /* Rank 0 has the same deadline, and knows which ranks are missing: wait a little longer for its report. */
    end += 0.5;
    if (!lk__read_whole(fd, &challenge, sizeof challenge, end)) return outcome_of_read();
    errno = EPROTO;
    if (!lk__challenge_valid(&challenge)) return RETRY;
    *master = pid;
    lk__endpoint_make(m->context, &request.endpoint);
    if (!lk__request_sign(&request, &challenge, m->token) || !lk__write_whole(fd, &request, sizeof request, end))
        return RETRY;
    if (!receive_reply(m, fd, &request, &reply, &shared, &end)) {
        outcome result = outcome_of_read();
        int     why = errno;
        if (shared >= 0) close(shared);
        if (why == ECONNRESET && dies_soon(pid)) {
            *status = fail_dead_master(m, pid);
            return REFUSED;
        }
        errno = why;
        return result;
    }
    lk__rendezvous_trust trust = lk__reply_verify(&reply, &request, m->token);
    *status = trust == LK__FOREIGN
                  ? lk__fail(m->context, LK_EIO, "process %ld listens on %s, but does not speak rank 0's protocol", pid,
                             where)
                  : lk__reply_check(m->context, &reply, trust, &request, where);
    if (trust == LK__TRUSTED && reply.status < 0 && reply.status != LK_EMISMATCH) /* that is this rank's error */
        lk__comm_join_failed(m->comm, 0, LK__CAUSE_OWN);
    lk_status failed = *status < 0 && m->check ? m->check(m->comm) : LK_OK;
    if (failed < 0) *status = failed; /* rank 0 has named the cause there */
    if (*status >= 0) *status = receive_memory(m, fd, &reply, shared, end, bytes, memory);
    if (shared >= 0) close(shared);
    return *status < 0 ? REFUSED : JOINED;
}

static const char *describe_error(int why)
{
    switch (why) {
    case ECONNREFUSED: return "nothing listens there";
    case ECONNRESET: return "the listener there closed the connection";
    case EAGAIN: return "the listener there accepts no connections";
    case EPROTO: return "the listener there does not speak rank 0's protocol";
    default: return strerror(why);
    }
}

static lk_status join_rank_0(const lk__rendezvous_local *m, size_t bytes, void **memory)
{
    double                  begun = lk__now(), end = begun + m->seconds;
    struct sockaddr_storage address;
    socklen_t               length = address_of(m->key, &address);
    char                    where[LK__ADDRESS_TEXT];
    lk_status               status = LK_OK;
    int                     why = 0;
    long                    master = 0;
    useconds_t              pause = 200;
    lk__rendezvous_waiting  waiting;
    lk__waiting_begin(&waiting, m->context, m->identity, m->rank, m->size, end);
    lk__address_show(&address, where, sizeof where);
    do {
        /* Non-blocking: when the backlog is full, connect would block without a limit. */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return lk__fail(m->context, LK_EIO, "rank %d of %d cannot open a Unix socket: %s", m->rank, m->size,
                            lk__comm_reason_of(errno).text);
        outcome result = RETRY;
        if (connect(fd, (struct sockaddr *)&address, length) == 0)
            result = request_memory(m, fd, where, end, bytes, memory, &master, &status);
        why = errno;
        close(fd);
        if (result == JOINED) return LK_OK;
        if (result == REFUSED) return status;
        if (result == NO_REPLY)
            return fail_late(m, 0,
                             lk__fail(m->context, LK_ETIMEOUT,
                                      "rank 0 of %d listens on %s, but sent nothing to rank %d for %.1f s", m->size,
                                      where, m->rank, lk__now() - begun));
        if (why == ECONNREFUSED && master > 0 && lk__process_gone(master)) return fail_dead_master(m, master);
        if (m->check && (status = m->check(m->comm)) < 0) return status;
        if (lk__waiting_due(&waiting)) lk__waiting_for_master(&waiting, where, describe_error(why));
        usleep(pause);
        if (pause < 5000) pause *= 2;
    } while (lk__now() < end);
    status = lk__fail(m->context, LK_ETIMEOUT, "rank 0 of %d did not join: rank %d tried %s for %.1f s (%s)", m->size,
                      m->rank, where, m->seconds, describe_error(why));
    if (why != ECONNREFUSED) return fail_late(m, 0, status);
    lk__comm_join_failed(m->comm, 0, LK__CAUSE_LATE); /* or it has failed by itself, and the group has not */
    return status;
}

lk_status lk__rendezvous_share(const lk__rendezvous_local *m, size_t bytes, void **memory)
{
    *memory = NULL;
    return m->rank == 0 ? share_as_rank_0(m, bytes, memory) : join_rank_0(m, bytes, memory);
}
