/* device/cuda/backend.h - the functions of the CUDA device that are in separate files. */
#ifndef LK__CUDA_BACKEND_H
#define LK__CUDA_BACKEND_H

#include "device/batch.h"
#include "device/cuda/cuda.h"
#include "device/tokens.h"

extern const lk__device_backend lk__cuda_backend;

/* ---- cuda.cu ---- */
int lk__cuda_count(char *why, size_t bytes); /* usable GPUs; 0: why says the reason */
/* Zeroed scratch of 64 bytes in the device's memory, for a caller that waits; NULL: a message is set. */
int32_t *lk__cuda_word(lk__device *device);

/* ---- table.cu ---- */
lk__device_kernel lk__cuda_find(lk__device *device, lk__op op, lk_dtype element, const lk__kernel_call *call);

/* ---- memory.cu: device/kernels.h's add and finite ---- */
lk_status lk__cuda_add(lk__device *device, lk__device_stream *stream, void *out, const void *const *in, int n,
                       size_t count, lk_dtype type);
lk_status lk__cuda_finite(lk__device *device, const void *memory, int64_t elements, lk_dtype type, bool *finite);

/* ---- optimizer.cu: instructions of the update section together ----
 *
 * All calls are on one stream, of one element type, with one step, scale and halted. */
bool lk__cuda_updates(lk__op op); /* whether it is the operation of an optimizer, with a kernel for many tensors */
/* n nodes of such an operation; the results of running each. */
lk_status lk__cuda_update_many(lk__op op, const lk__kernel_call *const *calls, int n);
/* gradient_scale, whose norm is the norm of the inputs of n square_sum nodes; neither these nor the nodes that add them
 * need to run. */
lk_status lk__cuda_scale_many(const lk__kernel_call *const *squares, int n, const lk__kernel_call *scale,
                              void *workspace);
size_t    lk__cuda_scale_many_workspace(const lk__kernel_call *const *squares, int n); /* bytes, from shapes */
/* device/recording.h's end_step */
lk_status lk__cuda_end_step(lk__device *device, const lk__device_numbers *numbers, const lk__device_group *update,
                            lk__device_result *results, bool *done);

/* ---- launch groups: device/launch_group.h. The table is in group_update.cu, by kind. ---- */
extern const lk__device_group_kernel lk__cuda_group_kernels[LK__GROUP_KINDS];
bool lk__cuda_groups_are_off(void); /* LOCKSTEP_CUDA_LAUNCH_GROUPS=0: node by node, to compare */
/* Groups of forward, backward and generation need not have the bits that the same rows have among others. */
static inline bool runs_groups(const lk__device *device) { return !device->by_heuristic && !lk__cuda_groups_are_off(); }
#define LK__CUDA_GROUP(name)                                                               \
    bool      lk__cuda_supports_##name(lk__device *device, const lk__device_group *group); \
    lk_status lk__cuda_run_##name(lk__device *device, const lk__device_group *group);
LK__CUDA_GROUP(norm)
LK__CUDA_GROUP(product)
LK__CUDA_GROUP(attention) /* group_generation.cu */
LK__CUDA_GROUP(entropy)
LK__CUDA_GROUP(gradients) /* group_training.cu */
#undef LK__CUDA_GROUP

/* ---- cross_entropy.cu: cross_entropy and its gradient in one launch; rows are few ---- */
bool      lk__cuda_entropy_supports(const lk__kernel_call *call);
lk_status lk__cuda_entropy_with_grad(const lk__kernel_call *call, const lk__kernel_call *grad);

/* ---- numbers.cu ---- */
lk_status lk__cuda_add_numbers(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers);
lk_status lk__cuda_judge_numbers(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers);
lk_status lk__cuda_publish(lk__device *device, lk__device_stream *stream, const lk__device_numbers *numbers,
                           const double *norm, lk__device_result *results);

/* ---- blas.cu: the version for `lockstep info` ("" where it is not there), and what a device holds of it ---- */
void lk__cuda_blas_text(char *text, size_t bytes);
void lk__cuda_blas_free(lk__cuda_device *device);
bool lk__cuda_blas_load(lk__cuda_device *device); /* a handle on the device; false: the library is not there */

/* ---- peers.cu, peer_memory.cu: device/peers.h ---- */
extern const lk__device_peers lk__cuda_peers;
lk_status lk__cuda_peers_enqueue(lk__device *device, lk__device_stream *stream, const lk__peers_call *call);

/* ---- overhead.cu: module.h's overhead ---- */
bool lk__cuda_measure_held(int number, size_t *context, size_t *libraries);

#endif
