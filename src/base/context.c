/* context.c - the context: allocation by purpose, each thread's latest failure message, the log sink, the pool. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "base/isa.h"
#include "base/limits.h"
#include "base/pin.h"
#include "base/pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 2048, MESSAGES = 4 };

struct lk_context {
    lk_allocator allocator;
    void (*log)(void *user, lk_log_level level, const char *text);
    void *log_user;
    void (*progress)(void *user, const char *what, int64_t done, int64_t total);
    void                   *progress_user;
    const char             *isa;
    lk__pool               *pool;
    struct lk__device      *device;
    atomic_size_t           in_use[LK_MEMORY_COUNT];
    atomic_uint_fast64_t    allocations;
    atomic_int              reading; /* threads of loaders */
    bool                    overcommits;
    lk__environment_values *environment;
    const char             *limits_root; /* base/limits.h */
    uint64_t                created;     /* nanoseconds: tells it from an earlier context at the same address */
};

/* The message of a thread's latest failure on a context. It is thread-local, so that no other thread's failure replaces
 * it and no lock is needed; code that reports the failure of another thread copies its text. It is never allocated, so
 * that running out of memory can be reported. */
typedef struct message {
    const lk_context *context;
    uint64_t          created; /* the context's */
    int               rank;    /* lk_context_error_rank */
    char              text[MESSAGE_BYTES];
} message;

static _Thread_local message messages[MESSAGES];
static _Thread_local message creation = {.rank = -1}; /* of lk_context_create, which has no context */
static _Thread_local int     next_message;            /* the entry that is reused next */

/* Large allocations are mapped directly: their pages are zero and take no memory until they are used. Huge pages where
 * the kernel has them, because arenas and weights are read from end to end. */
enum { FRESH_PAGES = 1 << 20, HUGE_PAGE = 2 << 20 };

static void *fresh_pages(size_t bytes)
{
    size_t length = bytes < HUGE_PAGE ? bytes : bytes + HUGE_PAGE;
    char  *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    if (bytes < HUGE_PAGE) return start;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char  *aligned = (char *)lk__round_up((size_t)start, HUGE_PAGE), *end = aligned + lk__round_up(bytes, page);
    if (aligned > start) munmap(start, (size_t)(aligned - start));
    if (end < start + length) munmap(end, (size_t)(start + length - end));
    madvise(aligned, bytes, MADV_HUGEPAGE); /* a hint */
    return aligned;
}

static void *default_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return bytes >= FRESH_PAGES ? fresh_pages(bytes) : aligned_alloc(alignment, lk__round_up(bytes, alignment));
}

static void default_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    if (bytes >= FRESH_PAGES)
        munmap(memory, bytes);
    else
        free(memory);
}

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* What the config and the machine determine. */
static lk_status choose_isa_and_threads(const lk_context_config *config, const char **isa, int *threads)
{
    if (config->threads < 0 || config->threads > LK__MAX_THREADS)
        return lk__fail(
            NULL, LK_EINVAL,
            "the number of threads is %d: expected 1 to %d, or 0 to use all cores available to this process",
            config->threads, LK__MAX_THREADS);
    *threads = config->threads ? config->threads : lk_default_threads();
    if (*threads < 1)
        return lk__fail(NULL, LK_EINVAL, "LOCKSTEP_THREADS is not a number from 1 to %d", LK__MAX_THREADS);
    const char *wanted = config->isa ? config->isa : lk__environment_text(NULL, LK__ENV_LOCKSTEP_ISA);
    if (!(*isa = lk__isa_choose(wanted)))
        return lk__fail(NULL, LK_EUNSUPPORTED, "this build or machine does not support the instruction set \"%.40s\"%s",
                        wanted ? wanted : "", config->isa ? "" : ", set by LOCKSTEP_ISA");
    return LK_OK;
}

lk_status lk__context_make(const lk_context_config *config, lk_context **context)
{
    const char *isa = NULL;
    int         threads = 1;
    *context = NULL;
    lk__pin_to_assigned(); /* before the pool counts its cores and starts its threads */
    lk_status status = choose_isa_and_threads(config, &isa, &threads);
    if (status < 0) return status;
    lk_allocator allocator = config->allocator;
    if (!allocator.alloc || !allocator.free) allocator = (lk_allocator){default_alloc, default_free, NULL};
    lk_context *c = allocator.alloc(allocator.user, sizeof *c, LK__ALIGN);
    if (!c) return lk__fail(NULL, LK_ENOMEM, "out of memory: cannot allocate a context");
    memset(c, 0, sizeof *c);
    c->allocator = allocator;
    c->log = config->log;
    c->log_user = config->log_user;
    c->progress = config->progress;
    c->progress_user = config->progress_user;
    c->isa = isa;
    c->overcommits = config->overcommit || config->allocator.alloc;
    c->limits_root = "";
    c->created = nanoseconds();
    if (!(c->environment = lk__environment_read(&allocator)))
        status = lk__fail(c, LK_ENOMEM, "out of memory: cannot allocate a context");
    if (status >= 0) status = lk__pool_create(c, threads, &c->pool);
    if (status < 0) {
        lk__fail(NULL, status, "%s", lk_context_error(c));
        lk__context_drop(c);
        return status;
    }
    *context = c;
    return LK_OK;
}

void lk__context_drop(lk_context *c)
{
    lk__pool_free(c->pool);
    lk_allocator allocator = c->allocator;
    lk__environment_values_free(&allocator, c->environment);
    allocator.free(allocator.user, c, sizeof *c);
}

void *lk__alloc(lk_context *c, lk_memory kind, size_t bytes)
{
    if (bytes == 0) return NULL;
    atomic_fetch_add_explicit(&c->allocations, 1, memory_order_relaxed);
    void *memory = bytes <= SIZE_MAX / 2 ? c->allocator.alloc(c->allocator.user, bytes, LK__ALIGN) : NULL;
    if (!memory) {
        lk__fail(c, LK_ENOMEM, "out of memory: cannot allocate %.1f MiB for %s", (double)bytes / 1048576.0,
                 lk_memory_name(kind));
        return NULL;
    }
    if (c->allocator.alloc != default_alloc || bytes < FRESH_PAGES) memset(memory, 0, bytes);
    atomic_fetch_add_explicit(&c->in_use[kind], bytes, memory_order_relaxed);
    return memory;
}

void lk__free(lk_context *c, lk_memory kind, void *memory, size_t bytes)
{
    if (!memory) return;
    atomic_fetch_sub_explicit(&c->in_use[kind], bytes, memory_order_relaxed);
    c->allocator.free(c->allocator.user, memory, bytes);
}

void lk__account(lk_context *c, lk_memory kind, ptrdiff_t bytes)
{
    atomic_fetch_add_explicit(&c->in_use[kind], (size_t)bytes, memory_order_relaxed);
}

void lk__account_allocation(lk_context *c, lk_memory kind, size_t bytes)
{
    atomic_fetch_add_explicit(&c->allocations, 1, memory_order_relaxed);
    lk__account(c, kind, (ptrdiff_t)bytes);
}

char *lk__strdup(lk_context *c, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char  *copy = lk__alloc(c, LK_MEMORY_OTHER, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

void lk__strfree(lk_context *c, char *text)
{
    if (text) lk__free(c, LK_MEMORY_OTHER, text, strlen(text) + 1);
}

lk_status lk__grow(lk_context *c, void **array, size_t *capacity, size_t need, size_t element)
{
    if (need <= *capacity) return LK_OK;
    size_t grown = *capacity ? *capacity : 16;
    while (grown < need) grown *= 2;
    void *bigger = lk__alloc(c, LK_MEMORY_OTHER, grown * element);
    if (!bigger) return LK_ENOMEM;
    if (*array) memcpy(bigger, *array, *capacity * element);
    lk__free(c, LK_MEMORY_OTHER, *array, *capacity * element);
    *array = bigger;
    *capacity = grown;
    return LK_OK;
}

static message *find_message(const lk_context *c)
{
    if (!c) return &creation;
    for (int i = 0; i < MESSAGES; i++)
        if (messages[i].context == c && messages[i].created == c->created) return &messages[i];
    return NULL;
}

static message *obtain_message(const lk_context *c)
{
    message *m = find_message(c);
    if (m) return m;
    m = &messages[next_message];
    next_message = (next_message + 1) % MESSAGES;
    m->context = c;
    m->created = c->created;
    m->rank = -1;
    m->text[0] = 0;
    return m;
}

static void set_message(lk_context *c, bool prefix, const char *format, va_list arguments)
{
    char     text[MESSAGE_BYTES]; /* the arguments may be parts of the old text */
    message *m = obtain_message(c);
    vsnprintf(text, sizeof text, format, arguments);
    if (prefix) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s", m->text);
    }
    memcpy(m->text, text, sizeof text);
}

lk_status lk__fail(lk_context *c, lk_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_message(c, false, format, arguments);
    va_end(arguments);
    obtain_message(c)->rank = -1;
    return status;
}

lk_status lk__fail_of_rank(lk_context *c, lk_status status, int rank, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_message(c, false, format, arguments);
    va_end(arguments);
    obtain_message(c)->rank = rank;
    return status;
}

lk_status lk__fail_prefix(lk_context *c, lk_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_message(c, true, format, arguments);
    va_end(arguments);
    return status;
}

const char *lk_context_error(lk_context *c)
{
    static _Thread_local char copy[MESSAGE_BYTES];
    const message            *m = find_message(c);
    if (m)
        memcpy(copy, m->text, sizeof copy);
    else
        copy[0] = 0;
    return copy;
}

bool lk__is_message(lk_context *c, const char *text)
{
    const message *m = find_message(c);
    return m && strcmp(m->text, text) == 0;
}

int lk_context_error_rank(lk_context *c)
{
    const message *m = find_message(c);
    return m ? m->rank : -1;
}

void lk__log(lk_context *c, lk_log_level level, const char *format, ...)
{
    if (!c->log) return;
    char    text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    c->log(c->log_user, level, text);
}

void lk__progress(lk_context *c, const char *what, int64_t done, int64_t total)
{
    if (c->progress) c->progress(c->progress_user, what, done, total);
}

int         lk_context_threads(const lk_context *c) { return lk__pool_threads(c->pool); }
const char *lk_context_isa(const lk_context *c) { return c->isa; }
lk__pool   *lk__context_pool(lk_context *c) { return c->pool; }

const lk__environment_values *lk__context_environment(const lk_context *c) { return c->environment; }

lk_status lk__context_read_environment(lk_context *c)
{
    lk__environment_values *values = lk__environment_read(&c->allocator);
    if (!values) return lk__fail(c, LK_ENOMEM, "out of memory: cannot copy the environment");
    lk__environment_values_free(&c->allocator, c->environment);
    c->environment = values;
    return LK_OK;
}

struct lk__device *lk__context_device(const lk_context *c) { return c->device; }
void               lk__context_set_device(lk_context *c, struct lk__device *device) { c->device = device; }

void lk__context_limits(const lk_context *c, lk__memory_limits *limits)
{
    limits->count = 0;
    if (!c->overcommits) lk__limits_memory(c->limits_root, limits);
}
void lk__context_set_limits_root(lk_context *c, const char *root) { c->limits_root = root; }

int lk__context_reading(const lk_context *c)
{
    return atomic_load_explicit(&((lk_context *)c)->reading, memory_order_relaxed);
}
void lk__context_add_reading(lk_context *c, int change)
{
    atomic_fetch_add_explicit(&c->reading, change, memory_order_relaxed);
}

uint64_t lk_context_allocations(const lk_context *c) { return atomic_load(&((lk_context *)c)->allocations); }

size_t lk_context_memory(const lk_context *c, lk_memory kind)
{
    return (unsigned)kind < LK_MEMORY_COUNT ? atomic_load(&((lk_context *)c)->in_use[kind]) : 0;
}

const char *lk_memory_name(lk_memory kind)
{
    static const char *const names[LK_MEMORY_COUNT] = {
        "parameters", "master weights", "gradients", "optimizer state", "buffers", "activations",
        "workspace",  "staging",        "loader",    "checkpoint",      "data",    "bookkeeping",
    };
    return (unsigned)kind < LK_MEMORY_COUNT ? names[kind] : "?";
}

double lk__now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
