/* load_group.c - reads a checkpoint on all ranks that see it. */
#include "train/load_group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST_CHUNK = 64 << 20 }; /* bytes; files with larger ones are read by rank 0 alone */

typedef enum request_kind { REQUEST_END, REQUEST_VERIFY, REQUEST_LOAD, REQUEST_WRITE } request_kind;

/* What rank 0 wants all ranks to do, itself included. */
typedef struct request {
    int32_t kind;
    char    directory[PATH_MAX];
    char    digest[65];       /* of its state.json: a rank that has another one there does not see this checkpoint */
    lk__exchange_range range; /* REQUEST_WRITE: whole elements, which rank 0 sends */
} request;

/* ---- loading ---- */

typedef struct load_job {
    lk__train_saver       saver; /* its tables, and the readers in place of writers */
    lk__safetensors_image image;
    char                 *memory; /* the exchange, lists and ranges */
    size_t                memory_bytes;
    lk__exchange_list    *lists;
    lk__exchange_range   *ranges;
} load_job;

static lk_status prepare_load(load_job *j, lk_store *store, uint64_t chunk, int ranks)
{
    size_t    exchange = lk__round_up(lk__store_exchange_bytes(ranks), LK__ALIGN);
    size_t    tensors = lk__image_entries(store->plan); /* of either file at most */
    lk_status status = lk__saver_init_chunks(&j->saver, store, chunk, 1);
    if (status < 0 || (status = lk__saver_buffer(&j->saver)) < 0) return status;
    j->memory_bytes = exchange + (size_t)ranks * sizeof *j->lists + (tensors + (size_t)ranks) * sizeof *j->ranges;
    if (!(j->memory = lk__alloc(store->context, LK_MEMORY_OTHER, j->memory_bytes))) return LK_ENOMEM;
    j->lists = (void *)(j->memory + exchange);
    j->ranges = (void *)(j->lists + ranks);
    return LK_OK;
}

typedef struct open_file {
    const char *path;
    int         fd;
} open_file;

static lk_status read_range(lk_context *c, open_file from, uint64_t at, char *out, size_t bytes)
{
    while (bytes) {
        ssize_t n = pread(from.fd, out, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return lk__fail(c, LK_EIO, "%s: cannot read at byte %llu: %s", from.path, (unsigned long long)at,
                            n < 0 ? strerror(errno) : "the file ends there");
        out += n, at += (uint64_t)n, bytes -= (size_t)n;
    }
    return LK_OK;
}

/* LK_END if these bytes of the file differ. */
static lk_status compare_range(lk_context *c, open_file from, uint64_t at, const char *expected, size_t bytes)
{
    char found[4096];
    while (bytes) {
        size_t    now = bytes < sizeof found ? bytes : sizeof found;
        lk_status status = read_range(c, from, at, found, now);
        if (status < 0) return status;
        if (memcmp(expected, found, now) != 0) return LK_END;
        at += now, expected += now, bytes -= now;
    }
    return LK_OK;
}

/* Whether a file is what the store would write: same names, shapes, types and order. Rank 0. Each copy of a part of the
 * header formats all of it, so parts are as large as a chunk. */
static lk_status compare_layout(load_job *j, open_file from, int file)
{
    lk__train_saver *s = &j->saver;
    lk_status        status = LK_OK;
    struct stat      info;
    if (lk__image_make(s, file, &j->image) < 0 || fstat(from.fd, &info) != 0 ||
        (uint64_t)info.st_size != j->image.bytes)
        return LK_END;
    for (uint64_t at = 0; at < j->image.header && status == LK_OK; at += s->chunk_room) {
        size_t left = (size_t)(j->image.header - at), bytes = left < s->chunk_room ? left : s->chunk_room;
        if (lk__safetensors_copy(&j->image, at, s->chunk, bytes) < 0) return LK_END;
        status = compare_range(s->context, from, at, s->chunk, bytes);
    }
    return status;
}

/* Every reader reads its chunk of a round, and all get of it what they have memory for. */
static lk_status load_file(load_job *j, open_file from, int file)
{
    lk__train_saver *s = &j->saver;
    lk__exchange     with = {s->writers.comm, j->memory};
    lk_status        status = lk__image_make(s, file, &j->image);
    size_t           index;
    for (size_t i = 0; i < lk__chunks_rounds(&s->cut[file]) && status >= 0; i++) {
        const lk__chunks *cut = &s->cut[file];
        size_t            header = 0;
        if (lk__chunks_find(cut, lk__saver_turn(s, file), i, &index)) {
            uint64_t first = lk__chunks_offset(cut, index);
            size_t   bytes = lk__chunks_bytes(cut, index);
            if (first < j->image.header) header = (size_t)(j->image.header - first);
            if (header > bytes) header = bytes;
            lk__writers_busy_begin(&s->writers, "reading a checkpoint");
            status = read_range(s->context, from, first, s->chunk, bytes);
            lk__writers_busy_end(&s->writers);
        }
        if ((status = lk__writers_agree(&s->writers, status)) < 0) break;
        lk__image_lists(s, (lk__checkpoint_round){&j->image, file, i}, j->lists, j->ranges);
        status = lk__store_scatter(s->store, &with, j->lists, s->chunk + header);
    }
    return status;
}

static lk_status load_both(load_job *j, const char *directory)
{
    lk__train_saver *s = &j->saver;
    lk_context      *c = s->context;
    char             paths[2][PATH_MAX];
    int              fds[2] = {-1, -1};
    lk_status        status = LK_OK;
    for (int i = 0; i < 2 && status >= 0 && s->writers.turn >= 0; i++) {
        status = lk__checkpoint_join(c, paths[i], directory, lk__checkpoint_files[i]);
        if (status < 0 || (fds[i] = open(paths[i], O_RDONLY | O_CLOEXEC | O_NOCTTY)) >= 0) continue;
        status = lk__fail(c, LK_EIO, "%s: cannot open: %s", paths[i], strerror(errno));
    }
    status = lk__writers_agree(&s->writers, status);
    for (int i = 0; i < 2 && status == LK_OK; i++) { /* both, before either is copied */
        if (s->writers.rank == 0) {
            lk__writers_busy_begin(&s->writers, "reading a checkpoint");
            status = compare_layout(j, (open_file){paths[i], fds[i]}, i);
            lk__writers_busy_end(&s->writers);
        }
        status = lk__writers_tell(&s->writers, status, NULL, 0);
    }
    if (status == LK_OK && (status = lk__store_write_begin(s->store)) >= 0) {
        for (int i = 0; i < 2 && status >= 0; i++) status = load_file(j, (open_file){paths[i], fds[i]}, i);
        status = lk__store_write_end(s->store, status);
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    return status;
}

static lk_status load_parts(lk__load_group *g, const request *r, const lk__state *state, const lk__writers *readers)
{
    load_job  job = {.memory = NULL};
    uint64_t  chunk = state->chunk_bytes;
    lk_status status = LK_OK;
    status = lk_comm_broadcast(g->comm, &chunk, sizeof chunk, LK_U8, 0, NULL); /* to those that do not see it */
    if (status < 0) return status;
    if (chunk < 8 || chunk % 8 || chunk > LARGEST_CHUNK)
        return LK_END; /* elements are whole in chunks of a multiple of 8 */
    status = prepare_load(&job, g->store, chunk, lk_comm_size(g->comm));
    if ((status = lk__group_agree(g->store->context, g->comm, status, NULL)) >= 0) {
        job.saver.writers = *readers; /* borrowed */
        status = load_both(&job, r->directory);
        job.saver.writers.ranks = NULL;
    }
    lk__free(g->store->context, LK_MEMORY_OTHER, job.memory, job.memory_bytes);
    lk__saver_free(&job.saver);
    return status;
}

/* ---- requests ---- */

static lk_status verify_parts(lk_context *c, const request *r, const lk__state *state, const lk__writers *readers)
{
    lk_status status = LK_OK;
    if (readers->turn >= 0) {
        void *staging = lk__alloc(c, LK_MEMORY_OTHER, LK__FILE_STAGING);
        lk__writers_busy_begin(readers, "verifying a checkpoint");
        status = staging ? lk__checkpoint_verify_part(c, r->directory, state, readers, staging) : LK_ENOMEM;
        lk__writers_busy_end(readers);
        lk__free(c, LK_MEMORY_OTHER, staging, LK__FILE_STAGING);
    }
    return lk__writers_agree(readers, status);
}

/* What all ranks do. state: rank 0's; the others read it where they see it. */
static lk_status run_request(lk__load_group *g, const request *r, const lk__state *given)
{
    lk_context *c = g->store->context;
    lk__state   own = {.context = c};
    char        path[PATH_MAX];
    bool        opened = !given && lk__checkpoint_join(c, path, r->directory, lk__checkpoint_files[2]) >= 0 &&
                  lk__state_open(c, path, -1, &own) >= 0;
    bool             sees = given || (opened && own.chunks[0] && strcmp(own.sha[2], r->digest) == 0);
    lk__writers      readers;
    const lk__state *state = given ? given : &own;
    lk_status        status = lk__writers_gather(&readers, c, g->comm, sees);
    if (status >= 0)
        status = r->kind == REQUEST_VERIFY ? verify_parts(c, r, state, &readers) : load_parts(g, r, state, &readers);
    lk__writers_free(&readers);
    if (opened) lk__state_close(&own);
    return status;
}

static lk_status ask(lk__load_group *g, request_kind kind, const char *directory, const lk__state *state)
{
    request   r = {.kind = kind};
    lk_status status;
    snprintf(r.directory, sizeof r.directory, "%s", directory);
    snprintf(r.digest, sizeof r.digest, "%s", state ? state->sha[2] : "");
    if (g->busy) lk_comm_busy_end(g->comm);
    status = lk_comm_broadcast(g->comm, &r, sizeof r, LK_U8, 0, NULL);
    if (status >= 0 && kind != REQUEST_END) status = run_request(g, &r, state);
    if (status >= 0 && kind == REQUEST_END) status = lk__group_agree(g->store->context, g->comm, g->written, NULL);
    if (g->busy) lk_comm_busy_begin(g->comm, "reading a checkpoint");
    return status;
}

/* ---- what rank 0 reads alone ---- */

bool lk__load_group_writes(const lk__load_group *g) { return g && g->store->plan->splits; }

lk_status lk__load_group_write(lk__load_group *g, const lk__exchange_range *range, const void *data)
{
    request r = {.kind = REQUEST_WRITE, .range = *range};
    size_t  bytes = range->bytes;
    if (bytes > LK__LOAD_GROUP_WRITE)
        return lk__fail(g->store->context, LK_EINVAL, "too many bytes (%zu) to send at once", bytes);
    if (g->busy) lk_comm_busy_end(g->comm);
    lk_status status = lk_comm_broadcast(g->comm, &r, sizeof r, LK_U8, 0, NULL);
    if (status >= 0) status = lk_comm_broadcast(g->comm, (void *)data, bytes, LK_U8, 0, NULL);
    if (g->busy) lk_comm_busy_begin(g->comm, "reading a checkpoint");
    return status < 0 ? status : lk__store_write_bytes(g->store, range->state, range->part, range->first, data, bytes);
}

/* The others. What fails is known to all at the end; until then the bytes are received. */
static lk_status receive_write(lk__load_group *g, const lk__exchange_range *range)
{
    lk_context *c = g->store->context;
    if (!g->staging && !(g->staging = lk__alloc(c, LK_MEMORY_OTHER, LK__LOAD_GROUP_WRITE))) return LK_ENOMEM;
    lk_status status = lk_comm_broadcast(g->comm, g->staging, range->bytes, LK_U8, 0, NULL);
    if (status < 0 || g->written < 0) return status;
    g->written = lk__store_write_bytes(g->store, range->state, range->part, range->first, g->staging, range->bytes);
    return LK_OK;
}

lk_status lk__load_group_verify(lk__load_group *g, const char *directory, const lk__state *state)
{
    return ask(g, REQUEST_VERIFY, directory, state);
}

lk_status lk__load_group_load(lk__load_group *g, const char *directory, const lk__state *state)
{
    bool alone = g->store->alone;
    g->store->alone = false; /* the others write it with this rank */
    lk_status status = ask(g, REQUEST_LOAD, directory, state);
    g->store->alone = alone;
    g->loaded = status == LK_OK;
    return status;
}

lk_status lk__load_group_end(lk__load_group *g) { return ask(g, REQUEST_END, "", NULL); }

lk_status lk__load_group_serve(lk__load_group *g)
{
    for (;;) {
        request   r;
        lk_status status = lk_comm_broadcast(g->comm, &r, sizeof r, LK_U8, 0, NULL);
        if (status >= 0 && r.kind == REQUEST_WRITE && (status = receive_write(g, &r.range)) >= 0) continue;
        if (status < 0 || r.kind == REQUEST_END) {
            lk__free(g->store->context, LK_MEMORY_OTHER, g->staging, LK__LOAD_GROUP_WRITE);
            return status < 0 ? status : lk__group_agree(g->store->context, g->comm, g->written, NULL);
        }
        (void)run_request(g, &r, NULL);
        if (lk_comm_status(g->comm) < 0) return lk_comm_status(g->comm);
    }
}
