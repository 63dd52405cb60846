/* checkpoint_verify.c - compares the files of a checkpoint with the digests that were saved with them. */
#include "train/checkpoint.h"

#include "base/xxh64.h"
#include "train/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static lk_status verify_sha(lk_context *c, const char *path, const char *sha, void *staging)
{
    char      digest[65];
    lk_status status = lk__file_digest(c, path, staging, LK__FILE_STAGING, digest);
    if (status < 0 || strcmp(digest, sha) == 0) return status;
    return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 differs from the one saved with it", path);
}

/* Chunks of one file: every `step`-th from `first` on. */
typedef struct chunk_check {
    lk_context      *context;
    const char      *path;
    const lk__state *state;
    int              file;
    size_t           first, step;
    void            *staging;
    int              fd;
} chunk_check;

static lk_status hash_range(const chunk_check *k, uint64_t at, size_t bytes, uint64_t *digest)
{
    lk__xxh64 hash;
    lk__xxh64_init(&hash);
    while (bytes) {
        ssize_t n = pread(k->fd, k->staging, bytes < LK__FILE_STAGING ? bytes : LK__FILE_STAGING, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return lk__fail(k->context, n < 0 ? LK_EIO : LK_EFORMAT, "%s: cannot read at byte %" PRIu64 ": %s", k->path,
                            at, n < 0 ? strerror(errno) : "the file ends there");
        lk__xxh64_update(&hash, k->staging, (size_t)n);
        at += (uint64_t)n, bytes -= (size_t)n;
    }
    *digest = lk__xxh64_final(&hash);
    return LK_OK;
}

static lk_status verify_open(const chunk_check *k)
{
    const lk__state *state = k->state;
    size_t           count = state->chunks_count[k->file];
    struct stat      info;
    if (fstat(k->fd, &info) != 0) return lk__fail(k->context, LK_EIO, "%s: %s", k->path, strerror(errno));
    lk__chunks cut = {.bytes = (uint64_t)info.st_size, .size = state->chunk_bytes};
    if (info.st_size < 1 || lk__chunks_count(&cut) != count)
        return lk__fail(k->context, LK_EFORMAT,
                        "%s is damaged: its size of %lld bytes does not match the %zu chunks of up to %" PRIu64
                        " bytes that were saved",
                        k->path, (long long)info.st_size, count, state->chunk_bytes);
    for (size_t i = k->first; i < count; i += k->step) {
        uint64_t  digest = 0, first = lk__chunks_offset(&cut, i);
        size_t    bytes = lk__chunks_bytes(&cut, i);
        lk_status status = hash_range(k, first, bytes, &digest);
        if (status < 0) return status;
        if (digest != state->chunks[k->file][i])
            return lk__fail(k->context, LK_EFORMAT,
                            "%s is damaged: bytes %" PRIu64 " to %" PRIu64 " differ from the digest saved with them",
                            k->path, first, first + bytes - 1);
    }
    return LK_OK;
}

static lk_status verify_chunks(chunk_check check)
{
    check.fd = open(check.path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (check.fd < 0) {
        lk_status status = errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO;
        return lk__fail(check.context, status, "%s: cannot open: %s", check.path, strerror(errno));
    }
    lk_status status = verify_open(&check);
    close(check.fd);
    return status;
}

lk_status lk__checkpoint_verify(lk_context *c, const char *directory, const lk__state *state, bool all, void *staging)
{
    char      path[PATH_MAX];
    lk_status status = LK_OK;
    for (int i = 0; i < 2 && status >= 0; i++) {
        status = lk__checkpoint_join(c, path, directory, lk__checkpoint_files[i]);
        if (status >= 0 && state->chunks[i])
            status = verify_chunks((chunk_check){c, path, state, i, 0, 1, staging, -1});
        if (status >= 0 && (all || !state->chunks[i])) status = verify_sha(c, path, state->sha[i], staging);
    }
    for (size_t i = 0; all && i < state->files_count && status >= 0; i++)
        if ((status = lk__checkpoint_join(c, path, directory, state->files[i].name)) >= 0)
            status = verify_sha(c, path, state->files[i].sha, staging);
    return status;
}

lk_status lk__checkpoint_verify_part(lk_context *c, const char *directory, const lk__state *state,
                                     const lk__writers *readers, void *staging)
{
    size_t    turn = (size_t)readers->turn, count = (size_t)readers->count;
    char      path[PATH_MAX];
    lk_status status = LK_OK;
    for (int i = 0; i < 2 && status >= 0; i++) {
        status = lk__checkpoint_join(c, path, directory, lk__checkpoint_files[i]);
        if (status >= 0) status = verify_chunks((chunk_check){c, path, state, i, turn, count, staging, -1});
    }
    return status;
}
