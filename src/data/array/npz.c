/* npz.c - NumPy's .npz files: a zip of .npy files, as np.savez and np.savez_compressed write them. */
#include "data/array/array.h"
#include "data/array/zip.h"
#include "data/format.h"

#include <string.h>

enum { HEADER = 65536 }; /* bytes inflated to read a header, which has about 128; longer ones are refused */

/* The name of the array; false: the member is no .npy file, or its name is too long. */
static bool take_name(const lk__zip_member *m, char name[LK__ARRAY_NAME])
{
    size_t length = m->name_length;
    if (length <= 4 || memcmp(m->name + length - 4, ".npy", 4) != 0 || length - 4 >= LK__ARRAY_NAME) return false;
    if (memchr(m->name, 0, length)) return false;
    memcpy(name, m->name, length - 4);
    name[length - 4] = 0;
    return true;
}

/* Inflates the beginning of the member and reads the header in it. */
static lk_status parse_deflated(lk_context *context, const lk__zip_member *m, lk__array *a)
{
    char            label[LK__ARRAY_SHOWN];
    lk__data_stream stream;
    size_t          got = 0, begin = 0, whole = (size_t)m->size;
    unsigned char  *first = lk__alloc(context, LK_MEMORY_DATA, HEADER);
    if (!first) return LK_ENOMEM;
    lk_status status = lk__stream_deflate(context, lk__array_show(a, label), m->data, (size_t)m->stored, &stream);
    if (status == LK_OK) status = lk__stream_read(&stream, first, whole < HEADER ? whole : HEADER, &got);
    /* Nothing is allocated for a size that the compressed bytes cannot give. */
    if (status == LK_OK && m->size > lk__stream_limit(&stream))
        status = lk__fail(context, LK_EFORMAT, "%s is damaged: %llu bytes cannot inflate to %llu", label,
                          (unsigned long long)m->stored, (unsigned long long)m->size);
    if (status == LK_OK) status = lk__npy_parse(context, &(lk__array_npy){first, got, whole}, a, &begin);
    lk__stream_close(&stream);
    lk__free(context, LK_MEMORY_DATA, first, HEADER);
    a->data = m->data;
    a->deflated = true;
    a->stored = (size_t)m->stored;
    a->skip = begin;
    a->crc = m->crc;
    return status;
}

static lk_status parse_stored(lk_context *context, const lk__zip_member *m, bool probe, lk__array *a)
{
    char      label[LK__ARRAY_SHOWN];
    size_t    begin = 0;
    lk_status status = lk__npy_parse(context, &(lk__array_npy){m->data, (size_t)m->size, (size_t)m->size}, a, &begin);
    if (status < 0) return status;
    a->data = m->data + begin;
    if (probe) return LK_OK;
    uint32_t crc = (uint32_t)crc32_z(0, m->data, (size_t)m->size);
    if (crc != m->crc)
        return lk__fail(context, LK_EFORMAT, "%s is damaged: checksum mismatch (%08x, expected %08x)",
                        lk__array_show(a, label), crc, m->crc);
    return LK_OK;
}

static lk_status read_members(lk_context *context, const lk__data_request *request, const lk__map *map,
                              lk__array *arrays, int *count)
{
    const char    *label = request->rest;
    lk__zip        zip;
    lk__zip_member m;
    lk_status      status = lk__zip_open(context, label, map, &zip);
    while (status == LK_OK && (status = lk__zip_next(&zip, &m)) == LK_OK) {
        if (*count == LK__ARRAY_MOST)
            return lk__fail(context, LK_EFORMAT, "%s has more than %d arrays", label, LK__ARRAY_MOST);
        lk__array *a = &arrays[(*count)++];
        *a = (lk__array){.file = label};
        if (!take_name(&m, a->name))
            return lk__fail(
                context, LK_EFORMAT,
                "%s is not a .npz file: it holds '%.*s', which is not NAME.npy with a name shorter than %d bytes",
                label, m.name_length < 80 ? (int)m.name_length : 80, m.name, LK__ARRAY_NAME);
        for (int i = 0; i < *count - 1; i++)
            if (strcmp(arrays[i].name, a->name) == 0)
                return lk__fail(context, LK_EFORMAT, "%s has two arrays named '%s'", label, a->name);
        status = m.deflated ? parse_deflated(context, &m, a) : parse_stored(context, &m, request->probe, a);
    }
    if (status < 0) return status;
    return *count ? LK_OK : lk__fail(context, LK_EFORMAT, "%s holds no arrays", label);
}

lk_status lk__npz_dataset(lk_context *context, const lk__data_request *request, lk__map map, lk_dataset **dataset)
{
    size_t         bytes = LK__ARRAY_MOST * sizeof(lk__array);
    lk__array     *arrays = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    lk__array_list list = {.kind = "npz", .arrays = arrays, .maps = {map}};
    *dataset = NULL;
    lk_status status = arrays ? read_members(context, request, &map, arrays, &list.count) : LK_ENOMEM;
    if (status == LK_OK)
        status = lk__array_dataset(context, request, &list, dataset);
    else
        lk__map_close(&map);
    lk__free(context, LK_MEMORY_OTHER, arrays, bytes);
    return status;
}

static lk_status open_npz(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    lk__map map;
    if (!request->rest) return lk__fail(context, LK_EINVAL, "npz needs a file: npz:FILE");
    lk_status status = lk__map_open(context, request->rest, &map);
    return status < 0 ? status : lk__npz_dataset(context, request, map, dataset);
}

const lk__data_format lk__data_format_npz = {
    .about = {.name = "npz",
              .form = "npz:FILE",
              .doc = "NumPy arrays by name",
              .options = "label holdout unknown-label"},
    .open = open_npz,
};
