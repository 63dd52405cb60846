/* progress.c - the progress line. */
#define _GNU_SOURCE
#include "progress.h"

#include "terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int terminal_width(FILE *out)
{
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
    const char *shown = getenv("LOCKSTEP_TERMINAL"); /* the launcher's, which passes our lines on with a prefix */
    int         width = shown ? atoi(shown) - 12 : 0;
    return width >= 20 ? width : 80;
}

void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t total, int64_t every)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    *p = (progress){.out = out, .what = what, .unit = unit, .total = total, .every = every > 0 ? every : 1};
    p->terminal = (isatty(fileno(out)) || getenv("LOCKSTEP_TERMINAL")) && term && strcmp(term, "dumb") != 0;
    p->colour = p->terminal && !(no_color && *no_color);
    p->shown = now() - 1; /* the first step shows at once: it is the one people wait for */
}

static void format_time(double seconds, char out[32])
{
    long s = (long)(seconds + 0.5);
    if (!(seconds < 360000))
        snprintf(out, 32, "--:--");
    else if (s >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
}

/* "step 120/2814  loss 0.4312  3480 images/s  left 0:49" */
static int describe(const progress *p, int64_t step, double loss, double done, double time, char *out, size_t size)
{
    double elapsed = time - p->first_time;
    int    n = snprintf(out, size, "step %" PRId64, step);
    if (p->total) n += snprintf(out + n, size - (size_t)n, "/%" PRId64, p->total);
    if (!isnan(loss)) n += snprintf(out + n, size - (size_t)n, "  loss %.4f", loss);
    if (elapsed > 0 && done > p->first_done) {
        double rate = (done - p->first_done) / elapsed;
        n += snprintf(out + n, size - (size_t)n, "  %.*f %s/s", rate < 10 ? 2 : 0, rate, p->unit);
    }
    if (p->total && step > p->first_step) {
        char left[32];
        format_time(elapsed / (double)(step - p->first_step) * (double)(p->total - step), left);
        n += snprintf(out + n, size - (size_t)n, "  left %s", left);
    }
    if (p->note[0]) n += snprintf(out + n, size - (size_t)n, "  %s", p->note);
    return n;
}

static void draw(progress *p, int64_t step, const char *text, int length)
{
    int width = terminal_width(p->out) - 1; /* the last column would wrap on some terminals */
    int bar = p->total ? width - (int)strlen(p->what) - length - 4 : 0;
    if (bar > 30) bar = 30;
    fprintf(p->out, "\r%s%s%s ", p->colour ? "\033[1m" : "", p->what, p->colour ? "\033[0m" : "");
    if (bar >= 8) {
        int full = (int)((double)bar * (double)step / (double)p->total);
        if (full > bar) full = bar;
        fprintf(p->out, "[%s", p->colour ? "\033[32m" : "");
        for (int i = 0; i < bar; i++) {
            if (i == full && p->colour) fputs("\033[0m", p->out);
            fputc(i < full ? '=' : ' ', p->out);
        }
        fprintf(p->out, "%s] ", p->colour ? "\033[0m" : "");
    }
    int room = width - (int)strlen(p->what) - 1 - (bar >= 8 ? bar + 3 : 0);
    fprintf(p->out, "%.*s\033[K", room > 0 ? room : 0, text);
    fflush(p->out);
    p->drawn = true;
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
    if (!p->terminal && step % p->every != 0 && !last) return;
    double time = now();
    if (p->terminal && time - p->shown < 0.1 && !last) return;
    p->shown = time;
    char text[256];
    int  length = describe(p, step, loss, done, time, text, sizeof text);
    if (p->terminal) {
        draw(p, step, text, length);
    } else {
        fprintf(p->out, "%s  %s\n", p->what, text);
        fflush(p->out);
    }
}

int progress_bytes(void *user, int64_t done, int64_t total)
{
    progress *p = user;
    if (!p->out) progress_start(p, stderr, p->what, "MiB", total >> 20 ? total >> 20 : 1, 16);
    progress_step(p, done >> 20, NAN, (double)done / 1048576);
    return 0;
}

static void clear(progress *p)
{
    if (p->drawn) fputs("\r\033[K", p->out);
    p->drawn = false;
}

void progress_say(progress *p, const char *format, ...)
{
    va_list arguments;
    clear(p);
    va_start(arguments, format);
    terminal_print_list(p->out, format, arguments);
    va_end(arguments);
    fputc('\n', p->out);
    fflush(p->out);
}

void progress_end(progress *p)
{
    clear(p);
    fflush(p->out);
}
