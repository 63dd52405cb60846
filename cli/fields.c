/* fields.c - packs fields of samples: for each, its numbers, then its name and the names of its classes and columns,
 * each with its NUL. */
#include "fields.h"

#include <stdlib.h>
#include <string.h>

typedef struct numbers {
    int64_t dtype, rank, dims[LK_MAX_RANK], classes;
    int64_t class_names, column_names; /* how many of each follow */
} numbers;

static int64_t count_columns(const lk_field *f) { return !f->column_names ? 0 : f->rank == 0 ? 1 : f->dims[0]; }

static size_t put_bytes(char *out, size_t used, const void *bytes, size_t count)
{
    if (out) memcpy(out + used, bytes, count);
    return used + count;
}

static size_t put_names(char *out, size_t used, const char *const *names, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const char *name = names[i] ? names[i] : "";
        used = put_bytes(out, used, name, strlen(name) + 1);
    }
    return used;
}

/* Returns the bytes; out NULL: only counts them. */
static size_t put_field(char *out, size_t used, const lk_field *f)
{
    numbers n = {.dtype = f->dtype, .rank = f->rank, .classes = f->classes, .column_names = count_columns(f)};
    n.class_names = f->class_names ? f->classes : 0;
    memcpy(n.dims, f->dims, sizeof n.dims);
    used = put_bytes(out, used, &n, sizeof n);
    used = put_names(out, used, &f->name, 1);
    used = put_names(out, used, f->class_names, n.class_names);
    return put_names(out, used, f->column_names, n.column_names);
}

char *fields_pack(const lk_field *fields, int count, size_t *bytes)
{
    size_t used = 0;
    *bytes = 0;
    for (int i = 0; i < count; i++) *bytes = put_field(NULL, *bytes, &fields[i]);
    char *out = malloc(*bytes + 1);
    for (int i = 0; out && i < count; i++) used = put_field(out, used, &fields[i]);
    return out;
}

static const char *take_name(const char *bytes, size_t *at)
{
    const char *name = bytes + *at;
    *at += strlen(name) + 1;
    return name;
}

static const char *const *take_names(const char *bytes, size_t *at, int64_t count, const char ***room)
{
    const char **names = *room;
    for (int64_t i = 0; i < count; i++) names[i] = take_name(bytes, at);
    *room += count;
    return count ? names : NULL;
}

lk_field *fields_unpack(const char *bytes, size_t size, int *count)
{
    size_t  names = 0;
    numbers n;
    *count = 0;
    for (size_t at = 0; at < size; ++*count) {
        memcpy(&n, bytes + at, sizeof n);
        at += sizeof n;
        for (int64_t i = 0; i < 1 + n.class_names + n.column_names; i++) take_name(bytes, &at);
        names += (size_t)(n.class_names + n.column_names);
    }
    lk_field *fields = calloc(1, (size_t)*count * sizeof *fields + names * sizeof(char *) + 1);
    if (!fields) return NULL;
    const char **room = (const char **)(fields + *count);
    size_t       at = 0;
    for (int i = 0; i < *count; i++) {
        memcpy(&n, bytes + at, sizeof n);
        at += sizeof n;
        fields[i] = (lk_field){.dtype = (lk_dtype)n.dtype, .rank = (int)n.rank, .classes = (int)n.classes};
        memcpy(fields[i].dims, n.dims, sizeof n.dims);
        fields[i].name = take_name(bytes, &at);
        fields[i].class_names = take_names(bytes, &at, n.class_names, &room);
        fields[i].column_names = take_names(bytes, &at, n.column_names, &room);
    }
    return fields;
}
