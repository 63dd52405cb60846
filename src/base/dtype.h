/* base/dtype.h - the table of element types (base/dtype_list.h). Code that depends on an element type looks it up
 * here. */
#ifndef LK__DTYPE_H
#define LK__DTYPE_H

#include "base/bf16.h"
#include "base/dtype_list.h"
#include "base/f16.h"

typedef enum lk__dtype_kind {
    LK__DTYPE_COMPUTED,
    LK__DTYPE_STORED,
    LK__DTYPE_EXCHANGED,
    LK__DTYPE_INTEGER
} lk__dtype_kind;

/* The columns of the list, and conversions of arrays. */
typedef struct lk__dtype {
    const char    *name, *text, *safetensors, *numpy;
    int            order;
    size_t         size;
    lk__dtype_kind kind;
    lk_dtype       sums;
    void (*to_double)(double *out, const void *in, size_t count);
    /* A number is rounded to the type of sums first, as in PyTorch. Integers: without a fraction. */
    void (*from_double)(void *out, const double *in, size_t count);
    void (*from_float)(void *out, const float *in, size_t count);
} lk__dtype;
const lk__dtype *lk__dtype_of(lk_dtype type); /* of another number: an integer type without a size and conversions */

static inline bool lk__dtype_is_real(lk_dtype type) { return lk__dtype_of(type)->kind != LK__DTYPE_INTEGER; }
/* Whether graphs have values of this type with gradients, and devices kernels for it. */
static inline bool lk__is_element(lk_dtype type) { return lk__dtype_of(type)->kind <= LK__DTYPE_STORED; }
/* Whether kernels store this type and compute in a wider one: states of this type have a master copy. */
static inline bool lk__is_narrow(lk_dtype type) { return lk__dtype_of(type)->kind == LK__DTYPE_STORED; }
/* The type of sums over elements of this type. */
static inline lk_dtype lk__wide_type(lk_dtype element) { return lk__dtype_of(element)->sums; }

/* Between floating types. */
void lk__dtype_convert(lk_dtype from, const void *in, lk_dtype to, void *out, size_t count);

/* "f32, f64 or bf16": the types of which `has` is true, for messages. */
typedef struct lk__dtype_names {
    char text[64];
} lk__dtype_names;
lk__dtype_names lk__dtype_names_of(bool (*has)(lk_dtype type));

#endif
