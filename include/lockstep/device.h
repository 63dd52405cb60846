/* device.h - the devices of this build, for programs that list or choose devices; lk_device_name lists the usable
 * ones. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_device {
    size_t      size LK_ZERO; /* sizeof this struct; set by LK_DEVICE_INIT */
    const char *name LK_ZERO; /* for lk_context_config.device */
    const char *text LK_ZERO; /* a one-line description */
    /* its names in help: "cuda (the GPU of this rank), cuda:N"; NULL: for tests, not listed */
    const char *help LK_ZERO;
    int         numbered LK_ZERO; /* NAME:N selects one of several */
    int         on_host LK_ZERO;  /* computes on the host's CPU, in the host's memory */
    /* For reports: the heading of the device's rows and what one unit is called ("CUDA", "GPU"); the tool that built
     * its module, and that tool's version and targets ("nvcc", "13.0: sm_90a"; "" if there is no module); the GPU model
     * whose figures lk_device_overhead returns if it cannot measure. NULL: reports have no such rows. */
    const char *title LK_ZERO;
    const char *unit LK_ZERO;
    const char *built_with LK_ZERO;
    const char *built LK_ZERO;
    const char *reference LK_ZERO;
} lk_device;
#define LK_DEVICE_INIT {.size = sizeof(lk_device)}

/* Options of devices that are not part of a context's configuration: X(device, command-line option, environment
 * variable, description). An option is on if its variable is 1 when the first context is created. */
#define LK_DEVICE_OPTION_LIST(X)                                                                                     \
    X(cuda, "share-device", "LOCKSTEP_SHARE_DEVICE",                                                                 \
      "ranks of a host may share its GPUs if it has fewer GPUs than ranks; for tests and small models")              \
    X(cuda, "device-sync", "LOCKSTEP_DEVICE_SYNC",                                                                   \
      "wait for each kernel, so that an error names its operation and the line of the model")                        \
    X(cuda, "tf32", "LOCKSTEP_TF32",                                                                                 \
      "f32 matrix multiplications and convolutions may use TF32 (10-bit mantissa): faster, about 3 decimal digits")

/* Returns the device at `index`, from 0, whether or not it can be used here; LK_END: there are no more. */
LK_API lk_status lk_device_at(int index, lk_device *device);
/* The name of the device that "auto" chooses here. */
LK_API const char *lk_device_auto(void);
/* Whether a context's device computes on the host. */
LK_API bool lk_context_on_host(const lk_context *context);

LK_END_DECLS
#endif
