/* times.c - sorts and adds times. */
#include "times.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double times_median(double *seconds, int64_t count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, ascending);
    return seconds[count / 2];
}

double times_mean(const double *seconds, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += seconds[i];
    return sum / (double)count;
}
