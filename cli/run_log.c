/* run_log.c - opens, checks and closes the log of a run. */
#define _GNU_SOURCE
#include "run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 4096 };

/* 0, or ENOSPC and the like: whether the disk has room for a first line. Asks for a block behind the end, and returns it. */
static int check_room(int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return 0;
    int error = fallocate(fd, FALLOC_FL_KEEP_SIZE, about.st_size, ROOM) == 0 ? 0 : errno;
    if (error == 0 && ftruncate(fd, about.st_size) != 0) return 0; /* the block stays reserved */
    return error == ENOSPC || error == EDQUOT ? error : 0;
}

int run_log_open(run_log *l, const char *path)
{
    *l = (run_log){0};
    if (snprintf(l->path, sizeof l->path, "%s", path) >= (int)sizeof l->path) return ENAMETOOLONG;
    if (!(l->file = fopen(path, "ae"))) return errno;
    int error = check_room(fileno(l->file));
    if (error == 0) return 0;
    fclose(l->file);
    l->file = NULL;
    return error;
}

/* What did not reach the file is dropped: a later write, after others, would put it behind a gap. */
static bool stop(run_log *l, int error)
{
    l->error = error ? error : EIO;
    if (l->file) {
        __fpurge(l->file);
        fclose(l->file);
    }
    l->file = NULL;
    return false;
}

bool run_log_check(run_log *l) { return ferror(l->file) ? stop(l, errno) : true; }

bool run_log_close(run_log *l)
{
    FILE *file = l->file;
    l->file = NULL;
    if (!file) return true;
    return fclose(file) == 0 ? true : stop(l, errno); /* NFS and quotas may report a failed write only now */
}
