/* cpu.c - the CPU's kernel table for an element type and an instruction set. */
#include "device/kernel.h"

#include <string.h>

#if defined(__x86_64__)
#define ISA_LIST(X) X(avx512) X(avx2) X(generic)
#elif defined(__aarch64__)
#define ISA_LIST(X) X(neon)
#else
#define ISA_LIST(X) X(generic)
#endif

#define DECLARE(isa)                                                 \
    extern const lk__kernel_entry lk__table_f32_##isa[LK__OP_COUNT]; \
    extern const lk__kernel_entry lk__table_f64_##isa[LK__OP_COUNT]; \
    extern const lk__kernel_entry lk__table_bf16_##isa[LK__OP_COUNT];
ISA_LIST(DECLARE)
#undef DECLARE

const lk__kernel_entry *lk__cpu_kernels(lk_dtype element, const char *isa)
{
#define FIND(name)                                          \
    if (strcmp(isa, #name) == 0) {                          \
        if (element == LK_F32) return lk__table_f32_##name;    \
        if (element == LK_F64) return lk__table_f64_##name;    \
        if (element == LK_BF16) return lk__table_bf16_##name;  \
    }
    ISA_LIST(FIND)
#undef FIND
    return NULL;
}
