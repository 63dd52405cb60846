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

/* ---- checks of the directory ---- */

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
    if (status >= 0) status = lk__links_check(c, directory, files, count);
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
    if (status >= 0) status = lk__links_check(c, directory, files, count);
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

/* The directory that is written is the one that is locked. One that was moved away or removed is made and locked again; the run ends
 * where another run's has its name, or another run holds it. */
static lk_status hold_directory(lk__train_saver *s, const char *directory)
{
    lk_context *c = s->context;
    char        why[1024];
    int64_t     step;
    lk__lock    other;
    if (!s->lock) return LK_OK;
    lk__lock_place place = lk__lock_find(s->lock, directory);
    if (place == LK__LOCK_IN_PLACE) return LK_OK;
    const char *what = place == LK__LOCK_LOST ? "lost its lock file" : "was moved away, removed or replaced";
    lk_status   status = lk__make_directories(c, directory);
    if (status >= 0) status = lk__lock_acquire(c, directory, 0, &other);
    if (status < 0) {
        snprintf(why, sizeof why, "%s", lk_context_error(c));
        return lk__fail(c, status == LK_ENOMEM ? status : LK_EIO,
                        "%s %s during the run, and cannot be locked again: %s", directory, what, why);
    }
    if (place == LK__LOCK_MOVED && lk__checkpoint_list(directory, &step, 1) > 0) {
        lk__lock_release(&other);
        return lk__fail(c, LK_EIO,
                        "%s %s during the run; the directory of that name holds a checkpoint of another run now (step "
                        "%lld)",
                        directory, what, (long long)step);
    }
    lk__lock_release(s->lock);
    *s->lock = other;
    lk__log(c, LK_LOG_WARNING, "%s %s during the run: it was %slocked again", directory, what,
            place == LK__LOCK_MOVED ? "created and " : "");
    return LK_OK;
}

/* A damaged step that holds a file of the user's is neither deleted nor a reason to stop the run at this step, now and whenever it is
 * started again: it gets another name. An intact one is left for lk__directory_create to refuse. */
static lk_status set_damaged_aside(lk__train_saver *s, const char *path, int64_t step)
{
    char      aside[PATH_MAX];
    lk__state state;
    lk_status status = lk__directory_check(s->context, path, &lk__checkpoint_names);
    if (status != LK_EINVAL || lk__checkpoint_verify_step(s->context, path, step, s->staging, &state) >= 0)
        return LK_OK;
    for (int i = 1; i < 1000; i++) {
        int n = i == 1 ? snprintf(aside, sizeof aside, "%s.damaged", path)
                       : snprintf(aside, sizeof aside, "%s.damaged.%d", path, i);
        if (n < 0 || n >= (int)sizeof aside) return lk__fail(s->context, LK_EINVAL, "the path %s is too long", path);
        if (lk__directory_move(path, aside) == 0) {
            lk__log(s->context, LK_LOG_WARNING,
                    "%s is damaged and holds files that are not part of a checkpoint: it is now %s", path, aside);
            return LK_OK;
        }
        if (errno != EEXIST) break;
    }
    return lk__fail(s->context, LK_EIO, "%s is damaged, and cannot be renamed to %s: %s", path, aside, strerror(errno));
}

/* LK_END: the directory was moved away meanwhile, and nothing was written into the one that has its name. */
static lk_status save_step(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk_context         *c = s->context;
    char                name[64], path[PATH_MAX];
    lk__train_directory d;
    lk__checkpoint_name(progress->step, name);
    lk_status status = lk__checkpoint_join(c, path, directory, name);
    if (status < 0) return status;
    lk__checkpoint_recover(c, directory);
    if ((status = set_damaged_aside(s, path, progress->step)) < 0 ||
        (status = lk__directory_create(&d, c, path, &lk__checkpoint_names)) < 0)
        return status;
    status = write_files(s, d.temporary, progress);
    bool moved = s->lock && lk__lock_find(s->lock, directory) != LK__LOCK_IN_PLACE;
    if (status < 0 || moved) {
        lk__directory_abandon(&d);
        return moved ? LK_END : status;
    }
    if ((status = lk__directory_commit(&d)) < 0 || (status = lk__links_make(s, directory, progress->step)) < 0)
        return status;
    if ((status = lk__file_sync_parent(c, path)) < 0) return status;
    remove_older(c, directory, progress->step, keep > 0 ? keep : 1);
    return LK_OK;
}

lk_status lk__saver_save(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    enum { ATTEMPTS = 3 };
    lk_context *c = s->context;
    lk_status   status = lk__progress_check(c, "a checkpoint", progress);
    if (status >= 0) status = lk__make_directories(c, directory);
    for (int attempt = 0; attempt < ATTEMPTS && status >= 0; attempt++) {
        if ((status = hold_directory(s, directory)) < 0) return status;
        if ((status = save_step(s, directory, progress, keep)) == LK_OK) return LK_OK;
        /* Any failure may be that of a directory that was moved away. */
        if (s->lock && lk__lock_find(s->lock, directory) != LK__LOCK_IN_PLACE) status = LK_END;
    }
    if (status < 0) return status;
    return lk__fail(c, LK_EIO, "%s was moved away or replaced in each of %d attempts to save there", directory,
                    ATTEMPTS);
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
