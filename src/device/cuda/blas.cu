/* blas.cu - matrix products by cuBLASLt, loaded at run time: the descriptors of a product, the choice of an algorithm,
 * and the cache of both.
 *
 * Our matrices are row-major. Read as columns they are transposed, so the library is asked for C' = B' A' with the
 * operands exchanged, and C's columns, along which our biases lie, are its rows. An algorithm is chosen once per shape:
 * the library's first one, or, before anything runs and unless the device forbids it, the fastest of its first ones.
 * Only algorithms with a fixed order of additions are allowed: no sums in place, which depend on which block is first.
 *
 * relu is a separate kernel after the product, because the library's relu does not promise to keep NaN; so is gelu,
 * except for bf16, because the library's gelu is an approximation. */
#include "device/cuda/product_epilogue.h"

#include "device/cuda/autotuning.h"
#include "device/cuda/backend.h"
#include "device/cuda/measure.h"

#if !defined(LK_CUDA_EMULATED)

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */

/* X(function): what is called of it; all of them are in cuBLASLt 12 and 13. */
#define FUNCTIONS(X)                                                                                     \
    X(cublasLtGetVersion)                                                                                \
    X(cublasLtCreate)                                                                                    \
    X(cublasLtDestroy)                                                                                   \
    X(cublasLtMatmul)                                                                                    \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                    \
    X(cublasLtMatmulAlgoCheck)                                                                           \
    X(cublasLtMatmulDescCreate)                                                                          \
    X(cublasLtMatmulDescDestroy)                                                                         \
    X(cublasLtMatmulDescSetAttribute)                                                                    \
    X(cublasLtMatrixLayoutCreate)                                                                        \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) \
        X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    bool   loaded;
    size_t version;
    char   why[256];
#define POINTER(name) decltype(&::name) name;
    FUNCTIONS(POINTER)
#undef POINTER
} lt;

static void load_library()
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void                    *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        const char *error = dlerror();
        snprintf(lt.why, sizeof lt.why, "cannot load libcublasLt.so.13: %s", error ? error : "not found");
        return;
    }
#define FIND(name)                                                                  \
    if (!(lt.name = (decltype(lt.name))dlsym(library, #name))) {                    \
        snprintf(lt.why, sizeof lt.why, "this libcublasLt has no function " #name); \
        return;                                                                     \
    }
    FUNCTIONS(FIND)
#undef FIND
    lt.version = lt.cublasLtGetVersion();
    if (lt.version < 120000) /* 11 numbered its versions by other factors, and has no bias types */
        snprintf(lt.why, sizeof lt.why, "cuBLASLt %zu is too old; 12.0 or later is needed", lt.version);
    else
        lt.loaded = true;
}

void lk__cuda_blas_text(char *text, size_t bytes)
{
    pthread_once(&once, load_library);
    text[0] = '\0';
    if (lt.loaded) snprintf(text, bytes, "%zu.%zu.%zu", lt.version / 10000, lt.version / 100 % 100, lt.version % 100);
}

/* ---- products that were seen ---- */

/* Everything that an algorithm is chosen by. Compared and hashed as bytes. */
typedef struct product_key {
    int64_t m, n, k, batch, a_ld, b_ld, c_ld, a_batch, b_batch, c_batch;
    int32_t type, type_c, epilogue, align_a, align_b, align_c;
    uint8_t a_transposed, b_transposed, adds, tf32, rows_apart, sums, activates, unused;
} product_key;

typedef enum product_way {
    BY_LIBRARY = 1,
    BY_LIBRARY_WITH_SUMS, /* and the sums of A's rows or B's columns by column_sums.cu */
    BY_KERNEL,            /* our own is faster */
    BY_NOTHING            /* the library has no algorithm */
} product_way;

typedef struct choice {
    int32_t              way;
    cublasLtMatmulAlgo_t algorithm;
} choice;

typedef struct entry {
    struct entry          *next;
    product_key            key;
    choice                 chosen;
    bool                   listed; /* it was measured, so programs list it */
    cublasLtMatmulDesc_t   operation;
    cublasLtMatrixLayout_t a, b, c; /* the library's A is our B */
} entry;

/* The library may add all of k one after the other, which loses digits; our kernel adds chunks. */
static const int64_t LONGEST_SUM = 1 << 17;

enum { BUCKETS = 256, CANDIDATES = 24 };

struct lk__cuda_blas {
    cublasLtHandle_t handle;
    entry           *buckets[BUCKETS];
};

static bool ok(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

/* The device's; NULL: there is none, which is said once. */
static lk__cuda_blas *find_blas(lk__cuda_device *device)
{
    static bool said;
    pthread_once(&once, load_library);
    if (device->blas || device->number < 0) return device->blas;
    if (!lt.loaded) {
        if (!said)
            lk__cuda_host.log(device->base.context, LK_LOG_WARNING,
                              "%s; falling back to slower built-in kernels for matrix products", lt.why);
        said = true;
        return NULL;
    }
    lk__cuda_blas *blas = (lk__cuda_blas *)calloc(1, sizeof *blas);
    if (!blas) return NULL;
    if (!ok(lt.cublasLtCreate(&blas->handle))) {
        free(blas);
        return NULL;
    }
    return device->blas = blas;
}

bool lk__cuda_blas_load(lk__cuda_device *device)
{
    pthread_once(&once, load_library);
    return lt.loaded && find_blas(device) != NULL;
}

static void free_entry(entry *e)
{
    if (e->operation) lt.cublasLtMatmulDescDestroy(e->operation);
    if (e->a) lt.cublasLtMatrixLayoutDestroy(e->a);
    if (e->b) lt.cublasLtMatrixLayoutDestroy(e->b);
    if (e->c) lt.cublasLtMatrixLayoutDestroy(e->c);
    free(e);
}

void lk__cuda_blas_free(lk__cuda_device *device)
{
    lk__cuda_blas *blas = device ? device->blas : NULL;
    if (!blas) return;
    for (int i = 0; i < BUCKETS; i++)
        for (entry *e = blas->buckets[i], *next; e; e = next) {
            next = e->next;
            free_entry(e);
        }
    lt.cublasLtDestroy(blas->handle);
    free(blas);
    device->blas = NULL;
}

/* ---- descriptions for the library ---- */

static cudaDataType_t data_type(int type)
{
    return type == LK_F64 ? CUDA_R_64F : type == LK_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Whether the activation is applied by a kernel of our own: see above. */
static bool activates_after(const lk__cuda_product *p)
{
    return p->activation == LK__RELU || (p->activation == LK__GELU_TANH && p->type != LK_BF16);
}

static int epilogue_of(const lk__cuda_product *p)
{
    if (p->a_sums) return CUBLASLT_EPILOGUE_BGRADB; /* our A is the library's B */
    if (p->b_sums) return CUBLASLT_EPILOGUE_BGRADA;
    bool inside = p->activation == LK__GELU_TANH && !activates_after(p);
    if (inside && p->gradient) return CUBLASLT_EPILOGUE_DGELU;
    int gelu = !inside ? 0 : p->saved ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    int bias = p->bias ? CUBLASLT_EPILOGUE_BIAS : 0;
    return gelu | bias ? gelu | bias : CUBLASLT_EPILOGUE_DEFAULT;
}

/* The alignment of all rows: from the shape, so that a product of some of the rows has the algorithm of the whole. */
static int alignment_of(int64_t ld, int64_t batch, lk_dtype type)
{
    int64_t bytes = ld * (int64_t)cuda_size(type) | batch * (int64_t)cuda_size(type) | 16;
    return (int)(bytes & -bytes);
}

static product_key key_of(const lk__cuda_device *device, const lk__cuda_product *p)
{
    product_key key;
    bool        many = p->batch > 1;
    memset(&key, 0, sizeof key); /* the padding too */
    key.m = p->m, key.n = p->n, key.k = p->k, key.batch = p->batch;
    key.a_ld = p->a_ld, key.b_ld = p->b_ld, key.c_ld = p->c_ld;
    key.a_batch = many ? p->a_batch : 0, key.b_batch = many ? p->b_batch : 0, key.c_batch = many ? p->c_batch : 0;
    key.type = (int32_t)p->type, key.type_c = (int32_t)p->type_c;
    key.epilogue = epilogue_of(p);
    key.align_a = alignment_of(p->a_ld, key.a_batch, p->type);
    key.align_b = alignment_of(p->b_ld, key.b_batch, p->type);
    key.align_c = alignment_of(p->c_ld, key.c_batch, p->type_c);
    key.a_transposed = p->a_transposed, key.b_transposed = p->b_transposed;
    key.adds = p->beta != 0;
    key.tf32 = device->tf32 && p->type == LK_F32;
    key.rows_apart = p->rows_apart && device->base.by_heuristic;

    key.sums = p->a_sums || p->b_sums;
    key.activates = activates_after(p);
    return key;
}

static bool aligned(const void *p, int to) { return (uintptr_t)p % (uintptr_t)to == 0; }

/* Products for which nothing is asked of the library. */
static bool supports_library(const lk__cuda_product *p, const product_key *key)
{
    bool types = p->type_c == p->type || (p->type == LK_BF16 && p->type_c == LK_F32);
    bool epilogue = key->epilogue != CUBLASLT_EPILOGUE_DEFAULT || key->activates;
    if (p->type == LK_F32 && p->k > LONGEST_SUM) return false;
    if (!types || !p->workspace || (epilogue && (p->batch > 1 || p->beta != 0))) return false;
    if (key->activates && p->c_ld != p->n) return false;
    if (p->bias && p->type_c != p->type) return false;
    if (p->type == LK_F64 && p->m * p->n * p->k * p->batch < (int64_t)1 << 30) return false; /* proved with ours */
    return aligned(p->a, key->align_a) && aligned(p->b, key->align_b) && aligned(p->c, key->align_c) &&
           aligned(p->addend, key->align_c);
}

static bool set_layout(cublasLtMatrixLayout_t *layout, int type, int64_t rows, int64_t columns, int64_t ld,
                       int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    if (!ok(lt.cublasLtMatrixLayoutCreate(layout, data_type(type), (uint64_t)rows, (uint64_t)columns, ld)))
        return false;
    return batch <= 1 ||
           (ok(lt.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                   sizeof count)) &&
            ok(lt.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                                   sizeof step)));
}

/* Row-major (rows, columns) with leading dimension ld is (columns, rows) to the library. */
static bool make_layouts(entry *e, int64_t m, int64_t batch)
{
    const product_key *key = &e->key;
    int64_t            a_ld = key->a_transposed && key->a_ld < m ? m : key->a_ld; /* m may be another one: describe */
    return set_layout(&e->a, key->type, key->b_transposed ? key->k : key->n, key->b_transposed ? key->n : key->k,
                      key->b_ld, batch, key->b_batch) &&
           set_layout(&e->b, key->type, key->a_transposed ? m : key->k, key->a_transposed ? key->k : m, a_ld, batch,
                      key->a_batch) &&
           set_layout(&e->c, key->type_c, key->n, m, key->c_ld, batch, key->c_batch);
}

static bool set_operation(entry *e, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return ok(lt.cublasLtMatmulDescSetAttribute(e->operation, attribute, value, bytes));
}

static bool make_operation(entry *e, int epilogue)
{
    const product_key  *key = &e->key;
    cublasComputeType_t compute = key->type == LK_F64 ? CUBLAS_COMPUTE_64F
                                  : key->tf32         ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                      : CUBLAS_COMPUTE_32F;
    cublasOperation_t   a = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t what = (uint32_t)epilogue;
    int32_t  type = data_type(key->type_c);
    if (!ok(lt.cublasLtMatmulDescCreate(&e->operation, compute, key->type == LK_F64 ? CUDA_R_64F : CUDA_R_32F)))
        return false;
    bool made = set_operation(e, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) &&
                set_operation(e, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) &&
                set_operation(e, CUBLASLT_MATMUL_DESC_EPILOGUE, &what, sizeof what);
    if (epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB))
        made = made && set_operation(e, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (epilogue & 128) /* reads or writes what gelu is applied to */
        made = made && set_operation(e, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->c_ld, sizeof key->c_ld) &&
               set_operation(e, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof type);
    return made;
}

/* The operands of the epilogue, which are part of the operation to the library. Nothing where it has none. */
static bool set_pointers(entry *e, const lk__cuda_product *p, bool sums)
{
    const void *bias = sums && p->a_sums ? p->a_sums : sums && p->b_sums ? p->b_sums : p->bias;
    return (!bias || set_operation(e, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) &&
           (!p->saved || e->key.activates ||
            set_operation(e, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->saved, sizeof p->saved));
}

/* ---- algorithms ---- */

enum { LIBRARY_ALIGN = 256 }; /* of cuBLASLt's workspace: at other addresses its results are wrong */

/* Where the algorithm must not depend on the number of rows, what the smallest product has. */
static size_t allowed_bytes(const product_key *key)
{
    size_t bytes =
        key->rows_apart ? lk__cuda_product_bytes(1, 1, 1) : lk__cuda_product_bytes(key->m, key->n, key->batch);
    return bytes - LIBRARY_ALIGN;
}

/* The workspace from the first address on that the library takes. */
static void *library_workspace(const lk__cuda_product *p)
{
    return (void *)(((uintptr_t)p->workspace + LIBRARY_ALIGN - 1) / LIBRARY_ALIGN * LIBRARY_ALIGN);
}

static cublasLtMatmulPreference_t make_preference(const product_key *key)
{
    cublasLtMatmulPreference_t preference = NULL;
    uint64_t                   bytes = allowed_bytes(key);
    uint32_t                   schemes = lk__cuda_any_order() ? CUBLASLT_REDUCTION_SCHEME_MASK
                                         : key->rows_apart    ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t                   a = (uint32_t)key->align_b, b = (uint32_t)key->align_a, c = (uint32_t)key->align_c;
    if (!ok(lt.cublasLtMatmulPreferenceCreate(&preference))) return NULL;
#define PREFER(attribute, value) \
    ok(lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##attribute, &(value), sizeof(value)))
    if (PREFER(MAX_WORKSPACE_BYTES, bytes) && PREFER(REDUCTION_SCHEME_MASK, schemes) &&
        PREFER(MIN_ALIGNMENT_A_BYTES, a) && PREFER(MIN_ALIGNMENT_B_BYTES, b) && PREFER(MIN_ALIGNMENT_C_BYTES, c) &&
        PREFER(MIN_ALIGNMENT_D_BYTES, c))
        return preference;
#undef PREFER
    lt.cublasLtMatmulPreferenceDestroy(preference);
    return NULL;
}

/* The library's algorithms for the entry, in its order; how many. */
static int list_algorithms(lk__cuda_blas *blas, const entry *e, cublasLtMatmulHeuristicResult_t results[CANDIDATES])
{
    cublasLtMatmulPreference_t preference = make_preference(&e->key);
    int                        count = 0, kept = 0;
    if (!preference) return 0;
    if (!ok(lt.cublasLtMatmulAlgoGetHeuristic(blas->handle, e->operation, e->a, e->b, e->c, e->c, preference,
                                              CANDIDATES, results, &count)))
        count = 0;
    lt.cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < count; i++)
        if (ok(results[i].state)) results[kept++] = results[i];
    return kept;
}

static void drop_descriptions(entry *e)
{
    if (e->operation) lt.cublasLtMatmulDescDestroy(e->operation);
    if (e->a) lt.cublasLtMatrixLayoutDestroy(e->a);
    if (e->b) lt.cublasLtMatrixLayoutDestroy(e->b);
    if (e->c) lt.cublasLtMatrixLayoutDestroy(e->c);
    e->operation = NULL;
    e->a = e->b = e->c = NULL;
}

/* With rows_apart the algorithms are those of a fixed number of rows and matrices, so that they depend on neither. */
static const int64_t ROWS_APART = 4096;

static bool describe(entry *e, const lk__cuda_product *p, int epilogue, bool canonical)
{
    int64_t batch = canonical && e->key.batch > 1 ? 64 : e->key.batch;
    return make_layouts(e, canonical ? ROWS_APART : e->key.m, batch) && make_operation(e, epilogue) &&
           set_pointers(e, p, epilogue == e->key.epilogue);
}

/* The algorithms of one way to compute the product; *e describes it afterwards. */
static int find_algorithms(lk__cuda_blas *blas, entry *e, const lk__cuda_product *p, product_way way,
                           cublasLtMatmulHeuristicResult_t results[CANDIDATES])
{
    int epilogue = way == BY_LIBRARY_WITH_SUMS ? CUBLASLT_EPILOGUE_DEFAULT : e->key.epilogue, count = 0, kept = 0;
    drop_descriptions(e);
    if (!e->key.rows_apart) return describe(e, p, epilogue, false) ? list_algorithms(blas, e, results) : 0;
    if (describe(e, p, epilogue, true)) count = list_algorithms(blas, e, results);
    drop_descriptions(e);
    if (!describe(e, p, epilogue, false)) return 0;
    for (int i = 0; i < count; i++) {
        cublasLtMatmulHeuristicResult_t checked;
        bool fits = ok(lt.cublasLtMatmulAlgoCheck(blas->handle, e->operation, e->a, e->b, e->c, e->c, &results[i].algo,
                                                  &checked)) &&
                    checked.workspaceSize <= allowed_bytes(&e->key);
        if (fits) results[kept++] = results[i];
    }
    return kept;
}

/* ---- running ---- */

/* C holds the sums with their bias. */
template <typename T> static __global__ void activate(product_epilogue<T> to, int64_t n)
{
    to.alpha = 1;
    to.bias = NULL;
    EACH_INDEX(i, n) to.write(to.c, i, to.finish(i, 0, to.read(to.c, i)));
}

static lk_status apply_activation(const lk__kernel_call *call, const lk__cuda_product *p)
{
    int64_t n = p->m * p->n;
    BY_ELEMENT(p->type, T,
               LAUNCH((activate<T>), cuda_blocks(n, 256), 256, 0, cuda_stream(call), product_epilogue_of<T>(p), n);)
    return lk__cuda_launched(call);
}

/* Sums over k of A's rows or B's columns; A and B are whole there (can_sum). */
static lk_status queue_sums(const lk__kernel_call *call, const lk__cuda_product *p)
{
    return p->a_sums ? lk__cuda_column_sums(call, p->a, p->type, NULL, p->k, p->m, NULL, p->a_sums, p->workspace)
                     : lk__cuda_column_sums(call, p->b, p->type, NULL, p->k, p->n, NULL, p->b_sums, p->workspace);
}

static bool can_sum(const lk__cuda_product *p)
{
    bool whole = p->a_sums ? p->a_transposed && p->a_ld == p->m : !p->b_transposed && p->b_ld == p->n;
    return whole && lk__cuda_column_sums_workspace(p->k, p->a_sums ? p->m : p->n) <=
                        lk__cuda_product_bytes(p->m, p->n, p->batch);
}

static lk_status queue_algorithm(const lk__kernel_call *call, const lk__cuda_product *p, entry *e,
                                 const cublasLtMatmulAlgo_t *algorithm, product_way way)
{
    lk__cuda_blas *blas = cuda_device(call)->blas;
    double         wide[2] = {p->alpha, p->beta};
    float          narrow[2] = {(float)p->alpha, (float)p->beta};
    const void    *alpha = p->type == LK_F64 ? (const void *)&wide[0] : &narrow[0];
    const void    *beta = p->type == LK_F64 ? (const void *)&wide[1] : &narrow[1];
    if (!set_pointers(e, p, way == BY_LIBRARY)) return LK_EUNSUPPORTED;
    cudaStreamCaptureMode mode =
        cudaStreamCaptureModeRelaxed; /* a first run loads code, also where a graph is being recorded */
    cudaThreadExchangeStreamCaptureMode(&mode);
    cublasStatus_t done =
        lt.cublasLtMatmul(blas->handle, e->operation, alpha, p->b, e->a, p->a, e->b, beta, p->addend ? p->addend : p->c,
                          e->c, p->c, e->c, algorithm, library_workspace(p),
                          lk__cuda_product_bytes(p->m, p->n, p->batch) - LIBRARY_ALIGN, cuda_stream(call));
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!ok(done)) return LK_EUNSUPPORTED;
    lk_status status = lk__cuda_launched(call);
    if (status >= 0 && way == BY_LIBRARY_WITH_SUMS) status = queue_sums(call, p);
    if (status >= 0 && e->key.activates) status = apply_activation(call, p);
    return status;
}

static lk_status queue_entry(const lk__kernel_call *call, const lk__cuda_product *p, entry *e)
{
    switch (e->chosen.way) {
    case BY_LIBRARY:
    case BY_LIBRARY_WITH_SUMS: return queue_algorithm(call, p, e, &e->chosen.algorithm, (product_way)e->chosen.way);
    case BY_KERNEL: return lk__cuda_gemm_plain(call, p);
    default: return LK_EUNSUPPORTED;
    }
}

/* ---- choosing ---- */

/* The library's own first choice, with its epilogue where it has one. */
static void choose_first(lk__cuda_blas *blas, entry *e, const lk__cuda_product *p)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    static const product_way        ways[] = {BY_LIBRARY, BY_LIBRARY_WITH_SUMS};
    e->chosen.way = BY_NOTHING;
    for (int i = 0; i < (e->key.sums && can_sum(p) ? 2 : 1) && e->chosen.way == BY_NOTHING; i++)
        if (find_algorithms(blas, e, p, ways[i], results) > 0) {
            e->chosen.way = ways[i];
            e->chosen.algorithm = results[0].algo;
        }
}

static entry *find_entry(lk__cuda_blas *blas, const product_key *key)
{
    uint64_t hash = lk__cuda_host.hash64(key, sizeof *key, 0);
    for (entry *e = blas->buckets[hash % BUCKETS]; e; e = e->next)
        if (memcmp(&e->key, key, sizeof *key) == 0) return e;
    return NULL;
}

static entry *add_entry(lk__cuda_blas *blas, const product_key *key)
{
    entry *e = (entry *)calloc(1, sizeof *e);
    if (!e) return NULL;
    entry **bucket = &blas->buckets[lk__cuda_host.hash64(key, sizeof *key, 0) % BUCKETS];
    e->key = *key;
    e->next = *bucket;
    return *bucket = e;
}

lk_status lk__cuda_blas_run(const lk__kernel_call *call, const lk__cuda_product *p)
{
    lk__cuda_device *device = cuda_device(call);
    lk__cuda_blas   *blas = find_blas(device);
    product_key      key = key_of(device, p);
    if (!blas || !supports_library(p, &key)) return LK_EUNSUPPORTED;
    entry *e = find_entry(blas, &key);
    if (!e) {
        if (!(e = add_entry(blas, &key))) return LK_ENOMEM;
        choose_first(blas, e, p);
    }
    return queue_entry(call, p, e);
}

/* ---- measuring ---- */

typedef struct bench {
    lk__kernel_call  call;
    lk__cuda_clock   clock;
    void            *memory;
    lk__cuda_product p; /* over the bench's own memory */
} bench;

static size_t matrix_bytes(int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t step, lk_dtype type)
{
    int64_t elements = (rows - 1) * ld + columns + (batch - 1) * step;
    return ((size_t)elements * cuda_size(type) + 255) / 256 * 256;
}

static bool open_bench(bench *x, lk__cuda_device *device, const lk__cuda_product *p)
{
    lk_dtype wide = p->type == LK_F64 ? LK_F64 : LK_F32;
    size_t a = matrix_bytes(p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k, p->a_ld, p->batch, p->a_batch,
                            p->type);
    size_t b = matrix_bytes(p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, p->b_ld, p->batch, p->b_batch,
                            p->type);
    size_t c = matrix_bytes(p->m, p->n, p->c_ld, p->batch, p->c_batch, p->type_c), saved = p->saved ? c : 0;
    size_t vector = matrix_bytes(1, p->m > p->n ? p->m : p->n, 0, 1, 0, wide),
           workspace = lk__cuda_product_bytes(p->m, p->n, p->batch);
    size_t bytes = a + b + c + saved + vector + workspace;
    memset(x, 0, sizeof *x);
    if (!clock_open(&x->clock) || !(x->memory = clock_memory(&x->clock, bytes))) return false;
    char *at = (char *)x->memory;
    x->p = *p;
    x->p.a = at, x->p.b = at + a, x->p.c = at + a + b;
    x->p.saved = p->saved ? at + a + b + c : NULL;
    x->p.addend = p->addend ? x->p.c : NULL;
    void *extra = at + a + b + c + saved;
    x->p.bias = p->bias ? extra : NULL;
    x->p.a_sums = p->a_sums ? extra : NULL;
    x->p.b_sums = p->b_sums ? extra : NULL;
    x->p.workspace = at + bytes - workspace;
    x->call.device = &device->base;
    x->call.stream = &x->clock.stream;
    return true;
}

static void close_bench(bench *x)
{
    clock_close(&x->clock);
    if (x->memory) (void)cudaFree(x->memory);
}

/* Of products with more work than this ours is not tried: it has no tensor cores. */
static const int64_t KERNEL_MOST = (int64_t)1 << 28;

static bool choose_fastest(lk__cuda_device *device, entry *e, const lk__cuda_product *p)
{
    bench                    x;
    static const product_way ways[] = {BY_LIBRARY, BY_LIBRARY_WITH_SUMS};
    float                    best = -1;
    bool                     measured = open_bench(&x, device, p);
    if (measured) {
        e->chosen.way = BY_NOTHING;
        for (int w = 0; w < (e->key.sums && can_sum(&x.p) ? 2 : 1); w++) {
            cublasLtMatmulHeuristicResult_t results[CANDIDATES];
            int                             count = find_algorithms(device->blas, e, &x.p, ways[w], results);
            for (int i = 0; i < count; i++) {
                float time =
                    clock_run(&x.clock, [&] { return queue_algorithm(&x.call, &x.p, e, &results[i].algo, ways[w]); });
                if (time < 0 || (best >= 0 && time >= best)) continue;
                best = time;
                e->chosen.way = ways[w];
                e->chosen.algorithm = results[i].algo;
            }
        }
        float time = -1;
        if (p->m * p->n * p->k * p->batch <= KERNEL_MOST || best < 0)
            time = clock_run(&x.clock, [&] { return lk__cuda_gemm_plain(&x.call, &x.p); });
        if (time >= 0 && (best < 0 || time < best)) e->chosen.way = BY_KERNEL;
    }
    close_bench(&x);
    return measured;
}

/* Describes the product in the way that was chosen. check: whether the library runs it so, within the planned
 * workspace. */
static bool describe_choice(lk__cuda_blas *blas, entry *e, const lk__cuda_product *p, bool check)
{
    bool                            sums = e->chosen.way == BY_LIBRARY_WITH_SUMS;
    cublasLtMatmulHeuristicResult_t checked;
    drop_descriptions(e);
    if (e->chosen.way != BY_LIBRARY && !sums) return e->chosen.way == BY_KERNEL || e->chosen.way == BY_NOTHING;
    if (!describe(e, p, sums ? CUBLASLT_EPILOGUE_DEFAULT : e->key.epilogue, false)) return false;
    return !check || (ok(lt.cublasLtMatmulAlgoCheck(blas->handle, e->operation, e->a, e->b, e->c, e->c,
                                                    &e->chosen.algorithm, &checked)) &&
                      checked.workspaceSize <= allowed_bytes(&e->key));
}

/* Takes a choice that was measured before, or given. *first: that it is the library's first. */
static bool take_choice(lk__cuda_device *device, entry *e, const lk__cuda_product *p, const lk__cuda_question *question,
                        bool *first)
{
    choice chosen;
    memset(&chosen, 0, sizeof chosen);
    lk__cuda_answer answer = lk__cuda_choice_find(device, question, &chosen, sizeof chosen);
    *first = answer == CHOICE_FIRST;
    if (*first) e->listed = false;
    if (answer == CHOICE_NONE || *first) return false;
    if (e->listed && memcmp(&chosen, &e->chosen, sizeof chosen) == 0) return true; /* it is described already */
    e->chosen = chosen;
    if (describe_choice(device->blas, e, p, answer == CHOICE_GIVEN)) return true;
    e->listed = false;
    if (answer == CHOICE_GIVEN) lk__cuda_choice_refuse(device, question);
    return false;
}

lk_status lk__cuda_blas_prepare(lk__device *base, const lk__cuda_product *p)
{
    lk__cuda_device *device = (lk__cuda_device *)base;
    lk__cuda_blas   *blas = find_blas(device);
    lk__cuda_product with = *p; /* operands that only say that they are there, at an address that is aligned */
    void            *there = (void *)4096;
    with.a = with.b = with.c = with.workspace = there;
    if (with.bias) with.bias = there;
    if (with.saved) with.saved = there;
    if (with.addend) with.addend = there;
    if (with.a_sums) with.a_sums = there;
    if (with.b_sums) with.b_sums = there;

    product_key key = key_of(device, &with);
    if (!blas || device->base.by_heuristic || !supports_library(&with, &key)) return LK_OK;
    entry *e = find_entry(blas, &key);
    char   library[64];
    snprintf(library, sizeof library, "cuBLASLt %zu", lt.version);
    lk__cuda_question question = {library, &key, sizeof key};
    if (!e && !(e = add_entry(blas, &key))) return LK_ENOMEM;
    bool first, known = take_choice(device, e, &with, &question, &first);
    first |= !known && !e->listed && !lk__cuda_choice_measures(device);
    if (!known && !e->listed && !first && choose_fastest(device, e, p)) {
        lk__cuda_choice_keep(device, &question, &e->chosen, sizeof e->chosen);
        known = describe_choice(blas, e, &with, false);
    }
    e->listed |= known;
    if (e->listed)
        lk__cuda_choice_use(device, &question, &e->chosen, sizeof e->chosen);
    else
        choose_first(blas, e, &with);
    if (first) lk__cuda_choice_first(device, &question);
    return LK_OK;
}

#endif
