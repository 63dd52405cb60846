/* config.c - reads config structs of any version: see config.h. */
#include "base/config.h"

#include <ctype.h>
#include <string.h>

enum { LARGEST = 1 << 16 }; /* bytes: a size above it was never set */

/* "lk_plan_config" → "LK_PLAN_CONFIG" */
static const char *in_capitals(const char *type, char text[64])
{
    size_t i = 0;
    for (; type[i] && i < 63; i++) text[i] = (char)toupper((unsigned char)type[i]);
    text[i] = 0;
    return text;
}

lk_status lk__config_read(lk_context *context, const char *type, const void *given, void *own, size_t size)
{
    size_t given_size;
    char   capitals[64];
    if (!given) return LK_OK;
    memcpy(&given_size, given, sizeof given_size);
    bool valid = given_size >= sizeof given_size && given_size <= LARGEST;
    if (!valid && !type) return LK_EINVAL;
    if (!valid)
        return lk__fail(context, LK_EINVAL,
                        "%s.size is %zu, so the struct was not initialised: initialise it with %s_INIT", type,
                        given_size, in_capitals(type, capitals));
    for (size_t i = size; i < given_size; i++)
        if (((const unsigned char *)given)[i])
            return !type ? LK_EUNSUPPORTED
                         : lk__fail(context, LK_EUNSUPPORTED,
                                    "%s sets a field at byte %zu that version %s of the library does not have: the "
                                    "program was compiled with newer headers",
                                    type, i, lk_version());
    memcpy(own, given, given_size < size ? given_size : size);
    memcpy(own, &size, sizeof size);
    return LK_OK;
}
