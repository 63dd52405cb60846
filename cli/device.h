/* device.h - the options that say where kernels run. */
#ifndef CLI_DEVICE_H
#define CLI_DEVICE_H

#include "options.h"

#include <lockstep.h>

#define DEVICE_FLAG(device, name, variable, text) , FLAG(name, #device ": " text, .flags = OPTION_LOCAL)
#define DEVICE_OPTIONS                                                                                  \
    TEXT("device", "NAME", NULL,                                                                        \
         "Where kernels run: ", .describe = device_describe, .flags = OPTION_LOCAL)                     \
    LK_DEVICE_OPTION_LIST(DEVICE_FLAG)
#define DEVICE_OPTION_NAME(device, name, variable, text) name,
#define DEVICE_OPTION_NAMES LK_DEVICE_OPTION_LIST(DEVICE_OPTION_NAME)

/* For commands that allocate what a plan needs. */
#define OVERCOMMIT_OPTION                                                                                           \
    FLAG("overcommit", "Start even if the run needs more memory than is available on this machine or within the "   \
                       "cgroup's limit: the system may then kill the process", .flags = OPTION_LOCAL)

/* For commands that train. */
#define DATA_ON_DEVICE_OPTION                                                                                        \
    CHOICE("data-on-device", "WHERE", "auto", "auto|yes|no",                                                         \
           "On a GPU: where batches are made. yes: by the GPU, from the data set in its memory. no: by the host. "   \
           "auto: by the GPU if it can and the data set takes at most a quarter of its free memory. The results "    \
           "are the same",                                                                                           \
           .flags = OPTION_LOCAL)
void device_describe(char *out, size_t size); /* the rest of the help of --device: the names, from the library */
/* The device that `name` ("cuda:1") names; false: there is none. */
bool device_find(const char *name, lk_device *device);
/* Checks the options and applies them to this process; *device is for lk_context_config.device. 0, or an exit code
 * after a message. */
int device_choose(const char *command, const options *given, const char **device);

bool        device_is_named(const options *given); /* by the option or in the environment */
const char *device_of_host(void);                  /* the name of the host's processor as a device */

lk_data_place device_data_place(const options *given); /* of DATA_ON_DEVICE_OPTION */

#endif
