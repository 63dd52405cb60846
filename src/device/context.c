/* context.c - creates and frees a context with its device. The part of a context that does not depend on a device is in
 * base/context.c. */
#include "base/config.h"
#include "device/device.h"

lk_status lk_context_create(const lk_context_config *given, lk_context **context)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *c = NULL;
    lk__device       *device = NULL;
    *context = NULL;
    lk_status status = LK__CONFIG_READ(NULL, lk_context_config, given, &config);
    if (status >= 0) status = lk__context_make(&config, &c);
    if (status < 0) return status;
    status = lk__device_open(c, config.device, config.plans_only != 0, &device);
    if (status < 0) {
        lk__fail(NULL, status, "%s", lk_context_error(c));
        lk__context_drop(c);
        return status;
    }
    lk__context_set_device(c, device);
    *context = c;
    return LK_OK;
}

void lk_context_free(lk_context *c)
{
    if (!c) return;
    lk__device_close(lk__context_device(c));
    lk__context_drop(c);
}
