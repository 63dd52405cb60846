/* train/load.h - fills a store from a safetensors file, strictly. */
#ifndef LK__LOAD_H
#define LK__LOAD_H

#include "run/store.h"

typedef enum lk__train_load_what { LK__LOAD_MODEL, LK__LOAD_OPTIMIZER } lk__train_load_what;

/* Checks all names and shapes before the first byte is copied, so that a failure leaves the store as it was. */
lk_status lk__load_tensors(lk_store *store, const char *path, lk__train_load_what what);
lk_status lk__load_check(lk_store *store, const char *path, lk__train_load_what what); /* the checks alone */

/* PyTorch's word for optimizer state m of a rule that keeps `moments`: "exp_avg", "momentum_buffer". */
const char *lk__moment_name(int moments, int m);

#endif
