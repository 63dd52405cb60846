/* entropy.c - random bytes from the system, raw and in hexadecimal. */
#define _GNU_SOURCE
#include "base/entropy.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

bool lk__entropy(void *out, size_t bytes)
{
    ssize_t n;
    do n = getrandom(out, bytes, 0);
    while (n < 0 && errno == EINTR); /* it may block early after boot */
    return n == (ssize_t)bytes;
}

bool lk__entropy_hex(char *out, size_t bytes)
{
    unsigned char raw[64];
    if (bytes > sizeof raw || !lk__entropy(raw, bytes)) return false;
    for (size_t i = 0; i < bytes; i++) snprintf(out + 2 * i, 3, "%02x", raw[i]);
    return true;
}
