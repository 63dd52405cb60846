/* run.c - `lockstep run`: starts the ranks of a job, as torchrun does, and reports how they ended. */
#include "command.h"
#include "run_hosts.h"

#include <lockstep/context.h>
#include <lockstep/environment.h>
#include <lockstep/launch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGUMENTS = 4 };

static const option run_options[] = {
    HEADING("Ranks"),
    TEXT_LETTER('n', "nproc-per-node", "N", "1", "auto|cpu|gpu",
                "Ranks on this host: a number, gpu (one per GPU), cpu (one per core), or auto (gpu if there are any, "
                "else cpu)"),
    FLAG("no-pin",
         "Do not pin ranks to cores (by default Lockstep's threads are pinned to the rank's share of the cores)"),
    CHOICE("numa-binding", "HOW", NULL, "node|socket|exclusive|core-complex",
           "Bind each rank to the cores of a NUMA node, a socket, a part of a node or a shared cache: with GPUs, those "
           "near the GPU whose index is the local rank; without GPUs, the ranks are distributed evenly"),
    FLAG("virtual-local-rank", "Set LOCAL_RANK to 0 for every rank, and list only its own GPU in CUDA_VISIBLE_DEVICES"),
    TEXT("role", "NAME", "default", "Set ROLE_NAME for the ranks"),
    FLAG_LETTER('m', "module", "PROGRAM is a Python module: python3 -m PROGRAM"),
    FLAG("no-python", "Start PROGRAM itself, even if its name ends in .py"),
    HEADING("Several hosts, the same command on each"),
    TEXT("nnodes", "N", "1", "Number of hosts"),
    INTEGER("node-rank", "N", NULL, 0, 1e6, "Index of this host; the ranks of all hosts join at host 0"),
    TEXT("master-addr", "ADDRESS", NULL, "Address of host 0 (default 127.0.0.1 for one host)"),
    INTEGER("master-port", "PORT", NULL, 0, 65535,
            "Port on which the ranks join (default 29500; for one host, and with 0, a free port, chosen again for each "
            "restart)"),
    TEXT("local-addr", "ADDRESS", NULL,
         "Address on which this host's ranks listen (default: the interface that routes to host 0)"),
    NUMBER("join-timeout", "SECONDS", NULL, 0.001, 1e7,
           "How long ranks wait for each other to join (default 600 between hosts, 30 on one)"),
    FLAG("standalone", "One host; the other options of this group are ignored"),
    CHOICE("rdzv-backend", "NAME", "static", "static|c10d", "Both mean the same here: host 0 is at --rdzv-endpoint"),
    TEXT("rdzv-endpoint", "HOST:PORT", NULL, "The same as --master-addr and --master-port"),
    TEXT("rdzv-conf", "KEY=VALUE,…", NULL,
         "join_timeout, timeout or read_timeout in seconds: like --join-timeout; rank: like --node-rank; is_host: true "
         "on host 0"),
    TEXT("rdzv-id", "ID", NULL, "Job id, for TORCHELASTIC_RUN_ID and for the directory name below --log-dir"),
    HEADING("Several hosts from one launcher"),
    TEXT("hosts", "LIST", NULL,
         "Start ranks on these hosts over ssh: a:2,b:2, or a,b for --nproc-per-node ranks on each; [::1]:2 for an IPv6 "
         "address"),
    TEXT("hostfile", "FILE", NULL,
         "Like --hosts, from a file: lines of `NAME`, `NAME:RANKS` or `NAME slots=RANKS`, # for comments"),
    TEXT("ssh", "COMMAND", "ssh -o BatchMode=yes", "Remote shell; called with the host's name and a command line"),
    TEXT("remote-command", "PATH", NULL, "Path to lockstep on those hosts (default: the same as here)"),
    FLAG("remote-launcher", "Used by --hosts: read the job specification from standard input, and stop when it ends"),
    HEADING("Output"),
    TEXT("log-dir", "DIR", NULL,
         "Also write each rank's output to DIR/ID_XXXXXX/attempt_N/LOCAL_RANK/stdout.log and stderr.log"),
    TEXT_LETTER(
        't', "tee", "WHICH", NULL, NULL,
        "Streams to show and also write to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1"),
    TEXT_LETTER('r', "redirects", "WHICH", NULL, NULL, "Streams to write to files only; values as for --tee"),
    TEXT("local-ranks-filter", "LIST", NULL, "Show only these local ranks, such as 0,2"),
    TEXT("log-line-prefix-template", "TEXT", NULL,
         "Prefix of each line instead of `[rank N] `, with ${rank}, ${local_rank}, ${role_name} and "
         "${hostname}"),
    TEXT("duplicate-stdout-filters", "LIST", NULL,
         "Also write lines of stdout that contain one of these strings to filtered_stdout.log: apple,orange; ,, is a "
         "comma"),
    TEXT("duplicate-stderr-filters", "LIST", NULL, "The same for stderr, in filtered_stderr.log"),
    HEADING("Failures, signals and debugging"),
    INTEGER("max-restarts", "N", "0", 0, 1e6, "Restart all ranks after a failure, at most N times"),
    NUMBER("grace", "SECONDS", "10", 0, 1e6, "Time from SIGTERM to SIGKILL when ranks are stopped"),
    NUMBER("shutdown-timeout", "SECONDS", NULL, 0, 1e6, "torchrun's name for --grace"),
    TEXT("signals-to-handle", "LIST", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
         "Signals that stop the job; ranks get the four default ones as SIGTERM, any other signal unchanged"),
    NUMBER("monitor-interval", "SECONDS", "0.1", 0.001, 1e6,
           "Time between updates of unfinished lines (progress bars) on a terminal; all other output and events are "
           "handled at once"),
    INTEGER("debug-rank", "N", NULL, 0, 1e6,
            "Give this rank the terminal, under --debugger; the others' output is still shown, and no rank times out"),
    TEXT("debugger", "COMMAND", "gdb --args",
         "Command that --debug-rank puts before the program; none: the program alone"),
    REFUSED("start-method",
            "ranks are always started by fork and exec; the option selects how Python starts functions"),
    REFUSED(
        "event-log-handler",
        "the option names a handler of Python's torch.distributed.elastic.events; --log-dir keeps the ranks' output"),
    REFUSED("logs-specs",
            "the option names a Python class; --log-dir, --tee, --redirects and the filters select what is logged"),
    REFUSED(
        "run-path",
        "this launcher has no Python interpreter to run a script in; without the option the script runs in python3"),
    OPTIONS_END,
};

static int user_error(const char *text)
{
    print_error("run", "%s", text);
    return EXIT_USER_ERROR;
}

static bool ends_in_py(const char *name)
{
    size_t length = strlen(name);
    return length > 3 && strcmp(name + length - 3, ".py") == 0;
}

/* The program and its arguments, with python3 before a script or a module. NULL: the error was printed. */
static const char **make_program(const options *given)
{
    const char **program = calloc((size_t)given->program_count + ARGUMENTS, sizeof *program);
    int          count = 0;
    bool         module = options_flag(given, "module"), plain = options_flag(given, "no-python");
    if (!program) {
        print_error("run", "out of memory");
        return NULL;
    }
    if (module || (!plain && ends_in_py(given->program[0]))) {
        if (!module && access(given->program[0], R_OK) != 0) {
            print_error("run", "%s: not found or not readable", given->program[0]);
            free(program);
            return NULL;
        }
        program[count++] = "python3";
        program[count++] = "-u"; /* unbuffered: lines appear when they are printed */
        if (module) program[count++] = "-m";
    }
    for (int i = 0; i < given->program_count; i++) program[count++] = given->program[i];
    return program;
}

/* The path of this command: remote hosts are assumed to have it at the same path. */
static const char *own_path(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length <= 0) return "lockstep";
    path[length] = 0;
    return path;
}

static int run_remote_launcher(void)
{
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    int               result = EXIT_FAILED;
    settings.threads = 1;
    lk_status status = lk_context_create(&settings, &context);
    if (status == LK_OK) status = lk_launch_remote(context, STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, &result);
    if (status < 0) result = report("run", context, status);
    lk_context_free(context);
    return result;
}

/* Time from SIGTERM to SIGKILL: --grace, or torchrun's names for it. */
static int read_grace(const options *given, lk_launch_config *config)
{
    const char *text = lk_environment_get(NULL, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    char       *end = NULL;
    config->grace = options_number(given, "grace");
    if (options_given(given, "grace") && options_given(given, "shutdown-timeout"))
        return user_error("--grace and --shutdown-timeout are the same option: give only one of them");
    if (options_given(given, "shutdown-timeout")) {
        config->grace = options_number(given, "shutdown-timeout");
    } else if (!options_given(given, "grace") && text && *text) {
        config->grace = strtod(text, &end);
        if (*end || !(config->grace >= 0 && config->grace <= 1e6))
            return user_error("TORCH_ELASTIC_SHUTDOWN_TIMEOUT in the environment is not a number of seconds");
    }
    return 0;
}

static void read_output_options(const options *given, lk_launch_config *config)
{
    config->log_dir = options_text(given, "log-dir");
    config->tee = options_text(given, "tee");
    config->redirects = options_text(given, "redirects");
    config->local_ranks_filter = options_text(given, "local-ranks-filter");
    config->line_prefix = options_text(given, "log-line-prefix-template");
    const char *template = lk_environment_get(NULL, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (!config->line_prefix && template && *template) config->line_prefix = template;
    config->stdout_filters = options_text(given, "duplicate-stdout-filters");
    config->stderr_filters = options_text(given, "duplicate-stderr-filters");
}

static void read_other_options(const options *given, lk_launch_config *config)
{
    config->ssh = options_text(given, "ssh");
    config->no_pin = options_flag(given, "no-pin");
    config->numa_binding = options_text(given, "numa-binding");
    config->virtual_local_rank = options_flag(given, "virtual-local-rank");
    config->role = options_text(given, "role");
    config->run_id = options_text(given, "rdzv-id");
    config->max_restarts = (int)options_integer(given, "max-restarts");
    config->signals = options_text(given, "signals-to-handle");
    if (options_given(given, "debug-rank")) config->debug_rank = (int)options_integer(given, "debug-rank");
    config->debugger = strcmp(options_text(given, "debugger"), "none") == 0 ? "" : options_text(given, "debugger");
    config->monitor_interval = options_number(given, "monitor-interval");
}

static int launch(const options *given)
{
    lk_launch_config  config = LK_LAUNCH_CONFIG_INIT;
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    const char      **program = NULL;
    char             *host = NULL, *hosts = NULL, path[4096];
    if (options_flag(given, "module") && options_flag(given, "no-python"))
        return user_error("-m and --no-python are mutually exclusive: a module needs Python");
    if (!given->program_count)
        return user_error("no program given: expected lockstep run [OPTIONS] PROGRAM [ARGUMENTS]");
    settings.threads = 1; /* it forks, so there must be no other thread */
    lk_status status = lk_context_create(&settings, &context);
    if (status < 0) return report("run", NULL, status);
    const char *endpoint = options_text(given, "rdzv-endpoint");
    host = malloc(endpoint ? strlen(endpoint) + 1 : 1);
    int result = host ? run_read_hosts(given, &config, host) : EXIT_FAILED;
    if (result == 0) result = read_grace(given, &config);
    program = result ? NULL : make_program(given);
    if (!program) {
        if (!result) result = EXIT_USER_ERROR;
        goto done;
    }
    if (options_given(given, "hosts") && options_given(given, "hostfile")) {
        result = user_error("--hosts and --hostfile are mutually exclusive");
        goto done;
    }
    if (options_given(given, "hostfile") && !(hosts = run_read_hostfile(options_text(given, "hostfile")))) {
        result = EXIT_USER_ERROR;
        goto done;
    }
    config.program = program;
    config.hosts = hosts ? hosts : options_text(given, "hosts");
    config.remote_command =
        options_given(given, "remote-command") ? options_text(given, "remote-command") : own_path(path, sizeof path);
    read_output_options(given, &config);
    read_other_options(given, &config);
    status = lk_launch_count(context, options_text(given, "nproc-per-node"), &config.ranks);
    if (status == LK_OK) status = lk_launch(context, &config, &result);
    if (status < 0) result = report("run", context, status);
done:
    free(program);
    free(host);
    free(hosts);
    lk_context_free(context);
    return result;
}

static int run_run(const options *given)
{
    options own = *given;
    if (options_flag(given, "remote-launcher")) return run_remote_launcher();
    if (options_parse_environment(&own, "PET_")) return launch(&own);
    return user_error(own.error);
}

const command command_run = {
    "run",
    "start a program on several ranks and report how they end",
    "Starts PROGRAM once for each rank with torchrun's options and environment (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT and the rest). PROGRAM may be any program; one whose name ends in .py is started with "
    "python3. Output is shown in whole lines, each with the prefix [rank N].\n\n"
    "When a rank fails, the others are stopped, and the exit status is that of the rank that failed first (128 + the "
    "signal number if it was killed by a signal; 1 if it stopped responding but did not exit). Ctrl-C stops the ranks; "
    "a second Ctrl-C kills them. No process of the job outlives the launcher, even if the launcher is killed.\n\n"
    "Every option can also be set in the environment, as with torchrun: --nnodes as PET_NNODES, a flag as 0 or 1; the "
    "command line takes precedence.\n\n"
    "Example: lockstep run -n 2 train.py --epochs 3",
    "PROGRAM [ARGUMENTS]",
    0,
    PROGRAM_FOLLOWS,
    run_options,
    run_run,
};
