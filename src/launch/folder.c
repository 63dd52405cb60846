/* folder.c - a job's files: FOLDER/attempt_G/LOCAL_RANK/{stdout.log,stderr.log,error.json}, torchrun's layout.
 * Temporary files, such as flight recorders, are in a folder that is removed with the job. The launcher holds a lock in
 * it: if the lock is free, launcher and reaper were killed together or could not remove it, and the next launch of the
 * same user removes the folder. So the lock is removed last. */
#define _GNU_SOURCE
#include "base/directories.h"
#include "base/environment.h"
#include "launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EMPTY_SECONDS = 60 }; /* age of an empty folder that no launcher is about to use */

/* The system's temporary directory; absolute, since the reaper and the ranks may have another working directory. */
static void find_temporary_directory(char *out, size_t size)
{
    const char *wanted = lk__environment(NULL, LK__ENV_TMPDIR);
    if (!wanted || !*wanted) wanted = "/tmp";
    char *real = realpath(wanted, NULL);
    snprintf(out, size, "%s", real ? real : wanted);
    free(real);
}

lk_status lk__folder_name(lk__launch_job *job)
{
    char base[LK__LAUNCH_PATH];
    find_temporary_directory(base, sizeof base);
    if (strlen(base) > LK__LAUNCH_PATH - 100)
        return lk__fail(job->context, LK_EINVAL, "TMPDIR is %.100s…: too long for the path of temporary files", base);
    snprintf(job->folder, sizeof job->folder, "%.*s/lockstep-%s", LK__LAUNCH_PATH - 100, base, job->own_id);
    return LK_OK;
}

static lk_status open_logs(lk__launch_job *job)
{
    const lk_launch_config *config = job->config;
    char                    base[LK__LAUNCH_PATH], parent[LK__LAUNCH_PATH], name[LK__LAUNCH_PATH];
    snprintf(name, sizeof name, "%s", job->run_id);
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_'; /* the name is one directory */
    find_temporary_directory(parent, sizeof parent);
    int length = config->log_dir ? snprintf(base, sizeof base, "%s/%s_XXXXXX", config->log_dir, name)
                                 : snprintf(base, sizeof base, "%s/lockstep-XXXXXX", parent);
    if (length > LK__LAUNCH_PATH - 100)
        return lk__fail(job->context, LK_EINVAL, "%.100s…: too long for the path of log files", base);
    lk_status status = config->log_dir ? lk__make_directories(job->context, config->log_dir) : LK_OK;
    if (status < 0) return status;
    if (!mkdtemp(base))
        return lk__fail(job->context, LK_EIO, "%s: cannot create a directory for the job's files: %s", base,
                        strerror(errno));
    if (config->log_dir) chmod(base, 0755); /* others may read logs, as log_dir allows */
    char *real = realpath(base, NULL);      /* ranks may change their working directory */
    snprintf(job->logs, sizeof job->logs, "%s", real ? real : base);
    free(real);
    return LK_OK;
}

/* ---- the lock ---- */

/* Its name contains the kernel's boot id: on a file system that hosts share, a lock of another host may look free.
 * Locks work across pid namespaces. */
static bool lock_name(char *out, size_t size)
{
    char    id[37] = "";
    int     fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, id, sizeof id - 1) : -1;
    if (fd >= 0) close(fd);
    id[strspn(id, "0123456789abcdef-")] = 0;
    snprintf(out, size, "lock-%s", id);
    return got == (ssize_t)sizeof id - 1;
}

/* The file gets its name once it is locked. Without a lock, only the removal by later launches is lost. */
static void hold_lock(lk__launch_job *job)
{
    char name[48], path[LK__LAUNCH_PATH + 64], last[LK__LAUNCH_PATH + 64];
    if (!lock_name(name, sizeof name)) return;
    snprintf(path, sizeof path, "%s/new", job->folder);
    snprintf(last, sizeof last, "%s/%s", job->folder, name);
    job->lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (job->lock >= 0 && flock(job->lock, LOCK_EX | LOCK_NB) == 0) (void)!rename(path, last);
}

static bool is_lock_name(const char *name) { return strncmp(name, "lock-", 5) == 0; }

static bool is_folder_name(const char *name)
{
    static const char lead[] = "lockstep-";
    if (strncmp(name, lead, sizeof lead - 1) != 0) return false;
    name += sizeof lead - 1;
    return strlen(name) == LK__OWN_ID - 1 && strspn(name, "0123456789abcdef") == LK__OWN_ID - 1;
}

/* Removes one folder of this user if its launcher has ended. One without a lock is being made, or its removal failed at
 * the end: if it is empty, and not new, it is removed too. */
static void remove_if_abandoned(int parent, const char *base, const char *name, const char *lock)
{
    char        path[2 * LK__LAUNCH_PATH];
    struct stat about;
    int         folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return;
    int fd = fstat(folder, &about) == 0 && about.st_uid == geteuid()
                 ? openat(folder, lock, O_RDWR | O_NOFOLLOW | O_CLOEXEC)
                 : -1;
    close(folder);
    if (fd < 0 && errno == ENOENT && about.st_uid == geteuid() && about.st_mtime + EMPTY_SECONDS < time(NULL))
        unlinkat(parent, name, AT_REMOVEDIR);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        snprintf(path, sizeof path, "%s/%s", base, name);
        (void)lk__folder_remove(path); /* the next launch tries again */
    }
    close(fd);
}

static void remove_abandoned(void)
{
    char           base[LK__LAUNCH_PATH], lock[48];
    struct dirent *entry;
    find_temporary_directory(base, sizeof base);
    DIR *directory = lock_name(lock, sizeof lock) ? opendir(base) : NULL;
    if (!directory) return;
    while ((entry = readdir(directory)))
        if (is_folder_name(entry->d_name)) remove_if_abandoned(dirfd(directory), base, entry->d_name, lock);
    closedir(directory);
}

lk_status lk__folder_open(lk__launch_job *job)
{
    const lk_launch_config *config = job->config;
    if (mkdir(job->folder, 0700) < 0) {
        lk_status status = lk__fail(job->context, LK_EIO, "%s: cannot create a directory for the job's files: %s",
                                    job->folder, strerror(errno));
        job->folder[0] = 0; /* not created by this job, so it must not be removed */
        return status;
    }
    hold_lock(job);
    remove_abandoned();
    return lk__wants_logs(config) ? open_logs(job) : LK_OK;
}

static lk_status open_log(lk__launch_job *job, lk__launch_child *child, int which, const char *name)
{
    char path[LK__LAUNCH_PATH + 16];
    snprintf(path, sizeof path, "%s/%s", child->folder, name);
    child->streams[which].file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (child->streams[which].file >= 0) return LK_OK;
    return lk__fail(job->context, LK_EIO, "%s: cannot open for writing: %s", path, strerror(errno));
}

void lk__folder_filtered_close(lk__launch_job *job)
{
    for (int i = 0; i < 2; i++) {
        if (job->filtered[i] >= 0) close(job->filtered[i]);
        job->filtered[i] = -1;
    }
}

lk_status lk__folder_filtered(lk__launch_job *job)
{
    static const char *const names[2] = {"filtered_stdout.log", "filtered_stderr.log"};
    const char *const        filters[2] = {job->config->stdout_filters, job->config->stderr_filters};
    char                     folder[LK__LAUNCH_PATH + 32], path[LK__LAUNCH_PATH + 64];
    lk__folder_filtered_close(job);
    for (int i = 0; i < 2; i++) {
        if (!filters[i]) continue;
        snprintf(folder, sizeof folder, "%s/attempt_%d", job->logs, job->generation);
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (lk__make_directories(job->context, folder) < 0) return LK_EIO;
        job->filtered[i] = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (job->filtered[i] < 0)
            return lk__fail(job->context, LK_EIO, "%s: cannot open for writing: %s", path, strerror(errno));
    }
    return LK_OK;
}

/* As in torchrun, of the streams that are both shown and written; of all streams without --tee and --redirects. */
static void choose_filtered(lk__launch_job *job, lk__launch_child *child, int tee)
{
    const lk_launch_config *config = job->config;
    const char *const       filters[2] = {config->stdout_filters, config->stderr_filters};
    int                     chosen = config->tee || config->redirects ? tee : 3;
    for (int i = 0; i < 2; i++) {
        if (!filters[i] || !(chosen >> i & 1)) continue;
        child->streams[i].filters = filters[i];
        child->streams[i].filtered = job->filtered[i];
    }
}

lk_status lk__folder_child(lk__launch_job *job, lk__launch_child *child)
{
    const lk_launch_config *config = job->config;
    const char             *base = job->logs[0] ? job->logs : job->folder;
    int                     length =
        snprintf(child->folder, sizeof child->folder, "%s/attempt_%d/%d", base, job->generation, child->local_rank);
    if (length > LK__LAUNCH_PATH - 16) return lk__fail(job->context, LK_EINVAL, "%s: too long for a path", base);
    if (lk__make_directories(job->context, child->folder) < 0) return LK_EIO;
    snprintf(child->error_file, sizeof child->error_file, "%.*s/error.json", LK__LAUNCH_PATH - 16, child->folder);
    snprintf(child->flight_recorder, sizeof child->flight_recorder, "%.*s/flight_recorder_%d_%d", LK__LAUNCH_PATH - 40,
             job->folder, job->generation, child->local_rank);
    int tee = config->tee ? lk__std_bits(config->tee, child->local_rank) : 0;
    int only = config->redirects ? lk__std_bits(config->redirects, child->local_rank) : 0;
    if (config->log_dir && !config->tee && !config->redirects) tee = 3;
    choose_filtered(job, child, tee);
    static const char *const names[2] = {"stdout.log", "stderr.log"};
    for (int i = 0; i < 2; i++) {
        if (((tee | only) >> i & 1) && open_log(job, child, i, names[i]) < 0) return LK_EIO;
        bool shown = (tee >> i & 1) || !(only >> i & 1);
        if (config->local_ranks_filter && !lk__filter_has(config->local_ranks_filter, child->local_rank)) shown = false;
        if (!shown) child->streams[i].sink = NULL;
    }
    return LK_OK;
}

/* Everything in a directory, except its locks unless `locks`. 0, or the first error. */
static int empty_directory(const char *path, bool locks)
{
    char           inside[2 * LK__LAUNCH_PATH];
    struct dirent *entry;
    int            why = 0;
    DIR           *directory = opendir(path);
    if (!directory) return errno;
    while ((entry = readdir(directory))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (!locks && is_lock_name(name))) continue;
        snprintf(inside, sizeof inside, "%s/%s", path, name);
        int error = unlink(inside) == 0 || errno == ENOENT ? 0 : errno;
        if (error == EISDIR || error == EPERM) { /* EPERM: POSIX's error for a directory */
            int deeper = empty_directory(inside, true);
            if (deeper != ENOTDIR) error = deeper;
            if (!deeper) error = rmdir(inside) == 0 || errno == ENOENT ? 0 : errno;
        }
        if (!why) why = error;
    }
    closedir(directory);
    return why;
}

int lk__folder_remove(const char *path)
{
    int why = 0;
    for (int tries = 0; tries < 3; tries++) { /* descriptors or memory may be short for a moment */
        if (tries) usleep(10000);
        if (!(why = empty_directory(path, false))) why = empty_directory(path, true);
        if (!why && rmdir(path) < 0) why = errno;
        if (!why || why == ENOENT) return 0;
    }
    return why;
}

int lk__std_bits(const char *text, int local_rank)
{
    char *end;
    long  first = strtol(text, &end, 10);
    if (end == text) return -1;
    if (!*end) return first >= 0 && first <= 3 ? (int)first : -1;
    int bits = 0;
    for (const char *at = text;; at = end + 1) {
        long rank = strtol(at, &end, 10);
        if (end == at || *end != ':' || rank < 0) return -1;
        at = end + 1;
        long value = strtol(at, &end, 10);
        if (end == at || value < 0 || value > 3 || (*end && *end != ',')) return -1;
        if (rank == local_rank) bits = (int)value;
        if (!*end) return bits;
    }
}

lk_status lk__filter_check(lk_context *context, const char *text, int ranks)
{
    for (const char *at = text; at; at++) {
        char *end = NULL;
        long  rank = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (rank < 0 || (*end && *end != ','))
            return lk__fail(context, LK_EINVAL, "'%.40s' is not a comma-separated list of local ranks", text);
        if (rank >= ranks)
            return lk__fail(context, LK_EINVAL, "'%.40s': there is no local rank %ld, only 0 to %d", text, rank,
                            ranks - 1);
        at = end;
        if (!*at) break;
    }
    return LK_OK;
}

bool lk__filter_has(const char *text, int local_rank)
{
    char *end;
    for (;; text = end + 1) {
        if (strtol(text, &end, 10) == local_rank && end != text) return true;
        if (end == text || !*end) return false;
    }
}
