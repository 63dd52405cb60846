/* test_kernels_covered.c - every kernel of the CPU, by operation and type, has been run by one of the other files
 * test_kernels*.c, on the device that they tested. ctest runs it after them: they list what they ran in the directory
 * LK_KERNELS_RAN. Collectives and waits run in the interpreter. */
#include "check.h"

#include "base/isa.h"
#include "device/kernel.h"
#include "graph/op.h"

#include "factor_mutants.h"

#include <dirent.h>

static bool ran[LK_DTYPE_COUNT][LK__OP_COUNT];
static bool tried[LK__OP_COUNT], found[LK__OP_COUNT][MUTANTS_MOST];

static void read_list(const char *directory, const char *name)
{
    char path[4096], op[64], type[16];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    REQUIRE(file, "%s", path);
    while (fscanf(file, "%63s %15s", op, type) == 2)
        for (int i = 0; i < LK__OP_COUNT; i++)
            for (int t = 0; t < LK_DTYPE_COUNT; t++)
                if (strcmp(op, lk__op_name((lk__op)i)) == 0 && strcmp(type, lk_dtype_name((lk_dtype)t)) == 0)
                    ran[t][i] = true;
    fclose(file);
}

/* Lines of factors with a mistake: which were tried, and which a case has found (kernel_mutants.h). */
static void read_lines(const char *directory, const char *name)
{
    char path[4096], op[64];
    int  number, is_found;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    REQUIRE(file, "%s", path);
    while (fscanf(file, "%63s %d %d", op, &number, &is_found) == 3)
        for (int i = 0; i < LK__OP_COUNT; i++)
            if (strcmp(op, lk__op_name((lk__op)i)) == 0 && number >= 0 && number < MUTANTS_MOST) {
                tried[i] = true;
                found[i][number] |= is_found != 0;
            }
    fclose(file);
}

/* The instruction set does not matter: each has all of them, or the set that it extends. */
static bool has_kernel(lk_dtype type, lk__op op)
{
    return lk__isa_names[0] && lk__cpu_kernel(type, lk__isa_names[0], op);
}

static void every_kernel_has_run(void)
{
    static const lk_dtype types[] = {LK_F32, LK_F64, LK_BF16};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int i = 0; i < LK__OP_COUNT; i++) {
            lk__graph_runs runs = lk__op_find((lk__op)i)->runs;
            if (!has_kernel(types[t], (lk__op)i) || runs == LK__RUNS_COLLECTIVE || runs == LK__RUNS_WAIT) continue;
            CHECK(ran[types[t]][i], "no test runs the kernel %s of %s", lk__op_name((lk__op)i),
                  lk_dtype_name(types[t]));
        }
}

/* How many lines with a mistake no case of the CPU's kernels can find, at most. */
static int cannot_be_found(lk__op op)
{
    switch (op) {
    case LK__OP_linear: return 3;            /* `before` is an output of other devices' kernels */
    case LK__OP_linear_grad_input: return 8; /* so are its `before` and `residual` */
    case LK__OP_cross_entropy:
    case LK__OP_linear_cross_entropy: return 1; /* what their weight depends on matters where classes are cut */
    default: return 0;
    }
}

static void every_mistake_in_a_line_of_factors_is_found(void)
{
    for (int i = 0; i < LK__OP_COUNT; i++) {
        factor_mutants list = list_mutants(lk__op_find((lk__op)i)->factors);
        int            missed = 0;
        for (int k = 0; tried[i] && k < list.count; k++)
            if (!found[i][k] && ++missed > cannot_be_found((lk__op)i))
                CHECK(false, "%s: no case finds that this line is wrong: %s", lk__op_name((lk__op)i), list.line[k]);
        free_mutants(&list);
    }
}

int main(void)
{
    const char *directory = getenv("LK_KERNELS_RAN");
    DIR        *list = directory ? opendir(directory) : NULL;
    int         files = 0;
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (strstr(entry->d_name, ".lines"))
            read_lines(directory, entry->d_name);
        else if (entry->d_name[0] != '.')
            read_list(directory, entry->d_name), files++;
    if (list) closedir(list);
    if (files == 0) {
        printf("skipped: LK_KERNELS_RAN names no directory with lists of the other tests of kernels\n");
        return SKIPPED;
    }
    RUN(every_kernel_has_run);
    RUN(every_mistake_in_a_line_of_factors_is_found);
    return check_result();
}
