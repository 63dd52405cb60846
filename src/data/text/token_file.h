/* data/text/token_file.h - files of token ids: without a header, with llm.c's header, or with our extension of llm.c's
 * header. */
#ifndef LK__TEXT_TOKEN_FILE_H
#define LK__TEXT_TOKEN_FILE_H

#include "base/base.h"
#include "data/text/ids.h"

enum { LK__TOKEN_HEADER = 1024 }; /* bytes: 256 words of 4 bytes, the lowest byte first */

typedef struct lk__text_token_file {
    lk__text_ids ids;        /* bytes are those of the file */
    int64_t      vocabulary; /* 0: not known */
    int32_t      end;        /* token; -1: not known, or none */
    int32_t      begin;      /* the same for the one that begins every document */
    int64_t      bytes;      /* of text; 0: not known */
} lk__text_token_file;

typedef struct lk__text_token_bytes {
    const char          *label; /* begins messages */
    const unsigned char *bytes;
    size_t               size;
} lk__text_token_bytes;
/* Finds the ids in the bytes of a file without reading them. width: bytes of an id in a file without a header, 2 or 4.
 * LK_EFORMAT: not a file of tokens. */
lk_status lk__text_token_file_read(lk_context *context, const lk__text_token_bytes *from, int width,
                                   lk__text_token_file *file);
/* Only ids.width, ids.count, vocabulary, end, begin and bytes are used. */
void lk__text_token_file_header(const lk__text_token_file *file, unsigned char header[LK__TOKEN_HEADER]);

#endif
