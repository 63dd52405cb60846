/* cupti.cu - what ran on the GPU and when, from CUPTI's activity records: each kernel of a graph has one, with times by
 * the GPU's clock. The library is opened at run time. The declarations that we use are repeated here, since toolkits
 * install its headers separately; where the headers are found, the declarations are compared with them. CUPTI has one
 * set of callbacks per process, so only one device at a time uses it.
 *
 * Where the library is missing or refuses, lk__cuda_spans_begin says why, and the caller measures with events. */
#include "device/cuda/spans.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if !defined(LK_CUDA_EMULATED) && defined(__has_include)
#if __has_include(<cupti.h>)
#include <cupti.h>
#define COMPARE 1
#endif
#endif

/* ---- what is used of CUPTI ---- */

enum { MEMCPY = 1, MEMSET = 2, CONCURRENT_KERNEL = 10 };  /* CUpti_ActivityKind */
enum { FLUSH_FORCED = 1, RECORD_ALIGN = 8, OLDEST = 18 }; /* 18: CUDA 12.0 */

/* The beginnings of its records, which all versions since 12.0 have in common. */
#define RECORD __attribute__((packed, aligned(8)))
typedef struct RECORD kernel_record { /* CUpti_ActivityKernel9 and later */
    uint32_t    kind;
    uint8_t     cache, shared;
    uint16_t    registers;
    uint32_t    requested, executed;
    uint64_t    start, end, completed;
    uint32_t    device, context, stream;
    int32_t     grid[3], block[3], static_shared, dynamic_shared;
    uint32_t    local_each, local_total, correlation;
    int64_t     number;
    const char *name;
    void       *reserved;
    uint64_t    queued, submitted;
    uint8_t     launch, carveout[3];
    uint32_t    shared_executed;
    uint64_t    node; /* of a graph; 0: of none */
} kernel_record;

typedef struct RECORD copy_record { /* CUpti_ActivityMemcpy5 and later */
    uint32_t kind;
    uint8_t  direction, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, unused;
    void    *reserved;
    uint64_t node;
} copy_record;

typedef struct RECORD fill_record { /* CUpti_ActivityMemset4 and later */
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t unused;
    void    *reserved;
    uint64_t node;
} fill_record;

#if defined(COMPARE) && CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 140000 /* others name them in other ways */
typedef CUpti_ActivityKernel10 their_kernel;
typedef CUpti_ActivityMemcpy6  their_copy;
#define SAME(ours, mine, theirs, field) \
    static_assert(offsetof(ours, mine) == offsetof(theirs, field), "CUPTI's record has " #field " elsewhere")
SAME(kernel_record, start, their_kernel, start);
SAME(kernel_record, end, their_kernel, end);
SAME(kernel_record, device, their_kernel, deviceId);
SAME(kernel_record, correlation, their_kernel, correlationId);
SAME(kernel_record, name, their_kernel, name);
SAME(kernel_record, node, their_kernel, graphNodeId);
SAME(copy_record, direction, their_copy, copyKind);
SAME(copy_record, bytes, their_copy, bytes);
SAME(copy_record, start, their_copy, start);
SAME(copy_record, device, their_copy, deviceId);
SAME(copy_record, correlation, their_copy, correlationId);
SAME(copy_record, node, their_copy, graphNodeId);
SAME(fill_record, bytes, CUpti_ActivityMemset4, bytes);
SAME(fill_record, start, CUpti_ActivityMemset4, start);
SAME(fill_record, device, CUpti_ActivityMemset4, deviceId);
SAME(fill_record, correlation, CUpti_ActivityMemset4, correlationId);
SAME(fill_record, node, CUpti_ActivityMemset4, graphNodeId);
static_assert(MEMCPY == (int)CUPTI_ACTIVITY_KIND_MEMCPY && MEMSET == (int)CUPTI_ACTIVITY_KIND_MEMSET &&
                  CONCURRENT_KERNEL == (int)CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL &&
                  FLUSH_FORCED == (int)CUPTI_ACTIVITY_FLAG_FLUSH_FORCED,
              "CUPTI numbers its activities differently");
#endif

typedef void (*give_buffer)(uint8_t **buffer, size_t *bytes, size_t *most);
typedef void (*take_buffer)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);

/* X(name, parameters): results are 0, or an error. */
#define FUNCTIONS(X)                                                           \
    X(cuptiGetVersion, (uint32_t *))                                           \
    X(cuptiGetTimestamp, (uint64_t *))                                         \
    X(cuptiGetResultString, (int, const char **))                              \
    X(cuptiActivityRegisterCallbacks, (give_buffer, take_buffer))              \
    X(cuptiActivityEnable, (int))                                              \
    X(cuptiActivityDisable, (int))                                             \
    X(cuptiActivityFlushAll, (uint32_t))                                       \
    X(cuptiActivityGetNextRecord, (uint8_t *, size_t, void **))                \
    X(cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    bool     loaded;
    uint32_t version;
    char     why[256];
#define POINTER(name, parameters) int(*name) parameters;
    FUNCTIONS(POINTER)
#undef POINTER
} cupti;

/* ---- what is being collected ---- */

typedef struct short_name {
    struct short_name *next;
    const char        *full; /* CUPTI's */
    char               text[64];
} short_name;

struct lk__cuda_spans {
    lk__device_span *spans;
    size_t           count, capacity, dropped;
    int              number; /* of the GPU */
    uint64_t         origin; /* CUPTI's clock, and lk__now's, at the same time */
    double           origin_seconds;
    short_name      *names; /* outlive the spans */
    bool             lost;  /* no memory for some */
};

static pthread_mutex_t collect_lock = PTHREAD_MUTEX_INITIALIZER; /* held alone; guards the two below */
static lk__cuda_spans *collecting;
static bool            registered;

/* ---- the library ---- */

#if defined(LK_CUDA_EMULATED)

/* The tests' stand-in, test/cuda_emulated/cupti.cpp. */
void        *lk__emulated_cupti(const char *name);
static void *open_library(void) { return lk__emulated_cupti("cuptiGetVersion"); }
static void *find_function(void *, const char *name) { return lk__emulated_cupti(name); }

#else

static void *find_function(void *library, const char *name) { return dlsym(library, name); }

static void *open_library(void)
{
    /* One that is newer than the driver would refuse. */
    static const char *const names[] = {
        "libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
        "libcupti.so.12", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12", "/usr/local/cuda/lib64/libcupti.so.12"};
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) (void)cudaGetLastError();
    for (size_t i = driver && driver < 13000 ? 3 : 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

#endif

static void load_library(void)
{
    const char *wanted = lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_CUPTI);
    if (wanted && strcmp(wanted, "0") == 0) {
        snprintf(cupti.why, sizeof cupti.why, "LOCKSTEP_CUDA_CUPTI is 0");
        return;
    }
    void *library = open_library();
    if (!library) {
        snprintf(cupti.why, sizeof cupti.why,
                 "libcupti.so.13 or .12 was not found: add the toolkit's extras/CUPTI/lib64 to LD_LIBRARY_PATH");
        return;
    }
#define FIND(name, parameters)                                                       \
    if (!(cupti.name = (decltype(cupti.name))find_function(library, #name))) {       \
        snprintf(cupti.why, sizeof cupti.why, "this libcupti has no function " #name); \
        return;                                                                      \
    }
    FUNCTIONS(FIND)
#undef FIND
    if (cupti.cuptiGetVersion(&cupti.version) != 0 || cupti.version < OLDEST)
        snprintf(cupti.why, sizeof cupti.why, "CUPTI API version %u is older than CUDA 12.0's", cupti.version);
    else
        cupti.loaded = true;
}

void lk__cuda_cupti_text(char *text, size_t bytes)
{
    pthread_once(&once, load_library);
    if (!cupti.loaded)
        snprintf(text, bytes, "not used (%s)", cupti.why);
    else if (cupti.version >= 100000) /* from 13.0 on 130000 and so on; before, interfaces were counted */
        snprintf(text, bytes, "%u.%u", cupti.version / 10000, cupti.version / 100 % 100);
    else
        snprintf(text, bytes, "interface %u", cupti.version);
}

static const char *error_text(int error)
{
    const char *text = NULL;
    return cupti.cuptiGetResultString(error, &text) == 0 && text ? text : "unknown error";
}

/* ---- records ---- */

/* "attention_kernel" of "void attention_kernel<128, true>(…)". */
static void shorten_name(const char *full, char *to, size_t bytes)
{
    int   status = -1;
    char *plain = abi::__cxa_demangle(full, NULL, NULL, &status);
    char *begin = status == 0 && plain ? plain : (char *)full;
    if (strncmp(begin, "void ", 5) == 0) begin += 5;
    if (strncmp(begin, "(anonymous namespace)::", 23) == 0) begin += 23;
    size_t length = strcspn(begin, "<(");
    snprintf(to, bytes, "%.*s", (int)(length ? length : strlen(begin)), begin);
    free(plain);
}

static const char *name_of(lk__cuda_spans *s, const char *full)
{
    if (!full) return "kernel";
    for (short_name *n = s->names; n; n = n->next)
        if (n->full == full) return n->text;
    short_name *n = (short_name *)calloc(1, sizeof *n);
    if (!n) return "kernel";
    shorten_name(full, n->text, sizeof n->text);
    n->full = full;
    n->next = s->names;
    s->names = n;
    return n->text;
}

static const char *copy_name(int direction) /* CUpti_ActivityMemcpyKind */
{
    return direction == 1   ? "copy to the device"
           : direction == 2 ? "copy from the device"
           : direction == 8 ? "copy within the device"
                            : "copy";
}

static void add_span(lk__cuda_spans *s, lk__device_work work, uint32_t device, uint64_t start, uint64_t end,
                     uint64_t graph, uint64_t bytes, const char *name)
{
    if ((int)device != s->number || end == 0 || end < start) return; /* 0: it did not end */
    if (s->count == s->capacity) {
        size_t           more = s->capacity ? 2 * s->capacity : 16384;
        lk__device_span *grown = (lk__device_span *)realloc(s->spans, more * sizeof *grown);
        if (!grown) {
            s->lost = true;
            return;
        }
        s->spans = grown;
        s->capacity = more;
    }
    double begin = s->origin_seconds + 1e-9 * (double)(int64_t)(start - s->origin);
    s->spans[s->count++] =
        lk__device_span{begin, begin + 1e-9 * (double)(end - start), work, graph, (int64_t)bytes, name};
}

static void add_record(lk__cuda_spans *s, const void *record)
{
    uint32_t kind = *(const uint32_t *)record;
    if (kind == CONCURRENT_KERNEL) {
        const kernel_record *k = (const kernel_record *)record;
        add_span(s, LK__WORK_KERNEL, k->device, k->start, k->end, k->node ? k->correlation : 0, 0, name_of(s, k->name));
    } else if (kind == MEMCPY) {
        const copy_record *c = (const copy_record *)record;
        add_span(s, LK__WORK_COPY, c->device, c->start, c->end, c->node ? c->correlation : 0, c->bytes,
                 copy_name(c->direction));
    } else if (kind == MEMSET) {
        const fill_record *f = (const fill_record *)record;
        add_span(s, LK__WORK_FILL, f->device, f->start, f->end, f->node ? f->correlation : 0, f->bytes, "fill");
    }
}

static void request_buffer(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *bytes = (size_t)4 << 20;
    *most = 0; /* as many records as fit */
    *buffer = (uint8_t *)aligned_alloc(RECORD_ALIGN, *bytes);
    if (!*buffer) *bytes = 0; /* CUPTI counts what it drops */
}

static void complete_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t, size_t valid)
{
    void  *record = NULL;
    size_t dropped = 0;
    pthread_mutex_lock(&collect_lock);
    while (collecting && valid && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == 0)
        add_record(collecting, record);
    if (collecting && cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == 0)
        collecting->dropped += dropped;
    pthread_mutex_unlock(&collect_lock);
    free(buffer);
}

/* ---- beginning and ending ---- */

static double seconds_now(void) /* lk__now's clock */
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The closest of several pairs of readings. */
static int compare_clocks(lk__cuda_spans *s)
{
    double best = 1e9;
    for (int i = 0; i < 8; i++) {
        uint64_t stamp = 0;
        double   before = seconds_now();
        int      error = cupti.cuptiGetTimestamp(&stamp);
        double   after = seconds_now();
        if (error != 0) return error;
        if (after - before >= best) continue;
        best = after - before;
        s->origin = stamp;
        s->origin_seconds = (before + after) / 2;
    }
    return 0;
}

static void disable_records(void)
{
    (void)cupti.cuptiActivityDisable(CONCURRENT_KERNEL);
    (void)cupti.cuptiActivityDisable(MEMCPY);
    (void)cupti.cuptiActivityDisable(MEMSET);
}

static int enable_records(lk__cuda_spans *s)
{
    int error = registered ? 0 : cupti.cuptiActivityRegisterCallbacks(request_buffer, complete_buffer);
    if (error == 0) registered = true;
    if (error == 0) error = compare_clocks(s);
    if (error == 0) error = cupti.cuptiActivityEnable(CONCURRENT_KERNEL);
    if (error == 0) error = cupti.cuptiActivityEnable(MEMCPY);
    if (error == 0) error = cupti.cuptiActivityEnable(MEMSET);
    if (error != 0) disable_records();
    return error;
}

static void stop_collecting(void)
{
    pthread_mutex_lock(&collect_lock);
    collecting = NULL;
    pthread_mutex_unlock(&collect_lock);
}

lk_status lk__cuda_spans_begin(lk__device *d)
{
    lk__cuda_device *c = (lk__cuda_device *)d;
    pthread_once(&once, load_library);
    if (!cupti.loaded) return lk__cuda_host.fail(d->context, LK_EUNSUPPORTED, "%s", cupti.why);
    if (!c->spans && !(c->spans = (lk__cuda_spans *)calloc(1, sizeof *c->spans))) return LK_ENOMEM;
    c->spans->number = c->number;
    c->spans->count = c->spans->dropped = 0;
    c->spans->lost = false;
    pthread_mutex_lock(&collect_lock);
    bool busy = collecting != NULL;
    if (!busy) collecting = c->spans;
    pthread_mutex_unlock(&collect_lock);
    if (busy) return lk__cuda_host.fail(d->context, LK_EUNSUPPORTED, "another device of this process uses CUPTI");
    int error = enable_records(c->spans); /* without the lock: it may complete buffers */
    if (error == 0) return LK_OK;
    stop_collecting();
    return lk__cuda_host.fail(d->context, LK_EUNSUPPORTED, "CUPTI failed: %s (another profiler in this process?)",
                              error_text(error));
}

lk_status lk__cuda_spans_end(lk__device *d, lk__device_span **spans, size_t *count)
{
    lk__cuda_device *c = (lk__cuda_device *)d;
    *spans = NULL;
    *count = 0;
    int error = cupti.cuptiActivityFlushAll(FLUSH_FORCED);
    disable_records();
    stop_collecting();
    if (error != 0) return lk__cuda_host.fail(d->context, LK_EIO, "CUPTI returned no records: %s", error_text(error));
    if (c->spans->dropped || c->spans->lost)
        lk__cuda_host.log(d->context, LK_LOG_WARNING, "CUPTI dropped %zu records%s: some kernels are missing",
                          c->spans->dropped, c->spans->lost ? ", and ran out of memory for others" : "");
    *spans = c->spans->spans;
    *count = c->spans->count;
    return LK_OK;
}

void lk__cuda_spans_free(lk__cuda_device *c)
{
    lk__cuda_spans *s = c->spans;
    if (!s) return;
    pthread_mutex_lock(&collect_lock);
    if (collecting == s) collecting = NULL;
    pthread_mutex_unlock(&collect_lock);
    for (short_name *n = s->names, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    free(s->spans);
    free(s);
    c->spans = NULL;
}
