/* device.h - the devices of this build, for programs that list or choose one; lk_device_name lists the usable ones. */
#ifndef LOCKSTEP_DEVICE_H
#define LOCKSTEP_DEVICE_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_device {
    size_t      size LK_ZERO; /* sizeof this struct; set by LK_DEVICE_INIT */
    const char *name LK_ZERO; /* for lk_context_config.device */
    const char *text LK_ZERO; /* what it is, in a line */
    const char *help LK_ZERO; /* its names in help: "cuda (the GPU of this rank), cuda:N"; NULL: for tests */
    int         numbered LK_ZERO; /* NAME:N selects one of several */
    int         on_host LK_ZERO;  /* it computes on the host's processor, in the host's memory */
} lk_device;
#define LK_DEVICE_INIT {.size = sizeof(lk_device)}

/* The device at `index`, from 0, whether or not it can be used here; LK_END: there are no more. */
LK_API lk_status lk_device_at(int index, lk_device *device);
/* The name of the device that "auto" chooses here. */
LK_API const char *lk_device_auto(void);
/* Whether a context's device is one that computes on the host. */
LK_API bool lk_context_on_host(const lk_context *context);

LK_END_DECLS
#endif
