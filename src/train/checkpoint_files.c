/* checkpoint_files.c - the files that a caller adds to every checkpoint. They are copied and their digests computed
 * before training, so that a save allocates nothing. */
#include "train/checkpoint.h"

#include "base/hash.h"
#include "train/file.h"

#include <stdio.h>
#include <string.h>

enum { MEMBER = 64 + 6 }; /* bytes of a digest in state.json, besides the name: "NAME":"DIGEST", */

lk_status lk__checkpoint_files_check(lk_context *c, const lk_checkpoint_file *files, int count)
{
    char text[LK__SHOWN];
    if (count < 0 || count > LK__LISTED_FILES || (count && !files))
        return lk__fail(c, LK_EINVAL, "a checkpoint can contain at most %d additional files, not %d", LK__LISTED_FILES,
                        count);
    for (int i = 0; i < count; i++) {
        if (!files[i].name || (files[i].bytes && !files[i].text))
            return lk__fail(c, LK_EINVAL, "additional file %d of the checkpoints has no name or no text", i);
        if (!lk__state_file_name(files[i].name))
            return lk__fail(c, LK_EINVAL,
                            "'%s' is not a valid name for a checkpoint file: expected up to %d letters, digits, '.', "
                            "'_' and '-', not beginning with '.', and not a name that Lockstep uses",
                            lk__shown(files[i].name, text), LK__LISTED_NAME - 1);
        for (int j = 0; j < i; j++)
            if (strcmp(files[i].name, files[j].name) == 0)
                return lk__fail(c, LK_EINVAL, "two additional files of the checkpoints are named '%s'", files[i].name);
    }
    return LK_OK;
}

size_t lk__saver_files_bytes(const lk_checkpoint_file *files, int count)
{
    size_t bytes = (size_t)count * sizeof *files;
    for (int i = 0; i < count; i++) bytes += 2 * (strlen(files[i].name) + 1) + MEMBER + files[i].bytes;
    return bytes;
}

/* Copies bytes to *next and advances it. */
static const char *copy_bytes(char **next, const char *bytes, size_t count)
{
    char *to = *next;
    if (count) memcpy(to, bytes, count);
    *next += count;
    return to;
}

static int put_digest(const lk_checkpoint_file *file, char *out, size_t size)
{
    lk__sha256    sha;
    unsigned char raw[32];
    char          digest[65];
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, file->text, file->bytes);
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, digest);
    return snprintf(out, size, "\"%s\":\"%s\",", file->name, digest);
}

/* One block: the table, the names, the texts, the digests as state.json has them. */
lk_status lk__saver_files(lk__train_saver *s, const lk_checkpoint_file *files, int count)
{
    if (!count) return LK_OK;
    s->files_memory = lk__saver_files_bytes(files, count);
    if (!(s->files = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->files_memory))) return LK_ENOMEM;
    char *next = (char *)(s->files + count), *end = (char *)s->files + s->files_memory;
    s->files_count = count;
    for (int i = 0; i < count; i++) {
        s->files[i] = (lk_checkpoint_file){.bytes = files[i].bytes};
        s->files[i].name = copy_bytes(&next, files[i].name, strlen(files[i].name) + 1);
        s->files[i].text = copy_bytes(&next, files[i].text, files[i].bytes);
    }
    s->digests_text = next;
    for (int i = 0; i < count; i++) next += put_digest(&s->files[i], next, (size_t)(end - next));
    s->digests_bytes = (size_t)(next - s->digests_text);
    return LK_OK;
}

lk_status lk__saver_write_files(const lk__train_saver *s, const char *directory)
{
    char      path[PATH_MAX];
    lk_status status = LK_OK;
    for (int i = 0; i < s->files_count && status >= 0; i++) {
        lk__file file;
        if ((status = lk__checkpoint_join(s->context, path, directory, s->files[i].name)) < 0 ||
            (status = lk__file_create(&file, s->context, path, s->staging, lk__safetensors_staging_bytes())) < 0)
            return status;
        lk__file_write(&file, s->files[i].text, s->files[i].bytes);
        status = lk__file_commit(&file, NULL);
    }
    return status;
}
