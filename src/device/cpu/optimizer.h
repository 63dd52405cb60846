/* device/cpu/optimizer.h - what the kernels of optimizers share: the arrays of an update, and its ranges of elements.
 *
 * Ranks that share their state update slices of a tensor, so an element may be in a whole vector on one rank and in the
 * remainder of a range on another. The compiler chooses which product of a sum it fuses, and could choose differently
 * in a separate loop for remainders. So the remainder is copied to a whole vector, which the same code updates. */
#ifndef LK__CPU_OPTIMIZER_H
#define LK__CPU_OPTIMIZER_H

#include "base/dtype.h"
#include "device/cpu/vmath.h"

#include <lockstep/optimizer.h>

typedef struct update_arrays {
    const REAL *gradient;
    REAL       *parameter, *moment[LK_MAX_MOMENTS]; /* of the operation's outputs; NULL: absent */
    lk__bf16   *stored;                             /* the parameter after the update, rounded; NULL: not needed */
} update_arrays;

/* Updates the whole vectors of elements begin … end - 1; rule: the kernel's own numbers. */
typedef void update_function(const void *rule, const update_arrays *a, int64_t begin, int64_t end);

typedef struct update {
    update_arrays    arrays;
    int64_t          n, tiles;
    const void      *rule;
    update_function *vectors;
    char            *rounded; /* the same as arrays.stored, in a type for which there are no vectors here; NULL: none */
    lk_dtype         type;    /* of it */
} update;

/* From INLINE NAME_vectors(NAME_rule, update_arrays, begin, end, stored): NAME_plain and NAME_stored, from one copy of
 * the code. */
#define UPDATE_FUNCTIONS(name)                                                                       \
    UPDATE_FUNCTION name##_plain(const void *rule, const update_arrays *a, int64_t begin, int64_t end)  \
    {                                                                                                \
        name##_vectors(*(const name##_rule *)rule, *a, begin, end, NULL);                            \
    }                                                                                                \
    UPDATE_FUNCTION name##_stored(const void *rule, const update_arrays *a, int64_t begin, int64_t end) \
    {                                                                                                \
        name##_vectors(*(const name##_rule *)rule, *a, begin, end, a->stored);                       \
    }
#define UPDATE_FUNCTION static __attribute__((noinline)) void

static inline double scalar_or(const double *x, double otherwise) { return x ? *x : otherwise; }

/* The common scale of the gradients, and this step's rate for this tensor. */
static inline REAL   gradient_factor(const lk__kernel_call *call) { return (REAL)scalar_or(input(call, 1), 1); }
static inline double step_rate(const lk__kernel_call *call) { return call->step->rate * call->attrs->lr_scale; }

static inline void copy_elements(void *to, const void *from, int64_t count, size_t size)
{
    memcpy(to, from, (size_t)count * size);
}

static inline void update_rest(const update *u, int64_t at, int64_t count)
{
    REAL          gradient[VL] = {0}, parameter[VL] = {0}, moment[LK_MAX_MOMENTS][VL] = {{0}};
    lk__bf16      stored[VL];
    update_arrays one = {.gradient = gradient, .parameter = parameter, .stored = stored};
    copy_elements(gradient, u->arrays.gradient + at, count, sizeof(REAL));
    copy_elements(parameter, u->arrays.parameter + at, count, sizeof(REAL));
    for (int m = 0; m < LK_MAX_MOMENTS; m++)
        if (u->arrays.moment[m]) {
            one.moment[m] = moment[m];
            copy_elements(moment[m], u->arrays.moment[m] + at, count, sizeof(REAL));
        }
    u->vectors(u->rule, &one, 0, VL);
    copy_elements(u->arrays.parameter + at, parameter, count, sizeof(REAL));
    for (int m = 0; m < LK_MAX_MOMENTS; m++)
        if (u->arrays.moment[m]) copy_elements(u->arrays.moment[m] + at, moment[m], count, sizeof(REAL));
    if (u->arrays.stored) copy_elements(u->arrays.stored + at, stored, count, sizeof(lk__bf16));
}

static void update_tile(void *argument, int64_t tile, int worker)
{
    const update *u = argument;
    int64_t       begin = tile_begin(u->n, u->tiles, tile), end = tile_begin(u->n, u->tiles, tile + 1);
    int64_t       whole = begin + (end - begin) / VL * VL;
    (void)worker;
    u->vectors(u->rule, &u->arrays, begin, whole);
    if (whole < end) update_rest(u, whole, end - whole);
#if LK_REAL_BITS == 32 /* what is wider has no such copy */
    const lk__dtype *type = lk__dtype_of(u->type);
    if (u->rounded)
        type->from_float(u->rounded + (size_t)begin * type->size, u->arrays.parameter + begin, (size_t)(end - begin));
#endif
}

/* Runs an operation with places for `moments` of them. */
static inline void run_update(const lk__kernel_call *call, int moments, const void *rule, update_function *plain,
                              update_function *stored)
{
    update u = {.arrays = {.gradient = call->in[0].data, .parameter = call->out[0].data}, .rule = rule};
    for (int m = 0; m < moments; m++) u.arrays.moment[m] = output(call, 1 + m);
    u.type = call->out[1 + moments].dtype;
    if (u.type == LK_BF16)
        u.arrays.stored = output(call, 1 + moments);
    else
        u.rounded = output(call, 1 + moments);
    u.vectors = u.arrays.stored ? stored : plain;
    u.n = lk__operand_elements(&call->out[0]);
    u.tiles = tile_count(u.n, 1, 0);
    lk__pool_run(call->pool, u.tiles, update_tile, &u);
}

#endif
