/* ranks.c - starts ranks of this same command, and joins them. */
#define _GNU_SOURCE
#include "ranks.h"

#include "environment.h"
#include "host_memory.h"
#include "memory_advice.h"

#include <fcntl.h>
#include <lockstep/environment.h>
#include <lockstep/launch.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char started[] = "LOCKSTEP_STARTED_RANKS"; /* set in the environment of ranks that ranks_start started */

/* The bytes of this process's own command line, and a NUL behind them; NULL: not readable, or no memory. */
static char *read_command_line(size_t *length)
{
    int     fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    char   *text = NULL;
    size_t  used = 0, room = 0;
    ssize_t got = fd < 0 ? -1 : 1;
    while (got > 0) {
        if (used + 1 >= room) {
            char *more = realloc(text, room = 2 * room + 4096);
            if (!more) break;
            text = more;
        }
        got = read(fd, text + used, room - used - 1);
        if (got > 0) used += (size_t)got;
    }
    if (fd >= 0) close(fd);
    if (got != 0 || used == 0) {
        free(text);
        return NULL;
    }
    text[used] = 0;
    *length = used;
    return text;
}

/* This process's own arguments, which may contain any byte; the first entry owns the memory of all. */
static char **own_arguments(void)
{
    size_t length = 0, count = 0;
    char  *text = read_command_line(&length), **list;
    if (!text) return NULL;
    for (size_t at = 0; at < length; at += strlen(text + at) + 1) count++;
    list = calloc(count + 1, sizeof *list);
    for (size_t i = 0, at = 0; list && at < length; at += strlen(text + at) + 1) list[i++] = text + at;
    if (!list) free(text);
    return list;
}

void ranks_restarted(options *given)
{
    const char *save = options_text(given, "save"), *restarts = lk_environment_get(NULL, "TORCHELASTIC_RESTART_COUNT");
    char        path[4096 + 16];
    if (!lk_environment_get(NULL, started) || !save || !restarts || atoi(restarts) < 1) return;
    snprintf(path, sizeof path, "%s/state.json", save);
    if (access(path, F_OK) == 0)
        options_override(given, "resume", "auto"); /* else nothing was saved before the failure */
}

/* --max-restarts is for ranks that this command starts. */
static bool check_restarts(const char *name, const options *given, int *code)
{
    bool restarts = options_known(given, "max-restarts") && options_integer(given, "max-restarts") > 0;
    if (restarts && !options_text(given, "ranks") && !options_find(given, "mesh")) {
        print_error(name,
                    "--max-restarts requires -n N or --mesh, which start ranks; `lockstep run` has this option too");
        *code = EXIT_USER_ERROR;
        return false;
    }
    if (restarts && !options_text(given, "save"))
        print_note(name, "without --save, restarted ranks start from scratch");
    return true;
}

/* The number of ranks that -n and --mesh request, which must agree. 0, or the exit status after the error was
 * printed. */
static int count_ranks(const char *name, lk_context *context, const options *given, int *ranks)
{
    const char    *count = options_text(given, "ranks"), *axes = options_find(given, "mesh");
    lk_mesh_config config = LK_MESH_CONFIG_INIT;
    lk_mesh       *mesh = NULL;
    lk_status      status = count ? lk_launch_count(context, count, ranks) : LK_OK;
    if (status < 0) return report(name, context, status);
    if (!axes) return 0;
    config.axes = axes;
    if ((status = lk_mesh_create(context, &config, &mesh)) < 0) return report_as(name, "--mesh: ", context, status);
    int size = lk_mesh_size(mesh);
    lk_mesh_free(mesh);
    if (count && *ranks != size) {
        print_error(name, "--mesh %s has %d rank%s, but -n %s is %d: omit one of the two, or make them equal", axes,
                    size, size == 1 ? "" : "s", count, *ranks);
        return EXIT_USER_ERROR;
    }
    *ranks = size;
    return 0;
}

/* --parallel has one value, and is accepted for one more version. */
static void note_parallel(const char *name, const options *given)
{
    if (options_chosen(given, "parallel") && environment_rank() <= 0 && !lk_environment_get(NULL, started))
        print_note(name,
                   "--parallel is replaced by --mesh: instead of --parallel data -n 8, use --mesh data=8 or just -n 8");
}

bool ranks_start(const char *name, const options *given, ranks_check check, int *code)
{
    lk_launch_config  config = LK_LAUNCH_CONFIG_INIT;
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    static char       self[4096];
    const char       *ranks = options_text(given, "ranks");
    if (lk_environment_get(NULL, started)) return false;
    if (!check_restarts(name, given, code)) return true;
    if (!ranks && (!options_find(given, "mesh") || lk_environment_get(NULL, "WORLD_SIZE") || environment_rank() >= 0))
        return false;
    if (lk_environment_get(NULL, "WORLD_SIZE")) {
        print_error(name, "this process is already one of %s ranks (WORLD_SIZE is set): remove -n",
                    lk_environment_get(NULL, "WORLD_SIZE"));
        *code = EXIT_USER_ERROR;
        return true;
    }
    if (environment_rank() >= 0) {
        print_error(name, "this process is already rank %d of a job that mpirun or srun started: remove -n",
                    environment_rank());
        *code = EXIT_USER_ERROR;
        return true;
    }
    char  **arguments = own_arguments(), *text = arguments ? arguments[0] : NULL;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    settings.threads = 1; /* it forks, so there must be no other thread */
    lk_status status = lk_context_create(&settings, &context);
    if (status < 0 || !arguments || length < 0) {
        print_error(name, "cannot start ranks: %s", status < 0 ? lk_status_text(status) : "/proc is not mounted");
        free(text);
        free(arguments);
        *code = EXIT_FAILED;
        return true;
    }
    arguments[0] = self;
    config.program = (const char *const *)arguments;
    config.plain = true;
    if (options_known(given, "device") && (*code = device_choose(name, given, &config.device)) != 0) goto done;
    if (options_known(given, "max-restarts")) config.max_restarts = (int)options_integer(given, "max-restarts");
    *code = count_ranks(name, context, given, &config.ranks);
    if (*code == 0 && (*code = check(given, config.ranks)) == 0) {
        setenv(started, "1", 1);
        status = lk_launch(context, &config, code);
    }
    if (status < 0) *code = report(name, context, status);
done:
    lk_context_free(context);
    free(text);
    free(arguments);
    return true;
}

int ranks_plan(setup *s, const char *name, const options *given)
{
    size_t    memory[LK_MEMORY_COUNT];
    lk_graph *graph = NULL;
    lk_plan  *plan = NULL;
    lk_status status = lk_trainer_plan(s->context, &s->config, &graph, &plan, memory);
    if (status >= 0) {
        host_memory all = host_memory_sum(s->context, &s->config, plan, memory);
        status = host_memory_check(s, &all);
    }
    lk_plan_free(plan);
    lk_graph_free(graph);
    if (status >= 0) return 0;
    int code = setup_report(s, name, status);
    if (options_known(given, "accumulate")) memory_advise(s, name, status); /* else its advice is of another command */
    return code;
}

int ranks_join(setup *s, const char *name, const options *given)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    lk_comm       *comm;
    const char    *backend = options_text(given, "backend");
    if (backend && strcmp(backend, "auto") != 0) config.backend = backend;
    if (options_known(given, "timeout")) config.timeout_ms = (int64_t)(options_number(given, "timeout") * 1000);
    if (options_known(given, "join-timeout") && options_number(given, "join-timeout") > 0)
        config.join_ms = (int64_t)(options_number(given, "join-timeout") * 1000);
    lk_status status = lk_comm_create(s->context, &config, &comm);
    if (status < 0) return report(name, s->context, status);
    if (lk_comm_size(comm) == 1) {
        lk_comm_free(comm);
        return 0;
    }
    s->config.comm = comm;
    return 0;
}

void ranks_abort(setup *s)
{
    if (!s->config.comm || lk_comm_status(s->config.comm) != LK_OK) return;
    const char *why = lk_context_error(s->context);
    lk_comm_abort(s->config.comm, why[0] ? why : "its options are invalid");
}

void ranks_leave(setup *s)
{
    lk_comm_free(s->config.comm);
    s->config.comm = NULL;
}

/* Ranks of a checkpoint's record that shared their state may be of another transport or device now: there it was a
 * choice for that machine, and is a demand only on the command line. The bits are the same. */
static void relax_recorded_state(setup *s, const char *name, const options *given)
{
    lk_trainer_config *config = &s->config;
    char               why[256];
    if (config->state != LK_STATE_SHARED || options_chosen(given, "state")) return;
    config->state = LK_STATE_AUTO;
    if (lk_trainer_state(s->context, config, why, sizeof why) == LK_STATE_SHARED) config->state = LK_STATE_SHARED;
    if (config->state == LK_STATE_AUTO && config->comm && lk_comm_rank(config->comm) == 0)
        print_note(name, "--state shared, which the checkpoint records, is not supported here; the state is %s", why);
}

int ranks_mesh(setup *s, const char *name, const options *given, int ranks)
{
    lk_trainer_config *config = &s->config;
    lk_mesh_config     mesh = LK_MESH_CONFIG_INIT;
    mesh.axes = options_find(given, "mesh");
    if (!mesh.axes || s->mesh) return 0;
    mesh.world = ranks;
    mesh.rank = config->comm ? lk_comm_rank(config->comm) : 0;
    lk_status status = lk_mesh_create(s->context, &mesh, &s->mesh);
    if (status < 0) return report_as(name, "--mesh: ", s->context, status);
    if (!config->comm) config->plan_world = lk_mesh_size(s->mesh);
    config->mesh = s->mesh;
    return 0;
}

/* Ranks that will be started with this transport: a plan for them must know it. */
static bool shares_no_memory(const options *given)
{
    const char  *backend = options_known(given, "backend") ? options_text(given, "backend") : "auto";
    lk_transport t = LK_TRANSPORT_INIT;
    for (int i = 0; lk_transport_at(i, &t) == LK_OK; i++)
        if (strcmp(t.name, backend) == 0) return !t.shares_memory;
    return false; /* auto */
}

static lk_state_mode state_mode_of(const options *given)
{
    const char *mode = options_text(given, "state");
    if (strcmp(mode, "shared") == 0) return LK_STATE_SHARED;
    return strcmp(mode, "replicated") == 0 ? LK_STATE_REPLICATED : LK_STATE_AUTO;
}

static void set_parallel(setup *s, const char *name, const options *given, bool reproducible)
{
    lk_trainer_config *config = &s->config;
    bool               layout = strcmp(options_text(given, "reproducible"), "layout") == 0;
    config->accumulate = (int)options_integer(given, "accumulate");
    config->state = state_mode_of(given);
    if (config->state == LK_STATE_AUTO && !config->comm && shares_no_memory(given)) config->state = LK_STATE_REPLICATED;
    relax_recorded_state(s, name, given);
    config->keep_cores = options_flag(given, "keep-cores");
    config->sync_batch_norm = options_flag(given, "sync-batchnorm");
    lk_dtype_parse(options_text(given, "gradient-dtype"), &config->gradient_dtype);
    config->leaves = reproducible ? (int)options_integer(given, "leaves") : 0;
    config->reproducible_layout = layout;
    config->sum_part_minimum = layout ? (int)options_integer(given, "sum-part-minimum") : 0;
    if (options_given(given, "bucket-mib"))
        config->bucket_bytes = (size_t)(options_number(given, "bucket-mib") * 1048576);
}

/* Options that exclude or require --reproducible. */
static int check_reproducible(const lk_trainer_config *config, const char *name, const options *given,
                              bool reproducible)
{
    if (config->gradient_dtype != LK_F32 && (reproducible || config->dtype == LK_F64)) {
        print_error(
            name, "--gradient-dtype %s %s; omit one of the two", lk_dtype_name(config->gradient_dtype),
            reproducible
                ? "rounds between ranks, so results would depend on the number of ranks, which --reproducible rules out"
                : "does not apply to --dtype f64");
        return EXIT_USER_ERROR;
    }
    if (options_given(given, "leaves") && !reproducible) {
        print_error(name, "--leaves requires --reproducible");
        return EXIT_USER_ERROR;
    }
    if (options_chosen(given, "sum-part-minimum") && !config->reproducible_layout) {
        print_error(name, "--sum-part-minimum requires --reproducible layout");
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* That each of the parts of the batch, and each micro-batch of it, has leaves. */
static int check_leaves(const lk_trainer_config *config, const char *name, int parts, const char *who)
{
    int most = config->leaves ? (config->leaves + parts - 1) / parts : 0; /* leaves of a rank */
    if (config->leaves && parts > config->leaves) {
        print_error(name,
                    "--reproducible with %d %s: the batch is divided into %d leaves, and every rank needs at least "
                    "one; start fewer ranks, or give --leaves %d or more",
                    parts, who, config->leaves, parts);
        return EXIT_USER_ERROR;
    }
    if (config->leaves && config->accumulate > most) {
        print_error(name,
                    "--accumulate %d with --reproducible: a micro-batch must consist of whole leaves, and with "
                    "--leaves %d a rank has at most %d; use --accumulate %d or less, or more --leaves",
                    config->accumulate, config->leaves, most, most);
        return EXIT_USER_ERROR;
    }
    return 0;
}

int ranks_make(setup *s, const char *name, const options *given)
{
    lk_trainer_config *config = &s->config;
    int world = config->comm ? lk_comm_size(config->comm) : config->plan_world > 1 ? config->plan_world : 1;
    int code = ranks_mesh(s, name, given, world);
    if (code == 0) code = mesh_options_make(s, name, given);
    if (code != 0) return code;
    int         parts = mesh_options_parts(s);
    const char *who = parts == world ? "ranks" : "ranks along data and shard"; /* that need something to do */
    bool        reproducible = strcmp(options_text(given, "reproducible"), "false") != 0;
    note_parallel(name, given);
    set_parallel(s, name, given, reproducible);
    if (parts > config->batch) {
        print_error(
            name,
            "--batch %lld for %d %s: every rank needs at least one sample of each batch; start fewer ranks, or give "
            "--batch %d or more",
            (long long)config->batch, parts, who, parts);
        return EXIT_USER_ERROR;
    }
    code = check_reproducible(config, name, given, reproducible);
    if (code == 0) code = check_leaves(config, name, parts, who);
    return code == 0 ? transformer_fit(&s->transformer, name, s->context, config) : code;
}

/* ", data 1 tensor 0": where the rank is along the axes of its mesh; "" with one axis. */
static void describe_place(const setup *s, int rank, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (unsigned axis = 1, several = 0; s->mesh && axis <= LK_AXES_ALL; axis <<= 1) {
        if (lk_mesh_extent(s->mesh, axis) == 1 || used >= size) continue;
        used += (size_t)snprintf(out + used, size - used, "%s%s %d", several++ ? " " : ", ",
                                 lk_axis_name((lk_axis)axis), lk_mesh_coordinate(s->mesh, axis, rank));
    }
    if (s->mesh && lk_mesh_extent(s->mesh, LK_AXIS_DATA) == lk_mesh_size(s->mesh)) out[0] = 0;
}

void ranks_describe(const setup *s, char *out, size_t size)
{
    char        place[96];
    cpu_set_t   set;
    lk_comm    *comm = s->config.comm;
    int         rank = comm ? lk_comm_rank(comm) : 0, world = comm ? lk_comm_size(comm) : 1;
    const char *device = lk_context_device(s->context);
    bool        host = lk_context_on_host(s->context); /* only its kernels use the instruction set */
    describe_place(s, rank, place, sizeof place);
    size_t used = (size_t)snprintf(out, size, "rank %d of %d%s (%s, pid %ld): %s%s%s, %d thread%s on core", rank, world,
                                   place, comm ? lk_comm_backend(comm) : "alone", (long)getpid(), device,
                                   host ? " " : "", host ? lk_context_isa(s->context) : "",
                                   lk_context_threads(s->context), lk_context_threads(s->context) == 1 ? "" : "s");
    bool   known = sched_getaffinity(0, sizeof set, &set) == 0;
    for (int i = 0, n = 0; known && i < CPU_SETSIZE && used + 64 < size; i++)
        if (CPU_ISSET(i, &set)) used += (size_t)snprintf(out + used, size - used, "%s%d", n++ ? "," : " ", i);
    char state[256];
    (void)lk_trainer_state(s->context, &s->config, state, sizeof state);
    snprintf(out + used, size - used, "; %lld of each batch of %lld; state %s", (long long)lk_trainer_share(&s->config),
             (long long)s->config.batch, state);
}
