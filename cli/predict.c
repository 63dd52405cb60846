/* predict.c - `lockstep predict`: what a saved model predicts for samples of a data set, or for the user's own image
 * files. */
#include "host_memory.h"
#include "model_default.h"
#include "predictions.h"
#include "record.h"
#include "split.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const option predict_options[] = {
    TEXT("load", "DIR|FILE", NULL,
         "Weights: a checkpoint directory, which records its model and data, or a .safetensors file with --model and "
         "--data"),
    INTEGER("first", "I", "0", 0, 9e15, "Index of the first sample, from 0"),
    INTEGER("count", "N", NULL, 1, 9e15,
            "Number of samples (default: all; 10 for text output on a terminal, unless the input is image files)"),
    INTEGER("top", "K", "1", 1, 1e6, "Print the K most probable classes"),
    FLAG("json", "Print a line of JSON for each sample: index or file, label, predicted, probabilities"),
    FLAG("csv", "Print a line of comma-separated values for each sample, after a header line"),
    MODEL_OPTIONS,
    DATA_OPTIONS,
    SPLIT_OPTION,
    HEADING("Running"),
    MACHINE_OPTIONS,
    CONFIG,
    OPTIONS_END,
};

typedef struct predictor {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    lk_loader  *loader;
    void       *output;  /* of a batch: (N, outputs) in the model's type */
    double     *values;  /* of a sample, and its target: (2, style.outputs) */
    int64_t     outputs; /* of the model */
    bool        binary;  /* its one output is the probability of the second of two classes */
    predictions style;
} predictor;

static void free_predictor(predictor *p)
{
    free(p->output);
    free(p->values);
    lk_loader_free(p->loader);
    lk_program_free(p->program);
    lk_store_free(p->store);
    lk_plan_free(p->plan);
    lk_graph_free(p->graph);
}

static lk_status check_memory(const setup *s, const lk_plan *plan)
{
    size_t bytes = 0;
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) bytes += lk_plan_memory(plan, (lk_memory)kind);
    return host_memory_used(s->context) ? lk_context_check_memory(s->context, NULL, bytes) : LK_OK;
}

/* The prediction as the only output; no loss, no gradients. */
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
    lk_tensor model =
        s->transformer.used ? transformer_logits(&s->transformer, &inputs) : setup_model(s, inputs.tensors[0]);
    lk_tensor      y = loss_prediction(s->loss, model);
    lk_plan_config plan = LK_PLAN_CONFIG_INIT;
    plan.policy = s->config.policy;
    plan.matmul_precision = s->config.matmul_precision;
    plan.outputs = &y;
    plan.outputs_count = 1;
    p->outputs = lk_tensor_dim(y, -1);
    p->style.outputs = p->binary && p->outputs == 1 ? 2 : p->outputs;
    if (p->style.top > p->style.outputs) p->style.top = p->style.outputs;
    const lk_field *target = lk_dataset_find(s->test, "target");
    p->style.targeted = p->style.targeted && lk_field_elements(target) == p->style.outputs;
    if ((status = lk_plan_create(p->graph, &plan, &p->plan)) < 0 || (status = check_memory(s, p->plan)) < 0 ||
        (status = lk_store_create(p->plan, 0, &p->store)) < 0 || (status = lk_weights_load(p->store, weights)) < 0 ||
        (status = lk_program_create(p->plan, p->store, NULL, &p->program)) < 0)
        return status;
    p->output = malloc((size_t)(s->config.batch * p->outputs) * lk_dtype_size(s->config.dtype));
    p->values = malloc(2 * (size_t)p->style.outputs * sizeof *p->values);
    return p->output && p->values ? lk_loader_create(s->context, &loader, &p->loader) : LK_ENOMEM;
}

/* Field `name` of a batch; NULL: it has none. */
static const void *find_field(const lk_batch *b, const char *name, const lk_field **field)
{
    for (int i = 0; i < b->fields_count; i++)
        if (strcmp(b->about[i].name, name) == 0) {
            *field = &b->about[i];
            return b->fields[i];
        }
    return NULL;
}

static double read_number(lk_dtype type, const void *data, int64_t i)
{
    return type == LK_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void print_row(const setup *s, const predictor *p, const lk_batch *b, int64_t row)
{
    int64_t         n = p->style.outputs;
    const lk_field *field = NULL;
    const void     *labels = find_field(b, "label", &field), *targets = find_field(b, "target", &field);
    prediction      one = {.index = b->indices[row],
                           .name = lk_dataset_sample_name(s->test, b->indices[row]),
                           .values = p->values,
                           .target = p->values + n,
                           .label = labels && p->style.labelled ? ((const int32_t *)labels)[row] : LK_NO_LABEL};
    for (int64_t i = 0; i < p->outputs; i++)
        p->values[i] = read_number(s->config.dtype, p->output, row * p->outputs + i);
    if (p->outputs < n) p->values[1] = p->values[0], p->values[0] = 1 - p->values[1];
    for (int64_t i = 0; targets && p->style.targeted && i < n; i++)
        p->values[n + i] = read_number(field->dtype, targets, row * n + i);
    predictions_print(&p->style, &one);
}

static lk_status predict(setup *s, predictor *p, int64_t first, int64_t count)
{
    lk_batch  b;
    int64_t   end = first + count;
    size_t    size = lk_dtype_size(s->config.dtype);
    lk_status status = lk_loader_seek(p->loader, 0, first - first % s->config.batch);
    predictions_begin(&p->style);
    while (status >= 0 && (status = lk_loader_next(p->loader, &b)) == LK_OK && b.position < end) {
        lk_step step = {.step = 1, .count = b.count};
        if ((status = lk_batch_bind(&b, p->program)) < 0 || (status = lk_program_step(p->program, &step)) < 0 ||
            (status = lk_program_run(p->program, LK_EVALUATE)) < 0 ||
            (status = lk_program_output_read(p->program, 0, p->output, (size_t)(b.count * p->outputs) * size)) < 0)
            return status;
        for (int64_t row = 0; row < b.count; row++)
            if (b.position + row >= first && b.position + row < end) print_row(s, p, &b, row);
    }
    return status < 0 ? status : LK_OK;
}

/* What is printed for a sample, by loss, options and fields. */
static int set_style(const setup *s, const options *given, predictor *p)
{
    const lk_field *label = lk_dataset_find(s->test, "label"), *target = lk_dataset_find(s->test, "target");
    const char     *name = lk_dataset_sample_name(s->test, 0);
    predictions    *style = &p->style;
    p->binary = s->loss == LOSS_BCE && !setup_field(s, "target");
    style->kind = s->loss == LOSS_CROSS_ENTROPY || p->binary ? PREDICTIONS_CLASS
                  : s->loss == LOSS_BCE                      ? PREDICTIONS_LABELS
                                                             : PREDICTIONS_NUMBERS;
    style->format = options_flag(given, "json")  ? PREDICTIONS_JSON
                    : options_flag(given, "csv") ? PREDICTIONS_CSV
                                                 : PREDICTIONS_TEXT;
    style->top = options_integer(given, "top");
    style->classes = style->kind == PREDICTIONS_CLASS ? setup_field(s, "label") : NULL;
    style->named = name && *name;
    style->labelled = style->kind == PREDICTIONS_CLASS && label && label->rank == 0;
    style->targeted = style->kind == PREDICTIONS_NUMBERS && target;
    if (style->kind != PREDICTIONS_NUMBERS || !options_chosen(given, "top")) return 0;
    print_error("predict", "--top applies only to models that predict classes; this one predicts numbers");
    return EXIT_USER_ERROR;
}

/* What the model must be, and options of data sets that image files do not use. */
static int check_files(const options *given, const lk_field *image)
{
    if (!image) {
        print_error("predict",
                    "%s: image files need a checkpoint directory, which records the classes and the image size; %s has "
                    "no such record",
                    given->operands[0], options_text(given, "load"));
        return EXIT_USER_ERROR;
    }
    if (image->rank != 3 || image->dtype != LK_U8) {
        print_error("predict", "%s: the model in %s takes %s, not images; give its samples with --data",
                    given->operands[0], options_text(given, "load"), image->name);
        return EXIT_USER_ERROR;
    }
    static const char *const unused[] = {"holdout", "cache"};
    for (int i = 0; i < 2; i++)
        if (options_chosen(given, unused[i])) {
            print_error("predict", "--%s applies only to --data folder; image files do not use it", unused[i]);
            return EXIT_USER_ERROR;
        }
    return 0;
}

/* The images that the arguments name, resized to what the model reads. */
static int open_files(setup *s, const options *given)
{
    const lk_field *image = s->description ? lk_description_field(s->description, 0) : NULL;
    int             code = check_files(given, image);
    if (code == 0) code = open_options_set("predict", given, "folder", &s->open_options);
    if (code != 0) return code;
    setup_image_size(image, &s->open_options);
    s->open_options.skip_broken = options_chosen(given, "skip-broken") && options_flag(given, "skip-broken");
    snprintf(s->data, sizeof s->data, "%s", given->operands[0]);
    lk_status status = lk_dataset_images(s->context, given->operands, given->operand_count, &s->open_options, &s->test);
    return status < 0 ? report("predict", s->context, status) : 0;
}

static int check_options(const options *given)
{
    const char *wrong =
        !options_text(given, "load") ? "--load is missing: expected a checkpoint directory or a .safetensors file"
        : options_flag(given, "json") && options_flag(given, "csv") ? "--json and --csv are mutually exclusive"
        : given->operand_count > 0 && options_given(given, "data")  ? "image files and --data are mutually exclusive"
        : given->operand_count > 0 && options_given(given, "split") ? "image files and --split are mutually exclusive"
                                                                    : NULL;
    if (wrong) print_error("predict", "%s", wrong);
    return wrong ? EXIT_USER_ERROR : 0;
}

/* A language model has no class or number for a sample. Checked before its data is opened, which predict would not
 * use. */
static int refuse_language_model(setup *s, const options *given)
{
    int code = transformer_make(&s->transformer, "predict", given, s->checkpoint, s->context);
    if (code != 0 || !s->transformer.used || s->transformer.config.kind == LK_TRANSFORMER_ENCODER) return code;
    print_error("predict",
                "--model %s is a language model, but predict prints classes or numbers: `lockstep generate` continues "
                "a text, and `lockstep eval` measures the loss",
                options_text(given, "model"));
    return EXIT_USER_ERROR;
}

/* Opens the samples, and finds what the model is. */
static int prepare(setup *s, options *given)
{
    int code = check_options(given);
    if (code == 0) code = setup_begin(s, "predict", given, (int)options_integer(given, "threads"));
    if (code == 0) code = record_read(s, "predict", given, options_text(given, "load"));
    if (code == 0) code = model_default("predict", given);
    if (code == 0 && given->operand_count == 0) code = record_require(s, "predict", given, options_text(given, "load"));
    if (code == 0) code = refuse_language_model(s, given);
    if (code == 0 && given->operand_count > 0) code = open_files(s, given);
    if (code == 0) code = setup_make(s, "predict", given, given->operand_count > 0 ? SETUP_OPENED : SETUP_ANY);
    return code == 0 ? record_check(s, "predict", given) : code;
}

/* How many samples are printed from number `first` on. */
static int64_t choose_count(const setup *s, const options *given, int64_t first)
{
    enum { FEW = 10 };
    int64_t left = lk_dataset_count(s->test) - first, count = left;
    bool    text = !options_flag(given, "json") && !options_flag(given, "csv");
    if (options_given(given, "count"))
        count = options_integer(given, "count");
    else if (given->operand_count == 0 && text && isatty(STDOUT_FILENO))
        count = FEW;
    return count < left ? count : left;
}

/* Which samples they are; the files are known. */
static void note_samples(const setup *s, const options *given, int64_t first, int64_t count)
{
    char text[80];
    if (given->operand_count > 0) return;
    bool more = first + count < lk_dataset_count(s->test) && !options_given(given, "count");
    print_note("predict", "%s: %s%s", s->data, split_describe(s, count, text, sizeof text),
               more ? "; --count prints more" : "");
    split_note_training(s, "predict");
}

static int run_predict(const options *command_line)
{
    static options given; /* of the command line and of the checkpoint */
    setup          s = {0};
    predictor      p = {0};
    given = *command_line;
    int     code = prepare(&s, &given);
    int64_t first = options_integer(&given, "first");
    if (code == 0 && first >= lk_dataset_count(s.test)) {
        print_error("predict", "--first %lld is out of range: there are %lld samples", (long long)first,
                    (long long)lk_dataset_count(s.test));
        code = EXIT_USER_ERROR;
    }
    if (code == 0) code = set_style(&s, &given, &p);
    if (code == 0) {
        int64_t count = choose_count(&s, &given, first);
        s.config.init = options_text(&given, "load");
        s.weights_option = "--load";
        lk_status status = create_predictor(&s, s.config.init, &p);
        if (status >= 0) note_samples(&s, &given, first, count);
        if (status >= 0) status = predict(&s, &p, first, count);
        if (status < 0) code = setup_report(&s, "predict", status);
    }
    free_predictor(&p);
    setup_free(&s);
    return code;
}

const command command_predict = {
    "predict",
    "predict classes or numbers with a saved model",
    "Prints for each sample what the model predicts: the most probable class and its probability, or the numbers of a "
    "regression. Samples are PNG and JPEG files, named one by one or by directory, and resized to the model's input "
    "size; without any, they come from the files that --data names, or from the test set of the data that the "
    "checkpoint records (--split).\n\n"
    "Examples: lockstep predict --load runs/first cat.jpg holiday/ --top 3; lockstep predict --load runs/first --count "
    "5; "
    "lockstep predict --load runs/table --data csv:new.csv --csv; lockstep predict --load model.safetensors --model "
    "cnn --data fashion-mnist --csv",
    "[FILE|DIR...]",
    0,
    OPTIONS_OPERANDS,
    predict_options,
    run_predict,
};
