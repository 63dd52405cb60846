/* weight_names.c - the names under which files hold the tensors of a model, where they are not the model's own, and the
 * tensors of files that no model needs. All of it is in the tables; the code here is independent of architectures. */
#include "train/weights.h"

#include "train/list_names.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 512, STAGING = 65536 };

/* A base model is saved without the prefix that it has within a model with a head. */
static const char *const prefixes[] = {"", "transformer.", "model.", "bert."};

/* The end of a name in the model, and in files of TensorFlow's time. */
static const struct {
    const char *model, *file;
} ends[] = {{"", ""}, {"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};

/* Buffers that follow from the architecture: older versions saved them. The rank distinguishes them from parameters. */
static const struct {
    const char *end;
    int         rank;
} buffers[] = {{".attn.bias", 4},
               {".attn.masked_bias", 0},
               {".rotary_emb.inv_freq", 1},
               {"embeddings.position_ids", 2},
               {"embeddings.token_type_ids", 2}};

/* Tied tensors: a file may hold the copy too. */
static const struct {
    const char *copy, *model;
} copies[] = {{"lm_head.weight", "transformer.wte.weight"}, {"lm_head.weight", "model.embed_tokens.weight"}};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* `name` with another end; false if it has not the first, or there is no room. */
static bool replace_end(const char *name, const char *from, const char *to, char out[NAME])
{
    if (!ends_with(name, from)) return false;
    int n = snprintf(out, NAME, "%.*s%s", (int)(strlen(name) - strlen(from)), name, to);
    return n > 0 && n < NAME;
}

lk__weights_tensor lk__weights_of_model(const lk__weights *w, const char *name)
{
    lk__weights_tensor found = {0};
    for (size_t i = 0; i < COUNT(prefixes) && !found.tensor; i++)
        for (size_t j = 0; j < COUNT(ends) && !found.tensor; j++) {
            char   other[NAME];
            size_t length = strlen(prefixes[i]);
            if (strncmp(name, prefixes[i], length) == 0 &&
                replace_end(name + length, ends[j].model, ends[j].file, other))
                found = lk__weights_find(w, other);
        }
    return found;
}

/* Whether the model has a tensor of this name, alone or in a list. */
static bool is_of_model(const lk_store *store, const char *name)
{
    char     list[NAME];
    lk_state state;
    size_t   index;
    if (lk_store_find(store, name, &state)) return !state.not_saved && !lk__list_is(name, state.rank);
    for (int i = 0; lk__list_pattern(name, i, list, sizeof list, &index); i++)
        if (lk_store_find(store, list, &state) && !state.not_saved && state.rank > 0 && index < (size_t)state.dims[0])
            return true;
    return false;
}

/* Whether some tensor of the model is this one. */
static bool is_used(const lk__weights *w, const lk_store *store, const lk__safetensors_tensor *t)
{
    for (size_t i = 0; i < COUNT(prefixes); i++)
        for (size_t j = 0; j < COUNT(ends); j++) {
            char end[NAME], name[NAME];
            if (!replace_end(t->name, ends[j].file, ends[j].model, end) ||
                snprintf(name, sizeof name, "%s%s", prefixes[i], end) >= (int)sizeof name)
                continue;
            if (is_of_model(store, name) && lk__weights_of_model(w, name).tensor == t) return true;
        }
    return false;
}

static bool is_same_shape(const lk__safetensors_tensor *a, const lk__safetensors_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

static lk_status compare_tensors(lk_context *c, lk__weights_tensor a, lk__weights_tensor b, bool *equal)
{
    *equal = is_same_shape(a.tensor, b.tensor);
    char     *staging = lk__alloc(c, LK_MEMORY_OTHER, 2 * STAGING);
    lk_status status = staging ? LK_OK : LK_ENOMEM;
    for (uint64_t done = 0; status >= 0 && *equal && done < a.tensor->bytes;) {
        size_t bytes = a.tensor->bytes - done < STAGING ? (size_t)(a.tensor->bytes - done) : STAGING;
        if ((status = lk__safetensors_read(a.file, a.tensor, done, staging, bytes)) >= 0 &&
            (status = lk__safetensors_read(b.file, b.tensor, done, staging + STAGING, bytes)) >= 0)
            *equal = memcmp(staging, staging + STAGING, bytes) == 0;
        done += bytes;
    }
    lk__free(c, LK_MEMORY_OTHER, staging, 2 * STAGING);
    return status;
}

/* A copy of a tensor of the model, which the model itself ties. */
static lk_status classify_copy(const lk__weights *w, const lk_store *store, lk__weights_tensor one,
                               lk__weights_use *use)
{
    for (size_t i = 0; i < COUNT(copies); i++) {
        lk_state state;
        bool     equal;
        if (strcmp(one.tensor->name, copies[i].copy) != 0 || !lk_store_find(store, copies[i].model, &state)) continue;
        lk__weights_tensor original = lk__weights_of_model(w, copies[i].model);
        if (!original.tensor) continue;
        lk_status status = compare_tensors(w->context, one, original, &equal);
        if (status < 0) return status;
        if (!equal)
            return lk__fail(w->context, LK_EMISMATCH,
                            "%s: \"%s\" differs from \"%s\", but the model uses one tensor for both: it belongs to a "
                            "different model",
                            w->path, one.tensor->name, original.tensor->name);
        *use = LK__WEIGHTS_IGNORED;
    }
    return LK_OK;
}

lk_status lk__weights_classify(const lk__weights *w, lk_store *store, lk__weights_tensor one, lk__weights_use *use)
{
    *use = is_used(w, store, one.tensor) ? LK__WEIGHTS_USED : LK__WEIGHTS_UNKNOWN;
    for (size_t i = 0; i < COUNT(buffers) && *use == LK__WEIGHTS_UNKNOWN; i++)
        if (ends_with(one.tensor->name, buffers[i].end) && one.tensor->rank == buffers[i].rank)
            *use = LK__WEIGHTS_IGNORED;
    return *use == LK__WEIGHTS_UNKNOWN ? classify_copy(w, store, one, use) : LK_OK;
}
