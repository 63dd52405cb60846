/* test_reduce_wide.c - sums over up to 16 inputs in one pass: the bits of the pairwise tree for every number of inputs,
 * at awkward lengths and alignments, in place and not, with every width of vectors that this machine has. */
#include "support.h"

#include "base/tree.h"

/* All widths, not only the widest. */
#define lk__reduce_wide choose_wide
#define lk__reduce_is_wide choose_is_wide
#include "base/reduce_wide.c"

enum { MOST = 16, ROOM = 16 * 1024 };

static float memory[2 * MOST][ROOM], before[MOST][ROOM];

static float naive_tree(int first, int n, size_t i)
{
    if (n == 1) return before[first][i];
    int left = lk__tree_left(n);
    return naive_tree(first, left, i) + naive_tree(first + left, n - left, i);
}

static void fill_inputs(int n, size_t count)
{
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < count; i++)
            before[k][i] = (float)((i * 2654435761u + (size_t)k * 40503u) % 10007) * 1.3e-3f - (float)(k % 3) * 4.1f;
}

/* Inputs begin `off` bytes behind an aligned address; outputs are they, or others. */
static void check_sum(wide_sum sum, const char *name, int n, size_t count, size_t off, bool in_place,
                      lk__reduce_ahead ahead)
{
    const float *in[MOST];
    float       *out[MOST], expected[ROOM];
    fill_inputs(n, count);
    for (size_t i = 0; i < count; i++) expected[i] = naive_tree(0, n, i);
    for (int k = 0; k < n; k++) {
        memset(memory[k], 0xee, sizeof memory[k]);
        memset(memory[MOST + k], 0xee, sizeof memory[k]);
        char *from = (char *)memory[k] + off, *to = in_place ? from : (char *)memory[MOST + k] + off;
        memcpy(from, before[k], count * sizeof(float));
        in[k] = (const float *)from;
        out[k] = (float *)to;
    }
    sum(out, n, in, count, ahead);
    for (int k = 0; k < n; k++) {
        const unsigned char *end = (const unsigned char *)out[k] + count * sizeof(float);
        CHECK(memcmp(out[k], expected, count * sizeof(float)) == 0, "%s, %d inputs, %zu elements, off %zu: output %d",
              name, n, count, off, k);
        CHECK(end[0] == 0xee && (off == 0 || ((const unsigned char *)out[k])[-1] == 0xee), "%s: it wrote outside",
              name);
    }
}

static void check_width(const wide_sum *sums, const char *name)
{
    static const size_t counts[] = {0, 1, 3, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 271, 272, 273, 1021, 8192};
    for (int n = 2; n <= MOST; n++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int ahead = LK__AHEAD_NONE; ahead <= (int)LK__AHEAD_WRITE; ahead++) {
                check_sum(sums[n], name, n, counts[c], 0, true, (lk__reduce_ahead)ahead);
                check_sum(sums[n], name, n, counts[c], 4 + (size_t)ahead, false, (lk__reduce_ahead)ahead);
            }
}

static void every_width_has_the_bits_of_the_pairwise_tree(void)
{
    check_width(sums_line4, "vectors of 16 bytes");
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) check_width(sums_line8, "vectors of 32 bytes");
    if (__builtin_cpu_supports("avx512f")) check_width(sums_line16, "vectors of 64 bytes");
#endif
}

static void the_chosen_width_is_one_of_them(void)
{
    CHECK(!choose_is_wide(1, 1) && !choose_is_wide(MOST + 1, 1) && choose_is_wide(5, 1) && choose_is_wide(MOST, 1));
    const float *in[] = {before[0], before[1], before[2]};
    float       *out = memory[0];
    fill_inputs(3, 100);
    choose_wide(&out, 1, in, 3, 100, LK__AHEAD_READ);
    for (size_t i = 0; i < 100; i++) CHECK(out[i] == naive_tree(0, 3, i), "element %zu", i);
}

int main(void)
{
    RUN(every_width_has_the_bits_of_the_pairwise_tree);
    RUN(the_chosen_width_is_one_of_them);
    return check_result();
}
