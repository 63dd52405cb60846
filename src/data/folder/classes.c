/* classes.c - the classes of a folder: its subdirectories, or those that a model was trained on; and their files. A
 * subdirectory that is not one of these classes is left out, or refused by an error that names it. */
#include "data/folder/folder.h"
#include "data/labels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lk_status lk__data_folder_find_classes(lk__data_folder *f, const char *train, const lk_open_options *o)
{
    const lk_field *label = lk__expected_field(o, "label");
    if (label && label->rank == 0 && label->classes > 0) {
        f->expected = label;
        return LK_OK;
    }
    lk_status status = lk__data_folder_list_classes(&f->list, train);
    if (status < 0) return status;
    if (f->list.classes_count == 0)
        return lk__fail(f->context, LK_EINVAL, "folder:%s: no subdirectories; each class needs one, with its images",
                        train);
    if (f->list.classes_count == 1)
        return lk__fail(f->context, LK_EINVAL, "folder:%s: it has only one class (%s); expected at least two", train,
                        lk__data_folder_class(&f->list, 0));
    return LK_OK;
}

/* The classes as a field, for lk__labels. names has room for all. */
static lk_field describe_classes(const lk__data_folder *f, const char **names)
{
    if (f->expected) return *f->expected;
    for (size_t i = 0; i < f->list.classes_count; i++) names[i] = lk__data_folder_class(&f->list, i);
    return (lk_field){.classes = (int)f->list.classes_count, .class_names = names};
}

/* A directory is named as its class; where classes have no names, as its number. */
static int32_t find_class(const lk__labels *known, const char *name)
{
    char *end;
    int32_t class = lk__labels_find(known, name, strlen(name));
    if (class >= 0 || name[0] < '0' || name[0] > '9') return class;
    double number = (double)strtoll(name, &end, 10);
    return *end ? -1 : lk__labels_find_number(known, number);
}

/* The files of a directory that is none of the classes are refused, or counted. */
static lk_status refuse_directory(lk__data_folder *f, lk__labels *known, const char *name, int64_t *files)
{
    lk__data_folder_list list = {.context = f->context};
    char                 place[LK__PATH + 16];
    snprintf(place, sizeof place, "folder:%s", f->root);
    lk_status status = lk__labels_refuse(known, 0, place, name);
    if (status == LK_EFORMAT) return LK_EINVAL;
    if (status == LK_OK) status = lk__data_folder_list_directory(&list, f->root, name, 0);
    *files += (int64_t)list.count;
    lk__data_folder_list_free(&list);
    return status;
}

static lk_status list_directories(lk__data_folder *f, const lk__data_folder_list *found, lk__labels *known, bool every,
                                  bool quiet)
{
    int64_t   left_out = 0;
    lk_status status = LK_OK;
    for (size_t i = 0; i < found->classes_count && status == LK_OK; i++) {
        const char *name = lk__data_folder_class(found, i);
        size_t      before = f->list.count;
        int32_t class = find_class(known, name);
        if (class < 0) {
            status = refuse_directory(f, known, name, &left_out);
            continue;
        }
        status = lk__data_folder_list_directory(&f->list, f->root, name, (size_t) class);
        if (status == LK_OK && every && f->list.count == before)
            status = lk__fail(f->context, LK_EINVAL, "folder:%s: class %s has no PNG or JPEG files", f->root, name);
    }
    if (status == LK_OK && known->unknown_count && !quiet)
        lk__log(
            f->context, LK_LOG_INFO,
            "folder:%s: %lld images in %zu subdirector%s that the training data does not have ('%s'%s) are left out",
            f->root, (long long)left_out, known->unknown_count, known->unknown_count == 1 ? "y" : "ies", known->first,
            known->unknown_count > 1 ? ", …" : "");
    return status;
}

lk_status lk__data_folder_list_files(lk__data_folder *f, const lk_open_options *o, bool every, bool quiet)
{
    lk__data_folder_list found = {.context = f->context};
    lk__labels           known = {.context = f->context};
    size_t               names_bytes = f->list.classes_count * sizeof(char *);
    const char         **names = names_bytes ? lk__alloc(f->context, LK_MEMORY_OTHER, names_bytes) : NULL;
    lk_field             field;
    lk_status            status = names_bytes && !names ? LK_ENOMEM : lk__data_folder_list_classes(&found, f->root);
    if (status == LK_OK) {
        field = describe_classes(f, names);
        f->list.others = found.others; /* files beside the subdirectories */
        status = lk__labels_begin(f->context, &field, o->skip_unknown, &known);
    }
    lk__free(f->context, LK_MEMORY_OTHER, names, names_bytes); /* known has copies */
    if (status == LK_OK) status = list_directories(f, &found, &known, every, quiet);
    if (status == LK_OK && found.classes_count == 0)
        status = lk__fail(f->context, LK_EINVAL,
                          "folder:%s: no subdirectories; each class needs one, with its images. To classify images "
                          "without classes, pass them to `lockstep predict`",
                          f->root);
    if (status == LK_OK && f->list.count == 0)
        status = lk__fail(f->context, LK_EINVAL, "folder:%s: it has no PNG or JPEG files%s", f->root,
                          known.unknown_count ? " of a known class" : "");
    lk__labels_free(&known);
    lk__data_folder_list_free(&found);
    return status;
}
