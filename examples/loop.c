/* loop.c - the training loop by hand, without lk_trainer: record, plan, then load, step, evaluate. It ends in the same
 * bits as `lockstep train --model cnn` with as many epochs, which prints its hash with --json.
 *
 *   loop [DATA] [EPOCHS] */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64 };

#define TRY(call)                                                            \
    do {                                                                     \
        if ((call) < 0) {                                                    \
            fprintf(stderr, "loop: %s\n", lk_context_error(context));        \
            return 1;                                                        \
        }                                                                    \
    } while (0)

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : "fashion-mnist";
    int         epochs = argc > 2 ? atoi(argv[2]) : 3;
    lk_context *context;
    if (lk_context_create(NULL, &context) < 0) return 1;

    /* Data: samples by index, and batches prefetched by a thread. */
    lk_dataset *train, *test;
    lk_loader  *batches, *tests;
    TRY(lk_dataset_open(context, data, LK_SPLIT_TRAIN, NULL, &train));
    TRY(lk_dataset_open(context, data, LK_SPLIT_TEST, NULL, &test));
    lk_loader_config loading = LK_LOADER_CONFIG_INIT;
    loading.dataset = train;
    loading.batch = BATCH;
    loading.shuffle = true;
    loading.workers = 1;
    TRY(lk_loader_create(context, &loading, &batches));
    loading.dataset = test;
    loading.shuffle = false;
    TRY(lk_loader_create(context, &loading, &tests));

    /* Model: an input for each field of a sample; the function runs once and records. */
    lk_graph *graph;
    lk_inputs inputs;
    TRY(lk_graph_create(context, LK_F32, &graph));
    TRY(lk_inputs_record(graph, &loading, BATCH, &inputs));
    lk_tensor label = lk_inputs_find(&inputs, "label");
    lk_tensor logits =
        lk_model_cnn(inputs.tensors[0], (lk_model_options){.classes = lk_dataset_find(train, "label")->classes});
    lk_tensor loss = lk_cross_entropy(logits, label);
    lk_metric(lk_equal(lk_argmax(logits, -1), label), "accuracy");

    /* Plan: instructions and memory layout. Store: parameters. Program: executes the plan. */
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      planning = LK_PLAN_CONFIG_INIT;
    lk_plan            *plan;
    lk_store           *store;
    lk_program         *program;
    planning.loss = loss;
    planning.optimizer = &adam;
    TRY(lk_plan_create(graph, &planning, &plan));
    TRY(lk_store_create(plan, 0, &store));
    TRY(lk_program_create(plan, store, NULL, &program));
    printf("%lld parameters, %.1f MiB of activations\n", (long long)lk_store_parameters(store),
           (double)lk_plan_memory(plan, LK_MEMORY_ACTIVATIONS) / 1048576);

    lk_batch   batch;
    lk_metrics metrics;
    lk_status  status;
    int64_t    steps = 0;
    for (int epoch = 0; epoch < epochs; epoch++) {
        double sum = 0, weight = 0;
        while ((status = lk_loader_next(batches, &batch)) == LK_OK) {
            lk_step step = {
                .step = ++steps, .epoch = epoch, .count = batch.count, .rate = adam.lr, .sample_ids = batch.indices};
            TRY(lk_batch_bind(&batch, program));
            TRY(lk_program_step(program, &step));
            TRY(lk_program_run(program, LK_FORWARD));
            TRY(lk_program_run(program, LK_BACKWARD));
            TRY(lk_program_run(program, LK_UPDATE));
            lk_program_metrics(program, &metrics);
            sum += metrics.sum;
            weight += metrics.weight;
        }
        TRY(status);

        double correct = 0, seen = 0;
        while ((status = lk_loader_next(tests, &batch)) == LK_OK) {
            lk_step step = {.step = 1, .count = batch.count};
            TRY(lk_batch_bind(&batch, program));
            TRY(lk_program_step(program, &step));
            TRY(lk_program_run(program, LK_EVALUATE));
            lk_program_metrics(program, &metrics);
            correct += metrics.named[0].sum;
            seen += metrics.named[0].weight;
        }
        TRY(status);
        printf("epoch %d: train loss %.4f, test accuracy %.2f %% (%.0f of %.0f)\n", epoch + 1, sum / weight,
               100 * correct / seen, correct, seen);
    }

    printf("hash %016llx\n", (unsigned long long)lk_store_hash(store));

    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_loader_free(batches);
    lk_loader_free(tests);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_context_free(context);
    return 0;
}
