/* base/isa.h - which instruction sets the kernels were built for and which of them this machine has. */
#ifndef LK__ISA_H
#define LK__ISA_H

#include <stdbool.h>

/* The name of the best set that both this build and this machine support, or `wanted` when it is one of them; NULL when
 * wanted is not available. Names: "neon_bf16", "neon" on arm64; "avx512", "avx2", "generic" on x86-64, and only when
 * wanted "avx512_bf16" and "amx", which asks the kernel for permission to use tiles; "generic" elsewhere. */
const char *lk__isa_choose(const char *wanted);

/* All sets of this build, best first, then those that are chosen only by name, NULL at the end; and whether the machine
 * has a set. */
extern const char *const lk__isa_names[];
bool                     lk__isa_available(const char *name);

/* Sets that are the default on no machine, but available on all: sets with matrix instructions, emulated in C. Only in
 * builds with tests (CMakeLists.txt); NULL at the end. */
extern const char *const lk__isa_emulated_names[];

/* The set that a set with matrix instructions for bf16 extends, whose kernels compute what it has no kernels for: f32
 * and f64, and with an emulated one all but products; NULL: it is none. */
const char *lk__isa_extended(const char *name);

#endif
