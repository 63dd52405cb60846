/* train.c - `lockstep train`. */
#define _GNU_SOURCE
#include "json.h"
#include "progress.h"
#include "training.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const option train_options[] = {
    MODEL_OPTIONS,
    DATA_OPTIONS,
    TRAINING_OPTIONS,
    HEADING("Running"),
    MACHINE_OPTIONS,
    TEXT("log", "FILE.jsonl", NULL, "Append a line of JSON for each step, evaluation and save"),
    FLAG("json", "Print a last line of JSON with the results on standard output"),
    CONFIG,
    OPTIONS_END,
};

typedef struct watcher {
    setup   *setup;
    progress bar;
    bool     started;
    FILE    *log;
    int64_t  images, steps;  /* of this run */
    double   seconds;        /* in steps alone */
    double   train_loss;     /* of the latest step */
    double   loss, accuracy; /* of the latest evaluation; NaN: none */
} watcher;

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) { stop_signal = number; }

static void log_event(FILE *log, const lk_event *e)
{
    static const char *const kinds[] = {"step", "evaluated", "saved", "resumed"};
    json                     j = json_to(log);
    json_open(&j, NULL, '{');
    json_text(&j, "event", kinds[e->kind]);
    json_integer(&j, "step", e->step);
    json_integer(&j, "epoch", e->epoch + 1);
    if (e->kind == LK_EVENT_STEP || e->kind == LK_EVENT_EVALUATED) json_number(&j, "loss", e->loss);
    if (e->kind == LK_EVENT_STEP) {
        json_number(&j, "lr", e->rate);
        if (e->grad_norm > 0) json_number(&j, "grad_norm", e->grad_norm);
        json_number(&j, "images_per_s", e->seconds > 0 ? (double)e->samples / e->seconds : 0);
    }
    if (e->kind == LK_EVENT_EVALUATED) {
        json_number(&j, "accuracy", e->accuracy);
        json_integer(&j, "samples", e->samples);
    }
    if (e->path) json_text(&j, "path", e->path);
    json_number(&j, "seconds", e->seconds);
    json_close(&j, '}');
    json_line(&j);
}

static int on_event(void *user, const lk_event *e)
{
    watcher *w = user;
    if (!w->started) {
        progress_start(&w->bar, stderr, "train", "images", e->steps, e->steps / 20 > 0 ? e->steps / 20 : 1);
        w->started = true;
    }
    if (w->log) log_event(w->log, e);
    switch (e->kind) {
    case LK_EVENT_STEP:
        w->images += e->samples;
        w->steps++;
        w->seconds += e->seconds;
        w->train_loss = e->loss;
        progress_step(&w->bar, e->step, e->loss, (double)w->images);
        break;
    case LK_EVENT_EVALUATED:
        w->loss = e->loss;
        w->accuracy = e->accuracy;
        progress_say(&w->bar, "epoch %lld, step %lld: test loss %.4f, accuracy %.2f %% (%lld samples in %.1f s)",
                     (long long)e->epoch + 1, (long long)e->step, e->loss, 100 * e->accuracy, (long long)e->samples,
                     e->seconds);
        break;
    case LK_EVENT_SAVED: progress_say(&w->bar, "saved step %lld in %s", (long long)e->step, e->path); break;
    case LK_EVENT_RESUMED:
        progress_say(&w->bar, "resumed %s at step %lld of %lld", e->path, (long long)e->step, (long long)e->steps);
        break;
    }
    return stop_signal != 0;
}

static void print_results(const watcher *w, lk_trainer *t, const options *given)
{
    const lk_progress *p = lk_trainer_progress(t);
    char               hash[32];
    json               j = json_to(stdout);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)lk_store_hash(lk_trainer_store(t)));
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_text(&j, "data", w->setup->data);
    json_integer(&j, "parameters", lk_store_parameters(lk_trainer_store(t)));
    json_integer(&j, "step", p->step);
    json_integer(&j, "epoch", p->epoch + 1);
    json_number(&j, "train_loss", w->train_loss);
    json_number(&j, "loss", w->loss);
    json_number(&j, "accuracy", w->accuracy);
    json_number(&j, "images_per_s", w->seconds > 0 ? (double)w->images / w->seconds : 0);
    json_number(&j, "steps_per_s", w->seconds > 0 ? (double)w->steps / w->seconds : 0);
    json_text(&j, "hash", hash);
    json_text(&j, "save", w->setup->config.save);
    json_close(&j, '}');
    json_line(&j);
}

static int train(setup *s, watcher *w, const options *given)
{
    lk_trainer *t;
    lk_status   status = lk_trainer_create(s->context, &s->config, &t);
    if (status < 0) return report("train", s->context, status);
    status = lk_trainer_run(t);
    if (w->started) progress_end(&w->bar);
    int code = 0;
    if (status == LK_ECANCELED && stop_signal) {
        complain("train", "signal %d: stopped after step %lld%s", (int)stop_signal,
                 (long long)lk_trainer_progress(t)->step,
                 s->config.save ? ", which was saved; --resume auto goes on" : "; without --save nothing was kept");
        code = 128 + (int)stop_signal;
    } else if (status < 0) {
        code = report("train", s->context, status);
    }
    if (code == 0 && w->started && w->seconds > 0)
        fprintf(stderr, "%lld steps, %.0f images/s%s%s\n", (long long)w->steps, (double)w->images / w->seconds,
                s->config.save ? "; the model is in " : "", s->config.save ? s->config.save : "");
    if (code == 0 && options_flag(given, "json")) print_results(w, t, given);
    lk_trainer_free(t);
    return code;
}

static int run(const options *given)
{
    setup            s;
    watcher          w = {.setup = &s, .loss = NAN, .accuracy = NAN, .train_loss = NAN};
    const char      *path = options_text(given, "log");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND}; /* a second signal ends at once */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    int code = setup_make(&s, "train", given, SETUP_BOTH);
    if (code == 0) code = training_make(&s, "train", given);
    if (code == 0 && path && !(w.log = fopen(path, "ae"))) {
        complain("train", "cannot open the log %s: %s", path, strerror(errno));
        code = EXIT_MISTAKE;
    }
    s.config.event = on_event;
    s.config.event_user = &w;
    if (code == 0) code = train(&s, &w, given);
    if (w.log && (ferror(w.log) | fclose(w.log)) && code == 0) {
        complain("train", "cannot write the log %s: %s", path, strerror(errno));
        code = EXIT_FAILED;
    }
    setup_free(&s);
    return code;
}

const command command_train = {
    "train",
    "train a model",
    "Trains a model on one machine. A moving line on a terminal shows step, loss, images a second and time left; "
    "elsewhere plain "
    "lines are written to standard error.\n\n"
    "The same seed gives the same bits, whatever the number of threads and loader workers. A run that was stopped and "
    "resumed ends "
    "with the same bits as one that was never stopped.\n\n"
    "Example: lockstep train --model cnn --data fashion-mnist --epochs 3 --save runs/first",
    NULL,
    0,
    0,
    train_options,
    run,
};
