/* kernel_mutants.h - lines of factors with a mistake (factor_mutants.h), on the cases of kernels: those that a case
 * finds are noted, and test_kernels_covered.c requires that all of them are found. A kernel whose operands do not fit
 * together may access memory that is not its own, so that this happens in a process of its own; one that crashes has
 * found the mistake, too. */
#ifndef KERNEL_MUTANTS_H
#define KERNEL_MUTANTS_H

#include "factor_mutants.h"
#include "kernel_parts.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MUTANT_TRIES = 5, MUTANT_ELEMENTS = 8 << 10, MUTANT_SECONDS = 20 };

typedef struct mutants_state { /* shared with the process that tries them */
    volatile int           at; /* which one is being tried; -1: none */
    volatile unsigned char found[MUTANTS_MOST];
} mutants_state;

typedef struct operation_mutants {
    factor_mutants list;
    mutants_state *state;               /* NULL: no case has run */
    unsigned char  tries[PARTS_KINDS]; /* of cases with the same operands and settings */
} operation_mutants;

static operation_mutants kernel_mutants[LK__OP_COUNT];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MUTANTS_RUN false /* a sanitizer ends a process that accesses other memory, and takes long to start one */
#elif defined(__has_feature)
#define MUTANTS_RUN (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define MUTANTS_RUN true
#endif

static inline void try_remaining(const parts_case *k, operation_mutants *o)
{
    char text[PARTS_TEXT];
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(MUTANT_SECONDS);
    for (int i = 0; i < o->list.count; i++) {
        if (o->state->found[i]) continue;
        o->state->at = i;
        if (!check_factor_line(k, o->list.line[i], true, text)) o->state->found[i] = 1;
    }
    o->state->at = -1;
}

static inline bool all_are_found(const operation_mutants *o)
{
    for (int i = 0; i < o->list.count; i++)
        if (!o->state->found[i]) return false;
    return true;
}

/* After a case for which the line itself holds. */
static inline void try_mutants(const parts_case *k)
{
    operation_mutants *o = &kernel_mutants[k->op];
    if (!MUTANTS_RUN || kernel_device || k->real != LK_F64 || elements_of_case(k) > MUTANT_ELEMENTS) return;
    if (!o->state) {
        o->list = list_mutants(lk__op_find(k->op)->factors);
        o->state = mmap(NULL, sizeof *o->state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (o->state == MAP_FAILED) abort();
        o->state->at = -1;
    }
    int kind = kind_of_case(k);
    if (o->tries[kind] == MUTANT_TRIES) return;
    o->tries[kind]++;
    while (!all_are_found(o)) {
        o->state->at = -1;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            (void)!freopen("/dev/null", "w", stderr);
            try_remaining(k, o);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) abort();
        if (o->state->at < 0) return;
        o->state->found[o->state->at] = 1; /* it crashed there */
    }
}

/* One line for each line with a mistake that was tried: operation, number, whether it was found. In a file of
 * LK_KERNELS_RAN. */
static inline void list_mutants_tried(const char *source)
{
    const char *directory = getenv("LK_KERNELS_RAN"), *name = strrchr(source, '/');
    char        path[4096];
    if (!directory || !*directory) return;
    snprintf(path, sizeof path, "%s/%s.lines", directory, name ? name + 1 : source);
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "FAIL %s: %s\n", path, strerror(errno));
        exit(1);
    }
    for (int op = 0; op < LK__OP_COUNT; op++)
        for (int i = 0; kernel_mutants[op].state && i < kernel_mutants[op].list.count; i++)
            fprintf(file, "%s %d %d\n", lk__op_name((lk__op)op), i, kernel_mutants[op].state->found[i]);
    fclose(file);
}

#endif
