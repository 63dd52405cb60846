/* map.c - maps a file into memory. */
#define _GNU_SOURCE
#include "data/array/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

lk_status lk__map_open(lk_context *context, const char *path, lk__map *map)
{
    *map = (lk__map){0};
    struct stat about;
    lk_status   status = LK_OK;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: do not wait for a pipe's writer */
    if (fd < 0 || fstat(fd, &about) != 0) {
        status = lk__fail(context, errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO, "cannot open %s: %s", path,
                          strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
        status = lk__fail(context, LK_EFORMAT, "%s is %s, not a file", path,
                          S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe");
    } else if (about.st_size == 0) {
        status = lk__fail(context, LK_EFORMAT, "%s is empty", path);
    } else {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED)
            status = lk__fail(context, LK_EIO, "cannot map %s: %s", path, strerror(errno));
        else
            *map = (lk__map){bytes, (size_t)about.st_size, true};
    }
    if (fd >= 0) close(fd);
    return status;
}

void lk__map_close(lk__map *map)
{
    if (map->mapped) munmap((void *)map->bytes, map->size);
    *map = (lk__map){0};
}
