/* checkpoint.c - writes checkpoints: one directory per step, complete or absent, and links to the newest. */
#define _GNU_SOURCE
#include "train/checkpoint.h"

#include "base/directories.h"
#include "train/file.h"
#include "train/load.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double SAVE_LOCK_TIMEOUT = 10; /* seconds that lk_checkpoint_save waits for another save */

/* ---- memory ---- */

static size_t table_entries(const lk_plan *plan)
{
    size_t states = 0, moments = 0;
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        states += 1 + plan->graph->states[i].aliases_count;
        moments += (size_t)plan->states[i].moments;
    }
    return (states > moments ? states : moments) + 1;
}

size_t lk_checkpoint_bytes(const lk_plan *plan)
{
    size_t entries = table_entries(plan);
    return lk__round_up(lk__safetensors_staging_bytes(), LK__ALIGN) +
           lk__round_up(entries * sizeof(lk__safetensors_tensor), LK__ALIGN) + entries * 256;
}

static lk_status keep_algorithms(lk__train_saver *s, const char *lines)
{
    if (!lines) return LK_OK;
    s->algorithms_bytes = lk__state_algorithms(lines, NULL, 0);
    if (s->algorithms_bytes > LK__STATE_ALGORITHMS)
        return lk__fail(s->context, LK_EINVAL,
                        "the program's algorithms need %zu bytes in a checkpoint: at most %d are supported",
                        s->algorithms_bytes, LK__STATE_ALGORITHMS);
    if (!(s->algorithms = lk__alloc(s->context, LK_MEMORY_OTHER, s->algorithms_bytes))) return LK_ENOMEM;
    (void)lk__state_algorithms(lines, s->algorithms, s->algorithms_bytes);
    return LK_OK;
}

lk_status lk__saver_init(lk__train_saver *s, lk_store *store)
{
    size_t entries = table_entries(store->plan);
    *s = (lk__train_saver){.context = store->context, .store = store, .bytes = lk_checkpoint_bytes(store->plan)};
    char *memory = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->bytes);
    if (!memory) return LK_ENOMEM;
    s->staging = memory;
    s->tensors = (void *)(memory + lk__round_up(lk__safetensors_staging_bytes(), LK__ALIGN));
    s->names = (void *)((char *)s->tensors + lk__round_up(entries * sizeof(lk__safetensors_tensor), LK__ALIGN));
    lk__state_writer(s->writer);
    return keep_algorithms(s, store->plan->algorithms);
}

lk_status lk__saver_record(lk__train_saver *s, size_t bytes)
{
    if (bytes > LK__STATE_RECORD)
        return lk__fail(s->context, LK_EINVAL,
                        "options and class names of the run need %zu bytes in a checkpoint: at most %d "
                        "are supported",
                        bytes, LK__STATE_RECORD);
    s->record = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, bytes);
    s->record_bytes = bytes;
    return s->record ? LK_OK : LK_ENOMEM;
}

void lk__saver_free(lk__train_saver *s)
{
    lk__saver_background_free(s);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->staging, s->bytes);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->record, s->record_bytes);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->files, s->files_memory);
    if (s->context) lk__free(s->context, LK_MEMORY_OTHER, s->algorithms, s->algorithms_bytes);
    *s = (lk__train_saver){0};
}

/* ---- writing ---- */

/* A tensor's source is its state's index and part. */
static lk_status read_state(void *store, size_t source, uint64_t first, void *out, size_t bytes)
{
    return lk__store_read_bytes(store, source / LK_STATE_PART_COUNT, (lk_state_part)(source % LK_STATE_PART_COUNT),
                                (size_t)first, out, bytes);
}

static lk__safetensors_tensor tensor_of_state(const lk__train_saver *s, size_t index, lk_state_part part,
                                              const char *name)
{
    lk_state               state = lk_store_at(s->store, index);
    lk__safetensors_tensor t = {.name = name,
                                .dtype = state.dtype,
                                .rank = state.rank,
                                .read = read_state,
                                .user = s->store,
                                .source = index * LK_STATE_PART_COUNT + part};
    memcpy(t.dims, state.dims, sizeof t.dims);
    return t;
}

/* Its metadata is what Hugging Face's libraries ask for: that the tensors are PyTorch's. */
static lk_status write_model(lk__train_saver *s, const char *path, char sha[65])
{
    lk__safetensors_pair format = {"format", "pt"};
    size_t               count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        const char *alias;
        lk_state    state = lk_store_at(s->store, i);
        if (state.not_saved) continue;
        s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, state.name);
        for (size_t j = 0; (alias = lk_store_alias(s->store, i, j)); j++)
            s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, alias);
    }
    return lk__safetensors_write(s->context, path, s->tensors, count, &format, 1, s->staging,
                                 lk__safetensors_staging_bytes(), sha);
}

static lk_status write_optimizer(lk__train_saver *s, const char *path, char sha[65])
{
    size_t count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        lk_state state = lk_store_at(s->store, i);
        for (int m = 0; m < state.moments; m++, count++) {
            int n = snprintf(s->names[count], sizeof s->names[count], "%s.%s", state.name,
                             lk__moment_name(state.moments, m));
            if (n < 0 || (size_t)n >= sizeof s->names[count])
                return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", state.name);
            s->tensors[count] = tensor_of_state(s, i, (lk_state_part)(LK_STATE_MOMENT_0 + m), s->names[count]);
        }
    }
    return lk__safetensors_write(s->context, path, s->tensors, count, NULL, 0, s->staging,
                                 lk__safetensors_staging_bytes(), sha);
}

/* Makes directory/name a link to step/name, by one rename. */
static lk_status link_newest(lk_context *c, const char *directory, const char *step, const char *name)
{
    char link[PATH_MAX], temporary[PATH_MAX], target[PATH_MAX], temporary_name[64];
    snprintf(temporary_name, sizeof temporary_name, ".link.%ld", (long)getpid());
    if (lk__checkpoint_join(c, link, directory, name) < 0 ||
        lk__checkpoint_join(c, temporary, directory, temporary_name) < 0 ||
        lk__checkpoint_join(c, target, step, name) < 0)
        return LK_EINVAL;
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, link) != 0) {
        int error = errno;
        unlink(temporary);
        return lk__fail(c, LK_EIO, "cannot create the link %s: %s", link, strerror(error));
    }
    return LK_OK;
}

/* ---- checks of the directory ---- */

/* True if NAME in the directory is a link that a save made, to step-N/NAME. False with errno 0 if it is something else. */
static bool is_own_link(int directory, const char *name, int64_t *step)
{
    char    target[PATH_MAX];
    ssize_t n = readlinkat(directory, name, target, sizeof target - 1);
    if (n < 0 && errno != EINVAL) return false;
    errno = 0;
    target[n < 0 ? 0 : n] = 0;
    char *slash = strchr(target, '/');
    if (!slash) return false;
    *slash = 0;
    return lk__checkpoint_parse(target, step) && strcmp(slash + 1, name) == 0;
}

static lk_status check_link(lk_context *c, const char *directory, const char *name)
{
    char      path[PATH_MAX];
    int64_t   step;
    lk_status status = lk__checkpoint_join(c, path, directory, name);
    if (status < 0) return status;
    int  fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool allowed = fd < 0 || is_own_link(fd, name, &step) || errno == ENOENT;
    if (fd >= 0) close(fd);
    if (allowed) return LK_OK;
    return lk__fail(c, LK_EINVAL,
                    "%s is not a link that a save made, and saving would replace it; move it, or save into another "
                    "directory",
                    path);
}

static lk_status check_links(lk_context *c, const char *directory, const lk_checkpoint_file *files, int count)
{
    lk_status status = LK_OK;
    for (int i = 0; i < LK__CHECKPOINT_FILES && status >= 0; i++)
        status = check_link(c, directory, lk__checkpoint_files[i]);
    for (int i = 0; i < count && status >= 0; i++) status = check_link(c, directory, files[i].name);
    return status;
}

/* Whether a file of a step belongs to its checkpoint. One that does not exist is no file of the user. */
static bool is_part_of_step(int directory, int64_t step, const char *name)
{
    lk__file_name listed[LK__LISTED_FILES];
    char          step_name[64];
    bool          part = faccessat(directory, name, F_OK, 0) != 0;
    lk__checkpoint_name(step, step_name);
    int    fd = openat(directory, step_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    size_t count = fd < 0 ? 0 : lk__state_list(fd, listed);
    if (fd >= 0) close(fd);
    for (size_t i = 0; i < count && !part; i++) part = strcmp(listed[i], name) == 0;
    return part;
}

/* Removes links to the caller's files of other steps: the checkpoint of `step` does not have them. */
static void remove_other_links(const char *directory, int64_t step)
{
    DIR *stream = opendir(directory);
    if (!stream) return;
    for (struct dirent *entry; (entry = readdir(stream));) {
        int64_t target;
        if (is_own_link(dirfd(stream), entry->d_name, &target) && target != step &&
            is_part_of_step(dirfd(stream), target, entry->d_name))
            (void)unlinkat(dirfd(stream), entry->d_name, 0);
    }
    closedir(stream);
}

/* Replaces path by its parent directory; false for "/" and ".". The parent of a relative path of one component is ".". */
static bool to_parent(char *path)
{
    size_t length = strlen(path);
    if (strcmp(path, "/") == 0 || strcmp(path, ".") == 0) return false;
    while (length > 1 && path[length - 1] == '/') length--;
    while (length > 0 && path[length - 1] != '/') length--;
    while (length > 1 && path[length - 1] == '/') length--;
    if (length == 0) path[length++] = '.';
    path[length] = 0;
    return true;
}

/* Checks that files can be created in the directory, or in the existing directory in which it would be created. */
static lk_status check_writable(lk_context *c, const char *directory)
{
    char        path[PATH_MAX];
    struct stat info;
    size_t      length = strlen(directory);
    if (length == 0 || length >= sizeof path)
        return lk__fail(c, LK_EINVAL, "'%.200s' is not a valid directory name: it is %s", directory,
                        length ? "too long" : "empty");
    memcpy(path, directory, length + 1);
    int code = stat(path, &info);
    while (code != 0 && errno == ENOENT && to_parent(path)) code = stat(path, &info);
    if (code != 0) return lk__fail(c, errno == ENOTDIR ? LK_EINVAL : LK_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return lk__fail(c, LK_EINVAL, "%s is not a directory", path);
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0) return LK_OK;
    return lk__fail(c, LK_EIO, "%s is not writable: %s", path, strerror(errno));
}

lk_status lk_checkpoint_check_files(lk_context *c, const char *directory, const lk_checkpoint_file *files, int count)
{
    lk_status status = lk__checkpoint_files_check(c, files, count);
    if (status >= 0) status = check_writable(c, directory);
    if (status >= 0) status = check_links(c, directory, files, count);
    return status < 0 ? status : lk__lock_check(c, directory, lk__lock_timeout());
}

lk_status lk_checkpoint_check(lk_context *c, const char *directory)
{
    return lk_checkpoint_check_files(c, directory, NULL, 0);
}

lk_status lk__checkpoint_open(lk_context *c, const char *directory, const lk_checkpoint_file *files, int count,
                              double timeout, lk__lock *lock)
{
    lk_status status = lk__make_directories(c, directory);
    if (status >= 0) status = check_links(c, directory, files, count);
    if (status >= 0) status = lk__lock_acquire(c, directory, timeout, lock);
    if (status >= 0) lk__checkpoint_recover(c, directory);
    return status;
}

/* ---- saving ---- */

/* Keeps `newest` and the keep - 1 before it. Later ones, if any, were skipped as damaged: they stay until the run replaces
 * them. A link to a checkpoint elsewhere stays too. */
static void remove_older(lk_context *c, const char *directory, int64_t newest, int keep)
{
    int64_t steps[LK__CHECKPOINT_STEPS];
    size_t  count = lk__checkpoint_list(directory, steps, LK__CHECKPOINT_STEPS);
    for (size_t i = 0; i < count && i < LK__CHECKPOINT_STEPS; i++) {
        char name[64], path[PATH_MAX];
        if (steps[i] > newest || keep-- > 0) continue;
        lk__checkpoint_name(steps[i], name);
        if (lk__checkpoint_join(c, path, directory, name) < 0 || lk__directory_prune(c, path, &lk__checkpoint_names) < 0)
            lk__log(c, LK_LOG_WARNING, "an old checkpoint was not removed: %s", lk_context_error(c));
    }
}

/* The state is written before the caller's files: it lists them, so a directory that a crash left is recognised with any of them. */
static lk_status write_files(lk__train_saver *s, const char *directory, const lk_progress *progress)
{
    lk_context       *c = s->context;
    char              file[PATH_MAX], model[65], optimizer[65];
    lk__state_content content = {.progress = progress,
                                 .dtype = lk__checkpoint_precision(s->store),
                                 .parameters = lk_store_parameters(s->store),
                                 .model = model,
                                 .optimizer = optimizer,
                                 .files = s->digests,
                                 .files_bytes = s->digests_bytes,
                                 .writer = s->writer,
                                 .record = s->record,
                                 .record_bytes = s->record_bytes,
                                 .algorithms = s->algorithms,
                                 .algorithms_bytes = s->algorithms_bytes};
    lk_status         status = lk__checkpoint_join(c, file, directory, lk__checkpoint_files[0]);
    if (status < 0 || (status = write_model(s, file, model)) < 0 ||
        (status = lk__checkpoint_join(c, file, directory, lk__checkpoint_files[1])) < 0 ||
        (status = write_optimizer(s, file, optimizer)) < 0 ||
        (status = lk__checkpoint_join(c, file, directory, lk__checkpoint_files[2])) < 0 ||
        (status = lk__state_write(c, file, s->staging, lk__safetensors_staging_bytes(), &content)) < 0)
        return status;
    return lk__saver_write_files(s, directory);
}

static lk_status link_files(const lk__train_saver *s, const char *directory, const char *step)
{
    lk_status status = LK_OK;
    for (int i = 0; i < LK__CHECKPOINT_FILES && status >= 0; i++)
        status = link_newest(s->context, directory, step, lk__checkpoint_files[i]);
    for (int i = 0; i < s->files_count && status >= 0; i++)
        status = link_newest(s->context, directory, step, s->files[i].name);
    return status;
}

lk_status lk__saver_save(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk_context         *c = s->context;
    char                name[64], path[PATH_MAX];
    lk__train_directory d;
    lk_status           status = lk__progress_check(c, "a checkpoint", progress);
    lk__checkpoint_name(progress->step, name);
    if (status < 0 || (status = lk__make_directories(c, directory)) < 0 ||
        (status = check_links(c, directory, s->files, s->files_count)) < 0 ||
        (status = lk__checkpoint_join(c, path, directory, name)) < 0)
        return status;
    lk__checkpoint_recover(c, directory);
    if ((status = lk__directory_create(&d, c, path, &lk__checkpoint_names)) < 0) return status;
    if ((status = write_files(s, d.temporary, progress)) < 0) {
        lk__directory_abandon(&d);
        return status;
    }
    if ((status = lk__directory_commit(&d)) < 0 || (status = link_files(s, directory, name)) < 0) return status;
    remove_other_links(directory, progress->step);
    if ((status = lk__file_sync_parent(c, path)) < 0) return status;
    remove_older(c, directory, progress->step, keep > 0 ? keep : 1);
    return LK_OK;
}

lk_status lk_checkpoint_save_files(lk_store *store, const char *directory, const lk_progress *progress, int keep,
                                   const lk_checkpoint_file *files, int count)
{
    lk_context     *c = store->context;
    lk__train_saver saver;
    lk__lock        lock;
    lk_status       status = lk__checkpoint_files_check(c, files, count);
    if (status < 0 || (status = lk__checkpoint_open(c, directory, files, count, SAVE_LOCK_TIMEOUT, &lock)) < 0)
        return status;
    if ((status = lk__saver_init(&saver, store)) >= 0 && (status = lk__saver_files(&saver, files, count)) >= 0)
        status = lk__saver_save(&saver, directory, progress, keep);
    lk__saver_free(&saver);
    lk__lock_release(&lock);
    return status;
}

lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep)
{
    return lk_checkpoint_save_files(store, directory, progress, keep, NULL, 0);
}

lk_status lk_weights_save(lk_store *store, const char *file)
{
    lk__train_saver saver;
    lk_status       status = lk__saver_init(&saver, store);
    if (status >= 0) status = write_model(&saver, file, NULL);
    lk__saver_free(&saver);
    return status;
}
