/* host_calls.cpp - lets a test queue a function of its own on a stream of the emulation, as a transport queues its
 * kernels: it runs when the stream gets there, and again with every run of a graph in which it was captured. The test
 * finds it in the module by its name. */
#include "device/cuda/backend.h"

extern "C" __attribute__((visibility("default"))) lk_status lk__emulated_queue_call(lk__device_stream *stream,
                                                                                    void (*function)(void *),
                                                                                    void *argument)
{
    return cudaLaunchHostFunc(stream->stream, function, argument) == cudaSuccess ? LK_OK : LK_EIO;
}
