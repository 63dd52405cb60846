/* loss.h - the loss of `lockstep train`: compares the model's output with the label or target of a sample. */
#ifndef LOSS_H
#define LOSS_H

#include "command.h"

#include <lockstep.h>

typedef enum loss_kind { LOSS_CROSS_ENTROPY, LOSS_MSE, LOSS_L1, LOSS_BCE } loss_kind;

const char *loss_name(loss_kind kind); /* "cross_entropy" */
typedef struct loss_data {
    const char     *name;           /* for messages */
    const lk_field *label, *target; /* NULL: there is none */
} loss_data;
/* Chooses by --loss ("auto": by the fields) and checks that the data has what the loss needs. Gives the number of
 * outputs that the model needs. Returns an exit status. */
int loss_choose(const char *command_name, const char *given, const loss_data *data, loss_kind *kind, int64_t *outputs);

/* Checks what the loss reads beside them: a field "weight" is one number; `read`: the targets of bce, of all samples,
 * are from 0 to 1. d may be NULL. 0, or the exit status after the error was printed. */
int loss_check_fields(const char *command_name, loss_kind kind, const char *data, const lk_dataset *d, bool read);
/* y, which must be (N, outputs), against the fields label, target and weight; records the metrics that belong to it. */
lk_tensor loss_record(loss_kind kind, lk_tensor y, const lk_inputs *inputs, int64_t outputs, double label_smoothing);
/* What a prediction prints: probabilities, or y itself for regression. */
lk_tensor loss_prediction(loss_kind kind, lk_tensor y);

#endif
