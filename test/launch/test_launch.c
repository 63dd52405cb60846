/* test_launch.c - the launcher's parts: splitting output into lines, out-of-memory counters, cores, the job
 * specification. */
/* ctest: timeout 120 */
#define _GNU_SOURCE
#include "check.h"
#include "launch/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static lk_context *context;
static char        folder[] = "/tmp/test-launch-XXXXXX";
static uint64_t    state = 88172645463325252u;

static uint32_t random_below(uint32_t n) /* xorshift64 with a fixed seed, so that the test is repeatable */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

static void put_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void out_of_memory_kills_are_read_from_cgroups_of_both_versions(void)
{
    long in_cgroup, on_host;
    lk__oom_read(folder, &in_cgroup, &on_host);
    CHECK(in_cgroup == -1 && on_host == -1, "with no files: %ld %ld", in_cgroup, on_host);
    put_file("proc/vmstat", "pgfault 5\noom_kill 12\nthp 1\n");
    put_file("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/jobs/one\n0::/\n");
    put_file("sys/fs/cgroup/memory/jobs/one/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    lk__oom_read(folder, &in_cgroup, &on_host);
    CHECK(in_cgroup == 3 && on_host == 12, "version 1: %ld %ld", in_cgroup, on_host);
    put_file("proc/self/cgroup", "0::/slice/job\n");
    put_file("sys/fs/cgroup/slice/job/memory.events", "low 0\noom 9\noom_kill 7\noom_group_kill 8\n");
    lk__oom_read(folder, &in_cgroup, &on_host);
    CHECK(in_cgroup == 7 && on_host == 12, "version 2: %ld %ld", in_cgroup, on_host);
    put_file("proc/self/cgroup", "0::/not/seen/from/a/container\n");
    put_file("sys/fs/cgroup/memory.events", "oom_kill 4\n");
    lk__oom_read(folder, &in_cgroup, &on_host);
    CHECK(in_cgroup == 4, "version 2 inside a container: %ld", in_cgroup);
}

static void the_kernel_log_names_the_process_of_an_out_of_memory_kill(void)
{
    char path[512], text[256] = "";
    put_file("kmsg", "3,901,77,-;Out of memory: Killed process 4242 (train) total-vm:9kB, anon-rss:8kB\n");
    snprintf(path, sizeof path, "%s/kmsg", folder);
    CHECK(lk__oom_in_log(path, 4242, text, sizeof text) &&
              strncmp(text, "Out of memory: Killed process 4242 (train)", 42) == 0,
          "%s", text);
    CHECK(!lk__oom_in_log(path, 424, text, sizeof text), "424 is another process");
    put_file("kmsg", "6,902,78,-;usb 1-1: Killed process 4242 of nothing\n");
    CHECK(!lk__oom_in_log(path, 4242, text, sizeof text), "not an out-of-memory kill");
    CHECK(!lk__oom_in_log("/nowhere/kmsg", 4242, text, sizeof text), "no log");
}

static void every_core_is_in_hwlocs_order_once(void)
{
    int       cpus[CPU_SETSIZE], count = lk__hwloc_order(cpus, CPU_SETSIZE);
    cpu_set_t seen, allowed;
    CPU_ZERO(&seen);
    if (count == 0) {
        printf("skip: hwloc is not available\n");
        return;
    }
    for (int i = 0; i < count; i++) {
        CHECK(!CPU_ISSET(cpus[i], &seen), "core %d twice", cpus[i]);
        CPU_SET(cpus[i], &seen);
    }
    REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    CPU_AND(&seen, &seen, &allowed);
    CHECK(CPU_EQUAL(&seen, &allowed), "an allowed core is missing");
}

static void tee_and_redirects_are_parsed_as_in_torchrun(void)
{
    static const struct {
        const char *text;
        int         rank, bits;
    } cases[] = {{"0", 5, 0},     {"3", 5, 3},     {"0:1,1:2", 0, 1}, {"0:1,1:2", 1, 2}, {"0:1,1:2", 2, 0},
                 {"10:3", 10, 3}, {"10:3", 1, 0},  {"4", 0, -1},      {"", 0, -1},       {"x", 0, -1},
                 {"0:", 0, -1},   {"0:1,", 0, -1}, {"0:9", 0, -1},    {"-1", 0, -1},     {"1,2", 0, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(lk__std_bits(cases[i].text, cases[i].rank) == cases[i].bits, "'%s' of %d: %d", cases[i].text,
              cases[i].rank, lk__std_bits(cases[i].text, cases[i].rank));
    CHECK(lk__filter_has("0,2,11", 11) && lk__filter_has("0,2,11", 0) && !lk__filter_has("0,2,11", 1));
    CHECK(!lk__filter_has("12", 1) && !lk__filter_has("", 0));
}

/* The oracle: a prefix before every line of the whole text, a newline at the end. */
static size_t prefix_lines(const char *text, size_t length, const char *prefix, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        used += (size_t)sprintf(out + used, "%s", prefix);
        while (i < length && text[i] != '\n') out[used++] = text[i++];
        out[used++] = '\n';
        i++;
    }
    return used;
}

static void lines_do_not_depend_on_how_the_output_is_split(void)
{
    static char text[20000], want[400000], got[400000];
    size_t      held = lk_context_memory(context, LK_MEMORY_OTHER);
    for (int round = 0; round < 200; round++) {
        size_t length = random_below(sizeof text), used = 0;
        for (size_t i = 0; i < length; i++) text[i] = random_below(20) ? (char)random_below(256) : '\n';
        size_t want_length = prefix_lines(text, length, "[rank 7] ", want);
        int    in[2], out[2];
        REQUIRE(pipe(in) == 0 && pipe2(out, O_NONBLOCK) == 0);
        lk__launch_sink   sink;
        lk__launch_tail   tail = {.length = 0};
        lk__launch_stream stream = {.fd = in[0], .file = -1, .sink = &sink, .tail = &tail, .prefix = "[rank 7] "};
        lk__sink_open(&sink, context, out[1]);
        for (size_t at = 0; at < length;) {
            size_t some = 1 + random_below(random_below(4) ? 40 : 5000);
            if (some > length - at) some = length - at;
            REQUIRE(write(in[1], text + at, some) == (ssize_t)some);
            at += some;
            lk__line_stream_read(&stream, context);
            if (random_below(2)) lk__sink_flush(&sink);
            for (ssize_t n; (n = read(out[0], got + used, sizeof got - used)) > 0;) used += (size_t)n;
        }
        close(in[1]);
        lk__line_stream_read(&stream, context);
        CHECK(stream.fd == -1);
        while (lk__sink_waiting(&sink)) {
            lk__sink_flush(&sink);
            for (ssize_t n; (n = read(out[0], got + used, sizeof got - used)) > 0;) used += (size_t)n;
        }
        for (ssize_t n; (n = read(out[0], got + used, sizeof got - used)) > 0;) used += (size_t)n;
        CHECK(used == want_length && memcmp(got, want, used) == 0, "round %d: %zu bytes became %zu, not %zu", round,
              length, used, want_length);
        lk__sink_free(&sink);
        close(out[0]);
        close(out[1]);
    }
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held, "%zu bytes, not %zu, are held",
          lk_context_memory(context, LK_MEMORY_OTHER), held);
}

static void the_tail_keeps_the_newest_lines(void)
{
    lk__launch_tail tail = {.length = 0};
    char            line[1000];
    for (int i = 0; i < 1000; i++)
        lk__tail_add(&tail, line, (size_t)snprintf(line, sizeof line, "line %d %0*d", i, i % 300 + 1, 0));
    CHECK(tail.length <= sizeof tail.text && tail.length > sizeof tail.text / 2);
    CHECK(memmem(tail.text, tail.length, "line 999 ", 9) && !memmem(tail.text, tail.length, "line 900 ", 9));
    CHECK(memcmp(tail.text, "line ", 5) == 0 && tail.text[tail.length - 1] == '\n');
    lk__tail_add(&tail, "10%\r20%\r30%\r", 12);
    CHECK(tail.length > 4 && memcmp(tail.text + tail.length - 5, "\n30%\n", 5) == 0);
}

/* Two sockets of two memory nodes each; a node has two cores of two threads, 0 and 8, 1 and 9; each core has a cache of
 * its own. */
static void put_machine(void)
{
    for (int cpu = 0; cpu < 16; cpu++) {
        char name[128], text[32];
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
        snprintf(text, sizeof text, "%d\n", cpu % 8 / 4);
        put_file(name, text);
        snprintf(text, sizeof text, "%d,%d\n", cpu % 8, cpu % 8 + 8);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        put_file(name, text);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
        put_file(name, text);
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/cache/index3/level", cpu);
        put_file(name, "3\n");
    }
    put_file("sys/devices/system/node/node0/cpulist", "0-1,8-9\n");
    put_file("sys/devices/system/node/node1/cpulist", "2-3,10-11\n");
    put_file("sys/devices/system/node/node2/cpulist", "4-5,12-13\n");
    put_file("sys/devices/system/node/node3/cpulist", "6-7,14-15\n");
    put_file("sys/devices/system/node/node4/cpulist", "\n"); /* a node without cores */
}

/* Compares the cores of each rank, as bits, with `wanted`. */
static void expect_cores(const char *mode, const char *visible, int ranks, uint64_t allowed_bits,
                         const uint64_t *wanted)
{
    cpu_set_t cores[8], allowed;
    CPU_ZERO(&allowed);
    for (int i = 0; i < 64; i++)
        if (allowed_bits >> i & 1) CPU_SET(i, &allowed);
    lk_status status = lk__numa_bind(context, &(lk__launch_binding){folder, mode, &allowed, visible, ranks}, cores);
    CHECK(status == LK_OK, "%s: %s", mode, lk_context_error(context));
    for (int i = 0; i < ranks && status == LK_OK; i++) {
        uint64_t bits = 0;
        for (int j = 0; j < 64; j++) bits |= (uint64_t)(CPU_ISSET(j, &cores[i]) != 0) << j;
        CHECK(bits == wanted[i], "%s: rank %d has %llx, not %llx", mode, i, (unsigned long long)bits,
              (unsigned long long)wanted[i]);
    }
}

static void ranks_are_bound_to_memory_nodes_sockets_and_caches(void)
{
    cpu_set_t cores[8], allowed;
    CPU_ZERO(&allowed);
    CPU_SET(0, &allowed);
    CHECK(lk__numa_bind(context, &(lk__launch_binding){folder, "node", &allowed, NULL, 2}, cores) == LK_EINVAL &&
              strstr(lk_context_error(context), "no memory nodes"),
          "%s", lk_context_error(context));
    put_machine();
    expect_cores("node", NULL, 4, 0xffff, (uint64_t[]){0x0303, 0x0c0c, 0x3030, 0xc0c0});
    expect_cores("node", NULL, 2, 0xffff, (uint64_t[]){0x0303, 0x3030});
    expect_cores("node", NULL, 2, 0x00fd, (uint64_t[]){0x0001, 0x0030}); /* only allowed cores */
    expect_cores("node", NULL, 2, 0x00c3, (uint64_t[]){0x0003, 0x00c0}); /* only nodes with allowed cores */
    expect_cores("socket", NULL, 2, 0xffff, (uint64_t[]){0x0f0f, 0xf0f0});
    expect_cores("exclusive", NULL, 8, 0xffff,
                 (uint64_t[]){0x0101, 0x0202, 0x0404, 0x0808, 0x1010, 0x2020, 0x4040, 0x8080});
    expect_cores("exclusive", NULL, 2, 0x0003, (uint64_t[]){0x0001, 0x0002});
    expect_cores("core-complex", NULL, 8, 0xffff,
                 (uint64_t[]){0x0101, 0x0202, 0x0404, 0x0808, 0x1010, 0x2020, 0x4040, 0x8080});
    CHECK(lk__numa_bind(context, &(lk__launch_binding){folder, "exclusive", &allowed, NULL, 2}, cores) == LK_EINVAL &&
              strstr(lk_context_error(context), "node 0 has only 1 cores for 2 ranks"),
          "%s", lk_context_error(context));
    CHECK(lk__numa_bind(context, &(lk__launch_binding){folder, "near", &allowed, NULL, 2}, cores) == LK_EINVAL &&
              strstr(lk_context_error(context), "'near' is not a NUMA binding"),
          "%s", lk_context_error(context));
    put_file("sys/devices/system/cpu/cpu0/cache/index3/level", "2\n");
    CHECK(lk__numa_bind(context, &(lk__launch_binding){folder, "core-complex", &allowed, NULL, 1}, cores) ==
                  LK_EINVAL &&
              strstr(lk_context_error(context), "no L3 cache"),
          "%s", lk_context_error(context));
    /* With GPUs, in bus order: a rank is bound to its own GPU's node. */
    put_file("proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put_file("proc/driver/nvidia/gpus/0000:C1:00.0/information", "");
    put_file("sys/bus/pci/devices/0000:01:00.0/numa_node", "3\n");
    put_file("sys/bus/pci/devices/0000:c1:00.0/numa_node", "1\n");
    expect_cores("node", NULL, 2, 0xffff, (uint64_t[]){0xc0c0, 0x0c0c});
    expect_cores("node", "1,0", 2, 0xffff, (uint64_t[]){0x0c0c, 0xc0c0});
    expect_cores("exclusive", "1,1", 2, 0xffff, (uint64_t[]){0x0404, 0x0808});
    expect_cores("node", "GPU-5f1c,GPU-aa00", 2, 0xffff, (uint64_t[]){0x0303, 0x3030}); /* UUIDs: unknown GPUs */
    put_file("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: X\nGPU UUID: \t GPU-aa007\nVideo BIOS: 1\n");
    put_file("proc/driver/nvidia/gpus/0000:C1:00.0/information", "Model: X\nGPU UUID: \t GPU-5f1c9\n");
    expect_cores("node", "GPU-5f1c,GPU-aa00", 2, 0xffff, (uint64_t[]){0x0c0c, 0xc0c0});
}

/* The cores of each rank, as bits; wanted NULL: there are none to be found. */
static void expect_local(const char *visible, const char *device, bool shares, int ranks, uint64_t allowed_bits,
                         const uint64_t *wanted)
{
    cpu_set_t           cores[8], allowed;
    int                 order[16], count = 0;
    lk__launch_locality locality = {folder, visible, device, shares, &allowed, order, 0, ranks};
    CPU_ZERO(&allowed);
    for (int core = 0; core < 8; core++) /* siblings together */
        for (int cpu = core; cpu < 16; cpu += 8)
            if (allowed_bits >> cpu & 1) order[count++] = cpu;
    for (int i = 0; i < count; i++) CPU_SET(order[i], &allowed);
    locality.count = count;
    bool known = lk__gpus_assign(context, &locality, cores);
    CHECK(known == (wanted != NULL), "%s, %s, %d ranks", visible ? visible : "all", device ? device : "none", ranks);
    for (int i = 0; i < ranks && known && wanted; i++) {
        uint64_t bits = 0;
        for (int j = 0; j < 64; j++) bits |= (uint64_t)(CPU_ISSET(j, &cores[i]) != 0) << j;
        CHECK(bits == wanted[i], "%d ranks: rank %d has %llx, not %llx", ranks, i, (unsigned long long)bits,
              (unsigned long long)wanted[i]);
    }
}

static void ranks_get_cores_that_are_local_to_their_gpus(void)
{
    static const char *const lists[] = {"4-7,12-15\n", "0-3,8-11\n", "0-3,8-11\n"};
    put_machine();
    put_file("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: \t GPU-aa007\n");
    put_file("proc/driver/nvidia/gpus/0000:C1:00.0/information", "GPU UUID: \t GPU-5f1c9\n");
    put_file("proc/driver/nvidia/gpus/0000:D1:00.0/information", "");
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "sys/bus/pci/devices/0000:%s:00.0/local_cpulist",
                 (const char *const[]){"01", "c1", "d1"}[i]);
        put_file(name, lists[i]);
    }
    expect_local(NULL, NULL, false, 3, 0xffff, (uint64_t[]){0xf0f0, 0x0303, 0x0c0c});
    expect_local(NULL, "auto", false, 2, 0xffff, (uint64_t[]){0xf0f0, 0x0f0f});
    expect_local(NULL, NULL, false, 2, 0xffff, NULL); /* they may use the CPU */
    expect_local(NULL, "cpu", false, 3, 0xffff, NULL);
    expect_local("1,2", NULL, false, 2, 0xffff, (uint64_t[]){0x0303, 0x0c0c});
    expect_local("2,0", "cuda", false, 2, 0x00ff, (uint64_t[]){0x000f, 0x00f0}); /* only allowed cores */
    expect_local("GPU-5f1c,GPU-aa00", NULL, false, 2, 0xffff, (uint64_t[]){0x0f0f, 0xf0f0});
    expect_local("GPU-77,GPU-aa00", NULL, false, 2, 0xffff, NULL);
    expect_local(NULL, "cuda:1", false, 4, 0xffff, (uint64_t[]){0x0101, 0x0202, 0x0404, 0x0808});
    expect_local("0", "cuda", false, 2, 0xffff, NULL);
    expect_local("0", "cuda", true, 2, 0xffff, (uint64_t[]){0x3030, 0xc0c0});
    expect_local("", "cuda", true, 2, 0xffff, NULL);
    expect_local("0,1", NULL, false, 2, 0x000f, NULL); /* no allowed core is near GPU 0 */
    expect_local("1,2", NULL, false, 2, 0x0001, NULL); /* one core for two */
    put_file("sys/bus/pci/devices/0000:d1:00.0/local_cpulist", "0-15\n");
    expect_local("1,2", NULL, false, 2, 0xffff, NULL); /* neither the same nor apart */
}

static void lines_are_filtered_by_substrings(void)
{
    static const struct {
        const char *filters, *line;
        bool        match;
    } cases[] = {{"apple,orange", "an orange", true},
                 {"apple,orange", "a pear", false},
                 {"a,,b", "xa,by", true},
                 {"a,,b", "a", false},
                 {"", "anything", false},
                 {",,,x", "1,2", true},
                 {"x,,", "x", false},
                 {"x,,", "x,", true},
                 {"apple", "appl", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(lk__filters_match(cases[i].filters, cases[i].line, strlen(cases[i].line)) == cases[i].match,
              "'%s' of '%s'", cases[i].filters, cases[i].line);
}

static void every_core_is_assigned_to_at_most_one_rank(void)
{
    cpu_set_t allowed, seen;
    REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    int count = CPU_COUNT(&allowed);
    for (int ranks = 1; ranks <= count + 1; ranks++) {
        cpu_set_t *cores;
        int        threads;
        char       text[LK__TOPOLOGY_TEXT];
        REQUIRE(lk__topology_split(context, ranks, "cpu", &cores, &threads, text) == LK_OK);
        int busy = lk__cgroup_cores(count) / ranks; /* count / ranks without a quota */
        CHECK(threads == (busy ? busy : 1) && (cores != NULL) == (ranks <= count));
        CPU_ZERO(&seen);
        for (int i = 0; cores && i < ranks; i++) {
            cpu_set_t both;
            CPU_AND(&both, &seen, &cores[i]);
            CHECK(CPU_COUNT(&both) == 0 && CPU_COUNT(&cores[i]) == count / ranks);
            CPU_OR(&seen, &seen, &cores[i]);
        }
        lk__free(context, LK_MEMORY_OTHER, cores, (size_t)ranks * sizeof *cores);
    }
}

static void a_process_may_use_the_cores_of_its_memory_nodes(void)
{
    const uint64_t shares[] = {0x0001, 0x0404, 0x0030 | 0x0040}, wide[] = {0x0303, 0x0c0c, 0x3030 | 0xc0c0};
    cpu_set_t      cores[3], allowed;
    CPU_ZERO(&allowed);
    for (int i = 0; i < 15; i++) CPU_SET(i, &allowed); /* not core 15 */
    put_machine();
    for (int one = 0; one < 2; one++) {
        put_file("sys/devices/system/node/online", one ? "0\n" : "0-4\n");
        for (int i = 0; i < 3; i++) {
            CPU_ZERO(&cores[i]);
            for (int j = 0; j < 16; j++)
                if (shares[i] >> j & 1) CPU_SET(j, &cores[i]);
        }
        lk__numa_widen(folder, &allowed, 3, cores);
        for (int i = 0; i < 3; i++) {
            uint64_t bits = 0;
            for (int j = 0; j < 64; j++) bits |= (uint64_t)(CPU_ISSET(j, &cores[i]) != 0) << j;
            uint64_t wanted = (one ? 0xffff : wide[i]) & 0x7fff;
            CHECK(bits == wanted, "%d nodes: rank %d may use %llx, not %llx", one ? 1 : 4, i, (unsigned long long)bits,
                  (unsigned long long)wanted);
        }
    }
}

static void make_spec(lk__launch_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    lk__spec_add(spec, "token", "0123456789abcdef0123456789abcdef");
    lk__spec_add(spec, "job", "j");
    lk__spec_add(spec, "directory", "/");
    lk__spec_add(spec, "address", "h");
    lk__spec_add(spec, "world", "%d", 5);
    lk__spec_add(spec, "first-rank", "%d", 2);
    lk__spec_add(spec, "ranks", "%d", 3);
    lk__spec_add(spec, "nodes", "%d", 2);
    lk__spec_add(spec, "node", "%d", 1);
    lk__spec_add(spec, "grace", "%.17g", 0.1);
    lk__spec_add(spec, "device", "cuda:1");
    lk__spec_add(spec, "environment", "LAUNCH_TEST=a=b");
    lk__spec_add(spec, "argument", "sh");
    lk__spec_add(spec, "argument", "%s", "");
    lk__spec_add(spec, "argument", "x=y\nz");
    spec->text[spec->length++] = 0;
}

static void a_job_specification_is_parsed_as_it_was_written(void)
{
    static lk__launch_spec spec;
    make_spec(&spec);
    REQUIRE(!spec.full && lk__spec_parse(context, &spec) == LK_OK, "%s", lk_context_error(context));
    CHECK(spec.world == 5 && spec.first_rank == 2 && spec.config.ranks == 3 && spec.config.node == 1 &&
          spec.config.grace == 0.1 && strcmp(spec.config.device, "cuda:1") == 0);
    CHECK(spec.argument_count == 3 && strcmp(spec.program[0], "sh") == 0 && !*spec.program[1] &&
          strcmp(spec.program[2], "x=y\nz") == 0 && !spec.program[3]);
    CHECK(strcmp(getenv("LAUNCH_TEST"), "a=b") == 0);
    memset(&spec, 0, sizeof spec);
    for (int i = 0; i < 4000; i++) lk__spec_add(&spec, "argument", "%s", "twenty characters.");
    CHECK(spec.full && spec.length < sizeof spec.text);
}

static void invalid_job_specifications_are_rejected(void)
{
    static lk__launch_spec spec;
    int                    rejected = 0;
    for (int round = 0; round < 20000; round++) {
        make_spec(&spec);
        if (round % 2) {
            spec.length = random_below((uint32_t)spec.length);
        } else {
            for (uint32_t i = 0, n = 1 + random_below(4); i < n; i++)
                spec.text[random_below((uint32_t)spec.length)] = (char)random_below(256);
        }
        spec.argument_count = 0;
        lk_status status = lk__spec_parse(context, &spec);
        CHECK(status == LK_OK || status == LK_EFORMAT);
        if (status == LK_OK)
            CHECK(spec.first_rank + spec.config.ranks <= spec.world && spec.argument_count > 0 &&
                  strlen(spec.token) == 32);
        rejected += status != LK_OK;
    }
    CHECK(rejected > 10000, "only %d of 20000 were rejected", rejected);
    lk_launch_config config = LK_LAUNCH_CONFIG_INIT;
    int              code;
    CHECK(lk_launch(context, &config, &code) == LK_EINVAL); /* no program */
    config.size--;
    CHECK(lk_launch(context, &config, &code) == LK_EINVAL);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK && mkdtemp(folder));
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    RUN(out_of_memory_kills_are_read_from_cgroups_of_both_versions);
    RUN(the_kernel_log_names_the_process_of_an_out_of_memory_kill);
    RUN(every_core_is_in_hwlocs_order_once);
    RUN(tee_and_redirects_are_parsed_as_in_torchrun);
    RUN(lines_do_not_depend_on_how_the_output_is_split);
    RUN(the_tail_keeps_the_newest_lines);
    RUN(ranks_are_bound_to_memory_nodes_sockets_and_caches);
    RUN(ranks_get_cores_that_are_local_to_their_gpus);
    RUN(a_process_may_use_the_cores_of_its_memory_nodes);
    RUN(lines_are_filtered_by_substrings);
    RUN(every_core_is_assigned_to_at_most_one_rank);
    RUN(a_job_specification_is_parsed_as_it_was_written);
    RUN(invalid_job_specifications_are_rejected);
    lk__folder_remove(folder);
    CHECK(access(folder, F_OK) != 0);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held);
    lk_context_free(context);
    return check_result();
}
