/* device/cuda/dnn.h - cuDNN 9 through its graph interface (the C backend API): loads the library at run time, builds
 * graphs of operations from descriptors, and keeps the plans that run them by a key of shapes.
 *
 * Where the library is absent or older, or has no engine for a graph, callers run our own kernels: no failure here
 * makes a program fail. A graph collects its first failure as a sentence with the attribute's name and cuDNN's own
 * message, so that callers check once, at the end. Use it from one thread at a time, like the device. */
#ifndef LK__CUDA_DNN_H
#define LK__CUDA_DNN_H

#include "device/cuda/cuda.h"

#if !defined(LK_CUDA_EMULATED) && defined(__has_include)
#if __has_include(<cudnn_graph.h>)
#define LK__CUDA_DNN 1
#endif
#endif

/* The version of the library that would be loaded, as 91400 for 9.14.0; 0: none, and why says the reason. */
int lk__dnn_library_version(char *why, size_t bytes);
/* Frees the device's handle and plans; NULL is fine. */
void lk__cuda_dnn_free(lk__cuda_dnn *dnn);

#ifdef LK__CUDA_DNN
#include <cudnn_graph.h>

typedef cudnnBackendDescriptor_t lk__dnn_descriptor;

/* What is called of the library. X(name) */
#define DNN_FUNCTIONS(X)             \
    X(cudnnGetVersion)               \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnCreate)                   \
    X(cudnnDestroy)                  \
    X(cudnnSetStream)                \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendExecute)

typedef struct lk__dnn_library {
#define DNN_FIELD(name) decltype(&::name) name;
    DNN_FUNCTIONS(DNN_FIELD)
#undef DNN_FIELD
    int version; /* 91400 for 9.14.0 */
} lk__dnn_library;

/* ---- graphs ---- */

enum { DNN_DESCRIPTORS = 192, DNN_OPERATIONS = 48, DNN_PLANS = 8, DNN_KEY = 256, DNN_RANK = 5 };

typedef struct lk__dnn_graph {
    const lk__dnn_library *library;
    cudnnHandle_t          handle;
    lk__dnn_descriptor     made[DNN_DESCRIPTORS]; /* all of them, in the order in which they were made */
    lk__dnn_descriptor     operations[DNN_OPERATIONS];
    int                    made_count, operation_count;
    int64_t                virtual_uid; /* of the next virtual tensor */
    char                   why[512];    /* the first failure; empty: none */
} lk__dnn_graph;

static inline bool lk__dnn_failed(const lk__dnn_graph *g) { return g->why[0] != 0; }

/* A descriptor that the graph frees; NULL after a failure. */
lk__dnn_descriptor lk__dnn_make(lk__dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what);
/* Nothing happens after a failure, or with a NULL descriptor. `name` and `what` are for the message. */
void lk__dnn_set_named(lk__dnn_graph *g, lk__dnn_descriptor d, cudnnBackendAttributeName_t attribute, const char *name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *values);
#define lk__dnn_set(graph, descriptor, attribute, type, count, values) \
    lk__dnn_set_named(graph, descriptor, attribute, #attribute, type, count, values)
void lk__dnn_finalize(lk__dnn_graph *g, lk__dnn_descriptor d, const char *what);
/* Finalizes an operation and makes it the graph's next one. */
void lk__dnn_add_operation(lk__dnn_graph *g, lk__dnn_descriptor operation, const char *what);

/* A tensor. uid 0: virtual, a value between two operations of the graph. Strides in elements. by_value: a number on the
 * host. */
typedef struct lk__dnn_tensor_shape {
    int64_t dims[DNN_RANK], strides[DNN_RANK];
} lk__dnn_tensor_shape;
lk__dnn_descriptor lk__dnn_tensor(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int rank,
                                  const lk__dnn_tensor_shape *shape);
lk__dnn_descriptor lk__dnn_scalar(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int rank);
/* Dense, in the order of the dims. */
lk__dnn_tensor_shape lk__dnn_dense(int rank, const int64_t *dims);

/* y = mode(x, [b], [t: of BINARY_SELECT]); axis: of GEN_INDEX, else -1. */
void lk__dnn_pointwise(lk__dnn_graph *g, const char *what, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                       int64_t axis, lk__dnn_descriptor x, lk__dnn_descriptor b, lk__dnn_descriptor t,
                       lk__dnn_descriptor y);
void lk__dnn_matmul(lk__dnn_graph *g, const char *what, lk__dnn_descriptor a, lk__dnn_descriptor b,
                    lk__dnn_descriptor c);
void lk__dnn_reduction(lk__dnn_graph *g, const char *what, cudnnReduceTensorOp_t reduction, lk__dnn_descriptor x,
                       lk__dnn_descriptor y);
void lk__dnn_reshape(lk__dnn_graph *g, const char *what, lk__dnn_descriptor x, lk__dnn_descriptor y);

/* ---- plans ---- */

typedef struct lk__dnn_plan {
    lk__dnn_descriptor plan;
    size_t             workspace; /* bytes */
    int64_t            engine;    /* its number, for messages */
} lk__dnn_plan;

/* One graph and its plans. The plans come from the library's heuristic (mode A, then its fallback), in its order. */
typedef struct lk__dnn_entry {
    struct lk__dnn_entry *next;
    size_t                key_bytes;
    unsigned char         key[DNN_KEY];
    lk__dnn_graph         graph;
    lk__dnn_plan          plans[DNN_PLANS];
    int                   plan_count; /* 0: the graph is not supported; graph.why says why */
    int                   chosen;
} lk__dnn_entry;

/* The library with a handle on the device; NULL: it cannot be used (the reason is logged once). */
lk__cuda_dnn *lk__cuda_dnn_of(lk__cuda_device *device);
int           lk__dnn_version(const lk__cuda_dnn *dnn);
/* The entry of a key, up to DNN_KEY bytes; NULL: none. A key has no padding with undefined bytes. */
lk__dnn_entry *lk__dnn_find(lk__cuda_dnn *dnn, const void *key, size_t bytes);
/* A new one with an empty graph; NULL: out of memory, or the key is too long. */
lk__dnn_entry *lk__dnn_add(lk__cuda_dnn *dnn, const void *key, size_t bytes);
/* Makes at most `most` plans of the entry's graph, with engines that need at most `workspace` bytes; with
 * `deterministic` those that the library notes neither as non-deterministic nor as rounding f32 operands to 16 bits.
 * The number of plans; 0: none, and graph.why says why. */
int lk__dnn_build_plans(lk__dnn_entry *entry, size_t workspace, bool deterministic, int most);
/* Queues a plan on the call's stream. workspace: plan->workspace bytes, aligned to 256. Pointers of scalars are the
 * host's. */
lk_status lk__dnn_run(lk__cuda_dnn *dnn, const lk__kernel_call *call, const lk__dnn_plan *plan, int count,
                      const int64_t *uids, void *const *pointers, void *workspace);

#endif
#endif
