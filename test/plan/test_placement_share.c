/* test_placement_share.c - a rank of the tensor axis has its share: arithmetic and memory as its plan says. */
#include "placement_model.h"

/* ---- it is parallel: what a plan says of one rank ---- */

typedef struct planned {
    size_t bytes[LK_MEMORY_COUNT];
    double arithmetic;
    int    blocks; /* of rows, of a loss whose classes are split */
} planned;

/* A transformer, and the batch of it. */
typedef struct text_model {
    lk_transformer_kind kind;
    int64_t             vocabulary, batch, context;
    int                 leaves; /* above 0: one result in every layout */
} text_model;

static planned plan_rank(const text_model *model, const char *axes, const char *tactics)
{
    rig                   r = rig_open(LK_F32, 1);
    lk_optimizer_config   adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config        config = LK_PLAN_CONFIG_INIT;
    lk_transformer_config c = small_model(model->kind);
    lk__mesh_grid         grid;
    lk_mesh              *mesh = NULL;
    planned               made = {.arithmetic = 0};
    c.width = 128;
    c.layers = 4;
    c.vocabulary = model->vocabulary;
    c.context = model->context;
    int64_t               dims[] = {model->batch, model->context};
    lk_tensor             tokens = lk_input(r.graph, "tokens", LK_I32, 2, dims);
    lk_tensor             labels = lk_input(r.graph, "labels", LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(tokens, &c);
    config.loss = lk_linear_cross_entropy(result.hidden, result.head, labels);
    config.optimizer = &adam;
    config.tactics = tactics;
    REQUIRE(lk__mesh_parse(r.context, axes, &grid) == LK_OK && lk__mesh_over(r.context, &grid, NULL, &mesh) == LK_OK);
    config.mesh = mesh;
    config.parallel.leaves = model->leaves;
    config.parallel.reproducible_layout = model->leaves > 0;
    config.parallel.sum_part_minimum = 8;
    /* One by one: ranks of the tensor axis run leaves so. */
    REQUIRE(lk__plan_create(r.graph, &config, true, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    for (int k = 0; k < LK_MEMORY_COUNT; k++) made.bytes[k] = lk_plan_memory(r.plan, (lk_memory)k);
    for (size_t i = 0; i < r.plan->train.order_count; i++) {
        const lk__graph_node *n = &r.plan->train.graph->nodes[r.plan->train.order[i]];
        made.arithmetic += lk__op_find(n->op)->arithmetic(r.plan->train.graph, n);
        made.blocks += n->op == LK__OP_class_statistics;
    }
    lk_plan_free(r.plan);
    lk_mesh_free(mesh);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
    return made;
}

static void a_rank_has_its_share_of_arithmetic_and_memory(void)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS, LK_MEMORY_OPTIMIZER,
                                      LK_MEMORY_ACTIVATIONS};
    for (int llama = 0; llama < 2; llama++) {
        text_model model = {llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, 512, 8, 64, 0};
        planned    one = plan_rank(&model, "data=1", NULL);
        for (int extent = 2; extent <= 4; extent *= 2) {
            planned own = plan_rank(&model, extent == 2 ? "tensor=2" : "tensor=4", NULL);
            printf("%s tensor=%d: arithmetic %.3f", llama ? "llama" : "gpt", extent, own.arithmetic / one.arithmetic);
            for (int i = 0; i < 4; i++)
                printf(", %s %.3f", lk_memory_name(kinds[i]),
                       (double)own.bytes[kinds[i]] / (double)one.bytes[kinds[i]]);
            printf("\n");
            CHECK(own.arithmetic <= 1.1 / extent * one.arithmetic);
            for (int i = 0; i < 4; i++)
                CHECK((double)own.bytes[kinds[i]] <= 1.1 / extent * (double)one.bytes[kinds[i]], "%s",
                      lk_memory_name(kinds[i]));
        }
    }
}

/* Sums with the bits of one rank are not made by computing them whole. */
static void one_result_in_every_layout_keeps_that_share(void)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS, LK_MEMORY_OPTIMIZER,
                                      LK_MEMORY_ACTIVATIONS};
    if (!has_layouts()) return;
    for (int llama = 0; llama < 2; llama++) {
        text_model model = {llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, 512, 8, 64, .leaves = 8};
        planned    one = plan_rank(&model, "data=1", NULL);
        for (int extent = 2; extent <= 4; extent *= 2) {
            planned own = plan_rank(&model, extent == 2 ? "tensor=2" : "tensor=4", NULL);
            printf("%s tensor=%d: arithmetic %.3f", llama ? "llama" : "gpt", extent, own.arithmetic / one.arithmetic);
            for (int i = 0; i < 4; i++)
                printf(", %s %.3f", lk_memory_name(kinds[i]),
                       (double)own.bytes[kinds[i]] / (double)one.bytes[kinds[i]]);
            printf("\n");
            CHECK(own.arithmetic <= 1.1 / extent * one.arithmetic);
            for (int i = 0; i < 4; i++)
                CHECK((double)own.bytes[kinds[i]] <= 1.1 / extent * (double)one.bytes[kinds[i]], "%s",
                      lk_memory_name(kinds[i]));
        }
    }
}

/* Rows of a long context are done in blocks: no rank has its part of all logits, and none of these is computed twice. A
 * vocabulary that is split takes less than one that every rank has. */
static void logits_of_a_long_context_are_never_there_at_once(void)
{
    for (int llama = 0; llama < 2; llama++) {
        text_model model = {llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_GPT, 32768, 8, 2048, 0};
        planned    one = plan_rank(&model, "data=1", NULL);
        for (int extent = 2; extent <= 4; extent *= 2) {
            const char *axes = extent == 2 ? "tensor=2" : "tensor=4";
            planned     own = plan_rank(&model, axes, NULL);
            planned     whole =
                plan_rank(&model, axes,
                          llama ? "model.embed_tokens.weight: whole@tensor" : "transformer.wte.weight: whole@tensor");
            size_t used = own.bytes[LK_MEMORY_ACTIVATIONS] + own.bytes[LK_MEMORY_WORKSPACE];
            size_t less = whole.bytes[LK_MEMORY_ACTIVATIONS] + whole.bytes[LK_MEMORY_WORKSPACE];
            size_t logits = (size_t)(8 * 2048 * 32768 / extent) * sizeof(float);
            size_t all = one.bytes[LK_MEMORY_ACTIVATIONS] + one.bytes[LK_MEMORY_WORKSPACE];
            printf("%s tensor=%d: %d blocks, arithmetic %.3f, %zu bytes (%.3f); whole vocabulary %zu; logits %zu\n",
                   llama ? "llama" : "gpt", extent, own.blocks, own.arithmetic / one.arithmetic, used,
                   (double)used / (double)all, less, logits);
            CHECK(own.blocks == 32, "%d", own.blocks);
            CHECK(own.arithmetic <= 1.1 / extent * one.arithmetic);
            CHECK((double)used <= 1.1 / extent * (double)all && used < less && used < logits);
        }
    }
}

int main(void)
{
    RUN(a_rank_has_its_share_of_arithmetic_and_memory);
    RUN(one_result_in_every_layout_keeps_that_share);
    RUN(logits_of_a_long_context_are_never_there_at_once);
    return check_result();
}
