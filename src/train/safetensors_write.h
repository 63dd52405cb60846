/* train/safetensors_write.h - writes the safetensors format.
 *
 * The bytes written depend only on the tensors and the metadata, and are what Hugging Face's library writes:
 * tensors sorted by type (the widest first), then by name; compact JSON padded with spaces to a multiple of eight. */
#ifndef LK__SAFETENSORS_WRITE_H
#define LK__SAFETENSORS_WRITE_H

#include "data/safetensors.h"

/* Bytes of the writer's staging buffer. It does not depend on the model, so a plan can include it. */
size_t lk__safetensors_staging_bytes(void);

/* What a file holds: sorted in place when it is written. */
typedef struct lk__safetensors_content {
    lk__safetensors_tensor *tensors;
    size_t                  count;
    lk__safetensors_pair   *metadata;
    size_t                  pairs;
} lk__safetensors_content;

typedef struct lk__safetensors_staging {
    void  *memory;
    size_t bytes;
} lk__safetensors_staging;

/* Replaces path atomically (train/file.h). Sorts tensors and metadata in place and allocates nothing. Names must differ
 * and be UTF-8. sha256 gets the digest of the file in hexadecimal; may be NULL. */
lk_status lk__safetensors_write(lk_context *context, const char *path, const lk__safetensors_content *content,
                                lk__safetensors_staging staging, char sha256[65]);

/* ---- a file that is written in parts, in any order and by several processes ---- */

typedef struct lk__safetensors_image {
    lk__safetensors_content content;       /* sorted; offsets count from the beginning of the data */
    uint64_t                header, bytes; /* before the data, and in all */
} lk__safetensors_image;

/* Checks and sorts as lk__safetensors_write does. The image borrows tensors and metadata. */
lk_status lk__safetensors_lay_out(lk_context *context, const char *path, const lk__safetensors_content *content,
                                  lk__safetensors_image *image);
/* Bytes first … first + bytes - 1 of the file, which it has. */
lk_status lk__safetensors_copy(const lk__safetensors_image *image, uint64_t first, void *out, size_t bytes);

/* The index of the tensor that has a byte of the data, counted from its beginning, or of the next one. */
size_t lk__safetensors_locate(const lk__safetensors_image *image, uint64_t byte);

/* The most bytes in the header: for what it always contains with one short pair of metadata, and for a tensor
 * whose name has `name` bytes. */
enum { LK__SAFETENSORS_HEADER = 128 };
static inline size_t lk__safetensors_entry(size_t name, int rank) { return 6 * name + 96 + 21 * (size_t)rank; }

#endif
