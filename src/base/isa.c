/* isa.c - run-time choice of the kernels' instruction set. */
#include "base/isa.h"

#include "base/cpu_features.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
/* After "generic", which every machine has: sets that no processor with their instructions has run yet, so that they
 * are in use only where they are named. */
const char *const lk__isa_names[] = {"avx512",      "avx2", "generic",
#if defined(LK_ISA_AVX512_BF16)
                                     "avx512_bf16",
#endif
#if defined(LK_ISA_AMX)
                                     "amx",
#endif
                                     NULL};
#elif defined(__aarch64__)
const char *const lk__isa_names[] = {
#if defined(LK_ISA_NEON_BF16)
    "neon_bf16",
#endif
    "neon", NULL};
#else
const char *const lk__isa_names[] = {"generic", NULL};
#endif

const char *const lk__isa_emulated_names[] = {
#if defined(LK_ISA_NEON_BF16_EMULATED)
    "neon_bf16_emulated",
#endif
#if defined(LK_ISA_AVX512_BF16_EMULATED)
    "avx512_bf16_emulated",
#endif
#if defined(LK_ISA_AMX_EMULATED)
    "amx_emulated",
#endif
    NULL};

#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

static bool machine_has(const char *name)
{
    __builtin_cpu_init();
    if (strcmp(name, "avx2") == 0) return has_avx2();
    if (strcmp(name, "avx512") == 0) return has_avx512();
    if (strcmp(name, "avx512_bf16") == 0) return has_avx512() && lk__has_avx512_bf16();
    if (strcmp(name, "amx") == 0) return has_avx512() && lk__has_avx512_bf16() && lk__has_amx_bf16();
    return true;
}
#else
static bool machine_has(const char *name) { return strcmp(name, "neon_bf16") != 0 || lk__has_bfmmla(); }
#endif

static bool is_listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

bool lk__isa_available(const char *name)
{
    return is_listed(lk__isa_emulated_names, name) || (is_listed(lk__isa_names, name) && machine_has(name));
}

const char *lk__isa_extended(const char *name)
{
    if (strcmp(name, "amx") == 0 || strcmp(name, "avx512_bf16") == 0) return "avx512";
    if (strcmp(name, "neon_bf16") == 0) return "neon";
    if (!is_listed(lk__isa_emulated_names, name)) return NULL;
#if defined(__aarch64__)
    return "neon";
#else
    return "generic";
#endif
}

static const char *choose_among(const char *const *names, const char *wanted)
{
    for (; *names; names++) {
        if (wanted && strcmp(wanted, *names) != 0) continue;
        if (lk__isa_available(*names)) return *names;
    }
    return NULL;
}

const char *lk__isa_choose(const char *wanted)
{
    const char *name = choose_among(lk__isa_names, wanted);
    return name || !wanted ? name : choose_among(lk__isa_emulated_names, wanted);
}
