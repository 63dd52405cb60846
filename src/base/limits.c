/* limits.c - reads /proc/self/cgroup for the process's groups, /proc/self/mountinfo for where their hierarchies are
 * mounted, and the files of each group up to the mount. */
#define _GNU_SOURCE
#include "base/limits.h"

#include "base/hash.h"

#include <lockstep/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4096 };

/* A mounted hierarchy of control groups. */
typedef struct mount {
    char point[PATH]; /* where */
    char group[PATH]; /* the group that is seen there */
} mount;

static FILE *open_file(const char *root, const char *folder, const char *name)
{
    char path[4 * PATH];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return fopen(path, "re");
}

/* Whether a comma-separated list has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strspn(at, ",")) {
        size_t next = strcspn(at, ",");
        if (next == length && strncmp(at, word, length) == 0) return true;
        at += next;
    }
    return false;
}

/* The group's path, of a line "0::/path" of version 2 or "4:memory,hugetlb:/path" of version 1; NULL: another line. */
static char *match_group(char *line, const char *controller, int version)
{
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return NULL;
    *path++ = 0;
    controllers++;
    path[strcspn(path, "\n")] = 0;
    return (version == 2 ? !*controllers : has_word(controllers, controller)) ? path : NULL;
}

static bool find_group(const char *root, const char *controller, int version, char group[PATH])
{
    FILE  *file = open_file(root, "/proc/self", "cgroup");
    char  *line = NULL;
    size_t room = 0;
    bool   found = false;
    while (file && !found && getline(&line, &room, file) >= 0) {
        char *path = match_group(line, controller, version);
        found = path && strlen(path) < PATH;
        if (found) snprintf(group, PATH, "%s", path);
    }
    free(line);
    if (file) fclose(file);
    return found;
}

/* Spaces, tabs, newlines and backslashes of paths are \040 and so on in mountinfo. */
static void copy_unescaped(const char *from, char out[PATH])
{
    size_t used = 0;
    while (*from && used + 1 < PATH) {
        bool octal = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        if (octal) {
            out[used++] = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            out[used++] = *from++;
        }
    }
    out[used] = 0;
}

/* "33 25 0:30 /root /mount/point rw,relatime shared:9 - cgroup2 cgroup2 rw" */
static bool match_mount(char *line, const char *controller, int version, mount *m)
{
    char *fields[5], *separator = strstr(line, " - ");
    if (!separator) return false;
    *separator = 0;
    for (int i = 0; i < 5; i++)
        if (!(fields[i] = strsep(&line, " "))) return false;
    char *options = separator + 3, *type = strsep(&options, " ");
    if (!options || !strsep(&options, " ") || !options) return false;
    options[strcspn(options, "\n")] = 0;
    if (version == 2 ? strcmp(type, "cgroup2") != 0 : strcmp(type, "cgroup") != 0 || !has_word(options, controller))
        return false;
    copy_unescaped(fields[3], m->group);
    copy_unescaped(fields[4], m->point);
    return true;
}

/* The part of `group` below the mount's; NULL: it is not below it. */
static const char *below_mount(const mount *m, const char *group)
{
    size_t length = strcmp(m->group, "/") == 0 ? 0 : strlen(m->group);
    if (strncmp(group, m->group, length) != 0 || (group[length] && group[length] != '/') || strstr(group, "/.."))
        return NULL;
    return strcmp(group + length, "/") == 0 ? "" : group + length;
}

/* The mount that shows most of the groups above `group`, or else any: a container may see its own group at the mount's
 * root. */
static bool find_mount(const char *root, const char *controller, int version, const char *group, mount *found)
{
    FILE  *file = open_file(root, "/proc/self", "mountinfo");
    char  *line = NULL;
    size_t room = 0, shortest = SIZE_MAX;
    mount  m;
    if (!file) { /* the usual places */
        *found = (mount){.group = "/"};
        snprintf(found->point, PATH, "/sys/fs/cgroup%s%s", version == 1 ? "/" : "", version == 1 ? controller : "");
        return true;
    }
    while (getline(&line, &room, file) >= 0) {
        if (!match_mount(line, controller, version, &m)) continue;
        size_t length = below_mount(&m, group) ? strlen(m.group) : SIZE_MAX - 1;
        if (length >= shortest) continue;
        shortest = length;
        *found = m;
    }
    free(line);
    fclose(file);
    return shortest < SIZE_MAX;
}

static bool is_folder(const char *root, const char *folder)
{
    char        path[4 * PATH];
    struct stat about;
    snprintf(path, sizeof path, "%s%s", root, folder);
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* *top: the length of the mount's path, at which the groups above end. */
static bool find_folder(const char *root, const char *controller, int version, char *folder, size_t bytes, size_t *top)
{
    char        group[PATH];
    mount       m;
    const char *below;
    if (!find_group(root, controller, version, group) || !find_mount(root, controller, version, group, &m))
        return false;
    *top = strlen(m.point);
    below = below_mount(&m, group);
    size_t length = (size_t)snprintf(folder, bytes, "%s%s", m.point, below ? below : "");
    if (length >= bytes || !is_folder(root, folder)) snprintf(folder, bytes, "%s", m.point);
    return *top < bytes;
}

bool lk__cgroup_folder(const char *root, const char *controller, int version, char *folder, size_t bytes)
{
    size_t top;
    return find_folder(root, controller, version, folder, bytes, &top);
}

/* ---- the files of a group ---- */

/* A number in a file of one line; -1: there is no such file, or "max". */
static int64_t read_number(const char *root, const char *folder, const char *name)
{
    FILE     *file = open_file(root, folder, name);
    long long value = -1;
    if (!file) return -1;
    if (fscanf(file, "%lld", &value) != 1) value = -1;
    fclose(file);
    return value;
}

/* The sum of the values of up to three keys in a file of lines "key value" or "key: value kB"; -1: it has neither. */
static int64_t read_keys(const char *root, const char *folder, const char *name, const char *const keys[3])
{
    FILE     *file = open_file(root, folder, name);
    char      line[256], key[128];
    long long value;
    int64_t   sum = -1;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127[^ :]%*[ :]%lld", key, &value) != 2) continue;
        for (int i = 0; i < 3 && keys[i]; i++)
            if (strcmp(key, keys[i]) == 0) sum = (sum < 0 ? 0 : sum) + value;
    }
    if (file) fclose(file);
    return sum;
}

static double group_cores(const char *root, const char *folder, int version)
{
    double quota = -1, period = 0;
    if (version == 1) {
        quota = (double)read_number(root, folder, "cpu.cfs_quota_us");
        period = (double)read_number(root, folder, "cpu.cfs_period_us");
    } else {
        FILE *file = open_file(root, folder, "cpu.max"); /* "max 100000" */
        if (file && fscanf(file, "%lf %lf", &quota, &period) != 2) quota = -1;
        if (file) fclose(file);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Bytes, or INT64_MAX for no limit. Beyond memory.high a group is slowed down until it has less. */
static int64_t group_limit(const char *root, const char *folder, int version)
{
    const int64_t unlimited = INT64_C(1) << 60; /* version 1 has a number near 2^63 for none */
    int64_t       limit = read_number(root, folder, version == 1 ? "memory.limit_in_bytes" : "memory.max");
    int64_t       high = version == 1 ? -1 : read_number(root, folder, "memory.high");
    if (limit < 0 || limit >= unlimited) limit = INT64_MAX;
    return high >= 0 && high < limit ? high : limit;
}

/* What a group uses and cannot give back. The lists of file pages leave out shared memory, which has nowhere to go
 * without swap. */
static int64_t group_usage(const char *root, const char *folder, int version)
{
    static const char *const first[] = {"total_inactive_file", "total_active_file", NULL};
    static const char *const second[] = {"inactive_file", "active_file", "slab_reclaimable"};
    int64_t usage = read_number(root, folder, version == 1 ? "memory.usage_in_bytes" : "memory.current");
    int64_t pages = read_keys(root, folder, "memory.stat", version == 1 ? first : second);
    if (usage < 0) return 0;
    return pages > 0 ? (usage > pages ? usage - pages : 0) : usage;
}

/* ---- the process's groups ---- */

/* The group above; false: this one is the mount's. */
static bool go_up(char *folder, size_t top)
{
    char *last = strrchr(folder, '/');
    if (strlen(folder) <= top || !last || (size_t)(last - folder) < top) return false;
    *last = 0;
    return true;
}

/* In version 1, limits of groups above hold only where the group above counts what is below it. */
static bool is_counted_above(const char *root, const char *folder, int version)
{
    return version == 2 || read_number(root, folder, "memory.use_hierarchy") != 0;
}

double lk__limits_cores(const char *root)
{
    double least = 0;
    for (int version = 1; version <= 2; version++) {
        char   folder[2 * PATH];
        size_t top;
        if (!find_folder(root, "cpu", version, folder, sizeof folder, &top)) continue;
        do {
            double cores = group_cores(root, folder, version);
            if (cores > 0 && (least == 0 || cores < least)) least = cores;
        } while (go_up(folder, top));
    }
    return least;
}

/* Two processes with one number run on one kernel; containers do, too. */
static uint64_t machine_id(const char *root)
{
    char   text[128] = "";
    FILE  *file = open_file(root, "/proc/sys/kernel/random", "boot_id");
    size_t length = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    if (length == 0 && gethostname(text, sizeof text) == 0) length = strnlen(text, sizeof text);
    return lk__hash64(text, length, 1);
}

/* Inode numbers of groups are the same in all containers, whatever their paths are there. */
static uint64_t group_id(const char *root, const char *folder, uint64_t machine)
{
    char        path[4 * PATH];
    struct stat about = {0};
    snprintf(path, sizeof path, "%s%s", root, folder);
    (void)stat(path, &about);
    uint64_t numbers[2] = {(uint64_t)about.st_dev, (uint64_t)about.st_ino};
    return lk__hash64(numbers, sizeof numbers, machine);
}

static void add_limit(lk__memory_limits *l, lk__memory_limit one)
{
    int most = 0;
    if (one.available < 0) one.available = 0;
    if (l->count < LK__MEMORY_LIMITS) {
        l->all[l->count++] = one;
        return;
    }
    for (int i = 1; i < LK__MEMORY_LIMITS; i++)
        if (l->all[i].available > l->all[most].available) most = i;
    if (one.available < l->all[most].available) l->all[most] = one;
}

/* Of a process's address space, beside what is planned: the stacks of a transport's and a loader's threads, messages
 * that a library allocates while it connects. */
enum { THREADS_BYTES = 32 << 20 };

/* The first number of /proc/self/statm are the pages of the address space. */
static void add_address_space(const char *root, lk__memory_limits *limits, uint64_t machine)
{
    struct rlimit limit;
    int64_t       pages = read_number(root, "/proc/self", "statm"), id = getpid(), used;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || pages < 0 || limit.rlim_cur > INT64_MAX)
        return;
    used = pages * sysconf(_SC_PAGESIZE) + THREADS_BYTES;
    add_limit(limits, (lk__memory_limit){.id = lk__hash64(&id, sizeof id, machine),
                                         .limit = (int64_t)limit.rlim_cur,
                                         .available = (int64_t)limit.rlim_cur - used,
                                         .process = 1});
}

void lk__limits_memory(const char *root, lk__memory_limits *limits)
{
    static const char *const available[] = {"MemAvailable", NULL, NULL};
    uint64_t                 machine = machine_id(root);
    int64_t                  kib = read_keys(root, "/proc", "meminfo", available);
    *limits = (lk__memory_limits){.count = 0};
    if (kib >= 0) add_limit(limits, (lk__memory_limit){.id = machine, .available = kib * 1024});
    add_address_space(root, limits, machine);
    for (int version = 1; version <= 2; version++) {
        char   folder[2 * PATH];
        size_t top;
        if (!find_folder(root, "memory", version, folder, sizeof folder, &top)) continue;
        do {
            int64_t limit = group_limit(root, folder, version);
            if (limit < INT64_MAX)
                add_limit(limits, (lk__memory_limit){.id = group_id(root, folder, machine),
                                                     .limit = limit,
                                                     .available = limit - group_usage(root, folder, version)});
        } while (go_up(folder, top) && is_counted_above(root, folder, version));
    }
}
