/* checkpoint_read.c - finds checkpoints, verifies them and reads the newest that is intact. */
#include "train/checkpoint.h"

#include "train/file.h"
#include "train/load.h"
#include "train/load_group.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const    lk__checkpoint_files[LK__CHECKPOINT_FILES] = {"model.safetensors", "optimizer.safetensors",
                                                                   "state.json"};
const lk__file_names lk__checkpoint_names = {lk__checkpoint_files, LK__CHECKPOINT_FILES, lk__state_list};

/* ---- names ---- */

lk_status lk__checkpoint_join(lk_context *c, char *out, const char *directory, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", directory, name);
    return n > 0 && n < PATH_MAX ? LK_OK : lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, name);
}

void lk__checkpoint_name(int64_t step, char name[64]) { snprintf(name, 64, "step-%08" PRId64, step); }

/* False for names that only resemble a checkpoint's. */
bool lk__checkpoint_parse(const char *name, int64_t *step)
{
    char same[64];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
    *step = strtoll(name + 5, NULL, 10);
    lk__checkpoint_name(*step, same);
    return strcmp(name, same) == 0;
}

/* Steps of the checkpoints in a directory, newest first, at most `room`; returns how many there are in total. */
size_t lk__checkpoint_list(const char *directory, int64_t *steps, size_t room)
{
    size_t         count = 0;
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    if (!dir) return 0;
    while ((entry = readdir(dir))) {
        int64_t step;
        if (!lk__checkpoint_parse(entry->d_name, &step)) continue;
        size_t at = count < room ? count : room;
        for (; at > 0 && steps[at - 1] < step; at--)
            if (at < room) steps[at] = steps[at - 1];
        if (at < room) steps[at] = step;
        count++;
    }
    closedir(dir);
    return count;
}

static bool is_step(const char *name)
{
    int64_t step;
    return lk__checkpoint_parse(name, &step);
}

/* Removes what a crash may have left: partly written or removed directories, and links that were not renamed yet. */
void lk__checkpoint_recover(lk_context *c, const char *directory)
{
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    if (!dir) return;
    (void)lk__directory_recover(c, directory, &lk__checkpoint_names, is_step);
    while ((entry = readdir(dir))) {
        long pid = strncmp(entry->d_name, ".link.", 6) == 0 ? atol(entry->d_name + 6) : 0;
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH && lk__links_is_temporary(dirfd(dir), entry->d_name))
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
}

/* ---- reading ---- */

const char *lk__checkpoint_precision(const lk_store *store)
{
    return lk_dtype_name(lk_policy_dtype(store->plan->policy, store->plan->graph->real));
}

/* A step that is looked for. */
typedef struct search {
    lk_context     *context;
    const char     *directory; /* of the run, or of the step itself */
    void           *staging;   /* LK__FILE_STAGING bytes */
    lk__load_group *group;     /* the ranks that verify it; NULL: this one */
    char            path[PATH_MAX]; /* of the step that was found */
    lk__state       state;
} search;

/* Reads the state of the step at `path`, and checks the other files against its digests. */
static lk_status verify_step(search *s, const char *path, int64_t step)
{
    lk_context *c = s->context;
    lk__state  *state = &s->state;
    char        file[PATH_MAX];
    lk_status   status = lk__checkpoint_join(c, file, path, lk__checkpoint_files[2]);
    if (status < 0 || (status = lk__state_open(c, file, step, state)) < 0) return status;
    status = s->group && state->chunks[0] ? lk__load_group_verify(s->group, path, state)
                                          : lk__checkpoint_verify(c, path, state, false, s->staging);
    lk__state_close(state); /* its numbers stay */
    return status;
}

lk_status lk__checkpoint_verify_step(lk_context *c, const char *directory, int64_t step, void *staging,
                                     lk__state *state)
{
    search    s = {.context = c, .staging = staging};
    lk_status status = verify_step(&s, directory, step);
    *state = s.state;
    return status;
}

/* While a writer holds the lock, what it has just created is not locked yet, and looks as if a crash had left it. The
 * writer recovers the directory itself, after it has acquired the lock. */
static void recover_idle(lk_context *c, const char *directory)
{
    int fd;
    if (!lk__lock_idle_begin(directory, &fd)) return;
    lk__checkpoint_recover(c, directory);
    lk__lock_idle_end(fd);
}

bool lk__checkpoint_newest(lk_context *c, const char *directory, int64_t *step)
{
    recover_idle(c, directory);
    return lk__checkpoint_list(directory, step, 1) > 0;
}

lk_status lk__checkpoint_missing(lk_context *c, const char *directory)
{
    struct stat info;
    bool        exists = stat(directory, &info) == 0, missing = !exists && errno == ENOENT;
    const char *why = missing                            ? ": it does not exist"
                      : exists && !S_ISDIR(info.st_mode) ? ": it is a file, not the directory of a run or of a step"
                                                         : "";
    return lk__fail(c, LK_ENOENT, "%s holds no checkpoint%s", directory, why);
}

lk_status lk_checkpoint_find(lk_context *c, const char *directory, int64_t *step)
{
    return lk__checkpoint_newest(c, directory, step) ? LK_OK : lk__checkpoint_missing(c, directory);
}

/* Reading takes no lock, so a run that saves at the same time may remove what is being read. */
static bool is_pruned(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0 && errno == ENOENT;
}

/* The newest step of a directory whose digests match: its path and its state. Without a message: LK_ENOENT, there are
 * no steps; LK_END, it was removed while it was read, so there is a newer one. */
static lk_status find_newest_intact(search *s)
{
    lk_context *c = s->context;
    int64_t     steps[LK__CHECKPOINT_STEPS];
    char        name[64];
    lk_status   status = LK_ENOENT;
    size_t      count = lk__checkpoint_list(s->directory, steps, LK__CHECKPOINT_STEPS);
    for (size_t i = 0; i < count && i < LK__CHECKPOINT_STEPS; i++) {
        lk__checkpoint_name(steps[i], name);
        if ((status = lk__checkpoint_join(c, s->path, s->directory, name)) < 0) return status;
        if ((status = verify_step(s, s->path, steps[i])) >= 0) return LK_OK;
        if (is_pruned(s->path)) return LK_END;
        if (s->group && lk_comm_status(s->group->comm) < 0) return status;
        lk__log(c, LK_LOG_WARNING, "skipping a checkpoint: %s", lk_context_error(c));
    }
    return count > 0 && status == LK_ENOENT ? LK_EFORMAT : status;
}

bool lk__checkpoint_is_step(const char *directory, int64_t *step)
{
    char        file[PATH_MAX], name[NAME_MAX + 1];
    size_t      length = strlen(directory);
    struct stat info;
    int64_t     inside;
    while (length > 1 && directory[length - 1] == '/') length--;
    size_t start = length;
    while (start > 0 && directory[start - 1] != '/') start--;
    *step = -1;
    if (length - start <= NAME_MAX) {
        snprintf(name, sizeof name, "%.*s", (int)(length - start), directory + start);
        if (!lk__checkpoint_parse(name, step)) *step = -1;
    }
    int n = snprintf(file, sizeof file, "%s/%s", directory, lk__checkpoint_files[2]);
    return n > 0 && n < (int)sizeof file && stat(file, &info) == 0 && lk__checkpoint_list(directory, &inside, 1) == 0;
}

/* The directory of one step is what the caller wants, and no other is taken instead. */
static lk_status find_step(search *s, int64_t step)
{
    int n = snprintf(s->path, PATH_MAX, "%s", s->directory);
    if (n < 0 || n >= PATH_MAX) return lk__fail(s->context, LK_EINVAL, "the path %.200s… is too long", s->directory);
    lk_status status = verify_step(s, s->path, step);
    return status == LK_ENOENT ? LK_EFORMAT : status; /* a file of it is missing, not the checkpoint */
}

/* What is loaded: the weights, all, or (report) the weights that the model shares. */
typedef struct loading {
    bool             all;
    lk_load_report **report;
    lk__load_group  *group; /* the ranks that read it; NULL: this one */
} loading;

/* Both files are checked before either is copied: a mismatch leaves the store as it was. */
static lk_status load_step(lk_store *store, const char *path, const lk__state *state, const loading *what)
{
    lk_context *c = store->context;
    if (what->group && what->all && state->chunk_bytes) {
        lk_status loaded = lk__load_group_load(what->group, path, state);
        if (loaded != LK_END) return loaded < 0 && is_pruned(path) ? LK_END : loaded;
    }
    bool      all = what->all;
    char      model[PATH_MAX], optimizer[PATH_MAX];
    lk_status status = lk__checkpoint_join(c, model, path, lk__checkpoint_files[0]);
    if (status >= 0 && what->report) {
        status = lk__load_partial(store, what->group, model, what->report);
        return status < 0 && is_pruned(path) ? LK_END : status;
    }
    if (status < 0 || (status = lk__checkpoint_join(c, optimizer, path, lk__checkpoint_files[1])) < 0 ||
        (status = lk__load_check(store, model, LK__LOAD_MODEL)) < 0 ||
        (all && (status = lk__load_check(store, optimizer, LK__LOAD_OPTIMIZER)) < 0) ||
        (status = lk__load_tensors(store, what->group, model, LK__LOAD_MODEL)) < 0 ||
        (all && (status = lk__load_tensors(store, what->group, optimizer, LK__LOAD_OPTIMIZER)) < 0))
        return is_pruned(path) ? LK_END : status;
    return LK_OK;
}

/* Finds the newest intact step and reads it: the weights alone, or all; or reads the step whose directory this is.
 * LK_ENOENT, without a message: there is none. */
static lk_status load_newest(lk_store *store, const char *directory, const loading *what, lk_progress *progress)
{
    lk_context *c = store->context;
    int64_t     step;
    lk_status   status = LK_END;
    search      s = {.context = c, .directory = directory, .group = what->group};
    if (!(s.staging = lk__alloc(c, LK_MEMORY_OTHER, LK__FILE_STAGING))) return LK_ENOMEM;
    bool alone = what->all && lk__checkpoint_is_step(directory, &step);
    if (!alone) recover_idle(c, directory);
    for (int attempt = 0; attempt < 10 && status == LK_END; attempt++)
        if ((status = alone ? find_step(&s, step) : find_newest_intact(&s)) == LK_OK)
            status = load_step(store, s.path, &s.state, what);
    lk__free(c, LK_MEMORY_OTHER, s.staging, LK__FILE_STAGING);
    if (status == LK_END)
        return lk__fail(c, LK_EIO, "%s: checkpoints are removed before they can be read; keep more of them", directory);
    const char *precision = lk__checkpoint_precision(store);
    if (status == LK_OK && what->all && s.state.dtype[0] && strcmp(s.state.dtype, precision) != 0)
        lk__log(c, LK_LOG_INFO, "%s was saved by a run in %s and continues in %s", s.path, s.state.dtype, precision);
    if (status == LK_OK && what->all && lk__checkpoint_isa_differs(store, s.state.isa))
        lk__log(c, LK_LOG_INFO,
                "%s was saved by a run with the instruction set %s and continues with %s, whose results differ in "
                "rounding",
                s.path, s.state.isa, lk__checkpoint_isa(store));
    if (status == LK_OK && progress) *progress = s.state.progress;
    return status;
}

lk_status lk__checkpoint_load_group(lk_store *store, lk__load_group *group, const char *directory,
                                    lk_progress *progress)
{
    loading   what = {.all = true, .group = group};
    lk_status status = lk__store_write_begin(store);
    if (status < 0) return status;
    status = lk__store_write_end(store, load_newest(store, directory, &what, progress));
    return status == LK_ENOENT ? lk__checkpoint_missing(store->context, directory) : status;
}

lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress)
{
    return lk__checkpoint_load_group(store, NULL, directory, progress);
}

/* The file of weights in a directory without steps: model.safetensors, or the index of its shards. */
static lk_status find_file(lk_context *c, const char *directory, char file[PATH_MAX])
{
    static const char index[] = "model.safetensors.index.json", pickle[] = "pytorch_model.bin";
    char              other[PATH_MAX];
    lk_status         status = lk__checkpoint_join(c, file, directory, lk__checkpoint_files[0]);
    if (status < 0 || access(file, F_OK) == 0) return status;
    if ((status = lk__checkpoint_join(c, file, directory, index)) < 0 || access(file, F_OK) == 0) return status;
    if ((status = lk__checkpoint_join(c, other, directory, pickle)) < 0) return status;
    return lk__fail(c, LK_ENOENT, "%s holds no checkpoint, no %s and no %s%s", directory, lk__checkpoint_files[0],
                    index,
                    access(other, F_OK) == 0
                        ? "; save_pretrained in Hugging Face transformers converts its pytorch_model.bin to safetensors"
                        : "");
}

/* From a file; from the newest checkpoint of a directory; or from a directory with a copied model.safetensors or
 * shards. */
static lk_status find_and_load(lk_store *store, const char *path, const loading *what)
{
    char        file[PATH_MAX];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        lk_status status = load_newest(store, path, what, NULL);
        if (status != LK_ENOENT) return status;
        if ((status = find_file(store->context, path, file)) < 0) return status;
        path = file;
    }
    return what->report ? lk__load_partial(store, what->group, path, what->report)
                        : lk__load_tensors(store, what->group, path, LK__LOAD_MODEL);
}

static lk_status load_weights(lk_store *store, const char *path, const loading *what)
{
    lk_status status = lk__store_write_begin(store);
    return status < 0 ? status : lk__store_write_end(store, find_and_load(store, path, what));
}

lk_status lk__weights_load_group(lk_store *store, lk__load_group *group, const char *path)
{
    return load_weights(store, path, &(loading){.group = lk__load_group_writes(group) ? group : NULL});
}

lk_status lk__weights_load_partial_group(lk_store *store, lk__load_group *group, const char *path,
                                         lk_load_report **report)
{
    lk_load_report *made = NULL;
    loading         what = {.report = &made, .group = lk__load_group_writes(group) ? group : NULL};
    lk_status       status = load_weights(store, path, &what);
    if (report)
        *report = made;
    else
        lk_load_report_free(made);
    return status;
}

lk_status lk_weights_load(lk_store *store, const char *path) { return lk__weights_load_group(store, NULL, path); }

lk_status lk_weights_load_partial(lk_store *store, const char *path, lk_load_report **report)
{
    return lk__weights_load_partial_group(store, NULL, path, report);
}
