/* sha256_blocks.c - blocks of SHA-256 with the instructions of ARMv8 and x86 where the machine has them, otherwise in
 * C. One message is one chain of dependent rounds, so their latency bounds all three, and no number of cores helps. */
#include "base/sha256_blocks.h"

#include <lockstep/context.h>

#include <string.h>

#if defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SHA2 1
#if defined(__clang__) && !defined(__ARM_FEATURE_SHA2)
/* or arm_neon.h of clang before 16 hides the functions, whatever the target attribute says */
#define __ARM_FEATURE_SHA2 1
#endif
#include <arm_neon.h>
#include <sys/auxv.h>
#ifndef HWCAP_SHA2
#define HWCAP_SHA2 (1 << 6)
#endif
#if defined(__clang__)
#define TARGET __attribute__((target("sha2")))
#else
#define TARGET __attribute__((target("+crypto")))
#endif
#elif defined(__x86_64__)
#define SHA_NI 1
#include <cpuid.h>
#include <immintrin.h>
#define TARGET __attribute__((target("sha,sse4.1,ssse3")))
#endif

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void add_portable_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void add_portable(uint32_t state[8], const unsigned char *blocks, size_t count)
{
    for (; count; count--, blocks += 64) add_portable_block(state, blocks);
}

#ifdef SHA2

/* Four rounds an iteration; w[0..3] are the next sixteen words of the schedule, four in a vector. */
TARGET static void add_sha2(uint32_t state[8], const unsigned char *blocks, size_t count)
{
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; count; count--, blocks += 64) {
        uint32x4_t w[4], abcd_before = abcd, efgh_before = efgh;
        for (int i = 0; i < 4; i++) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(blocks + 16 * i)));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            uint32x4_t sum = vaddq_u32(w[i % 4], vld1q_u32(K + 4 * i)), abcd_now = abcd;
            if (i < 12)
                w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4], w[(i + 3) % 4]);
            abcd = vsha256hq_u32(abcd, efgh, sum);
            efgh = vsha256h2q_u32(efgh, abcd_now, sum);
        }
        abcd = vaddq_u32(abcd, abcd_before);
        efgh = vaddq_u32(efgh, efgh_before);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}

static bool has_sha2(void) { return getauxval(AT_HWCAP) & HWCAP_SHA2; }

#elif defined(SHA_NI)

/* Four rounds an iteration. The instructions take the state as (a, b, e, f) and (c, d, g, h), the first in the highest
 * lane. */
TARGET static void add_sha_ni(uint32_t state[8], const unsigned char *blocks, size_t count)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    __m128i       dcba = _mm_loadu_si128((const __m128i *)state);
    __m128i       hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    __m128i       cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i       abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; count; count--, blocks += 64) {
        __m128i w[4], abef_before = abef, cdgh_before = cdgh;
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(blocks + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i sum = _mm_add_epi32(w[i % 4], _mm_load_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (i < 12) {
                __m128i middle = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
                __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), middle);
                w[i % 4] = _mm_sha256msg2_epu32(partial, w[(i + 3) % 4]);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha_ni(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}

#endif

const lk__sha256_kind *lk__sha256_kind_at(int index)
{
    static const lk__sha256_kind portable = {"portable", add_portable};
#ifdef SHA2
    static const lk__sha256_kind quick = {"sha2", add_sha2};
    bool                         available = has_sha2();
#elif defined(SHA_NI)
    static const lk__sha256_kind quick = {"sha-ni", add_sha_ni};
    bool                         available = has_sha_ni();
#else
    static const lk__sha256_kind quick = {NULL, NULL};
    bool                         available = false;
#endif
    if (available && index == 0) return &quick;
    return index == (available ? 1 : 0) ? &portable : NULL;
}

lk__sha256_add lk__sha256_choose(void) { return lk__sha256_kind_at(0)->add; }

const char *lk_sha256_instructions(void) { return lk__sha256_kind_at(0)->name; }
