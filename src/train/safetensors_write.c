/* safetensors_write.c - the safetensors writer. */
#include "train/safetensors_write.h"

#include "base/json.h"
#include "data/safetensors_inside.h"
#include "train/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is written as it is in memory"
#endif

static int compare_order(const void *a, const void *b)
{
    const lk__safetensors_tensor *x = a, *y = b;
    int                           difference = lk__safetensors_type_rank(x) - lk__safetensors_type_rank(y);
    return difference ? difference : strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const lk__safetensors_tensor *)a)->name, ((const lk__safetensors_tensor *)b)->name);
}

/* Receives header text: counts it, and writes it to `file` or copies bytes first … end - 1 of it to `out`, unless these
 * are NULL. The same code does all, so the results agree. */
typedef struct sink {
    lk__file *file;
    char     *out;
    uint64_t  first, end;
    uint64_t  bytes;
} sink;

static void put_bytes(sink *s, const char *text, size_t bytes)
{
    uint64_t begin = s->bytes > s->first ? s->bytes : s->first;
    s->bytes += bytes;
    uint64_t end = s->bytes < s->end ? s->bytes : s->end;
    if (s->file) (void)lk__file_write(s->file, text, bytes); /* commit reports the failure */
    if (s->out && begin < end) memcpy(s->out + (begin - s->first), text + (begin + bytes - s->bytes), end - begin);
}

static void put_text(sink *s, const char *text) { put_bytes(s, text, strlen(text)); }

static void put_string(sink *s, const char *text)
{
    put_bytes(s, "\"", 1);
    for (; *text; text++) {
        char   escaped[6];
        size_t n = lk__json_escape((unsigned char)*text, escaped);
        put_bytes(s, escaped, n);
    }
    put_bytes(s, "\"", 1);
}

static void put_number(sink *s, uint64_t n)
{
    char digits[24];
    int  length = snprintf(digits, sizeof digits, "%" PRIu64, n);
    put_bytes(s, digits, (size_t)length);
}

static void put_tensor(sink *s, const lk__safetensors_tensor *t)
{
    put_string(s, t->name);
    put_text(s, ":{\"dtype\":\"");
    put_text(s, lk__safetensors_type(t));
    put_text(s, "\",\"shape\":[");
    for (int i = 0; i < t->rank; i++) {
        if (i) put_text(s, ",");
        put_number(s, (uint64_t)t->dims[i]);
    }
    put_text(s, "],\"data_offsets\":[");
    put_number(s, t->offset);
    put_text(s, ",");
    put_number(s, t->offset + t->bytes);
    put_text(s, "]}");
}

static void put_header(sink *s, const lk__safetensors_content *content)
{
    put_text(s, "{");
    if (content->pairs) {
        put_text(s, "\"__metadata__\":{");
        for (size_t i = 0; i < content->pairs; i++) {
            if (i) put_text(s, ",");
            put_string(s, content->metadata[i].key);
            put_text(s, ":");
            put_string(s, content->metadata[i].value);
        }
        put_text(s, content->count ? "}," : "}");
    }
    for (size_t i = 0; i < content->count; i++) {
        if (i) put_text(s, ",");
        put_tensor(s, &content->tensors[i]);
    }
    put_text(s, "}");
    while (s->bytes % 8) put_text(s, " ");
}

/* Strings in the header must be UTF-8, as JSON requires. */
static bool is_utf8(const char *text) { return lk__json_check_utf8(text, strlen(text)); }

/* Checks and sorts tensors and metadata, and sets offsets. */
static lk_status prepare_header(lk_context *context, const char *path, const lk__safetensors_content *content)
{
    lk__safetensors_tensor *tensors = content->tensors;
    lk__safetensors_pair   *metadata = content->metadata;
    size_t                  count = content->count, pairs = content->pairs;
    uint64_t                total = 0;
    for (size_t i = 0; i < count; i++) {
        lk__safetensors_tensor *t = &tensors[i];
        if (!is_utf8(t->name) || strcmp(t->name, "__metadata__") == 0)
            return lk__fail(context, LK_EINVAL, "%s: '%s' is not a valid tensor name", path, t->name);
        bool known = lk_dtype_size(t->dtype) > 0 && (!t->boolean || t->dtype == LK_U8);
        if (!known || t->rank < 0 || t->rank > LK_MAX_RANK || !lk__safetensors_size(t, &t->bytes) ||
            (t->bytes && !t->data && !t->read))
            return lk__fail(context, LK_EINVAL, "%s: tensor '%s' has a type, shape or data that cannot be written",
                            path, t->name);
    }
    lk__safetensors_sort(tensors, count, sizeof *tensors, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0)
            return lk__fail(context, LK_EINVAL, "%s: two tensors are named '%s'", path, tensors[i].name);
    lk__safetensors_sort(tensors, count, sizeof *tensors, compare_order);
    for (size_t i = 0; i < count; i++) {
        tensors[i].offset = total;
        if (__builtin_add_overflow(total, tensors[i].bytes, &total) || total > INT64_MAX)
            return lk__fail(context, LK_EINVAL, "%s: the tensors are too large for one file", path);
    }
    lk__safetensors_sort(metadata, pairs, sizeof *metadata, lk__safetensors_compare_pairs);
    for (size_t i = 0; i < pairs; i++)
        if (!is_utf8(metadata[i].key) || !is_utf8(metadata[i].value) ||
            (i && strcmp(metadata[i - 1].key, metadata[i].key) == 0))
            return lk__fail(context, LK_EINVAL, "%s: metadata '%s' is not UTF-8 or occurs twice", path,
                            metadata[i].key);
    return LK_OK;
}

/* Through the file's staging buffer, where the data is not in the host's memory. */
static lk_status write_data(lk__file *file, const lk__safetensors_tensor *t)
{
    if (t->data) return lk__file_write(file, t->data, (size_t)t->bytes);
    for (uint64_t done = 0; done < t->bytes;) {
        size_t room;
        void  *to = lk__file_reserve(file, &room);
        if (!to) return file->status;
        size_t    bytes = t->bytes - done < room ? (size_t)(t->bytes - done) : room;
        lk_status status = t->read(t->user, t->source, done, to, bytes);
        if (status < 0) return status;
        lk__file_advance(file, bytes);
        done += bytes;
    }
    return LK_OK;
}

size_t lk__safetensors_staging_bytes(void) { return LK__FILE_STAGING; }

lk_status lk__safetensors_lay_out(lk_context *context, const char *path, const lk__safetensors_content *content,
                                  lk__safetensors_image *image)
{
    lk_status status = prepare_header(context, path, content);
    if (status < 0) return status;
    sink counter = {0};
    put_header(&counter, content);
    if (counter.bytes > LK__SAFETENSORS_HEADER_LIMIT)
        return lk__fail(context, LK_EINVAL, "%s: a header of %" PRIu64 " bytes exceeds the format's limit of %d", path,
                        counter.bytes, LK__SAFETENSORS_HEADER_LIMIT);
    *image = (lk__safetensors_image){*content, 8 + counter.bytes, 8 + counter.bytes};
    if (content->count) {
        const lk__safetensors_tensor *last = &content->tensors[content->count - 1];
        image->bytes += last->offset + last->bytes;
    }
    return LK_OK;
}

static void copy_header(const lk__safetensors_image *image, uint64_t first, char *out, size_t bytes)
{
    uint64_t length = image->header - 8;
    sink     copy = {.out = out, .first = first, .end = first + bytes};
    put_bytes(&copy, (const char *)&length, 8);
    if (copy.end <= 8) return;
    /* put_header pads to a multiple of eight, which the eight bytes before it do not change */
    put_header(&copy, &image->content);
}

size_t lk__safetensors_locate(const lk__safetensors_image *image, uint64_t at)
{
    size_t low = 0, high = image->content.count;
    while (low < high) {
        size_t                        middle = low + (high - low) / 2;
        const lk__safetensors_tensor *t = &image->content.tensors[middle];
        if (t->offset + t->bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

lk_status lk__safetensors_copy(const lk__safetensors_image *image, uint64_t first, void *out, size_t bytes)
{
    char *to = out;
    if (first < image->header) {
        size_t now = image->header - first < bytes ? (size_t)(image->header - first) : bytes;
        copy_header(image, first, to, now);
        first += now, to += now, bytes -= now;
    }
    uint64_t at = first - image->header;
    for (size_t i = bytes ? lk__safetensors_locate(image, at) : 0; bytes; i++) {
        const lk__safetensors_tensor *t = &image->content.tensors[i];
        uint64_t                      inside = at - t->offset;
        size_t                        now = t->bytes - inside < bytes ? (size_t)(t->bytes - inside) : bytes;
        if (t->data)
            memcpy(to, (const char *)t->data + inside, now);
        else if (now) {
            lk_status status = t->read(t->user, t->source, inside, to, now);
            if (status < 0) return status;
        }
        at += now, to += now, bytes -= now;
    }
    return LK_OK;
}

lk_status lk__safetensors_write(lk_context *context, const char *path, const lk__safetensors_content *content,
                                lk__safetensors_staging staging, char sha256[65])
{
    lk__safetensors_image image;
    lk_status             status = lk__safetensors_lay_out(context, path, content, &image);
    if (status < 0) return status;
    lk__file file;
    uint64_t length = image.header - 8;
    status = lk__file_create(&file, context, path, staging.memory, staging.bytes);
    if (status < 0) return status;
    (void)lk__file_write(&file, &length, 8);
    sink writer = {.file = &file};
    put_header(&writer, content);
    for (size_t i = 0; i < content->count; i++) {
        if ((status = write_data(&file, &content->tensors[i])) < 0) {
            lk__file_abandon(&file);
            return status;
        }
        content->tensors[i].offset += image.header;
    }
    return lk__file_commit(&file, sha256);
}
