/* isa.c - run-time choice of the kernels' instruction set. */
#include "base/isa.h"

#include "base/cpu_features.h"
#include "base/isa_list.h"

#include <stddef.h>
#include <string.h>

/* ---- what the machine has ---- */

static bool has_always(void) { return true; }

#if defined(__x86_64__)
static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif
static bool is_amd(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

#if defined(LK_ISA_AVX512_BF16)
static bool has_avx512_bf16(void) { return has_avx512() && lk__has_avx512_bf16(); }
#endif
#if defined(LK_ISA_AMX)
static bool has_amx(void) { return has_avx512() && lk__has_avx512_bf16() && lk__has_amx_bf16(); }
#endif

/* ---- the table ---- */

typedef enum use { BEST, BEST_ON_AMD, EMULATED } use;

typedef struct instruction_set {
    const char *name, *extended;
    bool (*has)(void);
    use use;
} instruction_set;

#define TEXT(token) TEXT_OF(token)
#define TEXT_OF(token) #token
static const instruction_set sets[] = {
#define SET_ROW(name, types, extended, has, use) {#name, TEXT(extended), has, use},
    LK__ISA_LIST(SET_ROW)};
enum { SETS = sizeof sets / sizeof *sets };

const char *const lk__isa_names[] = {
#define LISTED_BEST(name) #name,
#define LISTED_BEST_ON_AMD(name) #name,
#define LISTED_EMULATED(name)
#define LISTED_NAME(name, types, extended, has, use) LISTED_##use(name)
    LK__ISA_LIST(LISTED_NAME) NULL};

const char *const lk__isa_emulated_names[] = {
#define EMULATED_BEST(name)
#define EMULATED_BEST_ON_AMD(name)
#define EMULATED_EMULATED(name) #name,
#define EMULATED_NAME(name, types, extended, has, use) EMULATED_##use(name)
    LK__ISA_LIST(EMULATED_NAME) NULL};

static const instruction_set *find_set(const char *name)
{
    for (int i = 0; i < SETS; i++)
        if (strcmp(sets[i].name, name) == 0) return &sets[i];
    return NULL;
}

bool lk__isa_available(const char *name)
{
    const instruction_set *set = find_set(name);
    return set && set->has();
}

const char *lk__isa_extended(const char *name)
{
    const instruction_set *set = find_set(name);
    return set && find_set(set->extended) ? set->extended : NULL;
}

static bool is_default(const instruction_set *set) { return set->use == BEST || (set->use == BEST_ON_AMD && is_amd()); }

const char *lk__isa_choose(const char *wanted)
{
    for (int i = 0; i < SETS; i++) {
        bool named = wanted ? strcmp(wanted, sets[i].name) == 0 : is_default(&sets[i]);
        if (named && sets[i].has()) return sets[i].name;
    }
    return NULL;
}
