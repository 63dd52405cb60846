/* test_spawn.c - lk_spawn in a process with other settings for its children (SIGCHLD ignored, SA_NOCLDWAIT, a handler),
 * and in a rank of `lockstep run`. */
/* ctest: timeout 60, ranks 3 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <lockstep.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int return_code(int rank, void *user) { return rank == 1 ? *(int *)user : 0; }

/* In a rank: whether SIGCHLD has the caller's action. */
static int check_sigchld_action(int rank, void *user)
{
    struct sigaction now;
    (void)rank;
    if (sigaction(SIGCHLD, NULL, &now) < 0) return 2;
    return now.sa_handler == ((struct sigaction *)user)->sa_handler ? 0 : 3;
}

static void on_child_end(int signal) { (void)signal; }

static void spawn_works_with_any_sigchld_action(void)
{
    struct sigaction actions[] = {{.sa_handler = SIG_DFL},
                                  {.sa_handler = SIG_IGN},
                                  {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT},
                                  {.sa_handler = on_child_end, .sa_flags = SA_NOCLDWAIT},
                                  {.sa_handler = on_child_end}};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        lk_spawn_result  result;
        struct sigaction after;
        int              good = 0, bad = 7;
        REQUIRE(sigaction(SIGCHLD, &actions[i], NULL) == 0);
        alarm(20); /* ends it if it would wait without limit */
        CHECK(lk_spawn(2, return_code, &good, &result) == LK_OK && result.rank == -1, "action %zu: %s", i, result.text);
        CHECK(lk_spawn(2, return_code, &bad, &result) == LK_ECANCELED && result.rank == 1 && result.exit_code == 7,
              "action %zu: %s", i, result.text);
        CHECK(lk_spawn(2, check_sigchld_action, &actions[i], &result) == LK_OK, "action %zu: %s", i, result.text);
        alarm(0);
        REQUIRE(sigaction(SIGCHLD, NULL, &after) == 0);
        CHECK(after.sa_handler == actions[i].sa_handler && (after.sa_flags & SA_NOCLDWAIT) == actions[i].sa_flags,
              "action %zu is another one afterwards: flags %x", i, (unsigned)after.sa_flags);
    }
    signal(SIGCHLD, SIG_DFL);
}

/* A child that ends during lk_spawn, and that the caller never waits for, does not stay a zombie. */
static void children_that_are_not_waited_for_are_reaped(void)
{
    int good = 0;
    signal(SIGCHLD, SIG_IGN);
    pid_t own = fork();
    REQUIRE(own >= 0);
    if (own == 0) {
        usleep(50000);
        _exit(0);
    }
    time_t last = time(NULL) + 20; /* the child ends much earlier, amid a spawn or between two */
    while (kill(own, 0) == 0 && time(NULL) < last) CHECK(lk_spawn(1, return_code, &good, NULL) == LK_OK);
    CHECK(kill(own, 0) < 0 && errno == ESRCH, "pid %d still exists", (int)own);
    signal(SIGCHLD, SIG_DFL);
}

static void a_status_beyond_eight_bits_is_a_failure(void)
{
    int codes[] = {256, 512, -1, -256, 255, 1 << 30};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        lk_spawn_result result;
        CHECK(lk_spawn(2, return_code, &codes[i], &result) == LK_ECANCELED && result.rank == 1 &&
                  result.exit_code == 255,
              "%d: %d, %s", codes[i], result.exit_code, result.text);
    }
}

/* The second of two inner ranks dies or never arrives; its peer waits for it, fails and records why. */
static int wait_for_inner_rank_1(int rank, void *user)
{
    const char       *how = user;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    config.threads = 1;
    comm_config.timeout_ms = strcmp(how, "late") == 0 ? 300 : 30000;
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 9;
    if (rank == 1 && strcmp(how, "dies") == 0) raise(SIGKILL);
    if (rank == 1) pause();
    return lk_comm_barrier(comm, NULL) < 0 ? 4 : 0;
}

/* A rank of the job below. Rank 1 takes no part in the inner one: it ends when the launcher stops it. */
static int run_outer_rank(char *how)
{
    const char *rank = getenv("RANK");
    if (!rank || strcmp(rank, "0") != 0) pause();
    return lk_spawn(2, wait_for_inner_rank_1, how, NULL) < 0 ? 5 : 0;
}

/* The launcher names its own rank that failed, not the one with the number of an inner rank. */
static void a_failure_of_inner_ranks_is_one_of_the_rank_that_started_them(void)
{
    static const char *const ways[] = {"dies", "late"};
    for (int i = 0; i < 2; i++) {
        char command[1024], line[512], printed[8192] = "";
        snprintf(command, sizeof command, "'%s' run -n 2 '/proc/%d/exe' %s 2>&1", LK_COMMAND, (int)getpid(), ways[i]);
        FILE *output = popen(command, "r");
        REQUIRE(output);
        while (fgets(line, sizeof line, output))
            if (strlen(printed) + strlen(line) < sizeof printed) strcat(printed, line);
        int status = pclose(output);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5 &&
                  strstr(printed, "lockstep run: rank 0 failed first: exit code 5") && !strstr(printed, "run: rank 1"),
              "inner rank 1 %s: exit status %x: %s", ways[i], status, printed);
    }
}

int main(int count, char **arguments)
{
    if (count > 1) return run_outer_rank(arguments[1]);
    RUN(a_failure_of_inner_ranks_is_one_of_the_rank_that_started_them);
    RUN(spawn_works_with_any_sigchld_action);
    RUN(children_that_are_not_waited_for_are_reaped);
    RUN(a_status_beyond_eight_bits_is_a_failure);
    return check_result();
}
