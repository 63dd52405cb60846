/* labels.c - finds the class numbers of labels among the classes of training. Names that are not UTF-8 are compared in
 * the form in which a checkpoint's record stores them. */
#include "data/labels.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

const lk_field *lk__expected_field(const lk_open_options *options, const char *name)
{
    for (int i = 0; options->expected && i < options->expected_count; i++)
        if (strcmp(options->expected[i].name, name) == 0) return &options->expected[i];
    return NULL;
}

lk_status lk__labels_begin(lk_context *context, const lk_field *field, bool skip, lk__labels *l)
{
    *l = (lk__labels){.context = context, .field = field, .skip = skip};
    l->names = (lk__class_names){.context = context, .most = INT32_MAX / 2};
    if (!field || !field->class_names) return LK_OK;
    for (int i = 0; i < field->classes; i++) {
        const char *name = field->class_names[i] ? field->class_names[i] : "";
        char        shown[LK__SHOWN];
        lk_status   status = lk__class_names_add(&l->names, name, strlen(name));
        if (status < 0) return status;
        if (l->names.count != i + 1)
            return lk__fail(context, LK_EINVAL,
                            "two classes of the training data have the name '%s', so labels cannot be assigned to them",
                            lk__shown(name, shown));
    }
    return lk__class_names_keep_order(&l->names);
}

void lk__labels_free(lk__labels *l)
{
    lk__class_names_free(&l->names);
    lk__free(l->context, LK_MEMORY_OTHER, l->unknown, l->unknown_capacity * sizeof *l->unknown);
}

int32_t lk__labels_find_number(const lk__labels *l, double number)
{
    char text[32];
    if (!(number > -9e15 && number < 9e15) || number != (double)(int64_t)number) return -1;
    if (!l->field->class_names) return number >= 0 && number < l->field->classes ? (int32_t)number : -1;
    int length = snprintf(text, sizeof text, "%lld", (long long)number);
    return lk__class_names_find(&l->names, text, (size_t)length);
}

int32_t lk__labels_find(const lk__labels *l, const char *name, size_t length)
{
    char read[1024];
    int32_t class = lk__class_names_find(&l->names, name, length);
    if (class >= 0 || 3 * length >= sizeof read || lk__json_check_utf8(name, length)) return class;
    lk__json_as_read(name, length, read);
    return lk__class_names_find(&l->names, read, strlen(read));
}

/* "; did you mean 'cat'? Known are 'cat', 'dog'" */
static void list_known(const lk__labels *l, const char *name, char *out, size_t size)
{
    enum { LISTED = 6 };
    char   shown[LK__SHOWN];
    size_t used = 0;
    if (!l->field->class_names) {
        snprintf(out, size, ": classes are 0 to %d", l->field->classes - 1);
        return;
    }
    const char *near = lk__suggest(name, l->names.sorted, (size_t)l->names.count);
    if (near) used += (size_t)snprintf(out, size, " (did you mean '%s'?)", lk__shown(near, shown));
    used += (size_t)snprintf(out + used, size - used, ": expected one of ");
    for (int i = 0; i < l->names.count && i < LISTED && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s'%s'", i ? ", " : "", lk__shown(l->names.sorted[i], shown));
    if (l->names.count > LISTED && used < size)
        snprintf(out + used, size - used, " and %d more", l->names.count - LISTED);
}

lk_status lk__labels_refuse(lk__labels *l, int64_t sample, const char *place, const char *name)
{
    char known[8 * LK__SHOWN + 128], shown[LK__SHOWN];
    if (l->skip) {
        lk_status status =
            lk__grow(l->context, (void **)&l->unknown, &l->unknown_capacity, l->unknown_count + 1, sizeof *l->unknown);
        if (status < 0) return status;
        if (l->unknown_count == 0) lk__shown(name, l->first);
        l->unknown[l->unknown_count++] = sample;
        return LK_OK;
    }
    list_known(l, name, known, sizeof known);
    return lk__fail(l->context, LK_EFORMAT,
                    "%s: '%s' is not a class of the training data%s; --unknown-label skip leaves such samples out",
                    place, lk__shown(name, shown), known);
}

lk_status lk__labels_drop(const lk__labels *l, const char *file, bool quiet, lk_dataset *d)
{
    int64_t left = d->count - (int64_t)l->unknown_count;
    if (l->unknown_count == 0) return LK_OK;
    if (left == 0)
        return lk__fail(l->context, LK_EFORMAT,
                        "%s: none of its %lld samples has a class of the training data; the first label is '%s'", file,
                        (long long)d->count, l->first);
    if (!quiet)
        lk__log(l->context, LK_LOG_INFO,
                "%s: %zu of %lld samples have labels that the training data does not have ('%s'%s), and are left out",
                file, l->unknown_count, (long long)d->count, l->first, l->unknown_count > 1 ? ", …" : "");
    if (!(d->kept = lk__alloc(l->context, LK_MEMORY_DATA, (size_t)left * sizeof *d->kept))) return LK_ENOMEM;
    d->kept_bytes = (size_t)left * sizeof *d->kept;
    for (int64_t i = 0, kept = 0, next = 0; i < d->count; i++) {
        if (next < (int64_t)l->unknown_count && l->unknown[next] == i)
            next++;
        else
            d->kept[kept++] = i;
    }
    d->count = left;
    return LK_OK;
}
