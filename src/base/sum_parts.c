/* sum_parts.c - which parts of a sum an operand has. */
#include "base/sum_parts.h"

/* Adds the parts from `first` on, below `end`, of a segment that begins at `at` in the operand and has `length`
 * elements there. False: they have other elements. */
static bool add_segment(const lk__op_summation *sum, int64_t whole, int64_t first, int64_t end, int64_t length,
                        int64_t at, lk__sum_parts *parts)
{
    int64_t origin = lk__sum_part_begin(whole, sum->unit, sum->parts, first);
    if (lk__sum_part_begin(whole, sum->unit, sum->parts, end) != origin + length) return false;
    for (int64_t i = first; i <= end; i++)
        parts->begin[parts->segments][i - first] = at + lk__sum_part_begin(whole, sum->unit, sum->parts, i) - origin;
    parts->segments++;
    return true;
}

/* The part that begins there; -1: none does. */
static int64_t find_part(const lk__op_summation *sum, int64_t whole, int64_t begin)
{
    for (int64_t i = 0; i <= sum->parts; i++)
        if (lk__sum_part_begin(whole, sum->unit, sum->parts, i) == begin) return i;
    return -1;
}

bool lk__sum_parts_of(const lk__op_summation *sum, int64_t whole, int64_t first, int64_t extent, lk__sum_parts *parts)
{
    *parts = (lk__sum_parts){.count = 1, .segments = 1, .begin = {{0, extent}}};
    if (sum->parts <= 1) return true;
    if (sum->parts > LK__SUM_PARTS || whole < sum->parts) return false;
    const int64_t only[LK__SUM_SEGMENTS] = {whole}, *segment = sum->segment[0] ? sum->segment : only;
    int64_t       length = segment[0] * extent / whole, at = 0;
    int64_t       begin = find_part(sum, segment[0], first), end = find_part(sum, segment[0], first + length);
    if (begin < 0 || end <= begin) return false;
    parts->count = (int)(end - begin);
    parts->segments = 0;
    for (int s = 0; s < LK__SUM_SEGMENTS && segment[s]; s++, at += length) {
        length = segment[s] * extent / whole;
        if (!add_segment(sum, segment[s], begin, end, length, at, parts)) return false;
    }
    return at == extent;
}

bool lk__sum_parts_nest(const lk__op_summation *sum, int64_t whole, int ranks)
{
    lk__sum_parts parts;
    if (ranks <= 1) return true;
    if (sum->parts < ranks || whole % ranks || !lk__tree_nests((int)sum->parts, ranks)) return false;
    int64_t only = sum->segment[0] ? sum->segment[0] : whole;
    for (int rank = 0; rank < ranks; rank++) {
        if (only % ranks || !lk__sum_parts_of(sum, whole, only / ranks * rank, whole / ranks, &parts)) return false;
        if (parts.count != sum->parts / ranks) return false;
    }
    return true;
}
