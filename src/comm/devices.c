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

bool lk__comm_maps_device(const lk_context *context)
{
    const lk__device *d = context ? lk__context_device(context) : NULL;
    return d && d->backend->peers;
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

/* Only the first rank of all that share a GPU, so that a job has one line. */
static void advise_sharing(lk_context *context, const lk__comm_device *devices, int count, int rank)
{
    int  sharing = 1;
    char text[LK__DEVICE_UUID_TEXT];
    for (int i = 1; i < count; i++) {
        int first = find_earlier(devices, i);
        if (first >= 0 && first < rank) return;
        sharing += first == rank;
    }
    const lk__device *d = lk__context_device(context);
    const char       *turns = sharing > 1 && d->backend->peers ? d->backend->peers->takes_turns(d) : NULL;
    if (turns)
        lk__log(context, LK_LOG_INFO, "%d ranks share %s %s", sharing, lk__device_uuid_text(devices[rank].uuid, text),
                turns);
}

lk_status lk__comm_devices_check(lk_context *context, const lk__comm_device *devices, int count, int rank)
{
    char text[LK__DEVICE_UUID_TEXT];
    for (int i = 1; i < count; i++) {
        int other = find_earlier(devices, i);
        if (other < 0 || (devices[other].may_share && devices[i].may_share)) continue;
        return lk__fail(context, LK_EINVAL,
                        "ranks %d and %d use the same GPU, %s: start at most one rank per GPU, or let ranks share one "
                        "with --share-device (for tests and small models)",
                        other, i, lk__device_uuid_text(devices[i].uuid, text));
    }
    advise_sharing(context, devices, count, rank);
    return LK_OK;
}
