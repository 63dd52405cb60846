/* writers.c - finds the ranks that see a checkpoint's directory, and shares statuses: a failure of one rank is one of
 * all, with its message, and none of them waits for another. */
#include "train/writers.h"

#include "base/entropy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- statuses ---- */

lk_status lk__group_tell(lk_context *c, lk_comm *comm, int root, lk_status status, int *failed)
{
    struct {
        int32_t status;
        char    text[1020];
    } message = {.status = status};
    if (!comm || lk_comm_size(comm) == 1) return status;
    if (status < 0) snprintf(message.text, sizeof message.text, "%s", lk_context_error(c));
    lk_status sent = lk_comm_broadcast(comm, &message, sizeof message, LK_U8, root, NULL);
    if (sent < 0) return sent;
    if (message.status < 0 && failed) *failed = root;
    if (message.status >= 0 || lk_comm_rank(comm) == root) return (lk_status)message.status;
    message.text[sizeof message.text - 1] = 0;
    return lk__fail_of_rank(c, (lk_status)message.status, root, "rank %d: %s", root, message.text);
}

lk_status lk__group_agree(lk_context *c, lk_comm *comm, lk_status status, int *failed)
{
    if (!comm || lk_comm_size(comm) == 1) return status;
    int32_t   first = status < 0 ? lk_comm_rank(comm) : lk_comm_size(comm);
    lk_status sent = lk_comm_all_reduce(comm, &first, &first, 1, LK_I32, LK_MIN, NULL);
    if (sent < 0) return sent;
    return first == lk_comm_size(comm) ? status : lk__group_tell(c, comm, first, status, failed);
}

lk_status lk__writers_agree(const lk__writers *w, lk_status status)
{
    return lk__group_agree(w->context, w->comm, status, NULL);
}

lk_status lk__writers_tell(const lk__writers *w, lk_status status, char *text, size_t bytes)
{
    status = lk__group_tell(w->context, w->comm, 0, status, NULL);
    if (status < 0 || !w->comm || !text) return status;
    lk_status sent = lk_comm_broadcast(w->comm, text, bytes, LK_U8, 0, NULL);
    return sent < 0 ? sent : status;
}

bool lk__writers_lost(const lk__writers *w) { return w->comm && lk_comm_status(w->comm) < 0; }

void lk__writers_busy_begin(const lk__writers *w, const char *what)
{
    if (w->comm) lk_comm_busy_begin(w->comm, what);
}

void lk__writers_busy_end(const lk__writers *w)
{
    if (w->comm) lk_comm_busy_end(w->comm);
}

/* ---- who sees the directory ---- */

enum { PROBE = 32 };
/* one that a crash left is overwritten: its maker has the directory's lock */
static const char probe_name[] = ".lockstep.probe";

static lk_status probe_path(lk_context *c, const char *directory, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/%s", directory, probe_name);
    return n > 0 && n < PATH_MAX ? LK_OK : lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, probe_name);
}

/* Flushed, because network file systems show others what was closed or flushed. */
static lk_status make_probe(lk_context *c, const char *path, unsigned char bytes[PROBE])
{
    if (!lk__entropy(bytes, PROBE))
        return lk__fail(c, LK_EIO, "cannot get random numbers from the system: %s", strerror(errno));
    int  fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    bool made = fd >= 0 && write(fd, bytes, PROBE) == PROBE && fsync(fd) == 0;
    int  error = errno;
    if (fd >= 0) close(fd);
    return made ? LK_OK : lk__fail(c, LK_EIO, "%s: cannot write: %s", path, strerror(error));
}

static bool sees_probe(const char *path, const unsigned char expected[PROBE])
{
    unsigned char bytes[PROBE];
    int           fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    bool          same = fd >= 0 && read(fd, bytes, PROBE) == PROBE && memcmp(bytes, expected, PROBE) == 0;
    if (fd >= 0) close(fd);
    return same;
}

static lk_status prepare(lk__writers *w, lk_context *c, lk_comm *comm)
{
    *w = lk__writers_alone(c);
    if (!comm || lk_comm_size(comm) == 1) return LK_OK;
    w->comm = comm;
    w->rank = lk_comm_rank(comm);
    w->world = lk_comm_size(comm);
    w->ranks = lk__alloc(c, LK_MEMORY_OTHER, (size_t)w->world * sizeof *w->ranks);
    return w->ranks ? LK_OK : LK_ENOMEM;
}

/* Each rank's answer becomes the list of those that see it. */
static lk_status gather_ranks(lk__writers *w, bool sees)
{
    int32_t   answer = sees;
    lk_status status = lk_comm_all_gather(w->comm, &answer, w->ranks, 1, LK_I32, NULL);
    w->count = 0;
    w->turn = -1;
    for (int i = 0; i < w->world && status >= 0; i++) {
        if (!w->ranks[i]) continue;
        if (i == w->rank) w->turn = w->count;
        w->ranks[w->count++] = i;
    }
    return status;
}

lk_status lk__writers_gather(lk__writers *w, lk_context *c, lk_comm *comm, bool sees)
{
    lk_status status = prepare(w, c, comm);
    if (!comm || lk_comm_size(comm) == 1 || (status = lk__group_agree(c, comm, status, NULL)) < 0) return status;
    return gather_ranks(w, sees);
}

lk_status lk__writers_find(lk__writers *w, lk_context *c, lk_comm *comm, const char *directory)
{
    char      path[PATH_MAX], probe[PROBE];
    lk_status status = prepare(w, c, comm);
    if (!comm || lk_comm_size(comm) == 1) return status;
    if (status >= 0) status = probe_path(c, directory, path);
    if ((status = lk__writers_agree(w, status)) < 0) return status;
    if (w->rank == 0) status = make_probe(c, path, (unsigned char *)probe);
    if ((status = lk__writers_tell(w, status, probe, PROBE)) >= 0)
        status = gather_ranks(w, w->rank == 0 || sees_probe(path, (unsigned char *)probe));
    if (w->rank == 0) unlink(path);
    if (status >= 0 && w->rank == 0 && w->count < w->world)
        lk__log(c, LK_LOG_INFO, "%d of the %d ranks can access %s and write the checkpoints", w->count, w->world,
                directory);
    return status;
}

void lk__writers_free(lk__writers *w)
{
    if (w->ranks) lk__free(w->context, LK_MEMORY_OTHER, w->ranks, (size_t)w->world * sizeof *w->ranks);
    w->ranks = NULL;
}
