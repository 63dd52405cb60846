/* comm/devices.h - which ranks use the same GPU. Ranks of one host may see different GPUs (CUDA_VISIBLE_DEVICES, the
 * control groups of Slurm), so device numbers of two processes cannot be compared, but UUIDs can. */
#ifndef LK__COMM_DEVICES_H
#define LK__COMM_DEVICES_H

#include "device/device.h"

/* The device of a rank's context, as ranks send it to each other when they join. */
typedef struct lk__comm_device {
    unsigned char uuid[LK__DEVICE_UUID]; /* all 0: the host's processor, or there is no GPU */
    uint32_t      may_share;             /* 1: other ranks may use it too */
} lk__comm_device;

void lk__comm_device_make(const lk_context *context, lk__comm_device *device);

/* Whether other processes can map the memory of the context's device (device/peers.h). */
bool lk__comm_maps_device(const lk_context *context);

/* Once the devices of all ranks are known; it needs no messages, so all ranks get the same result. LK_EINVAL: two
 * ranks use the same GPU, and one of them was not allowed to share it. Where the kernels of ranks that share one
 * take turns, the first of them logs a line with what can be done about it. rank: of this process. */
lk_status lk__comm_devices_check(lk_context *context, const lk__comm_device *devices, int count, int rank);

#endif
