/* test_comm_faults.c - ranks that make different calls, are late, die, are stopped, do not join or belong to another
 * job: every survivor returns the right error, which names the cause, and nothing is left behind. The argument is the
 * number of rounds of killing and stopping.
 *   ctest: timeout 300, ranks 5, label slow, label threaded */
#define _GNU_SOURCE
#include "comm_faults.h"

#include "comm/rendezvous/identity.h"
#include "comm/rendezvous/local.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- joining ---- */

/* Tries to join as `rank` of `world`, in this process. */
static lk_status join(int rank, int world, int join_ms, char *text, size_t bytes)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm = NULL;
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = world;
    comm_config.join_ms = join_ms;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    lk_status status = lk_comm_create(context, &comm_config, &comm);
    snprintf(text, bytes, "%s", lk_context_error(context));
    CHECK((comm != NULL) == (status == LK_OK));
    lk_comm_free(comm);
    lk_context_free(context);
    return status;
}

typedef struct joiner {
    int       rank, world, join_ms;
    lk_status status;
    char      text[1024];
} joiner;

static void *join_thread(void *argument)
{
    joiner *j = argument;
    j->status = join(j->rank, j->world, j->join_ms, j->text, sizeof j->text);
    return NULL;
}

static void fresh_job(void)
{
    static int number;
    char       job[64];
    snprintf(job, sizeof job, "rendezvous-%ld-%d", (long)getpid(), number++);
    setenv("LOCKSTEP_JOB", job, 1);
}

static void missing_ranks_are_named(void)
{
    joiner two[2] = {{.rank = 0, .world = 4, .join_ms = 400}, {.rank = 2, .world = 4, .join_ms = 400}},
           alone = {.rank = 1, .world = 2, .join_ms = 200};
    pthread_t threads[2];
    fresh_job();
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, join_thread, &two[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        CHECK(two[i].status == LK_ETIMEOUT && strstr(two[i].text, "ranks 1, 3 of 4 did not join"), "%s", two[i].text);
    join_thread(&alone);
    CHECK(alone.status == LK_ETIMEOUT && strstr(alone.text, "rank 0 of 2 did not join") &&
              strstr(alone.text, "nothing listens"),
          "%s", alone.text);
}

static void ranks_of_another_job_are_refused(void)
{
    joiner    many[] = {{.rank = 0, .world = 3, .join_ms = 20000},
                        {.rank = 1, .world = 3, .join_ms = 20000},
                        {.rank = 1, .world = 3, .join_ms = 20000},
                        {.rank = 1, .world = 2, .join_ms = 20000},
                        {.rank = 2, .world = 3, .join_ms = 20000}};
    pthread_t threads[5];
    fresh_job();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, join_thread, &many[i]);
    for (int i = 3; i > 2; i--) pthread_join(threads[i], NULL);
    CHECK(many[3].status == LK_EMISMATCH && strstr(many[3].text, "world size of 3"), "%s", many[3].text);
    usleep(100000); /* both that claim to be rank 1 have connected */
    pid_t intruder = fork();
    if (intruder == 0) { /* another process, which does not know the token */
        char text[1024];
        setenv("LOCKSTEP_TOKEN", "not the right token", 1);
        _exit(join(2, 3, 5000, text, sizeof text) == LK_EINVAL && strstr(text, "wrong token") ? 0 : 1);
    }
    int status;
    waitpid(intruder, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the wrong token was not refused as such");
    pthread_create(&threads[4], NULL, join_thread, &many[4]);
    for (int i = 0; i < 5; i++)
        if (i != 3) pthread_join(threads[i], NULL);
    CHECK(many[0].status == LK_OK && many[4].status == LK_OK, "%s %s", many[0].text, many[4].text);
    int first = many[1].status == LK_OK ? 1 : 2, second = 3 - first;
    CHECK(many[first].status == LK_OK && many[second].status == LK_EMISMATCH &&
              strstr(many[second].text, "has already joined"),
          "%s", many[second].text);
}

/* As a process of its own, which is then killed. */
static void join_and_die(int rank, int world)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char text[1024];
        join(rank, world, 60000, text, sizeof text);
        _exit(0);
    }
    usleep(500000); /* by then it has joined, or the next one will */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

typedef struct lone_joiner {
    joiner     joiner;
    atomic_int done;
} lone_joiner;

static void *join_alone(void *argument)
{
    lone_joiner *l = argument;
    join_thread(&l->joiner);
    atomic_store(&l->done, 1);
    return NULL;
}

/* The third rank does not join, and the others do not wait a minute for it. */
static void a_rank_that_dies_while_others_are_missing_is_noticed(void)
{
    for (int waits = 0; waits < 2; waits++) {
        lone_joiner l = {.joiner = {.rank = waits, .world = 3, .join_ms = 60000}};
        pthread_t   thread;
        char        name[64];
        fresh_job();
        pthread_create(&thread, NULL, join_alone, &l);
        for (int i = 0; i < 40 && !atomic_load(&l.done); i++) join_and_die(1 - waits, 3);
        pthread_join(thread, NULL);
        snprintf(name, sizeof name, "rank %d of 3 (process ", 1 - waits);
        CHECK(l.joiner.status == LK_EIO && strstr(l.joiner.text, name) &&
                  strstr(l.joiner.text, "died before all ranks had joined"),
              "%s", l.joiner.text);
    }
}

/* Sends garbage, a truncated request, and nothing at all. */
static void *send_invalid_requests(void *argument)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int  n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "lockstep/%u/job-%s-0", (unsigned)geteuid(),
                      getenv("LOCKSTEP_JOB"));
    char garbage[4096];
    int  fds[8], *reached = argument;
    memset(garbage, 0xFF, sizeof garbage);
    for (int i = 0; i < 8; i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (int try = 0;
             try < 2000 && connect(fds[i], (struct sockaddr *)&address,
                                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) != 0;
             try++)
            usleep(1000);
        ssize_t sent = i % 3 == 2 ? 0 : send(fds[i], garbage, i % 3 ? 10 : sizeof garbage, MSG_NOSIGNAL);
        *reached += sent > 0;
    }
    usleep(100000);
    for (int i = 0; i < 8; i++) close(fds[i]);
    return NULL;
}

static void foreign_connections_do_not_disturb_a_rendezvous(void)
{
    joiner    two[2] = {{.rank = 0, .world = 2, .join_ms = 20000}, {.rank = 1, .world = 2, .join_ms = 20000}};
    pthread_t threads[2], other;
    int       reached = 0;
    fresh_job();
    pthread_create(&threads[0], NULL, join_thread, &two[0]);
    pthread_create(&other, NULL, send_invalid_requests, &reached);
    pthread_join(other, NULL);
    pthread_create(&threads[1], NULL, join_thread, &two[1]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(reached >= 5, "only %d reached it", reached);
    CHECK(two[0].status == LK_OK && two[1].status == LK_OK, "%s / %s", two[0].text, two[1].text);
}

/* RFC 4231, test cases 1, 2 and 6. */
static void hmac_gives_the_digests_of_the_rfc(void)
{
    unsigned char mac[32];
    char          key[132];
    memset(key, 0x0b, 20), key[20] = 0;
    lk__hmac(key, "Hi There", 8, mac);
    CHECK(memcmp(mac,
                 "\xb0\x34\x4c\x61\xd8\xdb\x38\x53\x5c\xa8\xaf\xce\xaf\x0b\xf1\x2b\x88\x1d\xc2\x00\xc9\x83\x3d\xa7\x26"
                 "\xe9\x37\x6c\x2e\x32\xcf\xf7",
                 32) == 0);
    lk__hmac("Jefe", "what do ya want for nothing?", 28, mac);
    CHECK(memcmp(mac,
                 "\x5b\xdc\xc1\x46\xbf\x60\x75\x4e\x6a\x04\x24\x26\x08\x95\x75\xc7\x5a\x00\x3f\x08\x9d\x27\x39\x83\x9d"
                 "\xec\x58\xb9\x64\xec\x38\x43",
                 32) == 0);
    memset(key, 0xaa, 131), key[131] = 0;
    lk__hmac(key, "Test Using Larger Than Block-Size Key - Hash Key First", 54, mac);
    CHECK(memcmp(mac,
                 "\x60\xe4\x31\x59\x1e\xe0\xb6\x7f\x0d\x8a\x26\xaa\xcb\xf5\xb7\x7f\x8e\x0b\xc6\x21\x37\x28\xc5\x14\x05"
                 "\x46\x04\x0f\x0e\xe3\x7f\x54",
                 32) == 0);
}

/* ---- the environment ---- */

static lk_status find_identity(const char *const *pairs, lk__rendezvous_identity *identity, char *text, size_t bytes)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "MASTER_PORT",
                                        "LOCKSTEP_JOB",
                                        "LOCKSTEP_TOKEN",
                                        "LOCKSTEP_TOKEN_FILE",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT"};
    lk_comm_config           config = LK_COMM_CONFIG_INIT;
    lk_context_config        context_config = LK_CONTEXT_CONFIG_INIT;
    lk_context              *context;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    for (; *pairs; pairs += 2) setenv(pairs[0], pairs[1], 1);
    context_config.threads = 1;
    REQUIRE(lk_context_create(&context_config, &context) == LK_OK);
    lk_status status = lk__identity_find(context, &config, identity);
    snprintf(text, bytes, "%s", lk_context_error(context));
    lk_context_free(context);
    return status;
}
#define FIND_IDENTITY(...) find_identity((const char *const[]){__VA_ARGS__, NULL}, &identity, text, sizeof text)

static void the_environment_gives_rank_and_size_or_an_error(void)
{
    lk__rendezvous_identity identity;
    char                    text[1024], key[192];
    CHECK(FIND_IDENTITY(NULL) == LK_OK && identity.rank == 0 && identity.world == 1);
    CHECK(FIND_IDENTITY("RANK", "2", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "4", "MASTER_PORT", "29501") == LK_OK &&
          identity.rank == 2 && identity.world == 4);
    memcpy(key, identity.key, sizeof key);
    CHECK(FIND_IDENTITY("RANK", "1", "WORLD_SIZE", "4", "MASTER_PORT", "29501", "TORCHELASTIC_RESTART_COUNT", "1") ==
                  LK_OK &&
              strcmp(identity.key, key) != 0,
          "a restarted job has the name of the old one");
    CHECK(FIND_IDENTITY("RANK", "1", "WORLD_SIZE", "4", "MASTER_PORT", "29502") == LK_OK &&
          strcmp(identity.key, key) != 0);
    CHECK(FIND_IDENTITY("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "3") == LK_OK && identity.rank == 1 &&
          identity.world == 3);
    CHECK(FIND_IDENTITY("PMI_RANK", "1", "PMI_SIZE", "2") == LK_OK && identity.rank == 1 && identity.world == 2);
    CHECK(FIND_IDENTITY("SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "5", "SLURM_STEP_TASKS_PER_NODE", "5") == LK_OK &&
          identity.rank == 3 && identity.world == 5);
    CHECK(!identity.many_hosts);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2") == LK_EINVAL &&
              strstr(text, "several hosts") && strstr(text, "LOCKSTEP_TOKEN_FILE"),
          "%s", text);
    CHECK(FIND_IDENTITY("RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "LOCKSTEP_JOB", "j", "LOCKSTEP_TOKEN",
                        "0123456789abcdef") == LK_OK &&
              identity.rank == 3 && identity.many_hosts,
          "%s", text);
    CHECK(FIND_IDENTITY("SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "8", "SLURM_STEP_TASKS_PER_NODE", "4(x2)",
                        "LOCKSTEP_JOB", "j", "LOCKSTEP_TOKEN", "0123456789abcdef") == LK_OK &&
              identity.many_hosts,
          "%s", text);
    CHECK(FIND_IDENTITY("PMI_RANK", "1", "PMI_SIZE", "4", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_TASKS_PER_NODE",
                        "2(x2)", "LOCKSTEP_JOB", "j", "LOCKSTEP_TOKEN", "0123456789abcdef") == LK_OK &&
              identity.rank == 1 && identity.many_hosts,
          "srun --mpi=pmi2: %s", text);
    CHECK(FIND_IDENTITY("RANK", "1", "WORLD_SIZE", "4", "SLURM_STEP_NUM_TASKS", "2", "SLURM_STEP_TASKS_PER_NODE",
                        "1(x2)") == LK_OK &&
              !identity.many_hosts,
          "a step of another size does not count: %s", text);
    CHECK(FIND_IDENTITY("RANK", "4", "WORLD_SIZE", "4") == LK_EINVAL && strstr(text, "rank 4 does not exist"), "%s",
          text);
    CHECK(FIND_IDENTITY("RANK", "two", "WORLD_SIZE", "4") == LK_EINVAL && strstr(text, "'two'"), "%s", text);
    CHECK(FIND_IDENTITY("WORLD_SIZE", "4") == LK_EINVAL && strstr(text, "RANK is not"), "%s", text);
    CHECK(FIND_IDENTITY("RANK", "1") == LK_EINVAL && strstr(text, "WORLD_SIZE is not"), "%s", text);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "0") == LK_EINVAL, "%s", text);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "5000000") == LK_EINVAL && strstr(text, "from 1 to 1000000"), "%s",
          text);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "2", "MASTER_PORT", "99999", "LOCKSTEP_JOB", "j",
                        "TORCHELASTIC_USE_AGENT_STORE", "False") == LK_EINVAL &&
              strstr(text, "'99999'; it must be a port"),
          "%s", text);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "2", "LOCKSTEP_TOKEN", "fifteen letters") == LK_EINVAL &&
              strstr(text, "LOCKSTEP_TOKEN holds a token of 15 characters") && strstr(text, "openssl rand -hex 16"),
          "on one host: %s", text);
    CHECK(FIND_IDENTITY("RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "LOCKSTEP_JOB", "j", "LOCKSTEP_TOKEN",
                        "0") == LK_EINVAL &&
              strstr(text, "a token of 1 characters"),
          "on several: %s", text);
    CHECK(FIND_IDENTITY("RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "LOCKSTEP_JOB", "j") == LK_EINVAL &&
              strstr(text, "started by a separate lockstep run on each host, without a common token") &&
              strstr(text, "openssl rand -hex 16 >") && !strstr(text, "not started by"),
          "lockstep run --nnodes: %s", text);
    CHECK(FIND_IDENTITY("RANK", "0", "WORLD_SIZE", "2", "LOCKSTEP_TOKEN_FILE", "/dev/null") == LK_EINVAL &&
              strstr(text, "not a regular file"),
          "%s", text);
    (void)FIND_IDENTITY(NULL);
    lk_context       *context;
    lk_context_config context_config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    config = LK_COMM_CONFIG_INIT; /* what a tutorial's setup(rank, world_size) gives */
    context_config.threads = 1;                     /* ranks are spawned below: no thread has ever run here */
    config.rank = 0;
    config.world = 2;
    config.address = "localhost";
    REQUIRE(lk_context_create(&context_config, &context) == LK_OK);
    CHECK(lk__identity_find(context, &config, &identity) == LK_OK && !identity.many_hosts, "%s",
          lk_context_error(context));
    config.address = "10.0.0.1";
    CHECK(lk__identity_find(context, &config, &identity) == LK_EINVAL &&
              strstr(lk_context_error(context), "the program sets rank 0's address, 10.0.0.1"),
          "%s", lk_context_error(context));
    lk_context_free(context);
}

/* ---- spawning ---- */

static int run_spawned(int rank, void *user)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    int32_t           sum = rank;
    config.threads = 1;
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, NULL, &comm) < 0) return 3;
    if (lk_comm_all_reduce(comm, &sum, &sum, 1, LK_I32, LK_SUM, NULL) < 0 || sum != 3 || lk_comm_size(comm) != 3)
        return 4;
    if (*(int *)user == rank) return 42;
    if (*(int *)user == 10 + rank) raise(SIGKILL);
    lk_status status = *(int *)user < 0 ? LK_OK : lk_comm_barrier(comm, NULL); /* the others get the failure */
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0 ? 5 : 0;
}

static void *spawn_in_thread(void *user)
{
    lk_spawn_result result;
    lk_status       status = lk_spawn(2, run_spawned, user, &result);
    CHECK(status == LK_EINVAL && strstr(result.text, "threads, of which a forked rank would have only one"), "%s",
          result.text);
    return NULL;
}

static void spawn_starts_ranks_and_reports_which_failed_first(void)
{
    lk_spawn_result result;
    int             nobody = -1, one = 1, killed = 12;
    CHECK(lk_spawn(3, run_spawned, &nobody, &result) == LK_OK && result.rank == -1, "%s", result.text);
    CHECK(lk_spawn(3, run_spawned, &one, &result) == LK_ECANCELED && result.rank == 1 && result.exit_code == 42 &&
              result.signal == 0,
          "%s", result.text);
    CHECK(lk_spawn(3, run_spawned, &killed, &result) == LK_ECANCELED && result.rank == 2 && result.signal == SIGKILL,
          "%s", result.text);
    CHECK(lk_spawn(0, run_spawned, &nobody, NULL) == LK_EINVAL);
    pthread_t thread;
    pthread_create(&thread, NULL, spawn_in_thread, &nobody);
    pthread_join(thread, NULL);
}

/* ---- limits of the system ---- */

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE         *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Rank 1 may have 64 MiB more, and the ranks' parts are 120 MiB together: more would only take longer to allocate, and
 * the others wait for that. */
static int without_memory(int rank, void *user)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    void             *memory;
    config.threads = 1;
    comm_config.join_ms = 60000; /* enough to allocate a gigabyte on a busy machine */
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 3;
    bool          files = *(int *)user == 1;
    rlim_t        most = files ? 5 : address_space() + (64 << 20);
    struct rlimit limit = {most, most};
    if (rank == (files ? 0 : 1) && setrlimit(files ? RLIMIT_NOFILE : RLIMIT_AS, &limit) != 0) return 4;
    for (int i = 0; i < 3 && files; i++) (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
    lk_status status = lk_comm_alloc(comm, (size_t)(files ? 1 : 40) << 20, &memory);
    if (status >= 0) return 5;
    const char *text = lk_context_error(context);
    bool        is_cause = rank == (files ? 0 : 1);
    bool        reported = !is_cause || (files ? strstr(text, "Too many open files") != NULL
                                               : status == LK_ENOMEM && strstr(text, "out of memory"));
    if (!reported) fprintf(stderr, "rank %d: %s\n", rank, text);
    status = lk_comm_barrier(comm, NULL); /* the group has not failed */
    lk_comm_free(comm);
    lk_context_free(context);
    return reported && status == LK_OK ? 0 : 6;
}

static void lack_of_memory_or_descriptors_is_reported_and_survived(void)
{
    lk_spawn_result result;
    int             memory = 0, files = 1;
    if (SANITIZED) return; /* sanitizers need address space of their own */
    CHECK(lk_spawn(3, without_memory, &memory, &result) == LK_OK, "%s", result.text);
    CHECK(lk_spawn(2, without_memory, &files, &result) == LK_OK, "%s", result.text);
}

/* ---- nothing is left behind ---- */

static int lines_with(const char *path, const char *word)
{
    char  line[1024];
    int   count = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) count += strstr(line, word) != NULL;
    if (file) fclose(file);
    return count;
}

/* ---- killed while groups share memory or are created ---- */

/* Symmetric memory, again and again, until that fails. */
static lk_status run_allocations(lk_comm *comm)
{
    for (size_t bytes = 1;; bytes = bytes % 100000 * 7 + 1) {
        void     *memory;
        lk_status status = lk_comm_alloc(comm, bytes, &memory);
        if (status < 0) return status;
        lk_comm_release(comm, memory);
    }
}

/* Groups of two neighbours, again and again, until that fails. */
static lk_status run_splits(lk_comm *comm)
{
    for (;;) {
        lk_comm  *group;
        lk_status status = lk_comm_split(comm, lk_comm_rank(comm) / 2, 0, &group);
        if (status < 0) return status;
        lk_comm_free(group);
    }
}

static void survivors_of_a_rank_killed_while_it_allocates_name_it(void)
{
    for (int i = 0; i < 5 * rounds; i++) {
        fault_round w = {.ranks = 2 + i % 3, .signal = SIGKILL, .calls = run_allocations, .seed = (uint64_t)i + 1000};
        w.victim = (int)(number_bits(w.seed, 78) % (uint64_t)w.ranks);
        snprintf(w.job, sizeof w.job, "allocations-%ld-%d", (long)getpid(), i);
        run_fault_round(&w);
    }
}

static void survivors_of_a_rank_killed_while_it_splits_name_it(void)
{
    for (int i = 0; i < 5 * rounds; i++) {
        fault_round w = {.ranks = 2 + i % 4, .signal = SIGKILL, .calls = run_splits, .seed = (uint64_t)i + 2000};
        w.victim = (int)(number_bits(w.seed, 78) % (uint64_t)w.ranks);
        snprintf(w.job, sizeof w.job, "splits-%ld-%d", (long)getpid(), i);
        run_fault_round(&w);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = atoi(argv[1]);
    int before = open_descriptors();
    if (argc <= 1) {
        RUN(hmac_gives_the_digests_of_the_rfc);
        RUN(the_environment_gives_rank_and_size_or_an_error);
        RUN(spawn_starts_ranks_and_reports_which_failed_first);
        RUN(lack_of_memory_or_descriptors_is_reported_and_survived);
    }
    RUN(survivors_of_a_killed_or_stopped_rank_name_it);
    RUN(survivors_of_a_rank_killed_while_it_allocates_name_it);
    RUN(survivors_of_a_rank_killed_while_it_splits_name_it);
    if (argc <= 1) {
        RUN(a_mismatch_fails_on_every_rank_with_one_table);
        RUN(a_transfer_of_another_size_is_a_mismatch);
        RUN(a_transfer_against_a_collective_is_a_mismatch_before_the_deadline);
        RUN(a_message_may_be_received_after_a_collective);
        RUN(a_rank_that_misses_a_deadline_is_named_on_every_rank);
        RUN(declared_work_does_not_count_towards_the_deadline);
        RUN(declared_work_of_one_excuses_no_other);
        RUN(a_death_outside_any_operation_is_reported_as_such);
        RUN(a_table_names_the_file_of_each_call);
        RUN(a_flight_record_has_the_cause_and_the_failed_call);
        RUN(abort_from_any_thread_ends_every_wait);
        RUN(a_rank_that_leaves_is_not_waited_for);
        RUN(missing_ranks_are_named);
        RUN(ranks_of_another_job_are_refused);
        RUN(a_rank_that_dies_while_others_are_missing_is_noticed);
        RUN(foreign_connections_do_not_disturb_a_rendezvous);
    }
    CHECK(open_descriptors() == before, "%d descriptors are open, %d were", open_descriptors(), before);
    CHECK(lines_with("/proc/self/maps", "memfd:lockstep") == 0, "shared memory is still mapped");
    char mine[64];
    snprintf(mine, sizeof mine, "-%ld-", (long)getpid());
    CHECK(lines_with("/proc/net/unix", mine) == 0, "a socket is still open");
    return check_result();
}
