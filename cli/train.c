/* train.c - `lockstep train`. */
#define _GNU_SOURCE
#include "clock.h"
#include "environment.h"
#include "memory_advice.h"
#include "mesh_hosts.h"
#include "metrics.h"
#include "model_default.h"
#include "model_files.h"
#include "partial.h"
#include "paths.h"
#include "progress.h"
#include "ranks.h"
#include "record.h"
#include "run_log.h"
#include "straggler.h"
#include "terminal.h"
#include "text_metrics.h"
#include "training.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const option train_options[] = {
    MODEL_OPTIONS,
    MEMORY_OPTION,
    DATA_OPTIONS,
    TEXT("download", "auto|URL", NULL,
         "Download the data set first if it is missing, from its usual address or from URL; one rank of each host "
         "downloads it",
         .flags = OPTION_LOCAL),
    TRAINING_OPTIONS,
    RANKS_OF_LAUNCHERS,
    PARALLEL_OPTIONS TACTICS_OPTION,
    TRANSPORT_OPTIONS,
    CHOICE("lr-scale", "HOW", "none", "none|linear|sqrt",
           "Multiply --lr by batch / base-batch, or by the square root of that"),
    INTEGER("base-batch", "N", "64", 1, 1e7, "With --lr-scale: the batch size that --lr was tuned for"),
    TRAINING_LIST(LK_TRAINER_CHECK_OPTIONS)
        CHOICE("on-signal", "HOW", "save-stop", "save-exit|save-stop",
               "On SIGTERM, SIGINT or SIGUSR1 to any rank, all ranks save at the same step and exit. save-stop: with "
               "the signal's status. save-exit: with 0",
               .flags = OPTION_LOCAL),
    INTEGER("max-restarts", "N", "0", 0, 1e6,
            "With -n or --mesh: restart all ranks after a failure, at most N times; they resume from the newest "
            "checkpoint in --save",
            .flags = OPTION_LOCAL),
    FLAG("verbose-ranks",
         "Every rank prints its threads, cores and share of the batch, and its own mean loss after each epoch",
         .flags = OPTION_LOCAL),
    HEADING("Running"),
    MACHINE_OPTIONS,
    TEXT("tensorboard", "DIR", NULL, "Write loss, accuracy and speed to TensorBoard event files",
         .flags = OPTION_LOCAL),
    TRAINING_LIST(LK_TRAINER_TRACE_OPTIONS)
        TEXT("log-dir", "DIR", NULL, "Like --log, for every rank: DIR/rank-N.jsonl", .flags = OPTION_LOCAL),
    TEXT("log", "FILE.jsonl", NULL, "Append a line of JSON to FILE.jsonl for each step, evaluation and save",
         .flags = OPTION_LOCAL),
    FLAG("json",
         "Print a final line of JSON with the results on standard output; train_loss is the mean over the last epoch",
         .flags = OPTION_UNRECORDED | OPTION_LOCAL),
    CONFIG,
    OPTIONS_END,
};

typedef struct watcher {
    setup          *setup;
    progress        bar;
    bool            started;
    const lk_event *event; /* the latest, while it is handled */
    run_log         log;
    int64_t         images, steps; /* of this run */
    double          seconds;       /* in steps alone */
    straggler       late;          /* of the latest step */
    double          last_loss;     /* of the latest step's batch */
    double          train_loss;    /* mean over this run's part of the latest epoch */
    double          epoch_sum;     /* of losses × samples, and … */
    int64_t         epoch_samples; /* … of samples, in the epoch so far */
    int64_t         epoch;
    bool            epoch_ended;                                /* and its evaluation follows */
    double          loss;                                       /* of the latest evaluation; NaN: none */
    lk_named_metric metrics[LK_MAX_METRICS + 1 + TEXT_METRICS]; /* of it */
    text_metrics    text;
    int             metrics_count;
    int64_t         samples; /* of it */
    int             rank, world;
    bool            verbose;
} watcher;

/* A second signal ends the process at once. One that follows this soon is the same request: whoever signals all
 * processes of a job signals its launcher, too, which passes it on. */
#define REPEATED_SECONDS 0.4

static void on_signal(int number)
{
    static volatile double first;
    if (!stop_signal) {
        first = now();
        stop_signal = number;
    } else if (now() >= first + REPEATED_SECONDS) {
        signal(number, SIG_DFL);
        raise(number); /* once this function has returned */
    }
}

/* What the moving line ends with: the slowest rank, if the others wait for it more than a tenth of a step (one rank is
 * always the slowest), else the metrics of the step's batch. */
static void describe_step(void *user, char *note, size_t size)
{
    const watcher  *w = user;
    const lk_event *e = w->event;
    char            text[METRICS_TEXT];
    straggler       late = {e->late_rank, e->late, e->seconds};
    if (straggler_matters(&late)) {
        straggler_name(w->setup, &late, text, sizeof text);
        snprintf(note, size, "slowest: %.60s, +%.*f ms (%s)", text, e->late < 0.01 ? 1 : 0, 1e3 * e->late, e->late_in);
        return;
    }
    lk_named_metric shown[LK_MAX_METRICS + 1 + TEXT_METRICS];
    int             count = 0;
    for (int i = 0; i < e->metrics_count; i++) /* the line has the rate, and tokens are in proportion to steps */
        if (!w->setup->transformer.used ||
            (strcmp(e->metrics[i].name, "tokens_per_s") != 0 && strcmp(e->metrics[i].name, "tokens") != 0))
            shown[count++] = e->metrics[i];
    metrics_text(shown, count, "  ", text);
    snprintf(note, size, "%.*s", (int)size - 1, *text ? text + 2 : text);
}

static void update_train_loss(watcher *w, const lk_event *e)
{
    if (e->epoch != w->epoch) w->epoch_sum = 0, w->epoch_samples = 0;
    w->epoch = e->epoch;
    w->epoch_sum += e->loss * (double)e->samples;
    w->epoch_samples += e->samples;
    w->last_loss = e->loss;
    w->train_loss = w->epoch_sum / (double)w->epoch_samples;
}

/* After an epoch with a test set its mean training loss is printed with the evaluation that follows; otherwise by
 * itself. */
static void hold_epoch(watcher *w, const lk_event *e)
{
    if (w->setup->test && w->setup->config.eval_every == 0)
        w->epoch_ended = true;
    else
        progress_print_wrapped(&w->bar, "epoch %lld, step %lld: train loss %.4f", (long long)e->epoch + 1,
                               (long long)e->step, e->loss);
}

/* The number of samples and the time are omitted where the line would become wider than the terminal. */
static void print_evaluation(watcher *w, const lk_event *e)
{
    long long total = (long long)lk_dataset_count(w->setup->test), samples = (long long)e->samples;
    char      text[METRICS_TEXT], trained[64] = "", line[METRICS_TEXT + 256], more[96];
    if (w->epoch_ended) snprintf(trained, sizeof trained, "train loss %.4f, ", w->train_loss);
    w->epoch_ended = false;
    int  used = snprintf(line, sizeof line, "epoch %lld, step %lld: %stest loss %.4f%s", (long long)e->epoch + 1,
                         (long long)e->step, trained, e->loss, metrics_text(e->metrics, e->metrics_count, ", ", text));
    int  length = snprintf(more, sizeof more, " (%lld/%lld samples in %.1f s)", samples, total, e->seconds);
    bool shown = samples != total || used + length < terminal_columns(stderr);
    progress_print_wrapped(&w->bar, "%s%s", line, shown ? more : "");
}

static int on_event(void *user, const lk_event *event)
{
    watcher        *w = user;
    lk_event        own = text_metrics_add(&w->text, w->setup, event);
    const lk_event *e = &own;
    if (!w->started && w->rank == 0) {
        progress_start(&w->bar, stderr, "train", setup_unit(w->setup), e->steps);
        w->bar.describe = describe_step;
        w->bar.user = w;
        w->started = true;
        w->log.bar = &w->bar;
    }
    run_log_event(&w->log, e);
    if (e->kind == LK_EVENT_STEP) {
        w->images += e->samples;
        w->steps++;
        w->seconds += e->seconds;
        w->late = (straggler){e->late_rank, e->late, w->seconds / (double)w->steps};
        update_train_loss(w, e);
        w->event = e;
        if (w->rank == 0) progress_step(&w->bar, e->step, e->loss, (double)(w->images * setup_units(w->setup)));
        w->event = NULL; /* it ends with this call */
        if (w->setup->transformer.used && w->text.measured == 0) text_metrics_measure(&w->text, w->setup, w->world);
    }
    if (e->kind == LK_EVENT_EPOCH) w->train_loss = e->loss;
    if (e->kind == LK_EVENT_EPOCH && w->verbose)
        fprintf(stderr, "rank %d: epoch %lld: mean loss %.4f over its own %lld samples, %.4f over all\n", w->rank,
                (long long)e->epoch + 1, e->own_loss, (long long)e->samples, e->loss);
    if (e->kind == LK_EVENT_EVALUATED) {
        w->loss = e->loss;
        memcpy(w->metrics, e->metrics, (size_t)e->metrics_count * sizeof *e->metrics);
        w->metrics_count = e->metrics_count;
        w->samples = e->samples;
    }
    if (w->rank != 0) return stop_signal != 0;
    if (e->kind == LK_EVENT_EPOCH) hold_epoch(w, e);
    if (e->kind == LK_EVENT_EVALUATED) print_evaluation(w, e);
    if (e->kind == LK_EVENT_SAVED && !stop_signal) /* otherwise the last message contains it */
        progress_print(&w->bar, "saved step %lld in %s", (long long)e->step, e->path);
    if (e->kind == LK_EVENT_RESUMED)
        progress_print(&w->bar, "resumed %s at step %lld of %lld", e->path, (long long)e->step, (long long)e->steps);
    return stop_signal != 0;
}

static void print_results(const watcher *w, lk_trainer *t, const options *given)
{
    const lk_progress *p = lk_trainer_progress(t);
    char               hash[32];
    /* where ranks have slices of the state, a collective */
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)lk_store_hash(lk_trainer_store(t)));
    if (w->rank != 0) return;
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "data", w->setup->data);
    json_integer(&j, "parameters", lk_store_parameters(lk_trainer_store(t)));
    json_integer(&j, "step", p->step);
    json_integer(&j, "epoch", p->epoch + 1);
    json_number(&j, "train_loss", w->train_loss);
    json_number(&j, "last_batch_loss", w->last_loss);
    json_number(&j, "loss", w->loss);
    if (w->metrics_count)
        metrics_json(&j, w->metrics, w->metrics_count);
    else
        json_number(&j, "accuracy", NAN); /* never evaluated */
    json_number(&j, "samples_per_s", w->seconds > 0 ? (double)w->images / w->seconds : 0);
    if (w->setup->transformer.used)
        json_number(&j, "tokens_per_s", w->seconds > 0 ? (double)(w->images * setup_units(w->setup)) / w->seconds : 0);
    json_number(&j, "steps_per_s", w->seconds > 0 ? (double)w->steps / w->seconds : 0);
    json_integer(&j, "ranks", w->world);
    json_text(&j, "hash", hash);
    json_text(&j, "save", w->setup->config.save);
    if (lk_trainer_load_report(t)) partial_json(&j, lk_trainer_load_report(t));
    json_close(&j, '}');
    json_line(&j);
}

/* A signal to any rank stopped all of them at the same step; rank 0 prints the message for all. */
static int report_stop(const setup *s, lk_trainer *t, const options *given)
{
    bool        leave = strcmp(options_text(given, "on-signal"), "save-exit") == 0;
    int         number = (int)stop_signal;
    long long   step = (long long)lk_trainer_progress(t)->step;
    const char *how = number == SIGINT    ? "interrupted"
                      : number == SIGTERM ? "terminated"
                      : number == SIGUSR1 ? "stopped by SIGUSR1"
                                          : "stopped by a signal to another rank";
    bool        first = !s->config.comm || lk_comm_rank(s->config.comm) == 0;
    if (first && s->config.save)
        print_note("train", "%s, saved step %lld; --resume auto continues", how, step);
    else if (first)
        print_note("train", "%s after step %lld; nothing was saved, since --save is not set", how, step);
    return leave ? 0 : 128 + (number ? number : SIGTERM);
}

static int train_model(setup *s, watcher *w, const options *given)
{
    lk_trainer *t;
    lk_status   status = lk_trainer_create(s->context, &s->config, &t);
    if (status < 0) {
        int code = setup_report(s, "train", status);
        if (w->rank == 0 || status == LK_ENOMEM) memory_advise(s, "train", status);
        return code;
    }
    mesh_hosts_note_joined(s, "train");
    if (lk_trainer_load_report(t)) partial_print("train", s->config.init_partial, lk_trainer_load_report(t));
    if (!s->test && w->rank == 0 && s->config.eval_every >= 0)
        print_note("train", "%s has no test set, so nothing is evaluated%s", s->data,
                   data_uses(s->data, "holdout") ? "; --holdout 0.1 holds out a tenth of the samples" : "");
    status = lk_trainer_run(t);
    if (w->started) progress_end(&w->bar);
    int code = 0;
    if (status == LK_ECANCELED && (!s->config.comm || lk_comm_status(s->config.comm) == LK_OK))
        code = report_stop(s, t, given);
    else if (status < 0)
        code = setup_report(s, "train", status);
    if (status >= 0 && w->started && w->seconds > 0)
        terminal_print(stderr, "%lld steps, %.0f %s/s%s%s\n", (long long)w->steps,
                       (double)(w->images * setup_units(s)) / w->seconds, setup_unit(s),
                       s->config.save ? "; the model is in " : "", s->config.save ? s->config.save : "");
    if (status >= 0 && w->rank == 0) straggler_note(s, "train", &w->late);
    if (status >= 0 && options_flag(given, "json")) print_results(w, t, given);
    lk_trainer_free(t);
    return code;
}

/* Options that exclude each other. */
static int check_options(const options *given)
{
    const char *wrong =
        options_given(given, "log") && options_given(given, "log-dir") ? "--log and --log-dir are mutually exclusive"
        : options_given(given, "trace-steps") && !options_given(given, "trace") ? "--trace-steps requires --trace"
                                                                                : NULL;
    if (wrong) print_error("train", "%s", wrong);
    return wrong ? EXIT_USER_ERROR : 0;
}

static int scale_rate(setup *s, const options *given)
{
    const char *how = options_text(given, "lr-scale");
    double      times = (double)s->config.batch / (double)options_integer(given, "base-batch");
    double      factor = strcmp(how, "none") == 0 ? 1 : strcmp(how, "sqrt") == 0 ? sqrt(times) : times;
    return training_scale_rate(s, "train", given, factor);
}

static int check_save(setup *s, const options *given)
{
    const char *directory = options_text(given, "save");
    lk_status   status =
        directory ? lk_checkpoint_check_files(s->context, directory, s->config.files, s->config.files_count) : LK_OK;
    return status < 0 ? report("train", s->context, status) : 0;
}

/* Checks everything that is known before ranks are started, so that a user error is found once, in one process. */
static int check_run(const options *given, int ranks)
{
    setup s = {0};
    int   code = setup_begin(&s, "train", given, 1);
    s.config.plan_world = ranks;
    s.checkpoint = record_directory(given);
    if (code == 0) code = check_options(given);
    if (code == 0) code = training_make(&s, "train", given);
    if (code == 0) code = ranks_fetch(&s, "train", given);
    if (code == 0) code = record_fields(&s, "train", given);
    if (code == 0) code = setup_make(&s, "train", given, SETUP_PROBE);
    if (code == 0) code = transformer_budget(&s.transformer, "train", given);
    if (code == 0) code = ranks_make(&s, "train", given);
    if (code == 0) code = scale_rate(&s, given);
    if (code == 0) code = ranks_plan(&s, "train", given);
    if (code == 0) code = paths_check("train", given, 0);
    if (code == 0) code = model_files_make(&s, "train");
    if (code == 0) code = check_save(&s, given);
    setup_free(&s);
    return code;
}

/* From now on a stop request is a save. Before all ranks have joined there is nothing to save, and it ends the
 * process. */
static void handle_stop_requests(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

static int prepare_run(setup *s, watcher *w, options *given)
{
    int code = setup_begin(s, "train", given, (int)options_integer(given, "threads"));
    if (code == 0) code = check_options(given);
    if (code == 0) code = ranks_join(s, "train", given);
    handle_stop_requests();
    s->checkpoint = record_directory(given);
    if (code == 0 && environment_rank() >= 0) code = record_resume(s, "train", given); /* else run_train has */
    if (code == 0) code = model_default("train", given);
    if (code == 0) code = training_make(s, "train", given);
    if (code != 0) return code;
    lk_comm *comm = s->config.comm;
    w->rank = comm ? lk_comm_rank(comm) : 0;
    w->world = comm ? lk_comm_size(comm) : 1;
    w->verbose = options_flag(given, "verbose-ranks");
    if ((code = ranks_fetch(s, "train", given)) != 0 || (code = record_fields(s, "train", given)) != 0 ||
        (code = setup_make(s, "train", given, SETUP_BOTH)) != 0 ||
        (code = transformer_budget(&s->transformer, "train", given)) != 0 ||
        (code = ranks_make(s, "train", given)) != 0 || (code = record_make(s, "train", given)) != 0 ||
        (code = model_files_make(s, "train")) != 0 || (code = paths_check("train", given, w->rank)) != 0 ||
        (code = run_log_open(&w->log, "train", given, s->context, w->rank)) != 0)
        return code;
    if ((code = scale_rate(s, given)) != 0) return code;
    if (w->verbose) {
        char text[1024];
        ranks_describe(s, text, sizeof text);
        fprintf(stderr, "%s\n", text);
    }
    return 0;
}

/* Takes options from the checkpoint that is resumed, before ranks are started: their number is one of them. `holder`
 * keeps them. */
static int read_record(setup *holder, options *given)
{
    if (environment_rank() >= 0 || !options_text(given, "resume")) return 0;
    int code = setup_begin(holder, "train", given, 1);
    return code != 0 ? code : record_resume(holder, "train", given);
}

static int run_train(const options *command_line)
{
    static options all; /* of the command line and of the checkpoint that is resumed */
    options       *given = &all;
    setup          holder = {0}, s = {0};
    watcher        w = {.setup = &s, .loss = NAN, .train_loss = NAN, .last_loss = NAN};
    all = *command_line;
    ranks_restarted(given);
    int code = read_record(&holder, given);
    if (code == 0 && environment_rank() < 0) code = model_default("train", given); /* ranks first read the record */
    if (code != 0 || ranks_start("train", given, check_run, &code)) {
        setup_free(&holder);
        return code;
    }
    signal(SIGPIPE, SIG_IGN);
    if ((code = prepare_run(&s, &w, given)) != 0) ranks_abort(&s);
    s.config.event = on_event;
    s.config.event_user = &w;
    if (code == 0) code = train_model(&s, &w, given);
    if (!run_log_close(&w.log) && code == 0) code = EXIT_FAILED;
    ranks_leave(&s);
    setup_free(&s);
    setup_free(&holder);
    return code;
}

const command command_train = {
    "train",
    "train a model",
    "Trains a model in one process, or with several ranks that each process their share of every batch (-n, or any "
    "launcher), and may also divide the state and the model's operations (--mesh). On a terminal, a progress line "
    "shows step, loss, speed and time left; otherwise plain lines are written to standard error: for the first step, "
    "then every few seconds. After each epoch, a line shows its mean training loss and, with a test set, the loss on "
    "the test set.\n\n"
    "The same seed gives the same bits with any number of threads and loader workers. A run that was stopped and "
    "resumed ends with the same bits as an uninterrupted run.\n\n"
    "Examples: lockstep train --model cnn --data fashion-mnist --epochs 3 --save runs/first; the same with -n 2; "
    "lockstep train --model gpt2 --data text:book.txt --mesh data=2,shard=2,tensor=2; lockstep run --hosts a:2,b:2 -- "
    "lockstep train --model resnet20 --sync-batchnorm --reproducible",
    NULL,
    0,
    0,
    train_options,
    run_train,
};
