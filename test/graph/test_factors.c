/* test_factors.c - lines of factors: how they are read, which dimensions belong together at given shapes, what is
 * summed, and what is refused. test/device/kernel_parts.h compares the lines of all operations with their kernels. */
#include "check.h"

#include "graph/factor_part.h"
#include "graph/op.h"

#include <math.h>

#define DIMS(...) (const int64_t[]){__VA_ARGS__}
#define SHAPE(...) ((lk__factor_shape){DIMS(__VA_ARGS__), sizeof(DIMS(__VA_ARGS__)) / sizeof(int64_t)})

static lk__factors f;
static char        text[128];

static int find_factor(const char *name)
{
    for (int i = 0; i < f.count; i++)
        if (strcmp(f.factor[i].name, name) == 0) return i;
    CHECK(false, "there is no factor %s", name);
    return 0;
}

static const lk__factor *factor_named(const char *name) { return &f.factor[find_factor(name)]; }

static bool is_summed(int inputs, int output, const char *name)
{
    return lk__factor_is_summed(&f, inputs, output, find_factor(name));
}

static void every_operation_has_a_line(void)
{
    for (int i = 0; i < LK__OP_COUNT; i++) {
        const char *line = lk__op_find((lk__op)i)->factors;
        CHECK(line && *line, "%s", lk__op_name((lk__op)i));
    }
}

static void a_product_sums_over_its_inputs(void)
{
    lk__op_attrs     attrs = {.transposed = false};
    lk__factor_query q = {LK__OP_linear, &attrs, {SHAPE(6, 4, 8), SHAPE(10, 8), SHAPE(10)}, {SHAPE(6, 4, 10)}, 3, 1};
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(factor_named("in")->extent == 8 && factor_named("out")->extent == 10 && factor_named("rows0")->extent == 6);
    CHECK(is_summed(3, 0, "in") && !is_summed(3, 0, "out") && !is_summed(3, 0, "rows1"));
    CHECK(f.added == 1u << 2 && !factor_named("in")->coupled);
    attrs.activation = LK__RELU; /* is applied after the sum */
    CHECK(!lk__factors_find(&q, &f, text) && factor_named("in")->coupled && !factor_named("out")->coupled);
    attrs = (lk__op_attrs){.transposed = true};
    q.in[1] = SHAPE(8, 10);
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(lk__factor_in_dim(&f.in[1][0], find_factor("in")) && lk__factor_in_dim(&f.in[1][1], find_factor("out")));
    q.in[1] = SHAPE(9, 10);
    CHECK(lk__factors_find(&q, &f, text) &&
              strstr(text, "input 1 has size 9 along dimension 0, but its factors give 8"),
          "%s", text);
}

static void dimensions_of_extent_1_are_broadcast(void)
{
    lk__op_attrs     attrs = {0};
    lk__factor_query q = {LK__OP_add, &attrs, {SHAPE(6, 1, 8), SHAPE(4, 1)}, {SHAPE(6, 4, 8)}, 2, 1};
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(f.count == 3 && f.factor[1].extent == 4);
    CHECK(!f.in[0][1].segments && !f.in[1][1].segments && lk__factor_in_dim(&f.in[1][0], 1));
    CHECK(!lk__factor_is_summed(&f, 2, 0, 1));
}

/* Of the summands of a row that is looked up, one is not zero. */
static void a_table_is_selected_from(void)
{
    lk__op_attrs     attrs = {0};
    lk__factor_query q = {LK__OP_embedding, &attrs, {SHAPE(6, 4), SHAPE(10, 8)}, {SHAPE(6, 4, 8)}, 2, 1};
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(is_summed(2, 0, "vocabulary") && factor_named("vocabulary")->selected);
    CHECK(!factor_named("vocabulary")->coupled && !factor_named("width")->selected);
    CHECK(!lk__factors_solve("x(?in) -> y()", &(lk__factor_query){LK__OP_sum, &attrs, {SHAPE(4)}, {{DIMS(0), 0}}, 1, 1},
                             &f, text),
          "%s", text);
    CHECK(factor_named("in")->selected && is_summed(1, 0, "in"));
    q = (lk__factor_query){LK__OP_custom, &attrs, {SHAPE(4)}, {{DIMS(0), 0}}, 1, 1};
    CHECK(lk__factors_solve("(?in) -> ()", &q, &f, text)); /* not in a user's line */
}

/* 6 heads of queries, 2 of keys: q, k and v in one, each of them cut. */
static void packed_heads_are_cut_in_each_segment(void)
{
    lk__op_attrs     attrs = {.heads = 6, .kv_heads = 2, .causal = true};
    lk__factor_query q = {LK__OP_attention, &attrs, {SHAPE(3, 5, 40)}, {SHAPE(3, 5, 24), SHAPE(3, 6, 5)}, 1, 2};
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(factor_named("groups")->extent == 2 && factor_named("per")->extent == 3 &&
          factor_named("width")->extent == 4);
    CHECK(factor_named("width")->coupled && factor_named("tokens")->coupled && !factor_named("groups")->coupled);
    lk__factor_cut c = {find_factor("groups"), 1, 1};
    CHECK(lk__factor_part_extent(&f, &f.in[0][2], 40, c) == 20);
    CHECK(lk__factor_part_index(&f, &f.in[0][2], 0, c) == 12);  /* queries of heads 3 to 5 */
    CHECK(lk__factor_part_index(&f, &f.in[0][2], 12, c) == 28); /* keys of the second of two */
    CHECK(lk__factor_part_index(&f, &f.in[0][2], 16, c) == 36);
    int64_t extents[LK__FACTORS];
    for (int i = 0; i < f.count; i++) extents[i] = i == c.factor ? 1 : f.factor[i].extent;
    lk__factors_attributes(&f, extents, &attrs);
    CHECK(attrs.heads == 3 && attrs.kv_heads == 1);
}

static void views_divide_and_merge(void)
{
    lk__op_attrs     attrs = {0};
    lk__factor_query q = {LK__OP_reshape, &attrs, {SHAPE(6, 4, 8)}, {SHAPE(24, 2, 4)}, 1, 1};
    CHECK(!lk__factors_find(&q, &f, text), "%s", text);
    CHECK(f.count == 4 && f.in[0][2].segment[0].count == 2 && f.out[0][0].segment[0].count == 2);
    lk__factor_cut c = {1, 2, 2}; /* of the 4 */
    CHECK(lk__factor_part_extent(&f, &f.out[0][0], 24, c) == 12);
    CHECK(lk__factor_part_index(&f, &f.out[0][0], 0, c) == 2 && lk__factor_part_index(&f, &f.out[0][0], 2, c) == 6);
    q.out[0] = SHAPE(16, 12); /* 6 and 16 do not divide each other */
    CHECK(!lk__factors_find(&q, &f, text) && !f.in[0][0].segments && !f.out[0][0].segments);
    attrs.axes[0] = 2, attrs.axes[1] = 0, attrs.axes[2] = 1;
    q = (lk__factor_query){LK__OP_permute, &attrs, {SHAPE(6, 4, 8)}, {SHAPE(8, 6, 4)}, 1, 1};
    CHECK(!lk__factors_find(&q, &f, text) && lk__factor_in_dim(&f.out[0][0], 2) && lk__factor_in_dim(&f.out[0][1], 0));
}

static void a_mean_is_coupled_and_a_sum_is_not(void)
{
    lk__op_attrs     attrs = {.mask = 1u << 1};
    lk__factor_query q = {LK__OP_sum, &attrs, {SHAPE(6, 4, 8)}, {SHAPE(6, 8)}, 1, 1};
    CHECK(!lk__factors_find(&q, &f, text) && !f.factor[1].coupled && lk__factor_is_summed(&f, 1, 0, 1), "%s", text);
    attrs.mean = true;
    CHECK(!lk__factors_find(&q, &f, text) && f.factor[1].coupled && !f.factor[0].coupled, "%s", text);
}

/* ---- lines of users' operations ---- */

static const char *solve(const char *line)
{
    static const lk__op_attrs none;
    lk__factor_query          q = {LK__OP_custom, &none, {SHAPE(6, 8), SHAPE(10, 8)}, {SHAPE(6, 10), SHAPE(6)}, 2, 2};
    return lk__factors_solve(line, &q, &f, text);
}

static void operands_of_a_user_are_in_order(void)
{
    CHECK(!solve("(rows, in), (out, in) -> (rows, out), (rows):0"), "%s", text);
    CHECK(is_summed(2, 0, "in") && is_summed(2, 1, "in") && !is_summed(2, 1, "out") && !is_summed(2, 0, "rows"));
    CHECK(!solve("(rows.., in) (out, in) -> (rows.., out) (rows..)"), "%s", text);
    CHECK(is_summed(2, 1, "out"));
    CHECK(!solve("-") && f.count == 0);
}

static void mistakes_of_a_user_are_named(void)
{
    static const char *const lines[][2] = {
        {"", "expected \"->\""},
        {"(rows, in), (out, in)", "expected \"->\""},
        {"(rows, in), (out, in) -> (rows, out)", "an operand of the call is not listed"},
        {"(rows, in), (out, in), (out) -> (rows, out), (rows)", "no such operand"},
        {"x(rows, in), (out, in) -> (rows, out), (rows)", "no such operand"},
        {"(rows, in), +(out, in) -> (rows, out), (rows)", "only built-in operations can use + and ^"},
        {"(rows, in), (out, in) -> (rows, out), (rows):7", "there is no input 7"},
        {"(rows, in), (out, in) -> (rows, out), (rows); in=heads", "cannot parse"},
        {"(rows, in), (out, in)@transposed -> (rows, out), (rows)", "expected \"->\" at \"@transposed"},
        {"(rows, in), (out, in) -> (rows, out), (rows", "expected a name"},
        {"(rows, in), (out, in) -> (rows, out), (out)", "has size 6 along dimension 0, but its factors give 10"},
        {"(rows, in), (out, in) -> (rows, out), (rows) and more", "no such operand"},
        {"(rows, in, more), (out, in) -> (rows, out), (rows)", "numbers of axes do not match"},
        {"(a*b*c*d*e*f*g*h*i, in), (out, in) -> (rows, out), (rows)", "too many factors"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *wrong = solve(lines[i][0]);
        CHECK(wrong && strstr(wrong, lines[i][1]), "%s: %s", lines[i][0], wrong ? wrong : "accepted");
    }
}

int main(void)
{
    RUN(every_operation_has_a_line);
    RUN(a_product_sums_over_its_inputs);
    RUN(dimensions_of_extent_1_are_broadcast);
    RUN(a_table_is_selected_from);
    RUN(packed_heads_are_cut_in_each_segment);
    RUN(views_divide_and_merge);
    RUN(a_mean_is_coupled_and_a_sum_is_not);
    RUN(operands_of_a_user_are_in_order);
    RUN(mistakes_of_a_user_are_named);
    return check_result();
}
