/* train/load.h - loads weights into a store; names and shapes must match exactly, or in part. */
#ifndef LK__LOAD_H
#define LK__LOAD_H

#include "train/load_group.h"
#include "train/weights.h"

#include <lockstep/checkpoint.h>

typedef enum lk__train_load_what { LK__LOAD_MODEL, LK__LOAD_OPTIMIZER } lk__train_load_what;

/* Checks all names and shapes before it copies anything, so a mismatch leaves the store unchanged. group: the ranks
 * that have slices of the store, which wait for what this one reads; NULL: each rank reads for itself. */
lk_status lk__load_tensors(lk_store *store, lk__load_group *group, const char *path, lk__train_load_what what);
lk_status lk__load_check(lk_store *store, const char *path, lk__train_load_what what); /* only the checks */
/* load_partial.c: what the file and the model share. *report is freed first if it is set; it is set if the file could
 * be read. */
lk_status lk__load_partial(lk_store *store, lk__load_group *group, const char *path, lk_load_report **report);

/* ---- shared by both ways of loading ---- */

enum { LK__LOAD_STAGING = 262144 };

/* A tensor of the file and where it belongs. */
typedef struct lk__load_target {
    lk_store       *store;
    lk__load_group *group;
    const char     *path;
    lk__weights     weights;
    bool            exact;   /* names in the file are the model's */
    void           *staging; /* LK__LOAD_STAGING bytes */
    lk_state        state; /* of a list (train/list_names.h): one of its tensors */
    size_t          index;
    size_t          first; /* byte of the state at which the tensor begins */
    lk_state_part   part;
    const char     *name; /* in the model */
    void           *user; /* of visit */
} lk__load_target;

/* Calls visit for every tensor that a file must hold; counts them. */
lk_status lk__load_visit(lk__load_target *to, lk__train_load_what what, lk_status (*visit)(const lk__load_target *to),
                         size_t *count);
lk__weights_tensor lk__load_find(const lk__load_target *to); /* the tensor of the file */
lk_status          lk__load_copy(const lk__load_target *to); /* the file has it, and it does not differ */
/* Whether shape or kind of number differ, and how: "(10×512) in FILE and (3×512) in the model". */
bool lk__load_differs(const lk__safetensors_tensor *tensor, const lk_state *state, const char *path, char *out,
                      size_t size);

#endif
