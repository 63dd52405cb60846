/* data/safetensors.h - reads the safetensors format: eight bytes of header length, a JSON header, the data. */
#ifndef LK__SAFETENSORS_H
#define LK__SAFETENSORS_H

#include "base/base.h"

typedef struct lk__safetensors_tensor {
    const char *name;
    lk_dtype    dtype;
    bool        boolean; /* BOOL in the file; dtype is then LK_U8 */
    int         rank;    /* 0 … LK_MAX_RANK */
    int64_t     dims[LK_MAX_RANK];
    const void *data;          /* writing: row-major, borrowed; NULL: see read; reading: NULL */
    uint64_t    offset, bytes; /* reading: where in the file, from its beginning; writing: filled in */

    /* Writing without data: copies bytes first … first + bytes - 1 of the tensor that `user` knows as `source`. */
    lk_status (*read)(void *user, size_t source, uint64_t first, void *out, size_t bytes);
    void  *user;
    size_t source;
} lk__safetensors_tensor;

typedef struct lk__safetensors_pair {
    const char *key, *value;
} lk__safetensors_pair;

typedef struct lk__safetensors lk__safetensors; /* an open file; holds the header's names, not the data */

/* Checks the whole header against the file's size: on success the tensors cover all of the data without overlap.
 * LK_ENOENT: no such file. LK_EFORMAT: the message names the error and its byte. */
lk_status lk__safetensors_open(lk_context *context, const char *path, lk__safetensors **file);
/* The same over bytes in memory, borrowed until close; messages show label instead of a path. */
lk_status lk__safetensors_open_memory(lk_context *context, const char *label, const void *bytes, size_t length,
                                      lk__safetensors **file);
void      lk__safetensors_close(lk__safetensors *file); /* NULL is fine */

size_t                        lk__safetensors_count(const lk__safetensors *file);
const lk__safetensors_tensor *lk__safetensors_at(const lk__safetensors *file,
                                                 size_t                 index); /* in the order of the data */
const lk__safetensors_tensor *lk__safetensors_find(const lk__safetensors *file, const char *name);    /* NULL if none */
const char                   *lk__safetensors_metadata(const lk__safetensors *file, const char *key); /* NULL if none */

/* Copies bytes first … first + bytes of a tensor's data. LK_EFORMAT if the file was truncated after it was opened. */
lk_status lk__safetensors_read(lk__safetensors *file, const lk__safetensors_tensor *tensor, uint64_t first, void *out,
                               size_t bytes);

/* "F32", "BOOL", …: the format's name for a tensor's type. */
const char *lk__safetensors_type(const lk__safetensors_tensor *tensor);

#endif
