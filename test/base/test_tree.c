/* test_tree.c - the pairwise tree, compared with its definition as a recursive function: where it splits, the same tree
 * on a stack, its subtrees, and lk__reduce. */
#include "check.h"

#include "base/reduce.h"
#include "base/tree.h"
#include "device/kernel.h"

enum { MOST = 130, TEXT = 2048 };

/* The definition: the left side has the largest power of two below n. */
static int naive_left(int n)
{
    int left = 1;
    while (left * 2 < n) left *= 2;
    return left;
}

/* "((0 1) 2)" */
static void naive_text(int first, int n, char *text)
{
    char left[TEXT], right[TEXT];
    if (n == 1) {
        snprintf(text, TEXT, "%d", first);
        return;
    }
    naive_text(first, naive_left(n), left);
    naive_text(first + naive_left(n), n - naive_left(n), right);
    CHECK(snprintf(text, TEXT, "(%s %s)", left, right) < TEXT);
}

static void the_left_side_has_the_largest_power_of_two_below_n(void)
{
    for (int n = 2; n < 5000; n++) CHECK(lk__tree_left(n) == naive_left(n), "n %d", n);
    CHECK(lk__tree_left(1 << 30) == 1 << 29 && lk__tree_left((1 << 30) + 1) == 1 << 30);
}

static void a_stack_of_partial_results_makes_the_same_tree(void)
{
    static char stack[16][TEXT], joined[TEXT], expected[TEXT];
    for (int n = 1; n <= MOST; n++) {
        int depth = 0, most = 0;
        for (int leaf = 0; leaf < n; leaf++) {
            snprintf(stack[depth++], TEXT, "%d", leaf);
            if (depth > most) most = depth;
            for (int merges = lk__tree_merges(leaf, n); merges > 0; merges--, depth--) {
                REQUIRE(depth > 1, "n %d, leaf %d", n, leaf);
                CHECK(snprintf(joined, TEXT, "(%s %s)", stack[depth - 2], stack[depth - 1]) < TEXT);
                memcpy(stack[depth - 2], joined, TEXT);
            }
        }
        naive_text(0, n, expected);
        CHECK(depth == 1 && strcmp(stack[0], expected) == 0, "n %d: %s, not %s", n, stack[0], expected);
        CHECK(most <= lk__tree_depth(n), "n %d: %d results", n, most);
    }
    CHECK(lk__tree_depth(LK__LEAVES_MOST) <= LK__LEAVES_DEPTH);
}

/* The largest subtree below lo … hi that begins with `first` and ends by `end`. */
static int naive_subtree(int lo, int hi, int first, int end)
{
    if (lo > first || hi <= first) return 0;
    if (lo == first && hi <= end) return hi - lo;
    if (hi - lo == 1) return 0;
    int middle = lo + naive_left(hi - lo), left = naive_subtree(lo, middle, first, end);
    return left ? left : naive_subtree(middle, hi, first, end);
}

static void subtrees_are_the_largest_that_a_range_holds_whole(void)
{
    for (int n = 1; n <= MOST; n++)
        for (int first = 0; first < n; first++)
            for (int end = first + 1; end <= n; end++)
                CHECK(lk__tree_subtree(n, first, end) == naive_subtree(0, n, first, end), "%d … %d of %d", first, end,
                      n);
}

static void equal_parts_nest_only_if_each_is_one_subtree(void)
{
    for (int n = 1; n <= MOST; n++)
        for (int parts = 1; parts <= n; parts++) {
            bool nests = n % parts == 0;
            for (int i = 0; i < parts && nests; i++) /* of any n, as leaves may be added on the right */
                nests = lk__tree_subtree(1 << 12, i * (n / parts), (i + 1) * (n / parts)) == n / parts;
            CHECK(lk__tree_nests(n, parts) == nests, "%d parts of %d", parts, n);
        }
}

static float naive_sum(const float *x, int n)
{
    return n == 1 ? x[0] : naive_sum(x, naive_left(n)) + naive_sum(x + naive_left(n), n - naive_left(n));
}

static void lk_reduce_adds_in_the_tree(void)
{
    float       x[MOST], out;
    const void *in[MOST];
    uint32_t    state = 7;
    for (int i = 0; i < MOST; i++) {
        state = state * 1664525u + 1013904223u;
        /* of very different sizes: the order shows in the bits */
        x[i] = (float)(int32_t)state * (i % 3 ? 1e-9f : 1.0f);
        in[i] = &x[i];
    }
    for (int n = 1; n <= MOST; n++) {
        float expected = naive_sum(x, n);
        lk__reduce(&out, in, n, 1, LK_F32, LK_SUM);
        CHECK(memcmp(&out, &expected, sizeof out) == 0, "n %d: %.9g, not %.9g", n, (double)out, (double)expected);
    }
}

int main(void)
{
    RUN(the_left_side_has_the_largest_power_of_two_below_n);
    RUN(a_stack_of_partial_results_makes_the_same_tree);
    RUN(subtrees_are_the_largest_that_a_range_holds_whole);
    RUN(equal_parts_nest_only_if_each_is_one_subtree);
    RUN(lk_reduce_adds_in_the_tree);
    return check_result();
}
