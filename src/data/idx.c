/* idx.c - IDX files (yann.lecun.com/exdb/mnist): a type, the lengths of the axes in big-endian, then the bytes. */
#include "data/format.h"
#include "data/labels.h"
#include "data/subset.h"

#include <stdio.h>
#include <string.h>

void lk__idx_free(lk_context *context, lk__data_idx *idx)
{
    lk__free(context, LK_MEMORY_DATA, idx->bytes, idx->size);
    *idx = (lk__data_idx){0};
}

/* Reads exactly `bytes`, or fails with LK_EFORMAT. */
static lk_status read_exactly(lk__data_stream *s, void *out, size_t bytes, const char *what)
{
    size_t    got = 0;
    lk_status status = lk__stream_read(s, out, bytes, &got);
    if (status < 0) return status;
    if (got == bytes) return LK_OK;
    if (got == 0 && s->size == 0) return lk__fail(s->context, LK_EFORMAT, "%s is empty", s->name);
    return lk__fail(s->context, LK_EFORMAT, "%s is truncated: it has %zu of %zu bytes of its %s%s", s->name, got, bytes,
                    what, s->gzip ? " (decompressed)" : "");
}

static lk_status read_header(lk__data_stream *s, lk__data_idx *idx)
{
    unsigned char magic[4], length[4];
    lk_status     status = read_exactly(s, magic, sizeof magic, "header");
    if (status < 0) return status;
    if (magic[0] != 0 || magic[1] != 0)
        return lk__fail(s->context, LK_EFORMAT,
                        "%s is not an IDX file: it begins with %02x %02x %02x %02x, not with 00 00", s->name, magic[0],
                        magic[1], magic[2], magic[3]);
    if (magic[2] != 0x08)
        return lk__fail(s->context, LK_EFORMAT,
                        "%s: IDX values of type 0x%02x at byte 2: only unsigned bytes (0x08) are supported", s->name,
                        magic[2]);
    if (magic[3] < 1 || magic[3] > LK__IDX_RANK)
        return lk__fail(s->context, LK_EFORMAT, "%s: %d axes at byte 3: 1 to %d are supported", s->name, magic[3],
                        LK__IDX_RANK);
    idx->rank = magic[3];
    uint64_t total = 1, limit = lk__stream_limit(s);
    for (int i = 0; i < idx->rank; i++) {
        if ((status = read_exactly(s, length, sizeof length, "header")) < 0) return status;
        uint32_t n = (uint32_t)length[0] << 24 | (uint32_t)length[1] << 16 | (uint32_t)length[2] << 8 | length[3];
        if (n == 0)
            return lk__fail(s->context, LK_EFORMAT, "%s: axis %d, at byte %d, has length 0", s->name, i, 4 + 4 * i);
        idx->dims[i] = n;
        if (__builtin_mul_overflow(total, (uint64_t)n, &total) || total > limit)
            return lk__fail(
                s->context, LK_EFORMAT,
                "%s is truncated or damaged: its header declares more bytes (axis %d, at byte %d, has length %u) than "
                "a file of %llu bytes can hold",
                s->name, i, 4 + 4 * i, n, (unsigned long long)s->size);
    }
    idx->size = (size_t)total;
    return LK_OK;
}

lk_status lk__idx_read(lk__data_stream *s, lk__data_idx *idx)
{
    *idx = (lk__data_idx){0};
    lk_status status = read_header(s, idx);
    if (status < 0) return status;
    idx->bytes = lk__alloc(s->context, LK_MEMORY_DATA, idx->size);
    if (!idx->bytes) return LK_ENOMEM;
    if ((status = read_exactly(s, idx->bytes, idx->size, "data")) < 0) goto fail;
    unsigned char more;
    size_t        got = 0;
    if ((status = lk__stream_read(s, &more, 1, &got)) < 0) goto fail;
    if (got == 0) return LK_OK;
    status = lk__fail(s->context, LK_EFORMAT,
                      "%s has more bytes than its header declares: its data should end before byte %llu%s", s->name,
                      (unsigned long long)(4 + 4 * (size_t)idx->rank + idx->size), s->gzip ? " (decompressed)" : "");
fail:
    lk__idx_free(s->context, idx);
    return status;
}

/* Reads the header alone; the size of a file that is not compressed shows whether it is complete. */
static lk_status probe_idx(lk__data_stream *s, lk__data_idx *idx)
{
    *idx = (lk__data_idx){0};
    lk_status status = read_header(s, idx);
    uint64_t  all = 4 + 4 * (uint64_t)idx->rank + idx->size;
    if (status < 0 || s->gzip || s->size == all) return status;
    return lk__fail(s->context, LK_EFORMAT,
                    "%s has %llu bytes, but its header declares %llu: it is truncated or damaged", s->name,
                    (unsigned long long)s->size, (unsigned long long)all);
}

/* known: the classes of training, where there are any. */
static lk_status convert_labels(lk__data_stream *s, const lk__data_idx *labels, int classes, lk__labels *known,
                                int32_t *out)
{
    const char *file = s->name;
    for (int64_t i = 0; i < labels->dims[0]; i++) {
        char place[LK__PATH + 32], text[8];
        if (labels->bytes[i] >= classes && known) {
            snprintf(place, sizeof place, "%s: sample %lld", file, (long long)i);
            snprintf(text, sizeof text, "%d", labels->bytes[i]);
            lk_status status = lk__labels_refuse(known, i, place, text);
            if (status < 0) return status;
        } else if (labels->bytes[i] >= classes)
            return lk__fail(s->context, LK_EFORMAT,
                            "%s: label %d of sample %lld, at byte %lld, is invalid: labels are 0 to %d", file,
                            labels->bytes[i], (long long)i, (long long)(8 + i), classes - 1);
        out[i] = labels->bytes[i];
    }
    return LK_OK;
}

/* Reads the labels, and the images too unless it probes; they must fit each other. */
static lk_status read_both(lk__data_stream *image_stream, lk__data_stream *label_stream, bool probe,
                           lk__data_idx *images, lk__data_idx *labels)
{
    lk_context *context = image_stream->context;
    lk_status   status = lk__idx_read(label_stream, labels); /* the smaller file first */
    if (status < 0) return status;
    if (labels->rank != 1)
        return lk__fail(context, LK_EFORMAT, "%s has %d axes: labels must have one. Are images and labels swapped?",
                        label_stream->name, labels->rank);
    if ((status = probe ? probe_idx(image_stream, images) : lk__idx_read(image_stream, images)) < 0) return status;
    if (images->rank < 2)
        return lk__fail(context, LK_EFORMAT,
                        "%s has one axis: images must have at least two. Are images and labels swapped?",
                        image_stream->name);
    if (images->dims[0] != labels->dims[0])
        return lk__fail(context, LK_EFORMAT, "%s has %lld samples, but %s has %lld", image_stream->name,
                        (long long)images->dims[0], label_stream->name, (long long)labels->dims[0]);
    return LK_OK;
}

static int count_classes(const lk__data_idx *labels)
{
    int classes = 0;
    for (int64_t i = 0; i < labels->dims[0]; i++)
        if (labels->bytes[i] >= classes) classes = labels->bytes[i] + 1;
    return classes;
}

static lk_status make_dataset(lk_context *context, const lk__data_idx_config *config, const lk__data_idx *images,
                              int classes, lk_dataset **dataset)
{
    /* (count, height, width) has one channel, which IDX does not store. */
    int64_t dims[LK__IDX_RANK] = {1};
    int     grey = images->rank == 3;
    for (int i = 1; i < images->rank; i++) dims[i - 1 + grey] = images->dims[i];
    return lk__dataset_make_labelled(context,
                                     &(lk__dataset_labelled){.name = config->name,
                                                             .count = images->dims[0],
                                                             .rank = images->rank - 1 + grey,
                                                             .dims = dims,
                                                             .dtype = LK_U8,
                                                             .classes = classes,
                                                             .class_names = config->class_names},
                                     dataset);
}

lk_status lk__idx_dataset(lk_context *context, const lk__data_idx_config *config, lk__data_stream *image_stream,
                          lk__data_stream *label_stream, lk_dataset **dataset)
{
    lk__data_idx images = {0}, labels = {0};
    lk_dataset  *d = NULL;
    *dataset = NULL;
    lk_status status = read_both(image_stream, label_stream, config->probe, &images, &labels);
    if (status < 0) goto fail;
    int classes = config->classes == 0 ? count_classes(&labels) : config->classes;
    if ((status = make_dataset(context, config, &images, classes, &d)) < 0) goto fail;
    d->owned[0] = images.bytes; /* ownership moves to d */
    d->owned_bytes[0] = images.bytes ? images.size : 0;
    d->columns[0] = images.bytes;
    images.bytes = NULL;
    int32_t *out = lk__dataset_column(d, 1);
    status = out ? convert_labels(label_stream, &labels, classes, config->known, out) : LK_ENOMEM;
    if (status < 0) goto fail;
    if (config->probe) { /* labels are small, so they were read and checked; they are not kept */
        lk__free(context, LK_MEMORY_DATA, d->owned[1], d->owned_bytes[1]);
        d->columns[1] = d->owned[1] = NULL;
        d->owned_bytes[1] = 0;
    }
    *dataset = d;
    d = NULL;
fail:
    lk__idx_free(context, &images);
    lk__idx_free(context, &labels);
    lk_dataset_free(d);
    return status;
}

bool lk__idx_find(const char *path, char found[LK__PATH])
{
    size_t length = strlen(path);
    if (lk__path(found, "%s", path) && lk__path_exists(found)) return true;
    if (lk__path(found, "%s.gz", path) && lk__path_exists(found)) return true;
    if (length <= 3 || strcmp(path + length - 3, ".gz") != 0) return false;
    return lk__path(found, "%.*s", (int)(length - 3), path) && lk__path_exists(found);
}

lk_status lk__idx_open(lk_context *context, const lk__data_idx_config *config, const char *images, const char *labels,
                       lk_dataset **dataset)
{
    lk__data_stream image_stream = {.context = context, .fd = -1}, label_stream = {.context = context, .fd = -1};
    char            image_path[LK__PATH], label_path[LK__PATH];
    lk_status       status;
    *dataset = NULL;
    bool image_found = lk__idx_find(images, image_path), label_found = lk__idx_find(labels, label_path);
    if (!image_found || !label_found) {
        const char *missing = image_found ? labels : images;
        return lk__fail(context, LK_ENOENT, "%s does not exist, either plain or as .gz", missing);
    }
    if ((status = lk__stream_open(context, image_path, &image_stream)) < 0) goto fail;
    if ((status = lk__stream_open(context, label_path, &label_stream)) < 0) goto fail;
    status = lk__idx_dataset(context, config, &image_stream, &label_stream, dataset);
fail:
    lk__stream_close(&image_stream);
    lk__stream_close(&label_stream);
    return status;
}

static lk_status open_idx(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    static const char      example[] = "idx:IMAGES,LABELS";
    const lk_open_options *options = request->options;
    char                   files[2][LK__PATH];
    lk_dataset            *d = NULL;
    *dataset = NULL;
    lk_status status = lk__path_pair(context, example, request->rest, files);
    if (status < 0) return status;
    if (!files[1][0]) return lk__fail(context, LK_EINVAL, "idx also needs a label file, as in %s", example);
    if (request->split == LK_SPLIT_TEST && options->holdout == 0) return LK_END;
    const lk_field *label = lk__expected_field(options, "label");
    lk__labels      known;
    if (label && (label->rank != 0 || label->classes == 0)) label = NULL;
    status = lk__labels_begin(context, label, options->skip_unknown, &known);
    lk__data_idx_config config = {.name = "idx", .probe = request->probe};
    if (label) config.classes = label->classes, config.class_names = label->class_names, config.known = &known;
    if (status == LK_OK) status = lk__idx_open(context, &config, files[0], files[1], &d);
    if (status == LK_OK) status = lk__labels_drop(&known, files[1], request->probe, d);
    if (status == LK_OK && (status = lk__dataset_hold_out(d, request->split, options->holdout, NULL)) == LK_OK)
        *dataset = d;
    else
        lk_dataset_free(d);
    lk__labels_free(&known);
    return status;
}

lk_status lk_dataset_idx(lk_context *context, const char *images, const char *labels, int classes, lk_dataset **dataset)
{
    *dataset = NULL;
    if (classes < 0 || classes > 256)
        return lk__fail(
            context, LK_EINVAL,
            "an IDX data set cannot have %d classes: expected 1 to 256, or 0, which means the largest label + 1",
            classes);
    return lk__idx_open(context, &(lk__data_idx_config){.name = "idx", .classes = classes}, images, labels, dataset);
}

const lk__data_format lk__data_format_idx = {
    .about = {.name = "idx",
              .form = "idx:IMAGES,LABELS",
              .doc = "IDX files of unsigned bytes, plain or gzip",
              .options = "holdout unknown-label"},
    .open = open_idx,
};
