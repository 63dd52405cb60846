/* base/xxh64.h - XXH64, a quick 64-bit hash: digests of the chunks of files. It finds damage; it does not resist an
 * attacker. */
#ifndef LK__XXH64_H
#define LK__XXH64_H

#include <stddef.h>
#include <stdint.h>

typedef struct lk__xxh64 {
    uint64_t      lanes[4], bytes;
    unsigned char block[32];
} lk__xxh64;

void     lk__xxh64_init(lk__xxh64 *hash); /* seed 0 */
void     lk__xxh64_update(lk__xxh64 *hash, const void *data, size_t bytes);
uint64_t lk__xxh64_final(const lk__xxh64 *hash);

#endif
