/* device/custom.h - users' operations (lockstep/operation.h): checking them, and calling their callbacks in place of
 * kernels. */
#ifndef LK__CUSTOM_H
#define LK__CUSTOM_H

#include "device/device.h"

enum { LK__CUSTOM_MESSAGE = 512 };

/* What the library keeps during a call of a callback. */
struct lk_operation_run {
    lk__pool *pool; /* NULL: tiles run one after the other … */
    /* … above 0: from the last to the first, as if by this many workers, to check that this changes nothing */
    int  reversed;
    char message[LK__CUSTOM_MESSAGE]; /* of lk_operation_fail; "" */
};

/* A copy of the operation, its name and its attributes. LK_EINVAL: the struct is not valid; the message starts with its
 * name. */
lk_status lk__custom_create(lk_context *context, lk_site site, const lk_operation *operation,
                            lk__kernel_custom **custom);
lk_status lk__custom_copy(const lk__kernel_custom *custom, lk__kernel_custom **copy);
void      lk__custom_free(lk__kernel_custom *custom); /* NULL is fine */

/* Checks the types of the inputs, runs the shape rule and checks its result; both become the recorded operands. false:
 * message says why. Inputs with rank -1 are missing. */
bool lk__custom_shapes(lk__kernel_custom *custom, const lk_operand *inputs, char message[LK__CUSTOM_MESSAGE]);
/* "(64*, 3)" */
const char *lk__operand_text(const lk_operand *operand, char text[64]);

/* The operands of a call at the capacity, without data, in arrays of the caller. */
typedef struct lk__custom_operands {
    lk_operand inputs[LK_OPERATION_INPUTS], outputs[LK_OPERATION_OUTPUTS];
    lk_operand output_gradients[LK_OPERATION_OUTPUTS], input_gradients[LK_OPERATION_INPUTS];
} lk__custom_operands;
lk_operation_call lk__custom_call(const lk__kernel_custom *custom, bool backward, lk__custom_operands *operands);
/* Bytes that forward or backward needs with this many threads, for operands of these shapes, which have no data. */
size_t lk__custom_workspace(const lk__kernel_custom *custom, const lk_operation_call *like, int threads);

/* Runs forward or backward on copies of its operands, several times, and copies the results back. LK_EMISMATCH: it
 * breaks a promise, which `finding` says in one sentence; any other failure: the callback's own, or no memory; finding
 * is the message. call has operands with data; pool may be NULL. */
enum { LK__CUSTOM_FINDING = LK__CUSTOM_MESSAGE + 256 };
lk_status lk__custom_probe(const lk__kernel_custom *custom, const lk_operation_call *call, lk__pool *pool,
                           char finding[LK__CUSTOM_FINDING]);

/* The kernels of custom and custom_grad, of devices whose kernels access the host's memory. */
lk__device_kernel lk__custom_kernel(lk__op op);

#endif
