/* bench.c - `lockstep bench train`: steady-state speed on data in memory, and the time from exec to the end of the
 * first step. bench_comm.c and bench_generate.c have the other benchmarks. */
#define _GNU_SOURCE
#include "bench_comm.h"
#include "bench_generate.h"
#include "bench_trainer.h"
#include "clock.h"
#include "host_memory.h"
#include "json.h"
#include "ranks.h"
#include "text_metrics.h"
#include "times.h"

#include <lockstep/environment.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const option bench_options[] = {
    MODEL_OPTIONS,
    DATA_OPTIONS,
    DATA_ON_DEVICE_OPTION,
    HEADING("Ranks"),
    RANKS_OPTION(
        "Ranks to start on this host (default: train 1, comm 2). train: they share each batch; comm: 1 to 256"),
    MESH_OPTION,
    CHOICE_LISTED("backend", "NAME", "auto", transport_of_groups, "Transport between ranks"),
    PARALLEL_OPTIONS TACTICS_OPTION,
    HEADING("Running"),
    INTEGER("steps", "N", "0", 0, 1e9,
            "Steps to measure; 0: enough for about two seconds, but at least 20. The first quarter is warm-up"),
    MACHINE_OPTIONS,
    FLAG("profile",
         "Print the time of each part of a step; on a GPU, also what limits it and how close it comes to that limit"),
    COMM_OPTIONS,
    GENERATE_OPTIONS,
    HEADING("All benchmarks"),
    FLAG("json", "Print JSON, one object per line"),
    CONFIG,
    OPTIONS_END,
};

enum { SAMPLES = 10000 };

typedef struct bench {
    bool        queued; /* a step whose result was not read */
    setup      *setup;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    lk_field    about[LK_MAX_FIELDS]; /* of a batch */
    char       *fields[LK_MAX_FIELDS];
    int         fields_count;
    int64_t     samples, share; /* share: this rank's samples of a batch */
    int         rank, world;
    bench_times times;
} bench;

/* The time of this process's start: it executes itself again with the time in the environment, so that loading counts
 * too. */
static double exec_time(void)
{
    const char *noted = lk_environment_get(NULL, "LOCKSTEP_BENCH_EXEC");
    char        text[64];
    if (noted) return atof(noted);
    char       *arguments[512], *line;
    static char buffer[65536];
    FILE       *file = fopen("/proc/self/cmdline", "re");
    size_t      length = file ? fread(buffer, 1, sizeof buffer - 1, file) : 0;
    int         count = 0;
    if (file) fclose(file);
    for (line = buffer; line < buffer + length && count < 511; line += strlen(line) + 1) arguments[count++] = line;
    arguments[count] = NULL;
    snprintf(text, sizeof text, "%.9f", now());
    setenv("LOCKSTEP_BENCH_EXEC", text, 1);
    if (count > 0) execv("/proc/self/exe", arguments);
    return now();
}

/* Uniform random numbers, and class numbers: the speed of a step does not depend on the values. */
static void fill_field(const lk_field *about, int64_t samples, char *out)
{
    uint32_t state = 1;
    uint32_t classes = about->classes > 0 ? (uint32_t)about->classes : 1;
    for (int64_t i = 0; i < samples * lk_field_elements(about); i++) {
        state = state * 1664525u + 1013904223u;
        double value = (double)(int32_t)state / 2147483648.0;
        if (about->dtype == LK_F64)
            ((double *)out)[i] = value;
        else if (about->dtype == LK_F32)
            ((float *)out)[i] = (float)value;
        else if (about->dtype == LK_I32)
            ((int32_t *)out)[i] = (int32_t)((state >> 8) % classes);
    }
}

static lk_status make_fields(bench *b)
{
    setup           *s = b->setup;
    lk_loader_config loader = LK_LOADER_CONFIG_INIT;
    loader.dataset = s->train;
    loader.dtype = s->config.dtype;
    loader.transform = s->config.transform;
    for (int i = 0; lk_loader_field(&loader, i, &b->about[i]); b->fields_count = ++i) {
        size_t bytes = (size_t)b->samples * lk_field_bytes(&b->about[i]);
        b->fields[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!b->fields[i]) return LK_ENOMEM;
        memset(b->fields[i], 0, bytes);
        fill_field(&b->about[i], b->samples, b->fields[i]);
    }
    return LK_OK;
}

static lk_status create_bench(bench *b)
{
    setup    *s = b->setup;
    size_t    memory[LK_MEMORY_COUNT];
    lk_status status = lk_trainer_plan(s->context, &s->config, &b->graph, &b->plan, memory);
    if (status < 0) return status;
    host_memory all = host_memory_sum(s->context, &s->config, b->plan, memory);
    if ((status = host_memory_check(s, &all)) < 0) return status;
    b->share = lk_trainer_share(&s->config);
    b->samples = b->share;
    while (b->samples + b->share <= SAMPLES && b->samples < 4 * b->share) b->samples += b->share;
    if ((status = make_fields(b)) < 0) return status;
    status = s->config.comm ? lk_store_create_shared(b->plan, s->config.seed, s->config.comm, &b->store)
                            : lk_store_create(b->plan, s->config.seed, &b->store);
    if (status < 0) return status;
    return lk_program_create(b->plan, b->store, s->config.comm, &b->program);
}

/* Queues a step, and reads the result of the one before it: on a GPU the host prepares a step while another runs. */
static lk_status one_step(bench *b, int64_t i)
{
    setup  *s = b->setup;
    int64_t at = b->share ? i * b->share % b->samples : 0;
    lk_step step = {.step = i + 1, .count = b->share, .total = s->config.batch, .rate = s->config.optimizer.lr};
    for (int k = 0; k < b->fields_count; k++)
        lk_program_bind(b->program, b->about[k].name, b->fields[k] + (size_t)at * lk_field_bytes(&b->about[k]));
    lk_status status = lk_program_queue(b->program, &step);
    if (status >= 0 && b->queued) status = lk_program_result(b->program);
    b->queued = true;
    return status;
}

static lk_status last_result(bench *b)
{
    if (!b->queued) return LK_OK;
    b->queued = false;
    return lk_program_result(b->program);
}

static lk_status measure_steps(bench *b, int64_t steps, double started, bool profile)
{
    lk_status status = one_step(b, 0);
    if (status >= 0) status = last_result(b);
    double end = now();
    b->times.first_step = end - started;
    if (status >= 0) status = one_step(b, 1);
    if (status >= 0) status = last_result(b);
    double one = now() - end;
    if (steps == 0) steps = (int64_t)fmin(fmax(2 / one, 20), 100000);
    if (b->world > 1 && status >= 0) /* rank 0's estimate is used */
        status = lk_comm_broadcast(b->setup->config.comm, &steps, 1, LK_I64, 0, NULL);
    double *times = malloc((size_t)steps * sizeof *times);
    if (!times) return LK_ENOMEM;
    for (int64_t i = 0; i < steps && status >= 0; i++) {
        if (profile && i == steps / 4) {
            if ((status = last_result(b)) < 0) break;
            lk_program_profile(b->program, true);
        }
        double start = now();
        status = one_step(b, i + 2);
        times[i] = now() - start;
    }
    if (status >= 0) status = last_result(b);
    if (profile) lk_program_profile(b->program, false);
    int64_t warm = steps / 4, count = steps - warm;
    b->times.median = times_median(times + warm, count);
    b->times.mean = times_mean(times + warm, count);
    b->times.steps = count;
    free(times);
    return status;
}

static void print_result(const bench *b, const options *given)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const transformer *t = &b->setup->transformer;
    double             samples = (double)b->setup->config.batch / b->times.median, rss = (double)usage.ru_maxrss / 1024;
    double             rate = samples * (double)setup_units(b->setup);
    text_metrics       text = {0};
    if (t->used) text_metrics_measure(&text, b->setup, b->world);
    double mfu = t->used ? text_metrics_utilisation(&text, b->setup, rate) : (double)NAN;
    if (!options_flag(given, "json")) {
        printf("%s, batch %lld, %d rank%s, %d thread%s each, %s: %.1f %s/s, %.1f steps/s, step %.3f ms (median of "
               "%lld; mean %.3f)\n",
               options_text(given, "model"), (long long)b->setup->config.batch, b->world, b->world == 1 ? "" : "s",
               lk_context_threads(b->setup->context), lk_context_threads(b->setup->context) == 1 ? "" : "s",
               lk_context_isa(b->setup->context), rate, setup_unit(b->setup), 1 / b->times.median,
               1e3 * b->times.median, (long long)b->times.steps, 1e3 * b->times.mean);
        if (t->used) printf("%lld parameters", (long long)lk_transformer_parameters(&t->config));
        if (!isnan(mfu)) printf(", model FLOP utilisation %.1f %%", 100 * mfu);
        if (t->used) printf("\n");
        printf("first step done %.1f ms after exec, peak memory %.1f MiB\n", 1e3 * b->times.first_step, rss);
        return;
    }
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", options_text(given, "model"));
    json_integer(&j, "batch", b->setup->config.batch);
    json_integer(&j, "ranks", b->world);
    json_integer(&j, "threads", lk_context_threads(b->setup->context));
    json_text(&j, "isa", lk_context_isa(b->setup->context));
    json_number(&j, "samples_per_s", samples);
    if (t->used) json_number(&j, "tokens_per_s", rate);
    if (t->used) json_number(&j, "mfu", mfu);
    if (options_flag(given, "profile")) json_text(&j, "profiled_by", lk_program_profile_clock(b->program));
    json_number(&j, "steps_per_s", 1 / b->times.median);
    json_number(&j, "mean_step_s", b->times.mean);
    json_number(&j, "first_step_s", b->times.first_step);
    json_number(&j, "rss_mib", rss);
    json_close(&j, '}');
    json_line(&j);
}

static void print_profile_row(const lk_profile_row *row)
{
    json j = json_to(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "operation", row->operation);
    json_text(&j, "dtype", row->dtype < LK_DTYPE_COUNT ? lk_dtype_name(row->dtype) : NULL);
    json_text(&j, "shapes", row->shapes);
    json_integer(&j, "calls", row->calls);
    json_number(&j, "ms", 1e3 * row->seconds);
    json_number(&j, "bytes", row->bytes);
    json_number(&j, "flops", row->flops);
    json_text(&j, "bound", row->bound ? lk_bound_name(row->bound) : NULL);
    json_number(&j, "bound_ms", row->bound ? 1e3 * row->bound_seconds : NAN);
    json_number(&j, "reached", row->bound && row->seconds > 0 ? row->bound_seconds / row->seconds : NAN);
    json_close(&j, '}');
    json_line(&j);
}

/* One object for each row. */
static void print_profile_json(const lk_program *program)
{
    size_t          count = lk_program_profile_rows(program, NULL, 0);
    lk_profile_row *rows = calloc(count + 1, sizeof *rows);
    if (!rows) return;
    count = lk_program_profile_rows(program, rows, count);
    for (size_t i = 0; i < count; i++) print_profile_row(&rows[i]);
    free(rows);
}

static void write_out(void *user, const char *text, size_t bytes) { fwrite(text, 1, bytes, user); }

enum { TRAIN, COMM, GENERATE, BENCHMARKS };

static const char *const benchmarks[] = {"train", "comm", "generate", NULL};

static bool has_name(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

static bool has_row(const option *rows, const char *name)
{
    for (; rows->name || rows->doc; rows++)
        if (rows->name && strcmp(rows->name, name) == 0) return true;
    return false;
}

/* Whether a benchmark has the option `name`. */
static bool uses_option(int benchmark, const char *name)
{
    static const option      of_comm[] = {COMM_OPTIONS, OPTIONS_END}, of_generate[] = {GENERATE_OPTIONS, OPTIONS_END};
    static const char *const of_all[] = {"json", "config", "overcommit", "device", DEVICE_OPTION_NAMES NULL},
                             *const of_ranks[] = {"ranks", "backend", NULL};
    static const char *const        shared[] = {"model",   "layers",     "heads",      "kv-heads", "width",
                                                "context", "vocabulary", "rope-theta", "untied",   "hidden",
                                                "dtype",   "batch",      "threads",    "seed",     NULL};
    if (has_name(of_all, name)) return true;
    if (has_name(of_ranks, name)) return benchmark != GENERATE;
    if (has_row(of_comm, name)) return benchmark == COMM;
    if (has_row(of_generate, name)) return benchmark == GENERATE;
    return benchmark == TRAIN || (benchmark == GENERATE && has_name(shared, name));
}

/* Where the device makes batches, as in training; else from arrays of the host. A profile is of the latter's
 * instructions. */
static lk_status measure_training(bench *b, const options *given, double started)
{
    bool      profile = options_flag(given, "profile");
    int64_t   steps = options_integer(given, "steps");
    lk_status status = profile ? LK_END : bench_trainer(b->setup, steps, started, &b->times);
    if (status != LK_END) return status;
    b->setup->config.data_on_device = LK_DATA_ON_HOST;
    status = create_bench(b);
    return status < 0 ? status : measure_steps(b, steps, started, profile);
}

/* An option of another benchmark is a user error, instead of being ignored. */
static bool check_options(const options *given, int benchmark)
{
    for (int i = 0; given->table[i].name || given->table[i].doc; i++) {
        const char *name = given->table[i].name;
        if (!name || given->lines[i] == 0 || uses_option(benchmark, name)) continue;
        int other = TRAIN;
        while (!uses_option(other, name)) other++;
        print_error("bench", "--%s applies only to `lockstep bench %s`", name, benchmarks[other]);
        return false;
    }
    return true;
}

static int check_run(const options *given, int ranks)
{
    setup s = {0};
    int   code = setup_begin(&s, "bench", given, 1);
    s.config.plan_world = ranks;
    if (code == 0) code = setup_make(&s, "bench", given, SETUP_SHAPES);
    s.config.data_on_device = device_data_place(given);
    if (code == 0) code = ranks_make(&s, "bench", given);
    if (code == 0) code = ranks_plan(&s, "bench", given);
    setup_free(&s);
    return code;
}

static int run_bench(const options *given)
{
    setup s = {0};
    bench b = {.setup = &s};
    int   benchmark = TRAIN;
    while (benchmark < BENCHMARKS && strcmp(given->operands[0], benchmarks[benchmark]) != 0) benchmark++;
    if (benchmark == BENCHMARKS) {
        const char *suggestion = suggest_word(given->operands[0], benchmarks);
        print_error("bench", "unknown benchmark '%s'%s%s%s", given->operands[0],
                    suggestion ? "; did you mean '" : "; expected train, comm or generate",
                    suggestion ? suggestion : "", suggestion ? "'?" : "");
        return EXIT_USER_ERROR;
    }
    if (!check_options(given, benchmark)) return EXIT_USER_ERROR;
    if (options_flag(given, "profile") && device_data_place(given) == LK_DATA_ON_DEVICE) {
        print_error(
            "bench",
            "--profile and --data-on-device yes are mutually exclusive: --profile measures with batches from the host");
        return EXIT_USER_ERROR;
    }
    if (benchmark == COMM) return bench_comm(given);
    if (benchmark == GENERATE) return bench_generate(given);
    double started = exec_time();
    int    code;
    if (ranks_start("bench", given, check_run, &code)) return code;
    code = setup_begin(&s, "bench", given, (int)options_integer(given, "threads"));
    if (code == 0) code = ranks_join(&s, "bench", given);
    b.rank = s.config.comm ? lk_comm_rank(s.config.comm) : 0;
    b.world = s.config.comm ? lk_comm_size(s.config.comm) : 1;
    if (code == 0) code = setup_make(&s, "bench", given, SETUP_SHAPES);
    s.config.data_on_device = device_data_place(given);
    if (code == 0) code = ranks_make(&s, "bench", given);
    if (code == 0) {
        lk_status status = measure_training(&b, given, started);
        if (status < 0) code = setup_report(&s, "bench", status);
    }
    if (code == 0 && b.rank == 0) print_result(&b, given);
    if (code == 0 && b.rank == 0 && options_flag(given, "profile")) {
        if (options_flag(given, "json"))
            print_profile_json(b.program);
        else
            lk_program_profile_print(b.program, write_out, stdout);
    }
    lk_program_free(b.program);
    lk_store_free(b.store);
    lk_plan_free(b.plan);
    lk_graph_free(b.graph);
    for (int i = 0; i < b.fields_count; i++) free(b.fields[i]);
    ranks_leave(&s);
    setup_free(&s);
    return code;
}

const command command_bench = {
    "bench",
    "measure training, generation, or collectives",
    "`lockstep bench train` trains on generated data in memory and prints the speed of the median step, the mean step "
    "time, the time from exec to the end of the first step, and the peak memory.\n\n"
    "`lockstep bench comm` starts ranks on this host, or runs as one of the ranks that mpirun, srun or `lockstep run` "
    "started, and prints, for each size, the median time of a collective, its bandwidth, the memory bandwidth of the "
    "same processes, and the limit that memory sets: bytes / the time that these processes need to move the minimum "
    "amount of data for the collective between buffers mapped by all of them (all_reduce of S bytes on N ranks: NS "
    "bytes read and NS written). If --device selects a GPU, it measures the collectives that the GPUs run themselves, "
    "and prints a table in the format of nccl-tests.\n\n"
    "`lockstep bench generate` generates text with a transformer's initial weights and prints the tokens per second "
    "and how much of the memory bandwidth is used for reading the weights.\n\n"
    "Examples: lockstep bench train --model cnn --batch 64 --threads 1 --json; lockstep bench comm --ranks 2 --sizes "
    "8,1M,25M; lockstep bench generate --model gpt2 --threads 8",
    "train|comm|generate",
    1,
    1,
    bench_options,
    run_bench,
};
