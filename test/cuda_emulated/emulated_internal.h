/* emulated_internal.h - what the parts of the emulation do for each other. */
#ifndef LK_EMULATED_INTERNAL_H
#define LK_EMULATED_INTERNAL_H

#include "cuda_runtime.h"

/* Runs a kernel to its end; run(call) is called once for each thread. */
void lk__emulated_run(const char *name, dim3 grid, dim3 block, size_t shared, void (*run)(const void *call),
                      const void *call);

/* What the nodes of the graph do that was instantiated last. */
typedef struct lk__emulated_nodes {
    int kernels, fills, copies, host_copies, host_functions; /* copies: within the device */
} lk__emulated_nodes;
lk__emulated_nodes lk__emulated_last_graph(void);

/* From now on every call returns this error. */
void lk__emulated_break(cudaError_t error);

/* What CUPTI reports of a stream's work; cupti.cpp stands in for it. */
typedef struct lk__emulated_work {
    int kind = 0; /* CUpti_ActivityKind: 1 a copy, 2 a fill, 10 a kernel; nothing is reported of others: */
                  /* -1 a function of the host, 0 the rest */
    const char *name = nullptr; /* of a kernel */
    size_t      bytes = 0;
    int         direction = 0; /* CUpti_ActivityMemcpyKind */
} lk__emulated_work;

bool lk__emulated_reports(int kind); /* whether somebody collects such records */
/* Times by the monotonic clock, in seconds; graph: the number of its launch, 0 outside of graphs. */
void lk__emulated_report(const lk__emulated_work &work, double begin, double end, uint32_t graph);

#endif
