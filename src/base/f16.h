/* base/f16.h - IEEE half precision, as files hold it. Read, never computed with. */
#ifndef LK__F16_H
#define LK__F16_H

#include <stdint.h>

static inline double lk__from_f16(uint16_t bits)
{
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? (double)__builtin_nan("") : sign * __builtin_inf();
    return sign * (exponent ? __builtin_ldexp(1024 + fraction, exponent - 25) : __builtin_ldexp(fraction, -24));
}

#endif
