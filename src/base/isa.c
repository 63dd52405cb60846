/* isa.c - run-time choice of the kernels' instruction set. */
#include "base/isa.h"

#include "base/cpu_features.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
const char *const lk__isa_names[] = {"avx512", "avx2", "generic", NULL};
#elif defined(__aarch64__)
const char *const lk__isa_names[] = {
#if defined(LK_ISA_NEON_BF16)
    "neon_bf16",
#endif
    "neon", NULL};
#else
const char *const lk__isa_names[] = {"generic", NULL};
#endif

bool lk__isa_available(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(name, "avx2") == 0) return avx2;
    if (strcmp(name, "avx512") == 0)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#endif
    if (strcmp(name, "neon_bf16") == 0 && !lk__has_bfmmla()) return false;
    for (int i = 0; lk__isa_names[i]; i++)
        if (strcmp(name, lk__isa_names[i]) == 0) return true;
    return false;
}

const char *lk__isa_extended(const char *name) { return strcmp(name, "neon_bf16") == 0 ? "neon" : NULL; }

const char *lk__isa_choose(const char *wanted)
{
    for (int i = 0; lk__isa_names[i]; i++) {
        if (wanted && strcmp(wanted, lk__isa_names[i]) != 0) continue;
        if (lk__isa_available(lk__isa_names[i])) return lk__isa_names[i];
    }
    return NULL;
}
