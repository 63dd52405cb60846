/* base/memory_check.h - checks whether the memory that is needed is available. */
#ifndef LK__MEMORY_CHECK_H
#define LK__MEMORY_CHECK_H

#include "base/limits.h"

#include <lockstep/context.h>

enum { LK__BYTES_TEXT = 32 };
const char *lk__bytes_text(int64_t bytes, char out[LK__BYTES_TEXT]); /* "41.3 GiB" */

/* Fails with LK_ETOOLARGE: `who` ("this process", "the 4 ranks of one host") would need `bytes`. */
lk_status lk__memory_refuse(lk_context *context, const char *who, int64_t bytes, const lk__memory_limit *limit);

#endif
