/* hmac.c - HMAC-SHA-256 (RFC 2104), and its comparison in constant time. */
#include "base/hash.h"
#include "comm/rendezvous/local.h"

#include <string.h>

void lk__hmac(const char *key, const void *message, size_t bytes, unsigned char mac[32])
{
    unsigned char block[64] = {0}, inner[64], outer[64];
    lk__sha256    sha;
    size_t        length = strlen(key);
    if (length > sizeof block) {
        lk__sha256_init(&sha);
        lk__sha256_update(&sha, key, length);
        lk__sha256_final(&sha, block);
    } else {
        memcpy(block, key, length);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, inner, sizeof inner);
    lk__sha256_update(&sha, message, bytes);
    lk__sha256_final(&sha, mac);
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, outer, sizeof outer);
    lk__sha256_update(&sha, mac, 32);
    lk__sha256_final(&sha, mac);
}

bool lk__hmac_same(const unsigned char a[32], const unsigned char b[32])
{
    unsigned char differ = 0;
    for (int i = 0; i < 32; i++) differ |= a[i] ^ b[i];
    return differ == 0;
}
