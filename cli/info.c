/* info.c - `lockstep info`: the build's features and the machine's resources, or a description of a checkpoint. */
#define _GNU_SOURCE
#include "info_checkpoint.h"
#include "json.h"
#include "terminal.h"

#include <ctype.h>
#include <dlfcn.h>
#include <lockstep/base.h>
#include <lockstep/context.h>
#include <lockstep/device.h>
#include <lockstep/environment.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#ifdef LK_PNG
#include <png.h>
#define PNG_TEXT PNG_LIBPNG_VER_STRING
#else
#define PNG_TEXT NULL
#endif
#ifdef LK_JPEG
#include <jpeglib.h>
#define QUOTE_VALUE(value) QUOTE(value)
#define QUOTE(text) #text
#ifdef LIBJPEG_TURBO_VERSION
#define JPEG_TEXT "libjpeg-turbo " QUOTE_VALUE(LIBJPEG_TURBO_VERSION)
#else
#define JPEG_TEXT QUOTE_VALUE(JPEG_LIB_VERSION)
#endif
#else
#define JPEG_TEXT NULL
#endif

#ifdef __clang__
#define COMPILER __VERSION__ /* names itself */
#else
#define COMPILER "gcc " __VERSION__
#endif

static const option info_options[] = {
    FLAG("json", "Print one JSON object"),
    OPTIONS_END,
};

/* ---- values from system files; each may be missing ---- */

static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool got = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (got) out[strcspn(out, "\n")] = 0;
    return got;
}

/* The value after "key … :" in a file of such lines. */
static bool read_field(const char *path, const char *key, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    char  line[512];
    bool  found = false;
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0 || isalnum((unsigned char)line[strlen(key)])) continue;
        const char *value = colon + 1 + strspn(colon + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    fclose(file);
    return found;
}

static int64_t memory_field(const char *key)
{
    char text[64];
    return read_field("/proc/meminfo", key, text, sizeof text) ? (int64_t)strtoll(text, NULL, 10) * 1024 : -1;
}

static int cores_allowed(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static const char *describe_processor(char *out, size_t size)
{
    if (read_field("/proc/cpuinfo", "model name", out, size)) return out;
    char implementer[32], part[32];
    if (!read_field("/proc/cpuinfo", "CPU implementer", implementer, sizeof implementer) ||
        !read_field("/proc/cpuinfo", "CPU part", part, sizeof part))
        return NULL;
    if (strcmp(implementer, "0x41") == 0 && strcmp(part, "0xd0c") == 0) return "Arm Neoverse-N1";
    if (strcmp(implementer, "0x41") == 0 && strcmp(part, "0xd40") == 0) return "Arm Neoverse-V1";
    if (strcmp(implementer, "0x41") == 0 && strcmp(part, "0xd4f") == 0) return "Arm Neoverse-V2";
    snprintf(out, size, "implementer %s, part %s", implementer, part);
    return out;
}

/* "L1d 64K, L1i 64K, L2 1024K", or NULL if the kernel does not list them. */
static const char *describe_caches(char *out, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < 8; i++) {
        char        path[128], level[16], type[32], bytes[32];
        const char *base = "/sys/devices/system/cpu/cpu0/cache/index%d/%s";
        snprintf(path, sizeof path, base, i, "level");
        if (!read_line(path, level, sizeof level)) break;
        snprintf(path, sizeof path, base, i, "type");
        if (!read_line(path, type, sizeof type)) break;
        snprintf(path, sizeof path, base, i, "size");
        if (!read_line(path, bytes, sizeof bytes)) break;
        const char *kind = type[0] == 'D' ? "d" : type[0] == 'I' ? "i" : "";
        int         n = snprintf(out + used, size - used, "%sL%s%s %s", used ? ", " : "", level, kind, bytes);
        if (n < 0 || (size_t)n >= size - used) break;
        used += (size_t)n;
    }
    return used ? out : NULL;
}

/* The version of libcurl, which `lockstep data get` loads for downloads; NULL if it is not installed. */
static const char *read_curl_version(char *out, size_t size)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    for (int i = 0; names[i]; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!library) continue;
        void *symbol = dlsym(library, "curl_version");
        char *(*version)(void);
        memcpy(&version, &symbol, sizeof version); /* ISO C has no cast from data to function pointers */
        snprintf(out, size, "%s", symbol ? version() : names[i]);
        out[strcspn(out, " ")] = 0;
        dlclose(library);
        return out;
    }
    return NULL;
}

static bool isa_works(const char *name)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.isa = name;
    bool works = lk_context_create(&config, &context) == LK_OK;
    lk_context_free(context);
    return works;
}

static const char *isa_chosen(void)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    const char *name = lk_context_create(&config, &context) == LK_OK ? lk_context_isa(context) : NULL;
    lk_context_free(context);
    return name;
}

/* Calls each(argument, name) for the instruction sets that kernels were built for. */
static void each_isa(void (*each)(void *argument, const char *name), void *argument)
{
    char names[] = LK_BUILT_ISAS, *rest = names;
    for (char *name; (name = strsep(&rest, " "));) each(argument, name);
}

static void print_isa(void *argument, const char *name)
{
    const char *chosen = argument;
    printf(" %s%s", name,
           chosen && strcmp(name, chosen) == 0 ? " (in use)"
           : isa_works(name)                   ? ""
                                               : " (not on this machine)");
}

static void isa_built(void *argument, const char *name) { json_text(argument, NULL, name); }

static void isa_available(void *argument, const char *name)
{
    if (isa_works(name)) json_text(argument, NULL, name);
}

static void print_row(const char *name, const char *value)
{
    terminal_print(stdout, "%-18s %s\n", name, value ? value : "unknown");
}

static void print_bytes(const char *name, int64_t bytes, const char *otherwise)
{
    if (bytes < 0)
        print_row(name, otherwise);
    else
        printf("%-18s %.1f GiB\n", name, (double)bytes / 1073741824.0);
}

/* Whether a command without --device would use it. */
static bool device_in_use(const char *name)
{
    const char *chosen = lk_environment_get(NULL, "LOCKSTEP_DEVICE");
    bool        automatic = !chosen || !*chosen || strcmp(chosen, "auto") == 0;
    return strcmp(name, automatic ? lk_device_auto() : chosen) == 0;
}

static void print_devices(void)
{
    const char *name;
    for (size_t i = 0; (name = lk_device_name(i)); i++)
        printf("%-18s %s: %s%s\n", i ? "" : "devices", name, lk_device_text(i), device_in_use(name) ? " (in use)" : "");
}

/* Lines of lk_device_report, the first behind the row's name. */
typedef struct report_lines {
    char   text[4096];
    size_t used;
} report_lines;

static void keep_lines(void *user, const char *text, size_t bytes)
{
    report_lines *lines = user;
    if (lines->used + bytes >= sizeof lines->text) return;
    memcpy(lines->text + lines->used, text, bytes);
    lines->used += bytes;
    lines->text[lines->used] = 0;
}

static bool read_report(const char *device, report_lines *lines)
{
    lines->used = 0;
    lines->text[0] = 0;
    return lk_device_report(device, keep_lines, lines) >= 0;
}

/* Devices with a module: how it was built, and what it says of this machine. */
static void print_modules(void)
{
    lk_device    d = LK_DEVICE_INIT;
    report_lines lines;
    for (int i = 0; lk_device_at(i, &d) == LK_OK; i++) {
        if (!d.title) continue;
        bool found = read_report(d.name, &lines);
        if (*d.built)
            printf("%-18s module built with %s %s\n", d.title, d.built_with, d.built);
        else
            printf("%-18s no module in this build (no %s was found)%s\n", d.title, d.built_with,
                   found ? "; using one from another build:" : "");
        if (!found && *d.built) print_row("", lk_context_error(NULL));
        if (!found) continue;
        for (char *line = strtok(lines.text, "\n"); line; line = strtok(NULL, "\n")) print_row("", line);
    }
}

/* "cuda_built" and "cuda". */
static void print_modules_json(json *j)
{
    lk_device    d = LK_DEVICE_INIT;
    report_lines lines;
    char         key[64];
    for (int i = 0; lk_device_at(i, &d) == LK_OK; i++) {
        if (!d.title) continue;
        snprintf(key, sizeof key, "%s_built", d.name);
        json_text(j, key, d.built);
        json_text(j, d.name, read_report(d.name, &lines) ? lines.text : lk_context_error(NULL));
    }
}

static void print_text(const char *machine)
{
    char text[256];
    printf("%-18s %s\n", "lockstep", lk_version());
    printf("%-18s %s, %s\n", "compiler", COMPILER, LK_BUILD_TYPE);
    printf("%-18s", "instruction sets");
    each_isa(print_isa, (void *)isa_chosen());
    printf("\n");
    print_row("SHA-256", lk_sha256_instructions());
    print_devices();
    print_modules();
    print_row("zlib", zlibVersion());
    print_row("libpng", PNG_TEXT ? PNG_TEXT : "not built in: `--data folder:DIR` cannot read PNG files");
    print_row("libjpeg", JPEG_TEXT ? JPEG_TEXT : "not built in: `--data folder:DIR` cannot read JPEG files");
#ifdef LK_HWLOC
    print_row("hwloc", "used to pin ranks if its library is installed");
#else
    print_row("hwloc", "not built in: ranks are pinned by the socket and core numbers that the kernel reports");
#endif
    print_row("libcurl",
              read_curl_version(text, sizeof text) ? text : "not found: `lockstep data get` cannot download");
    print_row("MPI modules", *LK_BUILT_MPI ? LK_BUILT_MPI : "none in this build (no mpicc was found)");
    print_row("machine", machine);
    print_row("processor", describe_processor(text, sizeof text));
    print_row("caches", describe_caches(text, sizeof text));
    printf("%-18s %ld online, %d allowed\n", "cores", sysconf(_SC_NPROCESSORS_ONLN), cores_allowed());
    lk_limits limits;
    lk_limits_read(&limits);
    if (limits.cores > 0)
        printf("%-18s %.2f cores\n", "cgroup quota", limits.cores);
    else
        print_row("cgroup quota", "none");
    printf("%-18s %d\n", "default threads", lk_default_threads());
    print_bytes("memory", memory_field("MemTotal"), NULL);
    print_bytes("memory available", limits.available < SIZE_MAX ? (int64_t)limits.available : -1, NULL);
    print_bytes("cgroup memory", limits.memory > 0 ? (int64_t)limits.memory : -1, "no limit");
}

static void print_json(const char *machine)
{
    char      text[256];
    lk_limits limits;
    json      j = json_to(stdout);
    lk_limits_read(&limits);
    json_open(&j, NULL, '{');
    json_text(&j, "version", lk_version());
    json_text(&j, "compiler", COMPILER);
    json_text(&j, "build_type", LK_BUILD_TYPE);
    json_open(&j, "isas_built", '[');
    each_isa(isa_built, &j);
    json_close(&j, ']');
    json_open(&j, "isas_available", '[');
    each_isa(isa_available, &j);
    json_close(&j, ']');
    json_text(&j, "isa", isa_chosen());
    json_text(&j, "sha256", lk_sha256_instructions());
    json_open(&j, "devices", '[');
    for (size_t i = 0; lk_device_name(i); i++) json_text(&j, NULL, lk_device_name(i));
    json_close(&j, ']');
    print_modules_json(&j);
    json_text(&j, "zlib", zlibVersion());
    json_text(&j, "libpng", PNG_TEXT);
    json_text(&j, "libjpeg", JPEG_TEXT);
    json_text(&j, "libcurl", read_curl_version(text, sizeof text));
    json_text(&j, "mpi_modules", LK_BUILT_MPI);
    json_text(&j, "machine", machine);
    json_text(&j, "processor", describe_processor(text, sizeof text));
    json_text(&j, "caches", describe_caches(text, sizeof text));
    json_integer(&j, "cores_online", sysconf(_SC_NPROCESSORS_ONLN));
    json_integer(&j, "cores_allowed", cores_allowed());
    json_number(&j, "cgroup_cores", limits.cores > 0 ? limits.cores : (double)NAN);
    json_integer(&j, "threads", lk_default_threads());
    json_integer(&j, "memory_bytes", memory_field("MemTotal"));
    json_integer(&j, "memory_available_bytes", limits.available < SIZE_MAX ? (int64_t)limits.available : -1);
    json_integer(&j, "cgroup_memory_bytes", limits.memory > 0 ? (int64_t)limits.memory : -1);
    json_close(&j, '}');
    json_line(&j);
}

static int run_info(const options *given)
{
    if (given->operand_count > 0) return info_checkpoint(given->operands[0], options_flag(given, "json"));
    struct utsname name;
    char           machine[sizeof name.sysname + sizeof name.release + sizeof name.machine + 4] = "unknown";
    if (uname(&name) == 0) snprintf(machine, sizeof machine, "%s %s %s", name.sysname, name.release, name.machine);
    if (options_flag(given, "json"))
        print_json(machine);
    else
        print_text(machine);
    return 0;
}

const command command_info = {
    .name = "info",
    .summary = "show the build and the machine, or describe a checkpoint",
    .description = "Shows the version, the build, the instruction sets that its kernels and this machine support, the "
                   "libraries it finds, and the available cores and memory.\n\n"
                   "Given a checkpoint directory, shows its step, the options of its run, the fields and classes of "
                   "its samples, the normalisation, the shapes of its tensors, who wrote it and when, and whether the "
                   "digests of its files match.\n\n"
                   "Example: lockstep info runs/first",
    .operands = "[DIR]",
    .most = 1,
    .options = info_options,
    .run = run_info,
};
