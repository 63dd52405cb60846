/* train/file.h - files and directories that appear whole or not at all: written aside, flushed, then renamed. */
#ifndef LK__FILE_H
#define LK__FILE_H

#include "base/base.h"
#include "base/hash.h"

#include <limits.h>

enum { LK__FILE_STAGING = 65536 }; /* bytes that a writer wants as its staging buffer; any size from 1 works */

/* A file being written. Small writes gather in the caller's staging buffer, large ones go straight from where they lie.
 * The first failure sticks: later writes do nothing and commit reports it. The old file is untouched until commit. */
typedef struct lk__file {
    lk_context *context;
    lk_status   status;
    int         fd;
    bool        direct; /* a device or pipe such as /dev/stdout: nothing to rename */
    char       *staging;
    size_t      capacity, used;
    uint64_t    bytes; /* written so far */
    lk__sha256  sha;
    char        path[PATH_MAX];
    char        temporary[PATH_MAX]; /* path.tmp.PID, locked (flock) while its writer lives */
} lk__file;

lk_status lk__file_create(lk__file *file, lk_context *context, const char *path, void *staging, size_t staging_bytes);
lk_status lk__file_write(lk__file *file, const void *data, size_t bytes);
/* Flushes, renames and flushes the directory. digest may be NULL: the SHA-256 of all bytes in hexadecimal. After it, also
 * when it fails, the file is closed and no temporary remains. */
lk_status lk__file_commit(lk__file *file, char digest[65]);
lk_status lk__file_sync_parent(lk_context *context, const char *path); /* makes the entry of a renamed path durable */
void lk__file_abandon(lk__file *file); /* gives up: the old file stays. Fine after commit and after a failed create */

/* A directory being replaced as a whole: files are written into `temporary` (lk__file_create there), then commit puts it in
 * place of `path`, whose old contents stay until then. Only files named in `names` may be in either: a directory that holds
 * anything else is somebody's, and is refused rather than deleted. */
typedef struct lk__train_directory {
    lk_context        *context;
    int                fd; /* of temporary; holds its lock */
    const char *const *names;
    size_t             count;
    char               path[PATH_MAX];
    char               temporary[PATH_MAX]; /* path.tmp.PID */
} lk__train_directory;

lk_status lk__directory_create(lk__train_directory *directory, lk_context *context, const char *path,
                               const char *const *names, size_t count);
lk_status lk__directory_commit(lk__train_directory *directory);
void      lk__directory_abandon(lk__train_directory *directory);

/* Removes a directory that holds nothing but the named files (and temporaries that nobody writes any more). LK_ENOENT, and no
 * message, when it is not there; LK_EINVAL, and nothing removed, when it holds something else. Links are not followed. */
lk_status lk__directory_remove(lk_context *context, const char *path, const char *const *names, size_t count);
/* The same in a way that a kill cannot leave half done: it is first moved aside, to PATH.tmp.PID, which is no checkpoint's name
 * and which recovery clears. What is no directory (a link, a file) stays: LK_OK. */
lk_status lk__directory_prune(lk_context *context, const char *path, const char *const *names, size_t count);

/* After a crash: removes temporaries in `parent` that no living process writes, and puts back a directory that was moved
 * out of the way (NAME.old.PID) when its successor never took its place. Directories that hold files not named are left
 * alone. Call it before looking for checkpoints. LK_OK when parent is not there. */
lk_status lk__directory_recover(lk_context *context, const char *parent, const char *const *names, size_t count);

lk_status lk__make_directories(lk_context *context, const char *path); /* as mkdir -p */

/* The whole of a small text file, NUL at its end; *text is freed with lk__text_free. LK_ENOENT when there is none,
 * LK_EFORMAT when it is longer than `limit` or holds a NUL. */
lk_status lk__read_text(lk_context *context, const char *path, size_t limit, char **text, size_t *length);
void      lk__text_free(lk_context *context, char *text, size_t length);

/* SHA-256 of a file in hexadecimal. */
lk_status lk__file_digest(lk_context *context, const char *path, void *staging, size_t staging_bytes, char digest[65]);

#endif
