/* table.cu - finds a kernel by operation: the functions lk__cuda_NAME of the other files, by their names. Every one is
 * weak here, so that an operation without a kernel is reported by the planner. lk__cuda_NAME_supports: where there is
 * no kernel for some shapes. */
#include "device/cuda/cuda.h"

extern "C" {
#define DECLARE(name, types)                                                                                \
    lk_status lk__cuda_##name(const lk__kernel_call *call) __attribute__((weak));                           \
    size_t    lk__cuda_##name##_workspace(const lk__kernel_call *call, int threads) __attribute__((weak));  \
    lk_status lk__cuda_##name##_prepare(lk__device *device, const lk__device_kernel *kernel, lk__kernel_call *call) \
        __attribute__((weak));                                                                                      \
    bool lk__cuda_##name##_supports(const lk__kernel_call *call) __attribute__((weak));
LK__OP_LIST_BUILT_IN(DECLARE)
#undef DECLARE
}

lk__device_kernel lk__cuda_find(lk__device *, lk__op op, lk_dtype, const lk__kernel_call *call)
{
    static const lk__device_kernel table[] = {
#define ENTRY(name, types) {lk__cuda_##name, lk__cuda_##name##_workspace, lk__cuda_##name##_prepare, NULL},
        LK__OP_LIST_BUILT_IN(ENTRY)
#undef ENTRY
    };
    static bool (*const supports[])(const lk__kernel_call *) = {
#define ENTRY(name, types) lk__cuda_##name##_supports,
        LK__OP_LIST_BUILT_IN(ENTRY)
#undef ENTRY
    };
    if (call->custom || (size_t)op >= sizeof table / sizeof *table) return lk__device_kernel{};
    if (supports[op] && !supports[op](call)) return lk__device_kernel{};
    return table[op];
}

lk_status lk__cuda_no_kernel(const lk__kernel_call *call)
{
    return lk__cuda_host.fail(call->device->context, LK_EUNSUPPORTED,
                              "the device cuda has no kernel for operands of these types");
}
