/* train/chunks.h - a file cut into chunks at multiples of a size, each of which one writer writes: the writers take turns, so that
 * in every round each has one chunk at most. */
#ifndef LK__CHUNKS_H
#define LK__CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LK__CHUNK = 8 << 20 }; /* bytes: a multiple of the pages and stripes of file systems */

typedef struct lk__chunks {
    uint64_t bytes; /* of the file, at least 1 */
    uint64_t size;  /* of a chunk; the last may be shorter */
} lk__chunks;

static inline size_t lk__chunks_count(const lk__chunks *c) { return (size_t)((c->bytes + c->size - 1) / c->size); }

static inline uint64_t lk__chunks_offset(const lk__chunks *c, size_t index) { return index * c->size; }

static inline size_t lk__chunks_bytes(const lk__chunks *c, size_t index)
{
    uint64_t left = c->bytes - lk__chunks_offset(c, index);
    return (size_t)(left < c->size ? left : c->size);
}

static inline size_t lk__chunks_rounds(const lk__chunks *c, int writers)
{
    return (lk__chunks_count(c) + (size_t)writers - 1) / (size_t)writers;
}

/* The chunk of the writer at `turn` (from 0) in a round; false: it has none. */
static inline bool lk__chunks_find(const lk__chunks *c, int writers, int turn, size_t round, size_t *index)
{
    *index = round * (size_t)writers + (size_t)turn;
    return turn >= 0 && *index < lk__chunks_count(c);
}

static inline int lk__chunks_turn(int writers, size_t index) { return (int)(index % (size_t)writers); }

/* Bytes of all chunks of the writer at `turn`. It does not become less where the file is larger. */
static inline uint64_t lk__chunks_share(const lk__chunks *c, int writers, int turn)
{
    uint64_t bytes = 0;
    size_t   index, whole = lk__chunks_count(c) / (size_t)writers;
    if (turn < 0) return 0;
    if (whole) bytes = (whole - 1) * c->size + lk__chunks_bytes(c, (whole - 1) * (size_t)writers + (size_t)turn);
    return lk__chunks_find(c, writers, turn, whole, &index) ? bytes + lk__chunks_bytes(c, index) : bytes;
}

#endif
