/* device/cuda/peer_launch.h - the launches of the kernels of peer_move.h. */
#ifndef LK__CUDA_PEER_LAUNCH_H
#define LK__CUDA_PEER_LAUNCH_H

#include "device/cuda/peer_move.h"

typedef struct peer_launcher {
    cudaStream_t stream;
    int          blocks; /* of a kernel that does not wait, at most */
} peer_launcher;

void lk__peer_launch_gate(const peer_launcher *on, peer_call c);
void lk__peer_launch_copy(const peer_launcher *on, peer_call c, const peer_copies &copies);
void lk__peer_launch_reduce(const peer_launcher *on, peer_call c, const peer_reduction &r, lk_dtype type);
/* One block: publishes, waits, and takes or reduces what was published. */
void lk__peer_launch_small_copy(const peer_launcher *on, peer_call c, const peer_copies &publish,
                                const peer_copies &copies);
void lk__peer_launch_small_reduce(const peer_launcher *on, peer_call c, const peer_copies &publish,
                                  const peer_reduction &r, lk_dtype type);
/* Loads all of them. stopped: a group that has failed, for which they do nothing. */
lk_status lk__peer_load_kernels(lk__device *device, cudaStream_t stream, lk__peers_group *stopped);

#endif
