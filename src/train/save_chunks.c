/* save_chunks.c - writes the two large files of a checkpoint: each writer its own chunks, with a digest of each. The
 * state of the file's SHA-256 passes from writer to writer in the order of the chunks; while one hashes, the others
 * write. A rank that fails continues to pass it on, so that no rank waits for it, and all ranks learn of the failure at
 * the end. */
#include "train/checkpoint.h"

#include "base/xxh64.h"
#include "train/chunk_file.h"

#include <string.h>

enum { SHA_WORDS = 4 }; /* of 64 bits, behind the digests of a file's chunks */

size_t lk__saver_digests(const uint64_t bytes[2], uint64_t chunk)
{
    size_t count = 0;
    for (int i = 0; i < 2; i++) count += lk__chunks_count(&(lk__chunks){.bytes = bytes[i], .size = chunk}) + SHA_WORDS;
    return count;
}

int lk__saver_turn(const lk__train_saver *s, int file)
{
    const lk__writers *w = &s->writers;
    return w->turn < 0 || file == LK__FILE_MODEL ? w->turn : w->count - 1 - w->turn;
}

int lk__saver_writer(const lk__train_saver *s, int file, size_t index)
{
    const lk__writers *w = &s->writers;
    int                turn = lk__chunks_turn(&s->cut[file], index);
    return w->ranks ? w->ranks[file == LK__FILE_MODEL ? turn : w->count - 1 - turn] : 0;
}

/* One that is written. */
typedef struct chunk {
    int         file;
    size_t      index;
    const void *data;
} chunk;

/* ---- the chain of SHA-256 ---- */

typedef struct chain_link {
    uint32_t state[8];
    uint64_t bytes;
} chain_link;

/* Adds a chunk where its predecessor's writer ended, and tells the next: in flight where `sent` is given, until that is
 * waited for. The last puts the digest behind those of the chunks. */
static lk_status pass_sha(lk__train_saver *s, chunk which, chain_link *link, lk_work **sent)
{
    lk_comm  *comm = s->writers.comm;
    int       file = which.file;
    size_t    index = which.index, count = lk__chunks_count(&s->cut[file]);
    int       before = index ? lk__saver_writer(s, file, index - 1) : s->writers.rank;
    int       after = index + 1 < count ? lk__saver_writer(s, file, index + 1) : s->writers.rank;
    lk_status status;
    if (index == 0) lk__sha256_init(&s->sha);
    if (before != s->writers.rank) {
        if ((status = lk_comm_recv(comm, link, sizeof *link, LK_U8, before, file, NULL)) < 0) return status;
        lk__sha256_init(&s->sha);
        memcpy(s->sha.state, link->state, sizeof link->state);
        s->sha.bytes = link->bytes;
    }
    lk__sha256_update(&s->sha, which.data, lk__chunks_bytes(&s->cut[file], index));
    if (index + 1 == count) lk__sha256_final(&s->sha, (unsigned char *)(s->digests[file] + count));
    if (after == s->writers.rank) return LK_OK;
    memcpy(link->state, s->sha.state, sizeof link->state);
    link->bytes = s->sha.bytes;
    return lk_comm_send(comm, link, sizeof *link, LK_U8, after, file, sent);
}

/* ---- chunks ---- */

/* Writes one and computes its digest. *own: what failed on this rank before, or fails now. */
static void write_chunk(lk__train_saver *s, chunk which, lk__chunk_file *out, lk_status *own)
{
    const lk__chunks *cut = &s->cut[which.file];
    size_t            bytes = lk__chunks_bytes(cut, which.index);
    if (*own >= 0) {
        lk__writers_busy_begin(&s->writers, "writing a checkpoint");
        *own = lk__chunk_file_write(out, lk__chunks_offset(cut, which.index), which.data, bytes);
        lk__writers_busy_end(&s->writers);
    }
    lk__xxh64 digest;
    lk__xxh64_init(&digest);
    lk__xxh64_update(&digest, which.data, bytes);
    s->digests[which.file][which.index] = lk__xxh64_final(&digest);
}

/* Chunks in turn, through one buffer: while one writer hashes, the next ones gather and write theirs. Below 0: the
 * group failed. */
static lk_status write_in_turn(lk__train_saver *s, int file, lk__chunk_file *out, lk_status *own)
{
    const lk__chunks     *cut = &s->cut[file];
    lk__safetensors_image image;
    chain_link            link;
    size_t                index;
    lk_status             status = lk__image_make(s, file, &image); /* as in lk__saver_measure: it succeeds */
    for (size_t i = 0; i < lk__chunks_rounds(cut) && status >= 0; i++) {
        /* all ranks of the group, in every round */
        lk_status gathered = lk__image_gather(s, (lk__checkpoint_round){&image, file, i}, s->chunk);
        if (*own >= 0) *own = gathered;
        if (!lk__chunks_find(cut, lk__saver_turn(s, file), i, &index)) continue;
        write_chunk(s, (chunk){file, index, s->chunk}, out, own);
        status = pass_sha(s, (chunk){file, index, s->chunk}, &link, NULL);
    }
    return status;
}

/* This rank's run of chunks of a file, which were copied. */
typedef struct run_pass {
    bool       writes, hashes; /* what is done with them */
    chain_link link;
    lk_work   *sent;
} run_pass;

static lk_status pass_run(lk__train_saver *s, int file, run_pass *pass, lk__chunk_file *out, lk_status *own)
{
    const char *data = s->copied[file];
    lk_status   status = LK_OK;
    size_t      index;
    for (size_t i = 0; status >= 0 && lk__chunks_find(&s->cut[file], lk__saver_turn(s, file), i, &index); i++) {
        chunk which = {file, index, data};
        if (pass->writes) write_chunk(s, which, out, own);
        if (pass->hashes) status = pass_sha(s, which, &pass->link, &pass->sent);
        data += lk__chunks_bytes(&s->cut[file], index);
    }
    return status;
}

/* Every rank begins with the file in which its turn is earlier: then both are written and hashed at the same time. The
 * first of a file hashes each chunk while it is in the cache; the others write all of theirs first, and wait once. */
static lk_status write_runs(lk__train_saver *s, lk__chunk_file out[2], lk_status *own)
{
    run_pass  passes[2][2] = {{{0}}}; /* by pass and file */
    int       first = lk__saver_turn(s, 1) < lk__saver_turn(s, 0) ? 1 : 0;
    lk_status status = LK_OK;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++) {
            int       file = i ^ first;
            run_pass *pass = &passes[k][file];
            pass->writes = k == 0;
            pass->hashes = (lk__saver_turn(s, file) == 0) == (k == 0);
            if (status >= 0 && (pass->writes || pass->hashes)) status = pass_run(s, file, pass, &out[file], own);
        }
    for (int k = 0; k < 4; k++)
        if (passes[k / 2][k % 2].sent) {
            lk_status sent = lk_work_wait(passes[k / 2][k % 2].sent);
            if (status >= 0) status = sent;
        }
    return status;
}

/* ---- both ---- */

lk_status lk__saver_measure(lk__train_saver *s)
{
    lk__safetensors_image image;
    lk_status             status = LK_OK;
    for (int i = 0; i < 2 && status >= 0; i++) status = lk__image_make(s, i, &image);
    return status;
}

lk_status lk__saver_create_files(const lk__train_saver *s, const char *directory)
{
    lk_status status = LK_OK;
    for (int i = 0; i < 2 && status >= 0; i++) {
        char           path[PATH_MAX];
        lk__chunk_file file = LK__CHUNK_FILE_INIT;
        status = lk__checkpoint_join(s->context, path, directory, lk__checkpoint_files[i]);
        if (status >= 0) status = lk__chunk_file_create(&file, s->context, path, s->cut[i].bytes);
        lk__chunk_file_close(&file);
    }
    return status;
}

/* Opens both, writes both, and flushes both in the end, when most of it is on disk already. */
static lk_status write_files(lk__train_saver *s, char paths[2][PATH_MAX], lk_status *own)
{
    lk__chunk_file out[2] = {LK__CHUNK_FILE_INIT, LK__CHUNK_FILE_INIT};
    lk_status      status = LK_OK;
    for (int i = 0; i < 2 && *own >= 0 && s->writers.turn >= 0; i++)
        *own = lk__chunk_file_open(&out[i], s->context, paths[i]);
    if (s->copied[0])
        status = write_runs(s, out, own);
    else
        for (int i = 0; i < 2 && status >= 0; i++) status = write_in_turn(s, i, &out[i], own);
    lk__writers_busy_begin(&s->writers, "flushing a checkpoint to disk");
    for (int i = 0; i < 2 && status >= 0 && *own >= 0 && out[i].fd >= 0; i++) *own = lk__chunk_file_flush(&out[i]);
    lk__writers_busy_end(&s->writers);
    for (int i = 0; i < 2; i++) lk__chunk_file_close(&out[i]);
    return status;
}

lk_status lk__saver_write_chunks(lk__train_saver *s, const char *directory, char sha[2][65])
{
    size_t    counts[2] = {lk__chunks_count(&s->cut[0]) + SHA_WORDS, lk__chunks_count(&s->cut[1]) + SHA_WORDS};
    char      paths[2][PATH_MAX];
    lk_status own = LK_OK;
    s->digests[1] = s->digests[0] + counts[0];
    memset(s->digests[0], 0, (counts[0] + counts[1]) * sizeof *s->digests[0]);
    for (int i = 0; i < 2 && own >= 0; i++)
        own = lk__checkpoint_join(s->context, paths[i], directory, lk__checkpoint_files[i]);
    lk_status status = write_files(s, paths, &own);
    if (status < 0 || (status = lk__writers_agree(&s->writers, own)) < 0) return status;
    /* Every word is one writer's and 0 at the others, so the sum is all of them. */
    if (s->writers.comm)
        status = lk_comm_all_reduce(s->writers.comm, s->digests[0], s->digests[0], counts[0] + counts[1], LK_I64,
                                    LK_SUM, NULL);
    for (int i = 0; i < 2 && status >= 0; i++)
        lk__sha256_hex((unsigned char *)(s->digests[i] + counts[i] - SHA_WORDS), sha[i]);
    return status;
}
