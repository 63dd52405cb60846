/* test_memory_check.c - what needs more memory than is available is refused before it is allocated: by a context, by
 * the ranks of a host together, and by trainers and generators. The memory available is that of made-up trees of /proc
 * and /sys.
 *
 * ctest: timeout 120, ranks 4 */
#define _GNU_SOURCE
#include "base/base.h"
#include "comm_ranks.h"

#include <errno.h>
#include <ftw.h>
#include <lockstep.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, MACHINES = 4 };

static char folder[] = "/tmp/test-memory-XXXXXX";
static char machines[MACHINES][64]; /* each a tree */

static void put_file(const char *tree, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", tree, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, "%s", path);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Machine i has 100 MiB available. limit: MiB of the control group of its processes; 0: none. */
static void make_machine(int i, const char *boot, int limit)
{
    char text[64];
    snprintf(machines[i], sizeof machines[i], "%s/%d", folder, i);
    put_file(machines[i], "proc/meminfo", "MemAvailable: 102400 kB\n");
    put_file(machines[i], "proc/sys/kernel/random/boot_id", boot);
    put_file(machines[i], "proc/self/cgroup", "0::/job\n");
    put_file(machines[i], "proc/self/mountinfo", "33 25 0:30 / /cgroup rw - cgroup2 cgroup2 rw\n");
    snprintf(text, sizeof text, "%lld\n", (long long)limit * MIB);
    put_file(machines[i], "cgroup/job/memory.max", limit ? text : "max\n");
}

static lk_context *open_context(int machine, bool overcommit)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    config.overcommit = overcommit;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    lk__context_set_limits_root(context, machines[machine]);
    return context;
}

static void a_context_refuses_more_than_is_available(void)
{
    lk_context *c = open_context(0, false);
    CHECK(lk_context_check_memory(c, NULL, 100 * MIB) == LK_OK);
    CHECK(lk_context_check_memory(c, NULL, 100 * MIB + 1) == LK_ETOOLARGE &&
              strstr(lk_context_error(c), "would need 100.0 MiB of memory, but the host has 100.0 MiB available"),
          "%s", lk_context_error(c));
    CHECK(lk_context_check_memory(c, NULL, SIZE_MAX) == LK_ETOOLARGE);
    lk_context_free(c);

    c = open_context(1, false);
    CHECK(lk_context_check_memory(c, NULL, 60 * MIB) == LK_OK);
    CHECK(lk_context_check_memory(c, NULL, 61 * MIB) == LK_ETOOLARGE &&
              strstr(lk_context_error(c), "60.0 MiB is available: the limit of a control group (cgroup) is 60.0 MiB"),
          "%s", lk_context_error(c));
    lk_context_free(c);

    c = open_context(0, true);
    CHECK(lk_context_check_memory(c, NULL, SIZE_MAX) == LK_OK);
    lk_context_free(c);
}

static void *own_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void own_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static void an_allocator_of_ones_own_is_not_refused(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *c;
    config.threads = 1;
    config.allocator = (lk_allocator){own_alloc, own_free, NULL};
    REQUIRE(lk_context_create(&config, &c) == LK_OK);
    lk__context_set_limits_root(c, machines[0]);
    CHECK(lk_context_check_memory(c, NULL, SIZE_MAX) == LK_OK);
    lk_context_free(c);
}

/* ---- ranks ---- */

typedef struct demands {
    int         machine[4]; /* by rank */
    size_t      mib[4];
    lk_status   expected;
    const char *text;
} demands;

static void check_demands(rank_test *t)
{
    const demands *d = t->user;
    lk__context_set_limits_root(t->context, machines[d->machine[t->rank]]);
    lk_status status = lk_comm_check_memory(t->comm, d->mib[t->rank] * MIB);
    CHECK(status == d->expected && (status == LK_OK || strstr(lk_context_error(t->context), d->text)),
          "rank %d: %s, %s", t->rank, lk_status_name(status), lk_context_error(t->context));
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_OK); /* the group has not failed */
}

static void ranks_of_a_host_are_added(void)
{
    demands fits = {{0}, {25, 25, 25, 25}, LK_OK, ""}, exceeds = {{0}, {25, 25, 25, 26}, LK_ETOOLARGE, ""};
    exceeds.text = "the 4 ranks would need 101.0 MiB of memory, but the host has 100.0 MiB available";
    run_ranks(4, NULL, check_demands, &fits);
    run_ranks(4, NULL, check_demands, &exceeds);
    demands alone = {{0}, {101}, LK_ETOOLARGE, "this process would need 101.0 MiB"};
    run_ranks(1, NULL, check_demands, &alone);
}

static void ranks_of_other_hosts_are_not_added(void)
{
    demands fits = {{0, 0, 2, 2}, {50, 50, 40, 60}, LK_OK, ""};
    demands exceeds = {{0, 0, 2, 2}, {50, 50, 41, 60}, LK_ETOOLARGE, ""};
    exceeds.text = "2 of the 4 ranks, on the host of rank 2, would need 101.0 MiB";
    run_ranks(4, NULL, check_demands, &fits);
    run_ranks(4, NULL, check_demands, &exceeds);
}

/* Machines 1 and 3 are two containers on one host, with a limit of 60 MiB each. */
static void a_limit_holds_for_the_ranks_of_its_group(void)
{
    demands fits = {{1, 3, 3}, {50, 30, 20}, LK_OK, ""}, group = {{1, 3, 3}, {30, 31, 30}, LK_ETOOLARGE, ""};
    demands host = {{1, 3, 3}, {55, 30, 30}, LK_ETOOLARGE, "the 3 ranks would need 115.0 MiB"};
    group.text =
        "2 of the 3 ranks, on the host of rank 1, would need 61.0 MiB of memory, but 60.0 MiB is available: the limit";
    run_ranks(3, NULL, check_demands, &fits);
    run_ranks(3, NULL, check_demands, &group);
    run_ranks(3, NULL, check_demands, &host);
}

/* ---- trainers ---- */

/* Some 18 MiB of parameters, as much of gradients. */
static lk_tensor large(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 70000)), "fc2", 2); }

typedef struct training {
    lk_state_mode state;
    lk_status     expected;
} training;

static lk_status create_trainer(lk_context *context, lk_comm *comm, lk_state_mode state, lk_trainer **trainer)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_dataset       *data;
    REQUIRE(lk_dataset_open(context, "synthetic:64,count=8,classes=2", LK_SPLIT_TRAIN, NULL, &data) == LK_OK, "%s",
            lk_context_error(context));
    config.model = large;
    config.train = data;
    config.batch = 8;
    config.comm = comm;
    config.state = state;
    config.optimizer.kind = LK_SGD;
    lk_status status = lk_trainer_create(context, &config, trainer);
    lk_trainer_free(*trainer);
    lk_dataset_free(data);
    return status;
}

static void check_trainer(rank_test *t)
{
    const training *wanted = t->user;
    lk_trainer     *trainer;
    lk__context_set_limits_root(t->context, machines[0]);
    size_t    before = lk_context_memory(t->context, LK_MEMORY_PARAMETERS);
    lk_status status = create_trainer(t->context, t->comm, wanted->state, &trainer);
    CHECK(status == wanted->expected, "rank %d: %s, %s", t->rank, lk_status_name(status), lk_context_error(t->context));
    CHECK(lk_context_memory(t->context, LK_MEMORY_PARAMETERS) == before);
}

static void trainers_are_refused_by_the_plans_of_all_ranks(void)
{
    lk_context *c = open_context(0, false);
    lk_trainer *trainer;
    CHECK(create_trainer(c, NULL, LK_STATE_AUTO, &trainer) == LK_OK, "%s", lk_context_error(c));
    lk__context_set_limits_root(c, machines[2]);
    put_file(machines[2], "proc/meminfo", "MemAvailable: 30720 kB\n");
    CHECK(create_trainer(c, NULL, LK_STATE_AUTO, &trainer) == LK_ETOOLARGE && strstr(lk_context_error(c), "30.0 MiB"),
          "%s", lk_context_error(c));
    lk_context_free(c);
    training replicated = {LK_STATE_REPLICATED, LK_ETOOLARGE}, shared = {LK_STATE_SHARED, LK_OK};
    run_ranks(3, NULL, check_trainer, &replicated); /* 124 MiB */
    run_ranks(3, NULL, check_trainer, &shared);     /* 89 MiB */
}

static void a_store_does_not_allocate_what_is_not_there(void)
{
    for (int overcommit = 0; overcommit < 2; overcommit++) {
        lk_context    *c = open_context(2, overcommit);
        lk_graph      *graph;
        lk_plan       *plan;
        lk_store      *store = NULL;
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        REQUIRE(lk_graph_create(c, LK_F32, &graph) == LK_OK);
        lk_tensor y = lk_linear(lk_input(graph, "x", LK_F32, 2, ((int64_t[]){1, 8192})), "fc", 2560); /* 80 MiB */
        config.outputs = &y;
        config.outputs_count = 1;
        REQUIRE(lk_plan_create(graph, &config, &plan) == LK_OK);
        lk_status status = lk_store_create(plan, 1, &store);
        CHECK(overcommit ? status == LK_OK : status == LK_ETOOLARGE && strstr(lk_context_error(c), "80.0 MiB"), "%s",
              lk_context_error(c));
        lk_store_free(store);
        lk_plan_free(plan);
        lk_graph_free(graph);
        lk_context_free(c);
    }
}

static void generators_are_refused(void)
{
    for (int overcommit = 0; overcommit < 2; overcommit++) {
        lk_context           *c = open_context(2, overcommit);
        lk_generator_config   config = LK_GENERATOR_CONFIG_INIT;
        lk_transformer_config model = LK_TRANSFORMER_CONFIG_INIT;
        lk_generator         *generator;
        model.layers = 1;
        model.width = 64;
        model.heads = 2;
        model.context = 32;
        model.vocabulary = 160000; /* 39 MiB */
        config.model = &model;
        lk_status status = lk_generator_create(c, &config, &generator);
        CHECK(status == (overcommit ? LK_OK : LK_ETOOLARGE), "%s: %s", lk_status_name(status), lk_context_error(c));
        lk_generator_free(generator);
        lk_context_free(c);
    }
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *ftw)
{
    (void)about, (void)type, (void)ftw;
    return remove(path);
}

int main(void)
{
    REQUIRE(mkdtemp(folder));
    make_machine(0, "aaaa\n", 0);
    make_machine(1, "bbbb\n", 60);
    make_machine(2, "cccc\n", 0);
    make_machine(3, "bbbb\n", 60);
    RUN(a_context_refuses_more_than_is_available);
    RUN(an_allocator_of_ones_own_is_not_refused);
    RUN(ranks_of_a_host_are_added);
    RUN(ranks_of_other_hosts_are_not_added);
    RUN(a_limit_holds_for_the_ranks_of_its_group);
    RUN(trainers_are_refused_by_the_plans_of_all_ranks);
    RUN(a_store_does_not_allocate_what_is_not_there);
    RUN(generators_are_refused);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return check_failures != 0;
}
