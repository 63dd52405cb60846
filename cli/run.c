/* run.c - `lockstep run`: starts the ranks of a job, as torchrun does, and says how they ended. */
#include "command.h"
#include "run_hosts.h"

#include <lockstep/context.h>
#include <lockstep/launch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGUMENTS = 4 };

static const option run_options[] = {
    HEADING("Ranks"),
    TEXT_LETTER(
        'n', "nproc-per-node", "N", "1",
        "Ranks on this host: a number, gpu (one a GPU), cpu (one a core), or auto (gpu where there are any, else cpu)"),
    FLAG("no-pin", "Do not pin ranks to cores; each gets its share of them otherwise"),
    CHOICE("numa-binding", "HOW", NULL, "node|socket|exclusive|core-complex",
           "Bind ranks to the cores of a memory node, a socket, a part of a node or a shared cache instead: those of "
           "the GPU with the "
           "rank's local number, or spread evenly"),
    FLAG("virtual-local-rank", "LOCAL_RANK is 0 for every rank, and CUDA_VISIBLE_DEVICES names its own GPU alone"),
    TEXT("role", "NAME", "default", "ROLE_NAME of the ranks"),
    FLAG_LETTER('m', "module", "PROGRAM is a Python module: python3 -m PROGRAM"),
    FLAG("no-python", "Start PROGRAM itself, also when its name ends in .py"),
    HEADING("Several hosts, the same command on each"),
    TEXT("nnodes", "N", "1", "How many hosts"),
    INTEGER("node-rank", "N", NULL, 0, 1e6, "Which of them this is; 0 is the one that the others meet at"),
    TEXT("master-addr", "ADDRESS", NULL, "Address of host 0 (default 127.0.0.1 for one host)"),
    INTEGER("master-port", "PORT", NULL, 0, 65535,
            "Port that the ranks meet at (default 29500; for one host, and with 0, a free one, new for each restart)"),
    TEXT("local-addr", "ADDRESS", NULL,
         "Address of this host at which its ranks are reached (default: that of the interface which leads to host 0)"),
    NUMBER("join-timeout", "SECONDS", NULL, 0.001, 1e7,
           "How long ranks wait for each other to join (default 600 between hosts, 30 on one)"),
    FLAG("standalone", "One host, whatever the other options of this part say"),
    CHOICE("rdzv-backend", "NAME", "static", "static|c10d", "Both mean the same here: node 0 is at --rdzv-endpoint"),
    TEXT("rdzv-endpoint", "HOST:PORT", NULL, "The same as --master-addr and --master-port"),
    TEXT("rdzv-conf", "KEY=VALUE,…", NULL,
         "join_timeout, timeout or read_timeout in seconds: as --join-timeout; rank: as --node-rank; is_host: whether "
         "this is host 0"),
    TEXT("rdzv-id", "ID", NULL, "TORCHELASTIC_RUN_ID, and the name of the directory below --log-dir"),
    HEADING("Several hosts from one place"),
    TEXT("hosts", "LIST", NULL,
         "Start ranks on these hosts over ssh: a:2,b:2, or a,b for --nproc-per-node each; [::1]:2 for an IPv6 address"),
    TEXT("hostfile", "FILE", NULL,
         "The same from a file: lines of `NAME`, `NAME:RANKS` or `NAME slots=RANKS`, # for comments"),
    TEXT("ssh", "COMMAND", "ssh -o BatchMode=yes", "What reaches a host: gets its name and a command line"),
    TEXT("remote-command", "PATH", NULL, "Where lockstep is on those hosts (default: where it is here)"),
    FLAG("far-end", "What --hosts starts there: reads what to run from standard input and stops with it"),
    HEADING("Output"),
    TEXT("log-dir", "DIR", NULL,
         "Also write each rank's output to DIR/ID_XXXXXX/attempt_N/LOCAL_RANK/stdout.log and stderr.log"),
    TEXT_LETTER('t', "tee", "WHICH", NULL,
                "Show and write to files: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1"),
    TEXT_LETTER('r', "redirects", "WHICH", NULL, "Write to files and do not show; as --tee"),
    TEXT("local-ranks-filter", "LIST", NULL, "Show only these local ranks: 0,2"),
    TEXT("log-line-prefix-template", "TEXT", NULL,
         "What stands before each line instead of `[rank N] `, with ${rank}, ${local_rank}, ${role_name} and "
         "${hostname}"),
    TEXT("duplicate-stdout-filters", "LIST", NULL,
         "Also write lines of stdout that hold one of these words to filtered_stdout.log: apple,orange; ,, stands for "
         "a comma"),
    TEXT("duplicate-stderr-filters", "LIST", NULL, "The same of stderr, to filtered_stderr.log"),
    HEADING("When something fails"),
    INTEGER("max-restarts", "N", "0", 0, 1e6, "Start all ranks again after a failure, at most so often"),
    NUMBER("grace", "SECONDS", "10", 0, 1e6, "From SIGTERM to SIGKILL for ranks that must stop"),
    NUMBER("shutdown-timeout", "SECONDS", NULL, 0, 1e6, "The same as --grace, by torchrun's name"),
    TEXT("signals-to-handle", "LIST", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
         "Signals that stop the job; others than these four reach the ranks as themselves, these as SIGTERM"),
    NUMBER("monitor-interval", "SECONDS", "0.1", 0.001, 1e6,
           "Between looks at unfinished lines (progress bars) on a terminal; all else is noticed at once"),
    INTEGER("debug-rank", "N", NULL, 0, 1e6,
            "Give this rank the terminal, under --debugger; the others' output goes on, and no rank gives up waiting"),
    TEXT("debugger", "COMMAND", "gdb --args",
         "What --debug-rank starts, with the program after it; none: the program alone"),
    REFUSED("start-method", "ranks are always started by fork and exec; it says how Python would start functions"),
    REFUSED("event-log-handler",
            "it names a handler inside Python's torch.distributed.elastic.events; --log-dir keeps what ranks print"),
    REFUSED("logs-specs",
            "it names a Python class; --log-dir, --tee, --redirects and the filters choose what is logged"),
    REFUSED(
        "run-path",
        "there is no Python interpreter in this launcher to run a script in; without it the script runs in python3"),
    OPTIONS_END,
};

static int mistake(const char *what)
{
    complain("run", "%s", what);
    return EXIT_MISTAKE;
}

static bool ends_in_py(const char *name)
{
    size_t length = strlen(name);
    return length > 3 && strcmp(name + length - 3, ".py") == 0;
}

/* The program's own words, with python3 before them where it is a script or a module. NULL: said why not. */
static const char **make_program(const options *given)
{
    const char **program = calloc((size_t)given->program_count + ARGUMENTS, sizeof *program);
    int          count = 0;
    bool         module = options_flag(given, "module"), plain = options_flag(given, "no-python");
    if (!program) {
        complain("run", "no memory");
        return NULL;
    }
    if (module || (!plain && ends_in_py(given->program[0]))) {
        if (!module && access(given->program[0], R_OK) != 0) {
            complain("run", "%s: there is no such script, or it cannot be read", given->program[0]);
            free(program);
            return NULL;
        }
        program[count++] = "python3";
        program[count++] = "-u"; /* lines come when they are printed */
        if (module) program[count++] = "-m";
    }
    for (int i = 0; i < given->program_count; i++) program[count++] = given->program[i];
    return program;
}

/* Where this command is: the far hosts are taken to have it in the same place. */
static const char *own_path(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length <= 0) return "lockstep";
    path[length] = 0;
    return path;
}

static int run_far_end(void)
{
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    int               result = EXIT_FAILED;
    settings.threads = 1;
    lk_status status = lk_context_create(&settings, &context);
    if (status == LK_OK) status = lk_launch_far_end(context, STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, &result);
    if (status < 0) result = report("run", context, status);
    lk_context_free(context);
    return result;
}

/* From SIGTERM to SIGKILL: --grace, or what torchrun calls it. */
static int choose_grace(const options *given, lk_launch_config *config)
{
    const char *text = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    char       *end = NULL;
    config->grace = options_number(given, "grace");
    if (options_given(given, "grace") && options_given(given, "shutdown-timeout"))
        return mistake("--grace and --shutdown-timeout are the same: one of them");
    if (options_given(given, "shutdown-timeout")) {
        config->grace = options_number(given, "shutdown-timeout");
    } else if (!options_given(given, "grace") && text && *text) {
        config->grace = strtod(text, &end);
        if (*end || !(config->grace >= 0 && config->grace <= 1e6))
            return mistake("TORCH_ELASTIC_SHUTDOWN_TIMEOUT in the environment is no number of seconds");
    }
    return 0;
}

static void choose_output(const options *given, lk_launch_config *config)
{
    config->log_dir = options_text(given, "log-dir");
    config->tee = options_text(given, "tee");
    config->redirects = options_text(given, "redirects");
    config->local_ranks_filter = options_text(given, "local-ranks-filter");
    config->line_prefix = options_text(given, "log-line-prefix-template");
    const char *template = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (!config->line_prefix && template && *template) config->line_prefix = template;
    config->stdout_filters = options_text(given, "duplicate-stdout-filters");
    config->stderr_filters = options_text(given, "duplicate-stderr-filters");
}

static void choose_rest(const options *given, lk_launch_config *config)
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

static int run_with(const options *given)
{
    lk_launch_config  config = LK_LAUNCH_CONFIG_INIT;
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    const char      **program = NULL;
    char             *host = NULL, *hosts = NULL, path[4096];
    if (options_flag(given, "module") && options_flag(given, "no-python"))
        return mistake("-m and --no-python: a module needs Python to run it; one of them");
    if (!given->program_count) return mistake("what shall run? expected: lockstep run [OPTIONS] PROGRAM [ARGUMENTS]");
    settings.threads = 1; /* it forks, so there must be no other thread */
    lk_status status = lk_context_create(&settings, &context);
    if (status < 0) return report("run", NULL, status);
    const char *endpoint = options_text(given, "rdzv-endpoint");
    host = malloc(endpoint ? strlen(endpoint) + 1 : 1);
    int result = host ? run_place(given, &config, host) : EXIT_FAILED;
    if (result == 0) result = choose_grace(given, &config);
    program = result ? NULL : make_program(given);
    if (!program) {
        if (!result) result = EXIT_MISTAKE;
        goto done;
    }
    if (options_given(given, "hosts") && options_given(given, "hostfile")) {
        result = mistake("--hosts and --hostfile: one of them");
        goto done;
    }
    if (options_given(given, "hostfile") && !(hosts = run_read_hostfile(options_text(given, "hostfile")))) {
        result = EXIT_MISTAKE;
        goto done;
    }
    config.program = program;
    config.hosts = hosts ? hosts : options_text(given, "hosts");
    config.remote_command =
        options_given(given, "remote-command") ? options_text(given, "remote-command") : own_path(path, sizeof path);
    choose_output(given, &config);
    choose_rest(given, &config);
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

static int run(const options *given)
{
    options own = *given;
    if (options_flag(given, "far-end")) return run_far_end();
    if (options_parse_environment(&own, "PET_")) return run_with(&own);
    return mistake(own.error);
}

const command command_run = {
    "run",
    "start a program on several ranks, watch them, explain how they ended",
    "Starts PROGRAM once for each rank with torchrun's options and environment (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT and the rest). "
    "It may be any program; one that ends in .py is started with python3. Lines are shown whole, with [rank N] before "
    "each.\n\n"
    "When a rank fails, the others are stopped, and the exit status is that of the rank that failed first (128 + the "
    "signal's number where a "
    "signal ended it; 1 where it stopped answering and had not ended). Ctrl-C asks the ranks to stop; a second one "
    "kills them. No process of the job survives it, also "
    "when "
    "the launcher itself is killed.\n\n"
    "Every option may also come from the environment, as torchrun's do: --nnodes from PET_NNODES, a flag as 0 or 1; "
    "the "
    "command line wins.\n\nExample: lockstep run -n 2 train.py --epochs 3",
    "PROGRAM [ARGUMENTS]",
    0,
    PROGRAM_FOLLOWS,
    run_options,
    run,
};
