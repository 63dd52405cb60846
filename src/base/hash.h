/* base/hash.h - SHA-256 (FIPS 180-4) for files, and a quick 64-bit hash for names and comparisons. */
#ifndef LK__HASH_H
#define LK__HASH_H

#include <stddef.h>
#include <stdint.h>

/* Adds `count` blocks of 64 bytes to a state. */
typedef void (*lk__sha256_add)(uint32_t state[8], const unsigned char *blocks, size_t count);

/* After a multiple of 64 bytes, state and bytes are all that another process needs to continue. */
typedef struct lk__sha256 {
    uint32_t       state[8];
    uint64_t       bytes;
    unsigned char  block[64];
    lk__sha256_add add; /* the fastest on this machine */
} lk__sha256;

void lk__sha256_init(lk__sha256 *sha);
void lk__sha256_update(lk__sha256 *sha, const void *data, size_t bytes);
void lk__sha256_final(lk__sha256 *sha, unsigned char digest[32]);
void lk__sha256_hex(const unsigned char digest[32], char hex[65]);

uint64_t lk__hash64(const void *data, size_t bytes, uint64_t seed); /* FNV-1a; not collision-resistant */
/* The seed with which lk__hash64 of the following bytes gives the hash of all bytes, from the hash of the preceding
 * ones. */
uint64_t lk__hash64_resume(uint64_t hash);

#endif
