/* host_calls.cpp - what a test calls in the emulation, whose functions it finds in the module by their names. */
#include "device/cuda/backend.h"
#include "emulated_internal.h"

/* Queues a function of the test's on a stream, as a transport queues its kernels: it runs when the stream gets there,
 * and again with every run of a graph in which it was captured. */

extern "C" __attribute__((visibility("default"))) lk_status lk__emulated_queue_call(lk__device_stream *stream,
                                                                                    void (*function)(void *),
                                                                                    void *argument)
{
    return cudaLaunchHostFunc(stream->stream, function, argument) == cudaSuccess ? LK_OK : LK_EIO;
}

/* The process loses its context, as under MPS where another client dies: no call succeeds any more. */
extern "C" __attribute__((visibility("default"))) void lk__emulated_lose_context(void)
{
    lk__emulated_break(cudaErrorIllegalAddress);
}

/* Kernels, fills, copies within the device, copies from or to the host, and functions of the host. */
extern "C" __attribute__((visibility("default"))) void lk__emulated_count_nodes(int counts[5])
{
    lk__emulated_nodes nodes = lk__emulated_last_graph();
    counts[0] = nodes.kernels;
    counts[1] = nodes.fills;
    counts[2] = nodes.copies;
    counts[3] = nodes.host_copies;
    counts[4] = nodes.host_functions;
}
