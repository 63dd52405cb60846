/* gpus.c - the GPUs of this host as the kernel and NVIDIA's driver list them in /proc and /sys, without loading the
 * driver: which one a rank uses, and the cores that are local to it. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <dirent.h>
#include <lockstep/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

void lk__gpus_list(const char *root, lk__launch_gpus *gpus)
{
    char           path[LK__LAUNCH_PATH];
    struct dirent *entry;
    gpus->count = 0;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    DIR *directory = opendir(path);
    while (directory && gpus->count < LK__GPUS && (entry = readdir(directory)))
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < LK__GPU_NAME)
            strcpy(gpus->names[gpus->count++], entry->d_name);
    if (directory) closedir(directory);
    qsort(gpus->names, (size_t)gpus->count, sizeof gpus->names[0], compare_names);
}

/* Whether the driver's text about a GPU has a UUID that begins with this one, of `length` characters. */
static bool has_uuid(const char *root, const char *name, const char *uuid, size_t length)
{
    char path[LK__LAUNCH_PATH], line[256];
    bool same = false;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, name);
    FILE *file = fopen(path, "re");
    while (file && !same && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, "GPU UUID:", 9) == 0 ? line + 9 : NULL;
        same = value && strncmp(value + strspn(value, " \t"), uuid, length) == 0;
    }
    if (file) fclose(file);
    return same;
}

int lk__gpus_visible(const lk__launch_gpus *gpus, const char *visible)
{
    int count = visible && *visible ? 1 : 0;
    if (!visible) return gpus->count;
    for (; (visible = strchr(visible, ',')); visible++) count++;
    return count;
}

int lk__gpu_find(const char *root, const lk__launch_gpus *gpus, const char *visible, int number)
{
    char *end;
    if (!visible) return number < gpus->count ? number : -1;
    for (int i = 0; i < number && visible; i++) visible = (visible = strchr(visible, ',')) ? visible + 1 : NULL;
    if (!visible) return -1;
    size_t length = strcspn(visible, ",");
    long   found = strtol(visible, &end, 10);
    if (end == visible + length && length > 0) return found >= 0 && found < gpus->count ? (int)found : -1;
    for (int i = 0; i < gpus->count && length > 4; i++)
        if (has_uuid(root, gpus->names[i], visible, length)) return i;
    return -1;
}

bool lk__gpu_read(const char *root, const char *gpu, const char *file, char *out, size_t size)
{
    char lower[LK__GPU_NAME];
    snprintf(lower, sizeof lower, "%s", gpu);
    for (char *c = lower; *c; c++)
        if (*c >= 'A' && *c <= 'F') *c = (char)(*c + 'a' - 'A');
    return lk__sysfs_read(root, out, size, "/sys/bus/pci/devices/%s/%s", lower, file);
}

/* Whether ranks on this device use GPUs. */
static bool is_gpu(const char *device)
{
    lk_device d = LK_DEVICE_INIT;
    size_t    length = strcspn(device, ":");
    for (int i = 0; lk_device_at(i, &d) == LK_OK; i++)
        if (strlen(d.name) == length && memcmp(d.name, device, length) == 0) return !d.on_host && d.numbered;
    return strcmp(device, "auto") == 0;
}

/* The number, among those that a rank sees, of the GPU that it uses; -1: none, or not known. */
static int number_of_rank(const lk__launch_locality *locality, int visible, int rank)
{
    const char *device = locality->device;
    const char *number = device ? strchr(device, ':') : NULL;
    if (visible == 0 || (device && !is_gpu(device))) return -1;
    if (number) return atoi(number + 1);
    if (!device && visible != locality->ranks) return -1; /* it may not use GPUs: then it would lose cores by this */
    if (visible < locality->ranks && !locality->shares) return -1;
    return rank % visible;
}

/* Allowed cores that are local to the GPU of a rank; false: not known. */
static bool find_local(const lk__launch_locality *locality, const lk__launch_gpus *gpus, int rank, cpu_set_t *set)
{
    char text[4096];
    int  number = number_of_rank(locality, lk__gpus_visible(gpus, locality->visible), rank);
    int  gpu = number < 0 ? -1 : lk__gpu_find(locality->root, gpus, locality->visible, number);
    if (gpu < 0 || !lk__gpu_read(locality->root, gpus->names[gpu], "local_cpulist", text, sizeof text)) return false;
    lk__sysfs_cpus(text, locality->allowed, set);
    return CPU_COUNT(set) > 0;
}

/* Reduces a rank's set, which it has in common with `sharing` ranks, to the part with this index. */
static void take_part(const lk__launch_locality *locality, int index, int sharing, cpu_set_t *set)
{
    cpu_set_t part;
    int       share = CPU_COUNT(set) / sharing, at = 0;
    CPU_ZERO(&part);
    for (int i = 0; i < locality->count; i++) {
        if (!CPU_ISSET(locality->order[i], set)) continue;
        if (at / share == index) CPU_SET(locality->order[i], &part);
        at++;
    }
    *set = part;
}

static bool assign_rank(const lk__launch_locality *locality, const cpu_set_t *sets, int rank, cpu_set_t *cores)
{
    cpu_set_t both;
    int       index = 0, sharing = 0;
    for (int i = 0; i < locality->ranks; i++) {
        bool same = CPU_EQUAL(&sets[i], &sets[rank]);
        sharing += same;
        index += same && i < rank;
        CPU_AND(&both, &sets[i], &sets[rank]);
        if (!same && CPU_COUNT(&both) > 0) return false;
    }
    *cores = sets[rank];
    if (CPU_COUNT(cores) < sharing) return false;
    take_part(locality, index, sharing, cores);
    return true;
}

bool lk__gpus_assign(lk_context *context, const lk__launch_locality *locality, cpu_set_t *cores)
{
    lk__launch_gpus gpus;
    size_t          bytes = (size_t)locality->ranks * sizeof(cpu_set_t);
    lk__gpus_list(locality->root, &gpus);
    cpu_set_t *sets = gpus.count ? lk__alloc(context, LK_MEMORY_OTHER, bytes) : NULL;
    bool       known = sets != NULL;
    for (int i = 0; i < locality->ranks && known; i++) known = find_local(locality, &gpus, i, &sets[i]);
    for (int i = 0; i < locality->ranks && known; i++) known = assign_rank(locality, sets, i, &cores[i]);
    lk__free(context, LK_MEMORY_OTHER, sets, sets ? bytes : 0);
    return known;
}
