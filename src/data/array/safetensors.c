/* safetensors.c - data sets from safetensors files. */
#include "data/safetensors.h"
#include "data/array/array.h"
#include "data/format.h"

#include <string.h>

static lk__array_type find_type(const lk__safetensors_tensor *t)
{
    switch (t->dtype) {
#define TYPE_CASE(id, ...) \
    case LK_##id: return t->boolean ? LK__ARRAY_BOOL : LK__ARRAY_##id;
        LK__DTYPE_LIST(TYPE_CASE)
#undef TYPE_CASE
    case LK_DTYPE_COUNT: break;
    }
    return LK__ARRAY_TYPE_COUNT; /* not reached: the reader knows these types alone */
}

static lk_status take_tensors(lk_context *context, const char *path, const lk__safetensors *file, lk__array *arrays,
                              lk__array_list *list)
{
    int *count = &list->count;
    for (size_t i = 0; i < lk__safetensors_count(file); i++) {
        const lk__safetensors_tensor *t = lk__safetensors_at(file, i);
        if (*count == LK__ARRAY_MOST)
            return lk__fail(context, LK_EFORMAT, "%s has more than %d tensors: is it a data set?", path,
                            LK__ARRAY_MOST);
        lk__array *a = &arrays[(*count)++];
        *a = (lk__array){.file = path, .type = find_type(t), .rank = t->rank, .data = list->maps[0].bytes + t->offset};
        if (strlen(t->name) >= sizeof a->name)
            return lk__fail(context, LK_EFORMAT, "%s has a tensor whose name is longer than %zu bytes", path,
                            sizeof a->name - 1);
        snprintf(a->name, sizeof a->name, "%s", t->name);
        memcpy(a->dims, t->dims, sizeof a->dims);
        lk_status status = lk__array_measure(context, a);
        if (status < 0) return status;
    }
    return *count ? LK_OK : lk__fail(context, LK_EFORMAT, "%s holds no tensors", path);
}

static lk_status open_safetensors(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    const char      *path = request->rest;
    lk__safetensors *file = NULL;
    size_t           bytes = LK__ARRAY_MOST * sizeof(lk__array);
    lk__array       *arrays = NULL;
    lk__array_list   list = {.kind = "safetensors"};
    lk__map         *map = &list.maps[0];
    *dataset = NULL;
    if (!path) return lk__fail(context, LK_EINVAL, "safetensors needs a file: safetensors:FILE");
    lk_status status = lk__map_open(context, path, map);
    if (status == LK_OK) status = lk__safetensors_open_memory(context, path, map->bytes, map->size, &file);
    if (status == LK_OK)
        status = (list.arrays = arrays = lk__alloc(context, LK_MEMORY_OTHER, bytes)) ? LK_OK : LK_ENOMEM;
    if (status == LK_OK) status = take_tensors(context, path, file, arrays, &list);
    if (status == LK_OK)
        status = lk__array_dataset(context, request, &list, dataset);
    else
        lk__map_close(map);
    lk__free(context, LK_MEMORY_OTHER, arrays, bytes);
    lk__safetensors_close(file);
    return status;
}

const lk__data_format lk__data_format_safetensors = {
    .about = {.name = "safetensors",
              .form = "safetensors:FILE",
              .doc = "tensors by name",
              .options = "label holdout unknown-label"},
    .open = open_safetensors,
};
