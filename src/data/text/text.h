/* data/text/text.h - data sets of text: what their parts share. */
#ifndef LK__TEXT_H
#define LK__TEXT_H

#include "data/array/map.h"
#include "data/dataset.h"
#include "data/text/corpus_encode.h"
#include "data/text/store.h"

/* What lk_dataset_open was asked for. */
typedef struct lk__text_request {
    lk_context *context;
    const char *kind;               /* "text", "jsonl", "tokens" */
    char        paths[2][LK__PATH]; /* the second: of the validation set, "" where there is none of its own */
    lk_split    split;
    const lk_open_options *options;
    bool                   probe;
    int64_t                length;  /* tokens of a sample */
    double                 holdout; /* the fraction that forms the test set; 0: none */
} lk__text_request;

/* The path of the split. */
static inline const char *lk__text_path(const lk__text_request *r)
{
    return r->paths[r->split == LK_SPLIT_TEST && r->paths[1][0]];
}

/* Whether the training set reads the same text, and has logged what is wrong with it. */
static inline bool lk__text_quiet(const lk__text_request *r) { return r->split == LK_SPLIT_TEST && !r->paths[1][0]; }

/* Tokens of a language model, and where they come from: the state of a data set of windows. */
typedef struct lk__text_source {
    lk_context    *context;
    lk__text_ids   ids;   /* first all, then those of the split */
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
    bool           packed;         /* documents do not see each other */
    bool           overlapping;    /* a window at every offset */
    lk_text_info   info;
} lk__text_source;

void lk__text_source_free(lk__text_source *source); /* what it holds, not itself */

/* Makes the data set of windows or packed documents of the split. Takes what *source holds, also when it fails. */
lk_status lk__text_windows(const lk__text_request *request, lk__text_source *source, lk_dataset **dataset);

/* Texts with a class each. Takes the tokenizer and files also when it fails. */
lk_status lk__text_classification(const lk__text_request *request, lk_tokenizer *tokenizer, lk__text_files *files,
                                  lk_dataset **dataset);

/* For lk_dataset_open; `paths` is what follows the colon. */
lk_status lk__text_open(lk_context *context, const char *paths, lk_split split, const lk_open_options *options,
                        bool probe, lk_dataset **dataset);
lk_status lk__jsonl_open(lk_context *context, const char *paths, lk_split split, const lk_open_options *options,
                         bool probe, lk_dataset **dataset);
lk_status lk__tokens_open(lk_context *context, const char *paths, lk_split split, const lk_open_options *options,
                          bool probe, lk_dataset **dataset);

#endif
