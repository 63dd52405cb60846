/* data/labels.h - class numbers of labels where the classes are known before a file is read: the classes of the samples
 * that a model was trained on (lk_open_options.expected). Labels of other classes are refused by an error that names
 * them, or their samples are left out. */
#ifndef LK__LABELS_H
#define LK__LABELS_H

#include "data/csv/class_names.h"
#include "data/dataset.h"

struct lk__labels {
    lk_context     *context;
    const lk_field *field; /* whose classes these are; NULL: none are known */
    lk__class_names names; /* of the classes, where they have names */
    bool            skip;  /* samples of other classes are left out */
    int64_t        *unknown; /* their numbers in what was read, ascending */
    size_t          unknown_count, unknown_capacity;
    char            first[LK__SHOWN]; /* the label of the first of them */
};

/* The field of that name in options->expected; NULL: there is none. */
const lk_field *lk__expected_field(const lk_open_options *options, const char *name);

/* The classes of `field`, which is borrowed. Free it in either case. */
lk_status lk__labels_begin(lk_context *context, const lk_field *field, bool skip, lk__labels *labels);
void      lk__labels_free(lk__labels *labels);

/* The class of a name, or of a number: named like it ("2" for 2), or the number itself for classes without names. -1:
 * it is not known. */
int32_t lk__labels_find(const lk__labels *labels, const char *name, size_t length);
int32_t lk__labels_find_number(const lk__labels *labels, double number);

/* A sample whose label is not known: noted to be left out, or LK_EFORMAT. `place` begins the message; `name` is the
 * label as it is written in the file. Called in the order of samples. */
lk_status lk__labels_refuse(lk__labels *labels, int64_t sample, const char *place, const char *name);
/* Leaves the noted samples out of a data set of all, which has no subset yet, and logs how many unless `quiet`. `file`
 * begins messages. */
lk_status lk__labels_drop(const lk__labels *labels, const char *file, bool quiet, lk_dataset *dataset);

#endif
