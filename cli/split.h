/* split.h - the samples of the data that `eval` and `predict` read. */
#ifndef SPLIT_H
#define SPLIT_H

#include "setup.h"

/* A row of an option table. */
#define SPLIT_OPTION                                                                                                  \
    CHOICE("split", "PART", NULL, "train|test|all",                                                                   \
           "Which samples: the training set, the test set, or all. Default: all samples of your own files that "       \
           "--data names, unless they have their own test set (folder:DIR with test/, text:FILE,VALIDATION) or "       \
           "--holdout is given; otherwise the test set")

/* Opens s->test and sets s->split. any: where there is no test set, all samples; otherwise LK_END. probe: without the
 * samples. */
lk_status split_open(setup *s, const options *given, bool any, bool probe);
/* Reports that split_open found no test set. Returns the exit status. */
int split_report_none(const setup *s, const char *command_name);
/* Notes when the samples that were opened are those of training; on rank 0. */
void split_note_training(const setup *s, const char *command_name);
/* "all 120 samples", "5 of the 75 samples of the test set" */
const char *split_describe(const setup *s, int64_t used, char *text, size_t size);
const char *split_set(const setup *s);  /* " of the test set", "" */
const char *split_name(const setup *s); /* "train", "test", "all" */

#endif
