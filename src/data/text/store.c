/* store.c - stores token ids. Up to a limit they are in memory. Beyond it they are written to an unnamed file in
 * $TMPDIR or /var/tmp (which is on disk even where /tmp is in memory) and mapped, so a text may be larger than the
 * memory. */
#define _GNU_SOURCE
#include "data/text/store.h"

#include "base/environment.h"
#include "data/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEFAULT_LIMIT = 1 << 30, BUFFER = 1 << 20 };

int lk__text_width(int64_t vocabulary) { return vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4; }

void lk__text_pack(const int32_t *ids, size_t count, int width, unsigned char *out)
{
    if (width == 1)
        for (size_t i = 0; i < count; i++) out[i] = (unsigned char)ids[i];
    else if (width == 2)
        for (size_t i = 0; i < count; i++, out += 2)
            out[0] = (unsigned char)ids[i], out[1] = (unsigned char)(ids[i] >> 8);
    else
        for (size_t i = 0; i < count; i++, out += 4)
            for (int k = 0; k < 4; k++) out[k] = (unsigned char)((uint32_t)ids[i] >> 8 * k);
}

static const char *temporary_directory(const lk_context *context)
{
    const char *directory = lk__environment_text(context, LK__ENV_TMPDIR);
    return directory ? directory : "/var/tmp";
}

/* Replaces the memory by another size; the ids in it are kept. */
static lk_status resize(lk__text_store *s, size_t capacity)
{
    unsigned char *other = lk__alloc(s->context, LK_MEMORY_DATA, capacity);
    if (!other) return LK_ENOMEM;
    if (s->used) memcpy(other, s->bytes, s->used);
    lk__free(s->context, LK_MEMORY_DATA, s->bytes, s->capacity);
    s->bytes = other;
    s->capacity = capacity;
    return LK_OK;
}

static lk_status flush(lk__text_store *s)
{
    for (size_t done = 0; done < s->used;) {
        ssize_t n = write(s->fd, s->bytes + done, s->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return lk__fail(s->context, LK_EIO,
                            "cannot write the tokens to a temporary file in %s: %s; set TMPDIR, or use `lockstep data "
                            "tokenize` and tokens:FILE",
                            temporary_directory(s->context), strerror(errno));
        done += (size_t)n;
    }
    s->used = 0;
    return LK_OK;
}

/* A file without a name; -1: there can be none. */
static int open_unnamed(const lk_context *context)
{
    char path[LK__PATH];
    if (!lk__path(path, "%s/lockstep-tokens-XXXXXX", temporary_directory(context))) return -1;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

/* Moves the ids to a file. Where none can be created they stay in memory. */
static lk_status begin_file(lk__text_store *s)
{
    if ((s->fd = open_unnamed(s->context)) < 0) {
        s->limit = SIZE_MAX;
        return LK_OK;
    }
    s->in_file = true;
    lk_status status = flush(s);
    return status < 0 ? status : resize(s, BUFFER);
}

lk_status lk__text_store_add(lk__text_store *s, const int32_t *ids, size_t count)
{
    size_t    bytes = count * (size_t)s->width, limit = s->limit ? s->limit : DEFAULT_LIMIT;
    lk_status status = LK_OK;
    s->count += (int64_t)count;
    if (s->counting) return LK_OK;
    if (!s->in_file && s->used + bytes > limit && (status = begin_file(s)) < 0) return status;
    if (s->in_file && s->used + bytes > s->capacity && (status = flush(s)) < 0) return status;
    if (s->used + bytes > s->capacity) {
        size_t twice = s->in_file ? 0 : 2 * s->capacity, need = s->used + bytes;
        if ((status = resize(s, need > twice ? need : twice)) < 0) return status;
    }
    lk__text_pack(ids, count, s->width, s->bytes + s->used);
    s->used += bytes;
    return LK_OK;
}

lk_status lk__text_store_finish(lk__text_store *s, lk__text_ids *ids, lk__map *map)
{
    *map = (lk__map){0};
    *ids = (lk__text_ids){s->bytes, s->width, s->count};
    if (!s->in_file) return LK_OK;
    lk_status status = flush(s);
    if (status < 0) return status;
    size_t size = (size_t)s->count * (size_t)s->width;
    void  *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, s->fd, 0);
    if (bytes == MAP_FAILED)
        return lk__fail(s->context, LK_EIO, "cannot map the temporary file of tokens: %s", strerror(errno));
    *map = (lk__map){bytes, size, true};
    ids->bytes = bytes;
    lk__text_store_free(s); /* the mapping keeps the file */
    return LK_OK;
}

void lk__text_store_free(lk__text_store *s)
{
    lk__free(s->context, LK_MEMORY_DATA, s->bytes, s->capacity);
    if (s->in_file) close(s->fd);
    s->bytes = NULL;
    s->capacity = s->used = 0;
    s->in_file = false;
}
