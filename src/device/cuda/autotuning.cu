/* autotuning.cu - tuned algorithms: the cache file, the list that is given to a program, and the list of those that its
 * kernels used.
 *
 * The file is text, one choice a line: what the choice was measured with (GPU, driver, library), the operation and its
 * shape, all as hashes, and the choice's bytes in hexadecimal, or "first": the library's first algorithm, since there
 * was no time to measure. Lists of programs have the same lines, and before the
 * first line of a GPU and library one that says what they are: "on HASH TEXT". */
#include "device/cuda/autotuning.h"
#include "device/cuda/gemm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char HEADER[] = "lockstep cuda-algorithms 2\n", OLDER[] = "lockstep cuda-algorithms 1\n"; /* no "first" */
static const char FIRST[] = "first";
static const double SECONDS = 3; /* of measuring, for a program */
enum { PATH = 1024, LINE = 64 + 2 * LK__CUDA_CHOICE, MOST = 1 << 16, ORIGIN = 512, ORIGINS = 8 };

typedef struct choice {
    struct choice *next;
    uint64_t       where, key[2];
    size_t         bytes; /* 0: the library's first algorithm */
    unsigned char  data[LK__CUDA_CHOICE];
} choice;

typedef struct choice_list {
    choice *first, **last; /* last: where the next one is added; NULL: the list is empty */
    int     count;
} choice_list;

/* What algorithms were tuned with. */
typedef struct origin {
    uint64_t where;
    char     text[ORIGIN];
} origin;

struct lk__cuda_tuning {
    lk__cuda_device *device;
    char             gpu[ORIGIN - 128];
    char             path[PATH];
    bool             opened; /* the file was read */
    bool             closed; /* the file is not ours or cannot be written: said once */
    choice_list      kept;   /* the file's, and what was measured since */
    choice_list      given;  /* to the program that is being created */
    choice_list      used;   /* by it, in the order in which its kernels were prepared */
    origin           origins[ORIGINS];
    int              origins_count;
    char             whose[64]; /* who gave them; "": nobody */
    bool             only;      /* nothing else is taken, and nothing measured */
    bool             mismatch;  /* some that were given did not fit, which was logged */
    double           began;     /* a measurement, by lk__cuda_tuning_clock; below 0: none */
};

static bool find_path(char path[PATH])
{
    const char *cache = lk__cuda_host.environment(NULL, LK__ENV_XDG_CACHE_HOME);
    const char *home = lk__cuda_host.environment(NULL, LK__ENV_HOME);
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

/* ---- lists ---- */

static choice *find_choice(const choice_list *list, uint64_t where, const uint64_t key[2])
{
    for (choice *x = list->first; x; x = x->next)
        if (x->where == where && x->key[0] == key[0] && x->key[1] == key[1]) return x;
    return NULL;
}

static choice *add_choice(choice_list *list, uint64_t where, const uint64_t key[2])
{
    choice *x = list->count < MOST ? (choice *)calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    x->where = where;
    x->key[0] = key[0], x->key[1] = key[1];
    *(list->last ? list->last : &list->first) = x;
    list->last = &x->next;
    list->count++;
    return x;
}

static void set_choice(choice_list *list, uint64_t where, const uint64_t key[2], const void *data, size_t bytes)
{
    choice *x = find_choice(list, where, key);
    if (!x) x = add_choice(list, where, key);
    if (!x || bytes > LK__CUDA_CHOICE) return;
    if (bytes) memcpy(x->data, data, bytes);
    x->bytes = bytes;
}

static void empty_list(choice_list *list)
{
    for (choice *x = list->first, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    *list = choice_list{};
}

/* A line without its end, of `length` bytes. Choices that the list has already stay. */
static bool parse_line(choice_list *list, const char *line, size_t length)
{
    unsigned long long where, k0, k1;
    int                used = 0;
    char               text[LINE];
    unsigned char      data[LK__CUDA_CHOICE];
    if (length >= sizeof text) return false;
    memcpy(text, line, length);
    text[length] = 0;
    if (sscanf(text, "%16llx %16llx %16llx %n", &where, &k0, &k1, &used) != 3 || used == 0) return false;
    const char *hex = text + used;
    bool        first = strcmp(hex, FIRST) == 0;
    size_t      digits = first ? 0 : strspn(hex, "0123456789abcdef"), bytes = digits / 2;
    if (!first && (digits % 2 || bytes == 0 || bytes > LK__CUDA_CHOICE || hex[digits] != 0)) return false;
    for (size_t i = 0; i < bytes; i++) {
        char digit[3] = {hex[2 * i], hex[2 * i + 1], 0};
        data[i] = (unsigned char)strtoul(digit, NULL, 16);
    }
    uint64_t key[2] = {k0, k1};
    if (!find_choice(list, where, key)) set_choice(list, where, key, data, bytes);
    return true;
}

/* The line of a choice, with its end; its length. */
static size_t format_choice(const choice *x, char text[LINE])
{
    int used = snprintf(text, LINE, "%016llx %016llx %016llx ", (unsigned long long)x->where,
                        (unsigned long long)x->key[0], (unsigned long long)x->key[1]);
    for (size_t i = 0; i < x->bytes; i++) used += snprintf(text + used, LINE - (size_t)used, "%02x", x->data[i]);
    used += snprintf(text + used, LINE - (size_t)used, "%s\n", x->bytes ? "" : FIRST);
    return (size_t)used;
}

/* ---- the file ---- */

/* Adds the algorithms of the file to those in memory, which win. A missing file is empty. */
static void read_tuned(lk__cuda_tuning *c)
{
    char  line[LINE];
    FILE *file = c->closed ? NULL : fopen(c->path, "r");
    if (!file) return;
    bool whole = fgets(line, sizeof line, file) && (strcmp(line, HEADER) == 0 || strcmp(line, OLDER) == 0);
    while (whole && fgets(line, sizeof line, file)) {
        size_t length = strlen(line);
        whole = length > 0 && line[length - 1] == '\n' && parse_line(&c->kept, line, length - 1);
    }
    fclose(file);
    if (whole) return;
    c->closed = true;
    lk__cuda_host.log(c->device->base.context, LK_LOG_WARNING,
                      "%s was written by a different version and is ignored: until you remove it, nothing is stored "
                      "and algorithms are tuned at every start",
                      c->path);
}

static void write_tuned(lk__cuda_tuning *c)
{
    char aside[PATH + 32], line[LINE];
    if (c->closed) return;
    snprintf(aside, sizeof aside, "%s.%ld", c->path, (long)getpid());
    FILE *file = fopen(aside, "w");
    if (file) fputs(HEADER, file);
    for (const choice *x = c->kept.first; file && x; x = x->next) fwrite(line, 1, format_choice(x, line), file);
    bool failed = !file || ferror(file) != 0;
    if (file && fclose(file) != 0) failed = true;
    if (!failed && rename(aside, c->path) != 0) failed = true;
    if (!failed) return;
    int error = errno;
    (void)unlink(aside);
    c->closed = true;
    lk__cuda_host.log(c->device->base.context, LK_LOG_WARNING, "tuned algorithms cannot be stored in %s: %s", c->path,
                      strerror(error));
}

/* ---- where algorithms are tuned ---- */

/* The device's, made on first use; NULL: no memory. */
static lk__cuda_tuning *tuning_of(lk__cuda_device *device)
{
    cudaDeviceProp p;
    int            driver = 0;
    if (device->tuning) return device->tuning;
    lk__cuda_tuning *c = (lk__cuda_tuning *)calloc(1, sizeof *c);
    if (!c) return NULL;
    memset(&p, 0, sizeof p);
    (void)cudaGetDeviceProperties(&p, device->number);
    (void)cudaDriverGetVersion(&driver);
    snprintf(c->gpu, sizeof c->gpu, "%s, %d multiprocessors, driver %d%s", p.name, p.multiProcessorCount, driver,
             lk__cuda_any_order() ? ", sums in any order" : "");
    c->device = device;
    c->began = -1;
    c->closed = !find_path(c->path);
    return device->tuning = c;
}

/* The hash of this GPU with a library, which is among the origins afterwards. */
static uint64_t origin_of(lk__cuda_tuning *c, const char *library)
{
    char text[ORIGIN];
    snprintf(text, sizeof text, "%s, %s", c->gpu, library);
    uint64_t where = lk__cuda_host.hash64(text, strlen(text), 0);
    for (int i = 0; i < c->origins_count; i++)
        if (c->origins[i].where == where) return where;
    if (c->origins_count == ORIGINS) return where;
    origin *o = &c->origins[c->origins_count++];
    o->where = where;
    snprintf(o->text, sizeof o->text, "%s", text);
    return where;
}

static const char *origin_text(const lk__cuda_tuning *c, uint64_t where)
{
    for (int i = 0; i < c->origins_count; i++)
        if (c->origins[i].where == where) return c->origins[i].text;
    return "another GPU";
}

static void hash_key(const lk__cuda_question *q, uint64_t hashes[2])
{
    hashes[0] = lk__cuda_host.hash64(q->key, q->bytes, 1);
    hashes[1] = lk__cuda_host.hash64(q->key, q->bytes, 2);
}

static void report_mismatch(lk__cuda_tuning *c, uint64_t theirs, uint64_t own)
{
    if (c->mismatch) return;
    c->mismatch = true;
    lk__cuda_host.log(c->device->base.context, c->only ? LK_LOG_WARNING : LK_LOG_INFO,
                      "the algorithms of %s were chosen on %s; this is %s: %s", c->whose, origin_text(c, theirs),
                      origin_text(c, own), c->only ? "the libraries' first choices are used" : "they are tuned again");
}

/* ---- time ---- */

#if !defined(LK_CUDA_EMULATED)
double lk__cuda_tuning_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif

/* What the user allows; below 0: nothing was said. */
static double given_seconds(const lk__cuda_device *device)
{
    const char *text = lk__cuda_host.environment(device->base.context, LK__ENV_LOCKSTEP_CUDA_TUNING_SECONDS);
    return text && *text ? atof(text) : -1;
}

static bool has_time(const lk__cuda_device *device)
{
    double given = given_seconds(device);
    return device->base.tuning.seconds < (given < 0 ? SECONDS : given);
}

static void end_measurement(lk__cuda_tuning *c)
{
    if (c->began >= 0) c->device->base.tuning.seconds += lk__cuda_tuning_clock() - c->began;
    c->began = -1;
}

void lk__cuda_tuning_restart(lk__cuda_device *device) { device->base.tuning = lk__device_tuning{}; }

/* ---- choosing ---- */

lk__cuda_answer lk__cuda_choice_find(lk__cuda_device *device, const lk__cuda_question *q, void *data, size_t bytes)
{
    lk__cuda_tuning *c = tuning_of(device);
    uint64_t         key[2];
    if (!c) return CHOICE_NONE;
    uint64_t where = origin_of(c, q->library);
    hash_key(q, key);
    for (const choice *x = c->given.first; x; x = x->next) {
        if (x->key[0] != key[0] || x->key[1] != key[1]) continue;
        if (x->where != where) report_mismatch(c, x->where, where);
        if (x->where == where && x->bytes == 0) return CHOICE_FIRST;
        if (x->where != where || x->bytes != bytes) continue;
        memcpy(data, x->data, bytes);
        return CHOICE_GIVEN;
    }
    if (c->only) return CHOICE_NONE;
    if (!c->opened) read_tuned(c);
    c->opened = true;
    const choice *x = find_choice(&c->kept, where, key);
    if (x && x->bytes == 0) return given_seconds(device) < 0 || !has_time(device) ? CHOICE_FIRST : CHOICE_NONE;
    if (!x || x->bytes != bytes) return CHOICE_NONE;
    memcpy(data, x->data, bytes);
    return CHOICE_KEPT;
}

bool lk__cuda_choice_measures(lk__cuda_device *device)
{
    lk__cuda_tuning *c = tuning_of(device);
    if (!c || c->only) return !c;
    end_measurement(c); /* one that failed */
    if (!has_time(device)) return false;
    c->began = lk__cuda_tuning_clock();
    return true;
}

static void keep_choice(lk__cuda_tuning *c, uint64_t where, const uint64_t key[2], const void *data, size_t bytes)
{
    set_choice(&c->kept, where, key, data, bytes);
    read_tuned(c); /* other processes may have written it */
    c->opened = true;
    write_tuned(c);
}

void lk__cuda_choice_keep(lk__cuda_device *device, const lk__cuda_question *q, const void *data, size_t bytes)
{
    lk__cuda_tuning *c = tuning_of(device);
    uint64_t         key[2];
    if (!c) return;
    end_measurement(c);
    device->base.tuning.measured++;
    hash_key(q, key);
    keep_choice(c, origin_of(c, q->library), key, data, bytes);
}

void lk__cuda_choice_first(lk__cuda_device *device, const lk__cuda_question *q)
{
    lk__cuda_tuning *c = tuning_of(device);
    uint64_t         key[2];
    if (!c) return;
    uint64_t where = origin_of(c, q->library);
    hash_key(q, key);
    bool given = find_choice(&c->given, where, key) != NULL;
    if (c->only && !given) return;
    set_choice(&c->used, where, key, NULL, 0);
    if (given || find_choice(&c->kept, where, key)) return;
    device->base.tuning.first++;
    keep_choice(c, where, key, NULL, 0);
}

void lk__cuda_choice_use(lk__cuda_device *device, const lk__cuda_question *q, const void *data, size_t bytes)
{
    lk__cuda_tuning *c = tuning_of(device);
    uint64_t         key[2];
    if (!c) return;
    hash_key(q, key);
    set_choice(&c->used, origin_of(c, q->library), key, data, bytes);
}

void lk__cuda_choice_refuse(lk__cuda_device *device, const lk__cuda_question *q)
{
    lk__cuda_tuning *c = tuning_of(device);
    if (!c || c->mismatch) return;
    c->mismatch = true;
    lk__cuda_host.log(device->base.context, LK_LOG_WARNING,
                      "%s contains an algorithm that %s cannot run here: %s, so results may differ in their last bits",
                      c->whose[0] ? c->whose : "the list", q->library,
                      c->only ? "the library's first choice is used" : "the algorithm is tuned again");
}

/* ---- lists of programs ---- */

/* "on HASH TEXT" */
static bool parse_origin(lk__cuda_tuning *c, const char *line, size_t length)
{
    unsigned long long where;
    int                used = 0;
    char               text[ORIGIN + 32];
    if (length >= sizeof text) return false;
    memcpy(text, line, length);
    text[length] = 0;
    if (sscanf(text, "on %16llx %n", &where, &used) != 1 || used == 0 || strlen(text + used) >= ORIGIN) return false;
    for (int i = 0; i < c->origins_count; i++)
        if (c->origins[i].where == where) return true;
    if (c->origins_count == ORIGINS) return true; /* its text is missing in messages alone */
    origin *o = &c->origins[c->origins_count++];
    o->where = where;
    snprintf(o->text, sizeof o->text, "%s", text + used);
    return true;
}

lk_status lk__cuda_choose_begin(lk__device *base, const char *text, const char *whose, bool only)
{
    lk__cuda_device *device = (lk__cuda_device *)base;
    lk__cuda_tuning_restart(device);
    if (device->number < 0 || (!device->tuning && !text && !only)) return LK_OK; /* none was used yet */
    lk__cuda_tuning *c = tuning_of(device);
    if (!c) return LK_ENOMEM;
    empty_list(&c->given);
    empty_list(&c->used);
    c->origins_count = 0;
    c->only = only;
    c->mismatch = false;
    snprintf(c->whose, sizeof c->whose, "%s", whose ? whose : "");
    for (const char *line = text, *end; line && *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        size_t length = (size_t)(end - line);
        if (strncmp(line, "on ", 3) == 0 ? parse_origin(c, line, length) : parse_line(&c->given, line, length))
            continue;
        empty_list(&c->given);
        return lk__cuda_host.fail(base->context, LK_EFORMAT, "the list of algorithms of %s is damaged: \"%.*s\"",
                                  whose ? whose : "the caller", length < 80 ? (int)length : 80, line);
    }
    return LK_OK;
}

/* Whether no earlier one of the list was measured on the same. */
static bool is_first_on(const choice_list *list, const choice *x)
{
    const choice *first = list->first;
    while (first->where != x->where) first = first->next;
    return first == x;
}

static size_t append_line(char *text, size_t bytes, size_t used, const char *line, size_t length)
{
    if (used + length < bytes) memcpy(text + used, line, length);
    return used + length;
}

size_t lk__cuda_list_tuned(lk__device *base, char *text, size_t bytes, bool *mismatch)
{
    const lk__cuda_tuning *c = ((lk__cuda_device *)base)->tuning;
    char                   on[ORIGIN + 32], line[LINE];
    size_t                 used = 0;
    *mismatch = c && c->mismatch;
    for (const choice *x = c ? c->used.first : NULL; x; x = x->next) {
        int length = snprintf(on, sizeof on, "on %016llx %s\n", (unsigned long long)x->where, origin_text(c, x->where));
        if (is_first_on(&c->used, x)) used = append_line(text, bytes, used, on, (size_t)length);
        used = append_line(text, bytes, used, line, format_choice(x, line));
    }
    if (bytes > 0) text[used < bytes ? used : 0] = 0;
    return used;
}

bool lk__cuda_tuning_text(char *text, size_t bytes)
{
    char  path[PATH], line[LINE];
    int   measured = 0, first = 0;
    FILE *file = find_path(path) ? fopen(path, "r") : NULL;
    if (!file) return false;
    bool whole = fgets(line, sizeof line, file) != NULL;
    while (whole && fgets(line, sizeof line, file)) {
        const char *last = strrchr(line, ' ');
        bool        is_first = last && strncmp(last + 1, FIRST, sizeof FIRST - 1) == 0;
        first += is_first;
        measured += !is_first;
    }
    fclose(file);
    snprintf(text, bytes, "tuned algorithms: %d measured, %d set to the library's first choice, in %s", measured, first,
             path);
    return true;
}

void lk__cuda_tuning_free(lk__cuda_tuning *c)
{
    if (!c) return;
    empty_list(&c->kept);
    empty_list(&c->given);
    empty_list(&c->used);
    free(c);
}
