/* data/safetensors_inside.h - declarations that only the safetensors reader and writer share. */
#ifndef LK__SAFETENSORS_INSIDE_H
#define LK__SAFETENSORS_INSIDE_H

#include "data/safetensors.h"

enum { LK__SAFETENSORS_HEADER_LIMIT = 100000000 }; /* the reference library's */

/* booleans, stored as bytes; the names of the other types are in base/dtype_list.h */
#define LK__SAFETENSORS_BOOL "BOOL"

/* Tensors are sorted by it. */
int lk__safetensors_type_rank(const lk__safetensors_tensor *tensor);
/* False: negative dims, or too large for a file. */
bool lk__safetensors_size(const lk__safetensors_tensor *tensor, uint64_t *bytes);
/* size is at most sizeof(lk__safetensors_tensor). */
void lk__safetensors_sort(void *array, size_t count, size_t size, int (*compare)(const void *a, const void *b));
int  lk__safetensors_compare_pairs(const void *a, const void *b);

/* foreign.c: LK_OK if the first bytes of a file may be safetensors; LK_EFORMAT if they begin a zip or a pickle,
 * as PyTorch saves weights: the message says how to convert the file. */
lk_status lk__safetensors_foreign(lk_context *context, const char *path, const unsigned char *first, size_t bytes);

#endif
