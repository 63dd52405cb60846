/* load_partial.c - loads the tensors that a file and a model share, and lists what was loaded and what was not. */
#include "train/load.h"

#include <stdio.h>
#include <string.h>

struct lk_load_report {
    lk_context    *context;
    lk_load_entry *entries;
    size_t         count, capacity;
};

size_t lk_load_report_count(const lk_load_report *r) { return r->count; }

const lk_load_entry *lk_load_report_at(const lk_load_report *r, size_t index)
{
    return index < r->count ? &r->entries[index] : NULL;
}

void lk_load_report_free(lk_load_report *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->count; i++) {
        lk__strfree(r->context, (char *)r->entries[i].name);
        lk__strfree(r->context, (char *)r->entries[i].text);
    }
    lk__free(r->context, LK_MEMORY_OTHER, r->entries, r->capacity * sizeof *r->entries);
    lk__free(r->context, LK_MEMORY_OTHER, r, sizeof *r);
}

static lk_status add_entry(lk_load_report *r, const char *name, lk_load_result result, const char *text)
{
    lk_status status = lk__grow(r->context, (void **)&r->entries, &r->capacity, r->count + 1, sizeof *r->entries);
    if (status < 0) return status;
    lk_load_entry entry = {lk__strdup(r->context, name), result, lk__strdup(r->context, text)};
    r->entries[r->count++] = entry; /* also with a NULL, so that it is freed */
    return entry.name && entry.text ? LK_OK : LK_ENOMEM;
}

/* Loads one tensor of the model if the file has the same. */
static lk_status load_tensor(const lk__load_target *to)
{
    lk_load_report               *r = to->user;
    const lk__safetensors_tensor *t = lk__load_find(to).tensor;
    char                          text[512];
    if (!t) return add_entry(r, to->name, LK_LOAD_MISSING, "");
    if (lk__load_differs(t, &to->state, "the file", text, sizeof text))
        return add_entry(r, to->name, LK_LOAD_MISMATCHED, text);
    lk_status status = lk__load_copy(to);
    return status < 0 ? status : add_entry(r, to->name, LK_LOAD_LOADED, "");
}

/* A tensor that should be a copy of another, and is not, is one that the model does not have. */
static lk_status add_unexpected(lk_load_report *r, const lk__load_target *to)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < to->weights.tensors && status >= 0; i++) {
        lk__weights_use    use;
        lk__weights_tensor one = lk__weights_at(&to->weights, i);
        status = lk__weights_classify(&to->weights, to->store, one, &use);
        if (status == LK_EMISMATCH || (status >= 0 && use == LK__WEIGHTS_UNKNOWN))
            status = add_entry(r, one.tensor->name, LK_LOAD_UNEXPECTED, "");
    }
    return status;
}

static bool loaded_any(const lk_load_report *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->entries[i].result == LK_LOAD_LOADED) return true;
    return false;
}

lk_status lk__load_partial(lk_store *store, lk__load_group *group, const char *path, lk_load_report **report)
{
    lk_context     *c = store->context;
    lk__load_target to = {.store = store, .group = group, .path = path};
    size_t          count;
    lk_load_report_free(*report);
    *report = NULL;
    lk_status status = lk__weights_open(c, path, &to.weights);
    if (status < 0) {
        lk__weights_close(&to.weights);
        return status;
    }
    lk_load_report *r = to.user = lk__alloc(c, LK_MEMORY_OTHER, sizeof *r);
    to.staging = lk__alloc(c, LK_MEMORY_OTHER, LK__LOAD_STAGING);
    if (r) r->context = c;
    status = r && to.staging ? lk__load_visit(&to, LK__LOAD_MODEL, load_tensor, &count) : LK_ENOMEM;
    if (status >= 0) status = add_unexpected(r, &to);
    if (status >= 0) *report = r;
    if (status >= 0 && !loaded_any(r))
        status = lk__fail(c, LK_EMISMATCH, "%s and the model share no tensor of the same name and shape", path);
    if (!*report) lk_load_report_free(r);
    lk__free(c, LK_MEMORY_OTHER, to.staging, LK__LOAD_STAGING);
    lk__weights_close(&to.weights);
    return status;
}
