/* xxh64.c - XXH64 with seed 0, as the xxHash specification (0.1.1) describes it. Four independent lanes of 8 bytes:
 * memory bounds it. */
#include "base/xxh64.h"

#include <string.h>

static const uint64_t P1 = 0x9e3779b185ebca87u, P2 = 0xc2b2ae3d27d4eb4fu, P3 = 0x165667b19e3779f9u,
                      P4 = 0x85ebca77c2b2ae63u, P5 = 0x27d4eb2f165667c5u;

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "XXH64 reads little-endian words"
#endif

static uint64_t load64(const unsigned char *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t load32(const unsigned char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t add_round(uint64_t lane, uint64_t input) { return rotate(lane + input * P2, 31) * P1; }

static void add_blocks(uint64_t lanes[4], const unsigned char *p, size_t count)
{
    uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
    for (; count; count--, p += 32) {
        a = add_round(a, load64(p)), b = add_round(b, load64(p + 8));
        c = add_round(c, load64(p + 16)), d = add_round(d, load64(p + 24));
    }
    lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

void lk__xxh64_init(lk__xxh64 *hash) { *hash = (lk__xxh64){.lanes = {P1 + P2, P2, 0, 0 - P1}}; }

void lk__xxh64_update(lk__xxh64 *hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    size_t               used = hash->bytes % 32;
    hash->bytes += bytes;
    if (used) {
        size_t take = 32 - used < bytes ? 32 - used : bytes;
        memcpy(hash->block + used, p, take);
        p += take, bytes -= take;
        if (used + take < 32) return;
        add_blocks(hash->lanes, hash->block, 1);
    }
    add_blocks(hash->lanes, p, bytes / 32);
    p += bytes / 32 * 32, bytes %= 32;
    if (bytes) memcpy(hash->block, p, bytes);
}

uint64_t lk__xxh64_final(const lk__xxh64 *hash)
{
    static const int     turns[] = {1, 7, 12, 18};
    const unsigned char *p = hash->block;
    uint64_t             result = 0;
    if (hash->bytes < 32)
        result = P5;
    else {
        for (int i = 0; i < 4; i++) result += rotate(hash->lanes[i], turns[i]);
        for (int i = 0; i < 4; i++) result = (result ^ add_round(0, hash->lanes[i])) * P1 + P4;
    }
    result += hash->bytes;
    size_t left = hash->bytes % 32;
    for (; left >= 8; left -= 8, p += 8) result = rotate(result ^ add_round(0, load64(p)), 27) * P1 + P4;
    for (; left >= 4; left -= 4, p += 4) result = rotate(result ^ load32(p) * P1, 23) * P2 + P3;
    for (; left; left--, p++) result = rotate(result ^ *p * P5, 11) * P1;
    result = (result ^ result >> 33) * P2;
    result = (result ^ result >> 29) * P3;
    return result ^ result >> 32;
}
