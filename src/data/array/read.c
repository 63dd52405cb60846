/* read.c - elements of arrays: converted in chunks from mapped bytes or from inflated ones, so that no second copy of a
 * whole array is held. */
#include "data/array/array.h"

#include <string.h>

enum { CHUNK = 16384, LARGEST = 8 }; /* elements at a time; bytes of the widest */

typedef struct reader {
    lk_context      *context;
    const lk__array *array;
    size_t           done;   /* bytes of the array */
    unsigned char   *buffer; /* CHUNK × LARGEST, for inflated bytes */
    lk__data_stream  stream;
    uint32_t         crc;
    char             label[LK__ARRAY_SHOWN];
} reader;

static lk_status read_inflated(reader *r, void *out, size_t bytes)
{
    size_t    got = 0;
    lk_status status = lk__stream_read(&r->stream, out, bytes, &got);
    if (status < 0) return status;
    if (got < bytes)
        return lk__fail(r->context, LK_EFORMAT, "%s is truncated: its data ends after %zu of %zu bytes", r->label,
                        r->done + got, r->array->size);
    r->crc = (uint32_t)crc32_z(r->crc, out, bytes);
    return LK_OK;
}

/* Close it in either case. */
static lk_status open_reader(lk_context *context, const lk__array *a, reader *r)
{
    *r = (reader){.context = context, .array = a, .stream = {.context = context, .fd = -1}};
    lk__array_show(a, r->label);
    if (!a->deflated) return LK_OK;
    r->buffer = lk__alloc(context, LK_MEMORY_DATA, CHUNK * LARGEST);
    if (!r->buffer) return LK_ENOMEM;
    lk_status status = lk__stream_deflate(context, r->label, a->data, a->stored, &r->stream);
    for (size_t left = a->skip; status == LK_OK && left > 0;) {
        size_t bytes = left < CHUNK * LARGEST ? left : CHUNK * LARGEST;
        status = read_inflated(r, r->buffer, bytes);
        left -= bytes;
    }
    return status;
}

static void close_reader(reader *r)
{
    lk__stream_close(&r->stream);
    lk__free(r->context, LK_MEMORY_DATA, r->buffer, CHUNK * LARGEST);
}

/* Once all is read: the member must end here and have its checksum. */
static lk_status check_end(reader *r)
{
    unsigned char more;
    size_t        got = 0;
    if (!r->array->deflated || r->done < r->array->size) return LK_OK;
    lk_status status = lk__stream_read(&r->stream, &more, 1, &got);
    if (status < 0) return status;
    if (got) return lk__fail(r->context, LK_EFORMAT, "%s has more bytes than its header declares", r->label);
    if (r->crc != r->array->crc)
        return lk__fail(r->context, LK_EFORMAT, "%s is damaged: checksum mismatch (%08x, expected %08x)", r->label,
                        r->crc, r->array->crc);
    return LK_OK;
}

/* The next elements, at most CHUNK; none at the end. */
static lk_status next_chunk(reader *r, const unsigned char **bytes, size_t *elements)
{
    size_t size = lk__array_type_size(r->array->type), left = (r->array->size - r->done) / size;
    *elements = left < CHUNK ? left : CHUNK;
    *bytes = r->array->deflated ? r->buffer : r->array->data + r->done;
    if (*elements == 0) return LK_OK;
    lk_status status = r->array->deflated ? read_inflated(r, r->buffer, *elements * size) : LK_OK;
    if (status < 0) return status;
    r->done += *elements * size;
    return check_end(r);
}

/* `bytes` bytes to out, in order. */
static lk_status read_bytes(reader *r, void *out, size_t bytes)
{
    if (!r->array->deflated) {
        memcpy(out, r->array->data + r->done, bytes);
        r->done += bytes;
        return LK_OK;
    }
    lk_status status = read_inflated(r, out, bytes);
    if (status < 0) return status;
    r->done += bytes;
    return check_end(r);
}

#define TYPE_CASE(id, name, bytes, kind, sums, memory, number, load, ...)                                   \
    case LK__ARRAY_##id:                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                                    \
            memory v;                                                                                       \
            memcpy(&v, from + i * sizeof v, sizeof v);                                                      \
            out[i] = (__typeof__(*out))load(v);                                                             \
        }                                                                                                   \
        break;
#define DEFINE_CONVERT(function, to)                                                                        \
    static void function(lk__array_type type, const unsigned char *from, size_t n, to *out)                 \
    {                                                                                                       \
        switch (type) {                                                                                     \
            LK__ARRAY_TYPES(TYPE_CASE)                                                                      \
        case LK__ARRAY_TYPE_COUNT: break;                                                                   \
        }                                                                                                   \
    }
DEFINE_CONVERT(convert_to_double, double)
DEFINE_CONVERT(convert_to_float, float)
DEFINE_CONVERT(convert_to_i32, int32_t)
DEFINE_CONVERT(convert_to_i64, int64_t)

lk_status lk__array_read(lk_context *context, const lk__array *a, lk_dtype type, void *out)
{
    reader               r;
    const unsigned char *bytes;
    size_t               n, at = 0;
    lk_status            status = open_reader(context, a, &r);
    while (status == LK_OK && (status = next_chunk(&r, &bytes, &n)) == LK_OK && n > 0) {
        if (type == LK_F32)
            convert_to_float(a->type, bytes, n, (float *)out + at);
        else if (type == LK_I32)
            convert_to_i32(a->type, bytes, n, (int32_t *)out + at);
        else if (type == LK_I64)
            convert_to_i64(a->type, bytes, n, (int64_t *)out + at);
        else
            memcpy((unsigned char *)out + at, bytes, n); /* u8 */
        at += n;
    }
    close_reader(&r);
    return status;
}

lk_status lk__array_read_channels_first(lk_context *context, const lk__array *a, unsigned char *out)
{
    reader         r;
    size_t         channels = (size_t)a->dims[3], pixels = (size_t)(a->dims[1] * a->dims[2]), row = channels * pixels;
    unsigned char *image = lk__alloc(context, LK_MEMORY_DATA, row);
    if (!image) return LK_ENOMEM;
    lk_status status = open_reader(context, a, &r);
    for (int64_t i = 0; status == LK_OK && i < a->dims[0]; i++, out += row) {
        if ((status = read_bytes(&r, image, row)) < 0) break;
        for (size_t c = 0; c < channels; c++)
            for (size_t p = 0; p < pixels; p++) out[c * pixels + p] = image[p * channels + c];
    }
    close_reader(&r);
    lk__free(context, LK_MEMORY_DATA, image, row);
    return status;
}

static bool is_finite(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7f800000) != 0x7f800000;
}

lk_status lk__array_check_finite(lk_context *context, const lk__array *a, const float *column)
{
    char   label[LK__ARRAY_SHOWN];
    size_t all = a->size / lk__array_type_size(a->type), row = all / (size_t)a->dims[0];
    for (size_t begin = 0; begin < all; begin += CHUNK) {
        size_t   end = all - begin < CHUNK ? all : begin + CHUNK;
        uint32_t wrong = 0;
        for (size_t i = begin; i < end; i++) wrong |= !is_finite(column[i]); /* no branch: the loop is vectorised */
        if (!wrong) continue;
        while (is_finite(column[begin])) begin++;
        return lk__fail(context, LK_EFORMAT,
                        "%s: row %zu has a value that is %s (at index %zu of the row): remove such rows, or replace "
                        "such values, for example with np.nan_to_num",
                        lk__array_show(a, label), begin / row,
                        column[begin] != column[begin] ? "NaN"
                        : a->type == LK__ARRAY_F64     ? "infinite as float32"
                                                       : "infinite",
                        begin % row);
    }
    return LK_OK;
}

/* Calls visit with each element and its row, until one fails. */
typedef lk_status (*visit_number)(void *user, const char *label, size_t row, double value);
static lk_status visit_numbers(lk_context *context, const lk__array *a, visit_number visit, void *user)
{
    reader               r;
    const unsigned char *bytes;
    size_t               n, at = 0, row = a->size / lk__array_type_size(a->type) / (size_t)a->dims[0];
    double              *values = lk__alloc(context, LK_MEMORY_DATA, CHUNK * sizeof *values);
    if (!values) return LK_ENOMEM;
    lk_status status = open_reader(context, a, &r);
    while (status == LK_OK && (status = next_chunk(&r, &bytes, &n)) == LK_OK && n > 0) {
        convert_to_double(a->type, bytes, n, values);
        for (size_t i = 0; i < n && status == LK_OK; i++) status = visit(user, r.label, (at + i) / row, values[i]);
        at += n;
    }
    close_reader(&r);
    lk__free(context, LK_MEMORY_DATA, values, CHUNK * sizeof *values);
    return status;
}

static lk_status check_class(void *user, const char *label, size_t row, double value)
{
    lk__labels *known = user;
    char        place[LK__ARRAY_SHOWN + 32], text[32];
    bool        noted = known->unknown_count && known->unknown[known->unknown_count - 1] == (int64_t)row;
    if ((value >= 0 && value < known->field->classes && value == (double)(int64_t)value) || noted) return LK_OK;
    snprintf(place, sizeof place, "%s: row %zu", label, row);
    snprintf(text, sizeof text, "%.17g", value);
    return lk__labels_refuse(known, (int64_t)row, place, text);
}

lk_status lk__array_check_classes(lk_context *context, const lk__array *a, lk__labels *known)
{
    return visit_numbers(context, a, check_class, known);
}

static lk_status check_i32(void *user, const char *label, size_t row, double value)
{
    if (value >= INT32_MIN && value <= INT32_MAX) return LK_OK;
    return lk__fail(user, LK_EFORMAT,
                    "%s: row %zu has the value %.17g, but the model was trained on i32 values, up to %d", label, row,
                    value, INT32_MAX);
}

lk_status lk__array_check_i32(lk_context *context, const lk__array *a)
{
    return visit_numbers(context, a, check_i32, context);
}

/* State of a survey of labels. */
typedef struct survey {
    lk_context       *context;
    lk__array_labels *labels;
    size_t            negative; /* the first row with one; SIZE_MAX: none */
} survey;

static lk_status survey_label(void *user, const char *label, size_t row, double v)
{
    survey *s = user;
    if (v - v != 0)
        return lk__fail(s->context, LK_EFORMAT, "%s: row %zu has a label that is %s", label, row,
                        v != v ? "NaN" : "infinite");
    if (v > s->labels->largest) s->labels->largest = v;
    if (v < 0 && s->negative == SIZE_MAX) s->negative = row;
    if (v > 9e15 || v < -9e15 || v != (double)(int64_t)v) s->labels->whole = false;
    return LK_OK;
}

lk_status lk__array_survey_labels(lk_context *context, const lk__array *a, bool regression, lk__array_labels *labels)
{
    survey s = {context, labels, SIZE_MAX};
    char   label[LK__ARRAY_SHOWN];
    *labels = (lk__array_labels){.whole = true};
    lk_status status = visit_numbers(context, a, survey_label, &s);
    if (status == LK_OK && labels->whole && s.negative != SIZE_MAX && !regression)
        status = lk__fail(context, LK_EFORMAT,
                          "%s: row %zu has a negative label: class numbers start at 0; for regression use --loss mse",
                          lk__array_show(a, label), s.negative);
    return status;
}
