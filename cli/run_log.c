/* run_log.c - writes the events of a run, and keeps the reason when a file can no longer be written. */
#define _GNU_SOURCE
#include "run_log.h"

#include "json.h"
#include "metrics.h"
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 4096 };

/* At once and, since a line may pass unseen, by the exit status. */
static void report_end(const run_log *l, const char *what, const char *why)
{
    static const char format[] =
        "lockstep %s: warning: %s stopped: %s; training continues, but the exit status will be 1";
    if (l->bar)
        progress_print(l->bar, format, l->command, what, why);
    else
        print_note(l->command, "warning: %s stopped: %s; training continues, but the exit status will be 1", what, why);
}

/* ---- lines of JSON ---- */

static void write_line(FILE *log, const lk_event *e)
{
    static const char *const kinds[] = {"step", "evaluated", "saved", "resumed", "epoch"};
    json                     j = json_to(log);
    json_open(&j, NULL, '{');
    json_text(&j, "event", kinds[e->kind]);
    json_integer(&j, "step", e->step);
    json_integer(&j, "epoch", e->epoch + 1);
    if (e->kind != LK_EVENT_SAVED && e->kind != LK_EVENT_RESUMED) json_number(&j, "loss", e->loss);
    if (e->kind == LK_EVENT_EPOCH) {
        json_number(&j, "own_loss", e->own_loss);
        json_integer(&j, "samples", e->samples);
    }
    if (e->kind == LK_EVENT_STEP && e->late_rank >= 0) {
        json_integer(&j, "late_rank", e->late_rank);
        json_number(&j, "late_s", e->late);
        json_text(&j, "late_in", e->late_in);
    }
    if (e->kind == LK_EVENT_STEP) {
        json_number(&j, "lr", e->rate);
        if (e->grad_norm > 0) json_number(&j, "grad_norm", e->grad_norm);
        json_number(&j, "samples_per_s", e->seconds > 0 ? (double)e->samples / e->seconds : 0);
    }
    metrics_json(&j, e->metrics, e->metrics_count);
    if (e->kind == LK_EVENT_EVALUATED) json_integer(&j, "samples", e->samples);
    if (e->path) json_text(&j, "path", e->path);
    json_number(&j, "seconds", e->seconds);
    json_close(&j, '}');
    json_line(&j);
}

/* What did not reach the file is dropped: a later write would put it behind a gap. */
static void stop_lines(run_log *l, int error)
{
    l->error = error ? error : EIO;
    if (l->file) {
        __fpurge(l->file);
        fclose(l->file);
    }
    l->file = NULL;
}

static void log_event(run_log *l, const lk_event *e)
{
    char why[sizeof l->path + 128];
    errno = 0; /* the stream keeps that a write failed, not why */
    write_line(l->file, e);
    if (!ferror(l->file)) return;
    stop_lines(l, errno);
    snprintf(why, sizeof why, "%s: cannot write: %s", l->path, strerror(l->error));
    report_end(l, "the log", why);
}

/* ---- TensorBoard ---- */

static void check_board(run_log *l, lk_status status)
{
    if (status >= 0 || l->board_error[0]) return;
    snprintf(l->board_error, sizeof l->board_error, "%s", lk_context_error(l->context));
    report_end(l, "TensorBoard output", l->board_error);
}

static void add_scalar(run_log *l, const char *tag, int64_t step, double value)
{
    check_board(l, lk_tensorboard_add_scalar(l->board, tag, step, value, 0));
}

static void plot_metrics(run_log *l, const lk_event *e, const char *group)
{
    for (int i = 0; i < e->metrics_count; i++) {
        char tag[256];
        snprintf(tag, sizeof tag, "%s/%s", group, e->metrics[i].name);
        add_scalar(l, tag, e->step, e->metrics[i].value);
    }
}

static void plot_event(run_log *l, const lk_event *e)
{
    if (e->kind == LK_EVENT_STEP) {
        add_scalar(l, "train/loss", e->step, e->loss);
        plot_metrics(l, e, "train");
        add_scalar(l, "train/lr", e->step, e->rate);
        if (e->grad_norm > 0) add_scalar(l, "train/grad_norm", e->step, e->grad_norm);
        if (e->seconds > 0) add_scalar(l, "train/samples_per_s", e->step, (double)e->samples / e->seconds);
        if (e->late_rank >= 0) add_scalar(l, "train/late_ms", e->step, 1e3 * e->late);
    } else if (e->kind == LK_EVENT_EVALUATED) {
        add_scalar(l, "test/loss", e->step, e->loss);
        plot_metrics(l, e, "test");
        check_board(l, lk_tensorboard_flush(l->board));
    }
}

/* ---- opening and closing ---- */

/* 0, or ENOSPC and the like: whether the disk has room for a first line. Asks for a block behind the end, and returns
 * it. */
static int check_room(int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return 0;
    int error = fallocate(fd, FALLOC_FL_KEEP_SIZE, about.st_size, ROOM) == 0 ? 0 : errno;
    if (error == 0 && ftruncate(fd, about.st_size) != 0) return 0; /* the block stays reserved */
    return error == ENOSPC || error == EDQUOT ? error : 0;
}

/* 0, or errno. */
static int open_lines(run_log *l, const char *path)
{
    if (snprintf(l->path, sizeof l->path, "%s", path) >= (int)sizeof l->path) return ENAMETOOLONG;
    if (!(l->file = fopen(path, "ae"))) return errno;
    int error = check_room(fileno(l->file));
    if (error == 0) return 0;
    fclose(l->file);
    l->file = NULL;
    return error;
}

int run_log_open(run_log *l, const char *name, const options *given, lk_context *context, int rank)
{
    const char *path = options_text(given, "log"), *directory = options_text(given, "log-dir"),
               *board = options_text(given, "tensorboard");
    char own[4096];
    *l = (run_log){.context = context, .command = name};
    if (directory) {
        snprintf(own, sizeof own, "%s/rank-%d.jsonl", directory, rank);
        path = own;
    }
    int error = path && (directory || rank == 0) ? open_lines(l, path) : 0;
    if (error) {
        print_error(name, "cannot write the log %s: %s", path, strerror(error));
        return EXIT_USER_ERROR;
    }
    lk_status status = board && rank == 0 ? lk_tensorboard_create(context, board, &l->board) : LK_OK;
    if (status < 0) (void)report(name, context, status);
    return status < 0 ? EXIT_USER_ERROR : 0; /* as all paths that cannot be written at the start */
}

void run_log_event(run_log *l, const lk_event *e)
{
    if (l->file) log_event(l, e);
    if (l->board && !l->board_error[0]) plot_event(l, e);
}

bool run_log_close(run_log *l)
{
    FILE *file = l->file;
    l->file = NULL;
    if (file && fclose(file) != 0) stop_lines(l, errno); /* NFS and quotas may report a failed write only now */
    if (l->board && !l->board_error[0] && lk_tensorboard_flush(l->board) < 0)
        snprintf(l->board_error, sizeof l->board_error, "%s", lk_context_error(l->context));
    lk_tensorboard_free(l->board);
    l->board = NULL;
    if (l->error) print_note(l->command, "the log %s is incomplete: %s", l->path, strerror(l->error));
    if (l->board_error[0]) print_note(l->command, "the TensorBoard file is incomplete: %s", l->board_error);
    return !l->error && !l->board_error[0];
}
