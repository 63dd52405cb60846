/* npy.c - NumPy's .npy format (numpy.lib.format): a magic, a version, a Python dictionary with type, order and shape,
 * the data. */
#include "data/array/array.h"
#include "data/format.h"

#include <string.h>

/* A position in the text of the header. */
typedef struct text {
    const char *at, *end;
} text;

static void skip_spaces(text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t' || *t->at == '\r')) t->at++;
}

static bool take_char(text *t, char c)
{
    skip_spaces(t);
    if (t->at == t->end || *t->at != c) return false;
    t->at++;
    return true;
}

/* A string in single or double quotes without escapes: names of keys and types have none. */
static bool take_string(text *t, text *out)
{
    skip_spaces(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"')) return false;
    char quote = *t->at++;
    out->at = t->at;
    while (t->at < t->end && *t->at != quote && *t->at != '\\') t->at++;
    if (t->at == t->end || *t->at != quote) return false;
    out->end = t->at++;
    return true;
}

static bool equals(text t, const char *word)
{
    return (size_t)(t.end - t.at) == strlen(word) && memcmp(t.at, word, strlen(word)) == 0;
}

static bool take_word(text *t, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->at) < length || memcmp(t->at, word, length) != 0) return false;
    t->at += length;
    return true;
}

/* (), (3,), (3, 4); Python 2 wrote 3L. Axes beyond LK_MAX_RANK are counted only. */
static bool take_shape(text *t, lk__array *a)
{
    enum { NUMPY_MAX_RANK = 64 };
    if (!take_char(t, '(')) return false;
    for (a->rank = 0;;) {
        if (take_char(t, ')')) return true;
        uint64_t n = 0;
        skip_spaces(t);
        if (t->at == t->end || *t->at < '0' || *t->at > '9' || a->rank == NUMPY_MAX_RANK) return false;
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
            n = n * 10 + (uint64_t)(*t->at - '0');
            if (n > INT64_MAX / 16) return false;
        }
        if (t->at < t->end && *t->at == 'L') t->at++;
        if (a->rank < LK_MAX_RANK) a->dims[a->rank] = (int64_t)n;
        a->rank++;
        if (!take_char(t, ',')) return take_char(t, ')');
    }
}

typedef struct header {
    text descr;
    bool structured, fortran, has_descr, has_order, has_shape;
} header;

static bool parse_dictionary(text *t, header *h, lk__array *a)
{
    text key;
    if (!take_char(t, '{')) return false;
    for (;;) {
        if (take_char(t, '}')) break;
        if (!take_string(t, &key) || !take_char(t, ':')) return false;
        if (equals(key, "descr") && !h->has_descr) {
            h->has_descr = true;
            skip_spaces(t);
            /* fields with types of their own: refused, so its end is not needed */
            if (t->at < t->end && *t->at == '[') {
                h->structured = true;
                return true;
            }
            if (!take_string(t, &h->descr)) return false;
        } else if (equals(key, "fortran_order") && !h->has_order) {
            h->has_order = true;
            h->fortran = take_word(t, "True");
            if (!h->fortran && !take_word(t, "False")) return false;
        } else if (equals(key, "shape") && !h->has_shape) {
            h->has_shape = true;
            if (!take_shape(t, a)) return false;
        } else {
            return false;
        }
        if (take_char(t, ',')) continue;
        if (!take_char(t, '}')) return false;
        break;
    }
    skip_spaces(t);
    return t->at == t->end && h->has_descr && h->has_order && h->has_shape;
}

static lk_status refuse_type(lk_context *context, const char *label, text descr, bool structured)
{
    char        kind = structured || descr.end - descr.at < 2 ? 'V' : descr.at[1];
    const char *what = kind == 'O'                  ? "Python objects"
                       : kind == 'U' || kind == 'S' ? "strings"
                       : kind == 'V'                ? "structured records"
                       : kind == 'c'                ? "complex numbers"
                       : kind == 'M' || kind == 'm' ? "dates or times"
                                                    : "numbers of a type that is not supported";
    const char *advice = kind == 'U' || kind == 'S'
                             ? "save class numbers instead: np.unique(y, return_inverse=True)[1]"
                             : "save float32 numbers instead: np.save(file, x.astype(np.float32), allow_pickle=False)";
    int         length = structured ? 0 : (int)(descr.end - descr.at);
    return lk__fail(context, LK_EFORMAT, "%s holds %s%s%.*s%s; %s", label, what, length ? " ('" : "",
                    length < 16 ? length : 16, length ? descr.at : "", length ? "')" : "", advice);
}

static lk_status find_type(lk_context *context, const char *label, text descr, lk__array_type *type)
{
    size_t length = (size_t)(descr.end - descr.at);
    for (int i = 0; length == 3 && i < LK__ARRAY_TYPE_COUNT; i++) {
        const char *code = lk__array_type_numpy((lk__array_type)i);
        if (!code || memcmp(descr.at + 1, code, 2) != 0) continue;
        *type = (lk__array_type)i;
        if (descr.at[0] == '<' || descr.at[0] == '|' || lk__array_type_size(*type) == 1) return LK_OK;
        if (descr.at[0] == '>')
            return lk__fail(context, LK_EFORMAT,
                            "%s is big-endian ('%.3s'): save x.astype(x.dtype.newbyteorder('<')) instead", label,
                            descr.at);
    }
    return refuse_type(context, label, descr, false);
}

lk_status lk__npy_parse(lk_context *context, const lk__array_npy *file, lk__array *a, size_t *begin)
{
    const unsigned char *bytes = file->bytes;
    char                 label[LK__ARRAY_SHOWN];
    header               h = {0};
    size_t               available = file->available, whole = file->whole, wide = 2, length = 0;
    lk__array_show(a, label);
    if (available < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return lk__fail(context, LK_EFORMAT, "%s is not a .npy file: it %s", label,
                        available < 10 ? "has fewer than 10 bytes" : "does not begin with \\x93NUMPY");
    if (bytes[6] < 1 || bytes[6] > 3)
        return lk__fail(context, LK_EFORMAT, "%s has version %d.%d of the .npy format: 1 to 3 are supported", label,
                        bytes[6], bytes[7]);
    if (bytes[6] > 1) wide = 4;
    for (size_t i = 0; i < wide && 8 + i < available; i++) length |= (size_t)bytes[8 + i] << 8 * i;
    if (available < 8 + wide || length > available - 8 - wide)
        return lk__fail(context, LK_EFORMAT, "%s is truncated: its header of %zu bytes is incomplete", label, length);
    *begin = 8 + wide + length;
    text t = {(const char *)bytes + 8 + wide, (const char *)bytes + *begin};
    if (!parse_dictionary(&t, &h, a))
        return lk__fail(context, LK_EFORMAT,
                        "%s: its header is damaged at byte %zu: expected descr, fortran_order and shape", label,
                        (size_t)((const unsigned char *)t.at - bytes));
    if (h.structured) return refuse_type(context, label, h.descr, true);
    lk_status status = find_type(context, label, h.descr, &a->type);
    if (status < 0) return status;
    if (a->rank > LK_MAX_RANK)
        return lk__fail(context, LK_EFORMAT, "%s has %d axes: at most %d are supported", label, a->rank, LK_MAX_RANK);
    if ((status = lk__array_measure(context, a)) < 0) return status;
    int long_axes = 0;
    for (int i = 0; i < a->rank; i++) long_axes += a->dims[i] > 1;
    if (h.fortran && long_axes > 1)
        return lk__fail(context, LK_EFORMAT, "%s is in Fortran order: save np.ascontiguousarray(x) instead", label);
    if (a->size != whole - *begin)
        return lk__fail(context, LK_EFORMAT, "%s %s: its header declares %zu bytes of data, but %zu follow it", label,
                        a->size > whole - *begin ? "is truncated" : "has more bytes than its header declares", a->size,
                        whole - *begin);
    return LK_OK;
}

static lk_status open_array(lk_context *context, const char *path, const char *name, lk__map *map, lk__array *a)
{
    size_t    begin = 0;
    lk_status status = lk__map_open(context, path, map);
    if (status < 0) return status;
    *a = (lk__array){.file = path, .alone = true};
    snprintf(a->name, sizeof a->name, "%s", name);
    if ((status = lk__npy_parse(context, &(lk__array_npy){map->bytes, map->size, map->size}, a, &begin)) < 0)
        return status;
    a->data = map->bytes + begin;
    return LK_OK;
}

static lk_status open_npy(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    char           files[2][LK__PATH];
    const char    *label = request->options->label;
    lk__array      arrays[2];
    lk__array_list list = {.kind = "npy", .arrays = arrays};
    lk_status      status;
    if (label) return lk__fail(context, LK_EINVAL, "npy: the label is the second file: remove --label %s", label);
    if ((status = lk__path_pair(context, "npy:X.npy,Y.npy", request->rest, files)) < 0) return status;
    list.count = files[1][0] ? 2 : 1;
    for (int i = 0; i < list.count && status == LK_OK; i++)
        status = open_array(context, files[i], i ? "y" : "x", &list.maps[i], &arrays[i]);
    if (status == LK_OK) return lk__array_dataset(context, request, &list, dataset);
    for (int i = 0; i < 2; i++) lk__map_close(&list.maps[i]);
    return status;
}

const lk__data_format lk__data_format_npy = {
    .about = {.name = "npy",
              .form = "npy:X.npy,Y.npy",
              .doc = "two NumPy arrays with the same number of rows",
              .options = "holdout unknown-label"},
    .open = open_npy,
};
