/* libraries.cpp - what the module asks of cuBLASLt and cuDNN, where the files that load them leave themselves out: there are none.
 * Weak, so that a file which answers itself is preferred. */
#include "device/cuda/backend.h"

__attribute__((weak)) void lk__cuda_blas_text(char *text, size_t bytes) { snprintf(text, bytes, "none (emulation)"); }
__attribute__((weak)) void lk__cuda_dnn_text(char *text, size_t bytes) { snprintf(text, bytes, "none (emulation)"); }
__attribute__((weak)) void lk__cuda_blas_free(lk__cuda_device *) {}
__attribute__((weak)) void lk__cuda_dnn_free(lk__cuda_device *) {}
