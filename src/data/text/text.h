/* data/text/text.h - declarations shared by the files of text data sets. */
#ifndef LK__TEXT_H
#define LK__TEXT_H

#include "data/array/map.h"
#include "data/dataset.h"
#include "data/text/corpus_encode.h"
#include "data/text/store.h"

enum { LK__TEXT_LENGTH = 256 }; /* tokens of a sample without a context */

/* What lk_dataset_open was asked for. */
typedef struct lk__text_request {
    lk_context *context;
    const char *kind;               /* "text", "jsonl", "tokens" */
    char        paths[2][LK__PATH]; /* the second: the validation set's; "" where there are no separate files */
    lk_split    split;
    const lk_open_options *options;
    bool                   probe;
    int64_t                length;  /* tokens of a sample */
    double                 holdout; /* the fraction that forms the test set; 0: none */
    int64_t                stride;  /* of the windows of an evaluation; 0: for training */
} lk__text_request;

/* The path of the split. */
static inline const char *lk__text_path(const lk__text_request *r)
{
    return r->paths[r->split == LK_SPLIT_TEST && r->paths[1][0]];
}

/* Whether the training set reads the same text, and has logged what is wrong with it. */
static inline bool lk__text_quiet(const lk__text_request *r) { return r->split == LK_SPLIT_TEST && !r->paths[1][0]; }

/* A document in the tokens of a source, without its end token. */
typedef struct lk__text_document {
    int64_t first, end;
} lk__text_document;

/* A part of a document in a window of an evaluation: `count` tokens, of which those from number `scored` on predict the
 * next. */
typedef struct lk__text_segment {
    int64_t first;
    int32_t count, scored;
} lk__text_segment;

/* Tokens of a language model, and where they come from: the state of a data set of windows. */
typedef struct lk__text_source {
    lk_context    *context;
    lk__text_ids   ids;   /* first all ids, then the split's */
    int64_t        first; /* number of the split's first token */
    lk__map        map;   /* the file that has them, or … */
    unsigned char *owned; /* … LK_MEMORY_DATA */
    size_t         owned_bytes;
    lk_tokenizer  *tokenizer; /* NULL: tokens: without one */
    lk__text_files files;
    int64_t       *starts;         /* by file: its first token; LK_MEMORY_OTHER; NULL: there is one file, … */
    char           path[LK__PATH]; /* … this one */
    int64_t        length;         /* tokens of a sample */
    int32_t        end;            /* ends a document; -1: none */
    bool           end_begins;     /* and begins each: it ends one only where the next begins */
    bool           packed;         /* documents do not see each other */
    bool           overlapping;    /* a window at every offset */
    int64_t        stride;         /* of an evaluation; 0: for training */

    /* of an evaluation of packed documents, until there are segments; LK_MEMORY_OTHER, as the next two */
    lk__text_document *documents;
    size_t             documents_count, documents_capacity;
    lk__text_segment  *segments; /* of the same: parts of documents */
    size_t             segments_count, segments_capacity;
    int64_t           *windows; /* of the same: the first segment of each, and of one more */
    size_t             windows_count, windows_capacity;

    lk_text_info info;
} lk__text_source;

void lk__text_source_free(lk__text_source *source); /* what it holds, not itself */

/* Makes the data set of windows or packed documents of the split. Takes what *source holds, also when it fails. */
lk_status lk__text_windows(const lk__text_request *request, lk__text_source *source, lk_dataset **dataset);

/* evaluation.c: for a source with a stride. Divides its documents, or all of it, into windows; sets info.scored and
 * info.scored_bytes. */
lk_status lk__text_evaluation_plan(lk__text_source *source, int64_t *windows);
/* The number of the first token of a window. */
int64_t lk__text_evaluation_start(const lk__text_source *source, int64_t window);
/* Like lk__dataset_read_sample; *bad: the number of an id that is out of range, where false is returned. */
bool lk__text_evaluation_read(const lk__text_source *source, int64_t window, void *const *fields, int64_t *bad);

/* windows.c: copies n ids from number `start` on; false: one is out of range, and *bad is its number. */
bool lk__text_copy_ids(const lk__text_source *source, int64_t start, int64_t n, int32_t *out, int64_t *bad);
/* Bytes of text that n ids from number `start` on stand for; the source has a tokenizer. */
lk_status lk__text_count_bytes(const lk__text_source *source, int64_t start, int64_t n, int64_t *bytes);
enum { LK__TEXT_NO_LABEL = -100 }; /* lk_cross_entropy's ignore index, as PyTorch's */

/* Texts with a class each. Takes the tokenizer and files also when it fails. */
lk_status lk__text_classification(const lk__text_request *request, lk_tokenizer *tokenizer, lk__text_files *files,
                                  lk_dataset **dataset);

#endif
