/* table.c - one table of kernels for this build's element type and instruction set: all those that the list in
 * base/op.h declares for the type, or fewer where the set extends another. Users' operations are not in the table
 * (device/custom.h). */
#include "device/cpu/cpu.h"

const lk__kernel_entry KERNEL(table)[LK__OP_COUNT] = {
#define ENTRY_ANY(name) [LK__OP_##name] = {KERNEL(name), KERNEL(name##_workspace)},
#if NARROW
#define ENTRY_WIDE(name)
#else
#define ENTRY_WIDE(name) ENTRY_ANY(name)
#endif
#define ENTRY(name, types) ENTRY_##types(name)
#if defined(LK_KERNELS) /* a set with a matrix instruction: CMakeLists.txt lists the kernels of its files */
    LK_KERNELS
#else
    LK__OP_LIST_BUILT_IN(ENTRY)
#endif
};
