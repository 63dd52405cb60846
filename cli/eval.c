/* eval.c - `lockstep eval`: loss and accuracy of saved weights on the test set. */
#include "metrics.h"
#include "model_default.h"
#include "record.h"

static const option eval_options[] = {
    TEXT("load", "DIR|FILE",
         NULL, "Weights: a checkpoint directory, which knows its model and data, or a .safetensors file with --model and --data"),
    MODEL_OPTIONS,
    DATA_OPTIONS,
    HEADING("Running"),
    MACHINE_OPTIONS,
    FLAG("json", "Print one line of JSON"),
    CONFIG,
    OPTIONS_END,
};

static void print_evaluation(const setup *s, const options *given, const lk_evaluation *result)
{
    char text[METRICS_TEXT];
    if (!options_flag(given, "json")) {
        printf("loss %.6f%s (%lld samples)\n", result->loss,
               metrics_text(result->metrics, result->metrics_count, ", ", text), (long long)result->samples);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "data", s->data);
    json_number(&j, "loss", result->loss);
    metrics_json(&j, result->metrics, result->metrics_count);
    json_integer(&j, "samples", result->samples);
    json_close(&j, '}');
    json_line(&j);
}

static int evaluate(setup *s, const options *given)
{
    lk_trainer   *t = NULL;
    lk_evaluation result;
    s->config.init = options_text(given, "load");
    s->weights_option = "--load";
    lk_status status = lk_trainer_create(s->context, &s->config, &t);
    if (status >= 0) status = lk_trainer_evaluate(t, &result);
    if (status >= 0) print_evaluation(s, given, &result);
    lk_trainer_free(t);
    return status < 0 ? setup_report(s, "eval", status) : 0;
}

static int run_eval(const options *command_line)
{
    static options given; /* of the command line and of the checkpoint */
    setup          s = {0};
    given = *command_line;
    const char *weights = options_text(&given, "load");
    if (!weights) {
        print_error("eval", "--load is missing: expected a checkpoint directory or a .safetensors file");
        return EXIT_USER_ERROR;
    }
    int code = setup_begin(&s, "eval", &given, (int)options_integer(&given, "threads"));
    if (code == 0) code = record_read(&s, "eval", &given, weights);
    if (code == 0) model_default(&given);
    if (code == 0) code = setup_make(&s, "eval", &given, SETUP_TEST);
    if (code == 0) code = record_check(&s, "eval", &given);
    if (code == 0 && s.no_test)
        print_note("eval", "%s has no test set: all %lld samples are evaluated", s.data,
                   (long long)lk_dataset_count(s.test));
    if (code == 0) code = evaluate(&s, &given);
    setup_free(&s);
    return code;
}

const command command_eval = {
    "eval",
    "evaluate saved weights on the test set",
    "Loads weights strictly (names and shapes must match the model) and prints the mean loss and the metrics over the "
    "whole test set, each sample once; where --data names data without one, over all samples. A checkpoint directory "
    "knows its model, its data and their options; an option that is given has precedence.\n\n"
    "Examples: lockstep eval --load runs/first; lockstep eval --load model.safetensors --model cnn --data "
    "fashion-mnist",
    NULL,
    0,
    0,
    eval_options,
    run_eval,
};
