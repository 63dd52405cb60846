/* program.c - what test/tree/old_headers.sh compiles against the headers of earlier versions: every kind of config
 * struct, a model, an operation of its own, the trainer and a loop by hand. It uses what those headers have, and
 * nothing newer. */
#include <lockstep.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                          \
    do {                                                                                                   \
        if ((call) < 0) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, lk_context_error(context));      \
            return 1;                                                                                      \
        }                                                                                                  \
    } while (0)

static lk_status same_shape(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    return LK_OK;
}

static lk_status double_it(const lk_operation_call *call)
{
    const lk_operand *from = call->backward ? &call->output_gradients[0] : &call->inputs[0];
    float            *to = call->backward ? call->input_gradients[0].data : call->outputs[0].data;
    for (int64_t i = 0; i < lk_operand_elements(from); i++) to[i] = 2 * ((const float *)from->data)[i];
    return LK_OK;
}

static lk_tensor model(lk_tensor x)
{
    lk_operation twice = LK_OPERATION_INIT;
    twice.name = "twice";
    twice.inputs = twice.outputs = 1;
    twice.shape = same_shape;
    twice.forward = twice.backward = double_it;
    lk_tensor y = lk_relu(lk_linear(lk_flatten(x), "fc1", 32, .no_bias = true));
    return lk_linear(lk_apply(&twice, &y, 1, NULL), "fc2", 4);
}

static double losses[2]; /* the first and the latest */

static int on_event(void *user, const lk_event *event)
{
    (void)user;
    if (event->kind == LK_EVENT_STEP) losses[event->step > 1] = event->loss;
    return 0;
}

static int train(lk_context *context, lk_comm *comm)
{
    lk_dataset_synthetic_config made = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_trainer_config           config = LK_TRAINER_CONFIG_INIT;
    lk_dataset                 *data;
    lk_trainer                 *trainer;
    made.count = 256;
    made.dims[0] = 12;
    made.classes = 4;
    TRY(lk_dataset_synthetic(context, &made, &data));
    config.model = model;
    config.train = data;
    config.batch = 32;
    config.steps = 30;
    config.optimizer.lr = 1e-2;
    config.optimizer.clip = 1;
    config.schedule.kind = LK_COSINE;
    config.comm = comm;
    config.event = on_event;
    TRY(lk_trainer_create(context, &config, &trainer));
    TRY(lk_trainer_run(trainer));
    lk_trainer_free(trainer);
    lk_dataset_free(data);
    printf("loss %.4f, then %.4f\n", losses[0], losses[1]);
    return losses[1] < 0.5 * losses[0] ? 0 : 1;
}

static int by_hand(lk_context *context)
{
    enum { ROWS = 24, COLUMNS = 3 };
    static float             x[ROWS * COLUMNS], target[ROWS];
    lk_field                 fields[2] = {{.name = "x", .dtype = LK_F32, .rank = 1, .dims = {COLUMNS}},
                                          {.name = "target", .dtype = LK_F32}};
    const void              *data[] = {x, target};
    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_loader_config         loading = LK_LOADER_CONFIG_INIT;
    lk_optimizer_config      sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config           planning = LK_PLAN_CONFIG_INIT;
    lk_dataset              *dataset;
    lk_loader               *loader;
    lk_graph                *graph;
    lk_plan                 *plan;
    lk_store                *store;
    lk_program              *program;
    lk_batch                 batch;
    lk_metrics               metrics;
    memset(&metrics, 0, sizeof metrics);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i * 7 % 11) / 11;
    for (int i = 0; i < ROWS; i++) target[i] = x[3 * i] - 2 * x[3 * i + 1] + 0.5f;
    arrays.count = ROWS;
    arrays.fields = fields;
    arrays.fields_count = 2;
    arrays.data = data;
    TRY(lk_dataset_from_arrays(context, &arrays, &dataset));
    loading.dataset = dataset;
    loading.batch = ROWS;
    loading.shuffle = true;
    TRY(lk_loader_create(context, &loading, &loader));
    TRY(lk_graph_create(context, LK_F32, &graph));
    lk_tensor in = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){ROWS, COLUMNS}));
    lk_tensor y = lk_input(graph, "target", LK_F32, 1, ((int64_t[]){ROWS}));
    sgd.kind = LK_SGD;
    planning.loss = lk_mse(lk_reshape(lk_linear(in, "fc", 1), 1, ((int64_t[]){ROWS})), y);
    planning.optimizer = &sgd;
    TRY(lk_plan_create(graph, &planning, &plan));
    TRY(lk_store_create(plan, 0, &store));
    TRY(lk_program_create(plan, store, NULL, &program));
    for (int64_t step = 1; step <= 400;) {
        lk_status status = lk_loader_next(loader, &batch);
        if (status == LK_END) continue;
        TRY(status);
        lk_step now = {.step = step++, .count = batch.count, .rate = 0.2};
        for (int i = 0; i < batch.fields_count; i++)
            TRY(lk_program_bind(program, batch.about[i].name, batch.fields[i]));
        TRY(lk_program_train(program, &now));
    }
    lk_program_metrics(program, &metrics);
    printf("line: loss %.2g\n", metrics.loss);
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_loader_free(loader);
    lk_dataset_free(dataset);
    return metrics.loss < 1e-3 ? 0 : 1;
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    joining = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    config.threads = 2;
    joining.backend = "self";
    joining.rank = 0;
    joining.world = 1;
    if (lk_context_create(&config, &context) < 0) {
        fprintf(stderr, "no context: %s\n", lk_context_error(NULL));
        return 1;
    }
    TRY(lk_comm_create(context, &joining, &comm));
    int wrong = train(context, comm) || by_hand(context);
    lk_comm_free(comm);
    lk_context_free(context);
    printf("headers %s, library %s\n", LK_VERSION_STRING, lk_version());
    return wrong;
}
