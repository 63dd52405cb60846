/* base/base.h - internal functions that every layer uses: allocation by purpose, failure messages, logging, clock. */
#ifndef LK__BASE_H
#define LK__BASE_H

#include <lockstep/base.h>
#include <lockstep/context.h>
#include <stdarg.h>

#define LK__ALIGN 64 /* bytes: a cache line, and the widest vector */
#define LK__MAX_THREADS 256

static inline size_t lk__round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Zeroed memory aligned to LK__ALIGN, accounted under kind; NULL when out of memory (a message is set).
 * bytes == 0 returns NULL, which is not a failure: where NULL means failure, bytes must be above 0. */
void *lk__alloc(lk_context *context, lk_memory kind, size_t bytes);
void  lk__free(lk_context *context, lk_memory kind, void *memory, size_t bytes); /* NULL is fine; bytes as allocated */
void  lk__account(lk_context *context, lk_memory kind, ptrdiff_t bytes);         /* held, or freed, by other means */
void  lk__account_allocation(lk_context *context, lk_memory kind, size_t bytes); /* the same; counts as an allocation */
char *lk__strdup(lk_context *context, const char *text);                         /* LK_MEMORY_OTHER */
void  lk__strfree(lk_context *context, char *text);

/* Grows an array of LK_MEMORY_OTHER to hold at least `need` elements; *capacity counts elements. New space is
 * zeroed. */
lk_status lk__grow(lk_context *context, void **array, size_t *capacity, size_t need, size_t element);

/* Sets the calling thread's message on the context and returns status, so that `return lk__fail(…)` reads well. */
lk_status lk__fail(lk_context *context, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like lk__fail, for a failure that `rank` of the world reported to others (lk_context_error_rank); -1: the same as
 * lk__fail. */
lk_status lk__fail_of_rank(lk_context *context, lk_status status, int rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Prepends to the current message, for example "FILE: "; whose failure it is does not change. Returns status. */
lk_status lk__fail_prefix(lk_context *context, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool lk__is_message(lk_context *context, const char *text); /* the calling thread's */
/* lk_context_config.progress */
void lk__progress(lk_context *context, const char *what, int64_t done, int64_t total);
void lk__log(lk_context *context, lk_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

bool lk__status_exists(int32_t value); /* of a number that another process sent */

/* A name from a file as a message shows it: like lk_printable, truncated. */
enum { LK__SHOWN = 88 };
const char *lk__shown(const char *name, char out[LK__SHOWN]);

double lk__now(void); /* seconds, monotonic */

/* What limits the memory of this process (base/limits.h); nothing where the context overcommits or has its own
 * allocator. */
struct lk__memory_limits;
void lk__context_limits(const lk_context *context, struct lk__memory_limits *limits);
void lk__context_set_limits_root(lk_context *context, const char *root); /* for tests; borrowed */

/* The control groups' CPU quota in whole cores, rounded up; `cores` where there is none or it is larger. */
int lk__cgroup_cores(int cores);
/* How many cores this process may run on; *own: its parent bound it to them, so other ranks of the host have others. */
int lk__cores(bool *own);

/* Parses the value of LOCKSTEP_THREADS: a number from 1 to LK__MAX_THREADS. */
bool lk__threads_parse(const char *text, int *threads);

struct lk__pool *lk__context_pool(lk_context *context);

/* The number of loader threads that compute samples now: they need cores, which the pool leaves to them. Any thread. */
int  lk__context_reading(const lk_context *context);
void lk__context_add_reading(lk_context *context, int change);

/* Creates a context without a device from a config that was read, and frees it after its device. lk_context_create,
 * which opens the device, is in device/context.c: nothing in base calls a device. */
lk_status lk__context_make(const lk_context_config *config, lk_context **context);
void      lk__context_drop(lk_context *context);
/* The device that was opened for it. */
struct lk__device *lk__context_device(const lk_context *context);
void               lk__context_set_device(lk_context *context, struct lk__device *device);

/* The known name closest to `name` by edit distance, or NULL when none is close. */
const char *lk__suggest(const char *name, const char *const *known, size_t count);
/* The number of edits that turn a name into one that the shell pattern matches: '*' and '?' match anything, brackets
 * are read as they are. SIZE_MAX: one of the two is too long to compare. */
size_t lk__pattern_distance(const char *pattern, const char *name);

#endif
