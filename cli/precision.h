/* precision.h - the choices of options that name a type: the library's precision policies. */
#ifndef PRECISION_H
#define PRECISION_H

#include <lockstep/plan.h>

#define PRECISION_CHOICE(constant, type, name) "|" name
#define PRECISION_CHOICES "f32|f64" LK_POLICY_LIST(PRECISION_CHOICE) /* lk_policy_parse accepts these */
#define GRADIENT_CHOICES "f32" LK_POLICY_LIST(PRECISION_CHOICE)

/* Of --matmul-precision; NULL past the last. */
static inline const char *precision_of_products(int index)
{
    return lk_matmul_precision_name((lk_matmul_precision)index);
}

#endif
