/* context.h - allocator, log sink, thread pool and the account of memory. Everything hangs off one context. */
#ifndef LOCKSTEP_CONTEXT_H
#define LOCKSTEP_CONTEXT_H

#include <lockstep/base.h>

LK_BEGIN_DECLS

typedef struct lk_context lk_context; /* outlives all that is made from it; its functions may be called from any thread */

typedef enum lk_log_level { LK_LOG_DEBUG, LK_LOG_INFO, LK_LOG_WARNING } lk_log_level;

/* What memory is for. `lockstep plan` predicts each line; lk_context_memory says what is really held. */
typedef enum lk_memory {
    LK_MEMORY_PARAMETERS,
    LK_MEMORY_GRADIENTS,
    LK_MEMORY_OPTIMIZER,
    LK_MEMORY_BUFFERS, /* running statistics and other state that is not trained */
    LK_MEMORY_ACTIVATIONS,
    LK_MEMORY_WORKSPACE,
    LK_MEMORY_LOADER,
    LK_MEMORY_CHECKPOINT,
    LK_MEMORY_DATA,  /* datasets held in memory */
    LK_MEMORY_OTHER, /* graphs, programs, names: the bookkeeping */
    LK_MEMORY_COUNT
} lk_memory;

LK_API const char *lk_memory_name(lk_memory kind);

/* Set all of these or none. alloc returns memory aligned to `alignment`, or NULL. */
typedef struct lk_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} lk_allocator;

typedef struct lk_context_config {
    size_t size;      /* sizeof this struct; set by LK_CONTEXT_CONFIG_INIT */
    int    threads;   /* of the pool, the caller's included; 0: affinity mask and cgroup quota over LOCAL_WORLD_SIZE */
    const char  *isa; /* "neon", "avx2", "avx512", "generic"; NULL: the best the machine has */
    lk_allocator allocator;
    void (*log)(void *user, lk_log_level level, const char *text); /* NULL: silent. One line, no newline; any thread */
    void *log_user;
} lk_context_config;
#define LK_CONTEXT_CONFIG_INIT {sizeof(lk_context_config), 0, NULL, {NULL, NULL, NULL}, NULL, NULL}

/* config may be NULL for all defaults. */
LK_API lk_status lk_context_create(const lk_context_config *config, lk_context **context);
LK_API void      lk_context_free(lk_context *context); /* NULL is fine */

/* What the calling thread's latest failed call on this context said: what, where, what to do. "" when none failed. As errno, it
 * belongs to the thread: no other thread's failure changes it, and none sees it. It is kept for the last 4 contexts on which
 * the thread had a failure. The text stays valid until the calling thread asks again. */
LK_API const char *lk_context_error(lk_context *context);

/* Copies text for a terminal. Messages may hold names from files and words of other hosts: control characters and bytes
 * that are no UTF-8 become \n, \x1b and so on; all else stays. Cut to size at a whole character, with a NUL; returns the
 * length that all of it has. */
LK_API size_t lk_printable(const char *text, char *out, size_t size);

LK_API int         lk_context_threads(const lk_context *context);
LK_API const char *lk_context_isa(const lk_context *context);
LK_API size_t      lk_context_memory(const lk_context *context, lk_memory kind); /* bytes held now */
LK_API uint64_t    lk_context_allocations(const lk_context *context);            /* calls of the allocator so far */
/* What threads = 0 gives; 0 where LOCKSTEP_THREADS is no number from 1 to 256: then lk_context_create returns LK_EINVAL. */
LK_API int lk_default_threads(void);

LK_END_DECLS
#endif
