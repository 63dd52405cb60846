/* devices.c - compares the GPUs of ranks by UUID, while they join. */
#include "comm/devices.h"

#include <stdio.h>
#include <string.h>

void lk__comm_device_make(const lk_context *context, lk__comm_device *device)
{
    const lk__device *d = context ? lk__context_device(context) : NULL;
    memset(device, 0, sizeof *device);
    if (!d) return;
    memcpy(device->uuid, d->uuid, sizeof device->uuid);
    device->may_share = d->may_share;
}

static bool is_same_gpu(const lk__comm_device *a, const lk__comm_device *b)
{
    static const unsigned char none[LK__DEVICE_UUID];
    return memcmp(a->uuid, b->uuid, sizeof none) == 0 && memcmp(a->uuid, none, sizeof none) != 0;
}

/* The first rank before `rank` that uses its GPU; -1: none. */
static int find_earlier(const lk__comm_device *devices, int rank)
{
    for (int i = 0; i < rank; i++)
        if (is_same_gpu(&devices[i], &devices[rank])) return i;
    return -1;
}

lk_status lk__comm_devices_check(lk_context *context, const lk__comm_device *devices, int count)
{
    char text[LK__DEVICE_UUID_TEXT];
    for (int rank = 1; rank < count; rank++) {
        int other = find_earlier(devices, rank);
        if (other < 0 || (devices[other].may_share && devices[rank].may_share)) continue;
        return lk__fail(context, LK_EINVAL,
                        "ranks %d and %d use the same GPU, %s: start at most one rank for each GPU, or let ranks share "
                        "one with --share-device (for tests and small models)",
                        other, rank, lk__device_uuid_text(devices[rank].uuid, text));
    }
    return LK_OK;
}
