/* list.c - which files a data set has: classes are subdirectories, and files are in the order of torchvision's
 * ImageFolder. Links are followed; hidden files and directories are not read. */
#define _GNU_SOURCE
#include "data/folder/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { DEEPEST = 64 }; /* directories below a class */

static lk_status add_text(lk__data_folder_list *l, const char *text, size_t *offset)
{
    size_t    bytes = strlen(text) + 1;
    lk_status status = lk__grow(l->context, (void **)&l->text, &l->text_capacity, l->text_bytes + bytes, 1);
    if (status < 0) return status;
    *offset = l->text_bytes;
    memcpy(l->text + l->text_bytes, text, bytes);
    l->text_bytes += bytes;
    return LK_OK;
}

static bool is_image_name(const char *name)
{
    static const char *const known[] = {".png", ".jpg", ".jpeg"};
    const char              *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof known / sizeof *known; i++)
        if (strcasecmp(dot, known[i]) == 0) return true;
    return false;
}

static lk_status add_file(lk__data_folder_list *l, const char *path, size_t directory, const struct stat *about,
                          int32_t label)
{
    lk__data_folder_file file = {.directory = directory, .label = label};
    lk_status            status = add_text(l, path, &file.path);
    if (status >= 0) status = lk__grow(l->context, (void **)&l->files, &l->capacity, l->count + 1, sizeof file);
    if (status < 0) return status;
    file.bytes = about->st_size;
    file.changed = (int64_t)about->st_mtim.tv_sec * 1000000000 + about->st_mtim.tv_nsec;
    l->files[l->count++] = file;
    return LK_OK;
}

/* A directory that is being read, and those that it is in: a link to one of them would never end. */
typedef struct level {
    const struct level *above;
    dev_t               device;
    ino_t               inode;
    int                 depth;
} level;

static lk_status walk(lk__data_folder_list *l, char path[LK__PATH], const level *above, int32_t label);

static lk_status visit(lk__data_folder_list *l, char path[LK__PATH], size_t directory, const level *at, int32_t label)
{
    struct stat about;
    bool        image = l->any_name || is_image_name(path + directory + 1);
    if (stat(path, &about) != 0) { /* a link to nothing, perhaps: reading the image reports it */
        about = (struct stat){.st_mode = S_IFREG};
        if (!image) return LK_OK;
    }
    if (S_ISDIR(about.st_mode)) return walk(l, path, at, label);
    if (image && S_ISREG(about.st_mode)) return add_file(l, path, directory, &about, label);
    l->others++;
    return LK_OK;
}

static lk_status walk(lk__data_folder_list *l, char path[LK__PATH], const level *above, int32_t label)
{
    struct stat    about;
    struct dirent *entry;
    lk_status      status = LK_OK;
    size_t         length = strlen(path);
    DIR           *directory = opendir(path);
    if (!directory || stat(path, &about) != 0) {
        if (directory) closedir(directory);
        return lk__fail(l->context, LK_EIO, "%s: cannot read the directory: %s", path, strerror(errno));
    }
    level at = {above, about.st_dev, about.st_ino, above ? above->depth + 1 : 0};
    for (const level *a = above; a && status == LK_OK; a = a->above)
        if ((a->device == at.device && a->inode == at.inode) || at.depth > DEEPEST)
            status = lk__fail(l->context, LK_EINVAL,
                              "%s: a link to one of its parent directories, or more than %d directories deep", path,
                              DEEPEST);
    while (status == LK_OK && (errno = 0, entry = readdir(directory))) {
        if (entry->d_name[0] == '.') continue;
        size_t name = strlen(entry->d_name);
        if (length + 1 + name >= LK__PATH) {
            status = lk__fail(l->context, LK_EINVAL, "%s/%s: the path is longer than %d bytes", path, entry->d_name,
                              LK__PATH);
            break;
        }
        path[length] = '/';
        memcpy(path + length + 1, entry->d_name, name + 1);
        status = visit(l, path, length, &at, label);
        path[length] = 0;
    }
    if (status == LK_OK && errno) status = lk__fail(l->context, LK_EIO, "%s: cannot read: %s", path, strerror(errno));
    closedir(directory);
    return status;
}

static int compare_bytes(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* Files of a directory together, directories in the order of their paths. */
static int compare_files(const void *left, const void *right, void *text)
{
    const lk__data_folder_file *a = left, *b = right;
    const char                 *a_path = (const char *)text + a->path, *b_path = (const char *)text + b->path;
    int                         order = compare_bytes(a_path, a->directory, b_path, b->directory);
    return order ? order : strcmp(a_path + a->directory, b_path + b->directory);
}

lk_status lk__data_folder_list_directory(lk__data_folder_list *l, const char *root, const char *name, size_t label)
{
    char   path[LK__PATH];
    size_t first = l->count;
    if (!lk__path(path, "%s/%s", root, name))
        return lk__fail(l->context, LK_EINVAL, "%s/%s: the path is longer than %d bytes", root, name, LK__PATH);
    if (!lk__path_exists(path)) return LK_OK;
    lk_status status = walk(l, path, NULL, (int32_t)label);
    if (l->count > first) qsort_r(l->files + first, l->count - first, sizeof *l->files, compare_files, l->text);
    return status;
}

lk_status lk__data_folder_list_class(lk__data_folder_list *l, const char *root, size_t label)
{
    char name[LK__PATH]; /* the list's text moves when it grows */
    if (!lk__path(name, "%s", lk__data_folder_class(l, label)))
        return lk__fail(l->context, LK_EINVAL, "%s: the path of a class directory is longer than %d bytes", root,
                        LK__PATH - 1);
    return lk__data_folder_list_directory(l, root, name, label);
}

lk_status lk__data_folder_list_path(lk__data_folder_list *l, const char *path)
{
    char        text[LK__PATH];
    struct stat about;
    size_t      first = l->count;
    const char *slash = strrchr(path, '/');
    if (!lk__path(text, "%s", path))
        return lk__fail(l->context, LK_EINVAL, "%.64s…: the path is longer than %d bytes", path, LK__PATH);
    if (stat(path, &about) != 0) return lk__fail(l->context, LK_ENOENT, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISDIR(about.st_mode)) return add_file(l, path, slash ? (size_t)(slash - path) : 0, &about, 0);
    for (size_t length = strlen(text); length > 1 && text[length - 1] == '/';) text[--length] = 0;
    lk_status status = walk(l, text, NULL, 0);
    if (l->count > first) qsort_r(l->files + first, l->count - first, sizeof *l->files, compare_files, l->text);
    return status;
}

static int compare_classes(const void *left, const void *right, void *text)
{
    return strcmp((const char *)text + *(const size_t *)left, (const char *)text + *(const size_t *)right);
}

lk_status lk__data_folder_list_classes(lk__data_folder_list *l, const char *root)
{
    lk_status      status = LK_OK;
    struct dirent *entry;
    DIR           *directory = opendir(root);
    if (!directory) return lk__fail(l->context, LK_EIO, "%s: cannot read the directory: %s", root, strerror(errno));
    while (status == LK_OK && (entry = readdir(directory))) {
        struct stat about;
        char        path[LK__PATH];
        if (entry->d_name[0] == '.' || !lk__path(path, "%s/%s", root, entry->d_name) || stat(path, &about) != 0)
            continue;
        if (!S_ISDIR(about.st_mode)) {
            l->others++;
            continue;
        }
        status =
            lk__grow(l->context, (void **)&l->classes, &l->classes_capacity, l->classes_count + 1, sizeof *l->classes);
        if (status == LK_OK) status = add_text(l, entry->d_name, &l->classes[l->classes_count]);
        if (status == LK_OK) l->classes_count++;
    }
    closedir(directory);
    if (l->classes_count) qsort_r(l->classes, l->classes_count, sizeof *l->classes, compare_classes, l->text);
    return status;
}

void lk__data_folder_list_drop(lk__data_folder_list *l,
                               bool (*drop)(const lk__data_folder_list *list, size_t i, const void *user),
                               const void *user)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (drop(l, i, user))
            lk__strfree(l->context, l->files[i].broken);
        else
            l->files[kept++] = l->files[i];
    }
    l->count = kept;
}

void lk__data_folder_list_free(lk__data_folder_list *l)
{
    for (size_t i = 0; i < l->count; i++) lk__strfree(l->context, l->files[i].broken);
    lk__free(l->context, LK_MEMORY_OTHER, l->files, l->capacity * sizeof *l->files);
    lk__free(l->context, LK_MEMORY_OTHER, l->text, l->text_capacity);
    lk__free(l->context, LK_MEMORY_OTHER, l->classes, l->classes_capacity * sizeof *l->classes);
    *l = (lk__data_folder_list){.context = l->context};
}
