/* spans.cu - events that note the time, and the number of kernels, copies and fills that a stream has recorded. */
#include "device/cuda/spans.h"

#include <stdlib.h>

lk_status lk__cuda_timed_event_create(lk__device *d, lk__device_event **event)
{
    *event = NULL;
    lk__device_event *e = (lk__device_event *)lk__cuda_host.alloc(d->context, LK_MEMORY_OTHER, sizeof *e);
    if (!e) return LK_ENOMEM;
    lk_status status = lk__cuda_check(d, cudaEventCreate(&e->event), "creating an event");
    if (status < 0)
        lk__cuda_host.free(d->context, LK_MEMORY_OTHER, e, sizeof *e);
    else
        *event = e;
    return status;
}

lk_status lk__cuda_event_seconds(lk__device *d, lk__device_event *from, lk__device_event *to, double *seconds)
{
    float     milliseconds = 0;
    lk_status status =
        lk__cuda_check(d, cudaEventElapsedTime(&milliseconds, from->event, to->event), "reading the time of an event");
    *seconds = 1e-3 * (double)milliseconds;
    return status;
}

static cudaError_t captured_graph(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaStreamCaptureStatus status;
    unsigned long long      id;
    *graph = NULL;
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(stream, &status, &id, graph, NULL, NULL, NULL);
#else
    return cudaStreamGetCaptureInfo_v2(stream, &status, &id, graph, NULL, NULL);
#endif
}

/* All nodes are counted each time, since the order in which CUDA lists them is not documented. */
lk_status lk__cuda_record_counts(lk__device *d, lk__device_stream *s, int64_t counts[LK__WORK_COUNT])
{
    cudaGraph_t      graph;
    cudaGraphNode_t *nodes = NULL;
    size_t           count = 0;
    for (int i = 0; i < LK__WORK_COUNT; i++) counts[i] = 0;
    cudaError_t error = captured_graph(s->stream, &graph);
    if (error == cudaSuccess && graph) error = cudaGraphGetNodes(graph, NULL, &count);
    if (count && !(nodes = (cudaGraphNode_t *)malloc(count * sizeof *nodes))) return LK_ENOMEM;
    if (error == cudaSuccess && count) error = cudaGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; i < count && error == cudaSuccess; i++) {
        cudaGraphNodeType type;
        error = cudaGraphNodeGetType(nodes[i], &type);
        if (type == cudaGraphNodeTypeKernel) counts[LK__WORK_KERNEL]++;
        if (type == cudaGraphNodeTypeMemcpy) counts[LK__WORK_COPY]++;
        if (type == cudaGraphNodeTypeMemset) counts[LK__WORK_FILL]++;
    }
    free(nodes);
    return lk__cuda_check(d, error, "counting the nodes of a graph");
}
