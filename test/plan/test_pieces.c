/* test_pieces.c - collectives of forward that are cut into pieces: the order of starts, products and waits, that each
 * piece has its place in the whole value, what the verifier finds where it has not, and what is estimated to be worth
 * it. */
#include "plan/joined.h"
#include "plan/pieces.h"
#include "plan/verify_schedule.h"
#include "planned_transformer.h"

enum { LAYERS = 2 };

static const planned_size small = {LAYERS, 7, 16, 64}, large = {LAYERS, 8, 256, 1024};

static bool cuts_nothing(void) /* collectives of other devices go through the host's memory, and are not cut */
{
    rig  r = rig_open(LK_F32, 1);
    bool other = !lk__device_is_host(lk__context_device(r.context));
    if (other) printf("skipped: in the host's memory alone\n");
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return other;
}

static int count_joins(const lk__plan_list *list)
{
    int count = 0;
    for (size_t i = 0; i < list->order_count; i++) count += node_at(list, i)->op == LK__OP_join;
    return count;
}

/* The position of the node that makes a value, behind views of it. */
static size_t made_at(const lk__plan_list *list, int v, bool through_waits)
{
    const lk_graph *g = list->graph;
    for (size_t i = list->order_count; i-- > 0;) {
        const lk__graph_node *n = node_at(list, i);
        lk__graph_runs        runs = lk__op_find(n->op)->runs;
        if (n->outputs < 1 || n->out[0] != v) continue;
        if (runs != LK__RUNS_NOTHING && !(through_waits && runs == LK__RUNS_WAIT)) return i;
        v = n->in[0];
    }
    CHECK(false, "value %d of %zu is not made", v, g->values_count);
    return 0;
}

/* A product of piece k runs when that piece has arrived, and before the next one is waited for; all are on their way
 * before the first. Of a sum, piece k is on its way before the product of the next one runs. */
static void check_gathered(const lk__plan_list *list, const lk__graph_node *join)
{
    size_t before = 0;
    for (int k = 0; k < join->inputs; k++) {
        size_t product = made_at(list, join->in[k], false), wait = made_at(list, node_at(list, product)->in[0], false);
        size_t start = made_at(list, node_at(list, wait)->in[0], true);
        CHECK(before <= wait && wait < product && start < wait, "piece %d: %zu, %zu, %zu, %zu", k, before, start, wait,
              product);
        if (k + 1 < join->inputs) {
            size_t next = made_at(list, node_at(list, made_at(list, join->in[k + 1], false))->in[0], false);
            CHECK(product < next && made_at(list, node_at(list, next)->in[0], true) < product, "piece %d", k);
        }
        before = product;
    }
}

static void check_summed(const lk__plan_list *list, const lk__graph_node *join)
{
    size_t before = 0;
    for (int k = 0; k < join->inputs; k++) {
        size_t start = made_at(list, join->in[k], true), product = made_at(list, node_at(list, start)->in[0], false);
        CHECK(before <= product && product < start, "piece %d: %zu, %zu, %zu", k, before, product, start);
        before = start;
    }
}

static void products_run_between_the_pieces(void)
{
    if (cuts_nothing()) return;
    for (int llama = 0; llama < 2; llama++)
        for (int pieces = 2; pieces <= 8; pieces *= 2) {
            planned m = plan_transformer(llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, "tensor=2", small, pieces);
            const lk__plan_list *list = &m.r.plan->train;
            int                  gathered = 0, summed = 0, whole = 0;
            for (size_t i = 0; i < list->order_count; i++) {
                const lk__graph_node *n = node_at(list, i);
                if (n->op != LK__OP_join) continue;
                lk__op maker = node_at(list, made_at(list, n->in[0], true))->op;
                CHECK(n->inputs == (pieces < 7 ? pieces : 7) && i < list->end[LK_FORWARD], "%d pieces", n->inputs);
                if (maker == LK__OP_reduce_scatter) summed++, check_summed(list, n);
                if (maker == LK__OP_all_gather) whole++;
                if (lk__op_find(maker)->runs == LK__RUNS_KERNEL) gathered++, check_gathered(list, n);
            }
            /* The loss has a product of what is gathered, one whose result is summed, and one that reads all of it. */
            CHECK(summed == 2 * LAYERS + 1, "%d sums", summed);
            CHECK(gathered == (llama ? 5 : 2) * LAYERS + 1, "%d products", gathered);
            CHECK(whole == 1, "%d values are gathered whole", whole);
            close_planned(&m);
        }
}

/* Each piece is where it is in the whole, which nothing copies, and the samples are those of the whole. */
static void pieces_have_their_place_in_the_whole(void)
{
    if (cuts_nothing()) return;
    planned m = plan_transformer(LK_TRANSFORMER_GPT, "data=2,tensor=2", small, 3);
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        const lk__plan_list *list = evaluates ? &m.r.plan->evaluate : &m.r.plan->train;
        CHECK(count_joins(list) > 0);
        for (size_t i = 0; i < list->order_count; i++) {
            const lk__graph_node *n = node_at(list, i);
            size_t                offset = 0;
            int64_t               samples = 0;
            for (int k = 0; k < n->inputs && n->op == LK__OP_join; k++) {
                const lk__graph_shape *s = &list->graph->values[n->in[k]].shape;
                CHECK(list->places[n->in[k]].region == LK__IN_ACTIVATIONS &&
                          list->places[n->in[k]].offset == list->places[n->out[0]].offset + offset,
                      "piece %d is elsewhere", k);
                CHECK(s->count_first == samples, "piece %d begins with sample %lld", k, (long long)s->count_first);
                offset += (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype);
                samples += s->dims[0] / s->count_unit;
            }
        }
    }
    close_planned(&m);
}

static int first_join(const lk__plan_list *list)
{
    for (size_t i = 0; i < list->order_count; i++)
        if (node_at(list, i)->op == LK__OP_join) return list->order[i];
    REQUIRE(false, "nothing is joined");
    return -1;
}

/* A piece that is written next to its place is found. */
static void a_misplaced_piece_is_found(void)
{
    static const lk__plan_group group = {.overlaps = true};
    if (cuts_nothing()) return;
    planned               m = plan_transformer(LK_TRANSFORMER_GPT, "tensor=2", small, 2);
    lk__plan_list        *list = &m.r.plan->train;
    const lk__graph_node *join = &list->graph->nodes[first_join(list)];
    CHECK(lk__plan_verify(m.r.plan, group) == LK_OK, "%s", lk_context_error(m.r.context));
    list->places[join->in[1]].offset += 64;
    CHECK(lk__plan_verify(m.r.plan, group) == LK_EMISMATCH, "a piece that is 64 bytes too far");
    list->places[join->in[1]].offset -= 64;
    CHECK(lk__plan_verify(m.r.plan, group) == LK_OK);
    close_planned(&m);
}

static double step_seconds(const planned *m, double link)
{
    lk_rates rates = {.flops = 30e9, .memory = 5e9, .link = link, .latency = 50e-6};
    return lk_plan_step(m->r.plan, &rates, NULL, NULL);
}

static double sent_bytes(const planned *m)
{
    lk_traffic all[8];
    return lk_plan_traffic(m->r.plan, all, 8) == 1 ? all[0].bytes : -1;
}

/* The same bytes in less time; where the estimate says so, and not for small models. */
static void the_estimate_cuts_what_saves_time(void)
{
    if (cuts_nothing()) return;
    planned whole = plan_transformer(LK_TRANSFORMER_GPT, "tensor=2", large, 1);
    planned cut = plan_transformer(LK_TRANSFORMER_GPT, "tensor=2", large, LK_PIECES_ESTIMATED);
    planned tiny = plan_transformer(LK_TRANSFORMER_GPT, "tensor=2", small, LK_PIECES_ESTIMATED);
    CHECK(count_joins(&whole.r.plan->train) == 0 && count_joins(&tiny.r.plan->train) == 0);
    CHECK(count_joins(&cut.r.plan->train) == 4 * LAYERS + 3, "%d are cut", count_joins(&cut.r.plan->train));
    CHECK(sent_bytes(&cut) == sent_bytes(&whole), "%g bytes, not %g", sent_bytes(&cut), sent_bytes(&whole));
    for (double link = 125e6; link < 2e9; link *= 10)
        CHECK(step_seconds(&cut, link) < step_seconds(&whole, link), "%g bytes/s: %g s, not less than %g", link,
              step_seconds(&cut, link), step_seconds(&whole, link));
    CHECK(lk_plan_memory(cut.r.plan, LK_MEMORY_ACTIVATIONS) <=
              1.01 * lk_plan_memory(whole.r.plan, LK_MEMORY_ACTIVATIONS),
          "%zu bytes of activations, not %zu", lk_plan_memory(cut.r.plan, LK_MEMORY_ACTIVATIONS),
          lk_plan_memory(whole.r.plan, LK_MEMORY_ACTIVATIONS));
    close_planned(&whole);
    close_planned(&cut);
    close_planned(&tiny);
}

static void wrong_numbers_are_refused(void)
{
    for (int pieces = -2; pieces <= 9; pieces += 11) {
        rig            r = rig_open(LK_F32, 1);
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        lk_tensor      x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 4}));
        config.outputs = &x;
        config.outputs_count = 1;
        config.pieces = pieces;
        CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL, "%d pieces", pieces);
        CHECK(strstr(lk_context_error(r.context), "pieces"), "%s", lk_context_error(r.context));
        lk_graph_free(r.graph);
        lk_context_free(r.context);
    }
}

int main(void)
{
    RUN(products_run_between_the_pieces);
    RUN(pieces_have_their_place_in_the_whole);
    RUN(a_misplaced_piece_is_found);
    RUN(the_estimate_cuts_what_saves_time);
    RUN(wrong_numbers_are_refused);
    return check_result();
}
