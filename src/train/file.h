/* train/file.h - atomic writes of files and directories: written under a temporary name, flushed, then renamed. */
#ifndef LK__FILE_H
#define LK__FILE_H

#include "base/base.h"
#include "base/hash.h"

#include <limits.h>

enum { LK__FILE_STAGING = 65536 }; /* recommended bytes of a staging buffer; any size from 1 works */

/* A file being written. Small writes are collected in the caller's staging buffer, large ones are written directly.
 * After a failure, later writes do nothing and commit reports it. The old file is unchanged until commit. */
typedef struct lk__file {
    lk_context *context;
    lk_status   status;
    int         fd;
    bool        direct; /* a device or pipe such as /dev/stdout: written in place, not renamed */
    char       *staging;
    size_t      capacity, used;
    uint64_t    bytes; /* written so far */
    lk__sha256  sha;
    char        path[PATH_MAX];
    char        temporary[PATH_MAX]; /* path.tmp.PID, locked (flock) while its writer runs */
} lk__file;

lk_status lk__file_create(lk__file *file, lk_context *context, const char *path, void *staging, size_t staging_bytes);
lk_status lk__file_write(lk__file *file, const void *data, size_t bytes);
/* Where the next *room bytes (at least 1) may be put instead, and how many were put there. NULL after a failure. */
void *lk__file_reserve(lk__file *file, size_t *room);
void  lk__file_advance(lk__file *file, size_t bytes);
/* Flushes, renames and flushes the directory. digest gets the SHA-256 of all bytes in hexadecimal; may be NULL. Closes
 * the file and leaves no temporary, also when it fails. */
lk_status lk__file_commit(lk__file *file, char digest[65]);
lk_status lk__file_sync_parent(lk_context *context, const char *path); /* makes the entry of a renamed path durable */
/* discards: the old file stays. Allowed after commit and after a failed create */
void lk__file_abandon(lk__file *file);

enum { LK__LISTED_FILES = 16, LK__LISTED_NAME = 64 };
typedef char lk__file_name[LK__LISTED_NAME];

/* The files that a directory may hold: those named, and those that the directory itself lists. */
typedef struct lk__file_names {
    const char *const *names;
    size_t             count;
    /* Reads more names out of a file of the directory, the last of `names`, which is therefore deleted last. NULL:
     * there are none. */
    size_t (*list)(int directory, lk__file_name names[LK__LISTED_FILES]);
} lk__file_names;

/* A directory being replaced as a whole: files are written into `temporary` (lk__file_create there), then commit
 * replaces `path` by it; the old contents stay until then. Either may hold only known files: a directory that holds
 * anything else is refused, never deleted. */
typedef struct lk__train_directory {
    lk_context           *context;
    int                   fd; /* of temporary; holds its lock */
    const lk__file_names *known;
    char                  path[PATH_MAX];
    char                  temporary[PATH_MAX]; /* path.tmp.PID */
} lk__train_directory;

lk_status lk__directory_create(lk__train_directory *directory, lk_context *context, const char *path,
                               const lk__file_names *known);
lk_status lk__directory_commit(lk__train_directory *directory);
void      lk__directory_abandon(lk__train_directory *directory);

/* LK_EINVAL if it holds anything other than known files, or is not a directory; LK_ENOENT, without a message, if it
 * does not exist. A link is not followed, and is fine. */
lk_status lk__directory_check(lk_context *context, const char *path, const lk__file_names *known);
int       lk__directory_move(const char *from, const char *to); /* -1: errno; EEXIST: `to` exists, and stays as it is */
/* Removes a directory that holds only known files (and abandoned temporaries of them). LK_ENOENT, without a message, if
 * it does not exist; LK_EINVAL, with nothing removed, if it holds something else. Does not follow links. */
lk_status lk__directory_remove(lk_context *context, const char *path, const lk__file_names *known);
/* The same, atomically: it is first renamed to PATH.tmp.PID, which is not a checkpoint's name and which recovery
 * removes, so a kill leaves no partial checkpoint. A link or file instead of a directory stays: LK_OK. */
lk_status lk__directory_prune(lk_context *context, const char *path, const lk__file_names *known);

/* After a crash: removes temporaries in `parent` that no running process writes, and restores a directory that was
 * renamed to NAME.old.PID if no new one took its place. Directories that hold other files than the known ones, and
 * those for whose NAME is_own returns false (a user's copy "best.tmp.1"), stay unchanged. Call it before searching for
 * checkpoints. LK_OK if parent does not exist. */
lk_status lk__directory_recover(lk_context *context, const char *parent, const lk__file_names *known,
                                bool (*is_own)(const char *name));

/* The contents of a small text file, with a NUL at the end; free *text with lk__text_free. LK_ENOENT if there is no
 * file, LK_EFORMAT if it is longer than `limit` or contains a NUL. */
lk_status lk__read_text(lk_context *context, const char *path, size_t limit, char **text, size_t *length);
void      lk__text_free(lk_context *context, char *text, size_t length);

/* SHA-256 of a file in hexadecimal. */
lk_status lk__file_digest(lk_context *context, const char *path, void *staging, size_t staging_bytes, char digest[65]);

#endif
