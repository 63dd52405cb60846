/* test_spawn.c - lk_spawn in a process with other settings for its children: SIGCHLD ignored, SA_NOCLDWAIT, a
 * handler. */
/* ctest: timeout 60, ranks 2 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <lockstep/comm.h>
#include <signal.h>
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

int main(void)
{
    RUN(spawn_works_with_any_sigchld_action);
    RUN(children_that_are_not_waited_for_are_reaped);
    RUN(a_status_beyond_eight_bits_is_a_failure);
    return check_result();
}
