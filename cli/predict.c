/* predict.c - `lockstep predict`: predicts the classes of test samples with saved weights. */
#include "json.h"
#include "setup.h"
#include "terminal.h"

#include <stdlib.h>
#include <string.h>

static const option predict_options[] = {
    TEXT("load", "DIR|FILE", NULL, "Weights: a checkpoint directory or a .safetensors file"),
    INTEGER("first", "I", "0", 0, 9e15, "Number of the first sample"),
    INTEGER("count", "N", "10", 1, 9e15, "Number of samples"),
    MODEL_OPTIONS,
    DATA_OPTIONS,
    HEADING("Running"),
    MACHINE_OPTIONS,
    FLAG("json", "Print a line of JSON for each sample: index, label, predicted, probabilities"),
    CONFIG,
    OPTIONS_END,
};

typedef struct predictor {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    lk_loader  *loader;
    int64_t     classes;
    void       *output; /* a batch's probabilities (N, classes) */
} predictor;

static void free_predictor(predictor *p)
{
    free(p->output);
    lk_loader_free(p->loader);
    lk_program_free(p->program);
    lk_store_free(p->store);
    lk_plan_free(p->plan);
    lk_graph_free(p->graph);
}

/* The model's probabilities as the only output; no loss, no gradients. */
static lk_status create_predictor(setup *s, const char *weights, predictor *p)
{
    lk_inputs        inputs;
    lk_loader_config loader = LK_LOADER_CONFIG_INIT;
    lk_status        status = lk_graph_create(s->context, s->config.dtype, &p->graph);
    if (status < 0) return status;
    loader.dataset = s->test;
    loader.batch = s->config.batch;
    loader.workers = s->config.workers;
    loader.dtype = s->config.dtype;
    loader.transform = s->config.transform;
    if ((status = lk_inputs_record(p->graph, &loader, loader.batch, &inputs)) < 0) return status;
    lk_tensor      y = loss_prediction(s->loss, setup_model(s, inputs.tensors[0]));
    lk_plan_config plan = LK_PLAN_CONFIG_INIT;
    plan.policy = s->config.policy;
    plan.outputs = &y;
    plan.outputs_count = 1;
    p->classes = lk_tensor_dim(y, -1);
    if ((status = lk_plan_create(p->graph, &plan, &p->plan)) < 0 ||
        (status = lk_store_create(p->plan, 0, &p->store)) < 0 || (status = lk_weights_load(p->store, weights)) < 0 ||
        (status = lk_program_create(p->plan, p->store, NULL, &p->program)) < 0)
        return status;
    p->output = malloc((size_t)(s->config.batch * p->classes) * lk_dtype_size(s->config.dtype));
    if (!p->output) return LK_ENOMEM;
    return lk_loader_create(s->context, &loader, &p->loader);
}

/* -1: the data set has no labels. */
static int32_t label_of(const lk_batch *b, int64_t row)
{
    for (int i = 0; i < b->fields_count; i++)
        if (strcmp(b->about[i].name, "label") == 0) return ((const int32_t *)b->fields[i])[row];
    return -1;
}

static void print_sample(const setup *s, const predictor *p, const lk_batch *b, int64_t row, bool as_json)
{
    const void *output = p->output;
    int64_t     best = 0;
    double      top = -1;
#define PROBABILITY(i) \
    (s->config.dtype == LK_F32 ? (double)((const float *)output)[row * p->classes + (i)] : ((const double *)output)[row * p->classes + (i)])
    for (int64_t i = 0; i < p->classes; i++)
        if (PROBABILITY(i) > top) top = PROBABILITY(i), best = i;
    const lk_field *label = lk_dataset_find(s->test, "label");
    int32_t         truth = label_of(b, row);
    const char     *predicted = label ? lk_field_class_name(label, best) : NULL,
               *actual = label ? lk_field_class_name(label, truth) : NULL;
    if (!as_json) {
        terminal_print(stdout, "%6lld  %-14s %5.1f %%  %s%s%s\n", (long long)b->indices[row],
                       predicted ? predicted : "", 100 * top, best == truth ? "right" : "wrong",
                       best == truth || !actual ? "" : ": it is ", best == truth || !actual ? "" : actual);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_integer(&j, "index", b->indices[row]);
    json_integer(&j, "label", truth);
    json_integer(&j, "predicted", best);
    if (predicted) json_text(&j, "name", predicted);
    json_open(&j, "probabilities", '[');
    for (int64_t i = 0; i < p->classes; i++) json_number(&j, NULL, PROBABILITY(i));
#undef PROBABILITY
    json_close(&j, ']');
    json_close(&j, '}');
    json_line(&j);
}

static lk_status predict(setup *s, predictor *p, int64_t first, int64_t count, bool as_json)
{
    lk_batch  b;
    int64_t   end = first + count;
    size_t    size = lk_dtype_size(s->config.dtype);
    lk_status status = lk_loader_seek(p->loader, 0, first - first % s->config.batch);
    while (status >= 0 && (status = lk_loader_next(p->loader, &b)) == LK_OK && b.position < end) {
        lk_step step = {.step = 1, .count = b.count};
        if ((status = lk_batch_bind(&b, p->program)) < 0 || (status = lk_program_step(p->program, &step)) < 0 ||
            (status = lk_program_run(p->program, LK_EVALUATE)) < 0 ||
            (status = lk_program_output_read(p->program, 0, p->output, (size_t)(b.count * p->classes) * size)) < 0)
            return status;
        for (int64_t row = 0; row < b.count; row++)
            if (b.position + row >= first && b.position + row < end) print_sample(s, p, &b, row, as_json);
    }
    return status < 0 ? status : LK_OK;
}

static int run_predict(const options *given)
{
    setup       s = {0};
    predictor   p = {0};
    const char *weights = options_text(given, "load");
    int64_t     first = options_integer(given, "first"), count = options_integer(given, "count");
    if (!weights) {
        print_error("predict", "--load is missing: expected a checkpoint directory or a .safetensors file");
        return EXIT_USER_ERROR;
    }
    int code = setup_make(&s, "predict", given, SETUP_TEST);
    if (code == 0 && first >= lk_dataset_count(s.test)) {
        print_error("predict", "--first %lld: the test set has %lld samples", (long long)first,
                    (long long)lk_dataset_count(s.test));
        code = EXIT_USER_ERROR;
    }
    if (code == 0) {
        s.config.init = weights;
        s.weights_option = "--load";
        lk_status status = create_predictor(&s, weights, &p);
        if (status >= 0) status = predict(&s, &p, first, count, options_flag(given, "json"));
        if (status < 0) code = setup_report(&s, "predict", status);
    }
    free_predictor(&p);
    setup_free(&s);
    return code;
}

const command command_predict = {
    "predict",
    "predict the classes of test samples with saved weights",
    "Prints for each sample its number, the most probable class and its probability.\n\n"
    "Example: lockstep predict --load runs/first --model cnn --data fashion-mnist --count 5",
    NULL,
    0,
    0,
    predict_options,
    run_predict,
};
