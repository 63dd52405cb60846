/* progress.c - the progress line. */
#define _GNU_SOURCE
#include "progress.h"

#include "clock.h"
#include "terminal.h"

#include <inttypes.h>
#include <lockstep/context.h>
#include <lockstep/environment.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t total)
{
    const char *term = lk_environment_get(NULL, "TERM"), *no_color = lk_environment_get(NULL, "NO_COLOR");
    *p = (progress){.out = out, .what = what, .unit = unit, .total = total};
    p->terminal =
        (isatty(fileno(out)) || lk_environment_get(NULL, "LOCKSTEP_TERMINAL")) && term && strcmp(term, "dumb") != 0;
    p->colour = p->terminal && !(no_color && *no_color);
    p->shown = now() - 1; /* the first step is shown at once */
}

/* ---- the line's parts ---- */

enum { STEP, LOSS, RATE, LEFT, NOTE, PARTS, PART = PROGRESS_NOTE };

static void format_time(double seconds, char out[PART])
{
    long s = seconds < 1e9 ? (long)(seconds + 0.5) : 0;
    if (!(seconds < 1e9))
        snprintf(out, PART, "left --:--");
    else if (s >= 100 * 3600)
        snprintf(out, PART, "left %ld days", (s + 43200) / 86400);
    else if (s >= 3600)
        snprintf(out, PART, "left %ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, PART, "left %ld:%02ld", s / 60, s % 60);
}

static void format_rate(double rate, const char *unit, char out[PART])
{
    const char *thousands = rate < 1e6 ? "" : rate < 1e9 ? "M" : "G";
    double      shown = rate < 1e6 ? rate : rate < 1e9 ? rate / 1e6 : rate / 1e9;
    snprintf(out, PART, "%.*f%s %s/s", shown < 10 ? 2 : shown < 1000 && *thousands ? 1 : 0, shown, thousands, unit);
}

/* What a line shows. */
typedef struct shown {
    int64_t step;
    double  loss, done, time;
} shown;

static void format_parts(const progress *p, shown at, char parts[PARTS][PART])
{
    int64_t step = at.step;
    double  loss = at.loss, done = at.done, time = at.time;
    double  elapsed = time - p->first_time;
    for (int i = 0; i < PARTS; i++) parts[i][0] = 0;
    if (p->bytes)
        snprintf(parts[STEP], PART, "%.1f of %.1f MiB", done, (double)p->total / 1048576);
    else if (p->total)
        snprintf(parts[STEP], PART, "step %" PRId64 "/%" PRId64, step, p->total);
    else
        snprintf(parts[STEP], PART, "step %" PRId64, step);
    if (!isnan(loss)) snprintf(parts[LOSS], PART, fabs(loss) < 1e5 ? "loss %.4f" : "loss %.4g", loss);
    if (elapsed > 0 && done > p->first_done) format_rate((done - p->first_done) / elapsed, p->unit, parts[RATE]);
    if (p->total && step > p->first_step)
        format_time(elapsed / (double)(step - p->first_step) * (double)(p->total - step), parts[LEFT]);
    snprintf(parts[NOTE], PART, "%s", p->note);
}

/* Drops the note's last part. Returns by how many columns the line becomes shorter. */
static int drop_last(char note[PART])
{
    size_t length = strlen(note), kept = 0;
    for (const char *at = note; (at = strstr(at, "  ")); at += 2) kept = (size_t)(at - note);
    note[kept] = 0;
    return (int)(length - kept) + (kept ? 0 : 2);
}

/* Joins the parts with two spaces, only as many as fit into `room` columns: the least important are dropped first. */
static int join_parts(char parts[PARTS][PART], int room, char *out, size_t size)
{
    static const int drop[] = {RATE, LEFT, LOSS};
    int              length = -2;
    for (int i = 0; i < PARTS; i++) length += parts[i][0] ? (int)strlen(parts[i]) + 2 : 0;
    while (parts[NOTE][0] && length > room) length -= drop_last(parts[NOTE]);
    for (size_t i = 0; i < sizeof drop / sizeof *drop && length > room; i++) {
        length -= parts[drop[i]][0] ? (int)strlen(parts[drop[i]]) + 2 : 0;
        parts[drop[i]][0] = 0;
    }
    int used = 0;
    out[0] = 0;
    for (int i = 0; i < PARTS; i++)
        if (parts[i][0]) used += snprintf(out + used, size - (size_t)used, "%s%s", used ? "  " : "", parts[i]);
    if (used > room) out[used = room > 0 ? room : 0] = 0;
    return used;
}

/* ---- drawing ---- */

/* "[=====     ] ", with colours. */
static int draw_bar(const progress *p, int64_t step, int columns, char *out, size_t size)
{
    static const char full_bar[] = "==============================";
    double            part = (double)step / (double)p->total;
    int               full = part < 1 ? (int)(columns * part) : columns;
    return snprintf(out, size, "[%s%.*s%s%*s] ", p->colour ? "\033[32m" : "", full, full_bar,
                    p->colour ? "\033[0m" : "", columns - full, "");
}

/* Draws the line in one write, since a launcher may relay it at any time. */
static void draw_line(progress *p, int64_t step, char parts[PARTS][PART])
{
    enum { BAR_LEAST = 8, BAR_MOST = 30 };
    char text[PARTS * PART + 16], line[2 * sizeof text + 64];
    int  width = terminal_columns(p->out) - 1; /* the last column would wrap on some terminals */
    int  what = (int)strlen(p->what) + 1 < width ? (int)strlen(p->what) + 1 : 0;
    int  bar = width - what - join_parts(parts, width - what, text, sizeof text) - 3, used = 0;
    if (bar > BAR_MOST) bar = BAR_MOST;
    used = snprintf(line, sizeof line, "\r");
    if (what)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%s%s ", p->colour ? "\033[1m" : "", p->what,
                         p->colour ? "\033[0m" : "");
    if (p->total && bar >= BAR_LEAST) used += draw_bar(p, step, bar, line + used, sizeof line - (size_t)used);
    snprintf(line + used, sizeof line - (size_t)used, "%s\033[K", text);
    fputs(line, p->out);
    fflush(p->out);
    p->drawn = true;
}

/* Whether a plain line is due: for the first step at once, then by time, and once after the last. The lines' distance
 * grows, so that neither a run of seconds nor one of days has none or thousands. */
static bool is_due(progress *p, double time, bool last)
{
    const double least = 1, most = 10; /* seconds */
    bool         due = last ? !p->ended : time >= p->next;
    double       distance = (time - p->first_time) / 4;
    if (due) p->next = time + (distance < least ? least : distance > most ? most : distance);
    p->ended |= last;
    return due;
}

void progress_step(progress *p, int64_t step, double loss, double done)
{
    bool last = p->total && step >= p->total;
    if (!p->begun) {
        p->begun = true;
        p->first_step = step;
        p->first_done = done;
        p->first_time = now();
    }
    double time = now();
    if (!p->terminal && !is_due(p, time, last)) return;
    if (p->terminal && time - p->shown < 0.1 && !last) return;
    p->shown = time;
    char parts[PARTS][PART], text[PARTS * PART + 16];
    if (p->describe) p->describe(p->user, p->note, sizeof p->note);
    format_parts(p, (shown){step, loss, done, time}, parts);
    if (p->terminal) {
        draw_line(p, step, parts);
    } else {
        join_parts(parts, PARTS * PART, text, sizeof text);
        fprintf(p->out, "%s  %s\n", p->what, text);
        fflush(p->out);
    }
}

int progress_bytes(void *user, int64_t done, int64_t total)
{
    progress *p = user;
    if (!p->out && done >= total) return 0; /* the file is already complete */
    if (!p->out) {
        progress_start(p, stderr, p->what, "MiB", total > 0 ? total : 1);
        p->bytes = true;
    }
    progress_step(p, done, NAN, (double)done / 1048576);
    return 0;
}

static void clear_line(progress *p)
{
    if (p->drawn) fputs("\r\033[K", p->out);
    p->drawn = false;
}

void progress_print(progress *p, const char *format, ...)
{
    va_list arguments;
    clear_line(p);
    va_start(arguments, format);
    terminal_print_list(p->out, format, arguments);
    va_end(arguments);
    fputc('\n', p->out);
    fflush(p->out);
}

void progress_print_wrapped(progress *p, const char *format, ...)
{
    va_list arguments;
    char    text[2048], shown[4 * sizeof text + 1];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lk_printable(text, shown, sizeof shown);
    clear_line(p);
    terminal_wrap_lines(p->out, shown, terminal_columns(p->out));
    fflush(p->out);
}

void progress_end(progress *p)
{
    clear_line(p);
    fflush(p->out);
}

void progress_work(void *user, const char *what, int64_t done, int64_t total)
{
    progress *p = user;
    if (!p->out) progress_start(p, stderr, what, "kernels", total);
    progress_step(p, done, NAN, (double)done);
    if (done < total) return;
    progress_end(p);
    *p = (progress){.out = NULL}; /* there may be another program */
}
