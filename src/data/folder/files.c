/* files.c - a data set of single image files, without classes: what predict reads. */
#include "base/config.h"
#include "data/folder/folder.h"

static lk_status list_paths(lk__data_folder *f, const char *const *paths, int count)
{
    for (int i = 0; i < count; i++) {
        size_t    before = f->list.count;
        lk_status status = lk__data_folder_list_path(&f->list, paths[i]);
        if (status < 0) return status;
        if (f->list.count == before)
            return lk__fail(f->context, LK_EINVAL, "%s: the directory has no PNG or JPEG files", paths[i]);
    }
    return LK_OK;
}

static lk_status make_dataset(lk__data_folder *f, lk_dataset **dataset)
{
    lk_field  image = {.name = "image",
                       .dtype = LK_U8,
                       .rank = 3,
                       .dims = {f->decoder.target.channels, f->decoder.height, f->decoder.width}};
    lk_status status =
        lk__dataset_make(f->context, &(lk__dataset_about){"images", (int64_t)f->list.count, &image, 1}, dataset);
    if (status >= 0) lk__data_folder_attach(f, *dataset, true);
    return status;
}

lk_status lk_dataset_images(lk_context *context, const char *const *paths, int count, const lk_open_options *options,
                            lk_dataset **dataset)
{
    lk_open_options  own = LK_OPEN_OPTIONS_INIT;
    lk__data_folder *f = NULL;
    *dataset = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_open_options, options, &own);
    if (status < 0) return status;
    own.cache = NULL; /* it belongs to a directory */
    own.regression = false;
    own.holdout = 0;
    if (count < 1) return lk__fail(context, LK_EINVAL, "a data set of images needs at least one file");
    status = lk__data_folder_create(context, &own, "images", &f);
    if (status < 0) return status;
    if ((status = list_paths(f, paths, count)) < 0 || (status = lk__data_folder_prepare(f, &own, false)) < 0 ||
        (status = make_dataset(f, dataset)) < 0)
        lk__data_folder_free(f);
    return status;
}
