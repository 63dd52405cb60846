/* graph/operation_factors.h - compares the factors that a user's operation declares with its results, for
 * lk_operation_check. */
#ifndef LK__OPERATION_FACTORS_H
#define LK__OPERATION_FACTORS_H

#include "graph/operation_batch.h"

/* Runs forward or backward on parts of the operands, cut along each factor, and compares the results with the results
 * of the whole, which has run. Each finding is one sentence, without the operation's name. */
lk_status lk__operation_check_factors(lk__operation_batch *whole, bool                    backward,
                                      void (*report)(void *user, const char *text), void *user);

#endif
