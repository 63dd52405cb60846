/* join.c - joins two data sets: the samples of the first, then those of the second. */
#include "data/dataset.h"

#include <string.h>

/* The state of the data set, which owns its parts. */
typedef struct parts {
    lk_dataset  *part[2];
    lk_text_info text;
} parts;

static const lk_dataset *find_part(const lk_dataset *d, int64_t *index)
{
    const parts *p = d->state;
    bool         second = *index >= p->part[0]->count;
    if (second) *index -= p->part[0]->count;
    return p->part[second];
}

static lk_status read_joined(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                             char message[LK__DATASET_MESSAGE])
{
    const void       *sample[LK_MAX_FIELDS];
    const lk_dataset *part = find_part(d, &index);
    lk_status         status = lk__dataset_read(part, index, (lk__dataset_room){fields, scratch}, sample, message);
    for (int i = 0; i < d->fields_count && status >= 0; i++)
        if (sample[i] != fields[i]) memcpy(fields[i], sample[i], lk_field_bytes(&d->fields[i]));
    return status;
}

static const char *name_joined(const lk_dataset *d, int64_t index)
{
    const lk_dataset *part = find_part(d, &index);
    return lk_dataset_sample_name(part, index);
}

static void release_parts(lk_dataset *d)
{
    parts *p = d->state;
    for (int i = 0; p && i < 2; i++) lk_dataset_free(p->part[i]);
    lk__free(d->context, LK_MEMORY_OTHER, p, sizeof *p);
}

static bool same_shape(const lk_field *a, const lk_field *b)
{
    bool same = strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
    return same;
}

/* Fields of both: the same, but for the number of classes where these are numbers that were found in each. */
static lk_status join_fields(const lk_dataset *a, const lk_dataset *b, lk_field fields[LK_MAX_FIELDS])
{
    bool same = a->fields_count == b->fields_count;
    for (int i = 0; same && i < a->fields_count; i++) {
        fields[i] = a->fields[i];
        same = same_shape(&a->fields[i], &b->fields[i]);
        if (same && !fields[i].class_names && b->fields[i].classes > fields[i].classes && fields[i].classes > 0)
            fields[i].classes = b->fields[i].classes;
    }
    if (same) return LK_OK;
    return lk__fail(a->context, LK_EMISMATCH,
                    "%s: its training and test samples have different fields, so they cannot be read together",
                    a->name);
}

static void join_text(const lk_text_info *a, const lk_text_info *b, lk_text_info *out)
{
    *out = *a;
    out->tokens += b->tokens;
    out->bytes = a->bytes && b->bytes ? a->bytes + b->bytes : 0;
    out->scored += b->scored;
    out->scored_bytes = a->scored_bytes && b->scored_bytes ? a->scored_bytes + b->scored_bytes : 0;
    if (b->longest > a->longest) out->longest = b->longest;
    if (b->vocabulary > a->vocabulary) out->vocabulary = b->vocabulary;
}

lk_status lk__dataset_join(lk_dataset *a, lk_dataset *b, lk_dataset **dataset)
{
    lk_field    fields[LK_MAX_FIELDS];
    lk_dataset *d = NULL;
    parts      *p = NULL;
    *dataset = NULL;
    lk_status status = join_fields(a, b, fields);
    if (status == LK_OK)
        status = lk__dataset_make(a->context,
                                  &(lk__dataset_about){a->name, a->count + b->count, fields, a->fields_count}, &d);
    if (status == LK_OK && !(p = lk__alloc(a->context, LK_MEMORY_OTHER, sizeof *p))) status = LK_ENOMEM;
    if (status < 0) {
        lk_dataset_free(d);
        lk_dataset_free(a);
        lk_dataset_free(b);
        return status;
    }
    *p = (parts){.part = {a, b}};
    d->state = p;
    d->release = release_parts;
    d->read = read_joined;
    d->scratch = a->scratch > b->scratch ? a->scratch : b->scratch;
    if (a->sample_name && b->sample_name) d->sample_name = name_joined;
    d->streamed = a->streamed || b->streamed;
    d->unlabelled = a->unlabelled || b->unlabelled;
    d->computed_order = a->computed_order;
    if (a->text && b->text) {
        join_text(a->text, b->text, &p->text);
        d->text = &p->text;
    }
    *dataset = d;
    return LK_OK;
}
