/* data/subset.h - a test set that is held out of a data set, by a hash: a sample stays where it is when others are
 * added. */
#ifndef LK__SUBSET_H
#define LK__SUBSET_H

#include "data/dataset.h"

/* Whether a sample with this key belongs to the test set, which gets about `fraction` of all samples. */
bool lk__is_held_out(const void *key, size_t bytes, double fraction);

/* The key of a sample, by its number in what was read: returns its bytes, valid until the next call. */
typedef const void *(*lk__subset_key)(const lk_dataset *dataset, int64_t number, size_t *bytes);

/* Keeps the samples of the split. key NULL: a sample's number. LK_END: the test set of a fraction of 0. LK_EINVAL: the
 * fraction is not 0 to below 1, or no sample is left. */
lk_status lk__dataset_hold_out(lk_dataset *dataset, lk_split split, double fraction, lk__subset_key key);

#endif
