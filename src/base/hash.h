/* base/hash.h - SHA-256 (FIPS 180-4) for files, and a quick 64-bit hash for names and comparisons. */
#ifndef LK__HASH_H
#define LK__HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct lk__sha256 {
    uint32_t      state[8];
    uint64_t      bytes;
    unsigned char block[64];
} lk__sha256;

void lk__sha256_init(lk__sha256 *sha);
void lk__sha256_update(lk__sha256 *sha, const void *data, size_t bytes);
void lk__sha256_final(lk__sha256 *sha, unsigned char digest[32]);
void lk__sha256_hex(const unsigned char digest[32], char hex[65]);

uint64_t lk__hash64(const void *data, size_t bytes, uint64_t seed); /* FNV-1a; not collision-resistant */

#endif
