/* checkpoint.c - writes and finds checkpoints: one directory a step, whole or not there, and links to the newest. */
#define _GNU_SOURCE
#include "train/checkpoint.h"

#include "train/file.h"
#include "train/json.h"
#include "train/load.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
enum { FILES = 3, STATE_LIMIT = 65536 };

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
           lk__round_up(entries * sizeof(lk__safetensor), LK__ALIGN) + entries * 256;
}

lk_status lk__saver_init(lk__saver *s, lk_store *store)
{
    size_t entries = table_entries(store->plan);
    *s = (lk__saver){.context = store->context, .store = store, .bytes = lk_checkpoint_bytes(store->plan)};
    char *memory = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->bytes);
    if (!memory) return LK_ENOMEM;
    s->staging = memory;
    s->tensors = (void *)(memory + lk__round_up(lk__safetensors_staging_bytes(), LK__ALIGN));
    s->names = (void *)((char *)s->tensors + lk__round_up(entries * sizeof(lk__safetensor), LK__ALIGN));
    return LK_OK;
}

void lk__saver_free(lk__saver *s)
{
    lk__saver_background_free(s);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->staging, s->bytes);
    *s = (lk__saver){0};
}

/* ---- writing ---- */

static lk__safetensor tensor_of(const lk_state *state, const char *name, const void *data)
{
    lk__safetensor t = {.name = name, .dtype = state->dtype, .rank = state->rank, .data = data};
    memcpy(t.dims, state->dims, sizeof t.dims);
    return t;
}

static lk_status write_model(lk__saver *s, const char *path, char sha[65])
{
    size_t count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        lk_state    state = lk_store_at(s->store, i);
        const char *alias;
        s->tensors[count++] = tensor_of(&state, state.name, state.data);
        for (size_t j = 0; (alias = lk_store_alias(s->store, i, j)); j++)
            s->tensors[count++] = tensor_of(&state, alias, state.data);
    }
    return lk__safetensors_write(s->context, path, s->tensors, count, NULL, 0, s->staging,
                                 lk__safetensors_staging_bytes(), sha);
}

static lk_status write_optimizer(lk__saver *s, const char *path, char sha[65])
{
    size_t count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        lk_state state = lk_store_at(s->store, i);
        for (int m = 0; m < state.moments; m++, count++) {
            int n = snprintf(s->names[count], sizeof s->names[count], "%s.%s", state.name,
                             lk__moment_name(state.moments, m));
            if (n < 0 || (size_t)n >= sizeof s->names[count])
                return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", state.name);
            s->tensors[count] = tensor_of(&state, s->names[count], state.moment[m]);
        }
    }
    return lk__safetensors_write(s->context, path, s->tensors, count, NULL, 0, s->staging,
                                 lk__safetensors_staging_bytes(), sha);
}

static lk_status write_state(lk__saver *s, const char *path, const lk_progress *p, const char *model,
                             const char *optimizer)
{
    char      text[1024];
    lk__file  file;
    int       n = snprintf(text, sizeof text,
                           "{\"lockstep\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"position\":%" PRId64
                           ",\"seed\":\"%" PRIu64
                           "\",\"sha256\":{\"model.safetensors\":\"%s\",\"optimizer.safetensors\":\"%s\"}}\n",
                           LK_VERSION_STRING, p->step, p->epoch, p->position, p->seed, model, optimizer);
    lk_status status = lk__file_create(&file, s->context, path, s->staging, lk__safetensors_staging_bytes());
    if (status >= 0) lk__file_write(&file, text, (size_t)n);
    return status < 0 ? status : lk__file_commit(&file, NULL);
}

static lk_status join(lk_context *c, char *out, const char *directory, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", directory, name);
    return n > 0 && n < PATH_MAX ? LK_OK : lk__fail(c, LK_EINVAL, "the path %s/%s is too long", directory, name);
}

/* directory/name → step/name, replaced in one move. */
static lk_status link_newest(lk_context *c, const char *directory, const char *step, const char *name)
{
    char link[PATH_MAX], aside[PATH_MAX], target[PATH_MAX], temporary[64];
    snprintf(temporary, sizeof temporary, ".link.%ld", (long)getpid());
    if (join(c, link, directory, name) < 0 || join(c, aside, directory, temporary) < 0 ||
        join(c, target, step, name) < 0)
        return LK_EINVAL;
    unlink(aside);
    if (symlink(target, aside) != 0 || rename(aside, link) != 0) {
        int error = errno;
        unlink(aside);
        return lk__fail(c, LK_EIO, "cannot make the link %s: %s", link, strerror(error));
    }
    return LK_OK;
}

/* ---- finding ---- */

/* Steps of the checkpoints in a directory, newest first, at most `room`; how many there are in all. */
static size_t list_steps(const char *directory, int64_t *steps, size_t room)
{
    size_t         count = 0;
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    if (!dir) return 0;
    while ((entry = readdir(dir))) {
        char *end;
        if (strncmp(entry->d_name, "step-", 5) != 0 || entry->d_name[5] < '0' || entry->d_name[5] > '9') continue;
        int64_t step = strtoll(entry->d_name + 5, &end, 10);
        if (*end) continue;
        size_t at = count < room ? count : room;
        for (; at > 0 && steps[at - 1] < step; at--)
            if (at < room) steps[at] = steps[at - 1];
        if (at < room) steps[at] = step;
        count++;
    }
    closedir(dir);
    return count;
}

static void step_name(int64_t step, char name[64]) { snprintf(name, 64, "step-%08" PRId64, step); }

/* Leaves `newest` and the keep - 1 before it. Later ones, if any, were passed over as damaged: they are replaced when the run
 * gets there, and until then are nobody's business. */
static void remove_older(lk_context *c, const char *directory, int64_t newest, int keep)
{
    int64_t steps[256];
    size_t  count = list_steps(directory, steps, 256);
    for (size_t i = 0; i < count && i < 256; i++) {
        char name[64], path[PATH_MAX];
        if (steps[i] > newest || keep-- > 0) continue;
        step_name(steps[i], name);
        if (join(c, path, directory, name) < 0 || lk__directory_remove(c, path, file_names, FILES) < 0)
            lk__log(c, LK_LOG_WARNING, "an old checkpoint stays: %s", lk_context_error(c));
    }
}

lk_status lk__saver_save(lk__saver *s, const char *directory, const lk_progress *progress, int keep)
{
    lk_context   *c = s->context;
    char          name[64], path[PATH_MAX], file[PATH_MAX], model[65], optimizer[65];
    lk__directory d;
    lk_status     status = lk__make_directories(c, directory);
    step_name(progress->step, name);
    if (status < 0 || (status = join(c, path, directory, name)) < 0) return status;
    if ((status = lk__directory_create(&d, c, path, file_names, FILES)) < 0) return status;
    if ((status = join(c, file, d.temporary, file_names[0])) < 0 || (status = write_model(s, file, model)) < 0 ||
        (status = join(c, file, d.temporary, file_names[1])) < 0 ||
        (status = write_optimizer(s, file, optimizer)) < 0 ||
        (status = join(c, file, d.temporary, file_names[2])) < 0 ||
        (status = write_state(s, file, progress, model, optimizer)) < 0) {
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
    lk__saver saver;
    lk_status status = lk__saver_init(&saver, store);
    if (status >= 0) status = lk__saver_save(&saver, directory, progress, keep);
    lk__saver_free(&saver);
    return status;
}

lk_status lk_weights_save(lk_store *store, const char *file)
{
    lk__saver saver;
    lk_status status = lk__saver_init(&saver, store);
    if (status >= 0) status = write_model(&saver, file, NULL);
    lk__saver_free(&saver);
    return status;
}

/* ---- reading ---- */

typedef struct found {
    lk_progress progress;
    char        sha[2][65];
} found;

static lk_status read_state(lk_context *c, const char *path, found *f)
{
    char          *text;
    size_t         length;
    lk__json       root, value, sums;
    lk__json_error error;
    lk_status      status = lk__read_text(c, path, STATE_LIMIT, &text, &length);
    char           seed[32] = "";
    if (status < 0) return status;
    bool good = lk__json_parse(text, length, &root, &error);
    if (good) {
        good = lk__json_get(&root, "step", &value) && lk__json_integer(&value, &f->progress.step) &&
               lk__json_get(&root, "epoch", &value) && lk__json_integer(&value, &f->progress.epoch) &&
               lk__json_get(&root, "position", &value) && lk__json_integer(&value, &f->progress.position) &&
               lk__json_get(&root, "seed", &value) && lk__json_string(&value, seed, sizeof seed) < sizeof seed &&
               lk__json_get(&root, "sha256", &sums);
        for (int i = 0; i < 2 && good; i++)
            good = lk__json_get(&sums, file_names[i], &value) && lk__json_string(&value, f->sha[i], 65) == 64;
        good = good && f->progress.step >= 0 && f->progress.epoch >= 0 && f->progress.position >= 0;
        f->progress.seed = strtoull(seed, NULL, 10);
    }
    lk__text_free(c, text, length);
    return good ? LK_OK : lk__fail(c, LK_EFORMAT, "%s is not the state of a Lockstep checkpoint", path);
}

/* Whether the files of a step are what its state says. */
static lk_status verify(lk_context *c, const char *step, void *staging, found *f)
{
    char      path[PATH_MAX], digest[65];
    lk_status status;
    if ((status = join(c, path, step, file_names[2])) < 0 || (status = read_state(c, path, f)) < 0) return status;
    for (int i = 0; i < 2; i++) {
        if ((status = join(c, path, step, file_names[i])) < 0 ||
            (status = lk__file_digest(c, path, staging, LK__FILE_STAGING, digest)) < 0)
            return status;
        if (strcmp(digest, f->sha[i]) != 0)
            return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 is not the one that was saved with it", path);
    }
    return LK_OK;
}

/* What a crash may have left: half-written directories, and links that were not yet moved into place. */
static void clean_up(lk_context *c, const char *directory)
{
    struct dirent *entry;
    DIR           *dir = opendir(directory);
    lk__directory_recover(c, directory, file_names, FILES);
    if (!dir) return;
    while ((entry = readdir(dir))) {
        long pid = strncmp(entry->d_name, ".link.", 6) == 0 ? atol(entry->d_name + 6) : 0;
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
}

lk_status lk_checkpoint_find(lk_context *c, const char *directory, int64_t *step)
{
    int64_t steps[1];
    clean_up(c, directory);
    if (list_steps(directory, steps, 1) == 0) return lk__fail(c, LK_ENOENT, "%s holds no checkpoint", directory);
    *step = steps[0];
    return LK_OK;
}

/* The newest step of a directory whose digests fit: its path and what its state says. */
static lk_status newest_whole(lk_context *c, const char *directory, char path[PATH_MAX], found *f)
{
    int64_t steps[256];
    char    name[64];
    void   *staging = lk__alloc(c, LK_MEMORY_OTHER, LK__FILE_STAGING);
    if (!staging) return LK_ENOMEM;
    clean_up(c, directory);
    size_t    count = list_steps(directory, steps, 256);
    lk_status status = lk__fail(c, LK_ENOENT, "%s holds no checkpoint", directory);
    for (size_t i = 0; i < count && i < 256; i++) {
        step_name(steps[i], name);
        if ((status = join(c, path, directory, name)) < 0) break;
        if ((status = verify(c, path, staging, f)) >= 0) break;
        lk__log(c, LK_LOG_WARNING, "passed over: %s", lk_context_error(c));
    }
    lk__free(c, LK_MEMORY_OTHER, staging, LK__FILE_STAGING);
    return status;
}

lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress)
{
    lk_context *c = store->context;
    found       f;
    char        path[PATH_MAX], model[PATH_MAX], optimizer[PATH_MAX];
    lk_status   status = newest_whole(c, directory, path, &f);
    /* Both are checked before either is copied: a mismatch leaves the store as it was. */
    if (status < 0 || (status = join(c, model, path, file_names[0])) < 0 ||
        (status = join(c, optimizer, path, file_names[1])) < 0 ||
        (status = lk__load_check(store, model, LK__LOAD_MODEL)) < 0 ||
        (status = lk__load_check(store, optimizer, LK__LOAD_OPTIMIZER)) < 0 ||
        (status = lk__load_tensors(store, model, LK__LOAD_MODEL)) < 0 ||
        (status = lk__load_tensors(store, optimizer, LK__LOAD_OPTIMIZER)) < 0)
        return status;
    *progress = f.progress;
    return LK_OK;
}

lk_status lk_weights_load(lk_store *store, const char *path)
{
    char        step[PATH_MAX], file[PATH_MAX];
    struct stat info;
    found       f;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return lk__load_tensors(store, path, LK__LOAD_MODEL);
    lk_status status = newest_whole(store->context, path, step, &f);
    if (status == LK_ENOENT) { /* a plain directory with a model.safetensors in it, as people copy them */
        snprintf(step, sizeof step, "%s", path);
        status = LK_OK;
    }
    if (status < 0 || (status = join(store->context, file, step, file_names[0])) < 0) return status;
    return lk__load_tensors(store, file, LK__LOAD_MODEL);
}
