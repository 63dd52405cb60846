/* hash.c - SHA-256 as in FIPS 180-4 over a function that adds blocks (sha256_blocks.c), and FNV-1a. */
#include "base/hash.h"

#include "base/sha256_blocks.h"

#include <string.h>

void lk__sha256_init(lk__sha256 *sha)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, start, sizeof start);
    sha->bytes = 0;
    sha->add = lk__sha256_choose();
}

void lk__sha256_update(lk__sha256 *sha, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    size_t               used = sha->bytes % 64;
    sha->bytes += bytes;
    if (used) {
        size_t take = 64 - used < bytes ? 64 - used : bytes;
        if (take) memcpy(sha->block + used, p, take);
        p += take, bytes -= take;
        if (used + take < 64) return;
        sha->add(sha->state, sha->block, 1);
    }
    sha->add(sha->state, p, bytes / 64);
    p += bytes / 64 * 64, bytes %= 64;
    if (bytes) memcpy(sha->block, p, bytes);
}

void lk__sha256_final(lk__sha256 *sha, unsigned char digest[32])
{
    uint64_t      bits = sha->bytes * 8;
    size_t        used = sha->bytes % 64;
    unsigned char tail[128] = {0x80};
    size_t        pad = (used < 56 ? 56 : 120) - used;
    for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    lk__sha256_update(sha, tail, pad + 8);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void lk__sha256_hex(const unsigned char digest[32], char hex[65])
{
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = 0;
}

static const uint64_t FNV_BASIS = 0xcbf29ce484222325u;

uint64_t lk__hash64(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t             hash = FNV_BASIS ^ seed;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

/* hash ^ hash >> 29 is undone by shifts of its multiples. */
uint64_t lk__hash64_resume(uint64_t hash) { return (hash ^ hash >> 29 ^ hash >> 58) ^ FNV_BASIS; }
