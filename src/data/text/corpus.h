/* data/text/corpus.h - reads the documents of text and JSONL files piece by piece. */
#ifndef LK__TEXT_CORPUS_H
#define LK__TEXT_CORPUS_H

#include "base/json.h"
#include "data/folder/folder.h"
#include "data/stream.h"

#include <lockstep/tokenizer.h>

typedef struct lk__text_file {
    const char *path;  /* for messages, and to open it */
    const void *bytes; /* NULL: the file `path` */
    size_t      size;
    bool        jsonl;  /* a document in each line, or in each element of an array; otherwise the file is one */
    bool        listed; /* not named by the user: it was found in a directory */
} lk__text_file;

/* The files of a path: the path itself, or all files below a directory that are not hidden, by directory, then by
 * name. */
typedef struct lk__text_files {
    lk__data_folder_list list;
    lk__text_file       *files;
    size_t               capacity;
    int                  count;
    int64_t              bytes; /* of all, as stored */
} lk__text_files;

/* Which files are JSONL: all; those named .jsonl, .json or so with .gz; only .jsonl in a directory, while a file that
 * is named itself is a text. A file of JSONL that begins with a [ is an array of the same objects. */
typedef enum lk__text_jsonl { LK__TEXT_ALL_JSONL, LK__TEXT_BY_NAME, LK__TEXT_LISTED_BY_NAME } lk__text_jsonl;

/* Adds the files of a path. Free it in either case. */
lk_status lk__text_files_add(lk_context *context, lk__text_files *files, const char *path, lk__text_jsonl jsonl);
void      lk__text_files_free(lk__text_files *files);
bool      lk__text_named(const char *path, const char *suffix); /* it ends with the suffix, in any case */

/* Which ids lk__text_encode passes on: the ids of a piece, the template's ids before and after its document, or the end
 * token that follows it. */
typedef enum lk__text_part { LK__TEXT_BODY, LK__TEXT_PREFIX, LK__TEXT_SUFFIX, LK__TEXT_SEPARATOR } lk__text_part;

/* A document, or the next part of a long one. The parts have the same tokens as the whole. */
typedef struct lk__text_piece {
    const char   *text; /* borrowed until the next; not terminated */
    size_t        bytes;
    bool          continues; /* the document of the piece before */
    bool          ends;      /* the document */
    lk__text_part part;      /* of it, for an lk__text_sink */
    int           file;      /* its number */
    int64_t       line;      /* JSONL: counted from 1, of an array the element; otherwise 0 */
    lk__json      label;     /* JSONL: the value of label_field; LK__JSON_NULL: there is none */
} lk__text_piece;

typedef struct lk__text_corpus {
    lk_context          *context;
    const lk__text_file *files;
    int                  count;
    const char          *text_field, *label_field; /* of JSONL; label_field NULL: none is read */
    bool                 label_optional;           /* lines may be without a label, or have null */
    const char          *field_option;             /* of the command, sets text_field; NULL: --text-field */
    size_t               piece;                    /* bytes of a part of a long document, about; 0: the default */
    size_t               expected;                 /* bytes of all files, about; 0: not known */
    const lk_tokenizer  *tokenizer;                /* that will encode the parts; NULL: none yet */
    bool                 quiet;                    /* what is wrong with the texts was logged before */

    int               file;   /* the current one; -1 before the first */
    bool              open;   /* it is */
    bool              within; /* a text: some of it was read */
    lk__data_stream   stream;
    lk__stream_buffer buffer;
    int64_t           line;
    bool              array;    /* the current file is one, which is in the buffer as a whole */
    lk__json_walk     elements; /* of it, that come next */
    char             *decoded;  /* a string of JSONL without escapes */
    size_t            decoded_capacity;
    int64_t           read_before; /* bytes of the files before the current one */
} lk__text_corpus;

/* Starts at the first file. The caller set the first part of the struct, the rest is zeros or from a corpus that was
 * closed. */
void lk__text_begin(lk__text_corpus *corpus);
/* The next piece that is not empty; LK_END after the last. LK_EFORMAT names file and line. */
lk_status lk__text_next(lk__text_corpus *corpus, lk__text_piece *piece);
int64_t   lk__text_read(const lk__text_corpus *corpus); /* bytes read so far, as stored */
void      lk__text_end(lk__text_corpus *corpus);        /* frees what it holds */

/* "FILE", or "FILE: line 7". */
enum { LK__TEXT_PLACE = LK__PATH + 32 };
const char *lk__text_place(const lk__text_corpus *corpus, const lk__text_piece *piece, char out[LK__TEXT_PLACE]);

#endif
