/* divisor.c - finds the divisor that is nearest to a number. */
#include "plan/divisor.h"

int64_t lk__nearest_divisor(int64_t n, int64_t extent)
{
    if (n < 2) return 1;
    if (extent > n) return n;
    for (int64_t away = 1;; away++) { /* n itself is one */
        if (extent - away > 1 && n % (extent - away) == 0) return extent - away;
        if (n % (extent + away) == 0) return extent + away;
    }
}
