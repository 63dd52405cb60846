/* cpu_features.c - detects instructions for products of bf16: by what the kernel reports on arm64, and by CPUID on
 * x86-64, where tiles also need the kernel's permission. */
#define _GNU_SOURCE
#include "base/cpu_features.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

enum { HWCAP2_FEAT_BF16 = 1 << 14 }; /* HWCAP2_BF16 of the kernel's headers since 5.7 */

bool lk__has_bfmmla(void) { return getauxval(AT_HWCAP2) & HWCAP2_FEAT_BF16; }
#else
bool lk__has_bfmmla(void) { return false; }
#endif

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LEAF_FEATURES = 7,
    AVX512_BF16_EAX = 1 << 5, /* of its subleaf 1 */
    AMX_BF16_EDX = 1 << 22,   /* of its subleaf 0 */
    AMX_TILE_EDX = 1 << 24,
    REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM of the kernel's headers since 5.16 */
    TILE_DATA = 18               /* the state component XFEATURE_XTILEDATA */
};

/* Whether the operating system saves the registers of AVX-512, too, is what the compiler's function knows. */
bool lk__has_avx512_bf16(void)
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __get_cpuid_count(LEAF_FEATURES, 1, &eax, &ebx, &ecx, &edx) && eax & AVX512_BF16_EAX;
}

bool lk__has_amx_bf16(void)
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(LEAF_FEATURES, 0, &eax, &ebx, &ecx, &edx) && edx & AMX_BF16_EDX && edx & AMX_TILE_EDX &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
bool lk__has_avx512_bf16(void) { return false; }
bool lk__has_amx_bf16(void) { return false; }
#endif
