/* device.c - the options that say where kernels run. The CUDA module reads those that are not part of a context's configuration from the
 * environment. */
#define _GNU_SOURCE
#include "device.h"

#include "command.h"

#include <ctype.h>
#include <lockstep/environment.h>
#include <stdlib.h>
#include <string.h>

static bool is_device(const char *name)
{
    static const char *const known[] = {"auto", "cpu", "cuda", "guarded", NULL};
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i], name) == 0) return true;
    if (strncmp(name, "cuda:", 5) != 0 || !name[5]) return false;
    for (const char *c = name + 5; *c; c++)
        if (!isdigit((unsigned char)*c)) return false;
    return true;
}

int device_choose(const char *command, const options *given, const char **device)
{
    static const char *const flags[][2] = {
        {"share-device", "LOCKSTEP_SHARE_DEVICE"}, {"device-sync", "LOCKSTEP_DEVICE_SYNC"}, {"tf32", "LOCKSTEP_TF32"}};
    const char *option = options_text(given, "device"), *variable = lk_environment_get(NULL, "LOCKSTEP_DEVICE");
    *device = option ? option : variable && *variable ? variable : "auto";
    if (!is_device(*device)) {
        print_error(command, "%s%.40s%s: unknown device; devices are auto, cpu, cuda and cuda:N",
                    option ? "--device " : "LOCKSTEP_DEVICE is '", *device, option ? "" : "' in the environment");
        return EXIT_USER_ERROR;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (options_flag(given, flags[i][0])) setenv(flags[i][1], "1", 1);
    return 0;
}

lk_data_place device_data_place(const options *given)
{
    const char *where = options_text(given, "data-on-device");
    return strcmp(where, "yes") == 0 ? LK_DATA_ON_DEVICE : strcmp(where, "no") == 0 ? LK_DATA_ON_HOST : LK_DATA_AUTO;
}
