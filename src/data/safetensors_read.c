/* safetensors_read.c - the safetensors reader. The whole header is checked before any of it is used; data is read by
 * position, not mapped, so that a file that shrinks meanwhile is an error, not a signal. */
#define _GNU_SOURCE
#include "base/dtype.h"
#include "base/json.h"
#include "data/safetensors.h"
#include "data/safetensors_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct lk__safetensors {
    lk_context                    *context;
    char                          *label;
    int                            fd;      /* -1: memory */
    const unsigned char           *memory;  /* NULL: fd */
    uint64_t                       length;  /* of the file */
    lk__safetensors_tensor        *tensors; /* by offset */
    const lk__safetensors_tensor **by_name;
    lk__safetensors_pair          *pairs; /* by key */
    size_t                         count, pair_count;
    size_t                         capacity; /* of tensors and by_name */
    char                          *names;    /* decoded names, keys and values, each with its NUL */
    size_t                         names_used, names_bytes;
};

/* The header and its position in the file, for messages. */
typedef struct header {
    lk__safetensors *file;
    const char      *text; /* the header's first byte is byte 8 of the file */
    size_t           length;
} header;

#define FORMAT_ERROR(h, at, format, ...)                                                \
    lk__fail((h)->file->context, LK_EFORMAT, "%s: byte %zu: " format, (h)->file->label, \
             (size_t)((at) - (h)->text) + 8, ##__VA_ARGS__)

/* Decodes into the names arena, which is as large as the header and so never too small: decoding shrinks a string, and
 * the two quotes leave room for the NUL. */
static lk_status store_string(header *h, const lk__json *value, const char **out)
{
    lk__safetensors *f = h->file;
    char            *to = f->names + f->names_used;
    size_t           length = lk__json_string(value, to, f->names_bytes - f->names_used);
    if (strlen(to) != length) return FORMAT_ERROR(h, value->text, "a name or value contains U+0000");
    f->names_used += length + 1;
    *out = to;
    return LK_OK;
}

static lk_status read_metadata(header *h, const lk__json *object)
{
    lk__safetensors *f = h->file;
    if (object->kind != LK__JSON_OBJECT) return FORMAT_ERROR(h, object->text, "__metadata__ is not an object");
    size_t count = lk__json_count(object);
    if (!count) return LK_OK;
    f->pairs = lk__alloc(f->context, LK_MEMORY_OTHER, count * sizeof *f->pairs);
    if (!f->pairs) return LK_ENOMEM;
    f->pair_count = count;
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(object);
    for (size_t i = 0; lk__json_next(&walk, &key, &value); i++) {
        if (value.kind != LK__JSON_STRING)
            return FORMAT_ERROR(h, value.text, "a value of __metadata__ is not a string");
        lk_status status = store_string(h, &key, &f->pairs[i].key);
        if (status == LK_OK) status = store_string(h, &value, &f->pairs[i].value);
        if (status < 0) return status;
    }
    lk__safetensors_sort(f->pairs, count, sizeof *f->pairs, lk__safetensors_compare_pairs);
    for (size_t i = 1; i < count; i++)
        if (strcmp(f->pairs[i - 1].key, f->pairs[i].key) == 0) {
            char name[LK__SHOWN];
            return FORMAT_ERROR(h, object->text, "__metadata__ has '%s' twice", lk__shown(f->pairs[i].key, name));
        }
    return LK_OK;
}

static lk_status read_dtype(header *h, const lk__json *value, lk__safetensors_tensor *t)
{
    char name[LK__SHOWN], type[LK__SHOWN], text[LK__SHOWN], known[128] = "";
    t->boolean = lk__json_equals(value, LK__SAFETENSORS_BOOL);
    t->dtype = LK_U8;
    if (t->boolean) return LK_OK;
    for (int i = 0, used = 0; i < LK_DTYPE_COUNT; i++) {
        const char *one = lk__dtype_of((lk_dtype)i)->safetensors;
        t->dtype = (lk_dtype)i;
        if (lk__json_equals(value, one)) return LK_OK;
        used += snprintf(known + used, sizeof known - (size_t)used, "%s%s", used ? ", " : "", one);
    }
    if (lk__json_string(value, text, sizeof text) == SIZE_MAX)
        return FORMAT_ERROR(h, value->text, "the dtype of tensor '%s' is not a string", lk__shown(t->name, name));
    return FORMAT_ERROR(h, value->text,
                        "tensor '%s' has type '%s', which is not supported (%s and " LK__SAFETENSORS_BOOL " are)",
                        lk__shown(t->name, name), lk__shown(text, type), known);
}

static lk_status read_shape(header *h, const lk__json *value, lk__safetensors_tensor *t)
{
    char name[LK__SHOWN];
    if (value->kind != LK__JSON_ARRAY)
        return FORMAT_ERROR(h, value->text, "the shape of tensor '%s' is not an array", lk__shown(t->name, name));
    lk__json      item;
    lk__json_walk walk = lk__json_begin(value);
    while (lk__json_next(&walk, NULL, &item)) {
        if (t->rank == LK_MAX_RANK)
            return FORMAT_ERROR(h, item.text, "tensor '%s' has more than %d axes", lk__shown(t->name, name),
                                LK_MAX_RANK);
        if (!lk__json_integer(&item, &t->dims[t->rank]) || t->dims[t->rank] < 0)
            return FORMAT_ERROR(h, item.text, "tensor '%s' has a dimension that is not an integer from 0 to 2^63 - 1",
                                lk__shown(t->name, name));
        t->rank++;
    }
    return LK_OK;
}

static lk_status read_offsets(header *h, const lk__json *value, lk__safetensors_tensor *t, uint64_t data_bytes)
{
    char          name[LK__SHOWN];
    int64_t       range[2];
    lk__json      item;
    lk__json_walk walk = lk__json_begin(value);
    int           n = 0;
    while (lk__json_next(&walk, NULL, &item) && n < 2)
        if (!lk__json_integer(&item, &range[n++])) n = 3;
    if (value->kind != LK__JSON_ARRAY || n != 2 || lk__json_count(value) != 2 || range[0] < 0 || range[1] < range[0])
        return FORMAT_ERROR(h, value->text, "the data_offsets of tensor '%s' are not [begin, end]",
                            lk__shown(t->name, name));
    if ((uint64_t)range[1] > data_bytes)
        return FORMAT_ERROR(h, value->text,
                            "tensor '%s' ends at byte %" PRId64 " of the data, but there are only %" PRIu64
                            " bytes: the file is truncated or damaged",
                            lk__shown(t->name, name), range[1], data_bytes);
    t->offset = (uint64_t)range[0];
    t->bytes = (uint64_t)(range[1] - range[0]);
    return LK_OK;
}

static lk_status read_tensor(header *h, const lk__json *key, const lk__json *object, lk__safetensors_tensor *t,
                             uint64_t data_bytes)
{
    char      name[LK__SHOWN];
    lk_status status = store_string(h, key, &t->name);
    if (status < 0) return status;
    if (object->kind != LK__JSON_OBJECT)
        return FORMAT_ERROR(h, object->text, "tensor '%s' is not an object", lk__shown(t->name, name));
    lk__json      field, value, dtype = {0}, shape = {0}, offsets = {0};
    lk__json_walk walk = lk__json_begin(object);
    while (lk__json_next(&walk, &field, &value)) {
        lk__json *slot = lk__json_equals(&field, "dtype")          ? &dtype
                         : lk__json_equals(&field, "shape")        ? &shape
                         : lk__json_equals(&field, "data_offsets") ? &offsets
                                                                   : NULL;
        if (!slot || slot->text)
            return FORMAT_ERROR(h, field.text, "tensor '%s' has %s field", lk__shown(t->name, name),
                                slot ? "a duplicate" : "an unknown");
        *slot = value;
    }
    if (!dtype.text || !shape.text || !offsets.text)
        return FORMAT_ERROR(h, object->text, "tensor '%s' has no %s", lk__shown(t->name, name),
                            !dtype.text   ? "dtype"
                            : !shape.text ? "shape"
                                          : "data_offsets");
    if ((status = read_dtype(h, &dtype, t)) < 0 || (status = read_shape(h, &shape, t)) < 0 ||
        (status = read_offsets(h, &offsets, t, data_bytes)) < 0)
        return status;
    uint64_t bytes;
    if (!lk__safetensors_size(t, &bytes) || bytes != t->bytes)
        return FORMAT_ERROR(h, object->text,
                            "tensor '%s' has %" PRIu64 " bytes of data, which does not match its type and shape",
                            lk__shown(t->name, name), t->bytes);
    return LK_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const lk__safetensors_tensor *x = a, *y = b;
    uint64_t                      x_end = x->offset + x->bytes, y_end = y->offset + y->bytes;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x_end != y_end) return x_end < y_end ? -1 : 1; /* empty tensors before the one at the same offset */
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const lk__safetensors_tensor *const *)a)->name, (*(const lk__safetensors_tensor *const *)b)->name);
}

/* Checks that the tensors cover the data: no overlap, no gap, nothing after the last. */
static lk_status check_layout(header *h, uint64_t data_bytes)
{
    lk__safetensors *f = h->file;
    char             name[LK__SHOWN];
    uint64_t         at = 0;
    lk__safetensors_sort(f->tensors, f->count, sizeof *f->tensors, compare_offsets);
    for (size_t i = 0; i < f->count; i++) {
        lk__safetensors_tensor *t = &f->tensors[i];
        if (t->offset != at)
            return lk__fail(f->context, LK_EFORMAT, "%s: the data of tensor '%s' starts at byte %" PRIu64 ", %s",
                            f->label, lk__shown(t->name, name), t->offset + h->length + 8,
                            t->offset > at ? "which leaves a gap before it" : "which overlaps the previous tensor");
        at += t->bytes;
        t->offset += h->length + 8;
        f->by_name[i] = t;
    }
    if (at != data_bytes)
        return lk__fail(f->context, LK_EFORMAT, "%s: byte %" PRIu64 ": %" PRIu64 " bytes follow the last tensor's data",
                        f->label, at + h->length + 8, data_bytes - at);
    lk__safetensors_sort(f->by_name, f->count, sizeof *f->by_name, compare_names);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return lk__fail(f->context, LK_EFORMAT, "%s: two tensors are named '%s'", f->label,
                            lk__shown(f->by_name[i]->name, name));
    return LK_OK;
}

static lk_status parse_header(header *h)
{
    lk__safetensors *f = h->file;
    lk__json         root, key, value;
    lk__json_error   error;
    uint64_t         data_bytes = f->length - 8 - h->length;
    if (h->text[0] != '{')
        return FORMAT_ERROR(h, h->text, "the header does not begin with '{', so this is not a safetensors file");
    if (!lk__json_parse(h->text, h->length, &root, &error))
        return FORMAT_ERROR(h, h->text + error.offset, "the header is invalid JSON: %s", error.what);

    f->names_bytes = h->length + 1;
    f->names = lk__alloc(f->context, LK_MEMORY_OTHER, f->names_bytes);
    if (!f->names) return LK_ENOMEM;
    size_t members = lk__json_count(&root), metadata = 0;
    if (members) {
        f->capacity = members;
        f->tensors = lk__alloc(f->context, LK_MEMORY_OTHER, members * sizeof *f->tensors);
        f->by_name = lk__alloc(f->context, LK_MEMORY_OTHER, members * sizeof *f->by_name);
        if (!f->tensors || !f->by_name) return LK_ENOMEM;
    }
    lk__json_walk walk = lk__json_begin(&root);
    while (lk__json_next(&walk, &key, &value)) {
        lk_status status;
        if (!lk__json_equals(&key, "__metadata__"))
            status = read_tensor(h, &key, &value, &f->tensors[f->count++], data_bytes);
        else if (metadata++)
            status = FORMAT_ERROR(h, key.text, "__metadata__ appears twice");
        else
            status = read_metadata(h, &value);
        if (status < 0) return status;
    }
    return check_layout(h, data_bytes);
}

/* ---- files and memory ---- */

static lk_status read_at(lk__safetensors *f, uint64_t offset, void *out, size_t bytes)
{
    if (f->memory) {
        if (bytes) memcpy(out, f->memory + offset, bytes);
        return LK_OK;
    }
    for (char *to = out; bytes;) {
        ssize_t n = pread(f->fd, to, bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return lk__fail(f->context, LK_EIO, "%s: cannot read at byte %" PRIu64 ": %s", f->label, offset,
                            strerror(errno));
        if (n == 0)
            return lk__fail(f->context, LK_EFORMAT, "%s ends at byte %" PRIu64 "; it was truncated after it was opened",
                            f->label, offset);
        to += n, bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return LK_OK;
}

enum { FIRST = 128 }; /* bytes that show the format of the file */

/* f has its source and length; reads and checks the header, and frees f on failure. */
static lk_status read_header(lk__safetensors *f, lk__safetensors **out)
{
    lk_context   *context = f->context;
    uint64_t      length = 0;
    char         *text = NULL;
    lk_status     status;
    unsigned char first[FIRST];
    if (f->length < 8) {
        status = lk__fail(context, LK_EFORMAT, "%s: a safetensors file cannot be as small as %" PRIu64 " bytes",
                          f->label, f->length);
        goto done;
    }
    if ((status = read_at(f, 0, first, f->length < FIRST ? (size_t)f->length : FIRST)) < 0 ||
        (status = lk__safetensors_foreign(context, f->label, first, f->length < FIRST ? (size_t)f->length : FIRST)) < 0)
        goto done;
    memcpy(&length, first, sizeof length);
    if (length < 2 || length > LK__SAFETENSORS_HEADER_LIMIT) {
        status = lk__fail(context, LK_EFORMAT,
                          "%s: byte 0 declares a header of %" PRIu64 " bytes, so this is not a safetensors file",
                          f->label, length);
        goto done;
    }
    if (length > f->length - 8) {
        status = lk__fail(context, LK_EFORMAT,
                          "%s: byte 0 declares a header of %" PRIu64 " bytes, but the file has %" PRIu64 " bytes"
                          ": it is truncated, or not a safetensors file",
                          f->label, length, f->length);
        goto done;
    }
    text = lk__alloc(context, LK_MEMORY_OTHER, (size_t)length);
    status = text ? read_at(f, 8, text, (size_t)length) : LK_ENOMEM;
    if (status == LK_OK) status = parse_header(&(header){f, text, (size_t)length});
done:
    lk__free(context, LK_MEMORY_OTHER, text, (size_t)length);
    if (status == LK_OK)
        *out = f;
    else
        lk__safetensors_close(f);
    return status;
}

static lk__safetensors *new_file(lk_context *context, const char *label)
{
    lk__safetensors *f = lk__alloc(context, LK_MEMORY_OTHER, sizeof *f);
    if (!f) return NULL;
    f->context = context;
    f->fd = -1;
    f->label = lk__strdup(context, label);
    if (f->label) return f;
    lk__safetensors_close(f);
    return NULL;
}

lk_status lk__safetensors_open(lk_context *context, const char *path, lk__safetensors **out)
{
    *out = NULL;
    lk__safetensors *f = new_file(context, path);
    if (!f) return LK_ENOMEM;
    struct stat info;
    lk_status   status;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* O_NONBLOCK: do not wait for a pipe's writer */
    if (f->fd < 0 || fstat(f->fd, &info) < 0) {
        status = errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO;
        lk__fail(context, status, "%s: cannot open: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = lk__fail(context, LK_EFORMAT, "%s is %s, not a file", path,
                          S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
    } else {
        f->length = (uint64_t)info.st_size;
        return read_header(f, out);
    }
    lk__safetensors_close(f);
    return status;
}

lk_status lk__safetensors_open_memory(lk_context *context, const char *label, const void *bytes, size_t length,
                                      lk__safetensors **out)
{
    *out = NULL;
    lk__safetensors *f = new_file(context, label);
    if (!f) return LK_ENOMEM;
    f->memory = bytes;
    f->length = length;
    return read_header(f, out);
}

void lk__safetensors_close(lk__safetensors *f)
{
    if (!f) return;
    lk_context *context = f->context;
    if (f->fd >= 0) close(f->fd);
    lk__free(context, LK_MEMORY_OTHER, f->names, f->names_bytes);
    lk__free(context, LK_MEMORY_OTHER, f->pairs, f->pair_count * sizeof *f->pairs);
    lk__free(context, LK_MEMORY_OTHER, f->tensors, f->capacity * sizeof *f->tensors);
    lk__free(context, LK_MEMORY_OTHER, f->by_name, f->capacity * sizeof *f->by_name);
    lk__strfree(context, f->label);
    lk__free(context, LK_MEMORY_OTHER, f, sizeof *f);
}

size_t                        lk__safetensors_count(const lk__safetensors *f) { return f->count; }
const lk__safetensors_tensor *lk__safetensors_at(const lk__safetensors *f, size_t index)
{
    return index < f->count ? &f->tensors[index] : NULL;
}

const lk__safetensors_tensor *lk__safetensors_find(const lk__safetensors *f, const char *name)
{
    for (size_t low = 0, high = f->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        int    order = strcmp(name, f->by_name[middle]->name);
        if (order == 0) return f->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *lk__safetensors_metadata(const lk__safetensors *f, const char *key)
{
    for (size_t i = 0; i < f->pair_count; i++)
        if (strcmp(f->pairs[i].key, key) == 0) return f->pairs[i].value;
    return NULL;
}

lk_status lk__safetensors_read(lk__safetensors *f, const lk__safetensors_tensor *t, uint64_t first, void *out,
                               size_t bytes)
{
    if (first > t->bytes || bytes > t->bytes - first)
        return lk__fail(f->context, LK_EINVAL,
                        "%s: cannot read bytes %" PRIu64 " to %" PRIu64 " of tensor '%s', which has only %" PRIu64
                        " bytes",
                        f->label, first, first + bytes, t->name, t->bytes);
    return read_at(f, t->offset + first, out, bytes);
}
