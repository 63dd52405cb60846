/* ddp_gpt.c - a GPT trained data-parallel with collectives by hand: the ranks take their shares of every batch, sum
 * gradients and losses with all_reduce, and update their own copies of the weights.
 *
 *   ddp_gpt [RANKS] [STEPS]     default: 2 ranks, 60 steps */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 16 }; /* of all ranks */

typedef struct job {
    int64_t     steps;
    lk_context *context;
    lk_comm    *comm;
    lk_dataset *data;
    lk_loader  *loader;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    float      *gradient; /* room for the largest */
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

static size_t elements_of(const lk_state *state)
{
    size_t count = 1;
    for (int k = 0; k < state->rank; k++) count *= (size_t)state->dims[k];
    return count;
}

static lk_status setup(job *j)
{
    int                   world = lk_comm_size(j->comm), rank = lk_comm_rank(j->comm);
    lk_loader_config      loading = LK_LOADER_CONFIG_INIT;
    lk_optimizer_config   adamw = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config        planning = LK_PLAN_CONFIG_INIT;
    lk_transformer_config gpt = LK_TRANSFORMER_CONFIG_INIT; /* kind: gpt */
    lk_inputs             inputs;
    size_t                largest = 1;
    gpt.vocabulary = 31;
    gpt.context = 32;
    gpt.layers = gpt.heads = 2;
    gpt.width = 64;
    TRY(lk_dataset_open(j->context, "synthetic-tokens:32,vocabulary=31,count=2000", LK_SPLIT_TRAIN, NULL, &j->data));
    loading.dataset = j->data;
    loading.batch = BATCH;
    loading.shuffle = loading.drop_last = true;
    loading.parts = world; /* this rank's share, as DistributedSampler's */
    loading.first_part = rank;
    loading.last_part = rank + 1;
    TRY(lk_loader_create(j->context, &loading, &j->loader));
    TRY(lk_graph_create(j->context, LK_F32, &j->graph));
    TRY(lk_inputs_record(j->graph, &loading, lk_loader_capacity(&loading), &inputs));
    lk_transformer_result r = lk_transformer(lk_inputs_find(&inputs, "tokens"), &gpt);
    planning.loss = lk_linear_cross_entropy(r.hidden, r.head, lk_inputs_find(&inputs, "label"));
    adamw.kind = LK_ADAMW;
    planning.optimizer = &adamw;
    TRY(lk_plan_create(j->graph, &planning, &j->plan));
    TRY(lk_store_create(j->plan, 0, &j->store)); /* same seed, same weights on every rank */
    TRY(lk_program_create(j->plan, j->store, NULL, &j->program));
    for (size_t i = 0; i < lk_store_count(j->store); i++) {
        lk_state state = lk_store_at(j->store, i);
        if (elements_of(&state) > largest) largest = elements_of(&state);
    }
    return (j->gradient = malloc(largest * sizeof *j->gradient)) ? LK_OK : LK_ENOMEM;
}

/* Gradients are of the loss summed over tokens: their sum over ranks, divided by the tokens of all ranks, is that of
 * the mean. */
static lk_status reduce_gradients(job *j, double tokens)
{
    for (size_t i = 0; i < lk_store_count(j->store); i++) {
        lk_state state = lk_store_at(j->store, i);
        size_t   count = elements_of(&state), bytes = count * sizeof *j->gradient;
        TRY(lk_program_gradient_read(j->program, state.name, j->gradient, bytes));
        TRY(lk_comm_all_reduce(j->comm, j->gradient, j->gradient, count, LK_F32, LK_SUM, NULL));
        TRY(lk_program_gradient_write(j->program, state.name, j->gradient, bytes));
    }
    return lk_program_gradient_weight(j->program, tokens);
}

static lk_status train_step(job *j, int64_t number)
{
    lk_batch   batch;
    lk_metrics m;
    lk_status  status;
    while ((status = lk_loader_next(j->loader, &batch)) == LK_END) {} /* the next epoch */
    TRY(status);
    TRY(lk_batch_bind(&batch, j->program));
    TRY(lk_program_step(j->program, &(lk_step){.step = number, .count = batch.count, .rate = 3e-3}));
    TRY(lk_program_run(j->program, LK_FORWARD));
    lk_program_metrics(j->program, &m);
    double sums[] = {m.sum, m.weight}; /* of this rank's tokens */
    TRY(lk_comm_all_reduce(j->comm, sums, sums, 2, LK_F64, LK_SUM, NULL));
    TRY(lk_program_run(j->program, LK_BACKWARD));
    TRY(reduce_gradients(j, sums[1]));
    TRY(lk_program_run(j->program, LK_UPDATE));
    if (lk_comm_rank(j->comm) == 0 && (number % 20 == 0 || number == 1))
        printf("step %lld: loss %.4f\n", (long long)number, sums[0] / sums[1]);
    return LK_OK;
}

static lk_status run(job *j)
{
    TRY(lk_comm_create(j->context, NULL, &j->comm));
    TRY(setup(j));
    for (int64_t i = 1; i <= j->steps; i++) TRY(train_step(j, i));
    return LK_OK;
}

static int rank_main(int rank, void *user)
{
    job *j = user; /* this process's own copy */
    if (lk_context_create(NULL, &j->context) < 0) return 1;
    lk_status status = run(j);
    if (status < 0) {
        fprintf(stderr, "ddp_gpt: rank %d: %s\n", rank, lk_context_error(j->context));
        if (j->comm) lk_comm_abort(j->comm, lk_context_error(j->context)); /* so that no rank waits for this one */
    }
    free(j->gradient);
    lk_program_free(j->program);
    lk_store_free(j->store);
    lk_plan_free(j->plan);
    lk_graph_free(j->graph);
    lk_loader_free(j->loader);
    lk_dataset_free(j->data);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
    return status < 0;
}

int main(int argc, char **argv)
{
    static job      j;
    lk_spawn_result result;
    int             ranks = argc > 1 ? atoi(argv[1]) : 2;
    j.steps = argc > 2 ? atoll(argv[2]) : 60;
    if (ranks < 1 || ranks > BATCH || j.steps < 1) return fprintf(stderr, "usage: ddp_gpt [RANKS] [STEPS]\n"), 2;
    if (lk_spawn(ranks, rank_main, &j, &result) == LK_OK) return 0;
    fprintf(stderr, "ddp_gpt: %s\n", result.text);
    return 1;
}
