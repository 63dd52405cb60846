/* times.h - the median and the mean of the times of repeated work. Where single times vary, the mean multiplied by the
 * count is the total time. */
#ifndef CLI_TIMES_H
#define CLI_TIMES_H

#include <stdint.h>

double times_median(double *seconds, int64_t count); /* sorts them; count > 0 */
double times_mean(const double *seconds, int64_t count);

#endif
