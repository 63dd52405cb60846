/* train/describe.h - the description of a checkpoint, for the trainer. */
#ifndef LK__DESCRIBE_H
#define LK__DESCRIBE_H

#include <lockstep/checkpoint.h>

/* Like lk_checkpoint_describe; LK_ENOENT without a message. */
lk_status lk__describe(lk_context *context, const char *directory, lk_description **description);
/* The algorithms that its run used: lk__state_get_algorithms. */
lk_status lk__description_algorithms(const lk_description *description, char **lines, size_t *length);
/* The number of samples of its training set, and lk__dataset_fingerprint of it; 0: not known. */
void lk__description_data(const lk_description *description, int64_t *samples, uint64_t *fingerprint);

#endif
