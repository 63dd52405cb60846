/* pass.c - reads one file, and runs over all files of a list on several threads. What is found is stored by file, so
 * that it does not depend on the threads. */
#define _GNU_SOURCE
#include "base/pool.h"
#include "data/folder/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 64 << 10, LARGEST_HEADER = 16 << 20 }; /* bytes that are read for a header: at first, at most */

static lk_status open_file(const char *path, int *file, int64_t *bytes, char message[LK__IMAGE_MESSAGE])
{
    struct stat about;
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe that took its place must not block */
    if (*file >= 0 && fstat(*file, &about) == 0 && S_ISREG(about.st_mode)) {
        *bytes = about.st_size;
        return LK_OK;
    }
    snprintf(message, LK__IMAGE_MESSAGE, "cannot be read: %s", *file < 0 ? strerror(errno) : "it is not a file");
    if (*file >= 0) close(*file);
    return LK_EFORMAT;
}

/* Reads `bytes` from the start. Fewer arrive only if the file was truncated meanwhile. */
static lk_status read_start(int file, void *out, size_t bytes, size_t *got, char message[LK__IMAGE_MESSAGE])
{
    *got = 0;
    while (*got < bytes) {
        ssize_t n = pread(file, (char *)out + *got, bytes - *got, (off_t)*got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            snprintf(message, LK__IMAGE_MESSAGE, "cannot be read: %s", strerror(errno));
            return LK_EIO;
        }
        if (n == 0) break;
        *got += (size_t)n;
    }
    return LK_OK;
}

typedef struct probed_file {
    lk__image_info info;
    int64_t        bytes; /* of the file */
} probed_file;

/* Reads the header from more and more of the file. buffer has HEADER bytes. */
static lk_status probe_file(lk_context *context, const char *path, void *buffer, probed_file *probed,
                            char message[LK__IMAGE_MESSAGE])
{
    int       file;
    size_t    got, room = HEADER;
    void     *larger = NULL;
    lk_status status = open_file(path, &file, &probed->bytes, message);
    if (status < 0) return status;
    for (;;) {
        size_t need = probed->bytes < (int64_t)room ? (size_t)probed->bytes : room;
        status = read_start(file, larger ? larger : buffer, need, &got, message);
        if (status == LK_OK)
            status =
                lk__image_probe(larger ? larger : buffer, got, got == (size_t)probed->bytes, &probed->info, message);
        if (status != LK_END) break;
        lk__free(context, LK_MEMORY_DATA, larger, larger ? room : 0);
        larger = NULL;
        if (room == LARGEST_HEADER) {
            snprintf(message, LK__IMAGE_MESSAGE, "has no pixels within its first %d bytes", LARGEST_HEADER);
            status = LK_EUNSUPPORTED;
            break;
        }
        room = LARGEST_HEADER;
        if (!(larger = lk__alloc(context, LK_MEMORY_DATA, room))) {
            snprintf(message, LK__IMAGE_MESSAGE, "needs more memory for its header than is available");
            status = LK_ENOMEM;
            break;
        }
    }
    lk__free(context, LK_MEMORY_DATA, larger, room);
    close(file);
    return status;
}

lk_status lk__data_folder_probe(lk_context *context, const char *path, lk__image_info *info,
                                char message[LK__IMAGE_MESSAGE])
{
    probed_file probed;
    void       *buffer = lk__alloc(context, LK_MEMORY_DATA, HEADER);
    if (!buffer) return LK_ENOMEM;
    lk_status status = probe_file(context, path, buffer, &probed, message);
    if (status >= 0) *info = probed.info;
    lk__free(context, LK_MEMORY_DATA, buffer, HEADER);
    return status;
}

/* Scratch memory: the file, then what its decoding needs. */
static size_t scratch_of(const lk__image_info *info, int64_t bytes, const lk__image_target *target)
{
    return lk__round_up((size_t)bytes + 1, LK__ALIGN) + lk__image_scratch(info, target);
}

const char lk__data_folder_changed[] = "has changed since the data set was opened";

lk_status lk__data_folder_decode(const lk__data_folder_decoder *d, const char *path, void *scratch,
                                 unsigned char *sample, char message[LK__IMAGE_MESSAGE])
{
    int            file;
    int64_t        bytes, height, width;
    size_t         got = 0;
    lk__image_info info;
    lk_status      status = open_file(path, &file, &bytes, message);
    if (status < 0) return status;
    if ((uint64_t)bytes >= d->scratch) {
        snprintf(message, LK__IMAGE_MESSAGE, "%s", lk__data_folder_changed);
        status = LK_EFORMAT;
    }
    if (status == LK_OK) status = read_start(file, scratch, (size_t)bytes, &got, message);
    close(file);
    if (status == LK_OK) status = lk__image_probe(scratch, got, true, &info, message);
    if (status != LK_OK) return status;
    lk__image_size(&info, &height, &width);
    if (scratch_of(&info, bytes, &d->target) > d->scratch ||
        (!d->target.height && (height != d->height || width != d->width))) {
        snprintf(message, LK__IMAGE_MESSAGE, "%s", lk__data_folder_changed);
        return LK_EFORMAT;
    }
    return lk__image_decode(&(lk__image_file){&info, scratch, got}, &d->target,
                            (char *)scratch + lk__round_up((size_t)bytes + 1, LK__ALIGN), sample, message);
}

/* ---- passes over all files ---- */

typedef struct pass {
    lk__data_folder    *folder;
    lk__data_folder_put put;
    void               *user;
    char               *memory; /* for each thread */
    size_t              memory_bytes;
    atomic_size_t       scratch;   /* the largest need found */
    atomic_size_t       different; /* the first image of another size; SIZE_MAX: none */
    atomic_int          status;    /* a failure that is not a file's: memory, or of put */
    atomic_size_t       done;
    double              next_report;
} pass;

static void raise_to(atomic_size_t *most, size_t value)
{
    size_t seen = atomic_load(most);
    while (value > seen && !atomic_compare_exchange_weak(most, &seen, value)) {}
}

static void lower_to(atomic_size_t *least, size_t value)
{
    size_t seen = atomic_load(least);
    while (value < seen && !atomic_compare_exchange_weak(least, &seen, value)) {}
}

static void stop_pass(pass *p, lk_status status)
{
    int none = LK_OK;
    atomic_compare_exchange_strong(&p->status, &none, status);
}

static void note_broken(pass *p, size_t i, lk_status status, const char *reason)
{
    if (status == LK_ENOMEM || !(p->folder->list.files[i].broken = lk__strdup(p->folder->context, reason)))
        stop_pass(p, LK_ENOMEM);
}

/* Every ten seconds, by the thread that called. */
static void report_progress(pass *p, int worker, const char *what)
{
    size_t done = atomic_fetch_add(&p->done, 1) + 1;
    if (worker != 0 || lk__now() < p->next_report) return;
    p->next_report = lk__now() + 10;
    lk__log(p->folder->context, LK_LOG_INFO, "%s: %zu of %zu images %s", p->folder->root, done, p->folder->list.count,
            what);
}

static void scan_file(void *argument, int64_t tile, int worker)
{
    pass                          *p = argument;
    size_t                         i = (size_t)tile;
    probed_file                    probed;
    int64_t                        height, width;
    char                           message[LK__IMAGE_MESSAGE];
    lk__data_folder_file          *file = &p->folder->list.files[i];
    const lk__data_folder_decoder *decoder = &p->folder->decoder;
    if (file->broken || atomic_load(&p->status) < 0) return;
    lk_status status = probe_file(p->folder->context, lk__data_folder_path(p->folder, i),
                                  p->memory + (size_t)worker * p->memory_bytes, &probed, message);
    report_progress(p, worker, "checked");
    if (status < 0) {
        note_broken(p, i, status, message);
        return;
    }
    lk__image_size(&probed.info, &height, &width);
    int64_t bytes = probed.bytes > file->bytes ? probed.bytes : file->bytes;
    raise_to(&p->scratch, scratch_of(&probed.info, bytes, &decoder->target));
    if (!decoder->target.height && (height != decoder->height || width != decoder->width)) lower_to(&p->different, i);
}

static void decode_file(void *argument, int64_t tile, int worker)
{
    pass          *p = argument;
    size_t         i = (size_t)tile;
    char           message[LK__IMAGE_MESSAGE], *memory = p->memory + (size_t)worker * p->memory_bytes;
    unsigned char *sample = (unsigned char *)memory + lk__round_up(p->folder->decoder.scratch, LK__ALIGN);
    if (p->folder->list.files[i].broken || atomic_load(&p->status) < 0) return;
    lk_status status =
        lk__data_folder_decode(&p->folder->decoder, lk__data_folder_path(p->folder, i), memory, sample, message);
    report_progress(p, worker, "decoded");
    if (status < 0)
        note_broken(p, i, status, message);
    else if (p->put && (status = p->put(p->user, i, sample)) < 0)
        stop_pass(p, status);
}

/* A pool of its own: that of the context may be in use by another thread. */
static lk_status run_pass(pass *p, lk__tile each, size_t memory_bytes)
{
    lk_context *context = p->folder->context;
    int         threads = lk_context_threads(context);
    lk__pool   *pool = NULL;
    lk_status   status = LK_ENOMEM;
    p->memory_bytes = lk__round_up(memory_bytes, LK__ALIGN);
    p->next_report = lk__now() + 10;
    atomic_init(&p->different, SIZE_MAX);
    if (p->memory_bytes > SIZE_MAX / LK__MAX_THREADS)
        return lk__fail(context, LK_ENOMEM, "the images are too large to decode");
    if ((p->memory = lk__alloc(context, LK_MEMORY_DATA, (size_t)threads * p->memory_bytes)) &&
        (status = lk__pool_create(context, threads, &pool)) == LK_OK) {
        lk__pool_run(pool, (int64_t)p->folder->list.count, each, p);
        status = (lk_status)atomic_load(&p->status);
        if (status == LK_ENOMEM) lk__fail(context, status, "out of memory: cannot decode images");
    }
    lk__pool_free(pool);
    lk__free(context, LK_MEMORY_DATA, p->memory, (size_t)threads * p->memory_bytes);
    return status;
}

lk_status lk__data_folder_scan(lk__data_folder *f)
{
    pass           p = {.folder = f};
    lk__image_info info;
    int64_t        height = 0, width = 0;
    char           message[LK__IMAGE_MESSAGE];
    lk_status      status = run_pass(&p, scan_file, HEADER);
    if (status < 0) return status;
    f->decoder.scratch = atomic_load(&p.scratch);
    size_t other = atomic_load(&p.different);
    if (other == SIZE_MAX) return LK_OK;
    if (lk__data_folder_probe(f->context, lk__data_folder_path(f, other), &info, message) == LK_OK)
        lk__image_size(&info, &height, &width);
    return lk__fail(f->context, LK_EINVAL,
                    "%s is %lldx%lld (height x width) and %s is %lldx%lld: images of different sizes need --size H,W, "
                    "to which they are resized",
                    f->first, (long long)f->decoder.height, (long long)f->decoder.width, lk__data_folder_path(f, other),
                    (long long)height, (long long)width);
}

lk_status lk__data_folder_decode_all(lk__data_folder *f, lk__data_folder_put put, void *user)
{
    pass p = {.folder = f, .put = put, .user = user};
    return run_pass(&p, decode_file, lk__round_up(f->decoder.scratch, LK__ALIGN) + lk__data_folder_sample_bytes(f));
}
