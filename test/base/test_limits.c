/* test_limits.c - CPU quota and memory limits of the process's own control group and of all above it, read from made-up
 * trees of both versions of cgroups, and from a real group where this process may make one. */
#define _GNU_SOURCE
#include "base/limits.h"
#include "check.h"

#include <errno.h>
#include <ftw.h>
#include <lockstep/context.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t mib = 1048576;
static char          folder[] = "/tmp/test-limits-XXXXXX";

static void put_file(const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, "%s", path);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void put_bytes(const char *name, int64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%lld\n", (long long)bytes);
    put_file(name, text);
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *ftw)
{
    (void)about, (void)type, (void)ftw;
    return remove(path);
}

/* An empty tree with 1000 MiB available on the host. */
static void begin_tree(const char *groups, const char *mounts)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    REQUIRE(mkdir(folder, 0777) == 0);
    put_file("proc/meminfo", "MemTotal:        2048000 kB\nMemFree:          512000 kB\nMemAvailable:    1024000 kB\n");
    put_file("proc/self/cgroup", groups);
    if (mounts) put_file("proc/self/mountinfo", mounts);
}

static lk__memory_limits read_memory(void)
{
    lk__memory_limits limits;
    lk__limits_memory(folder, &limits);
    return limits;
}

/* MiB of the limit number i, and those that are available under it; 0, 0: there are fewer. */
static bool is_limit(const lk__memory_limits *l, int i, int64_t limit, int64_t available)
{
    if (i >= l->count) return false;
    if (l->all[i].limit == limit * mib && l->all[i].available == available * mib) return true;
    fprintf(stderr, "limit %d: %lld of %lld bytes\n", i, (long long)l->all[i].available, (long long)l->all[i].limit);
    return false;
}

static const char unified[] =
    "25 30 0:22 / /proc rw shared:5 - proc proc rw\n"
    "33 25 0:30 / /sys/fs/cgroup rw,relatime shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";

static void no_files_mean_no_limits(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    lk__memory_limits l = read_memory();
    CHECK(l.count == 0 && lk__limits_cores(folder) == 0);
    begin_tree("0::/\n", unified);
    l = read_memory();
    CHECK(l.count == 1 && is_limit(&l, 0, 0, 1000) && lk__limits_cores(folder) == 0);
}

static void version_2_has_limits_of_the_own_group_and_of_those_above(void)
{
    begin_tree("0::/user.slice/jobs/mine\n", unified);
    put_file("sys/fs/cgroup/cpu.max", "50000 100000\n"); /* of the root: only a container sees one there */
    put_file("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
    put_file("sys/fs/cgroup/user.slice/memory.max", "max\n");
    put_bytes("sys/fs/cgroup/user.slice/jobs/memory.max", 600 * mib);
    put_bytes("sys/fs/cgroup/user.slice/jobs/memory.current", 500 * mib);
    put_file("sys/fs/cgroup/user.slice/jobs/memory.stat",
             "anon 1\nfile 419430400\ninactive_file 104857600\nactive_file 52428800\nslab_reclaimable 10485760\n");
    put_file("sys/fs/cgroup/user.slice/jobs/cpu.max", "max 100000\n");
    put_bytes("sys/fs/cgroup/user.slice/jobs/mine/memory.max", 400 * mib);
    put_bytes("sys/fs/cgroup/user.slice/jobs/mine/memory.current", 100 * mib);
    put_file("sys/fs/cgroup/user.slice/jobs/mine/memory.stat", "anon 104857600\nactive_file 0\n");
    put_file("sys/fs/cgroup/user.slice/jobs/mine/cpu.max", "225000 100000\n");
    put_bytes("sys/fs/cgroup/user.slice/other/memory.max", mib);
    lk__memory_limits l = read_memory();
    CHECK(l.count == 3 && is_limit(&l, 0, 0, 1000) && is_limit(&l, 1, 400, 300) && is_limit(&l, 2, 600, 260));
    CHECK(l.all[1].id != l.all[2].id && l.all[0].id != l.all[1].id);
    CHECK(lk__limits_cores(folder) == 0.5, "%g", lk__limits_cores(folder));
    put_file("sys/fs/cgroup/cpu.max", "max 100000\n");
    CHECK(lk__limits_cores(folder) == 1.5, "%g", lk__limits_cores(folder));

    put_bytes("sys/fs/cgroup/user.slice/jobs/mine/memory.high", 90 * mib); /* it has more than that already */
    put_file("proc/self/cgroup", "0::/user.slice/jobs/mine\n");
    lk__memory_limits now = read_memory();
    CHECK(now.count == 3 && is_limit(&now, 1, 90, 0) && now.all[1].id == l.all[1].id);

    put_file("proc/self/cgroup", "0::/user.slice/other\n"); /* not the neighbour's, and the neighbour's not mine */
    now = read_memory();
    CHECK(now.count == 2 && is_limit(&now, 1, 1, 1) && now.all[1].id != l.all[1].id && now.all[0].id == l.all[0].id);
}

static const char separate[] =
    "33 25 0:30 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "34 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "37 33 0:34 / /sys/fs/cg\\040roup/memory rw,relatime shared:12 - cgroup cgroup rw,memory\n"
    "43 33 0:40 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

static void version_1_has_a_hierarchy_for_each_controller(void)
{
    begin_tree("9:name=systemd:/x\n4:hugetlb,memory:/jobs/a:b\n2:cpu,cpuacct:/slow\n1:cpuset:/\n0::/elsewhere\n",
               separate);
    put_file("sys/fs/cgroup/cpu,cpuacct/slow/cpu.cfs_quota_us", "75000\n");
    put_file("sys/fs/cgroup/cpu,cpuacct/slow/cpu.cfs_period_us", "50000\n");
    put_file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put_file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put_file("sys/fs/cg roup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put_bytes("sys/fs/cg roup/memory/jobs/memory.limit_in_bytes", 500 * mib);
    put_bytes("sys/fs/cg roup/memory/jobs/memory.usage_in_bytes", 450 * mib);
    put_file("sys/fs/cg roup/memory/jobs/memory.stat",
             "cache 1\ninactive_file 5\ntotal_inactive_file 209715200\ntotal_active_file 104857600\n");
    put_bytes("sys/fs/cg roup/memory/jobs/a:b/memory.limit_in_bytes", 900 * mib);
    put_bytes("sys/fs/cg roup/memory/jobs/a:b/memory.usage_in_bytes", 50 * mib);
    lk__memory_limits l = read_memory();
    CHECK(l.count == 3 && is_limit(&l, 1, 900, 850) && is_limit(&l, 2, 500, 350));
    CHECK(lk__limits_cores(folder) == 1.5, "%g", lk__limits_cores(folder));

    put_file("sys/fs/cg roup/memory/jobs/memory.use_hierarchy", "0\n"); /* then it does not count what is below */
    l = read_memory();
    CHECK(l.count == 2 && is_limit(&l, 1, 900, 850));
}

static void a_hybrid_of_both_versions_has_the_limits_of_both(void)
{
    begin_tree("4:memory:/v1\n0::/v2\n", separate);
    put_bytes("sys/fs/cg roup/memory/v1/memory.limit_in_bytes", 300 * mib);
    put_file("sys/fs/cgroup/unified/v2/cpu.max", "200000 100000\n");
    lk__memory_limits l = read_memory();
    CHECK(l.count == 2 && is_limit(&l, 1, 300, 300));
    CHECK(lk__limits_cores(folder) == 2, "%g", lk__limits_cores(folder));
}

static void a_container_sees_its_group_at_the_root_of_the_mount(void)
{
    /* the mount shows the container's group, and /proc gives the host's path */
    begin_tree("0::/docker/abc/worker\n", "33 25 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put_bytes("sys/fs/cgroup/memory.max", 700 * mib);
    put_bytes("sys/fs/cgroup/worker/memory.max", 800 * mib);
    lk__memory_limits l = read_memory();
    CHECK(l.count == 3 && is_limit(&l, 1, 800, 800) && is_limit(&l, 2, 700, 700));
    /* a group with a namesake: /docker/abcd is not below /docker/abc */
    put_file("proc/self/cgroup", "0::/docker/abcd/worker\n");
    l = read_memory();
    CHECK(l.count == 2 && is_limit(&l, 1, 700, 700));
    /* outside of the namespace that the mount shows, and a path that is not there */
    put_file("proc/self/cgroup", "0::/../../elsewhere\n");
    l = read_memory();
    CHECK(l.count == 2 && is_limit(&l, 1, 700, 700));
    put_file("proc/self/cgroup", "0::/docker/abc/gone\n");
    l = read_memory();
    CHECK(l.count == 2 && is_limit(&l, 1, 700, 700));
    /* of two mounts, the one that shows more */
    put_file("proc/self/cgroup", "0::/docker/abc/worker\n");
    put_file("proc/self/mountinfo", "33 25 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
                                    "34 25 0:30 / /host/cgroup ro - cgroup2 cgroup rw\n");
    put_bytes("host/cgroup/docker/memory.max", 100 * mib);
    put_bytes("host/cgroup/docker/abc/worker/memory.max", 800 * mib);
    l = read_memory();
    CHECK(l.count == 3 && is_limit(&l, 1, 800, 800) && is_limit(&l, 2, 100, 100));
}

static void of_many_limits_those_with_the_least_available_count(void)
{
    char group[256] = "", name[512], line[300];
    begin_tree("0::/\n", unified);
    for (int i = 0; i < 20; i++) {
        snprintf(group + strlen(group), sizeof group - strlen(group), "/g%d", i);
        snprintf(name, sizeof name, "sys/fs/cgroup%s/memory.max", group);
        put_bytes(name, (2000 - 10 * (i * 7 % 20)) * mib);
    }
    snprintf(line, sizeof line, "0::%s\n", group);
    put_file("proc/self/cgroup", line);
    lk__memory_limits l = read_memory();
    int64_t           least = INT64_MAX, most = 0;
    for (int i = 0; i < l.count; i++) {
        if (l.all[i].available < least) least = l.all[i].available;
        if (l.all[i].available > most) most = l.all[i].available;
    }
    CHECK(l.count == LK__MEMORY_LIMITS && least == 1000 * mib && most == (2000 - 130) * mib, "%lld to %lld",
          (long long)least, (long long)most);
}

/* ---- a real group ---- */

/* Where a group can be made: below this process's own, or at the top of the hierarchy. */
static bool make_group(int version, char *out, size_t size)
{
    char own[4096];
    if (!lk__cgroup_folder("", "memory", version, own, sizeof own)) return false;
    snprintf(out, size, "%s/lockstep-test-%ld", own, (long)getpid());
    if (mkdir(out, 0755) != 0) return false;
    char limit[4200];
    snprintf(limit, sizeof limit, "%s/%s", out, version == 1 ? "memory.limit_in_bytes" : "memory.max");
    FILE *file = fopen(limit, "w");
    bool  done = file && fprintf(file, "%lld\n", (long long)(192 * mib)) > 0 && fclose(file) == 0;
    if (!done) rmdir(out);
    return done;
}

/* Exit status of a child that joins the group: 0 when it reads its limit there. */
static int read_in_group(const char *group)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%ld\n", (long)getpid()) < 0 || fclose(file) != 0) return SKIPPED;
    lk_limits limits;
    lk_limits_read(&limits);
    bool right = limits.memory > 0 && limits.memory <= (size_t)(192 * mib) && limits.available <= limits.memory &&
                 limits.available > 0 && limits.available_of == limits.memory;
    if (!right)
        fprintf(stderr, "limit %zu, available %zu of %zu\n", limits.memory, limits.available, limits.available_of);
    return right ? 0 : 1;
}

static void a_real_group_has_its_limit(void)
{
    char group[4150];
    int  tried = 0;
    for (int version = 1; version <= 2; version++) {
        if (!make_group(version, group, sizeof group)) continue;
        int   status = 0;
        pid_t child = fork();
        if (child == 0) _exit(read_in_group(group));
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SKIPPED), "status %d", status);
        tried += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        rmdir(group);
    }
    if (!tried) printf("skip: this process may not make control groups\n");
}

int main(void)
{
    REQUIRE(mkdtemp(folder));
    RUN(no_files_mean_no_limits);
    RUN(version_2_has_limits_of_the_own_group_and_of_those_above);
    RUN(version_1_has_a_hierarchy_for_each_controller);
    RUN(a_hybrid_of_both_versions_has_the_limits_of_both);
    RUN(a_container_sees_its_group_at_the_root_of_the_mount);
    RUN(of_many_limits_those_with_the_least_available_count);
    RUN(a_real_group_has_its_limit);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return check_failures != 0;
}
