/* emulated_internal.h - what threads.cpp does for runtime.cpp. */
#ifndef LK_EMULATED_INTERNAL_H
#define LK_EMULATED_INTERNAL_H

#include "cuda_runtime.h"

#include <functional>

/* Runs a kernel to its end; `kernel` is called once for each thread. */
void lk__emulated_run(const char *name, dim3 grid, dim3 block, size_t shared, const std::function<void()> &kernel);

#endif
