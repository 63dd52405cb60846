/* base/cpu_features.h - which of the instructions for products of bf16 this machine has and lets the process use. */
#ifndef LK__CPU_FEATURES_H
#define LK__CPU_FEATURES_H

#include <stdbool.h>

bool lk__has_bfmmla(void);      /* arm64: FEAT_BF16, with BFCVT */
bool lk__has_avx512_bf16(void); /* x86-64: VDPBF16PS, VCVTNE2PS2BF16, and AVX-512 F, VL, DQ and BW */
/* x86-64: tiles and TDPBF16PS. Linux reserves their 8 KiB of state only for processes that ask: this asks, for all of
 * the process's threads and children, and is false where the kernel refuses. */
bool lk__has_amx_bf16(void);

#endif
