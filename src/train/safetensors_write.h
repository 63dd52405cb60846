/* train/safetensors_write.h - writes the safetensors format.
 *
 * The bytes written depend on the tensors and the metadata alone, and are those that Hugging Face's library writes: tensors
 * sorted by type (the widest first), then by name; compact JSON padded with spaces to a multiple of eight. */
#ifndef LK__SAFETENSORS_WRITE_H
#define LK__SAFETENSORS_WRITE_H

#include "data/safetensors.h"

/* Bytes of the writer's staging buffer. It does not depend on the model, so a plan can include it. */
size_t lk__safetensors_staging_bytes(void);

/* Replaces path atomically (train/file.h). Sorts tensors and metadata in place and allocates nothing. Names must differ and be
 * UTF-8. sha256 gets the digest of the file in hexadecimal; may be NULL. */
lk_status lk__safetensors_write(lk_context *context, const char *path, lk__safetensors_tensor *tensors, size_t count,
                                lk__safetensors_pair *metadata, size_t pairs, void *staging, size_t staging_bytes,
                                char sha256[65]);

#endif
