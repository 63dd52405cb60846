/* cuda_runtime.h - stands in for CUDA's header of this name where the CUDA module is compiled for the CPU
 * (LK_CUDA_EMULATED): what kernels use is in emulated_kernel.h, what the host calls in emulated_host.h. */
#ifndef LK_EMULATED_CUDA_RUNTIME_H
#define LK_EMULATED_CUDA_RUNTIME_H

#include "emulated_host.h"
#include "emulated_kernel.h"

#endif
