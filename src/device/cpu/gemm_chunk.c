/* gemm_chunk.c - the order in which a product adds along k. */
#include "device/cpu/gemm_chunk.h"

/* Of a product whose k is one part, and which may have more parts. */
static int part_count(const gemm *g) { return g->parts.count > 1 ? g->parts.count : 1; }

/* Elements of a segment of a part, of one of the batch. */
static int64_t segment_length(const gemm *g, int part, int segment)
{
    return g->parts.begin[segment][part + 1] - g->parts.begin[segment][part];
}

static int64_t part_length(const gemm *g, int part)
{
    int64_t length = 0;
    if (part_count(g) == 1) return gemm_depth(g);
    for (int s = 0; s < g->parts.segments; s++) length += segment_length(g, part, s);
    return length * (g->sum ? g->batch : 1);
}

gemm_cursor gemm_first_chunk(const gemm *g) { return (gemm_cursor){.level = g->add}; }

bool gemm_more_blocks(const gemm *g, const gemm_cursor *cursor) { return cursor->part < part_count(g); }

/* As gemm.c has them: blocks of one of the batch, where that is summed, then those of the next. */
int64_t gemm_next_block(const gemm *g, gemm_cursor *cursor, int *merges)
{
    int64_t all = part_length(g, cursor->part), each = all / (g->sum ? g->batch : 1);
    int64_t length = min64(even_part(each, BLOCK_K, BLOCK_UNIT), each - cursor->at % each);
    *merges = cursor->at > 0 || g->add;
    cursor->at += length;
    cursor->k += length;
    if (cursor->at == all) {
        *merges += lk__tree_merges(cursor->part, part_count(g));
        cursor->part++;
        cursor->at = 0;
    }
    return length;
}

/* As many blocks as a chunk may have and still has one result. What is to be added to results of chunks before it is
 * left over, and ends it. */
bool gemm_next_chunk(const gemm *g, gemm_cursor *cursor, gemm_chunk *chunk)
{
    gemm_cursor now = *cursor, end = now;
    int         depth = 0, left = 0, count = 0, count_left = 0;
    int64_t     packed = 0;
    *chunk = (gemm_chunk){.k = now.k};
    while (left == 0 && count < TREE_BLOCKS && depth < TREE_STACK && gemm_more_blocks(g, &now)) {
        int     merges;
        int64_t length = gemm_next_block(g, &now, &merges);
        if (count > 0 && now.k - chunk->k > CHUNK_K) break;
        int inner = merges < depth ? merges : depth;
        left = merges - inner;
        packed += packed_depth(length);
        depth += 1 - inner;
        chunk->blocks.length[count] = length;
        chunk->blocks.merges[count++] = inner;
        if (depth > 1) continue;
        end = now;
        chunk->blocks.count = count;
        chunk->depth = now.k - chunk->k;
        chunk->packed = packed;
        count_left = left;
    }
    if (chunk->blocks.count == 0) return false;
    *cursor = end;
    chunk->add = count_left > 0;
    chunk->after = chunk->add ? count_left - 1 : 0;
    chunk->level = chunk->add ? cursor->level - 1 : cursor->level;
    cursor->level = chunk->level + 1 - chunk->after;
    return true;
}

int gemm_levels(const gemm *g)
{
    gemm_cursor cursor = gemm_first_chunk(g);
    gemm_chunk  chunk;
    int         most = 0;
    while (gemm_next_chunk(g, &cursor, &chunk))
        if (chunk.level >= most) most = chunk.level + 1;
    return most;
}

int64_t gemm_run_at(const gemm *g, int64_t k, int64_t *a, int64_t *b)
{
    int64_t batch = 0, from = k, length = g->k - k;
    if (part_count(g) > 1) {
        int part = 0, segment = 0;
        while (k >= part_length(g, part)) k -= part_length(g, part++);
        int64_t each = part_length(g, part) / (g->sum ? g->batch : 1);
        batch = k / each;
        k %= each;
        while (k >= segment_length(g, part, segment)) k -= segment_length(g, part, segment++);
        from = g->parts.begin[segment][part] + k;
        length = segment_length(g, part, segment) - k;
    }
    *a = batch * g->a_batch + from * g->a_k;
    *b = batch * g->b_batch + from * g->b_k;
    return length;
}
