/* test_data.h - shared by the tests of the data layer: checks, a context, files in a temporary directory. */
#ifndef TEST_DATA_H
#define TEST_DATA_H

#include <lockstep/context.h>
#include <lockstep/data.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#ifndef LK_SOURCE_DIR
#define LK_SOURCE_DIR "."
#endif

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* The call returns the expected status, and the message contains every given text. */
#define CHECK_FAILS(context, call, wanted, ...)                                                                   \
    do {                                                                                                          \
        lk_status   status_ = (call);                                                                             \
        const char *text_ = lk_context_error(context), *words_[] = {__VA_ARGS__};                                 \
        for (size_t w_ = 0; w_ < sizeof words_ / sizeof *words_; w_++) {                                          \
            if (status_ == (wanted) && strstr(text_, words_[w_])) continue;                                       \
            fprintf(stderr, "%s:%d: %s gave %s, wanted %s with \"%s\", message: %s\n", __FILE__, __LINE__, #call, \
                    lk_status_name(status_), #wanted, words_[w_], text_);                                         \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)

#define CHECK_OK(context, call)                                                                        \
    do {                                                                                               \
        lk_status status_ = (call);                                                                    \
        if (status_ == LK_OK) break;                                                                   \
        fprintf(stderr, "%s:%d: %s gave %s: %s\n", __FILE__, __LINE__, #call, lk_status_name(status_), \
                lk_context_error(context));                                                            \
        exit(1);                                                                                       \
    } while (0)

#define RUN(test)              \
    do {                       \
        printf("%s\n", #test); \
        fflush(stdout);        \
        test();                \
    } while (0)

static inline lk_context *make_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context = NULL;
    config.threads = 1;
    CHECK(lk_context_create(&config, &context) == LK_OK);
    return context;
}

/* Checks that no memory of data sets or loaders is left. */
static inline void free_context(lk_context *context)
{
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == 0);
    lk_context_free(context);
}

/* Calls `attempt` on contexts whose first, second, … allocation fails, until none does: each time it must return
 * LK_ENOMEM and free everything. */
static int   failing_countdown;
static long  failing_live_blocks;
static void *failing_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (--failing_countdown == 0) return NULL;
    failing_live_blocks++;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void failing_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    failing_live_blocks--;
    free(memory);
}

static inline int fail_each_allocation(lk_status (*attempt)(lk_context *context))
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.allocator = (lk_allocator){failing_alloc, failing_free, NULL};
    for (int failures = 0;; failures++) {
        lk_context *context = NULL;
        failing_countdown = 0;
        CHECK(lk_context_create(&config, &context) == LK_OK);
        long before = failing_live_blocks;
        failing_countdown = failures + 1;
        lk_status status = attempt(context);
        bool      failed = failing_countdown <= 0;
        failing_countdown = 0;
        CHECK(failing_live_blocks == before);
        if (failed) CHECK_FAILS(context, status, LK_ENOMEM, "out of memory");
        if (!failed) CHECK_OK(context, status);
        lk_context_free(context);
        if (!failed) return failures;
    }
}

/* A sample of an input and a label, as images and features have. */
static inline lk_status get_pair(const lk_dataset *dataset, int64_t index, void *input, int32_t *label)
{
    return lk_dataset_get(dataset, index, (void *[]){input, label});
}

static char scratch_directory[256];

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about, (void)kind, (void)where;
    return remove(path);
}

static void remove_scratch(void) { nftw(scratch_directory, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* A temporary directory, removed when the test ends. */
static inline void make_scratch(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(scratch_directory, sizeof scratch_directory, "%s/lockstep-data-XXXXXX", base ? base : "/tmp");
    CHECK(mkdtemp(scratch_directory));
    atexit(remove_scratch);
}

static inline const char *scratch(const char *name)
{
    static char paths[8][512];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, 512, "%s/%s", scratch_directory, name);
    return path;
}

static inline void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file && (size == 0 || fwrite(bytes, 1, size, file) == size));
    CHECK(fclose(file) == 0);
}

static inline void write_gzip(const char *path, const void *bytes, size_t size)
{
    gzFile file = gzopen(path, "wb");
    CHECK(file && gzwrite(file, bytes, (unsigned)size) == (int)size);
    CHECK(gzclose(file) == Z_OK);
}

static inline unsigned char *read_whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    CHECK(file);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*size + 1);
    CHECK(bytes && fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

/* A file in $LOCKSTEP_SHARED or, by default, in ../shared of the source tree. */
static inline const char *shared(const char *name)
{
    static char path[1024];
    const char *root = getenv("LOCKSTEP_SHARED");
    if (root)
        snprintf(path, sizeof path, "%s/%s", root, name);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", LK_SOURCE_DIR, name);
    return path;
}

#endif
