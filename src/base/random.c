/* random.c - Philox 4x32-10. */
#include "base/random.h"

#include "base/hash.h"

lk__random lk__random_make(uint64_t seed, lk__random_purpose purpose, uint64_t stream)
{
    uint64_t key[2] = {stream, (uint64_t)purpose};
    uint64_t folded = lk__hash64(key, sizeof key, 0);
    return (lk__random){{(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(folded >> 32)}, (uint32_t)folded};
}

void lk__random4(const lk__random *random, uint64_t item, uint32_t index, uint32_t out[4])
{
    uint32_t c0 = index, c1 = (uint32_t)item, c2 = (uint32_t)(item >> 32), c3 = random->high;
    uint32_t k0 = random->key[0], k1 = random->key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint32_t lk__random_u32(const lk__random *random, uint64_t item, uint32_t index)
{
    uint32_t out[4];
    lk__random4(random, item, index / 4, out);
    return out[index % 4];
}

uint64_t lk__random_below(const lk__random *random, uint64_t item, uint32_t *index, uint64_t n)
{
    /* Rejection sampling: the part of the range that does not divide evenly is discarded. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    for (;;) {
        uint32_t words[5], at = *index % 4; /* two that follow each other: of one block of four, or of two */
        lk__random4(random, item, *index / 4, words);
        if (at == 3) words[4] = lk__random_u32(random, item, *index + 1);
        uint64_t value = (uint64_t)words[at] << 32 | words[at + 1];
        *index += 2;
        if (value < limit) return value % n;
    }
}
