/* schedule_picture.c - draws the timeline of a step in stages. */
#define _GNU_SOURCE
#include "schedule_picture.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 190, RIGHT = 130, TOP = 64, ROW = 44, BOX = 28, WIDTH = 1400, LABEL = 14 /* pixels of a number */ };

typedef struct picture {
    FILE         *file;
    const setup  *setup;
    lk_stage_run *runs;
    size_t        count;
    int           stages, micro_batches;
    double        seconds; /* of all runs */
} picture;

static double x_of(const picture *p, double seconds)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (p->seconds > 0 ? seconds / p->seconds : 0);
}

static double y_of(int stage) { return TOP + ROW * stage; }

static const char *color_of(const char *kind)
{
    return strcmp(kind, "forward") == 0 ? "#5b8def" : strcmp(kind, "backward") == 0 ? "#e0893f" : "#5aa469";
}

static void draw_run(const picture *p, const lk_stage_run *r)
{
    double x = x_of(p, r->begin), width = x_of(p, r->end) - x, y = y_of(r->stage);
    if (width <= 0) return;
    fprintf(p->file,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#fff\" "
            "stroke-width=\"0.6\"><title>stage %d, %s of micro-batch %d: %.3f to %.3f ms</title></rect>\n",
            x, y, width, BOX, color_of(r->kind), r->stage, r->kind, r->micro_batch, 1e3 * r->begin, 1e3 * r->end);
    if (width >= LABEL)
        fprintf(p->file, "<text x=\"%.2f\" y=\"%.1f\" class=\"n\">%d</text>\n", x + width / 2, y + BOX / 2.0 + 4,
                r->micro_batch);
}

/* From the end of a run to the beginning of that which reads what it sends. */
static void draw_send(const picture *p, const lk_stage_run *from)
{
    bool forward = strcmp(from->kind, "forward") == 0;
    int  to = forward ? from->stage + 1 : from->stage - 1;
    if (!forward && strcmp(from->kind, "backward") != 0) return;
    for (size_t i = 0; i < p->count; i++) {
        const lk_stage_run *r = &p->runs[i];
        if (r->stage != to || r->micro_batch != from->micro_batch || strcmp(r->kind, from->kind) != 0) continue;
        fprintf(p->file, "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" class=\"s\"/>\n", x_of(p, from->end),
                y_of(from->stage) + (forward ? BOX : 0), x_of(p, r->begin), y_of(to) + (forward ? 0 : BOX));
    }
}

/* "ranks 0, 2 and 2 more" */
static void name_ranks(const setup *s, int stage, char *text, size_t size)
{
    size_t used = 0;
    int    count = 0;
    text[0] = 0;
    for (int rank = 0; rank < lk_mesh_size(s->mesh); rank++) {
        if (lk_mesh_coordinate(s->mesh, LK_AXIS_PIPELINE, rank) != stage) continue;
        if (count++ < 4 && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", rank);
    }
    if (count > 4 && used < size) snprintf(text + used, size - used, " and %d more", count - 4);
}

static void draw_row(const picture *p, int stage)
{
    double busy = 0, y = y_of(stage);
    char   ranks[64];
    for (size_t i = 0; i < p->count; i++)
        if (p->runs[i].stage == stage) busy += p->runs[i].end - p->runs[i].begin;
    name_ranks(p->setup, stage, ranks, sizeof ranks);
    fprintf(p->file, "<text x=\"%d\" y=\"%.1f\">stage %d: rank%s %s</text>\n", 12, y + BOX / 2.0 + 4, stage,
            strchr(ranks, ',') ? "s" : "", ranks);
    fprintf(p->file, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" class=\"b\"/>\n", x_of(p, 0), y,
            x_of(p, p->seconds) - x_of(p, 0), BOX);
    fprintf(p->file, "<text x=\"%d\" y=\"%.1f\">waits %.1f %%</text>\n", WIDTH - RIGHT + 10, y + BOX / 2.0 + 4,
            p->seconds > 0 ? 100 * (1 - busy / p->seconds) : 0);
}

/* 1, 2 or 5 times a power of ten, about 8 in all. */
static double tick_of(double seconds)
{
    double rough = seconds / 8, power = pow(10, floor(log10(rough)));
    return power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
}

static void draw_axis(const picture *p)
{
    double bottom = y_of(p->stages) - ROW + BOX + 8, tick = p->seconds > 0 ? tick_of(p->seconds) : 1;
    for (double at = 0; at <= p->seconds * 1.0001; at += tick)
        fprintf(p->file,
                "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%.1f\" class=\"t\"/><text x=\"%.2f\" y=\"%.1f\" "
                "class=\"m\">%g ms</text>\n",
                x_of(p, at), TOP - 6, x_of(p, at), bottom, x_of(p, at), bottom + 14, 1e3 * at);
}

static void draw_legend(const picture *p)
{
    static const char *const kinds[] = {"forward", "backward", "weight gradient"};
    double                   y = y_of(p->stages) + 18;
    double                   x = LEFT;
    for (int i = 0; i < 3; i++, x += 150)
        fprintf(p->file,
                "<rect x=\"%.0f\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\"/><text x=\"%.0f\" "
                "y=\"%.1f\">%s</text>\n",
                x, y, color_of(kinds[i]), x + 20, y + 12, kinds[i]);
    fprintf(p->file,
            "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" class=\"s\"/><text x=\"%.0f\" y=\"%.1f\">sent to "
            "another stage</text>\n<rect x=\"%.0f\" y=\"%.1f\" width=\"14\" height=\"14\" class=\"b\"/><text "
            "x=\"%.0f\" y=\"%.1f\">waiting</text>\n",
            x, y, x + 14, y + 14, x + 20, y + 12, x + 190, y, x + 210, y + 12);
}

static void draw(const picture *p)
{
    int height = (int)y_of(p->stages) + 48;
    fprintf(p->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n<style>.n{text-anchor:middle;fill:#fff;font-size:11px}"
            ".m{text-anchor:middle;fill:#666;font-size:11px}.s{stroke:#444;stroke-width:0.7;opacity:0.55}"
            ".t{stroke:#ddd}.b{fill:#f0f0f0}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height);
    fprintf(p->file,
            "<text x=\"12\" y=\"28\" font-size=\"16\">%s, schedule %s, %d micro-batch%s: %.3f ms until the last "
            "gradient (predicted)</text>\n",
            lk_mesh_text(p->setup->mesh), lk_pipeline_schedule_name(p->setup->config.pipeline_schedule),
            p->micro_batches, p->micro_batches == 1 ? "" : "es", 1e3 * p->seconds);
    for (int i = 0; i < p->stages; i++) draw_row(p, i);
    draw_axis(p);
    for (size_t i = 0; i < p->count; i++) draw_run(p, &p->runs[i]);
    for (size_t i = 0; i < p->count; i++) draw_send(p, &p->runs[i]);
    draw_legend(p);
    fprintf(p->file, "</svg>\n");
}

int schedule_picture_write(const setup *s, const lk_plan *plan, const lk_rates *rates, const char *path)
{
    picture p = {
        .setup = s, .count = lk_plan_timeline(plan, rates, NULL, 0), .stages = lk_plan_stages(plan, rates, NULL, 0)};
    if (p.count == 0) {
        print_error("plan", "--schedule-picture draws the stages of the pipeline axis: give --mesh pipeline=N");
        return EXIT_USER_ERROR;
    }
    p.runs = calloc(p.count, sizeof *p.runs);
    p.file = p.runs ? fopen(path, "we") : NULL;
    if (!p.file) {
        print_error("plan", "--schedule-picture %s: %s", path, p.runs ? strerror(errno) : "out of memory");
        int code = p.runs ? EXIT_USER_ERROR : EXIT_FAILED;
        free(p.runs);
        return code;
    }
    (void)lk_plan_timeline(plan, rates, p.runs, p.count);
    for (size_t i = 0; i < p.count; i++) {
        p.seconds = fmax(p.seconds, p.runs[i].end);
        if (p.runs[i].micro_batch >= p.micro_batches) p.micro_batches = p.runs[i].micro_batch + 1;
    }
    draw(&p);
    bool failed = ferror(p.file);
    if (fclose(p.file) != 0 || failed) {
        print_error("plan", "--schedule-picture %s: cannot write: %s", path, strerror(errno));
        free(p.runs);
        return EXIT_FAILED;
    }
    free(p.runs);
    return 0;
}
