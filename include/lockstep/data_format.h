/* data_format.h - the data formats that lk_dataset_open reads, named by the part before the colon. */
#ifndef LOCKSTEP_DATA_FORMAT_H
#define LOCKSTEP_DATA_FORMAT_H

#include <lockstep/base.h>

LK_BEGIN_DECLS

typedef enum lk_data_trait {
    LK_DATA_PUBLIC = 1,       /* lk_data_get downloads it; `samples` and `image` are its published sizes */
    LK_DATA_HIDDEN = 2,       /* not listed in help and completion */
    LK_DATA_TEXT = 4,         /* its samples are tokens of texts */
    /* its files contain token ids: a tokenizer is optional, and document boundaries are unknown */
    LK_DATA_TOKENIZED = 8,
    LK_DATA_TABLE = 16,       /* its columns have names, by which columns of new data are matched */
    LK_DATA_DECODED = 32,     /* samples are decoded while loading: more loader threads help */
    LK_DATA_SUBFOLDERS = 64,  /* its files are in a directory, which may contain train/ and test/ */
    LK_DATA_GENERATED = 128   /* there are no files */
} lk_data_trait;

typedef struct lk_data_format {
    const char *name;              /* "csv" */
    const char *form;              /* the syntax of a name: "csv:FILE", "cifar10[:DIR]" */
    const char *doc;               /* what it reads, for help: "rows of numbers and a label"; NULL: nothing to add */
    const char *options;           /* the lk_open_options that it uses, as command-line options: "label header" */
    const char *directory_options; /* further options, used only if the name is a directory's; or NULL */
    unsigned    traits;            /* lk_data_trait */
    int64_t     samples[2];        /* LK_DATA_PUBLIC: sizes of the training set and the test set, … */
    int64_t     image[3];          /* … channels, height and width, … */
    int         classes;           /* … and classes */
    int         unused;
    double      holdout; /* the fraction that becomes the test set if lk_open_options.holdout is 0 */
} lk_data_format;

LK_API const lk_data_format *lk_data_format_at(int index); /* NULL past the last */
/* The format of a name such as "csv:rows.csv" or "csv"; NULL: unknown. */
LK_API const lk_data_format *lk_data_format_find(const char *name);
/* Whether the format uses the command-line option of this name. `directory`: the data set's name is a directory's. */
LK_API bool lk_data_format_uses(const lk_data_format *format, const char *option, bool directory);

LK_END_DECLS
#endif
