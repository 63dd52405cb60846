/* test_launch_threads.c - a launcher in a process with other threads, which receive signals that the launcher's own
 * thread blocks. CUDA's driver starts such threads. */
/* ctest: timeout 120 */
#define _GNU_SOURCE
#include "check.h"

#include <lockstep/launch.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void *wait_for_ever(void *unused)
{
    for (;;) pause();
    return unused;
}

/* Runs `ranks` of a shell command in this process, beside two other threads that block nothing. */
static int launch_beside_threads(int ranks, const char *command, int times)
{
    lk_context_config settings = LK_CONTEXT_CONFIG_INIT;
    lk_launch_config  config = LK_LAUNCH_CONFIG_INIT;
    lk_context       *context;
    pthread_t         threads[2];
    int               code = 0;
    settings.threads = 1;
    if (lk_context_create(&settings, &context) < 0) return 99;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, wait_for_ever, NULL) != 0) return 98;
    config.program = (const char *const[]){"/bin/sh", "-c", command, NULL};
    config.ranks = ranks;
    config.plain = true;
    for (int i = 0; i < times && code == 0; i++)
        if (lk_launch(context, &config, &code) < 0) return 97;
    lk_context_free(context);
    return code;
}

static pid_t start(int ranks, const char *command, int times)
{
    fflush(stdout);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(launch_beside_threads(ranks, command, times));
    return pid;
}

/* Output that is closed earlier, as when a GPU's driver ends a process slowly, does not wake the launcher: SIGCHLD
 * must. */
static void no_end_of_a_rank_is_missed(void)
{
    int   status;
    pid_t pid = start(3, "exec >&- 2>&-; sleep 0.01", 100);
    CHECK(waitpid(pid, &status, 0) == pid); /* for ever where one is missed: the test's time limit ends that */
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "100 jobs of 3 ranks: status %x", status);
}

static void read_text(const char *path, char *text, size_t size)
{
    FILE *in = fopen(path, "r");
    REQUIRE(in);
    text[fread(text, 1, size - 1, in)] = 0;
    fclose(in);
}

static void a_stop_request_reaches_the_launcher(void)
{
    int  status;
    char path[] = "/tmp/test-launch-threads-XXXXXX", command[256];
    int  file = mkstemp(path);
    REQUIRE(file >= 0);
    close(file);
    snprintf(command, sizeof command,
             "trap 'echo stopped >> %s; exit 7' TERM; echo started >> %s; while :; do sleep 0.01; done", path, path);
    pid_t pid = start(2, command, 1);
    char  text[64] = "";
    for (int i = 0; i < 2000 && strlen(text) < strlen("started\n") * 2; i++) {
        usleep(5000);
        read_text(path, text, sizeof text);
    }
    kill(pid, SIGTERM);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    read_text(path, text, sizeof text);
    unlink(path);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM, "status %x instead of exit status 143", status);
    CHECK(strcmp(text, "started\nstarted\nstopped\nstopped\n") == 0, "the ranks wrote: %s", text);
}

int main(void)
{
    RUN(no_end_of_a_rank_is_missed);
    RUN(a_stop_request_reaches_the_launcher);
    return check_failures > 0;
}
