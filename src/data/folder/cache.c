/* cache.c - the file of decoded samples: a header, samples, an entry for each file, texts. It is valid only for exactly
 * these files (path, size, time of change) and this sample size. It is replaced as a whole by a rename, and only one
 * process at a time creates it. Digests find damage: of the header and the entries when it is opened, of a sample when
 * it is first read. */
#define _GNU_SOURCE
#include "base/directories.h"
#include "base/hash.h"
#include "data/folder/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, VERSION = 1 };
/* seconds without progress of another process, after which this one creates its own */
static const double STALLED = 60;

typedef struct header {
    char     magic[8];
    uint32_t version, order; /* order: 1, also in the byte order of the machine that wrote it */
    uint64_t count, sample_bytes, scratch;
    int64_t  channels, height, width;
    uint64_t text_bytes, total; /* total: of the file */
    uint64_t entries_digest, text_digest;
    uint64_t digest; /* of all before it */
} header;

typedef struct entry {
    int64_t  bytes, changed; /* of the image file */
    uint64_t digest;         /* of the sample */
    uint64_t path, broken;   /* offsets in the texts; broken: 0 if it is not */
} entry;

struct lk__data_folder_cache {
    lk_context   *context;
    size_t        count, sample_bytes, total;
    const char   *map;
    const entry  *entries;
    const char   *text;
    atomic_uchar *checked; /* by sample: its digest was compared */
    atomic_bool   damaged;
    char          path[LK__PATH];
};

/* Four lanes of 8 bytes: about as fast as memory is read. Not collision-resistant, as nobody gains from a wrong
 * cache. */
static uint64_t digest_of(const void *data, size_t bytes)
{
    const uint64_t       prime = 0x9E3779B97F4A7C15u;
    const unsigned char *at = data;
    uint64_t             lanes[4] = {1, 2, 3, 4}, words[4];
    size_t               left = bytes;
    for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
        memcpy(words, at, sizeof words);
        for (int i = 0; i < 4; i++) lanes[i] = ((lanes[i] << 29 | lanes[i] >> 35) ^ words[i]) * prime;
    }
    uint64_t hash = lk__hash64(at, left, bytes);
    return lk__hash64(lanes, sizeof lanes, hash);
}

static uint64_t header_digest(const header *h) { return digest_of(h, offsetof(header, digest)); }

static header make_header(const lk__data_folder *f, size_t text_bytes)
{
    header h = {.magic = "lkimages",
                .version = VERSION,
                .order = 1,
                .count = f->list.count,
                .sample_bytes = lk__data_folder_sample_bytes(f),
                .scratch = f->decoder.scratch,
                .channels = f->decoder.target.channels,
                .height = f->decoder.height,
                .width = f->decoder.width,
                .text_bytes = text_bytes};
    h.total = lk__round_up(HEADER_BYTES + h.count * h.sample_bytes, 8) + h.count * sizeof(entry) + text_bytes;
    return h;
}

/* ---- reading ---- */

void lk__data_folder_cache_close(lk__data_folder_cache *c)
{
    if (!c) return;
    if (c->map) munmap((void *)c->map, c->total);
    lk__free(c->context, LK_MEMORY_DATA, c->checked, c->count * sizeof *c->checked);
    lk__free(c->context, LK_MEMORY_OTHER, c, sizeof *c);
}

/* The paths in the file are relative to the root, so that the folder may be moved together with its cache. */
static const char *relative_path(const lk__data_folder *f, size_t i)
{
    return lk__data_folder_path(f, i) + strlen(f->root) + 1;
}

/* Whether the mapped file is what make_header would give for these files, with entries that are not damaged. */
static bool is_for_folder(lk__data_folder_cache *c, const lk__data_folder *f)
{
    header h;
    memcpy(&h, c->map, sizeof h);
    header same = make_header(f, h.text_bytes);
    same.scratch = h.scratch;
    same.entries_digest = h.entries_digest;
    same.text_digest = h.text_digest;
    same.digest = header_digest(&same);
    if (memcmp(&h, &same, sizeof h) != 0 || h.total != c->total || h.text_bytes < 1) return false;
    c->entries = (const entry *)(c->map + lk__round_up(HEADER_BYTES + h.count * h.sample_bytes, 8));
    c->text = (const char *)(c->entries + h.count);
    if (digest_of(c->entries, h.count * sizeof(entry)) != h.entries_digest ||
        digest_of(c->text, h.text_bytes) != h.text_digest || c->text[h.text_bytes - 1] != 0)
        return false;
    for (size_t i = 0; i < f->list.count; i++) {
        const entry                *e = &c->entries[i];
        const lk__data_folder_file *file = &f->list.files[i];
        if (e->bytes != file->bytes || e->changed != file->changed || e->path >= h.text_bytes ||
            e->broken >= h.text_bytes || strcmp(c->text + e->path, relative_path(f, i)) != 0)
            return false;
    }
    return true;
}

/* Takes over what the passes had found. */
static lk_status take_results(const lk__data_folder_cache *c, lk__data_folder *f)
{
    header h;
    memcpy(&h, c->map, sizeof h);
    f->decoder.scratch = h.scratch;
    for (size_t i = 0; i < f->list.count; i++) {
        lk__data_folder_file *file = &f->list.files[i];
        file->number = i;
        if (c->entries[i].broken && !file->broken &&
            !(file->broken = lk__strdup(f->context, c->text + c->entries[i].broken)))
            return LK_ENOMEM;
    }
    return LK_OK;
}

/* LK_END: there is none, or it is not for these files. */
static lk_status map_cache(lk__data_folder *f, const char *path)
{
    struct stat            about;
    lk_status              status = LK_ENOMEM;
    int                    file = open(path, O_RDONLY | O_CLOEXEC);
    lk__data_folder_cache *c = file < 0 ? NULL : lk__alloc(f->context, LK_MEMORY_OTHER, sizeof *c);
    if (file < 0) return LK_END;
    if (!c) goto done;
    c->context = f->context;
    c->count = f->list.count;
    c->sample_bytes = lk__data_folder_sample_bytes(f);
    snprintf(c->path, sizeof c->path, "%s", path);
    status = LK_END;
    if (fstat(file, &about) != 0 || about.st_size < HEADER_BYTES) goto done;
    c->total = (size_t)about.st_size;
    c->map = mmap(NULL, c->total, PROT_READ, MAP_SHARED, file, 0);
    if (c->map == MAP_FAILED) c->map = NULL;
    if (!c->map || !is_for_folder(c, f)) goto done;
    c->checked = lk__alloc(f->context, LK_MEMORY_DATA, c->count * sizeof *c->checked);
    status = c->checked ? take_results(c, f) : LK_ENOMEM;
done:
    close(file);
    if (status == LK_OK)
        f->cache = c;
    else
        lk__data_folder_cache_close(c);
    return status;
}

const unsigned char *lk__data_folder_cache_get(lk__data_folder_cache *c, size_t number)
{
    const char *sample = c->map + HEADER_BYTES + number * c->sample_bytes;
    if (atomic_load_explicit(&c->checked[number], memory_order_relaxed)) return (const unsigned char *)sample;
    if (digest_of(sample, c->sample_bytes) == c->entries[number].digest) {
        atomic_store_explicit(&c->checked[number], 1, memory_order_relaxed);
        return (const unsigned char *)sample;
    }
    if (!atomic_exchange(&c->damaged, true)) {
        unlink(c->path); /* the next start creates it anew */
        lk__log(c->context, LK_LOG_WARNING, "%s is damaged and was removed: samples are decoded from their files",
                c->path);
    }
    return NULL;
}

/* ---- writing ---- */

typedef struct writer {
    lk__data_folder *folder;
    int              file;
    entry           *entries;
    char            *text;
    size_t           text_bytes;
    atomic_int       error; /* errno of a write */
} writer;

static bool write_at(writer *w, const void *data, size_t bytes, uint64_t offset)
{
    const char *at = data;
    while (bytes) {
        ssize_t n = pwrite(w->file, at, bytes < 1u << 30 ? bytes : 1u << 30, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            atomic_store(&w->error, n < 0 ? errno : ENOSPC);
            return false;
        }
        at += n, bytes -= (size_t)n, offset += (uint64_t)n;
    }
    return true;
}

static lk_status put_sample(void *user, size_t i, const unsigned char *sample)
{
    writer *w = user;
    size_t  bytes = lk__data_folder_sample_bytes(w->folder);
    w->entries[i].digest = digest_of(sample, bytes);
    return write_at(w, sample, bytes, HEADER_BYTES + (uint64_t)i * bytes) ? LK_OK : LK_EIO;
}

static size_t add_text(char *text, size_t *used, const char *added)
{
    size_t at = *used, bytes = strlen(added) + 1;
    if (text) memcpy(text + at, added, bytes);
    *used += bytes;
    return at;
}

/* Entries and texts. The first byte of the texts is a NUL, so that no text has offset 0. */
static lk_status fill_tables(writer *w)
{
    const lk__data_folder *f = w->folder;
    size_t                 used = 1;
    for (size_t i = 0; i < f->list.count; i++) {
        add_text(NULL, &used, relative_path(f, i));
        if (f->list.files[i].broken) add_text(NULL, &used, f->list.files[i].broken);
    }
    w->text_bytes = used;
    if (!(w->text = lk__alloc(f->context, LK_MEMORY_OTHER, used))) return LK_ENOMEM;
    used = 1;
    for (size_t i = 0; i < f->list.count; i++) {
        entry                      *e = &w->entries[i];
        const lk__data_folder_file *file = &f->list.files[i];
        e->bytes = file->bytes;
        e->changed = file->changed;
        e->path = add_text(w->text, &used, relative_path(f, i));
        e->broken = file->broken ? add_text(w->text, &used, file->broken) : 0;
    }
    return LK_OK;
}

/* The tables, then the header, so that a file with a header is whole. */
static bool write_tables(writer *w)
{
    header   h = make_header(w->folder, w->text_bytes);
    size_t   entries_bytes = h.count * sizeof(entry);
    uint64_t at = lk__round_up(HEADER_BYTES + h.count * h.sample_bytes, 8);
    h.entries_digest = digest_of(w->entries, entries_bytes);
    h.text_digest = digest_of(w->text, w->text_bytes);
    h.digest = header_digest(&h);
    if (!write_at(w, w->entries, entries_bytes, at) || !write_at(w, w->text, w->text_bytes, at + entries_bytes) ||
        !write_at(w, &h, sizeof h, 0))
        return false;
    if (fsync(w->file) == 0) return true;
    atomic_store(&w->error, errno);
    return false;
}

static lk_status write_cache(lk__data_folder *f, int file, const char *temporary, const char *path)
{
    writer    w = {.folder = f, .file = file};
    size_t    entries_bytes = f->list.count * sizeof *w.entries;
    lk_status status = lk__data_folder_scan(f);
    if (status < 0) return status;
    if (!(w.entries = lk__alloc(f->context, LK_MEMORY_OTHER, entries_bytes))) return LK_ENOMEM;
    if (ftruncate(file, 0) != 0) atomic_store(&w.error, errno);
    if ((status = lk__data_folder_decode_all(f, put_sample, &w)) == LK_OK) status = fill_tables(&w);
    if (status == LK_OK && (atomic_load(&w.error) || !write_tables(&w))) status = LK_EIO;
    if (status == LK_OK && rename(temporary, path) != 0) {
        atomic_store(&w.error, errno);
        status = LK_EIO;
    }
    if (status == LK_EIO)
        lk__fail(f->context, LK_EIO, "%s: cannot write the cache: %s", path, strerror(atomic_load(&w.error)));
    lk__free(f->context, LK_MEMORY_OTHER, w.entries, entries_bytes);
    lk__free(f->context, LK_MEMORY_OTHER, w.text, w.text_bytes);
    return status;
}

/* ---- one writer at a time ---- */

static void pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL); }

static bool is_still(int file, const char *path)
{
    struct stat here, there;
    return fstat(file, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

/* Opens and locks the temporary file. A lock ends with its process, and the file's time shows that its writer works; if
 * that stops, or the file system has no locks, this process uses a temporary of its own (the rename still replaces the
 * cache as a whole). */
static int lock_temporary(lk_context *context, char temporary[LK__PATH], const char *path)
{
    struct timespec seen = {0};
    double          since = lk__now();
    bool            told = false;
    if (!lk__path(temporary, "%s.tmp", path)) return -1;
    for (;; pause_briefly()) {
        struct stat about;
        int         file = open(temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file < 0) return -1;
        bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
        if (locked && is_still(file, temporary)) return file;
        bool busy = !locked && errno == EWOULDBLOCK && fstat(file, &about) == 0;
        close(file);
        if (locked) continue; /* its writer has just renamed it */
        if (busy && (about.st_mtim.tv_sec != seen.tv_sec || about.st_mtim.tv_nsec != seen.tv_nsec)) {
            seen = about.st_mtim;
            since = lk__now();
        }
        if (!busy || lk__now() - since > STALLED) break;
        if (!told) lk__log(context, LK_LOG_INFO, "%s: waiting for another process to create it", path);
        told = true;
    }
    if (!lk__path(temporary, "%s.tmp.%ld", path, (long)getpid())) return -1;
    return open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

/* DIRECTORY/HASH.images: the hash is of what selects files and samples, so that a changed list replaces its own
 * cache. */
static bool name_cache(char path[LK__PATH], const char *directory, const lk__data_folder *f)
{
    char text[PATH_MAX + 128], *whole = realpath(f->root, NULL);
    int  length = snprintf(text, sizeof text, "%s|%d|%.17g|%d|%lldx%lld", whole ? whole : f->root,
                          f->holdout > 0 ? (int)f->split : -1, f->holdout, f->decoder.target.channels,
                           (long long)f->decoder.height, (long long)f->decoder.width);
    free(whole);
    return length > 0 && length < (int)sizeof text &&
           lk__path(path, "%s/%016llx.images", directory, (unsigned long long)lk__hash64(text, (size_t)length, 0));
}

lk_status lk__data_folder_cache_open(lk__data_folder *f, const char *directory)
{
    char      path[LK__PATH], temporary[LK__PATH];
    lk_status status = lk__make_directories(f->context, directory);
    if (status < 0) return status;
    if (!name_cache(path, directory, f))
        return lk__fail(f->context, LK_EINVAL, "%s: the path of the cache is too long", directory);
    if ((status = map_cache(f, path)) != LK_END) return status;
    int file = lock_temporary(f->context, temporary, path);
    if (file < 0)
        return lk__fail(f->context, lk__is_path_mistake(errno) ? LK_EINVAL : LK_EIO, "%s: cannot create the cache: %s",
                        path, strerror(errno));
    status = map_cache(f, path); /* perhaps it was created meanwhile */
    if (status == LK_END && (status = write_cache(f, file, temporary, path)) == LK_OK &&
        (status = map_cache(f, path)) == LK_END)
        status = lk__fail(f->context, LK_EIO,
                          "%s: the images changed while their cache was being created; run the command again", path);
    if (is_still(file, temporary)) unlink(temporary);
    close(file);
    return status;
}
