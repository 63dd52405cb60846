/* choices.cu - the cache file of measured choices. Text, one choice a line: what the choice was measured with (GPU, driver, library), the
 * operation and its shape, both as hashes, and the choice's bytes, all in hexadecimal. */
#include "device/cuda/choices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char HEADER[] = "lockstep cuda-algorithms 1\n";
enum { PATH = 1024, LINE = 64 + 2 * LK__CUDA_CHOICE, MOST = 1 << 16 };

typedef struct choice {
    struct choice *next;
    uint64_t       where, key[2];
    size_t         bytes;
    unsigned char  data[LK__CUDA_CHOICE];
} choice;

struct lk__cuda_choices {
    lk_context *context;
    uint64_t    where; /* hash of GPU, driver and library */
    char        path[PATH];
    bool        closed; /* the file is not ours or cannot be written: said once */
    choice     *first;
    int         count;
};

static bool find_path(char path[PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char        folder[PATH - 32];
    if (cache && cache[0] == '/')
        snprintf(folder, sizeof folder, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return false;
    (void)mkdir(folder, 0700);
    snprintf(path, PATH, "%s/lockstep", folder);
    (void)mkdir(path, 0700);
    snprintf(path, PATH, "%s/lockstep/cuda-algorithms", folder);
    return true;
}

static choice *find_choice(const lk__cuda_choices *c, uint64_t where, const uint64_t key[2])
{
    for (choice *x = c->first; x; x = x->next)
        if (x->where == where && x->key[0] == key[0] && x->key[1] == key[1]) return x;
    return NULL;
}

static choice *add_choice(lk__cuda_choices *c, uint64_t where, const uint64_t key[2])
{
    choice *x = c->count < MOST ? (choice *)calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    x->where = where;
    x->key[0] = key[0], x->key[1] = key[1];
    x->next = c->first;
    c->first = x;
    c->count++;
    return x;
}

static bool parse_line(lk__cuda_choices *c, const char *line)
{
    unsigned long long where, k0, k1;
    int                used = 0;
    if (sscanf(line, "%16llx %16llx %16llx %n", &where, &k0, &k1, &used) != 3 || used == 0) return false;
    const char *hex = line + used;
    size_t      digits = strspn(hex, "0123456789abcdef"), bytes = digits / 2;
    if (digits % 2 || bytes == 0 || bytes > LK__CUDA_CHOICE || hex[digits] != '\n') return false;
    uint64_t key[2] = {k0, k1};
    if (find_choice(c, where, key)) return true;
    choice *x = add_choice(c, where, key);
    if (!x) return true;
    for (size_t i = 0; i < bytes; i++) {
        char digit[3] = {hex[2 * i], hex[2 * i + 1], 0};
        x->data[i] = (unsigned char)strtoul(digit, NULL, 16);
    }
    x->bytes = bytes;
    return true;
}

/* Adds the file's choices to those in memory, which win. */
static void read_choices(lk__cuda_choices *c)
{
    char  line[LINE];
    FILE *file = c->closed ? NULL : fopen(c->path, "r");
    if (!file) return;
    bool whole = fgets(line, sizeof line, file) && strcmp(line, HEADER) == 0;
    while (whole && fgets(line, sizeof line, file)) whole = parse_line(c, line);
    fclose(file);
    if (whole) return;
    c->closed = true;
    lk__cuda_host.log(c->context, LK_LOG_WARNING,
                      "%s is not a file of this version, and is not used: algorithms are measured in every start; "
                      "remove it to have them kept",
                      c->path);
}

static void write_choices(lk__cuda_choices *c)
{
    char aside[PATH + 32];
    if (c->closed) return;
    snprintf(aside, sizeof aside, "%s.%ld", c->path, (long)getpid());
    FILE *file = fopen(aside, "w");
    if (file) fputs(HEADER, file);
    for (const choice *x = c->first; file && x; x = x->next) {
        fprintf(file, "%016llx %016llx %016llx ", (unsigned long long)x->where, (unsigned long long)x->key[0],
                (unsigned long long)x->key[1]);
        for (size_t i = 0; i < x->bytes; i++) fprintf(file, "%02x", x->data[i]);
        fputc('\n', file);
    }
    bool failed = !file || ferror(file) != 0;
    if (file && fclose(file) != 0) failed = true;
    if (!failed && rename(aside, c->path) != 0) failed = true;
    if (!failed) return;
    int error = errno;
    (void)unlink(aside);
    c->closed = true;
    lk__cuda_host.log(c->context, LK_LOG_WARNING, "measured algorithms cannot be kept in %s: %s", c->path,
                      strerror(error));
}

lk__cuda_choices *lk__cuda_choices_open(lk__cuda_device *device, const char *library)
{
    lk_context       *context = device->base.context;
    lk__cuda_choices *c = (lk__cuda_choices *)calloc(1, sizeof *c);
    cudaDeviceProp    p;
    char              text[512];
    int               driver = 0;
    if (!c) return NULL;
    memset(&p, 0, sizeof p);
    (void)cudaGetDeviceProperties(&p, device->number);
    (void)cudaDriverGetVersion(&driver);
    snprintf(text, sizeof text, "%s, %d multiprocessors, driver %d, %s", p.name, p.multiProcessorCount, driver, library);
    c->context = context;
    c->where = lk__cuda_host.hash64(text, strlen(text), 0);
    c->closed = !find_path(c->path);
    read_choices(c);
    return c;
}

void lk__cuda_choices_close(lk__cuda_choices *c)
{
    if (!c) return;
    for (choice *x = c->first, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    free(c);
}

static void hash_key(const void *key, size_t bytes, uint64_t hashes[2])
{
    hashes[0] = lk__cuda_host.hash64(key, bytes, 1);
    hashes[1] = lk__cuda_host.hash64(key, bytes, 2);
}

bool lk__cuda_choices_find(const lk__cuda_choices *c, const void *key, size_t key_bytes, void *data, size_t bytes)
{
    uint64_t hashes[2];
    if (!c) return false;
    hash_key(key, key_bytes, hashes);
    const choice *x = find_choice(c, c->where, hashes);
    if (!x || x->bytes != bytes) return false;
    memcpy(data, x->data, bytes);
    return true;
}

void lk__cuda_choices_keep(lk__cuda_choices *c, const void *key, size_t key_bytes, const void *data, size_t bytes)
{
    uint64_t hashes[2];
    if (!c || bytes > LK__CUDA_CHOICE) return;
    hash_key(key, key_bytes, hashes);
    choice *x = find_choice(c, c->where, hashes);
    if (!x) x = add_choice(c, c->where, hashes);
    if (!x) return;
    memcpy(x->data, data, bytes);
    x->bytes = bytes;
    read_choices(c); /* other ranks may have written it */
    write_choices(c);
}
