/* eval.c - `lockstep eval`: loss and metrics of saved weights on a test set, or on the data that the user names. */
#include "metrics.h"
#include "model_default.h"
#include "ranks.h"
#include "record.h"
#include "split.h"
#include "text_metrics.h"

static const option eval_options[] = {
    TEXT("load", "DIR|FILE", NULL,
         "Weights: a checkpoint directory, which records its model and data, or a .safetensors file with --model and "
         "--data"),
    MODEL_OPTIONS,
    DATA_OPTIONS,
    SPLIT_OPTION,
    INTEGER("stride", "S", NULL, 1, 1 << 24,
            "text, jsonl, tokens: a window of --context tokens every S tokens, of which the last S are scored, each "
            "predicted from at least --context - S tokens (default --context: windows do not overlap)"),
    HEADING("Ranks"),
    RANKS_OF_LAUNCHERS,
    TRANSPORT_OPTIONS,
    HEADING("Running"),
    MACHINE_OPTIONS,
    FLAG("json", "Print one line of JSON"),
    CONFIG,
    OPTIONS_END,
};

static bool is_language_model(const setup *s)
{
    return s->transformer.used && s->transformer.config.kind != LK_TRANSFORMER_ENCODER;
}

static void print_evaluation(const setup *s, const options *given, const lk_evaluation *result)
{
    char            text[METRICS_TEXT], part[80];
    lk_named_metric all[LK_MAX_METRICS + 1 + TEXT_METRICS];
    lk_text_info    about = {0};
    int             count = result->metrics_count;
    for (int i = 0; i < count; i++) all[i] = result->metrics[i];
    if (is_language_model(s)) {
        count += text_metrics_of_loss(s->test, result->loss, all + count);
        (void)lk_dataset_text(s->test, &about);
    }
    if (!options_flag(given, "json")) {
        printf("loss %.6f%s (", result->loss, metrics_text(all, count, ", ", text));
        if (about.scored)
            printf("%lld tokens%s scored in %lld windows)\n", (long long)about.scored, split_set(s),
                   (long long)result->samples);
        else
            printf("%s)\n", split_describe(s, result->samples, part, sizeof part));
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "data", s->data);
    json_number(&j, "loss", result->loss);
    metrics_json(&j, all, count);
    json_integer(&j, "samples", result->samples);
    if (about.scored) json_integer(&j, "tokens", about.scored);
    json_text(&j, "split", split_name(s));
    json_close(&j, '}');
    json_line(&j);
}

static int evaluate(setup *s, const options *given)
{
    lk_trainer   *t = NULL;
    lk_evaluation result;
    bool          first = !s->config.comm || lk_comm_rank(s->config.comm) == 0;
    lk_status     status = lk_trainer_create(s->context, &s->config, &t);
    if (status < 0) return setup_report(s, "eval", status);
    split_note_training(s, "eval");
    status = lk_trainer_evaluate(t, &result);
    int code = status < 0 ? report_of_rank("eval", s->context, status) : 0;
    if (status >= 0 && first) print_evaluation(s, given, &result);
    lk_trainer_free(t);
    return code;
}

static int check_stride(const setup *s, const options *given)
{
    if (!options_given(given, "stride") || is_language_model(s)) return 0;
    print_error("eval", "--stride applies only to language models; %s does not use it", s->model_name);
    return EXIT_USER_ERROR;
}

/* Predictions need no labels, but a loss does. */
static int check_labels(const setup *s)
{
    if (lk_dataset_find(s->test, "label") || lk_dataset_find(s->test, "target")) return 0;
    print_error("eval", "%s has no labels, so there is no loss to compute; `lockstep predict` works without labels",
                s->data);
    return EXIT_USER_ERROR;
}

/* The model, the samples and the weights, by the options and the record of the checkpoint. */
static int prepare(setup *s, options *given, setup_data what)
{
    const char *weights = options_text(given, "load");
    int         code = record_read(s, "eval", given, weights);
    if (code == 0) code = model_default("eval", given);
    if (code == 0) code = record_require(s, "eval", given, weights);
    if (code == 0) code = setup_make(s, "eval", given, what);
    if (code == 0) code = check_labels(s);
    if (code == 0) code = record_check(s, "eval", given);
    if (code == 0) code = check_stride(s, given);
    s->transformer.config.router_loss = 0; /* that of training alone */
    s->config.whole_batches = true;        /* the results of one rank, bit for bit */
    s->config.init = weights;
    s->weights_option = "--load";
    return code;
}

/* Checks everything that is known before ranks are started, so that a user error is found once, in one process. */
static int check_run(const options *command_line, int ranks)
{
    static options given;
    setup          s = {0};
    given = *command_line;
    int code = setup_begin(&s, "eval", &given, 1);
    s.config.plan_world = ranks;
    if (code == 0) code = ranks_mesh(&s, "eval", &given, ranks);
    if (code == 0) code = prepare(&s, &given, SETUP_PROBE_TEST);
    if (code == 0) code = ranks_plan(&s, "eval", &given);
    setup_free(&s);
    return code;
}

static int run_eval(const options *command_line)
{
    static options given; /* of the command line and of the checkpoint */
    setup          s = {0};
    int            code;
    given = *command_line;
    if (!options_text(&given, "load")) {
        print_error("eval", "--load is missing: expected a checkpoint directory or a .safetensors file");
        return EXIT_USER_ERROR;
    }
    if (ranks_start("eval", &given, check_run, &code)) return code;
    code = setup_begin(&s, "eval", &given, (int)options_integer(&given, "threads"));
    if (code == 0) code = ranks_join(&s, "eval", &given);
    if (code == 0) code = ranks_mesh(&s, "eval", &given, s.config.comm ? lk_comm_size(s.config.comm) : 1);
    if (code == 0) code = prepare(&s, &given, SETUP_TEST);
    if (code != 0)
        ranks_abort(&s);
    else
        code = evaluate(&s, &given);
    ranks_leave(&s);
    setup_free(&s);
    return code;
}

const command command_eval = {
    "eval",
    "evaluate saved weights on a test set or on your own data",
    "Loads weights strictly (names and shapes must match the model) and prints the mean loss and the metrics, counting "
    "each sample once: over the test set, or over all samples of the files that --data names (--split). For a language "
    "model, every token except the first of a document is scored once, and perplexity and bits per byte are printed as "
    "well. A checkpoint directory records its model, its data and their options; options on the command line take "
    "precedence.\n\n"
    "With several ranks (-n, or any launcher), each evaluates whole batches in turn, and the result is bit-identical "
    "to the result with one rank. Ranks along the tensor axis (--mesh), however, each hold a part of the model, so "
    "sums are rounded in a different order.\n\n"
    "Examples: lockstep eval --load runs/first; lockstep eval --load runs/first --data csv:new.csv; lockstep eval "
    "--load runs/text --data text:book.txt --stride 64 -n 4; lockstep eval --load model.safetensors --model cnn --data "
    "fashion-mnist",
    NULL,
    0,
    0,
    eval_options,
    run_eval,
};
