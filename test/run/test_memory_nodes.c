/* test_memory_nodes.c - ranks of a host with several memory nodes (NUMA): on which node cores are, a copy of what all
 * ranks read for each node, with the bits of replicated training, where the kernel takes its pages from, and copies
 * that differ. LOCKSTEP_MEMORY_NODES makes two nodes of any machine.
 *
 * ctest: timeout 300, ranks 4 */
#define _GNU_SOURCE
#include "base/memory_node.h"
#include "comm/abort.h"
#include "comm/memory_nodes.h"
#include "parallel.h"
#include "run/shared.h"

#include <lockstep/launch.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- nodes of cores ---- */

static void put_file(const char *folder, const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", folder, path);
    for (char *slash = whole + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        (void)mkdir(whole, 0700);
    }
    FILE *file = fopen(whole, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s", whole);
}

static int node_of(const char *folder, int first, int last)
{
    uint64_t cpus[LK__CPU_WORDS] = {0};
    for (int i = first; i <= last; i++) cpus[i / 64] |= (uint64_t)1 << i % 64;
    return lk__memory_node(folder, cpus);
}

/* Two sockets of 64 threads with two nodes each, as the kernel numbers them, one of them without cores. */
static void a_rank_is_on_the_node_with_most_of_its_cores(void)
{
    char folder[] = "/tmp/lockstep-nodes-XXXXXX", command[64];
    REQUIRE(mkdtemp(folder));
    CHECK(node_of(folder, 0, 3) == -1, "the kernel lists no nodes");
    put_file(folder, "sys/devices/system/node/online", "0-1,4,7\n");
    put_file(folder, "sys/devices/system/node/node0/cpulist", "0-15,64-79\n");
    put_file(folder, "sys/devices/system/node/node1/cpulist", "16-31,80-95\n");
    put_file(folder, "sys/devices/system/node/node4/cpulist", "32-63,96-127\n");
    put_file(folder, "sys/devices/system/node/node7/cpulist", "\n");
    CHECK(node_of(folder, 0, 15) == 0 && node_of(folder, 16, 16) == 1 && node_of(folder, 80, 95) == 1);
    CHECK(node_of(folder, 100, 127) == 4 && node_of(folder, 10, 20) == 0 && node_of(folder, 12, 25) == 1);
    CHECK(node_of(folder, 8, 23) == 0, "the lowest of two with as many");
    CHECK(node_of(folder, 0, 127) == 4 && node_of(folder, 1000, 1023) == -1);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    REQUIRE(system(command) == 0);
}

static void plans_know_the_nodes_of_the_ranks(void)
{
    lk_context *context;
    int         nodes;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    CHECK(lk_launch_nodes(context, 4, &nodes) == LK_OK && nodes == 2, "%d nodes", nodes);
    CHECK(lk_launch_nodes(context, 1, &nodes) == LK_OK && nodes == 1, "%d nodes", nodes);
    unsetenv("LOCKSTEP_MEMORY_NODES");
    CHECK(lk_launch_nodes(context, 1, &nodes) == LK_OK && nodes == 1, "%d nodes of one rank", nodes);
    CHECK(lk_launch_nodes(context, 4096, &nodes) == LK_OK && nodes == 1, "%d nodes of ranks that are not pinned",
          nodes);
    setenv("LOCKSTEP_MEMORY_NODES", "2", 1);
    lk_context_free(context);
}

/* ---- bits ---- */

static job small_job(int world)
{
    return (job){
        .model = "cnn", .real = LK_F32, .side = 16, .steps = 3, .batch = 24, .world = world, .optimizer = LK_ADAM};
}

static void compare(job j, const char *what)
{
    report *r[2] = {new_report(), new_report()};
    for (int i = 0; i < 2; i++) {
        j.state = i ? LK_STATE_SHARED : LK_STATE_REPLICATED;
        j.out = r[i];
        run_job(&j);
    }
    for (int i = 0; i < j.world; i++)
        CHECK(r[1]->hashes[i] == r[0]->hashes[0] && r[0]->hashes[0] != 0,
              "%d ranks, %s: rank %d's state differs from the replicated one", j.world, what, i);
    free_report(r[0]);
    free_report(r[1]);
}

static void two_nodes_have_the_bits_of_replicated_training(void)
{
    for (int world = 2; world <= 4; world++) {
        job j = small_job(world);
        compare(j, "f32");
        j.clip = 0.05;
        j.policy = LK_POLICY_BF16;
        compare(j, "bf16 with master copies, clipping");
        j = small_job(world);
        j.leaves = 8;
        compare(j, "leaves");
        j = small_job(world);
        j.real = LK_F64;
        j.optimizer = LK_SGD;
        j.plain_weights = true;
        compare(j, "f64, initial values of the store");
        j = small_job(world);
        j.model = "resnet20";
        j.side = 8;
        j.sync = true;
        j.micro_batches = 2;
        compare(j, "synchronised batch norm, two micro-batches");
    }
}

/* ---- memory ---- */

/* The node that the kernel prefers for the page at this address; -1: it has no such rule; -2: it does not say. */
static int preferred_node(const void *address)
{
    enum { NODES = 1024, PREFERRED = 1, AT_ADDRESS = 2 };
    unsigned long mask[NODES / (8 * sizeof(unsigned long))] = {0};
    int           mode = 0;
    if (syscall(SYS_get_mempolicy, &mode, mask, (unsigned long)NODES + 1, address, (unsigned long)AT_ADDRESS) != 0)
        return -2;
    for (int i = 0; mode == PREFERRED && i < NODES; i++)
        if (mask[i / 64] >> i % 64 & 1) return i;
    return -1;
}

static void check_pages(const rank_program *p, int rank, const int *nodes)
{
    const lk_store *s = p->rig.store;
    int             here = preferred_node(s->parameters);
    uint64_t        all[LK__CPU_WORDS];
    memset(all, 0xff, sizeof all);
    if (here == -2 || lk__memory_node("", all) < 0) {
        if (rank == 0) printf("     the kernel does not say where pages are\n");
        return;
    }
    CHECK(here == nodes[rank], "rank %d: parameters prefer node %d, its cores are on %d", rank, here, nodes[rank]);
    lk__plan_owned pieces[256];
    size_t         count = lk__plan_list_owned(p->rig.plan, rank, NULL), page = (size_t)sysconf(_SC_PAGESIZE);
    REQUIRE(count <= 256);
    lk__plan_list_owned(p->rig.plan, rank, pieces);
    for (size_t i = 0; i < count; i++) {
        const lk__plan_state *sp = &p->rig.plan->states[pieces[i].state];
        if ((size_t)pieces[i].count * sizeof(float) < 2 * page) continue;
        const char *moment = s->optimizer + sp->moment_offset[1] + (size_t)pieces[i].first * sizeof(float);
        CHECK(preferred_node(moment + page) == nodes[rank], "rank %d: a moment of its slice", rank);
    }
    CHECK(preferred_node(p->rig.program->memory.gradients) == nodes[rank], "rank %d: its gradients", rank);
}

static int inspect(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_store    *s = p.rig.store;
    int          expected = rank * 2 / j->world, nodes[MOST_RANKS];
    uint64_t     own[LK__CPU_WORDS] = {0};
    cpu_set_t    cores;
    REQUIRE(sched_getaffinity(0, sizeof cores, &cores) == 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &cores)) own[i / 64] |= (uint64_t)1 << i % 64;
    for (int i = 0; i < j->world; i++) nodes[i] = lk__memory_node("", own); /* all have the same cores */
    CHECK(lk__comm_nodes(p.comm) == 2 && lk__comm_node(p.comm, rank) == expected && s->nodes == 2 &&
          s->node == expected);
    CHECK(s->parameters == s->copies + s->copy_bytes * (size_t)expected && s->copy_bytes % 4096 == 0);
    check_pages(&p, rank, nodes);
    for (int step = 1; step <= 2; step++) (void)train_rank(&p, j, rank, step);
    CHECK(memcmp(s->copies, s->copies + s->copy_bytes, p.rig.plan->memory[LK_MEMORY_PARAMETERS]) == 0,
          "the nodes' copies differ");
    CHECK(lk_program_verify(p.rig.program, 2) == LK_OK, "%s", lk_context_error(p.rig.context));

    /* What one rank writes past the store is in its node's copy alone; that of rank 0 counts. */
    lk_state state;
    REQUIRE(lk_store_find(s, "fc1.weight", &state) && lk_comm_barrier(p.comm, NULL) == LK_OK);
    if (rank == j->world - 1) ((float *)state.data)[3] += 1;
    REQUIRE(lk_comm_barrier(p.comm, NULL) == LK_OK);
    CHECK(lk_program_verify(p.rig.program, 2) == LK_EMISMATCH && strstr(lk_context_error(p.rig.context), "fc1.weight"),
          "%s", lk_context_error(p.rig.context));
    CHECK(lk_program_broadcast(p.rig.program) == LK_OK && lk_program_verify(p.rig.program, 2) == LK_OK, "%s",
          lk_context_error(p.rig.context));

    /* A write by all is in all copies, also of a moment, which is there once. */
    float written[4] = {1, 2, 3, 4}, read[4];
    for (int part = LK_STATE_VALUE; part <= (int)LK_STATE_MOMENT_0; part++) {
        REQUIRE(lk_store_write(s, "fc1.weight", (lk_state_part)part, 5, 4, written, sizeof written) == LK_OK &&
                lk_store_read(s, "fc1.weight", (lk_state_part)part, 5, 4, read, sizeof read) == LK_OK);
        for (int i = 0; i < 4; i++) CHECK(read[i] == written[i], "rank %d reads other values than were written", rank);
    }
    dismiss_rank(&p);
    return check_result();
}

static void every_node_has_its_copy(void)
{
    for (int world = 2; world <= 4; world++) {
        lk_spawn_result result;
        job             j = small_job(world);
        j.state = LK_STATE_SHARED;
        check_ranks_announced(world);
        CHECK(lk_spawn(world, inspect, &j, &result) == LK_OK, "%d ranks: %s", world, result.text);
    }
}

int main(void)
{
    setenv("LOCKSTEP_MEMORY_NODES", "2", 1);
    RUN(a_rank_is_on_the_node_with_most_of_its_cores);
    RUN(plans_know_the_nodes_of_the_ranks);
    RUN(two_nodes_have_the_bits_of_replicated_training);
    RUN(every_node_has_its_copy);
    return check_result();
}
