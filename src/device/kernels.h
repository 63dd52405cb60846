/* device/kernels.h - what a device computes: kernels by operation, types and shapes, and sums and checks of whole
 * arrays; and what the planner asks (layouts, fusions, typical rates). How a kernel is called is in kernel.h. */
#ifndef LK__DEVICE_KERNELS_H
#define LK__DEVICE_KERNELS_H

#include "device/fusion.h"
#include "device/kernel.h"
#include "device/launch_group.h"
#include "device/memory.h"

#include <lockstep/graph.h>

/* A kernel for one operation, at the types and shapes that it was found for. */
typedef struct lk__device_kernel {
    lk__kernel           run;       /* NULL: the device has none */
    lk__kernel_workspace workspace; /* NULL: it needs none */
    /* Before a call runs for the first time: sets call->prepared. NULL: nothing is prepared. */
    lk_status (*prepare)(lk__device *device, const struct lk__device_kernel *kernel, lk__kernel_call *call);
    const void *entry; /* the device's own */
} lk__device_kernel;

/* Typical rates, the same on every rank, because plans depend on them. */
typedef struct lk__device_rates {
    double flops, memory; /* operations a second, bytes a second */
} lk__device_rates;

enum { LK__DEVICE_ADDENDS = LK__LEAVES_MOST };

typedef struct lk__device_kernels {
    lk__device_rates rates;

    /* The kernel of an operation whose tensors are stored as `element`; call has the operands' types and shapes at the
     * capacity. */
    lk__device_kernel (*find)(lk__device *device, lk__op op, lk_dtype element, const lk__kernel_call *call);
    /* Which algorithms kernels choose, when they are prepared and more than one way was measured. choose_begin: kernels
     * that are prepared from now on take what the list `text` (NULL: none) of `whose` ("rank 0", "the checkpoint") has;
     * other choices are measured while there is time or, with `only`, left to the libraries' first choice. A shape for
     * which no time was left is marked in the list, so that a program that is given the list does not measure it
     * either. lk__device.tuning counts them. list_tuned: what kernels took since, as lines of text and a NUL where
     * `bytes` are enough; its length. Equal for equal choices. *mismatch: some of what was given does not fit this GPU
     * or its libraries, which was logged. NULL: the device chooses by shapes alone. */
    lk_status (*choose_begin)(lk__device *device, const char *text, const char *whose, bool only);
    size_t (*list_tuned)(lk__device *device, char *text, size_t bytes, bool *mismatch);
    /* Launch groups (launch_group.h) that it has kernels for: LK__GROUP_KINDS entries, by kind. For steps whose kernels
     * are many and short. NULL: it runs node by node. */
    const lk__device_group_kernel *group_kernels;
    /* out = in[0] + … + in[n-1], as the pairwise tree of base/tree.h; n up to LK__DEVICE_ADDENDS; out may be one of
     * them. */
    lk_status (*add)(lk__device *device, lk__device_stream *stream, void *out, const void *const *in, int n,
                     size_t count, lk_dtype type);
    /* Of memory as it is now; both wait. The hash is lk__hash64's. Integers are finite. */
    lk_status (*hash)(lk__device *device, const void *memory, size_t bytes, uint64_t seed, uint64_t *hash);
    lk_status (*finite)(lk__device *device, const void *memory, int64_t elements, lk_dtype type, bool *finite);

    const lk__device_fusion *fusions;       /* fusion.h: ends with kind 0; NULL: none */
    bool                     channels_last; /* its kernels read and write images with the channels last */
    bool                     wide_images;   /* its convolutions of narrow types can give their sums unrounded */
    bool rounded_products; /* its products of f32 can multiply operands that were rounded to a narrower type */
    bool sums_in_parts;    /* its kernels can add in parts that follow from shapes: any layout gives the same bits */
    bool host_isa;         /* its kernels use the context's instruction set (base/isa.h) */

    /* lk_device_measure's. NULL: it cannot be measured. */
    lk_status (*measure)(lk__device *device, lk_dtype type, lk_device_speed *speed);
} lk__device_kernels;

#endif
