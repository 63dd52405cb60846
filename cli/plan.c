/* plan.c - `lockstep plan`: the memory of a training run, to the byte, and its instructions, without allocating it. */
#define _GNU_SOURCE
#include "device.h"
#include "host_memory.h"
#include "json.h"
#include "mesh_hosts.h"
#include "model_default.h"
#include "model_files.h"
#include "plan_measure.h"
#include "plan_mesh.h"
#include "ranks.h"
#include "record.h"
#include "schedule_picture.h"
#include "terminal.h"
#include "training.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const option plan_options[] = {
    MODEL_OPTIONS,
    MEMORY_OPTION,
    DATA_OPTIONS,
    TRAINING_OPTIONS,
    INTEGER_LETTER('n', "ranks", "N", "1", 1, 4096, "Plan for rank 0 of N"),
    MESH_OPTION,
    INTEGER("nnodes", "N", "1", 1, 4096, "Number of hosts, over which the ranks are divided as evenly as possible"),
    PARALLEL_OPTIONS TEXT("tactics", "[FILE]", NULL,
                          "Print only how states are split over the tensor axis, in the format of FILE. With FILE: "
                          "plan with the splits in FILE instead of the plan's own choice",
                          .without = "", .axes = LK_AXIS_TENSOR),
    TEXT("link", "SPEED", "10Gbit",
         "Bandwidth between ranks per second, in each direction: 1Gbit, 100Gbit, 20GB (bytes)"),
    NUMBER("latency-us", "X", "50", 0, 1e6, "Latency between ranks in microseconds"),
    FLAG("measure", "Measure a few steps of one rank, with as many other ranks running as will share its host, "
                    "instead of estimating from --gflops and --memory-gb"),
    NUMBER("gflops", "X", "30", 0.001, 1e9, "GFLOP/s of one rank"),
    NUMBER("memory-gb", "X", "10", 0.001, 1e9, "GB/s of one rank's memory"),
    HEADING("Printing"),
    CHOICE("graph", "FORM", NULL, "text|dot",
           "Print the model's graph as a listing, or for Graphviz: `… --graph dot | dot -Tsvg`"),
    TEXT("schedule-picture", "FILE.svg", NULL,
         "Draw the predicted step of a mesh with a pipeline axis: a row for each stage, with its forward and backward "
         "passes, what it sends, and how long it waits",
         .flags = OPTION_UNRECORDED),
    FLAG("sections", "Print every instruction of every section, and the location of its result"),
    MACHINE_OPTIONS,
    FLAG("json", "Print the memory use as one JSON object"),
    CONFIG,
    OPTIONS_END,
};

static void write_out(void *user, const char *text, size_t bytes) { fwrite(text, 1, bytes, user); }

/* Prints lines that are broken to the terminal's width, or to 80 columns. */
__attribute__((format(printf, 1, 2))) static void print_lines(const char *format, ...)
{
    char    text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    terminal_wrap_lines(stdout, text, terminal_columns(stdout));
}

static const lk_memory shown[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER,      LK_MEMORY_GRADIENTS, LK_MEMORY_OPTIMIZER,
                                  LK_MEMORY_BUFFERS,    LK_MEMORY_ACTIVATIONS, LK_MEMORY_WORKSPACE, LK_MEMORY_LOADER,
                                  LK_MEMORY_CHECKPOINT, LK_MEMORY_STAGING,     LK_MEMORY_DATA};
enum { SHOWN = sizeof shown / sizeof *shown };

static void print_memory(const size_t *memory)
{
    size_t total = 0;
    for (int i = 0; i < SHOWN; i++) {
        /* in bf16; off the CPU; on the device */
        bool optional = shown[i] == LK_MEMORY_MASTER || shown[i] == LK_MEMORY_STAGING || shown[i] == LK_MEMORY_DATA;
        if (optional && memory[shown[i]] == 0) continue;
        printf("%-16s %15zu bytes  %10.2f MiB\n", lk_memory_name(shown[i]), memory[shown[i]],
               (double)memory[shown[i]] / 1048576);
        total += memory[shown[i]];
    }
    printf("%-16s %15zu bytes  %10.2f MiB\n", "total", total, (double)total / 1048576);
}

/* What the plan does not count: the device's memory that its driver's context and libraries hold. */
typedef struct device_overhead {
    lk_device                 device;
    lk_device_memory_overhead memory;
} device_overhead;

/* What fails here fails again when the context is created. */
static device_overhead find_overhead(const char *name)
{
    device_overhead o = {.device = LK_DEVICE_INIT};
    if (lk_device_overhead(name, &o.memory) < 0) return o;
    if (!device_find(strcmp(name, "auto") == 0 ? lk_device_auto() : name, &o.device) || !o.device.title)
        o.memory.context = 0;
    return o;
}

static void print_overhead(const device_overhead *o)
{
    const char *where = o->memory.measured ? "measured here" : o->device.reference;
    char        context[32], libraries[32];
    if (o->memory.context == 0) return;
    snprintf(context, sizeof context, "%s context", o->device.title);
    snprintf(libraries, sizeof libraries, "%s libraries", o->device.title);
    printf("overhead on the %s, %s%s%s:\n", o->device.unit, o->memory.measured ? "" : "as on ", where,
           o->memory.measured ? "" : "; not measured here");
    printf("%-16s %15zu bytes  %10.2f MiB\n", context, o->memory.context, (double)o->memory.context / 1048576);
    printf("%-16s %15zu bytes  %10.2f MiB\n", libraries, o->memory.libraries, (double)o->memory.libraries / 1048576);
}

/* "cuda_context", "cuda_libraries" and "cuda_measured". */
static void print_overhead_json(json *j, const device_overhead *o)
{
    char key[3][64];
    if (o->memory.context == 0) return;
    snprintf(key[0], sizeof *key, "%s_context", o->device.name);
    snprintf(key[1], sizeof *key, "%s_libraries", o->device.name);
    snprintf(key[2], sizeof *key, "%s_measured", o->device.name);
    json_integer(j, key[0], (int64_t)o->memory.context);
    json_integer(j, key[1], (int64_t)o->memory.libraries);
    json_bool(j, key[2], o->memory.measured);
}

/* ---- ranks of one host ---- */

static int hosts_of(const setup *s) { return s->config.plan_hosts > 1 ? s->config.plan_hosts : 1; }

/* With the state in one place or in many. */
static host_memory measure_host(const setup *s, lk_state_mode mode)
{
    lk_trainer_config config = s->config;
    config.state = mode;
    host_memory m = host_memory_plan(s->context, &config);
    m.possible = m.possible && (m.shared || mode != LK_STATE_SHARED); /* with one rank along data, nothing is shared */
    return m;
}

static void print_hosts(const setup *s, const lk_plan *plan)
{
    host_memory shared = measure_host(s, LK_STATE_SHARED), replicated = measure_host(s, LK_STATE_REPLICATED);
    bool        chosen = lk_plan_state(plan) == LK_STATE_SHARED;
    char        why[256];
    printf("\nstate       bytes per rank     shared bytes  bytes per host of %d ranks\n", replicated.ranks);
    if (shared.possible)
        printf("%-10s %15zu %16zu %16zu %7.1f MiB%s\n", "shared", shared.rank, shared.common, shared.host,
               (double)shared.host / 1048576, chosen ? ", chosen" : "");
    if (shared.possible && shared.nodes > 1)
        print_lines("  of the shared bytes, %zu for each of %d memory nodes: parameters and shared buffers\n",
                    shared.copy, shared.nodes);
    bool split = s->mesh && lk_mesh_extent(s->mesh, LK_AXIS_SHARD) > 1;
    printf("%-10s %15zu %16zu %16zu %7.1f MiB%s\n", split ? "split" : "replicated", replicated.rank, replicated.common,
           replicated.host, (double)replicated.host / 1048576, chosen ? "" : ", chosen");
    (void)lk_trainer_state(s->context, &s->config, why, sizeof why);
    print_lines("the state is %s\n", why);
    if (lk_plan_helpers(plan) > 0)
        print_lines("waiting ranks lend their cores: a rank that is still computing uses up to %d of them (with "
                    "--keep-cores, none)\n",
                    lk_plan_helpers(plan));
}

static void add_host(json *j, const char *name, host_memory m)
{
    if (!m.possible) return;
    json_open(j, name, '{');
    json_integer(j, "rank", (int64_t)m.rank);
    json_integer(j, "common", (int64_t)m.common);
    json_integer(j, "host", (int64_t)m.host);
    json_integer(j, "nodes", m.nodes);
    json_integer(j, "node", (int64_t)m.copy);
    json_close(j, '}');
}

/* Blocks of a transformer that are recomputed. */
static int64_t recomputed_blocks(const setup *s)
{
    const lk_transformer_config *c = &s->transformer.config;
    return c->recompute < 0 || c->recompute > c->layers ? c->layers : c->recompute;
}

static void print_recomputed(const setup *s)
{
    long long blocks = (long long)recomputed_blocks(s), layers = (long long)s->transformer.config.layers;
    if (!s->transformer.used || (blocks == 0 && s->transformer.budget == 0)) return;
    if (blocks == 0)
        printf("no block is recomputed: all %lld fit\n", layers);
    else
        printf("recomputed       blocks 0 to %lld of %lld\n", blocks - 1, layers);
}

/* Whether this machine could run it; a note says why not. */
static bool fits_here(const setup *s, const lk_plan *plan, const size_t *memory)
{
    host_memory all = host_memory_sum(s->context, &s->config, plan, memory);
    if (host_memory_check(s, &all) >= 0) return true;
    print_note("plan", "%s: the run would not start here", lk_context_error(s->context));
    return false;
}

static void print_json(const setup *s, const size_t *memory, const lk_plan *plan, const device_overhead *overhead,
                       bool fits, const lk_rates *rates)
{
    size_t total = 0;
    char   fingerprint[32];
    json   j = json_to(stdout);
    json_open(&j, NULL, '{');
    for (int i = 0; i < SHOWN; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s", lk_memory_name(shown[i]));
        for (char *c = key; *c; c++)
            if (*c == ' ') *c = '_';
        json_integer(&j, key, (int64_t)memory[shown[i]]);
        total += memory[shown[i]];
    }
    json_integer(&j, "total", (int64_t)total);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)lk_plan_fingerprint(plan));
    json_text(&j, "fingerprint", fingerprint);
    print_overhead_json(&j, overhead);
    if (s->config.plan_world > 1) {
        char why[256];
        (void)lk_trainer_state(s->context, &s->config, why, sizeof why);
        json_text(&j, "state", lk_plan_state(plan) == LK_STATE_SHARED ? "shared" : "replicated");
        json_text(&j, "state_reason", why);
        json_integer(&j, "helpers", lk_plan_helpers(plan));
        json_integer(&j, "hosts", hosts_of(s));
        add_host(&j, "shared", measure_host(s, LK_STATE_SHARED));
        add_host(&j, "replicated", measure_host(s, LK_STATE_REPLICATED));
        plan_mesh_json(s, plan, &j);
        plan_mesh_stages_json(plan, rates, &j);
    }
    if (rates) json_number(&j, "step_seconds", lk_plan_step(plan, rates, NULL, NULL));
    json_bool(&j, "fits", fits);
    if (s->transformer.used) json_integer(&j, "recomputed_blocks", recomputed_blocks(s));
    json_close(&j, '}');
    json_line(&j);
}

/* "1Gbit", "20GB": bytes per second; 0: invalid. */
static double parse_speed(const char *text)
{
    static const struct {
        const char *unit;
        double      bytes;
    } units[] = {{"Gbit", 1.25e8}, {"Mbit", 1.25e5}, {"GB", 1e9}, {"MB", 1e6}};
    char  *end;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end != text && strcmp(end, units[i].unit) == 0 && number > 0 && number < 1e9)
            return number * units[i].bytes;
    return 0;
}

/* The speeds of a step: given, or measured. */
static int make_rates(const setup *s, lk_plan *plan, const options *given, lk_rates *rates)
{
    *rates = (lk_rates){.flops = options_number(given, "gflops") * 1e9,
                        .memory = options_number(given, "memory-gb") * 1e9,
                        .link = parse_speed(options_text(given, "link")),
                        .latency = options_number(given, "latency-us") * 1e-6};
    if (rates->link <= 0) {
        print_error("plan", "--link '%s': expected a number followed by Gbit, Mbit, GB or MB, such as 1Gbit",
                    options_text(given, "link"));
        return EXIT_USER_ERROR;
    }
    lk_status status = options_flag(given, "measure") ? plan_measure(s, plan) : LK_OK;
    return status < 0 ? report("plan", s->context, status) : 0;
}

static void print_step(const lk_plan *plan, const lk_rates *rates)
{
    char  *text = NULL;
    size_t bytes;
    FILE  *memory = open_memstream(&text, &bytes);
    if (memory) (void)lk_plan_step(plan, rates, write_out, memory);
    printf("\n");
    if (memory && fclose(memory) == 0) terminal_wrap_lines(stdout, text, terminal_columns(stdout));
    free(text);
}

static int print_tactics(const setup *s, const lk_plan *plan)
{
    if (!s->mesh || lk_mesh_extent(s->mesh, LK_AXIS_TENSOR) == 1) {
        print_error("plan",
                    "--tactics prints how states are split over the tensor axis of a mesh: give --mesh tensor=N");
        return EXIT_USER_ERROR;
    }
    lk_plan_tactics(plan, write_out, stdout);
    return 0;
}

/* -n, --mesh, or both, which must agree. */
static int choose_ranks(setup *s, const options *given)
{
    int code = ranks_mesh(s, "plan", given, 0), ranks = (int)options_integer(given, "ranks");
    if (code != 0) return code;
    if (s->mesh && options_given(given, "ranks") && s->config.plan_world != ranks) {
        print_error("plan", "--mesh %s has %d rank%s, but -n is %d: omit one of the two, or make them equal",
                    options_text(given, "mesh"), s->config.plan_world, s->config.plan_world == 1 ? "" : "s", ranks);
        return EXIT_USER_ERROR;
    }
    if (!s->mesh) s->config.plan_world = ranks;
    return 0;
}

/* What `lockstep plan` has made of its options. */
typedef struct planned {
    setup           s;
    lk_graph       *graph;
    lk_plan        *plan;
    size_t          memory[LK_MEMORY_COUNT];
    device_overhead overhead;
    lk_rates        rates; /* where `steps` or a picture needs them */
    bool            steps; /* the time of a step is printed, too */
    bool            fits;
} planned;

/* -n, --mesh and --nnodes. */
static int choose_hosts(setup *s, const options *given)
{
    int code = choose_ranks(s, given);
    s->config.plan_hosts = (int)options_integer(given, "nnodes");
    if (code != 0 || s->config.plan_hosts <= s->config.plan_world) return code;
    print_error("plan", "--nnodes %d for %d rank%s: every host needs at least one rank; give -n %d or more",
                s->config.plan_hosts, s->config.plan_world, s->config.plan_world == 1 ? "" : "s", s->config.plan_hosts);
    return EXIT_USER_ERROR;
}

static int make_plan(planned *p, options *given)
{
    setup      *s = &p->s;
    const char *device;
    int         code = device_choose("plan", given, &device);
    if (code == 0) code = model_default("plan", given);
    /* Before the first context, because that of a driver is measured by creating it. */
    if (code == 0) p->overhead = find_overhead(device);
    if (code == 0) code = setup_make(s, "plan", given, SETUP_SIZES);
    if (code == 0) code = transformer_budget(&s->transformer, "plan", given);
    if (code == 0) code = training_make(s, "plan", given);
    if (code == 0) code = training_scale_rate(s, "plan", given, 1);
    if (code == 0) code = record_make(s, "plan", given);
    if (code == 0) code = model_files_make(s, "plan");
    if (code == 0) code = choose_hosts(s, given);
    if (code == 0) code = ranks_make(s, "plan", given);
    if (code != 0) return code;
    lk_status status = lk_trainer_plan(s->context, &s->config, &p->graph, &p->plan, p->memory);
    return status < 0 ? setup_report(s, "plan", status) : 0;
}

static void print_plan(planned *p, const options *given)
{
    const char *form = options_text(given, "graph");
    bool        json = options_flag(given, "json");
    if (form && strcmp(form, "dot") == 0)
        lk_graph_dot(p->graph, write_out, stdout);
    else if (form)
        lk_graph_print(p->graph, write_out, stdout);
    if (options_flag(given, "sections")) lk_plan_print(p->plan, write_out, stdout);
    if (json)
        print_json(&p->s, p->memory, p->plan, &p->overhead, p->fits, p->steps ? &p->rates : NULL);
    else if (!form)
        print_memory(p->memory), print_overhead(&p->overhead), print_recomputed(&p->s);
    if (!json && !form && p->s.config.plan_world > 1) plan_mesh_print(&p->s), print_hosts(&p->s, p->plan);
    if (p->steps && !form && !json) print_step(p->plan, &p->rates);
}

/* Of a plan that was made. */
static int show_plan(planned *p, const options *given)
{
    setup      *s = &p->s;
    const char *tactics = options_text(given, "tactics"), *picture = options_text(given, "schedule-picture");
    bool        only_tactics = tactics && !*tactics;
    int         hosts = hosts_of(s), code = 0;
    p->fits = only_tactics || fits_here(s, p->plan, p->memory);
    if (hosts > 1) mesh_hosts_note(s, "plan", p->plan, (s->config.plan_world + hosts - 1) / hosts);
    p->steps = !only_tactics && (s->config.plan_world > 1 || options_flag(given, "measure"));
    if (p->steps || picture) code = make_rates(s, p->plan, given, &p->rates);
    if (code == 0 && only_tactics) code = print_tactics(s, p->plan);
    if (code == 0 && !only_tactics) print_plan(p, given);
    return code == 0 && picture ? schedule_picture_write(s, p->plan, &p->rates, picture) : code;
}

static int run_plan(const options *command_line)
{
    static options given; /* with the model of the weights */
    planned        p = {.overhead = {.device = LK_DEVICE_INIT}};
    given = *command_line;
    int code = make_plan(&p, &given);
    if (code == 0) code = show_plan(&p, &given);
    lk_plan_free(p.plan);
    lk_graph_free(p.graph);
    setup_free(&p.s);
    return code;
}

const command command_plan = {
    "plan",
    "print the memory that a run will use, to the byte, before it starts",
    "Takes the options of `lockstep train` and prints exactly how many bytes the run will use for parameters, "
    "gradients, optimizer state, activations, workspace, loader and checkpoint staging; for a GPU also the overhead of "
    "its driver's context and libraries, measured if this machine has a GPU. A public data set need not be "
    "downloaded: its published size is used.\n\n"
    "With -n it prints the memory of one of the N ranks; the memory of a host with all ranks, or with its share of "
    "them (--nnodes), both with shared state and with one copy per rank (--state); which of the two is chosen, and "
    "why; and an estimate of a step: every collective, its size, what it overlaps with, and the critical path. For a "
    "mesh with axes other than data (--mesh), it also prints the bytes of each rank, and what a rank sends along each "
    "axis.\n\n"
    "Examples: lockstep plan --model resnet18 --batch 128; lockstep plan -n 4 --model cnn --measure --link 1Gbit; "
    "lockstep plan --model llama-3.2-1b --dtype bf16 --batch 64 --context 4096 --mesh data=2,shard=8,tensor=4",
    NULL,
    0,
    0,
    plan_options,
    run_plan,
};
