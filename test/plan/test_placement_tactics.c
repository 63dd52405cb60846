/* test_placement_tactics.c - placements that a user states: by tactics, which are printed and read, and by lk_place. */
#include "placement_model.h"

/* ---- tactics ---- */

static void take_text(void *user, const char *text, size_t bytes) { strncat(user, text, bytes); }

/* Models that are split in many ways: products one after the other that are both cut along their outputs (cnn), heads
 * that the extent does not divide, two forms of keys and values. */
static lk_tensor record_any(lk_graph *g, int model)
{
    static const lk_transformer_kind kinds[] = {LK_TRANSFORMER_GPT, LK_TRANSFORMER_GPT, LK_TRANSFORMER_LLAMA};
    if (model > 2)
        return record_images(g, lk_model_find(model == 3 ? "cnn" : "resnet20"), (lk_model_options){.classes = 10});
    lk_transformer_config c = small_model(kinds[model]);
    if (model == 1) c.heads = 6, c.width = 48;
    if (model == 2) c.kv_heads = 2, c.vocabulary = 64, c.heads = 8;
    return record_text(g, &c);
}

static bool same_placements(const lk__placements *a, const lk__placements *b)
{
    bool same = a->values_count == b->values_count && a->nodes_count == b->nodes_count;
    for (size_t v = 0; v < a->values_count && same; v++) same = lk__placement_equal(&a->values[v], &b->values[v]);
    for (size_t i = 0; i < a->nodes_count && same; i++) same = a->nodes[i].factor == b->nodes[i].factor;
    return same;
}

/* As they are printed, and read again: all values are where they were, not only the states. */
static void tactics_that_a_plan_prints_place_the_same(void)
{
    for (int k = 0; k < 20; k++) {
        char   text[2][8192] = {"", ""};
        placed m[2] = {{.r = rig_open(LK_F32, 1)}, {.r = rig_open(LK_F32, 1), .tactics = text[0]}};
        for (int again = 0; again < 2; again++) {
            lk_tensor loss = record_any(m[again].r.graph, k / 4);
            REQUIRE(place(&m[again], loss, k & 1 ? "tensor=4" : "tensor=2", k & 2) == LK_OK, "case %d: %s", k,
                    lk_context_error(m[again].r.context));
            m[again].r.plan->placed_axes = LK_AXIS_TENSOR;
            lk_plan_tactics(m[again].r.plan, take_text, text[again]);
        }
        CHECK(strcmp(text[0], text[1]) == 0, "case %d: %s\n%s", k, text[0], text[1]);
        CHECK(same_placements(&m[0].placements, &m[1].placements), "case %d: %s", k, text[0]);
        if (k == 0) {
            CHECK(strstr(text[0], "transformer.h.*.mlp.c_fc.weight: out@tensor\n"), "%s", text[0]);
            CHECK(strstr(text[0], "transformer.h.*.attn.c_attn.weight: out/3@tensor\n"), "%s", text[0]);
            CHECK(strstr(text[0], "*: whole@tensor\n") && !strstr(text[0], "wte"), "%s", text[0]);
        }
        close_placed(&m[0]);
        close_placed(&m[1]);
    }
}

static lk_tensor record_chain(lk_graph *g)
{
    lk_tensor x = lk_relu(lk_linear(rows(g, "x", 20), "one", 16));
    return lk_mse(lk_linear(lk_relu(lk_linear(x, "two", 12)), "three", 8), rows(g, "y", 8));
}

static void tactics_override_what_is_found(void)
{
    placed    m = {.r = rig_open(LK_F32, 1),
                   .tactics = "# the other way\n\n two.* : out@tensor # and the bias\none.weight: whole@tensor\n"};
    lk_tensor loss = record_chain(m.r.graph);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "one.weight", -1, 1);
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

/* Each state is where its line says, whatever would follow from the other lines. */
static void tactics_decide_each_state(void)
{
    placed    m = {.r = rig_open(LK_F32, 1),
                   .tactics = "one.weight: out@tensor\none.bias: whole@tensor\ntwo.weight: out@tensor\n"};
    lk_tensor loss = record_chain(m.r.graph);
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "one.weight", 0, 1);
    check_state(&m, "one.bias", -1, 1);
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

static void refuse_tactics(const char *tactics, const char *why)
{
    placed    m = {.r = rig_open(LK_F32, 1), .tactics = tactics};
    lk_tensor loss = record_chain(m.r.graph);
    CHECK(place(&m, loss, "tensor=4", 0) < 0, "%s", tactics);
    CHECK(strstr(lk_context_error(m.r.context), why), "%s: %s", tactics, lk_context_error(m.r.context));
    close_placed(&m);
}

static void tactics_that_cannot_be_followed_are_refused(void)
{
    refuse_tactics("\nfour.weight: out@tensor", "line 2: no parameter or buffer matches four.weight");
    refuse_tactics("one.weight: height@tensor", "has no factor height; it has out, in");
    refuse_tactics("one.weight: 2@tensor", "has no factor 2");
    refuse_tactics("one.weight: out@tensro", "no axis tensro");
    refuse_tactics("one.weight: out@data", "not along data");
    refuse_tactics("one.weight = out@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: @tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out/@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out*x@tensor", "expected PATTERN: FACTOR@AXIS");
    refuse_tactics("one.weight: out/3@tensor", "out of \"one.weight\" is 16, which tensor=4 does not divide");
    placed    m = {.r = rig_open(LK_F32, 1), .tactics = "two.weight: out@tensor"};
    lk_tensor loss = record_chain(m.r.graph);
    CHECK(place(&m, loss, "tensor=5", 0) == LK_EINVAL);
    CHECK(strstr(lk_context_error(m.r.context),
                 "out of \"two.weight\" is 12, which tensor=5 does not divide; the nearest "
                 "extent that works is 4"),
          "%s", lk_context_error(m.r.context));
    close_placed(&m);
}

/* ---- lk_place ---- */

/* The second product's width instead of the first one's; and in between, whole. */
static void a_model_places_its_values(void)
{
    placed    m = {.r = rig_open(LK_F32, 1)};
    lk_tensor x = lk_relu(lk_linear(rows(m.r.graph, "x", 20), "one", 16));
    x = lk_relu(lk_place(lk_linear(lk_place(x, "tensor", LK_REPLICATED), "two", 12), "tensor", -1));
    lk_tensor loss = lk_mse(lk_linear(x, "three", 8), rows(m.r.graph, "y", 8));
    REQUIRE(place(&m, loss, "tensor=2", 0) == LK_OK, "%s", lk_context_error(m.r.context));
    check_state(&m, "two.weight", 0, 1);
    check_state(&m, "two.bias", 0, 1);
    check_state(&m, "three.weight", 1, 1);
    check_places(&m);
    close_placed(&m);
}

static void placements_that_are_impossible_are_refused(void)
{
    static const struct {
        const char *axis;
        int         dim;
        const char *why;
    } cases[] = {{"tensor", 1, "has 12 elements, which tensor=5 does not divide; the nearest extent that works is 4"},
                 {"tensor", 0, "is the batch"},
                 {"tensor", 2, "dimension 2 is out of range for x, which has 2 dimensions"},
                 {"tensor", -3, "dimension -3 is out of range"},
                 {"tensro", 0, "no axis tensro"},
                 {"data", 0, "not along data"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        placed    m = {.r = rig_open(LK_F32, 1)};
        lk_tensor x = lk_place(lk_linear(rows(m.r.graph, "x", 20), "one", 12), cases[i].axis, cases[i].dim);
        lk_tensor loss = lk_mse(lk_linear(x, "two", 8), rows(m.r.graph, "y", 8));
        if (lk_graph_status(m.r.graph) == LK_OK) {
            CHECK(place(&m, loss, "tensor=5", 0) == LK_EINVAL);
            CHECK(strstr(lk_context_error(m.r.context), cases[i].why), "%s", lk_context_error(m.r.context));
            close_placed(&m);
        } else {
            CHECK(strstr(lk_graph_error(m.r.graph), cases[i].why), "%s", lk_graph_error(m.r.graph));
            lk_graph_free(m.r.graph);
            lk_context_free(m.r.context);
        }
    }
}

int main(void)
{
    RUN(tactics_that_a_plan_prints_place_the_same);
    RUN(tactics_override_what_is_found);
    RUN(tactics_decide_each_state);
    RUN(tactics_that_cannot_be_followed_are_refused);
    RUN(a_model_places_its_values);
    RUN(placements_that_are_impossible_are_refused);
    return check_result();
}
