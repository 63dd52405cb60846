/* plan_measure.h - `lockstep plan --measure`: times of a model's operations on this machine. */
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "setup.h"

/* Measures every instruction of one rank that has the whole model, with as many samples as one of the ranks will have,
 * while as many others compute as will share its host; estimates of `plan` then use the times. */
lk_status plan_measure(const setup *s, lk_plan *plan);

#endif
