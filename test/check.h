/* check.h - shared by C tests: a check that reports what failed and where, and the failure count, which gives the exit
 * status. */
#ifndef CHECK_H
#define CHECK_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 }; /* the exit status that ctest takes for "not on this machine" */

/* Under a sanitizer code takes about ten times as long: repetitions can be fewer there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static int check_failures;

/* CHECK(condition) or CHECK(condition, "format", …) where the values help. The test continues, so that one run shows
 * all failures. */
#define CHECK(condition, ...) \
    ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, __func__, #condition, " " __VA_ARGS__))

/* For conditions that the rest of the test depends on. */
#define REQUIRE(condition, ...) \
    ((condition) ? (void)0 : (check_failed(__FILE__, __LINE__, __func__, #condition, " " __VA_ARGS__), exit(1)))

/* One call, not inlined: tests have thousands of checks. */
static void check_failed(const char *file, int line, const char *function, const char *condition, const char *format,
                         ...) __attribute__((cold, noinline, format(printf, 5, 6), unused));
static void check_failed(const char *file, int line, const char *function, const char *condition, const char *format,
                         ...)
{
    va_list values;
    fprintf(stderr, "%s:%d: %s: failed: %s", file, line, function, condition);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    check_failures++;
}

/* Whether LK_TEST_SHARE=I/N, which divides a test over N processes, gives this one the next case. */
static inline int is_in_share(void)
{
    static int  next, part, parts;
    const char *share = getenv("LK_TEST_SHARE");
    if (!parts && (!share || sscanf(share, "%d/%d", &part, &parts) != 2 || parts < 1)) part = 0, parts = 1;
    return next++ % parts == part;
}

#define RUN(test)                                                     \
    do {                                                              \
        int before_ = check_failures;                                 \
        if (!is_in_share()) break;                                    \
        test();                                                       \
        printf("%s %s\n", check_failures == before_ ? "ok  " : "FAIL", #test); \
        fflush(stdout);                                               \
    } while (0)

/* The same in a process of its own, for tests that start ranks: a process that has used a GPU cannot fork any. */
#define RUN_APART(test)                                      \
    do {                                                     \
        if (!is_in_share()) break;                           \
        int passed_ = run_apart(test);                       \
        check_failures += !passed_;                          \
        printf("%s %s\n", passed_ ? "ok  " : "FAIL", #test); \
        fflush(stdout);                                      \
    } while (0)

static inline int run_apart(void (*test)(void))
{
    int status = 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        check_failures = 0;
        test();
        exit(check_failures ? 1 : 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Whether this process has used a GPU: what it forks cannot use it. Prints that `what` is skipped then. */
static inline int skips_forks(const char *what)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) {
        dlclose(driver);
        printf("skipped: %s, since forks after a context was made cannot use the GPU\n", what);
    }
    return driver != NULL;
}

/* Fails where ctest was told of fewer ranks: the line `ctest: …` of each test says how many it runs at the same time,
 * so that ctest reserves the cores. A test that is started by hand may run any number. */
static inline void check_ranks_announced(int ranks)
{
    const char *announced = getenv("LK_TEST_RANKS");
    CHECK(!announced || ranks <= atoi(announced), "%d ranks: the line `ctest: …` of this test must contain `ranks %d`",
          ranks, ranks);
}

static inline int check_result(void) { return check_failures ? 1 : 0; }

#endif
