/* stream.c - files and memory read from front to back; gzip is known by its first two bytes, never by a name. */
#define _GNU_SOURCE
#include "data/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 65536 };

/* zlib frees without a size, so each of its blocks carries its own in front, a whole alignment long. */
static voidpf zlib_alloc(voidpf context, uInt items, uInt size)
{
    size_t bytes = LK__ALIGN + (size_t)items * size;
    char  *memory = lk__alloc(context, LK_MEMORY_DATA, bytes);
    if (!memory) return Z_NULL;
    memcpy(memory, &bytes, sizeof bytes);
    return memory + LK__ALIGN;
}

static void zlib_free(voidpf context, voidpf block)
{
    char  *memory = (char *)block - LK__ALIGN;
    size_t bytes;
    memcpy(&bytes, memory, sizeof bytes);
    lk__free(context, LK_MEMORY_DATA, memory, bytes);
}

/* Makes sure that a byte of input is there, unless the input is over. */
static lk_status refill(lk__data_stream *s)
{
    if (s->available > 0 || s->fd < 0) return LK_OK;
    ssize_t n;
    do n = read(s->fd, s->buffer, BUFFER);
    while (n < 0 && errno == EINTR);
    if (n < 0) return lk__fail(s->context, LK_EIO, "cannot read %s: %s", s->name, strerror(errno));
    s->next = s->buffer;
    s->available = (size_t)n;
    return LK_OK;
}

static lk_status begin(lk__data_stream *s)
{
    lk_status status = refill(s);
    if (status < 0) return status;
    s->gzip = s->available >= 2 && s->next[0] == 0x1f && s->next[1] == 0x8b;
    if (!s->gzip) return LK_OK;
    s->z.zalloc = zlib_alloc;
    s->z.zfree = zlib_free;
    s->z.opaque = s->context;
    if (inflateInit2(&s->z, 15 + 16) != Z_OK) return lk__fail(s->context, LK_ENOMEM, "no memory to unpack %s", s->name);
    s->inflating = true;
    return LK_OK;
}

lk_status lk__stream_open(lk_context *context, const char *path, lk__data_stream *s)
{
    *s = (lk__data_stream){.context = context, .name = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (s->fd < 0)
        return lk__fail(context, errno == ENOENT ? LK_ENOENT : LK_EIO, "cannot open %s: %s", path, strerror(errno));
    struct stat about;
    if (fstat(s->fd, &about) != 0) return lk__fail(context, LK_EIO, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) return lk__fail(context, LK_EFORMAT, "%s is not a file", path);
    s->size = (uint64_t)about.st_size;
    s->buffer = lk__alloc(context, LK_MEMORY_DATA, BUFFER);
    return s->buffer ? begin(s) : LK_ENOMEM;
}

lk_status lk__stream_memory(lk_context *context, const char *name, const void *bytes, size_t size, lk__data_stream *s)
{
    *s = (lk__data_stream){.context = context, .name = name, .fd = -1, .size = size, .next = bytes, .available = size};
    return begin(s);
}

void lk__stream_close(lk__data_stream *s)
{
    if (s->inflating) inflateEnd(&s->z);
    if (s->fd >= 0) close(s->fd);
    lk__free(s->context, LK_MEMORY_DATA, s->buffer, BUFFER);
    s->inflating = false;
    s->fd = -1;
    s->buffer = NULL;
}

/* Unpacks into all of out, or up to the end. */
static lk_status read_gzip(lk__data_stream *s, unsigned char *out, size_t bytes, size_t *got)
{
    while (*got < bytes && !s->ended) {
        lk_status status = refill(s);
        if (status < 0) return status;
        if (s->available == 0)
            return lk__fail(s->context, LK_EFORMAT, "%s is truncated: its gzip data stops at byte %llu", s->name,
                            (unsigned long long)s->taken);
        size_t space = bytes - *got < 1u << 30 ? bytes - *got : 1u << 30; /* zlib counts in 32 bits */
        size_t input = s->available < 1u << 30 ? s->available : 1u << 30;
        s->z.next_in = (Bytef *)s->next;
        s->z.avail_in = (uInt)input;
        s->z.next_out = out + *got;
        s->z.avail_out = (uInt)space;
        int    result = inflate(&s->z, Z_NO_FLUSH);
        size_t used = input - s->z.avail_in;
        s->next += used;
        s->available -= used;
        s->taken += used;
        *got += space - s->z.avail_out;
        if (result == Z_STREAM_END) {
            /* RFC 1952, 2.2: a file may be several members, one after the other, and nothing else. */
            if ((status = refill(s)) < 0) return status;
            if (s->available == 0)
                s->ended = true;
            else if (s->next[0] != 0x1f || inflateReset(&s->z) != Z_OK)
                return lk__fail(s->context, LK_EFORMAT, "%s has something else after its gzip data, from byte %llu on",
                                s->name, (unsigned long long)s->taken);
        } else if (result == Z_MEM_ERROR) {
            return lk__fail(s->context, LK_ENOMEM, "no memory to unpack %s", s->name);
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            return lk__fail(s->context, LK_EFORMAT, "%s is damaged: gzip data near byte %llu: %s", s->name,
                            (unsigned long long)s->taken, s->z.msg ? s->z.msg : "it cannot be unpacked");
        }
    }
    return LK_OK;
}

lk_status lk__stream_read(lk__data_stream *s, void *out, size_t bytes, size_t *got)
{
    *got = 0;
    if (s->gzip) return read_gzip(s, out, bytes, got);
    while (*got < bytes) {
        lk_status status = refill(s);
        if (status < 0) return status;
        if (s->available == 0) return LK_OK;
        size_t take = s->available < bytes - *got ? s->available : bytes - *got;
        memcpy((unsigned char *)out + *got, s->next, take);
        s->next += take;
        s->available -= take;
        s->taken += take;
        *got += take;
    }
    return LK_OK;
}

uint64_t lk__stream_limit(const lk__data_stream *s)
{
    /* Deflate's densest code: 258 bytes from 2 bits; 1032 to 1, as zlib's own notes say. */
    return s->gzip ? s->size * 1032 + 1032 : s->size;
}
