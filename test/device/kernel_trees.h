/* kernel_trees.h - checks sums that consist of parts (attrs.sum): the operands are cut along the factor as 2, 4 and 8
 * ranks have it, the kernel runs on each part, and what the ranks have, added in the pairwise tree as a collective does
 * it, must be the result of the whole, bit for bit; bf16 summands are f32, and rounded once. After run_case of
 * kernel_case.h; on the CPU alone, since other devices promise no such order. */
#ifndef KERNEL_TREES_H
#define KERNEL_TREES_H

#include "base/reduce.h"

#include "kernel_case.h"

enum { TREE_RANKS = 8 };

typedef struct tree_case {
    lk__kernel_call call; /* of the whole, with the types of summands */
    parts_case      k;
    lk__factors     factors;
    int             factor;
} tree_case;

static inline bool is_tree_sum(const tree_case *c, int output)
{
    return c->call.out[output].data && lk__factor_is_summed(&c->factors, c->call.inputs, output, c->factor);
}

static inline bool describe_tree(tree_case *c, const char *factor)
{
    char text[128];
    c->call = (lk__kernel_call){.attrs = &t.attrs, .inputs = t.inputs, .outputs = t.outputs, .step = &t.step};
    memcpy(c->call.in, t.in, sizeof t.in);
    memcpy(c->call.out, t.out, sizeof t.out);
    c->k = (parts_case){.op = t.op, .real = t.real, .call = &c->call, .isa = t.isa};
    c->k.pool = lk__context_pool(contexts[0]);
    lk__factor_query query = query_parts(&c->k);
    if (lk__factors_find(&query, &c->factors, text)) {
        fail_case(text);
        return false;
    }
    for (c->factor = 0; c->factor < c->factors.count; c->factor++)
        if (strcmp(c->factors.factor[c->factor].name, factor) == 0) break;
    if (c->factor == c->factors.count) {
        fail_case("there is no such factor");
        return false;
    }
    for (int i = 0; i < t.outputs; i++)
        if (is_tree_sum(c, i) && t.out[i].dtype == LK_BF16) c->call.out[i].dtype = LK_F32;
    return true;
}

/* The ranks' summands of an output, added as a collective adds them. */
static inline bool is_tree_equal(int output, const kernel_part *parts, int ranks)
{
    const lk__kernel_operand *whole = &t.out[output], *part = &parts[0].call.out[output];
    size_t                    n = (size_t)lk__operand_elements(whole), size = lk_dtype_size(part->dtype);
    const void               *summands[TREE_RANKS];
    bool                      equal = true;
    char                     *sum = calloc(n + 1, size);
    for (int r = 0; r < ranks; r++) summands[r] = parts[r].call.out[output].data;
    lk__reduce(sum, summands, ranks, n, part->dtype, LK_SUM);
    for (size_t i = 0; i < n && equal; i++) {
        char rounded[sizeof(double)];
        put(whole->dtype, rounded, 0, get(part->dtype, sum, (int64_t)i));
        equal =
            memcmp(rounded, (char *)whole->data + i * lk_dtype_size(whole->dtype), lk_dtype_size(whole->dtype)) == 0;
    }
    free(sum);
    return equal;
}

static inline void check_tree_ranks(tree_case *c, int ranks)
{
    static kernel_part parts[TREE_RANKS];
    int64_t            each = c->factors.factor[c->factor].extent / ranks;
    char               text[PARTS_TEXT];
    for (int r = 0; r < ranks; r++) {
        lk__factor_cut cut = {c->factor, r * each, each};
        make_kernel_part(&c->k, &c->factors, cut, &parts[r]);
        const char *wrong = run_kernel_part(&c->k, &parts[r]);
        if (wrong) fail_case(wrong);
    }
    for (int i = 0; i < t.outputs; i++) {
        if (!is_tree_sum(c, i) || is_tree_equal(i, parts, ranks)) continue;
        snprintf(text, sizeof text, "output %d of %d ranks, added in the tree, is not that of one", i, ranks);
        fail_case(text);
    }
    for (int r = 0; r < ranks; r++) free_kernel_part(&parts[r]);
}

/* After run_case. most: ranks, a power of two. */
static inline void check_tree(const char *factor, int most)
{
    static tree_case c;
    if (t.skipped || kernel_device || !describe_tree(&c, factor)) return;
    for (int ranks = 2; ranks <= most; ranks *= 2) check_tree_ranks(&c, ranks);
}

#endif
