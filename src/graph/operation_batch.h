/* graph/operation_batch.h - operands with data for a user's operation outside a program, for lk_operation_check. */
#ifndef LK__OPERATION_BATCH_H
#define LK__OPERATION_BATCH_H

#include "device/custom.h"

/* All operands of forward and backward, for some number of samples. */
typedef struct lk__operation_batch {
    const lk__kernel_custom *custom;
    lk__custom_operands      operands;
    lk__custom_operands      view; /* of the latest call: those that it may use */
    int64_t                  samples;
    size_t                   workspace_bytes;
    void                    *workspace;
} lk__operation_batch;

/* Zeroed arrays for all operands that the operation has, of the recorded types and shapes at `samples`. */
lk_status lk__batch_create(const lk__kernel_custom *custom, int64_t samples, lk__operation_batch *batch);
void      lk__batch_free(lk__operation_batch *batch); /* one that is zero, too */
/* What is random: floating numbers from -1 … 1; integers 0, 1, 0, … */
void lk__batch_draw(lk_operand *operand, uint64_t stream);
/* The inputs, the outputs and the outputs' gradients of samples `first` … of another batch, as many as this one has. */
void lk__batch_take(lk__operation_batch *batch, const lk__operation_batch *from, int64_t first);
/* The call of forward or backward with these operands; unread inputs and outputs that are not saved have no data in
 * backward. */
lk_operation_call lk__batch_call(lk__operation_batch *batch, bool backward);
/* Runs it with one thread. */
lk_status lk__batch_run(lk__operation_batch *batch, bool backward);

double lk__batch_number(const lk_operand *operand, int64_t i);
void   lk__batch_set(lk_operand *operand, int64_t i, double value);
/* Whether the operand of `part` has the same bytes as the operand of the whole, from sample `first` on. */
bool lk__batch_equals(const lk_operand *part, const lk_operand *whole, int64_t first);
/* The samples of the recorded operands; 0: no input has an axis of them. */
int64_t lk__batch_samples(const lk__kernel_custom *custom);

#endif
