/* tested_isas.h - the instruction sets whose kernels are tested: the build's, or the one that LK_TEST_ISA names. An
 * emulated one has kernels of bf16 alone. */
#ifndef TESTED_ISAS_H
#define TESTED_ISAS_H

#include "base/dtype.h"
#include "base/isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *const *tested_isas(void)
{
    static const char *one[2];
    one[0] = getenv("LK_TEST_ISA");
    if (!one[0] || !*one[0]) return lk__isa_names;
    if (lk__isa_available(one[0])) return one;
    fprintf(stderr, "FAIL LK_TEST_ISA: there is no instruction set %s\n", one[0]);
    exit(1);
}

static inline bool is_emulated_isa(const char *isa)
{
    for (int i = 0; lk__isa_emulated_names[i]; i++)
        if (strcmp(isa, lk__isa_emulated_names[i]) == 0) return true;
    return false;
}

static inline lk_dtype first_tested_type(const char *isa) { return is_emulated_isa(isa) ? LK_BF16 : LK_F32; }

#endif
