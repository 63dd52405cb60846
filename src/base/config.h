/* base/config.h - config structs of programs that were compiled with another version of the headers.
 *
 * A public config struct begins with its size, and keeps the order and offsets of its fields. A new field goes to the
 * end, makes the struct larger (bytes of padding at the end of the old one are undefined), and is 0 by default. Structs
 * that are part of others by value, or elements of arrays, have `reserved` bytes for that instead: zero, too. */
#ifndef LK__CONFIG_H
#define LK__CONFIG_H

#include "base/base.h"

/* Copies the caller's config over *own, which has the defaults: these remain for fields that an older header does not
 * have. given NULL: all defaults. Fails if the size is not set, or if the caller's header is newer and sets a field
 * that is not known here. type: "lk_plan_config"; NULL: no message is set. */
lk_status lk__config_read(lk_context *context, const char *type, const void *given, void *own, size_t size);
/* LK__CONFIG_READ(context, lk_plan_config, config, &own) */
#define LK__CONFIG_READ(context, type, given, own) lk__config_read(context, #type, given, own, sizeof(type))

#endif
