/* profile.c - the time of instructions, and what bounds each: the bytes of its operands, its arithmetic or the start of
 * a kernel, at the speed that was measured on the device. */
#include "run/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Profiles are of the first slot. */
void lk_program_profile(lk_program *p, bool enable)
{
    lk__run_list *lists[] = {&p->slots[0].train, &p->evaluate};
    lk_status     status = lk__timeline_set(p, enable, p->trace);
    if (status < 0)
        lk__log(p->context, LK_LOG_WARNING, "profile: cannot read the device's clock: %s",
                lk_context_error(p->context));
    for (int i = 0; i < 2 && enable; i++)
        for (size_t j = 0; j < lists[i]->count; j++)
            lists[i]->instructions[j].seconds = 0, lists[i]->instructions[j].runs = 0;
}

void lk_program_profile_seconds(const lk_program *p, double *seconds, size_t count)
{
    const lk__run_list  *list = &p->slots[0].train;
    const lk__plan_list *planned = list->planned;
    lk__timeline_collect(p);
    for (size_t i = 0; i < count && planned; i++) {
        seconds[i] = 0;
        for (size_t at = 0; at < list->count && i < planned->order_count; at++) {
            const lk__run_instruction *in = &list->instructions[at];
            if (in->node == planned->order[i] && in->runs) seconds[i] += in->seconds / (double)in->runs;
        }
    }
}

const char *lk_program_profile_clock(const lk_program *p) { return lk__timeline_source(p); }

const char *lk_bound_name(lk_bound bound)
{
    static const char *const names[] = {"unknown", "bytes", "arithmetic", "latency"};
    return (unsigned)bound < sizeof names / sizeof *names ? names[bound] : names[0];
}

/* ---- rows ---- */

typedef struct rows {
    const lk_program *program;
    lk_profile_row   *all;
    size_t            count;
    lk_device_speed   speed[LK_DTYPE_COUNT]; /* by element type; flops 0: unknown */
    bool              tried[LK_DTYPE_COUNT];
} rows;

static const lk_device_speed *find_speed(rows *r, lk_dtype type)
{
    lk_dtype i = lk__is_element(type) ? type : LK_F32;
    if (!r->tried[i] && r->program->device->backend->kernels.measure &&
        lk_device_measure(r->program->context, i, &r->speed[i]) < 0)
        lk__log(r->program->context, LK_LOG_WARNING, "profile: cannot measure bounds: %s",
                lk_context_error(r->program->context));
    r->tried[i] = true;
    return &r->speed[i];
}

static void set_bound(rows *r, lk_profile_row *row)
{
    const lk_device_speed *speed = find_speed(r, row->dtype);
    if (!(speed->flops > 0)) return;
    double bytes = row->bytes / speed->memory, flops = row->flops / speed->flops;
    row->bound = fmax(bytes, flops) < speed->latency ? LK_BOUND_LATENCY
                 : bytes >= flops                    ? LK_BOUND_BYTES
                                                     : LK_BOUND_ARITHMETIC;
    row->bound_seconds = fmax(fmax(bytes, flops), speed->latency);
}

/* "(16*, 1024, 768), (2304, 768) -> (16*, 1024, 2304)": two inputs and an output say which one it is; truncated at
 * `bytes`. */
static void describe_shapes(const lk_graph *g, const lk__graph_node *n, char *text, size_t bytes)
{
    int shown = 0;
    text[0] = 0;
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        bool input = i < n->inputs;
        int  value = input ? n->in[i] : n->out[i - n->inputs];
        if (value < 0 || (input && shown == 2)) continue;
        const char *before = !input ? " -> " : shown ? ", " : "";
        strncat(text, before, bytes - 1 - strlen(text));
        size_t used = strlen(text);
        lk__shape_text(&g->values[value].shape, text + used, bytes - used);
        shown++;
        if (!input) return;
    }
}

static void merge_row(rows *r, const lk_profile_row *row)
{
    size_t i = 0;
    while (i < r->count && (strcmp(r->all[i].operation, row->operation) != 0 ||
                            strcmp(r->all[i].shapes, row->shapes) != 0 || r->all[i].dtype != row->dtype))
        i++;
    if (i == r->count) r->all[r->count++] = (lk_profile_row){.bound = row->bound, .dtype = row->dtype};
    lk_profile_row *to = &r->all[i];
    memcpy(to->operation, row->operation, sizeof to->operation);
    memcpy(to->shapes, row->shapes, sizeof to->shapes);
    to->calls += row->calls;
    to->seconds += row->seconds;
    to->bytes += row->bytes;
    to->flops += row->flops;
    to->bound_seconds += row->bound_seconds;
}

static void add_instruction(rows *r, const lk__run_list *list, size_t at)
{
    const lk_graph            *g = list->planned->graph;
    const lk__run_instruction *in = &list->instructions[at];
    size_t                     end = at + (in->together > 1 ? in->together : 1), together = 0;
    const lk__graph_node      *n = &g->nodes[list->instructions[end - 1].node];
    for (size_t i = at; i < end; i++) together += list->instructions[i].node >= 0;
    lk_profile_row row = {.dtype = lk__node_element(g, n), .calls = 1, .seconds = in->seconds / (double)in->runs};
    snprintf(row.operation, sizeof row.operation, "%s", lk__node_name(g, n));
    if (together > 1)
        snprintf(row.shapes, sizeof row.shapes, "%zu instructions in one launch", together);
    else
        describe_shapes(g, n, row.shapes, sizeof row.shapes);
    for (size_t i = at; i < end; i++) {
        if (list->instructions[i].node < 0) continue; /* of other runs */
        const lk__graph_node *one = &g->nodes[list->instructions[i].node];
        row.bytes += lk__op_find(one->op)->bytes(g, one);
        row.flops += lk__op_find(one->op)->arithmetic(g, one);
    }
    set_bound(r, &row);
    merge_row(r, &row);
}

static void add_others(rows *r)
{
    const lk__run_other *others;
    int                  count = lk__timeline_others(r->program, &others);
    int64_t              most = 0;
    const lk__run_list  *list = &r->program->slots[0].train;
    for (size_t i = 0; i < list->count; i++)
        most = list->instructions[i].runs > most ? list->instructions[i].runs : most;
    for (int i = 0; i < count && most; i++) {
        lk_profile_row row = {.calls = (int)((others[i].runs + most - 1) / most), .dtype = LK_DTYPE_COUNT};
        row.seconds = others[i].seconds / (double)most;
        row.bytes = (double)others[i].bytes / (double)most;
        snprintf(row.operation, sizeof row.operation, "%s", others[i].name);
        merge_row(r, &row);
    }
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const lk_profile_row *)a)->seconds, y = ((const lk_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

/* All rows; *capacity of them are allocated. */
static lk_status make_rows(const lk_program *p, rows *r, size_t *capacity)
{
    const lk__run_list *lists[] = {&p->slots[0].train, &p->evaluate};
    *r = (rows){.program = p};
    *capacity = lists[0]->count + lists[1]->count + LK__RUN_OTHERS;
    lk__timeline_collect(p);
    if (!(r->all = lk__alloc(p->context, LK_MEMORY_OTHER, *capacity * sizeof *r->all))) return LK_ENOMEM;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lists[i]->count; j++)
            if (lists[i]->instructions[j].runs > 0) add_instruction(r, lists[i], j);
    add_others(r);
    qsort(r->all, r->count, sizeof *r->all, by_seconds);
    return LK_OK;
}

size_t lk_program_profile_rows(const lk_program *p, lk_profile_row *to, size_t count)
{
    rows   r;
    size_t capacity;
    if (make_rows(p, &r, &capacity) < 0) return 0;
    for (size_t i = 0; i < count && i < r.count; i++) to[i] = r.all[i];
    lk__free(p->context, LK_MEMORY_OTHER, r.all, capacity * sizeof *r.all);
    return r.count;
}

/* ---- printing ---- */

typedef struct output {
    lk_text_callback write;
    void            *user;
} output;

__attribute__((format(printf, 2, 3))) static void print(const output *o, const char *format, ...)
{
    char    text[640];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n > 0) o->write(o->user, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void print_speed(const output *o, const rows *r)
{
    const lk_device_speed *last = NULL;
    for (int i = 0; i < LK_DTYPE_COUNT; i++) {
        if (!(r->speed[i].flops > 0)) continue;
        print(o, "%s%.1f TFLOP/s in %s", last ? ", " : "measured bounds: ", 1e-12 * r->speed[i].flops,
              lk_dtype_name((lk_dtype)i));
        last = &r->speed[i];
    }
    if (last) print(o, ", %.0f GB/s, %.2f us per kernel\n", 1e-9 * last->memory, 1e6 * last->latency);
}

static void print_rows(const lk_program *p, const output *o)
{
    rows   r;
    size_t capacity;
    double total = 0;
    if (make_rows(p, &r, &capacity) < 0) return;
    for (size_t i = 0; i < r.count; i++) total += r.all[i].seconds;
    print(o, "%.3f ms on the device for a micro-batch and the update, measured by %s\n", 1e3 * total,
          lk__timeline_source(p));
    print_speed(o, &r);
    print(o, "       ms      %%  calls         MB      GFLOP  bound       reached  operation\n");
    for (size_t i = 0; i < r.count; i++) {
        const lk_profile_row *row = &r.all[i];
        char                  reached[16] = "-";
        if (row->bound && row->seconds > 0)
            snprintf(reached, sizeof reached, "%.1f %%", 100 * row->bound_seconds / row->seconds);
        print(o, "%9.3f  %5.1f  %5d  %9.2f  %9.2f  %-10s %8s  %s%s%s %s\n", 1e3 * row->seconds,
              total > 0 ? 100 * row->seconds / total : 0, row->calls, 1e-6 * row->bytes, 1e-9 * row->flops,
              row->bound ? lk_bound_name(row->bound) : "-", reached, row->operation,
              row->dtype < LK_DTYPE_COUNT ? " " : "", row->dtype < LK_DTYPE_COUNT ? lk_dtype_name(row->dtype) : "",
              row->shapes);
    }
    lk__free(p->context, LK_MEMORY_OTHER, r.all, capacity * sizeof *r.all);
}

void lk_program_profile_print(const lk_program *p, lk_text_callback write, void *user)
{
    const lk__run_list *lists[] = {&p->slots[0].train, &p->evaluate};
    output              o = {write, user};
    double              total = 0;
    if (p->timeline) {
        print_rows(p, &o);
        return;
    }
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lists[i]->count; j++) total += lists[i]->instructions[j].seconds;
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lists[i]->count; j++) {
            const lk__run_instruction *in = &lists[i]->instructions[j];
            if (in->runs == 0) continue;
            char text[512];
            lk__node_text(lists[i]->planned->graph, &lists[i]->planned->graph->nodes[in->node], text, sizeof text);
            print(&o, "%9.3f ms  %5.1f %%  %s\n", 1e3 * in->seconds / (double)in->runs,
                  total > 0 ? 100 * in->seconds / total : 0, text);
        }
}
