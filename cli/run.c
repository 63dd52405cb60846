/* run.c - `lockstep run`: starts the ranks of a job, as torchrun does, and says how they ended. */
#include "command.h"

#include <errno.h>
#include <lockstep/context.h>
#include <lockstep/launch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGUMENTS = 4, DEFAULT_PORT = 29500, DEFAULT_RENDEZVOUS_PORT = 29400 };

static const option run_options[] = {
    HEADING("Ranks"),
    TEXT_LETTER(
        'n', "nproc-per-node", "N", "1",
        "Ranks on this host: a number, gpu (one a GPU), cpu (one a core), or auto (gpu where there are any, else cpu)"),
    FLAG("no-pin", "Do not pin ranks to cores; each gets its share of them otherwise"),
    TEXT("role", "NAME", "default", "ROLE_NAME of the ranks"),
    FLAG_LETTER('m', "module", "PROGRAM is a Python module: python3 -m PROGRAM"),
    FLAG("no-python", "Start PROGRAM itself, also when its name ends in .py"),
    HEADING("Several hosts, the same command on each"),
    TEXT("nnodes", "N", "1", "How many hosts"),
    INTEGER("node-rank", "N", NULL, 0, 1e6, "Which of them this is; 0 is the one that the others meet at"),
    TEXT("master-addr", "ADDRESS", NULL, "Address of host 0 (default 127.0.0.1 for one host)"),
    INTEGER("master-port", "PORT", NULL, 1, 65535,
            "Port that the ranks meet at (default 29500; for one host a free one, new for each restart)"),
    FLAG("standalone", "One host, whatever the other options of this part say"),
    CHOICE("rdzv-backend", "NAME", "static", "static|c10d", "Both mean the same here: node 0 is at --rdzv-endpoint"),
    TEXT("rdzv-endpoint", "HOST:PORT", NULL, "The same as --master-addr and --master-port"),
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
    HEADING("When something fails"),
    INTEGER("max-restarts", "N", "0", 0, 1e6, "Start all ranks again after a failure, at most so often"),
    NUMBER("grace", "SECONDS", "10", 0, 1e6, "From SIGTERM to SIGKILL for ranks that must stop"),
    NUMBER("monitor-interval", "SECONDS", "0.1", 0.001, 1e6,
           "Between looks at unfinished lines (progress bars) on a terminal; all else is noticed at once"),
    INTEGER("debug-rank", "N", NULL, 0, 1e6,
            "Give this rank the terminal, under --debugger; the others' output goes on, and no rank gives up waiting"),
    TEXT("debugger", "COMMAND", "gdb --args",
         "What --debug-rank starts, with the program after it; none: the program alone"),
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

/* HOST:PORT or HOST, [IPv6]:PORT; the port may be missing or 0. host has room for all of text. */
static bool split_endpoint(const char *text, char *host, int *port)
{
    strcpy(host, text);
    *port = 0;
    char *colon = strrchr(host, ':');
    if (host[0] == '[') {
        char *close = strchr(host, ']');
        if (!close || (close[1] && close[1] != ':')) return false;
        colon = close[1] ? close + 1 : NULL;
        *close = 0;
        memmove(host, host + 1, strlen(host));
    } else if (colon && strchr(host, ':') != colon) {
        colon = NULL; /* an IPv6 address alone */
    }
    if (colon) {
        char *end;
        long  number = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || number < 0 || number > 65535) return false;
        *port = (int)number;
        *colon = 0;
    }
    return *host != 0;
}

/* Several hosts: who is which, and where they meet. 0, or the exit status after saying what is wrong. */
static int place(const options *given, lk_launch_config *config, char *host)
{
    const char *nodes = options_text(given, "nnodes"), *endpoint = options_text(given, "rdzv-endpoint");
    char       *end;
    if (options_flag(given, "standalone")) return 0;
    long count = strtol(nodes, &end, 10);
    if (*end == ':' && strtol(end + 1, NULL, 10) != count)
        return mistake("--nnodes MIN:MAX: the number of hosts cannot change while a job runs; give one number");
    if (end == nodes || (*end && *end != ':') || count < 1 || count > 100000)
        return mistake("--nnodes: give the number of hosts");
    config->nodes = (int)count;
    if (config->nodes == 1 && options_integer(given, "node-rank") != 0)
        return mistake("--node-rank: with one host it can only be 0");
    if (endpoint) {
        if (!split_endpoint(endpoint, host, &config->master_port))
            return mistake("--rdzv-endpoint: expected HOST:PORT");
        if (config->nodes > 1 || config->master_port) config->master_address = host;
        if (!config->master_port && config->nodes > 1) config->master_port = DEFAULT_RENDEZVOUS_PORT;
    }
    if (options_given(given, "master-addr")) config->master_address = options_text(given, "master-addr");
    if (options_given(given, "master-port")) config->master_port = (int)options_integer(given, "master-port");
    if (config->nodes == 1) return 0;
    if (!options_given(given, "node-rank"))
        return mistake("several hosts need --node-rank on each, with every --rdzv-backend: 0 on the one that "
                       "--rdzv-endpoint or --master-addr names");
    if (!config->master_address)
        return mistake("several hosts need --master-addr or --rdzv-endpoint: the address of node 0");
    if (!config->master_port) config->master_port = DEFAULT_PORT;
    config->node = (int)options_integer(given, "node-rank");
    if (config->node >= config->nodes) return mistake("--node-rank: counts from 0, so it must be less than --nnodes");
    if (options_integer(given, "max-restarts"))
        return mistake("--max-restarts: a restart needs all hosts to agree, and each launcher knows only its own "
                       "ranks; not with several --nnodes");
    return 0;
}

/* The hosts of a file as --hosts would name them; NULL after saying what is wrong. */
static char *read_hostfile(const char *path)
{
    FILE  *file = fopen(path, "re");
    char  *list = NULL, line[512], name[256];
    size_t used = 0;
    int    number = 0;
    if (!file) complain("run", "%s: cannot open: %s", path, strerror(errno));
    while (file && fgets(line, sizeof line, file)) {
        char slots[32] = "";
        number++;
        line[strcspn(line, "#\r\n")] = 0;
        int words = sscanf(line, " %255s slots=%31[0-9]", name, slots);
        if (words < 1) continue;
        char *more = strchr(name, ',') ? NULL : realloc(list, used + strlen(name) + strlen(slots) + 3);
        if (!more) {
            complain("run", "%s:%d: expected NAME, NAME:RANKS or NAME slots=RANKS", path, number);
            free(list);
            fclose(file);
            return NULL;
        }
        list = more;
        used += (size_t)sprintf(list + used, "%s%s%s%s", used ? "," : "", name, *slots ? ":" : "", slots);
    }
    if (file) fclose(file);
    if (file && !list) complain("run", "%s: names no host", path);
    return list;
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

static int run(const options *given)
{
    lk_launch_config  config = LK_LAUNCH_CONFIG_INIT;
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    const char      **program = NULL;
    char             *host = NULL, *hosts = NULL, path[4096];
    if (options_flag(given, "far-end")) return run_far_end();
    if (options_flag(given, "module") && options_flag(given, "no-python"))
        return mistake("-m and --no-python: a module needs Python to run it; one of them");
    if (!given->program_count) return mistake("what shall run? expected: lockstep run [OPTIONS] PROGRAM [ARGUMENTS]");
    settings.threads = 1; /* it forks, so there must be no other thread */
    lk_status status = lk_context_create(&settings, &context);
    if (status < 0) return report("run", NULL, status);
    const char *endpoint = options_text(given, "rdzv-endpoint");
    host = malloc(endpoint ? strlen(endpoint) + 1 : 1);
    int result = host ? place(given, &config, host) : EXIT_FAILED;
    program = result ? NULL : make_program(given);
    if (!program) {
        if (!result) result = EXIT_MISTAKE;
        goto done;
    }
    if (options_given(given, "hosts") && options_given(given, "hostfile")) {
        result = mistake("--hosts and --hostfile: one of them");
        goto done;
    }
    if (options_given(given, "hostfile") && !(hosts = read_hostfile(options_text(given, "hostfile")))) {
        result = EXIT_MISTAKE;
        goto done;
    }
    config.program = program;
    config.hosts = hosts ? hosts : options_text(given, "hosts");
    config.ssh = options_text(given, "ssh");
    config.remote_command =
        options_given(given, "remote-command") ? options_text(given, "remote-command") : own_path(path, sizeof path);
    config.no_pin = options_flag(given, "no-pin");
    config.role = options_text(given, "role");
    config.run_id = options_text(given, "rdzv-id");
    config.log_dir = options_text(given, "log-dir");
    config.tee = options_text(given, "tee");
    config.redirects = options_text(given, "redirects");
    config.local_ranks_filter = options_text(given, "local-ranks-filter");
    config.max_restarts = (int)options_integer(given, "max-restarts");
    config.grace = options_number(given, "grace");
    if (options_given(given, "debug-rank")) config.debug_rank = (int)options_integer(given, "debug-rank");
    config.debugger = strcmp(options_text(given, "debugger"), "none") == 0 ? "" : options_text(given, "debugger");
    config.monitor_interval = options_number(given, "monitor-interval");
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

const command command_run = {
    "run",
    "start a program on several ranks, watch them, explain how they ended",
    "Starts PROGRAM once for each rank with torchrun's options and environment (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT and the rest). "
    "It may be any program; one that ends in .py is started with python3. Lines are shown whole, with [rank N] before "
    "each.\n\n"
    "When a rank fails, the others are stopped, and the exit status is that of the rank that failed first (128 + the "
    "signal's number where a "
    "signal ended it). Ctrl-C asks the ranks to stop; a second one kills them. No process of the job survives it, also "
    "when "
    "the launcher itself is killed.\n\nExample: lockstep run -n 2 train.py --epochs 3",
    "PROGRAM [ARGUMENTS]",
    0,
    PROGRAM_FOLLOWS,
    run_options,
    run,
};
