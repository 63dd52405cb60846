/* device.c - the options that say where kernels run. Devices read those that are not part of a context's
 * configuration from the environment. */
#define _GNU_SOURCE
#include "device.h"

#include "command.h"

#include <ctype.h>
#include <lockstep/environment.h>
#include <stdlib.h>
#include <string.h>

static bool is_number(const char *text)
{
    const char *c = text;
    while (isdigit((unsigned char)*c)) c++;
    return c > text && !*c;
}

bool device_find(const char *name, lk_device *d)
{
    for (int i = 0; lk_device_at(i, d) == LK_OK; i++) {
        size_t length = strlen(d->name);
        if (strncmp(name, d->name, length) != 0) continue;
        if (!name[length] || (d->numbered && name[length] == ':' && is_number(name + length + 1))) return true;
    }
    return false;
}

static bool is_device(const char *name)
{
    lk_device d = LK_DEVICE_INIT;
    return strcmp(name, "auto") == 0 || device_find(name, &d);
}

/* "auto, cpu, cuda or cuda:N" */
static const char *list_devices(char *out, size_t size)
{
    lk_device   d = LK_DEVICE_INIT;
    const char *names[64];
    char        numbered[64][64];
    int         count = 0;
    for (int i = 0; lk_device_at(i, &d) == LK_OK && count + 2 < 64; i++) {
        if (!d.help) continue;
        names[count++] = d.name;
        if (!d.numbered) continue;
        snprintf(numbered[count], sizeof *numbered, "%s:N", d.name);
        names[count] = numbered[count];
        count++;
    }
    int used = snprintf(out, size, "auto");
    for (int i = 0; i < count && used >= 0 && (size_t)used < size; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%s", i + 1 < count ? ", " : " or ", names[i]);
    return out;
}

void device_describe(char *out, size_t size)
{
    lk_device d = LK_DEVICE_INIT;
    int       used = 0;
    for (int i = 0; lk_device_at(i, &d) == LK_OK && (size_t)used < size; i++)
        if (d.help) used += snprintf(out + used, size - (size_t)used, "%s%s", used ? ", " : "", d.help);
    if ((size_t)used < size)
        snprintf(out + used, size - (size_t)used,
                 ", or auto: a GPU if there is one, else the CPU (default LOCKSTEP_DEVICE, else auto)");
}

int device_choose(const char *command, const options *given, const char **device)
{
#define OPTION_AND_VARIABLE(device, name, variable, text) {name, variable},
    static const char *const flags[][2] = {LK_DEVICE_OPTION_LIST(OPTION_AND_VARIABLE)};
#undef OPTION_AND_VARIABLE
    const char *option = options_text(given, "device"), *variable = lk_environment_get(NULL, "LOCKSTEP_DEVICE");
    *device = option ? option : variable && *variable ? variable : "auto";
    if (!is_device(*device)) {
        char list[512];
        print_error(command, "%s%.40s%s: unknown device; expected %s", option ? "--device " : "LOCKSTEP_DEVICE is '",
                    *device, option ? "" : "' in the environment", list_devices(list, sizeof list));
        return EXIT_USER_ERROR;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (options_flag(given, flags[i][0])) setenv(flags[i][1], "1", 1);
    return 0;
}

bool device_is_named(const options *given)
{
    const char *variable = lk_environment_get(NULL, "LOCKSTEP_DEVICE");
    return options_text(given, "device") || (variable && *variable);
}

const char *device_of_host(void)
{
    lk_device d = LK_DEVICE_INIT;
    for (int i = 0; lk_device_at(i, &d) == LK_OK; i++)
        if (d.on_host && d.help) return d.name;
    return NULL;
}

lk_data_place device_data_place(const options *given)
{
    const char *where = options_text(given, "data-on-device");
    return strcmp(where, "yes") == 0 ? LK_DATA_ON_DEVICE : strcmp(where, "no") == 0 ? LK_DATA_ON_HOST : LK_DATA_AUTO;
}
