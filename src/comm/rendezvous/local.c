/* meet.c - the rendezvous of one host. Rank 0 listens on an abstract Unix socket, which leaves nothing behind; both
 * sides look at the other's user and prove that they know the token (hello.h), and rank 0 hands out the memory once all
 * have come: its descriptor comes with the answer. Then
 *
 *     rank → rank 0    one byte: it has mapped the memory
 *     rank 0 → rank    one byte: so have all */
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
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PIECE = 2 << 20 }; /* bytes: a huge page, well below a millisecond */

static const double name_patience = 5; /* seconds for an earlier meeting of the same job to end */

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

/* In pieces: a signal undoes all that one call has allocated, and a timer's would find every long one. */
static bool allocate(int fd, size_t bytes)
{
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < PIECE ? bytes - at : PIECE;
        while (fallocate(fd, 0, (off_t)at, (off_t)piece) != 0)
            if (errno != EINTR) return false;
    }
    return true;
}

static lk_status make_memory(lk_context *context, size_t bytes, int *fd)
{
    lk_status     status;
    struct rlimit limit;
    *fd = -1;
    /* The limit counts for this memory as for files, and going past it kills the process by SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        return lk__fail(context, LK_ENOMEM,
                        "no memory for %.1f MiB that the ranks share: the limit on the size of files, which counts for "
                        "it, is %.1f MiB: raise it with ulimit -f",
                        (double)bytes / 1048576, (double)limit.rlim_cur / 1048576);
    *fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return lk__fail(context, LK_EIO, "cannot create shared memory: %s", lk__comm_reason_of(errno).text);
    if (ftruncate(*fd, (off_t)bytes) != 0 || !allocate(*fd, bytes))
        status = lk__fail(context, LK_ENOMEM, "no memory for %.1f MiB that the ranks share: %s",
                          (double)bytes / 1048576, strerror(errno));
    else if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        status = lk__fail(context, LK_EIO, "cannot seal shared memory: %s", strerror(errno));
    else
        return LK_OK;
    close(*fd);
    *fd = -1;
    return status;
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

void lk__rendezvous_unmap(void *memory, size_t bytes)
{
    if (memory) munmap(memory, bytes);
}

/* ---- rank 0 ---- */

static lk_status listen_on(const lk__rendezvous_local *m, double end, lk__rendezvous_listener *l)
{
    double    until = lk__now() + name_patience;
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
        usleep(2000); /* an earlier meeting of the same job may be about to end */
    }
}

/* Yes and the memory, or no and why, to all who came. Who cannot take a kilobyte is found missing below. */
static void tell_all(const lk__rendezvous_local *m, const lk__rendezvous_server *p, lk_status status, size_t bytes,
                     int fd)
{
    lk__rendezvous_reply answer = {.status = status, .bytes = bytes};
    if (status < 0) snprintf(answer.text, sizeof answer.text, "%s", lk_context_error(m->context));
    for (int i = 1; i < m->size; i++) {
        lk__rendezvous_pending *v = lk__server_peer(p, i);
        if (!v) continue;
        lk__reply_sign(&answer, &v->hello, m->token);
        (void)lk__send_passed(v->fd, &answer, sizeof answer, fd);
    }
}

/* Nobody begins before all have the memory. */
static lk_status wait_mapped(const lk__rendezvous_local *m, const lk__rendezvous_server *p, double end)
{
    char byte;
    for (int i = 1; i < m->size; i++) {
        const lk__rendezvous_pending *v = p->ranks[i];
        if (lk__read_whole(v->fd, &byte, 1, end)) continue;
        bool left = errno == ECONNRESET;
        lk__comm_join_failed(m->comm, i, left ? LK__CAUSE_DEAD : LK__CAUSE_LATE);
        return lk__fail(m->context, LK_ETIMEOUT,
                        "rank %d of %d (process %lld) never took the memory that it was handed: %s", i, m->size,
                        (long long)v->hello.card.pid, left ? "it went away" : strerror(errno));
    }
    for (int i = 1; i < m->size; i++) (void)!send(p->ranks[i]->fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return LK_OK;
}

static lk_status host_meeting(const lk__rendezvous_local *m, size_t bytes, void **memory)
{
    double                  end = lk__now() + m->seconds;
    lk__rendezvous_waiting  waiting;
    lk__rendezvous_listener listener = {.fd = -1};
    lk__rendezvous_server   p = {.size = m->size};
    int                     fd = -1;
    lk_status               status = listen_on(m, end, &listener);
    if (status < 0) return status;
    status = lk__server_open(&p, m->context, &listener, m->token, LK__TO_SHARE, m->size);
    if (status < 0) goto done;
    lk__waiting_begin(&waiting, m->context, m->place, 0, m->size, end);
    status = lk__server_receive(&p, &waiting, "");
    if (status < 0) lk__server_note_failure(&p, m->comm);
    lk__listener_close(&listener); /* before anyone is let go: who comes to the next meeting must not find this one */
    if (status >= 0) status = make_memory(m->context, bytes, &fd);
    if (status >= 0) status = map_memory(m->context, fd, bytes, memory);
    tell_all(m, &p, status, bytes, status < 0 ? -1 : fd);
    if (status >= 0) status = wait_mapped(m, &p, end);
    if (status < 0) {
        lk__rendezvous_unmap(*memory, bytes);
        *memory = NULL;
    }
    if (fd >= 0) close(fd);
done:
    lk__listener_close(&listener);
    lk__server_close(&p);
    return status;
}

/* ---- the others ---- */

typedef enum outcome { MET, AGAIN, REFUSED, SILENT } outcome;

static outcome not_heard(void) { return errno == ETIMEDOUT ? SILENT : AGAIN; }

/* The answer's memory, once it is mapped by all. */
static lk_status take_memory(const lk__rendezvous_local *m, int fd, const lk__rendezvous_reply *answer, int shared,
                             double end, size_t bytes, void **memory)
{
    char all;
    if (shared < 0 || answer->bytes != bytes)
        return lk__fail(m->context, LK_EMISMATCH,
                        "rank 0 offers %llu bytes and rank %d expects %zu: are these the same program?",
                        (unsigned long long)answer->bytes, m->rank, bytes);
    lk_status status = map_memory(m->context, shared, bytes, memory);
    if (status < 0) return status;
    if (lk__write_whole(fd, "m", 1, end) && lk__read_whole(fd, &all, 1, end)) return LK_OK;
    lk__rendezvous_unmap(*memory, bytes);
    *memory = NULL;
    return lk__fail(m->context, LK_EIO,
                    "rank %d could not join: another rank cannot map the memory that all share, or rank 0 went away",
                    m->rank);
}

static lk_status died_early(const lk__rendezvous_local *m, long pid)
{
    lk__comm_join_failed(m->comm, 0, LK__CAUSE_DEAD);
    return lk__fail(m->context, LK_EIO, "rank 0 of %d (process %ld) died before all ranks had joined", m->size, pid);
}

/* A process that is killed closes its sockets a moment before it counts as dead. */
static bool has_died_soon(long pid)
{
    if (pid <= 0) return false; /* of a pid namespace that is not seen from here */
    for (int tries = 0; tries < 50 && !lk__process_gone(pid); tries++) usleep(2000);
    return lk__process_gone(pid);
}

/* One attempt on a connection. AGAIN: rank 0 was not ready, or it was another's meeting; errno says more. *master: the process
 * that spoke as rank 0 does. */
static outcome talk(const lk__rendezvous_local *m, int fd, const char *where, double end, size_t bytes, void **memory,
                    long *master, lk_status *status)
{
    lk__rendezvous_challenge greeting;
    lk__rendezvous_request   hello = {.purpose = LK__TO_SHARE, .rank = m->rank, .size = m->size};
    lk__rendezvous_reply     answer;
    int                      shared;
    long                     pid;
    if (!lk__own_peer(fd, &pid)) {
        *status =
            lk__fail(m->context, LK_EIO, "process %ld of another user listens on %s, where rank 0 should", pid, where);
        return REFUSED;
    }
    /* Rank 0 waits for the others as long as this rank would: it, not we, should say who is missing and why. */
    end += 0.5;
    if (!lk__read_whole(fd, &greeting, sizeof greeting, end)) return not_heard();
    errno = EPROTO;
    if (!lk__challenge_valid(&greeting)) return AGAIN;
    *master = pid;
    lk__card_make(&hello.card);
    if (!lk__request_sign(&hello, &greeting, m->token) || !lk__write_whole(fd, &hello, sizeof hello, end)) return AGAIN;
    if (!lk__read_passed(fd, &answer, sizeof answer, &shared, end)) {
        outcome heard = not_heard();
        int     why = errno;
        if (shared >= 0) close(shared);
        if (why == ECONNRESET && has_died_soon(pid)) {
            *status = died_early(m, pid);
            return REFUSED;
        }
        errno = why;
        return heard;
    }
    lk__rendezvous_trust belief = lk__reply_verify(&answer, &hello, m->token);
    *status =
        belief == LK__FOREIGN
            ? lk__fail(m->context, LK_EIO, "process %ld listens on %s, and does not speak as rank 0 does", pid, where)
            : lk__reply_check(m->context, &answer, belief, &hello, where);
    if (belief == LK__TRUSTED && answer.status < 0 && answer.status != LK_EMISMATCH) /* that one is this rank's mistake */
        lk__comm_join_failed(m->comm, 0, LK__CAUSE_OWN);
    if (*status >= 0) *status = take_memory(m, fd, &answer, shared, end, bytes, memory);
    if (shared >= 0) close(shared);
    return *status < 0 ? REFUSED : MET;
}

static const char *describe_error(int why)
{
    switch (why) {
    case ECONNREFUSED: return "nobody listens there";
    case ECONNRESET: return "who listened there hung up";
    case EAGAIN: return "who listens there lets nobody in";
    case EPROTO: return "what listens there does not speak as rank 0 does";
    default: return strerror(why);
    }
}

static lk_status join_meeting(const lk__rendezvous_local *m, size_t bytes, void **memory)
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
    lk__waiting_begin(&waiting, m->context, m->place, m->rank, m->size, end);
    lk__address_show(&address, where, sizeof where);
    do {
        /* Non-blocking: where too many wait to be let in, connecting would wait without end. */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return lk__fail(m->context, LK_EIO, "rank %d of %d cannot open a Unix socket: %s", m->rank, m->size,
                            lk__comm_reason_of(errno).text);
        outcome o = AGAIN;
        if (connect(fd, (struct sockaddr *)&address, length) == 0)
            o = talk(m, fd, where, end, bytes, memory, &master, &status);
        why = errno;
        close(fd);
        if (o == MET) return LK_OK;
        if (o == REFUSED) return status;
        if (o == SILENT) {
            lk__comm_join_failed(m->comm, 0, LK__CAUSE_LATE);
            return lk__fail(m->context, LK_ETIMEOUT,
                            "rank 0 of %d listens on %s, and said nothing to rank %d for %.1f s", m->size, where,
                            m->rank, lk__now() - begun);
        }
        if (why == ECONNREFUSED && master > 0 && lk__process_gone(master)) return died_early(m, master);
        if (lk__waiting_due(&waiting)) lk__waiting_for_master(&waiting, where, describe_error(why));
        usleep(pause);
        if (pause < 5000) pause *= 2;
    } while (lk__now() < end);
    lk__comm_join_failed(m->comm, 0, LK__CAUSE_LATE);
    return lk__fail(m->context, LK_ETIMEOUT, "rank 0 of %d never came: rank %d tried %s for %.1f s (%s)", m->size,
                    m->rank, where, m->seconds, describe_error(why));
}

lk_status lk__rendezvous_share(const lk__rendezvous_local *m, size_t bytes, void **memory)
{
    *memory = NULL;
    return m->rank == 0 ? host_meeting(m, bytes, memory) : join_meeting(m, bytes, memory);
}
