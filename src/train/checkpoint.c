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

enum { PARTS = 5 };

/* The parts of a saver's memory, in this order: staging, tensors, names, digests, exchange. */
static size_t layout_memory(const lk_plan *plan, uint64_t chunk, int ranks, size_t at[PARTS])
{
    uint64_t files[2];
    size_t   entries = lk__image_entries(plan);
    lk__image_bounds(plan, files);
    at[0] = 0;
    at[1] = lk__round_up(lk__safetensors_staging_bytes(), LK__ALIGN);
    at[2] = at[1] + lk__round_up(entries * sizeof(lk__safetensors_tensor), LK__ALIGN);
    at[3] = at[2] + lk__round_up(entries * 256, LK__ALIGN);
    at[4] = at[3] + lk__round_up(lk__saver_digests(files, chunk) * sizeof(uint64_t), LK__ALIGN);
    return at[4] + lk__image_exchange_bytes(plan, ranks, entries);
}

size_t lk__saver_bytes(const lk_plan *plan, uint64_t chunk, int ranks)
{
    size_t at[PARTS];
    return layout_memory(plan, chunk, ranks, at);
}

/* No more than the larger file has. */
static size_t chunk_room(const lk_plan *plan, uint64_t chunk)
{
    uint64_t files[2];
    lk__image_bounds(plan, files);
    uint64_t larger = files[0] > files[1] ? files[0] : files[1];
    return (size_t)(larger < chunk ? larger : chunk);
}

size_t lk_checkpoint_bytes(const lk_plan *plan)
{
    return lk__saver_bytes(plan, LK__CHUNK, 1) + chunk_room(plan, LK__CHUNK);
}

static lk_status keep_algorithms(lk__train_saver *s, const char *lines)
{
    if (!lines) return LK_OK;
    s->algorithms_bytes = lk__state_algorithms(lines, NULL, 0);
    if (s->algorithms_bytes > LK__STATE_ALGORITHMS)
        return lk__fail(s->context, LK_EINVAL,
                        "the program's tuned algorithms need %zu bytes in a checkpoint: at most %d are supported",
                        s->algorithms_bytes, LK__STATE_ALGORITHMS);
    if (!(s->algorithms = lk__alloc(s->context, LK_MEMORY_OTHER, s->algorithms_bytes))) return LK_ENOMEM;
    (void)lk__state_algorithms(lines, s->algorithms, s->algorithms_bytes);
    return LK_OK;
}

lk_status lk__saver_init_chunks(lk__train_saver *s, lk_store *store, uint64_t chunk, int ranks)
{
    size_t at[PARTS];
    *s = (lk__train_saver){
        .context = store->context,
        .store = store,
        .bytes = layout_memory(store->plan, chunk, ranks, at),
        .metadata = {{"format", "pt"}}, /* Hugging Face's libraries ask for it: the tensors are PyTorch's */
        .writers = lk__writers_alone(store->context),
        .chunk_bytes = chunk};
    char *memory = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->bytes);
    if (!memory) return LK_ENOMEM;
    s->staging = memory;
    s->tensors = (void *)(memory + at[1]);
    s->names = (void *)(memory + at[2]);
    s->digests[0] = (void *)(memory + at[3]);
    s->exchange = at[4] < s->bytes ? memory + at[4] : NULL;
    lk__state_writer(s->writer);
    return keep_algorithms(s, store->plan->algorithms);
}

lk_status lk__saver_init(lk__train_saver *s, lk_store *store) { return lk__saver_init_chunks(s, store, LK__CHUNK, 1); }

lk_status lk__saver_buffer(lk__train_saver *s)
{
    s->chunk_room = chunk_room(s->store->plan, s->chunk_bytes);
    s->chunk = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, s->chunk_room);
    return s->chunk ? LK_OK : LK_ENOMEM;
}

lk_status lk__saver_record(lk__train_saver *s, size_t bytes)
{
    if (bytes > LK__STATE_RECORD)
        return lk__fail(s->context, LK_EINVAL,
                        "the run's options and class names need %zu bytes in a checkpoint: at most %d are supported",
                        bytes, LK__STATE_RECORD);
    s->record = lk__alloc(s->context, LK_MEMORY_CHECKPOINT, bytes);
    s->record_bytes = bytes;
    return s->record ? LK_OK : LK_ENOMEM;
}

void lk__saver_free(lk__train_saver *s)
{
    lk__saver_background_free(s);
    lk__writers_free(&s->writers);
    lk_comm_free(s->group);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->chunk, s->chunk_room);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->staging, s->bytes);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->record, s->record_bytes);
    if (s->context) lk__free(s->context, LK_MEMORY_CHECKPOINT, s->files, s->files_memory);
    if (s->context) lk__free(s->context, LK_MEMORY_OTHER, s->algorithms, s->algorithms_bytes);
    *s = (lk__train_saver){0};
}

/* ---- checks of the directory ---- */

/* Replaces path by its parent directory; false for "/" and ".". The parent of a relative path of one component is
 * ".". */
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
    return status < 0 ? status : lk__lock_check(c, directory, lk__lock_timeout(c));
}

lk_status lk_checkpoint_check(lk_context *c, const char *directory)
{
    return lk_checkpoint_check_files(c, directory, NULL, 0);
}

lk_status lk__checkpoint_open(lk_context *c, const lk__checkpoint_save *save, double timeout, lk__lock *lock)
{
    const char *directory = save->directory;
    lk_status   status = lk__make_directories(c, directory);
    if (status >= 0) status = lk__links_check(c, directory, save->files, save->files_count);
    if (status >= 0) status = lk__lock_acquire(c, directory, timeout, lock);
    if (status >= 0) lk__checkpoint_recover(c, directory);
    return status;
}

/* ---- saving ---- */

/* Keeps `newest` and the keep - 1 before it. Later ones, if any, were skipped as damaged: they stay until the run
 * replaces them. A link to a checkpoint elsewhere stays too. */
static void remove_older(lk_context *c, const char *directory, int64_t newest, int keep)
{
    int64_t steps[LK__CHECKPOINT_STEPS];
    size_t  count = lk__checkpoint_list(directory, steps, LK__CHECKPOINT_STEPS);
    for (size_t i = 0; i < count && i < LK__CHECKPOINT_STEPS; i++) {
        char name[64], path[PATH_MAX];
        if (steps[i] > newest || keep-- > 0) continue;
        lk__checkpoint_name(steps[i], name);
        if (lk__checkpoint_join(c, path, directory, name) < 0 ||
            lk__directory_prune(c, path, &lk__checkpoint_names) < 0)
            lk__log(c, LK_LOG_WARNING, "an old checkpoint could not be removed: %s", lk_context_error(c));
    }
}

/* The state is written before the caller's files: it lists them, so a directory that a crash left is recognised with
 * any of them. */
static lk_status write_rest(lk__train_saver *s, const char *directory, const lk_progress *progress, char sha[2][65])
{
    lk_context       *c = s->context;
    char              file[PATH_MAX];
    lk__state_content content = {.progress = progress,
                                 .dtype = lk__checkpoint_precision(s->store),
                                 .isa = lk__checkpoint_isa(s->store),
                                 .parameters = lk_store_parameters(s->store),
                                 .model = sha[0],
                                 .optimizer = sha[1],
                                 .chunk_bytes = s->chunk_bytes,
                                 .chunks = {s->digests[0], s->digests[1]},
                                 .chunks_count = {lk__chunks_count(&s->cut[0]), lk__chunks_count(&s->cut[1])},
                                 .files = s->digests_text,
                                 .files_bytes = s->digests_bytes,
                                 .writer = s->writer,
                                 .record = s->record,
                                 .record_bytes = s->record_bytes,
                                 .algorithms = s->algorithms,
                                 .algorithms_bytes = s->algorithms_bytes};
    lk_status         status = lk__checkpoint_join(c, file, directory, lk__checkpoint_files[2]);
    if (status < 0 || (status = lk__state_write(c, file, s->staging, lk__safetensors_staging_bytes(), &content)) < 0)
        return status;
    return lk__saver_write_files(s, directory);
}

/* The directory that is written is the one that is locked. One that was moved away or removed is made and locked again;
 * the run ends where another run's has its name, or another run holds it. */
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
                        "%s %s during the run; the directory of that name now holds a checkpoint of another run (step "
                        "%lld)",
                        directory, what, (long long)step);
    }
    lk__lock_release(s->lock);
    *s->lock = other;
    lk__log(c, LK_LOG_WARNING, "%s %s during the run: it was %slocked again", directory, what,
            place == LK__LOCK_MOVED ? "created and " : "");
    return LK_OK;
}

/* A damaged step that holds a file of the user's is neither deleted nor a reason to stop the run at this step, now and
 * whenever it is started again: it gets another name. An intact one is left for lk__directory_create to refuse. */
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
                    "%s is damaged and holds files that are not part of a checkpoint: it was renamed to %s", path,
                    aside);
            return LK_OK;
        }
        if (errno != EEXIST) break;
    }
    return lk__fail(s->context, LK_EIO, "%s is damaged, and cannot be renamed to %s: %s", path, aside, strerror(errno));
}

/* Any failure may be that of a directory that was moved away: LK_END, to try again. */
static lk_status check_moved(const lk__train_saver *s, const char *directory, lk_status status)
{
    return s->lock && lk__lock_find(s->lock, directory) != LK__LOCK_IN_PLACE ? LK_END : status;
}

/* One checkpoint that is being written. */
typedef struct saved_step {
    const char         *directory; /* of the run */
    const lk_progress  *progress;
    char                path[PATH_MAX]; /* the step's, where it will be */
    lk__train_directory written;
    char                sha[2][65];
} saved_step;

/* Rank 0: makes the directory that is written, with the two large files in it. */
static lk_status begin_step(lk__train_saver *s, saved_step *step)
{
    lk_context          *c = s->context;
    const char          *directory = step->directory;
    lk__train_directory *d = &step->written;
    char                 name[64];
    lk__checkpoint_name(step->progress->step, name);
    lk_status status = lk__checkpoint_join(c, step->path, directory, name);
    if (status >= 0) status = lk__make_directories(c, directory);
    if (status < 0 || (status = hold_directory(s, directory)) < 0) return status;
    lk__checkpoint_recover(c, directory);
    if ((status = set_damaged_aside(s, step->path, step->progress->step)) < 0 ||
        (status = lk__directory_create(d, c, step->path, &lk__checkpoint_names)) < 0)
        return check_moved(s, directory, status);
    if ((status = lk__saver_create_files(s, d->temporary)) >= 0) return status;
    lk__directory_abandon(d);
    return check_moved(s, directory, status);
}

/* Rank 0: completes the directory and puts it into place, or discards it. */
static lk_status end_step(lk__train_saver *s, saved_step *step, int keep, lk_status status)
{
    const char          *directory = step->directory;
    lk__train_directory *d = &step->written;
    int64_t              number = step->progress->step;
    if (status >= 0) status = write_rest(s, d->temporary, step->progress, step->sha);
    status = check_moved(s, directory, status);
    if (status != LK_OK) {
        lk__directory_abandon(d);
        return status;
    }
    if ((status = lk__directory_commit(d)) < 0 || (status = lk__links_make(s, directory, number)) < 0 ||
        (status = lk__file_sync_parent(s->context, step->path)) < 0)
        return check_moved(s, directory, status);
    remove_older(s->context, directory, number, keep > 0 ? keep : 1);
    return LK_OK;
}

/* LK_END: the directory was moved away meanwhile, and nothing was written into the one that has its name. */
static lk_status save_step(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    const lk__writers *w = &s->writers;
    char               temporary[PATH_MAX] = "";
    saved_step step = {.directory = directory, .progress = progress, .written = {.context = s->context, .fd = -1}};
    lk_status  status = LK_OK;
    if (w->rank == 0) {
        lk__writers_busy_begin(w, "preparing the directory of a checkpoint");
        status = begin_step(s, &step);
        memcpy(temporary, step.written.temporary, sizeof temporary);
        lk__writers_busy_end(w);
    }
    if ((status = lk__writers_tell(w, status, temporary, sizeof temporary)) != LK_OK) {
        lk__directory_abandon(&step.written);
        return status;
    }
    status = lk__saver_write_chunks(s, temporary, step.sha);
    if (status < 0 && lk__writers_lost(w)) {
        lk__directory_abandon(&step.written);
        return status;
    }
    if (w->rank == 0) {
        lk__writers_busy_begin(w, "completing a checkpoint");
        status = end_step(s, &step, keep, status);
        lk__writers_busy_end(w);
    }
    return lk__writers_tell(w, status, NULL, 0);
}

lk_status lk__saver_save(lk__train_saver *s, const char *directory, const lk_progress *progress, int keep)
{
    enum { ATTEMPTS = 3 };
    lk_context *c = s->context;
    lk_status   status = lk__progress_check(c, "a checkpoint", progress);
    if (status >= 0 && !s->copied[0]) status = lk__saver_measure(s);
    if ((status = lk__writers_agree(&s->writers, status)) < 0) return status;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++)
        if ((status = save_step(s, directory, progress, keep)) <= 0) return status;
    return lk__fail(c, LK_EIO, "%s was moved away or replaced in each of %d attempts to save there", directory,
                    ATTEMPTS);
}

/* Rank 0 opens and locks the directory; all find out who sees it. */
static lk_status open_group(lk__train_saver *s, lk_comm *comm, const lk__checkpoint_save *save, lk__lock *lock)
{
    bool      first = !comm || lk_comm_rank(comm) == 0;
    lk_status status = lk__checkpoint_files_check(s->context, save->files, save->files_count);
    if (first && status >= 0) {
        if (comm) lk_comm_busy_begin(comm, "waiting for the lock of the checkpoint directory");
        status = lk__checkpoint_open(s->context, save, SAVE_LOCK_TIMEOUT, lock);
        if (comm) lk_comm_busy_end(comm);
    }
    if (status >= 0) status = lk__saver_buffer(s);
    if (status >= 0 && first) status = lk__saver_files(s, save->files, save->files_count);
    if ((status = lk__group_agree(s->context, comm, status, NULL)) < 0) return status;
    return lk__writers_find(&s->writers, s->context, comm, save->directory);
}

lk_status lk__checkpoint_save_chunks(lk_store *store, lk_comm *comm, const lk__checkpoint_save *save,
                                     uint64_t chunk_bytes)
{
    lk__train_saver saver;
    lk__lock        lock = LK__LOCK_INIT;
    lk_status       status = lk__saver_init_chunks(&saver, store, chunk_bytes, comm ? lk_comm_size(comm) : 1);
    status = lk__group_agree(store->context, comm, status, NULL);
    if (status >= 0) status = open_group(&saver, comm, save, &lock);
    if (status >= 0) status = lk__saver_save(&saver, save->directory, save->progress, save->keep);
    lk__saver_free(&saver);
    lk__lock_release(&lock);
    return status;
}

lk_status lk_checkpoint_save_group(lk_store *store, lk_comm *comm, const char *directory, const lk_progress *progress,
                                   int keep, const lk_checkpoint_file *files, int count)
{
    lk__checkpoint_save save = {directory, progress, keep, files, count};
    return lk__checkpoint_save_chunks(store, comm, &save, LK__CHUNK);
}

lk_status lk_checkpoint_save_files(lk_store *store, const char *directory, const lk_progress *progress, int keep,
                                   const lk_checkpoint_file *files, int count)
{
    return lk_checkpoint_save_group(store, NULL, directory, progress, keep, files, count);
}

lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep)
{
    return lk_checkpoint_save_files(store, directory, progress, keep, NULL, 0);
}

lk_status lk_weights_save(lk_store *store, const char *file)
{
    lk__train_saver saver;
    size_t          count = 0;
    lk_status       status = lk__saver_init(&saver, store);
    if (status >= 0) status = lk__image_model(&saver, &count);
    if (status >= 0) {
        lk__safetensors_content content = {saver.tensors, count, saver.metadata, 1};
        lk__safetensors_staging staging = {saver.staging, lk__safetensors_staging_bytes()};
        status = lk__safetensors_write(store->context, file, &content, staging, NULL);
    }
    lk__saver_free(&saver);
    return status;
}
