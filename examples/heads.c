/* heads.c - a model with two heads in a loop of its own: the class of a point and its distance from the middle. Only
 * every third point has a class. Each loss is divided by its own count, and then they are added: the same with one rank
 * and with several.
 *
 *   heads
 *   lockstep run -n 2 heads */
#include <lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1200, BATCH = 64, EPOCHS = 12 };

static float   points[SAMPLES][2], distances[SAMPLES];
static int32_t classes[SAMPLES];

static void make_points(void)
{
    for (int i = 0; i < SAMPLES; i++) {
        int corner = rand() % 4;
        for (int k = 0; k < 2; k++)
            points[i][k] = (corner >> k & 1 ? 1.0f : -1.0f) + 1.2f * ((float)rand() / (float)RAND_MAX - 0.5f);
        distances[i] = hypotf(points[i][0], points[i][1]);
        classes[i] = i % 3 == 0 ? corner : -100; /* no label: cross-entropy ignores it */
    }
}

static lk_tensor record_loss(const lk_inputs *inputs)
{
    lk_tensor x = lk_gelu(lk_linear(lk_inputs_find(inputs, "point"), "trunk", 32));       /* (N, 32) */
    lk_tensor logits = lk_linear(x, "class", 4), label = lk_inputs_find(inputs, "label"); /* (N, 4), (N) */
    lk_tensor distance = lk_reshape(lk_linear(x, "distance", 1), 1, (int64_t[]){-1});     /* (N) */
    lk_tensor of_class = lk_cross_entropy(logits, label);                                 /* over those with a class */
    lk_tensor of_distance = lk_mse(distance, lk_inputs_find(inputs, "distance"));         /* over all */
    lk_metric(of_class, "class");
    lk_metric(of_distance, "distance");
    return lk_add(of_class, lk_scale(of_distance, 0.5));
}

static lk_status train(lk_context *context, lk_comm *comm, lk_loader_config *loading)
{
    int                 rank = lk_comm_rank(comm);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_step             step = LK_STEP_INIT; /* with the optimizer's rate */
    lk_loader          *loader = NULL;
    lk_graph           *graph = NULL;
    lk_plan            *plan = NULL;
    lk_store           *store = NULL;
    lk_program         *program = NULL;
    lk_inputs           inputs;
    lk_batch            batch;
    lk_metrics          metrics = {0};
    adam.lr = 1e-2;
    config.optimizer = &adam;
    config.parallel.world = lk_comm_size(comm);
    config.parallel.rank = rank;
    lk_status status = lk_loader_create(context, loading, &loader);
    if (status >= 0) status = lk_graph_create(context, LK_F32, &graph);
    if (status >= 0) status = lk_inputs_record(graph, loading, lk_parallel_capacity(&config.parallel, BATCH), &inputs);
    if (status >= 0) config.loss = record_loss(&inputs);
    if (status >= 0) status = lk_plan_create(graph, &config, &plan);
    if (status >= 0) status = lk_store_create(plan, 0, &store);
    if (status >= 0) status = lk_program_create(plan, store, comm, &program);
    while (status >= 0 && (status = lk_loader_next(loader, &batch)) >= 0 && batch.epoch < EPOCHS) {
        if (status == LK_END) continue; /* of an epoch */
        step.epoch = batch.epoch;
        step.count = batch.count;
        step.sample_ids = batch.indices;
        status = lk_batch_bind(&batch, program);
        if (status >= 0) status = lk_program_train(program, &step);
        lk_program_metrics(program, &metrics); /* of all ranks */
        if (status >= 0 && rank == 0 && step.step % 50 == 0)
            printf("step %3lld: loss %.4f, class %.4f, distance %.4f\n", (long long)step.step, metrics.loss,
                   metrics.named[0].value, metrics.named[1].value);
        step.step++;
    }
    if (status >= 0 && rank == 0) printf("loss %.5f\n", metrics.loss);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_loader_free(loader);
    return status;
}

int main(void)
{
    lk_field                 fields[] = {{.name = "point", .dtype = LK_F32, .rank = 1, .dims = {2}},
                                         {.name = "label", .dtype = LK_I32},
                                         {.name = "distance", .dtype = LK_F32}};
    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_loader_config         loading = LK_LOADER_CONFIG_INIT;
    lk_context              *context = NULL;
    lk_comm                 *comm = NULL;
    lk_dataset              *dataset = NULL;
    make_points();
    if (lk_context_create(NULL, &context) < 0) return 1;
    lk_status status = lk_comm_create(context, NULL, &comm); /* alone, or with those that `lockstep run` started */
    if (status < 0) goto end;
    arrays.count = SAMPLES;
    arrays.fields = fields;
    arrays.fields_count = 3;
    arrays.data = (const void *[]){points, classes, distances};
    if (status >= 0) status = lk_dataset_from_arrays(context, &arrays, &dataset);
    loading.dataset = dataset;
    loading.batch = BATCH;
    loading.shuffle = true;
    loading.parts = lk_comm_size(comm); /* this rank's part of each batch */
    loading.first_part = lk_comm_rank(comm);
    loading.last_part = loading.first_part + 1;
    if (status >= 0) status = train(context, comm, &loading);
end:
    if (status < 0) fprintf(stderr, "heads: %s\n", lk_context_error(context));
    lk_dataset_free(dataset);
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0;
}
