/* data/stream.h - sequential reading of a file or of memory, with decompression of gzip. */
#ifndef LK__STREAM_H
#define LK__STREAM_H

#include "base/base.h"

#include <zlib.h>

typedef struct lk__data_stream {
    lk_context          *context;
    const char          *name;   /* for messages; borrowed */
    int                  fd;     /* -1: memory */
    uint64_t             size;   /* bytes as stored */
    uint64_t             consumed; /* of them, read so far */
    unsigned char       *buffer; /* of a file */
    const unsigned char *next;
    size_t               available;
    bool                 gzip, inflating, ended;
    bool                 raw; /* deflate without gzip's header and sums, one piece */
    z_stream             z;
} lk__data_stream;

/* These leave a stream that lk__stream_close accepts, also on failure. */
lk_status lk__stream_open(lk_context *context, const char *path, lk__data_stream *stream);
lk_status lk__stream_memory(lk_context *context, const char *name, const void *bytes, size_t size,
                            lk__data_stream *stream);
/* Over a piece of deflate data, as a zip holds it. */
lk_status lk__stream_deflate(lk_context *context, const char *name, const void *bytes, size_t size,
                             lk__data_stream *stream);
void      lk__stream_close(lk__data_stream *stream);

/* Reads up to `bytes`; *got is less only at the end. LK_EFORMAT for damaged or truncated gzip, or data after it. */
lk_status lk__stream_read(lk__data_stream *stream, void *out, size_t bytes, size_t *got);

/* The largest number of bytes that the stream can contain: a header that declares more is damaged, and nothing should
 * be allocated for it. */
uint64_t lk__stream_limit(const lk__data_stream *stream);

/* Text of a stream that is not used yet, for readers of lines and records. Zeros are a new one. */
typedef struct lk__stream_buffer {
    char  *bytes;
    size_t capacity, begin, end; /* bytes[begin … end-1] are unread */
    bool   ended;                /* the stream: the rest of it is here */
} lk__stream_buffer;

/* Reads more after the unread part, which moves to the front; a full buffer is replaced by one twice as large. LK_END,
 * without a message: it has `largest` bytes already. */
lk_status lk__stream_refill(lk__data_stream *stream, lk__stream_buffer *buffer, size_t largest);
void      lk__stream_buffer_free(lk_context *context, lk__stream_buffer *buffer);

#endif
