/* device/devices.h - the devices of this build: one name each. The entry lk__device_entry_NAME of a device contains the
 * rest: its description for users, when `auto` chooses it, and its functions. */
#ifndef LK__DEVICES_H
#define LK__DEVICES_H

#include "device/device.h"

#define LK__DEVICE_LIST(X) X(cpu) X(guarded) X(cuda)

typedef struct lk__device_entry {
    const char *name, *text, *help; /* as lk_device has them */
    bool        numbered, on_host;
    const char *title, *unit, *built_with, *built, *reference; /* as lk_device has them */
    int         preference; /* `auto` takes the highest of those that can be used; 0: only by its name */
    const lk__device_backend *(*load)(lk_context *context); /* NULL: there is none, and a message is set */
    /* How many can be used; 0: why says the reason. NULL: there always is one. */
    int (*count)(char *why, size_t bytes);
    /* lk_device_report's lines. NULL: there is nothing to report. */
    lk_status (*report)(lk_text_callback write, void *user);
    /* lk_device_overhead's figures, of the one with this number. NULL: they are 0. */
    lk_status (*overhead)(int number, lk_device_memory_overhead *overhead);
} lk__device_entry;

#define LK__DEVICE_DECLARE(name) extern const lk__device_entry lk__device_entry_##name;
LK__DEVICE_LIST(LK__DEVICE_DECLARE)
#undef LK__DEVICE_DECLARE

#endif
