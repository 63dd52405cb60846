/* eval.c - `lockstep eval`: loss and accuracy of saved weights on the test set. */
#include "json.h"
#include "setup.h"

static const option eval_options[] = {
    TEXT("load", "DIR|FILE", NULL, "Weights: a checkpoint directory or a .safetensors file"),
    MODEL_OPTIONS,
    DATA_OPTIONS,
    HEADING("Running"),
    MACHINE_OPTIONS,
    FLAG("json", "Print one line of JSON"),
    CONFIG,
    OPTIONS_END,
};

static int evaluate(setup *s, const options *given)
{
    lk_trainer *t = NULL;
    double      loss, accuracy;
    int64_t     samples;
    s->config.init = options_text(given, "load");
    s->weights_option = "--load";
    lk_status status = lk_trainer_create(s->context, &s->config, &t);
    if (status >= 0) status = lk_trainer_evaluate(t, &loss, &accuracy, &samples);
    lk_trainer_free(t);
    if (status < 0) return setup_report(s, "eval", status);
    if (!options_flag(given, "json")) {
        printf("loss %.6f, accuracy %.2f %% (%lld samples)\n", loss, 100 * accuracy, (long long)samples);
        return 0;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "data", s->data);
    json_number(&j, "loss", loss);
    json_number(&j, "accuracy", accuracy);
    json_integer(&j, "samples", samples);
    json_close(&j, '}');
    json_line(&j);
    return 0;
}

static int run_eval(const options *given)
{
    setup s = {0};
    if (!options_text(given, "load")) {
        print_error("eval", "--load is missing: expected a checkpoint directory or a .safetensors file");
        return EXIT_USER_ERROR;
    }
    int code = setup_make(&s, "eval", given, SETUP_TEST);
    if (code == 0) code = evaluate(&s, given);
    setup_free(&s);
    return code;
}

const command command_eval = {
    "eval",
    "evaluate saved weights on the test set",
    "Loads weights strictly (names and shapes must match the model) and prints the mean loss and the accuracy over the "
    "whole test set, "
    "each sample once.\n\nExample: lockstep eval --load runs/first --model cnn --data fashion-mnist",
    NULL,
    0,
    0,
    eval_options,
    run_eval,
};
