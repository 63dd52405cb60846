/* test_divisor.c - the extent that messages propose, against a search over all numbers. */
#include "check.h"
#include "plan/divisor.h"

#include <stdlib.h>

static void the_nearest_divisor_is_above_one_and_the_smaller_of_two(void)
{
    static const int64_t table[][3] = {
        /* n, extent, nearest */
        {4, 3, 2},      {4, 7, 4},  {4, 8, 4},   {5, 3, 5},  {5, 2, 5}, {65, 4, 5},
        {65, 2, 5},     {12, 5, 4}, {9, 6, 3},   {12, 8, 6}, {7, 8, 7}, {7, 2, 7},
        {6, 4, 3},      {8, 6, 4},  {97, 4, 97}, {1, 2, 1},  {0, 2, 1}, {1000003, 2, 1000003},
        {50257, 8, 29},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        CHECK(lk__nearest_divisor(table[i][0], table[i][1]) == table[i][2], "%lld by %lld: %lld",
              (long long)table[i][0], (long long)table[i][1], (long long)lk__nearest_divisor(table[i][0], table[i][1]));
}

static void small_numbers_agree_with_a_search(void)
{
    for (int n = 2; n <= 60; n++)
        for (int extent = 2; extent <= 70; extent++) {
            int best = 0;
            if (n % extent == 0) continue;
            for (int d = n; d > 1; d--) /* the smaller ones last */
                if (n % d == 0 && (!best || abs(d - extent) <= abs(best - extent))) best = d;
            CHECK(lk__nearest_divisor(n, extent) == best, "%d by %d: %lld, not %d", n, extent,
                  (long long)lk__nearest_divisor(n, extent), best);
        }
}

int main(void)
{
    RUN(the_nearest_divisor_is_above_one_and_the_smaller_of_two);
    RUN(small_numbers_agree_with_a_search);
    return check_result();
}
