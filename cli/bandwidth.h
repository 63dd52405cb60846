/* bandwidth.h - measures the machine's memory bandwidth, for comparisons. */
#ifndef BANDWIDTH_H
#define BANDWIDTH_H

/* Bytes a second that so many threads read from memory, the best of several passes over 64 MiB of each; takes about a
 * fifth of a second. 0: it could not be measured. */
double bandwidth_measure(int threads);

#endif
