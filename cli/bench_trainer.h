/* bench_trainer.h - `lockstep bench train` where the data set is in the device's memory: the trainer's own loop, timed
 * by its events. */
#ifndef CLI_BENCH_TRAINER_H
#define CLI_BENCH_TRAINER_H

#include "setup.h"

typedef struct bench_times {
    double  first_step; /* seconds since `started` */
    double  median;     /* seconds per step */
    double  mean;
    int64_t steps; /* that these are of */
} bench_times;

/* Trains on generated data with the fields of s->train for `steps` steps; 0: for about two seconds, 20 steps at least.
 * LK_END: the data is not made by the device, and nothing was measured. */
lk_status bench_trainer(setup *s, int64_t steps, double started, bench_times *times);

#endif
