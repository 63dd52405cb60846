/* dnn_load.cu - cuDNN's backend API: loading the library, descriptors with messages that name the attribute that
 * failed, and plans by key. The module does not link cuDNN: the machine that runs it may have another version than the
 * one that built it, or none. */
#include "device/cuda/dnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef LK__CUDA_DNN

int lk__dnn_library_version(char *why, size_t bytes)
{
    snprintf(why, bytes, "this build has no cuDNN");
    return 0;
}

void lk__cuda_dnn_free(lk__cuda_dnn *dnn) { (void)dnn; }

#else

enum { OLDEST = 90000 }; /* 9.0.0: the first with these numbers of attributes and this behaviour of attention */

struct lk__cuda_dnn {
    const lk__dnn_library *library;
    cudnnHandle_t          handle;
    lk__dnn_entry         *entries;
};

/* ---- the library ---- */

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER; /* held alone; guards the two below */
static lk__dnn_library loaded;
static char            load_failure[256]; /* empty and no version: not tried yet */

static bool find_function(void *library, const char *name, void *to)
{
    void *address = dlsym(library, name);
    memcpy(to, &address, sizeof address);
    if (!address) snprintf(load_failure, sizeof load_failure, "libcudnn.so.9 has no function %s", name);
    return address != NULL;
}

static bool load_functions(void *library)
{
#define DNN_FIND(name) \
    if (!find_function(library, #name, &loaded.name)) return false;
    DNN_FUNCTIONS(DNN_FIND)
#undef DNN_FIND
    int version = (int)loaded.cudnnGetVersion();
    if (version < OLDEST) {
        snprintf(load_failure, sizeof load_failure, "cuDNN %d.%d.%d is older than 9.0.0", version / 1000,
                 version / 100 % 10, version % 100); /* 8.9.7 is 8907 */
        return false;
    }
    loaded.version = version;
    return true;
}

/* NULL: load_failure says why. */
static const lk__dnn_library *load_library(void)
{
    pthread_mutex_lock(&load_lock);
    if (!loaded.version && !load_failure[0]) {
        void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
        if (!library) snprintf(load_failure, sizeof load_failure, "%s", dlerror());
        if (library && !load_functions(library)) dlclose(library);
    }
    pthread_mutex_unlock(&load_lock);
    return loaded.version ? &loaded : NULL;
}

int lk__dnn_library_version(char *why, size_t bytes)
{
    const lk__dnn_library *library = load_library();
    if (!library) snprintf(why, bytes, "%s", load_failure);
    return library ? library->version : 0;
}

/* ---- descriptors ---- */

static void keep_failure(lk__dnn_graph *g, cudnnStatus_t status, const char *doing, const char *what)
{
    if (lk__dnn_failed(g)) return;
    char last[384] = "";
    g->library->cudnnGetLastErrorString(last, sizeof last);
    last[sizeof last - 1] = 0;
    snprintf(g->why, sizeof g->why, "%s %s: %s%s%s", doing, what, g->library->cudnnGetErrorString(status),
             last[0] ? ": " : "", last);
}

lk__dnn_descriptor lk__dnn_make(lk__dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what)
{
    lk__dnn_descriptor d = NULL;
    if (lk__dnn_failed(g)) return NULL;
    if (g->made_count == DNN_DESCRIPTORS) {
        snprintf(g->why, sizeof g->why, "creating %s: more than %d descriptors", what, (int)DNN_DESCRIPTORS);
        return NULL;
    }
    cudnnStatus_t status = g->library->cudnnBackendCreateDescriptor(type, &d);
    if (status != CUDNN_STATUS_SUCCESS) {
        keep_failure(g, status, "creating", what);
        return NULL;
    }
    return g->made[g->made_count++] = d;
}

void lk__dnn_set_named(lk__dnn_graph *g, lk__dnn_descriptor d, cudnnBackendAttributeName_t attribute, const char *name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (lk__dnn_failed(g)) return;
    cudnnStatus_t status = g->library->cudnnBackendSetAttribute(d, attribute, type, count, values);
    if (status != CUDNN_STATUS_SUCCESS) keep_failure(g, status, "setting", name);
}

void lk__dnn_finalize(lk__dnn_graph *g, lk__dnn_descriptor d, const char *what)
{
    if (lk__dnn_failed(g)) return;
    cudnnStatus_t status = g->library->cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS) keep_failure(g, status, "finalizing", what);
}

void lk__dnn_add_operation(lk__dnn_graph *g, lk__dnn_descriptor operation, const char *what)
{
    lk__dnn_finalize(g, operation, what);
    if (lk__dnn_failed(g)) return;
    if (g->operation_count == DNN_OPERATIONS)
        snprintf(g->why, sizeof g->why, "adding %s: more than %d operations", what, (int)DNN_OPERATIONS);
    else
        g->operations[g->operation_count++] = operation;
}

lk__dnn_tensor_shape lk__dnn_dense(int rank, const int64_t *dims)
{
    lk__dnn_tensor_shape shape = {};
    int64_t              stride = 1;
    for (int i = rank - 1; i >= 0; stride *= dims[i--]) shape.dims[i] = dims[i], shape.strides[i] = stride;
    return shape;
}

static lk__dnn_descriptor make_tensor(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int rank,
                                      const lk__dnn_tensor_shape *shape, bool by_value)
{
    /* Operands are aligned to 16 bytes at least: those of a packed tensor begin within a row. */
    int64_t            number = uid ? uid : ++g->virtual_uid, alignment = 16;
    bool               is_virtual = uid == 0;
    lk__dnn_descriptor d = lk__dnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, shape->dims);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, shape->strides);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value) lk__dnn_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    lk__dnn_finalize(g, d, what);
    return d;
}

lk__dnn_descriptor lk__dnn_tensor(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int rank,
                                  const lk__dnn_tensor_shape *shape)
{
    return make_tensor(g, what, uid, type, rank, shape, false);
}

lk__dnn_descriptor lk__dnn_scalar(lk__dnn_graph *g, const char *what, int64_t uid, cudnnDataType_t type, int rank)
{
    lk__dnn_tensor_shape ones = {{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    return make_tensor(g, what, uid, type, rank, &ones, true);
}

void lk__dnn_pointwise(lk__dnn_graph *g, const char *what, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                       int64_t axis, lk__dnn_descriptor x, lk__dnn_descriptor b, lk__dnn_descriptor t,
                       lk__dnn_descriptor y)
{
    lk__dnn_descriptor kind = lk__dnn_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    lk__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    lk__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0) lk__dnn_set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    lk__dnn_finalize(g, kind, what);
    lk__dnn_descriptor d = lk__dnn_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    if (b) lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b);
    if (t) lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &t);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    lk__dnn_add_operation(g, d, what);
}

void lk__dnn_matmul(lk__dnn_graph *g, const char *what, lk__dnn_descriptor a, lk__dnn_descriptor b,
                    lk__dnn_descriptor c)
{
    cudnnDataType_t    compute = CUDNN_DATA_FLOAT;
    lk__dnn_descriptor kind = lk__dnn_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    lk__dnn_set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    lk__dnn_finalize(g, kind, what);
    lk__dnn_descriptor d = lk__dnn_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &c);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind);
    lk__dnn_add_operation(g, d, what);
}

void lk__dnn_reduction(lk__dnn_graph *g, const char *what, cudnnReduceTensorOp_t reduction, lk__dnn_descriptor x,
                       lk__dnn_descriptor y)
{
    cudnnDataType_t    compute = CUDNN_DATA_FLOAT;
    lk__dnn_descriptor kind = lk__dnn_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    lk__dnn_set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
    lk__dnn_set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    lk__dnn_finalize(g, kind, what);
    lk__dnn_descriptor d = lk__dnn_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    lk__dnn_add_operation(g, d, what);
}

void lk__dnn_reshape(lk__dnn_graph *g, const char *what, lk__dnn_descriptor x, lk__dnn_descriptor y)
{
    lk__dnn_descriptor d = lk__dnn_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    lk__dnn_set(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    lk__dnn_add_operation(g, d, what);
}

/* ---- plans ---- */

static bool get_attribute(lk__dnn_graph *g, lk__dnn_descriptor d, cudnnBackendAttributeName_t attribute,
                          const char *name, cudnnBackendAttributeType_t type, int64_t most, int64_t *count,
                          void *values)
{
    if (lk__dnn_failed(g)) return false;
    cudnnStatus_t status = g->library->cudnnBackendGetAttribute(d, attribute, type, most, count, values);
    if (status != CUDNN_STATUS_SUCCESS) keep_failure(g, status, "reading", name);
    return status == CUDNN_STATUS_SUCCESS;
}

/* Whether an engine gives the same bits from run to run, and does not round f32 operands to 16 bits (TF32 is no such
 * rounding to the library); its number. */
static bool is_faithful(lk__dnn_graph *g, lk__dnn_descriptor config, int64_t *number)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t                     count = 0, got = 0;
    lk__dnn_descriptor engine = lk__dnn_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "the engine of a configuration");
    get_attribute(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, "CUDNN_ATTR_ENGINECFG_ENGINE", CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  1, &got, &engine);
    get_attribute(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, "CUDNN_ATTR_ENGINE_GLOBAL_INDEX", CUDNN_TYPE_INT64, 1,
                  &got, number);
    if (!get_attribute(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, "CUDNN_ATTR_ENGINE_NUMERICAL_NOTE",
                       CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes))
        return false;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC || notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
            return false;
    return true;
}

/* What was tried and failed is forgotten, its descriptors too; the reason is kept for when nothing succeeds. */
static void abandon_attempt(lk__dnn_graph *g, int made, char reason[512])
{
    if (!reason[0]) snprintf(reason, 512, "%s", g->why);
    g->why[0] = 0;
    while (g->made_count > made) g->library->cudnnBackendDestroyDescriptor(g->made[--g->made_count]);
}

/* Whether the configuration became the entry's next plan. */
static bool plan_config(lk__dnn_entry *e, lk__dnn_descriptor config, size_t workspace, bool deterministic,
                        char reason[512])
{
    lk__dnn_graph *g = &e->graph;
    int64_t        bytes = 0, got = 0, engine = -1;
    int            made = g->made_count;
    if (!is_faithful(g, config, &engine) && (deterministic || lk__dnn_failed(g))) {
        if (!lk__dnn_failed(g))
            snprintf(g->why, sizeof g->why, "engine %lld is not deterministic, or rounds its operands",
                     (long long)engine);
        abandon_attempt(g, made, reason);
        return false;
    }
    lk__dnn_descriptor plan = lk__dnn_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
    lk__dnn_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    lk__dnn_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    lk__dnn_finalize(g, plan, "a plan");
    get_attribute(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE",
                  CUDNN_TYPE_INT64, 1, &got, &bytes);
    if (!lk__dnn_failed(g) && (size_t)bytes > workspace)
        snprintf(g->why, sizeof g->why, "engine %lld needs %lld bytes of workspace; only %zu are planned",
                 (long long)engine, (long long)bytes, workspace);
    if (lk__dnn_failed(g)) {
        abandon_attempt(g, made, reason);
        return false;
    }
    e->plans[e->plan_count++] = (lk__dnn_plan){plan, (size_t)bytes, engine};
    return true;
}

/* The heuristic's configurations of one mode, in its order. */
static void plan_mode(lk__dnn_entry *e, lk__dnn_descriptor operations, cudnnBackendHeurMode_t mode, size_t workspace,
                      bool deterministic, int most, char reason[512])
{
    lk__dnn_graph     *g = &e->graph;
    lk__dnn_descriptor configs[16];
    int64_t            count = 0;
    int                made = g->made_count;
    lk__dnn_descriptor heuristic = lk__dnn_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the heuristic");
    lk__dnn_set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations);
    lk__dnn_set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    lk__dnn_finalize(g, heuristic,
                     mode == CUDNN_HEUR_MODE_A ? "the heuristic in mode A" : "the heuristic in fallback mode");
    get_attribute(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, "CUDNN_ATTR_ENGINEHEUR_RESULTS",
                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL);
    if (count > 16) count = 16;
    for (int64_t i = 0; i < count; i++)
        configs[i] = lk__dnn_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a configuration");
    get_attribute(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, "CUDNN_ATTR_ENGINEHEUR_RESULTS",
                  CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, configs);
    if (!lk__dnn_failed(g) && count == 0)
        snprintf(g->why, sizeof g->why, "the heuristic found no engine for this graph");
    if (lk__dnn_failed(g)) {
        abandon_attempt(g, made, reason);
        return;
    }
    for (int64_t i = 0; i < count && e->plan_count < most; i++)
        plan_config(e, configs[i], workspace, deterministic, reason);
}

int lk__dnn_build_plans(lk__dnn_entry *e, size_t workspace, bool deterministic, int most)
{
    lk__dnn_graph *g = &e->graph;
    char           reason[512] = "";
    if (most > DNN_PLANS) most = DNN_PLANS;
    lk__dnn_descriptor operations = lk__dnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
    lk__dnn_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    lk__dnn_set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count,
                g->operations);
    lk__dnn_finalize(g, operations, "the graph");
    if (lk__dnn_failed(g)) return 0;
    /* Where a graph is being recorded, for a count that was not prepared: the library may load code meanwhile. */
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    plan_mode(e, operations, CUDNN_HEUR_MODE_A, workspace, deterministic, most, reason);
    if (e->plan_count == 0) plan_mode(e, operations, CUDNN_HEUR_MODE_FALLBACK, workspace, deterministic, most, reason);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (e->plan_count == 0) snprintf(g->why, sizeof g->why, "%s", reason);
    return e->plan_count;
}

lk_status lk__dnn_run(lk__cuda_dnn *dnn, const lk__kernel_call *call, const lk__dnn_plan *plan, int count,
                      const int64_t *uids, void *const *pointers, void *workspace)
{
    lk__dnn_graph g = {};
    g.library = dnn->library;
    cudnnStatus_t status = dnn->library->cudnnSetStream(dnn->handle, cuda_stream(call));
    if (status != CUDNN_STATUS_SUCCESS) keep_failure(&g, status, "setting", "the stream");
    lk__dnn_descriptor pack = lk__dnn_make(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the operands");
    lk__dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    lk__dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    lk__dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    lk__dnn_finalize(&g, pack, "the operands");
    if (!lk__dnn_failed(&g)) {
        status = dnn->library->cudnnBackendExecute(dnn->handle, plan->plan, pack);
        if (status != CUDNN_STATUS_SUCCESS) keep_failure(&g, status, "running", "a plan");
    }
    if (pack) dnn->library->cudnnBackendDestroyDescriptor(pack);
    if (!lk__dnn_failed(&g)) return lk__cuda_launched(call);
    return lk__cuda_host.fail(call->device->context, LK_EIO, "cuDNN %d: engine %lld: %s", dnn->library->version,
                              (long long)plan->engine, g.why);
}

/* ---- handles and entries ---- */

lk__cuda_dnn *lk__cuda_dnn_of(lk__cuda_device *device)
{
    static lk__cuda_dnn unusable; /* without a library: so that loading is not tried again */
    if (device->dnn) return device->dnn == &unusable ? NULL : device->dnn;
    lk_context            *context = device->base.context;
    const lk__dnn_library *library = device->number < 0 ? NULL : load_library();
    lk__cuda_dnn          *dnn = library ? (lk__cuda_dnn *)calloc(1, sizeof *dnn) : NULL;
    cudnnStatus_t          status = dnn ? library->cudnnCreate(&dnn->handle) : CUDNN_STATUS_SUCCESS;
    if (status != CUDNN_STATUS_SUCCESS) {
        lk__cuda_host.log(context, LK_LOG_INFO, "cuDNN is not used: cudnnCreate: %s",
                          library->cudnnGetErrorString(status));
        free(dnn);
        dnn = NULL;
    } else if (!dnn) {
        if (device->number >= 0)
            lk__cuda_host.log(context, LK_LOG_INFO, "cuDNN is not used: %s", library ? "out of memory" : load_failure);
    } else {
        dnn->library = library;
    }
    device->dnn = dnn ? dnn : &unusable;
    return dnn;
}

int lk__dnn_version(const lk__cuda_dnn *dnn) { return dnn->library->version; }

lk__dnn_entry *lk__dnn_find(lk__cuda_dnn *dnn, const void *key, size_t bytes)
{
    for (lk__dnn_entry *e = dnn->entries; e; e = e->next)
        if (e->key_bytes == bytes && memcmp(e->key, key, bytes) == 0) return e;
    return NULL;
}

lk__dnn_entry *lk__dnn_add(lk__cuda_dnn *dnn, const void *key, size_t bytes)
{
    lk__dnn_entry *e = bytes <= DNN_KEY ? (lk__dnn_entry *)calloc(1, sizeof *e) : NULL;
    if (!e) return NULL;
    memcpy(e->key, key, bytes);
    e->key_bytes = bytes;
    e->graph.library = dnn->library;
    e->graph.handle = dnn->handle;
    e->graph.virtual_uid = 1000; /* callers number their tensors from 1 on */
    e->next = dnn->entries;
    return dnn->entries = e;
}

void lk__cuda_dnn_free(lk__cuda_dnn *dnn)
{
    if (!dnn || !dnn->library) return;
    while (dnn->entries) {
        lk__dnn_entry *e = dnn->entries;
        dnn->entries = e->next;
        while (e->graph.made_count > 0)
            dnn->library->cudnnBackendDestroyDescriptor(e->graph.made[--e->graph.made_count]);
        free(e);
    }
    dnn->library->cudnnDestroy(dnn->handle);
    free(dnn);
}

#endif
