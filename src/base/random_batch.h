/* base/random_batch.h - lk__random4 for many indices at once. A header, so that it is compiled with its caller's
 * instruction set, and separate from random.h, because arm_neon.h takes longer to compile than most files of the
 * library. */
#ifndef LK__RANDOM_BATCH_H
#define LK__RANDOM_BATCH_H

#include "base/random.h"

#include <string.h>
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
#include <arm_neon.h>
#define LK__RANDOM_NEON
#endif

/* lk__random4_batch is lk__random4 for LK__RANDOM_BATCH indices from `index` on: out[k][j] is number k of index + j. A
 * compiler can vectorise the rounds because the counters advance together. */
#if defined(__clang__) || defined(__CUDACC__)
#define LK__KEEP_LOOP
#else
#define LK__KEEP_LOOP _Pragma("GCC unroll 1") /* gcc would unroll it completely and then not vectorise it */
#endif
#if defined(LK__RANDOM_NEON)
/* Four vectors of counters stay in registers through the rounds, which a compiler keeps in memory; their products do
 * not depend on each other. */
static inline void lk__random4_batch(const lk__random *random, uint64_t item, uint32_t index,
                                     uint32_t out[4][LK__RANDOM_BATCH])
{
    enum { VECTORS = 4 };
    static const uint32_t lanes[4] = {0, 1, 2, 3};
    for (uint32_t j = 0; j < LK__RANDOM_BATCH; j += 4 * VECTORS) {
        uint32x4_t c0[VECTORS], c1[VECTORS], c2[VECTORS], c3[VECTORS];
        uint32x4_t k0 = vdupq_n_u32(random->key[0]), k1 = vdupq_n_u32(random->key[1]);
        for (uint32_t v = 0; v < VECTORS; v++) {
            c0[v] = vaddq_u32(vdupq_n_u32(index + j + 4 * v), vld1q_u32(lanes));
            c1[v] = vdupq_n_u32((uint32_t)item);
            c2[v] = vdupq_n_u32((uint32_t)(item >> 32));
            c3[v] = vdupq_n_u32(random->high);
        }
        _Pragma("GCC unroll 1") /* as few instructions as fit the machine's window */
            for (int round = 0; round < 10; round++)
        {
            for (int v = 0; v < VECTORS; v++) {
                uint32x4_t low0 = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(c0[v]), 0xD2511F53u));
                uint32x4_t high0 = vreinterpretq_u32_u64(vmull_high_n_u32(c0[v], 0xD2511F53u));
                uint32x4_t low1 = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(c2[v]), 0xCD9E8D57u));
                uint32x4_t high1 = vreinterpretq_u32_u64(vmull_high_n_u32(c2[v], 0xCD9E8D57u));
                c0[v] = veorq_u32(vuzp2q_u32(low1, high1), veorq_u32(c1[v], k0));
                c2[v] = veorq_u32(vuzp2q_u32(low0, high0), veorq_u32(c3[v], k1));
                c1[v] = vuzp1q_u32(low1, high1);
                c3[v] = vuzp1q_u32(low0, high0);
            }
            k0 = vaddq_u32(k0, vdupq_n_u32(0x9E3779B9u));
            k1 = vaddq_u32(k1, vdupq_n_u32(0xBB67AE85u));
        }
        for (uint32_t v = 0; v < VECTORS; v++) {
            vst1q_u32(out[0] + j + 4 * v, c0[v]);
            vst1q_u32(out[1] + j + 4 * v, c1[v]);
            vst1q_u32(out[2] + j + 4 * v, c2[v]);
            vst1q_u32(out[3] + j + 4 * v, c3[v]);
        }
    }
}
#else
static inline void lk__random4_batch(const lk__random *random, uint64_t item, uint32_t index,
                                     uint32_t out[4][LK__RANDOM_BATCH])
{
    uint32_t k0 = random->key[0], k1 = random->key[1];
    uint32_t c0[LK__RANDOM_BATCH], c1[LK__RANDOM_BATCH], c2[LK__RANDOM_BATCH], c3[LK__RANDOM_BATCH];
    for (uint32_t j = 0; j < LK__RANDOM_BATCH; j++) {
        c0[j] = index + j;
        c1[j] = (uint32_t)item;
        c2[j] = (uint32_t)(item >> 32);
        c3[j] = random->high;
    }
    for (int round = 0; round < 10; round++) {
        LK__KEEP_LOOP
        for (int j = 0; j < LK__RANDOM_BATCH; j++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[j], p1 = (uint64_t)0xCD9E8D57u * c2[j];
            c0[j] = (uint32_t)(p1 >> 32) ^ c1[j] ^ k0;
            c2[j] = (uint32_t)(p0 >> 32) ^ c3[j] ^ k1;
            c1[j] = (uint32_t)p1;
            c3[j] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out[0], c0, sizeof c0);
    memcpy(out[1], c1, sizeof c1);
    memcpy(out[2], c2, sizeof c2);
    memcpy(out[3], c3, sizeof c3);
}
#endif

#endif
