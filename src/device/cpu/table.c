/* table.c - one table of kernels for this build's floating type and instruction set. */
#include "device/cpu/cpu.h"

const lk__kernel_entry KERNEL(table)[LK__OP_COUNT] = {
#define ENTRY(name) {KERNEL(name), KERNEL(name##_workspace)},
    LK__OP_LIST(ENTRY)
#undef ENTRY
};
