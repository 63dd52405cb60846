/* device/cpu/gemm_chunk.h - the order in which a product adds along k, as chunks that a tile of C sums in registers.
 *
 * k consists of parts (base/sum_parts.h), and a part of blocks: each block is summed by itself, the blocks of a part
 * are added one after the other, and the parts in the pairwise tree. With partial sums on a stack, this is a sequence
 * of blocks; after each block, the top two sums are added zero or more times. A chunk is a run of blocks with one
 * result. */
#ifndef LK__GEMM_CHUNK_H
#define LK__GEMM_CHUNK_H

#include "device/cpu/gemm_block.h"

enum { CHUNK_K = BLOCK_K }; /* the most of several blocks: panels of A and B stay in the first-level cache */

/* Its partial results are arrays like C, by level of the stack. */
typedef struct gemm_chunk {
    int64_t     k, depth; /* in the order in which k is added */
    int64_t     packed;   /* k's of its panels: whole units of each block */
    tree_blocks blocks;
    int         level; /* of its result */
    bool        add;   /* to what is there: the chunk before it */
    int         after; /* this many levels are then added, each to the one below it */
} gemm_chunk;

/* Where the next chunk begins. */
typedef struct gemm_cursor {
    int64_t k, at; /* at: elements of the part before it */
    int     part, level;
} gemm_cursor;

/* Elements along which it adds: of all of the batch, where that is summed. */
static inline int64_t gemm_depth(const gemm *g) { return g->k * (g->sum ? g->batch : 1); }
/* The most that a chunk has in a panel. */
static inline int64_t gemm_chunk_most(const gemm *g)
{
    return g->parts.count > 1 ? CHUNK_K + TREE_BLOCKS * (PANEL_UNIT - 1) : BLOCK_K;
}

/* One block: its length, and how often the top two of the stack of sums are then added. */
#define gemm_next_block KERNEL(gemm_next_block)
#define gemm_more_blocks KERNEL(gemm_more_blocks)
int64_t gemm_next_block(const gemm *g, gemm_cursor *cursor, int *merges);
bool    gemm_more_blocks(const gemm *g, const gemm_cursor *cursor);

#define gemm_first_chunk KERNEL(gemm_first_chunk)
#define gemm_next_chunk KERNEL(gemm_next_chunk)
#define gemm_levels KERNEL(gemm_levels)
#define gemm_run_at KERNEL(gemm_run_at)
gemm_cursor gemm_first_chunk(const gemm *g);
bool        gemm_next_chunk(const gemm *g, gemm_cursor *cursor, gemm_chunk *chunk); /* false: there are no more */
/* Levels of partial results; the lowest one is the result. */
int gemm_levels(const gemm *g);
/* Of the elements of k from `k` on, in the order in which they are added: where the first is in A and B, and how many
 * follow there. */
int64_t gemm_run_at(const gemm *g, int64_t k, int64_t *a, int64_t *b);

#endif
