/* test_sum_parts.c - the parts of a sum, compared with their definition: boundaries by units, parts that ranks have,
 * and sums that nest in the pairwise tree. */
#include "check.h"

#include "base/sum_parts.h"

/* Order of additions as text: "((a b)(c d))" for the sums of parts, each the list of its elements. */
enum { TEXT = 4096 };

static void tree_text(char (*leaves)[TEXT], int n, char *text)
{
    static char stack[8][TEXT], joined[TEXT];
    int         depth = 0;
    for (int leaf = 0; leaf < n; leaf++) {
        memcpy(stack[depth++], leaves[leaf], TEXT);
        for (int merges = lk__tree_merges(leaf, n); merges > 0; merges--, depth--) {
            CHECK(snprintf(joined, TEXT, "(%s %s)", stack[depth - 2], stack[depth - 1]) < TEXT);
            memcpy(stack[depth - 2], joined, TEXT);
        }
    }
    memcpy(text, stack[0], TEXT);
}

/* The sum of an operand, whose elements have these names (numbers in the whole). */
static void sum_text(const lk__sum_parts *parts, const int *names, char *text)
{
    static char leaves[LK__SUM_PARTS][TEXT];
    for (int i = 0; i < parts->count; i++) {
        int used = 0;
        leaves[i][0] = 0;
        for (int s = 0; s < parts->segments; s++)
            for (int64_t e = parts->begin[s][i]; e < parts->begin[s][i + 1]; e++)
                used += snprintf(leaves[i] + used, TEXT - (size_t)used, "%s%d", used ? "+" : "", names[e]);
    }
    tree_text(leaves, parts->count, text);
}

/* A rank's share of each segment, side by side. */
static int take_share(const lk__op_summation *sum, int whole, int ranks, int rank, int *names)
{
    int64_t        only[LK__SUM_SEGMENTS] = {whole};
    const int64_t *segment = sum->segment[0] ? sum->segment : only;
    int            count = 0, at = 0;
    for (int s = 0; s < LK__SUM_SEGMENTS && segment[s]; s++) {
        int each = (int)segment[s] / ranks;
        for (int e = 0; e < each; e++) names[count++] = at + rank * each + e;
        at += (int)segment[s];
    }
    return count;
}

static void check_nests(const lk__op_summation *sum, int whole, int ranks)
{
    static char whole_text[TEXT], text[TEXT], of_rank[LK__SUM_PARTS][TEXT];
    int         names[256];
    REQUIRE(whole <= 256 && lk__sum_parts_nest(sum, whole, ranks), "%lld parts of %d, %d ranks", (long long)sum->parts,
            whole, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        lk__sum_parts parts;
        int           count = take_share(sum, whole, ranks, rank, names);
        int64_t       first = (sum->segment[0] ? sum->segment[0] : whole) / ranks * rank;
        REQUIRE(lk__sum_parts_of(sum, whole, first, count, &parts), "rank %d of %d", rank, ranks);
        sum_text(&parts, names, of_rank[rank]);
    }
    tree_text(of_rank, ranks, text);
    lk__sum_parts all;
    for (int i = 0; i < whole; i++) names[i] = i;
    REQUIRE(lk__sum_parts_of(sum, whole, 0, whole, &all) && all.count == sum->parts);
    sum_text(&all, names, whole_text);
    CHECK(strcmp(text, whole_text) == 0, "%d ranks: %s, not %s", ranks, text, whole_text);
}

static void sums_of_ranks_nest(void)
{
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        check_nests(&(lk__op_summation){.parts = 8}, 64, ranks);
        check_nests(&(lk__op_summation){.parts = 8}, 72, ranks);
        check_nests(&(lk__op_summation){.parts = 8, .unit = 3}, 48, ranks);
        check_nests(&(lk__op_summation){.parts = 8, .segment = {32, 8, 8}}, 48, ranks);
        check_nests(&(lk__op_summation){.parts = 8, .unit = 2, .segment = {32, 32, 32}}, 96, ranks);
    }
    /* 12 heads: parts of one and of two heads; ranks have 6 and 3 of them. */
    for (int ranks = 1; ranks <= 4; ranks *= 2) check_nests(&(lk__op_summation){.parts = 8, .unit = 4}, 48, ranks);
    for (int ranks = 1; ranks <= 4; ranks *= 2) check_nests(&(lk__op_summation){.parts = 4}, 100, ranks);
}

static void parts_differ_by_a_unit_at_most(void)
{
    for (int64_t unit = 0; unit < 5; unit++)
        for (int64_t parts = 1; parts <= LK__SUM_PARTS; parts++)
            for (int64_t units = parts; units < 40; units++) {
                int64_t each = unit ? unit : 1, least = units, most = 0;
                for (int64_t i = 0; i < parts; i++) {
                    int64_t begin = lk__sum_part_begin(units * each, unit, parts, i);
                    int64_t length = lk__sum_part_begin(units * each, unit, parts, i + 1) - begin;
                    CHECK(begin % each == 0 && length % each == 0);
                    if (length / each < least) least = length / each;
                    if (length / each > most) most = length / each;
                }
                CHECK(lk__sum_part_begin(units * each, unit, parts, 0) == 0 && most - least <= 1 && least >= 1);
                CHECK(lk__sum_part_begin(units * each, unit, parts, parts) == units * each);
            }
}

static void what_does_not_consist_of_whole_parts_is_found(void)
{
    lk__sum_parts    parts;
    lk__op_summation none = {0}, eight = {.parts = 8}, heads = {.parts = 4, .unit = 16};
    CHECK(lk__sum_parts_of(&none, 64, 10, 20, &parts) && parts.count == 1 && parts.segments == 1);
    CHECK(parts.begin[0][0] == 0 && parts.begin[0][1] == 20);
    CHECK(!lk__sum_parts_of(&eight, 64, 4, 8, &parts) && !lk__sum_parts_of(&eight, 64, 0, 12, &parts));
    CHECK(!lk__sum_parts_of(&eight, 4, 0, 4, &parts)); /* fewer elements than parts */
    CHECK(!lk__sum_parts_of(&heads, 64, 8, 16, &parts) && lk__sum_parts_of(&heads, 64, 16, 16, &parts));
    CHECK(!lk__sum_parts_nest(&eight, 64, 3) && !lk__sum_parts_nest(&eight, 64, 16) &&
          !lk__sum_parts_nest(&none, 64, 2));
    CHECK(!lk__sum_parts_nest(&heads, 64, 8) && !lk__sum_parts_nest(&eight, 100, 8) &&
          lk__sum_parts_nest(&none, 64, 1));
    /* 6 heads over 4 ranks: a rank would have one and a half. */
    CHECK(!lk__sum_parts_nest(&(lk__op_summation){.parts = 4, .unit = 8}, 48, 4));
}

int main(void)
{
    RUN(sums_of_ranks_nest);
    RUN(parts_differ_by_a_unit_at_most);
    RUN(what_does_not_consist_of_whole_parts_is_found);
    return check_result();
}
