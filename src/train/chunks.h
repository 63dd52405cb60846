/* train/chunks.h - a file cut into chunks at multiples of a size, each of which one of several writers writes. They
 * take turns, so that in every round each has at most one chunk, and these follow each other in the file; or each has
 * one run of neighbouring chunks. */
#ifndef LK__CHUNKS_H
#define LK__CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LK__CHUNK = 8 << 20 }; /* bytes: a multiple of the pages and stripes of file systems */

typedef struct lk__chunks {
    uint64_t bytes; /* of the file, at least 1 */
    uint64_t size;  /* of a chunk; the last may be shorter */
    int      writers;
    bool     runs; /* each writer has neighbouring chunks */
} lk__chunks;

static inline size_t lk__chunks_count(const lk__chunks *c) { return (size_t)((c->bytes + c->size - 1) / c->size); }

static inline uint64_t lk__chunks_offset(const lk__chunks *c, size_t index) { return index * c->size; }

static inline size_t lk__chunks_bytes(const lk__chunks *c, size_t index)
{
    uint64_t left = c->bytes - lk__chunks_offset(c, index);
    return (size_t)(left < c->size ? left : c->size);
}

/* The most chunks that a writer has. */
static inline size_t lk__chunks_rounds(const lk__chunks *c)
{
    return (lk__chunks_count(c) + (size_t)c->writers - 1) / (size_t)c->writers;
}

/* The first chunk of a writer's run; of the one past the last: the number of chunks. */
static inline size_t lk__chunks_run(const lk__chunks *c, int turn)
{
    return (size_t)turn * lk__chunks_count(c) / (size_t)c->writers;
}

/* The chunk of the writer at `turn` (from 0; -1: not a writer) in a round; false: it has none. */
static inline bool lk__chunks_find(const lk__chunks *c, int turn, size_t round, size_t *index)
{
    *index = 0;
    if (turn < 0) return false;
    *index = c->runs ? lk__chunks_run(c, turn) + round : round * (size_t)c->writers + (size_t)turn;
    return *index < (c->runs ? lk__chunks_run(c, turn + 1) : lk__chunks_count(c));
}

/* The turn of the writer that has a chunk. */
static inline int lk__chunks_turn(const lk__chunks *c, size_t index)
{
    size_t writers = (size_t)c->writers;
    return (int)(c->runs ? ((index + 1) * writers - 1) / lk__chunks_count(c) : index % writers);
}

/* The most bytes of one writer, which never decrease as the file grows. */
static inline uint64_t lk__chunks_share(const lk__chunks *c)
{
    uint64_t most = lk__chunks_rounds(c) * c->size;
    return most < c->bytes ? most : c->bytes;
}

#endif
