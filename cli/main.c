/* main.c - the lockstep command: finds the subcommand, parses its options, runs it. */
#include "command.h"
#include "environment.h"

#include <errno.h>
#include <fcntl.h>
#include <lockstep/base.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int run_command(const command *c, int argc, char **argv)
{
    static options given;
    int            status = EXIT_USER_ERROR;
    bool           starts = c->most == PROGRAM_FOLLOWS;
    if (!(starts ? options_parse_program : options_parse)(&given, c->options, argc, argv)) {
        print_error(c->name, "%s", given.error);
    } else if (given.help) {
        command_show_help(c);
        status = 0;
    } else if (!starts && given.operand_count > c->most) {
        print_error(c->name, "unexpected argument '%s'", given.operands[c->most]);
    } else if (given.operand_count < c->least) {
        print_error(c->name, "missing argument; expected: lockstep %s %s", c->name, c->operands);
    } else {
        status = environment_check(c->name);
        if (status == 0) status = c->run(&given);
    }
    options_free(&given);
    return status;
}

static int unknown_command(const char *name)
{
    const char *names[64];
    int         count = 0;
    for (; commands[count] && count < 63; count++) names[count] = commands[count]->name;
    names[count] = NULL;
    const char *suggestion = suggest_word(name, names);
    if (suggestion)
        print_error(NULL, "unknown command '%s'; did you mean '%s'?", name, suggestion);
    else
        print_error(NULL, "unknown command '%s'; `lockstep help` lists them", name);
    return EXIT_USER_ERROR;
}

/* If the parent process closed a standard descriptor, the next file, pipe or socket would get its number and receive
 * our output. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(EXIT_FAILED);
}

static void ignore_signal(int number) { (void)number; }

/* glibc reserves 64 MiB of address space for the heap of each new thread. Where that is limited (ulimit -v), threads
 * share one heap. */
static void limit_heaps(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1);
#endif
}

int main(int argc, char **argv)
{
    int status = 0;
    fill_standard_descriptors();
    limit_heaps();
    /* A file beyond the limit (ulimit -f) is an error of write. A handler: programs that are started do not inherit
     * it. */
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = ignore_signal}, NULL);
    if (argc < 2) {
        commands_print_help(stderr);
        return EXIT_USER_ERROR;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("lockstep %s\n", lk_version());
    } else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        command_show_help(NULL);
    } else {
        const command *c = command_find(name);
        status = c ? run_command(c, argc - 1, argv + 1) : unknown_command(name);
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) { /* a result that could not be written is a failure */
        print_error(NULL, "cannot write to standard output: %s", strerror(errno));
        status = EXIT_FAILED;
    }
    return status;
}
