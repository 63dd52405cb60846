/* train/chunk_file.h - a file that several processes write, each at its own offsets, in a directory that is renamed
 * when all of them have finished (train/file.h). */
#ifndef LK__CHUNK_FILE_H
#define LK__CHUNK_FILE_H

#include "base/base.h"

typedef struct lk__chunk_file {
    lk_context *context;
    const char *path; /* borrowed */
    int         fd;     /* -1: not open */
    int         direct; /* past the page cache: no copy, which costs more than the rest; -1: the file system cannot */
} lk__chunk_file;

#define LK__CHUNK_FILE_INIT {.fd = -1, .direct = -1}
enum { LK__CHUNK_ALIGN = 4096 }; /* of memory that is written past the page cache */

/* Makes a file of `bytes`, for which there is room where the file system can reserve it; others open it afterwards. */
lk_status lk__chunk_file_create(lk__chunk_file *file, lk_context *context, const char *path, uint64_t bytes);
lk_status lk__chunk_file_open(lk__chunk_file *file, lk_context *context, const char *path);
/* Also begins to write it to disk, without waiting. */
lk_status lk__chunk_file_write(lk__chunk_file *file, uint64_t at, const void *data, size_t bytes);
lk_status lk__chunk_file_flush(lk__chunk_file *file); /* closes it, also when it fails */
void      lk__chunk_file_close(lk__chunk_file *file);

#endif
