/* base/entropy.h - random bytes from the system, for secrets: unpredictable, unlike the numbers of random.h. */
#ifndef LK__ENTROPY_H
#define LK__ENTROPY_H

#include <stdbool.h>
#include <stddef.h>

/* Up to 256 bytes, which getrandom(2) returns in one call. False on failure, with errno set. */
bool lk__entropy(void *out, size_t bytes);
/* As 2 × bytes hexadecimal digits and a NUL; up to 64 bytes. */
bool lk__entropy_hex(char *out, size_t bytes);

#endif
