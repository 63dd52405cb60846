/* train/load.h - loads a safetensors file into a store; names and shapes must match exactly. */
#ifndef LK__LOAD_H
#define LK__LOAD_H

#include "run/store.h"

typedef enum lk__train_load_what { LK__LOAD_MODEL, LK__LOAD_OPTIMIZER } lk__train_load_what;

/* Checks all names and shapes before it copies anything, so a mismatch leaves the store unchanged. */
lk_status lk__load_tensors(lk_store *store, const char *path, lk__train_load_what what);
lk_status lk__load_check(lk_store *store, const char *path, lk__train_load_what what); /* the checks alone */

/* PyTorch's name for state m of an optimizer that keeps `moments` states: "exp_avg", "momentum_buffer". */
const char *lk__moment_name(int moments, int m);

#endif
