/* train/weights.h - the tensors of a safetensors file, or of all shards that an index lists, and the mapping from a
 * model's tensors to them. */
#ifndef LK__WEIGHTS_H
#define LK__WEIGHTS_H

#include "data/safetensors.h"
#include "run/store.h"

typedef struct lk__weights_shard {
    char            *name; /* in the index; NULL where there is none */
    lk__safetensors *file;
} lk__weights_shard;

typedef struct lk__weights {
    lk_context        *context;
    const char        *path; /* of the file or the index; borrowed */
    lk__weights_shard *shards;
    size_t             count, capacity; /* of shards */
    size_t             tensors;         /* in all of them */
} lk__weights;

/* A tensor and the file that holds it; tensor NULL: none. */
typedef struct lk__weights_tensor {
    lk__safetensors              *file;
    const lk__safetensors_tensor *tensor;
} lk__weights_tensor;

/* A path that ends with .json is an index, model.safetensors.index.json: its shards are in the same directory, and hold
 * exactly the tensors that it says. Close it in either case. */
lk_status          lk__weights_open(lk_context *context, const char *path, lk__weights *weights);
void               lk__weights_close(lk__weights *weights);
lk__weights_tensor lk__weights_at(const lk__weights *weights, size_t index);
lk__weights_tensor lk__weights_find(const lk__weights *weights, const char *name);

/* ---- weight_names.c: names that other programs give to the tensors of a model ---- */

/* The tensor that a model calls `name`, under that name or another that files use for it. */
lk__weights_tensor lk__weights_of_model(const lk__weights *weights, const char *name);

typedef enum lk__weights_use {
    LK__WEIGHTS_USED,    /* some tensor of the model is it */
    LK__WEIGHTS_IGNORED, /* a buffer that follows from the architecture, or a second copy of a tensor */
    LK__WEIGHTS_UNKNOWN
} lk__weights_use;
/* What a tensor of the file is to the model. LK_EMISMATCH: it should be a copy of another, and differs from it. */
lk_status lk__weights_classify(const lk__weights *weights, lk_store *store, lk__weights_tensor one,
                               lk__weights_use *use);

#endif
