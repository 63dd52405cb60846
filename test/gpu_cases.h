/* gpu_cases.h - fewer cases on a GPU or its emulation, for tests that start many ranks: each of them makes a context of
 * the device, which takes longer than what it trains. The CPU runs all of them. */
#ifndef GPU_CASES_H
#define GPU_CASES_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool runs_on_gpu(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

/* Whether case (a, b) is left out there. Of n × n cases n stay, which have each a and each b once. */
static inline bool gpu_leaves_out(int a, int b, int n) { return runs_on_gpu() && (a + b) % n != 0; }

#endif
