/* checkpoint.c - writes and finds checkpoints: one directory per step, complete or absent, and links to the newest. */
#define _GNU_SOURCE
#include "train/checkpoint.h"

#include "train/file.h"
#include "train/load.h"
#include "train/lock.h"
#include "train/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
enum { FILES = 3, MAX_STEPS = 256 };
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

lk_status lk__saver_init(lk__train_saver *s, lk_store *store)
{
    size_t entries = table_entries(store->plan);
    *s = (lk__train_saver){.context = store->context, .store = store, .bytes = lk_checkpoint_bytes(store->plan)};
    char *memory = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->bytes);
    if (!memory) return LK_ENOMEM;
    s->staging = memory;
    s->tensors = (void *)(memory + lk__round_up(lk__safetensors_staging_bytes(), LK__ALIGN));
    s->names = (void *)((char *)s->tensors + lk__round_up(entries * sizeof(lk__safetensors_tensor), LK__ALIGN));
    return LK_OK;
}

void lk__saver_free(lk__train_saver *s)
{
    lk__saver_background_free(s);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->staging, s->bytes);
    *s = (lk__train_saver){0};
}

/* ---- writing ---- */

/* The precision of a run as --dtype names it. Weights are saved in f32 or f64 whatever it is. */
static const char *precision_of(const lk_store *store)
{
    return store->plan->policy == LK_POLICY_BF16 ? "bf16" : lk_dtype_name(store->plan->graph->real);
}

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

static lk_status write_model(lk__train_saver *s, const char *path, char sha[65])
{
    size_t count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        const char *alias;
        lk_state    state = lk_store_at(s->store, i);
        if (state.not_saved) continue;
        s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, state.name);
        for (size_t j = 0; (alias = lk_store_alias(s->store, i, j)); j++)
            s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, alias);
    }
    return lk__safetensors_write(s->context, path, s->tensors, count, NULL, 0, s->staging,
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

static lk_status join_path(lk_context *c, char *out, const char *directory, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", directory, name);
    return n > 0 && n < PATH_MAX ? LK_OK : lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, name);
}

/* Makes directory/name a link to step/name, by one rename. */
static lk_status link_newest(lk_context *c, const char *directory, const char *step, const char *name)
{
    char link[PATH_MAX], temporary[PATH_MAX], target[PATH_MAX], temporary_name[64];
    snprintf(temporary_name, sizeof temporary_name, ".link.%ld", (long)getpid());
    if (join_path(c, link, directory, name) < 0 || join_path(c, temporary, directory, temporary_name) < 0 ||
        join_path(c, target, step, name) < 0)
        return LK_EINVAL;
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, link) != 0) {
        int error = errno;
        unlink(temporary);
        return lk__fail(c, LK_EIO, "cannot create the link %s: %s", link, strerror(error));
    }
    return LK_OK;
}

/* ---- names ---- */

static void step_name(int64_t step, char name[64]) { snprintf(name, 64, "step-%08" PRId64, step); }

/* False for names that only resemble a checkpoint's. */
static bool parse_step(const char *name, int64_t *step)
{
    char same[64];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
    *step = strtoll(name + 5, NULL, 10);
    step_name(*step, same);
    return strcmp(name, same) == 0;
}

/* Steps of the checkpoints in a directory, newest first, at most `room`; returns how many there are in total. */
static size_t list_steps(const char *directory, int64_t *steps, size_t room)
{
    size_t         count = 0;
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    if (!dir) return 0;
    while ((entry = readdir(dir))) {
        int64_t step;
        if (!parse_step(entry->d_name, &step)) continue;
        size_t at = count < room ? count : room;
        for (; at > 0 && steps[at - 1] < step; at--)
            if (at < room) steps[at] = steps[at - 1];
        if (at < room) steps[at] = step;
        count++;
    }
    closedir(dir);
    return count;
}

/* Removes what a crash may have left: partly written or removed directories, and links that were not renamed yet. */
static void remove_leftovers(lk_context *c, const char *directory)
{
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    if (!dir) return;
    (void)lk__directory_recover(c, directory, file_names, FILES);
    while ((entry = readdir(dir))) {
        long pid = strncmp(entry->d_name, ".link.", 6) == 0 ? atol(entry->d_name + 6) : 0;
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
}

/* ---- checks of the directory ---- */

/* True if the name is free in the directory, or a link that a save made, to step-N/NAME. */
static bool is_free_or_own_link(const char *path, const char *name)
{
    char    target[PATH_MAX];
    int64_t step;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return errno == ENOENT || errno == ENOTDIR;
    target[n] = 0;
    char *slash = strchr(target, '/');
    if (!slash) return false;
    *slash = 0;
    return parse_step(target, &step) && strcmp(slash + 1, name) == 0;
}

static lk_status check_links(lk_context *c, const char *directory)
{
    char path[PATH_MAX];
    for (int i = 0; i < FILES; i++) {
        lk_status status = join_path(c, path, directory, file_names[i]);
        if (status < 0) return status;
        if (!is_free_or_own_link(path, file_names[i]))
            return lk__fail(
                c, LK_EINVAL,
                "%s is not a link that a save made, and saving would replace it; move it, or save into another "
                "directory",
                path);
    }
    return LK_OK;
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

lk_status lk_checkpoint_check(lk_context *c, const char *directory)
{
    lk_status status = check_writable(c, directory);
    if (status >= 0) status = check_links(c, directory);
    return status < 0 ? status : lk__lock_check(c, directory, lk__lock_timeout());
}

lk_status lk__checkpoint_open(lk_context *c, const char *directory, double timeout, lk__lock *lock)
{
    lk_status status = lk__make_directories(c, directory);
    if (status >= 0) status = check_links(c, directory);
    return status < 0 ? status : lk__lock_acquire(c, directory, timeout, lock);
}

/* ---- saving ---- */

/* Keeps `newest` and the keep - 1 before it. Later ones, if any, were skipped as damaged: they stay until the run replaces
 * them. A link to a checkpoint elsewhere stays too. */
static void remove_older(lk_context *c, const char *directory, int64_t newest, int keep)
{
    int64_t steps[MAX_STEPS];
    size_t  count = list_steps(directory, steps, MAX_STEPS);
    for (size_t i = 0; i < count && i < MAX_STEPS; i++) {
        char name[64], path[PATH_MAX];
        if (steps[i] > newest || keep-- > 0) continue;
        step_name(steps[i], name);
        if (join_path(c, path, directory, name) < 0 || lk__directory_prune(c, path, file_names, FILES) < 0)
            lk__log(c, LK_LOG_WARNING, "an old checkpoint was not removed: %s", lk_context_error(c));
    }
}

lk_status lk__saver_save(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk_context         *c = s->context;
    char                name[64], path[PATH_MAX], file[PATH_MAX], model[65], optimizer[65];
    lk__train_directory d;
    lk_status           status = lk__progress_check(c, "a checkpoint", progress);
    step_name(progress->step, name);
    if (status < 0 || (status = lk__make_directories(c, directory)) < 0 || (status = check_links(c, directory)) < 0 ||
        (status = join_path(c, path, directory, name)) < 0)
        return status;
    remove_leftovers(c, directory);
    if ((status = lk__directory_create(&d, c, path, file_names, FILES)) < 0) return status;
    if ((status = join_path(c, file, d.temporary, file_names[0])) < 0 || (status = write_model(s, file, model)) < 0 ||
        (status = join_path(c, file, d.temporary, file_names[1])) < 0 ||
        (status = write_optimizer(s, file, optimizer)) < 0 ||
        (status = join_path(c, file, d.temporary, file_names[2])) < 0 ||
        (status = lk__state_write(c, file, s->staging, lk__safetensors_staging_bytes(), progress,
                                  precision_of(s->store), model, optimizer)) < 0) {
        lk__directory_abandon(&d);
        return status;
    }
    if ((status = lk__directory_commit(&d)) < 0) return status;
    for (int i = 0; i < FILES; i++)
        if ((status = link_newest(c, directory, name, file_names[i])) < 0) return status;
    if ((status = lk__file_sync_parent(c, path)) < 0) return status;
    remove_older(c, directory, progress->step, keep > 0 ? keep : 1);
    return LK_OK;
}

lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep)
{
    lk__train_saver saver;
    lk__lock        lock;
    lk_status       status = lk__checkpoint_open(store->context, directory, SAVE_LOCK_TIMEOUT, &lock);
    if (status < 0) return status;
    if ((status = lk__saver_init(&saver, store)) >= 0) status = lk__saver_save(&saver, directory, progress, keep);
    lk__saver_free(&saver);
    lk__lock_release(&lock);
    return status;
}

lk_status lk_weights_save(lk_store *store, const char *file)
{
    lk__train_saver saver;
    lk_status       status = lk__saver_init(&saver, store);
    if (status >= 0) status = write_model(&saver, file, NULL);
    lk__saver_free(&saver);
    return status;
}

/* ---- reading ---- */

typedef struct found {
    lk_progress progress;
    char        dtype[LK__STATE_DTYPE];
    char        sha[2][65];
} found;

/* Checks the files of a step against the digests in its state. */
static lk_status verify_step(lk_context *c, const char *directory, int64_t step, void *staging, found *f)
{
    char      path[PATH_MAX], digest[65];
    lk_status status;
    if ((status = join_path(c, path, directory, file_names[2])) < 0 ||
        (status = lk__state_read(c, path, step, &f->progress, f->dtype, f->sha)) < 0)
        return status;
    for (int i = 0; i < 2; i++) {
        if ((status = join_path(c, path, directory, file_names[i])) < 0 ||
            (status = lk__file_digest(c, path, staging, LK__FILE_STAGING, digest)) < 0)
            return status;
        if (strcmp(digest, f->sha[i]) != 0)
            return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 differs from the one saved with it", path);
    }
    return LK_OK;
}

bool lk__checkpoint_newest(lk_context *c, const char *directory, int64_t *step)
{
    remove_leftovers(c, directory);
    return list_steps(directory, step, 1) > 0;
}

lk_status lk_checkpoint_find(lk_context *c, const char *directory, int64_t *step)
{
    if (lk__checkpoint_newest(c, directory, step)) return LK_OK;
    return lk__fail(c, LK_ENOENT, "%s holds no checkpoint", directory);
}

/* Reading takes no lock, so a run that saves at the same time may remove what is being read. */
static bool is_pruned(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0 && errno == ENOENT;
}

/* The newest step of a directory whose digests match: its path and its state. Without a message: LK_ENOENT, there are no
 * steps; LK_END, it was removed while it was read, so there is a newer one. */
static lk_status find_newest_intact(lk_context *c, const char *directory, void *staging, char path[PATH_MAX], found *f)
{
    int64_t   steps[MAX_STEPS];
    char      name[64];
    lk_status status = LK_ENOENT;
    size_t    count = list_steps(directory, steps, MAX_STEPS);
    for (size_t i = 0; i < count && i < MAX_STEPS; i++) {
        step_name(steps[i], name);
        if ((status = join_path(c, path, directory, name)) < 0) return status;
        if ((status = verify_step(c, path, steps[i], staging, f)) >= 0) return LK_OK;
        if (is_pruned(path)) return LK_END;
        lk__log(c, LK_LOG_WARNING, "skipping a checkpoint: %s", lk_context_error(c));
    }
    return count > 0 && status == LK_ENOENT ? LK_EFORMAT : status;
}

/* Both files are checked before either is copied: a mismatch leaves the store as it was. */
static lk_status load_step(lk_store *store, const char *path, bool all)
{
    lk_context *c = store->context;
    char        model[PATH_MAX], optimizer[PATH_MAX];
    lk_status   status = join_path(c, model, path, file_names[0]);
    if (status < 0 || (status = join_path(c, optimizer, path, file_names[1])) < 0 ||
        (status = lk__load_check(store, model, LK__LOAD_MODEL)) < 0 ||
        (all && (status = lk__load_check(store, optimizer, LK__LOAD_OPTIMIZER)) < 0) ||
        (status = lk__load_tensors(store, model, LK__LOAD_MODEL)) < 0 ||
        (all && (status = lk__load_tensors(store, optimizer, LK__LOAD_OPTIMIZER)) < 0))
        return is_pruned(path) ? LK_END : status;
    return LK_OK;
}

/* Finds the newest intact step and reads it: the weights alone, or all. LK_ENOENT, without a message: there is none. */
static lk_status load_newest(lk_store *store, const char *directory, bool all, lk_progress *progress)
{
    lk_context *c = store->context;
    char        path[PATH_MAX];
    found       f;
    lk_status   status = LK_END;
    void       *staging = lk__alloc(c, LK_MEMORY_OTHER, LK__FILE_STAGING);
    if (!staging) return LK_ENOMEM;
    remove_leftovers(c, directory);
    for (int attempt = 0; attempt < 10 && status == LK_END; attempt++)
        if ((status = find_newest_intact(c, directory, staging, path, &f)) == LK_OK)
            status = load_step(store, path, all);
    lk__free(c, LK_MEMORY_OTHER, staging, LK__FILE_STAGING);
    if (status == LK_END)
        return lk__fail(c, LK_EIO, "%s: checkpoints are removed before they can be read; keep more of them", directory);
    if (status == LK_OK && all && f.dtype[0] && strcmp(f.dtype, precision_of(store)) != 0)
        lk__log(c, LK_LOG_INFO, "%s was saved by a run in %s and goes on in %s", path, f.dtype, precision_of(store));
    if (status == LK_OK && progress) *progress = f.progress;
    return status;
}

lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress)
{
    lk_status status = load_newest(store, directory, true, progress);
    return status == LK_ENOENT ? lk__fail(store->context, LK_ENOENT, "%s holds no checkpoint", directory) : status;
}

lk_status lk_weights_load(lk_store *store, const char *path)
{
    char        file[PATH_MAX];
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return lk__load_tensors(store, path, LK__LOAD_MODEL);
    lk_status status = load_newest(store, path, false, NULL);
    if (status != LK_ENOENT) return status;
    /* not a checkpoint directory: one with a copied model.safetensors */
    if ((status = join_path(store->context, file, path, file_names[0])) < 0) return status;
    return lk__load_tensors(store, file, LK__LOAD_MODEL);
}
