/* stream.c - sequential reading of files and memory; gzip is recognised by its first two bytes, not by the name. */
#define _GNU_SOURCE
#include "data/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 65536 };

/* zlib frees without a size, so each block starts with its size, padded to the alignment. */
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

/* Reads input if none is buffered; none is available afterwards only at the end. */
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

static lk_status begin_inflating(lk__data_stream *s, int window_bits)
{
    s->z.zalloc = zlib_alloc;
    s->z.zfree = zlib_free;
    s->z.opaque = s->context;
    if (inflateInit2(&s->z, window_bits) != Z_OK)
        return lk__fail(s->context, LK_ENOMEM, "out of memory: cannot decompress %s", s->name);
    s->inflating = true;
    return LK_OK;
}

static lk_status detect_gzip(lk__data_stream *s)
{
    lk_status status = refill(s);
    if (status < 0) return status;
    s->gzip = s->available >= 2 && s->next[0] == 0x1f && s->next[1] == 0x8b;
    return s->gzip ? begin_inflating(s, 15 + 16) : LK_OK;
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
    return s->buffer ? detect_gzip(s) : LK_ENOMEM;
}

lk_status lk__stream_memory(lk_context *context, const char *name, const void *bytes, size_t size, lk__data_stream *s)
{
    *s = (lk__data_stream){.context = context, .name = name, .fd = -1, .size = size, .next = bytes, .available = size};
    return detect_gzip(s);
}

lk_status lk__stream_deflate(lk_context *context, const char *name, const void *bytes, size_t size, lk__data_stream *s)
{
    *s = (lk__data_stream){.context = context,
                           .name = name,
                           .fd = -1,
                           .size = size,
                           .next = bytes,
                           .available = size,
                           .gzip = true,
                           .raw = true};
    return begin_inflating(s, -15);
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

/* Decompresses `bytes` into out, or fewer at the end. */
static lk_status read_gzip(lk__data_stream *s, unsigned char *out, size_t bytes, size_t *got)
{
    const char *kind = s->raw ? "deflate" : "gzip";
    while (*got < bytes && !s->ended) {
        lk_status status = refill(s);
        if (status < 0) return status;
        if (s->available == 0)
            return lk__fail(s->context, LK_EFORMAT, "%s is truncated: its %s data stops at byte %llu", s->name, kind,
                            (unsigned long long)s->consumed);
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
        s->consumed += used;
        *got += space - s->z.avail_out;
        if (result == Z_STREAM_END) {
            /* RFC 1952, 2.2: a file is one or more members, one after the other, and nothing else. */
            if ((status = refill(s)) < 0) return status;
            if (s->available == 0)
                s->ended = true;
            else if (s->raw || s->next[0] != 0x1f || inflateReset(&s->z) != Z_OK)
                return lk__fail(s->context, LK_EFORMAT, "%s has trailing data after its %s data, from byte %llu",
                                s->name, kind, (unsigned long long)s->consumed);
        } else if (result == Z_MEM_ERROR) {
            return lk__fail(s->context, LK_ENOMEM, "out of memory: cannot decompress %s", s->name);
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            return lk__fail(s->context, LK_EFORMAT, "%s is damaged: %s data near byte %llu: %s", s->name, kind,
                            (unsigned long long)s->consumed, s->z.msg ? s->z.msg : "cannot decompress");
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
        size_t n = s->available < bytes - *got ? s->available : bytes - *got;
        memcpy((unsigned char *)out + *got, s->next, n);
        s->next += n;
        s->available -= n;
        s->consumed += n;
        *got += n;
    }
    return LK_OK;
}

uint64_t lk__stream_limit(const lk__data_stream *s)
{
    /* Deflate's best compression: 258 bytes from 2 bits, which is 1032 to 1 (zlib's technical notes). */
    return s->gzip ? s->size * 1032 + 1032 : s->size;
}

lk_status lk__stream_refill(lk__data_stream *s, lk__stream_buffer *b, size_t largest)
{
    enum { FIRST_CAPACITY = 1 << 18 };
    size_t left = b->end - b->begin, got = 0;
    if (left == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : FIRST_CAPACITY;
        if (b->capacity >= largest) return LK_END;
        char *larger = lk__alloc(s->context, LK_MEMORY_DATA, capacity);
        if (!larger) return LK_ENOMEM;
        if (left) memcpy(larger, b->bytes + b->begin, left);
        lk__free(s->context, LK_MEMORY_DATA, b->bytes, b->capacity);
        b->bytes = larger;
        b->capacity = capacity;
    } else if (b->begin > 0) {
        memmove(b->bytes, b->bytes + b->begin, left);
    }
    b->begin = 0, b->end = left;
    lk_status status = lk__stream_read(s, b->bytes + left, b->capacity - left, &got);
    b->ended = got < b->capacity - left;
    b->end += got;
    return status;
}

void lk__stream_buffer_free(lk_context *context, lk__stream_buffer *b)
{
    lk__free(context, LK_MEMORY_DATA, b->bytes, b->capacity);
    *b = (lk__stream_buffer){0};
}
