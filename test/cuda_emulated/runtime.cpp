/* runtime.cpp - the host's side of the emulated CUDA runtime: memory, streams, events, graphs.
 *
 * The device's memory is a region of addresses of its own, filled with 0xCD when it is allocated; the page behind an
 * allocation faults. Work waits in its stream until the host waits for it, the latest time at which a GPU may do it. A
 * captured stream's work goes into the graph's list; a launch of the graph does all of the list in the order in which
 * it was captured. */
#include "emulated_internal.h"

#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t running_graph; /* the number of its launch; 0: none */

struct job {
    std::function<void()> run;
    lk__emulated_work     work;
    template <typename F> job(F f, lk__emulated_work w = {}) : run(std::move(f)), work(w) {}
    void operator()() const
    {
        double begin = now();
        run();
        if (work.kind && lk__emulated_reports(work.kind)) lk__emulated_report(work, begin, now(), running_graph);
    }
};

struct CUgraph_st {
    std::vector<job> jobs;
};

struct capture {
    CUgraph_st              graph;
    CUstream_st            *origin;
    cudaStreamCaptureMode   mode;
    bool                    invalid = false;
    pthread_t               thread = pthread_self(); /* that began it */
    std::set<CUstream_st *> streams;                 /* that take part */
};

struct CUstream_st {
    bool                     blocking = true; /* ordered with the legacy stream */
    std::deque<job>          queue;
    uint64_t                 queued = 0, done = 0;
    std::shared_ptr<capture> captured;
    uint64_t captured_jobs = 0, joined = 0; /* of the capture: its own, and those that another stream waits for */
};
typedef std::shared_ptr<CUstream_st> stream_pointer;

struct CUevent_st {
    stream_pointer           stream; /* of the latest record; NULL: none */
    uint64_t                 ticket = 0;
    std::shared_ptr<capture> captured;
    CUstream_st             *captured_stream = NULL;
    uint64_t                 captured_ticket = 0;
    bool                     timed = true;
    std::shared_ptr<double>  time = std::make_shared<double>(0); /* seconds */
};

struct CUgraphExec_st {
    std::shared_ptr<std::vector<job>> jobs;
};

namespace {

std::recursive_mutex                          lock; /* guards everything here and in threads.cpp; a leaf */
typedef std::lock_guard<std::recursive_mutex> guard;

thread_local cudaError_t last_error;
thread_local int         current_device;
cudaError_t              broken; /* an error after which no call succeeds */

/* ---- errors and injected failures ---- */

cudaError_t result(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

struct injection {
    std::string what;
    long        number = 0;
    cudaError_t error = cudaSuccess;
    long        calls = 0;
};

injection *injected(void)
{
    static injection i;
    static bool      read = false;
    if (read) return &i;
    read = true;
    const char *text = getenv("LK_CUDA_EMULATED_FAIL");
    std::string s = text ? text : "";
    size_t      colon = s.find(':');
    if (colon == std::string::npos) return &i;
    i.what = s.substr(0, colon);
    i.number = strtol(s.c_str() + colon + 1, NULL, 10);
    size_t second = s.find(':', colon + 1);
    if (second != std::string::npos) i.error = (cudaError_t)strtol(s.c_str() + second + 1, NULL, 10);
    return &i;
}

/* The error of a call of this kind; cudaSuccess: none is injected here. */
cudaError_t inject(const char *what, cudaError_t usual)
{
    injection *i = injected();
    if (broken) return broken;
    if (i->what != what || ++i->calls != i->number) return cudaSuccess;
    cudaError_t error = i->error ? i->error : usual;
    if (error >= cudaErrorIllegalAddress && error < cudaErrorNotPermitted) broken = error;
    return error;
}
} // namespace

void lk__emulated_break(cudaError_t error)
{
    guard g(lock);
    broken = error;
}

namespace {

#define INJECT(what, usual)                                \
    do {                                                   \
        cudaError_t injected_error = inject(what, usual);  \
        if (injected_error) return result(injected_error); \
    } while (0)

/* ---- memory ---- */

const size_t REGION = (size_t)1 << 37; /* bytes of addresses */
const size_t ALIGN = 256;
const size_t KEPT = 1 << 20; /* bytes: what is freed and not larger keeps its pages, because new ones take long */

struct allocation {
    size_t pages, bytes; /* whole pages with the one that faults; as asked for */
    char  *memory;
    int    file;   /* of memory that other processes may map; -1: none */
    bool   mapped; /* it is another process's */
};
char                        *region;
std::map<size_t, allocation> allocations; /* by offset in the region */
std::map<char *, size_t>     pinned;
size_t                       device_used;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }
size_t device_total(void)
{
    static const char *const given = getenv("LK_CUDA_EMULATED_MEMORY");
    return given && *given ? strtoull(given, NULL, 10) : (size_t)16 << 30;
}

bool in_region(const void *p) { return region && (char *)p >= region && (char *)p < region + REGION; }

/* Whether the bytes are in one allocation of the device. */
bool is_device(const void *p, size_t bytes)
{
    if (!in_region(p)) return false;
    auto at = allocations.upper_bound((size_t)((char *)p - region));
    if (at == allocations.begin()) return false;
    const allocation &a = (--at)->second;
    return (char *)p >= a.memory && (char *)p + bytes <= a.memory + round_up(a.bytes, ALIGN);
}

bool is_pinned(const void *p, size_t bytes)
{
    auto at = pinned.upper_bound((char *)p);
    if (at == pinned.begin()) return false;
    --at;
    return (char *)p >= at->first && (char *)p + bytes <= at->first + at->second;
}

/* ---- streams ---- */

std::set<CUstream_st *>                 streams;
std::map<CUstream_st *, stream_pointer> owners;

CUstream_st *legacy(void)
{
    static stream_pointer stream = std::make_shared<CUstream_st>();
    if (!owners.count(stream.get())) owners[stream.get()] = stream;
    return stream.get();
}

CUstream_st *find_stream(cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return legacy();
    return streams.count(stream) ? stream : NULL;
}

bool eager(void)
{
    static const char *const given = getenv("LK_CUDA_EMULATED_EAGER");
    return given && *given && strcmp(given, "0") != 0;
}

/* Does the stream's work up to a ticket. */
void finish(CUstream_st *s, uint64_t ticket)
{
    while (s->done < ticket && !s->queue.empty()) {
        job next = std::move(s->queue.front());
        s->queue.pop_front();
        next();
        s->done++;
    }
}

void push(CUstream_st *s, job work)
{
    enum { MOST = 1024 }; /* then the host waits, as it does with a GPU */
    s->queue.push_back(std::move(work));
    s->queued++;
    if (eager() || s->queue.size() > MOST) finish(s, s->queued);
}

void push_wait(CUstream_st *s, CUstream_st *on)
{
    if (on->done >= on->queued) return;
    stream_pointer other = owners[on];
    uint64_t       ticket = on->queued;
    push(s, [other, ticket] { finish(other.get(), ticket); });
}

void finish_all(void)
{
    finish(legacy(), legacy()->queued);
    for (CUstream_st *s : streams) finish(s, s->queued);
}

/* Ends the capture of a stream; says why, because the caller learns it from cudaStreamEndCapture alone. */
cudaError_t invalidate_capture(CUstream_st *s, cudaError_t error, const char *what)
{
    if (s && s->captured) {
        if (!s->captured->invalid)
            fprintf(stderr, "cuda emulation: %s ends a capture: %s\n", what, cudaGetErrorString(error));
        s->captured->invalid = true;
    }
    return result(error);
}
#define invalidate(stream, error) invalidate_capture(stream, error, __func__)

/* A call that is not allowed while a stream is captured, as with a GPU: it also ends the capture. */
cudaError_t refuse_in_capture(const char *what)
{
    for (CUstream_st *s : streams)
        if (s->captured && (s->captured->mode == cudaStreamCaptureModeGlobal ||
                            (s->captured->mode == cudaStreamCaptureModeThreadLocal &&
                             pthread_equal(s->captured->thread, pthread_self()))))
            return invalidate_capture(s, cudaErrorStreamCaptureUnsupported, what);
    return cudaSuccess;
}

/* Gives a stream work: into the graph where it is captured, else into its queue. */
cudaError_t submit(cudaStream_t stream, job work)
{
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    if (s->captured) {
        if (s->captured->invalid) return result(cudaErrorStreamCaptureInvalidated);
        s->captured->graph.jobs.push_back(std::move(work));
        s->captured_jobs++;
        return cudaSuccess;
    }
    if (s == legacy()) {
        for (CUstream_st *other : streams) {
            if (!other->blocking) continue;
            if (other->captured) return invalidate(other, cudaErrorStreamCaptureImplicit);
            push_wait(s, other);
        }
    } else if (s->blocking) {
        push_wait(s, legacy());
    }
    push(s, std::move(work));
    return cudaSuccess;
}

} // namespace

/* ---- errors ---- */

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(name, number, text) \
    case name: return text;
        LK_EMULATED_ERRORS(TEXT)
#undef TEXT
    }
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name, number, text) \
    case name: return #name;
        LK_EMULATED_ERRORS(NAME)
#undef NAME
    }
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void) { return broken ? broken : last_error; }
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

/* ---- devices ---- */

static void make_uuid(int gpu, char bytes[16])
{
    memcpy(bytes, "lockstep-emulate", 16);
    bytes[15] = (char)('0' + gpu);
}

/* "GPU-" and the UUID, as CUDA_VISIBLE_DEVICES has it. */
static std::string uuid_text(int gpu)
{
    char bytes[16], two[3];
    make_uuid(gpu, bytes);
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        snprintf(two, sizeof two, "%02x", (unsigned char)bytes[i]);
        text += two;
    }
    return text;
}

/* The GPU that an entry of CUDA_VISIBLE_DEVICES names, by number or by the beginning of its UUID; -1: none. */
static int find_gpu(const std::string &entry, int gpus)
{
    for (int i = 0; i < gpus; i++)
        if (entry == std::to_string(i) || (entry.size() > 4 && uuid_text(i).compare(0, entry.size(), entry) == 0))
            return i;
    return -1;
}

/* By number in this process: the host's number of each GPU. As with CUDA, an invalid entry ends the list. */
static std::vector<int> list_visible_gpus(void)
{
    std::vector<int> list;
    const char      *given = getenv("LK_CUDA_EMULATED_GPUS"), *visible = given ? getenv("CUDA_VISIBLE_DEVICES") : NULL;
    injection       *i = injected();
    int              gpus = i->what == "devices" ? (int)i->number : given ? atoi(given) : 1;
    for (int gpu = 0; gpu < gpus && !visible; gpu++) list.push_back(gpu);
    for (const char *at = visible; at && *at;) {
        size_t length = strcspn(at, ",");
        int    gpu = find_gpu(std::string(at, length), gpus);
        if (gpu < 0) break;
        list.push_back(gpu);
        at += length + (at[length] == ',');
    }
    return list;
}

static const std::vector<int> &visible_gpus(void)
{
    static const std::vector<int> list = list_visible_gpus();
    return list;
}

static int device_count(void) { return (int)visible_gpus().size(); }

/* The runtime loads the driver, after which a forked process could not use it. Here a library of that name, beside the
 * module. */
static void load_driver(void)
{
    static bool loaded;
    Dl_info     own;
    if (loaded || !dladdr((void *)load_driver, &own) || !own.dli_fname) return;
    std::string path = own.dli_fname;
    loaded = dlopen((path.substr(0, path.rfind('/') + 1) + "libcuda.so.1").c_str(), RTLD_LAZY | RTLD_LOCAL) != NULL;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    guard g(lock);
    load_driver();
    injection *i = injected();
    *count = device_count();
    if (*count == 0) return result(i->error ? i->error : cudaErrorNoDevice);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    guard g(lock);
    INJECT("device", cudaErrorDevicesUnavailable);
    if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "CUDA emulation");
    make_uuid(visible_gpus()[(size_t)device], p->uuid.bytes);
    p->totalGlobalMem = device_total();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->maxThreadsPerMultiProcessor = 2048;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->pciBusID = visible_gpus()[(size_t)device] + 1;
    p->memoryBusWidth = 6144;
    p->l2CacheSize = 60 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaError_t    error = cudaGetDeviceProperties(&p, device);
    if (error) return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = 1000000; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    case cudaDevAttrComputeMode: *value = cudaComputeModeDefault; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrEccEnabled: *value = 0; break;
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrPageableMemoryAccess: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    default: return result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", visible_gpus()[(size_t)device] + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    guard g(lock);
    INJECT("sync", cudaErrorIllegalAddress);
    if (cudaError_t error = refuse_in_capture(__func__)) return error;
    finish_all();
    return result(broken);
}

cudaError_t cudaDeviceReset(void) { return cudaDeviceSynchronize(); }
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    guard g(lock);
    *total = device_total();
    *free = *total - device_used;
    return cudaSuccess;
}

/* ---- memory ---- */

/* Free addresses in the region, which is made now if there is none. */
static bool find_addresses(size_t pages, size_t *offset)
{
    if (!region) {
        void *p = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return false;
        region = (char *)p;
    }
    *offset = 0;
    for (const auto &entry : allocations) {
        if (entry.first - *offset >= pages) break;
        *offset = entry.first + entry.second.pages;
    }
    return *offset + pages <= REGION;
}

cudaError_t lk__emulated_malloc(void **memory, size_t bytes)
{
    guard g(lock);
    *memory = NULL;
    INJECT("malloc", cudaErrorMemoryAllocation);
    if (cudaError_t error = refuse_in_capture(__func__)) return error;
    if (bytes == 0) return cudaSuccess;
    if (bytes > device_total() || device_used + bytes > device_total()) return result(cudaErrorMemoryAllocation);
    size_t whole = round_up(bytes, ALIGN), pages = round_up(whole, page_size()) + page_size(), offset;
    if (!find_addresses(pages, &offset)) return result(cudaErrorMemoryAllocation);
    size_t usable = pages - page_size();
    if (mprotect(region + offset, usable, PROT_READ | PROT_WRITE) != 0) return result(cudaErrorMemoryAllocation);
    char *at = region + offset + usable - whole;
    memset(at, 0xCD, whole);
    allocations[offset] = allocation{pages, bytes, at, -1, false};
    device_used += bytes;
    *memory = at;
    return cudaSuccess;
}

/* Puts addresses without memory in place of shared memory. */
static void close_shared(allocation &a, char *begin)
{
    mmap(begin, a.pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (a.file >= 0) close(a.file);
    a.file = -1;
}

cudaError_t cudaFree(void *memory)
{
    guard g(lock);
    if (!memory) return cudaSuccess;
    if (cudaError_t error = refuse_in_capture(__func__)) return error;
    finish_all(); /* it waits for the device */
    for (auto at = allocations.begin(); at != allocations.end(); ++at) {
        if (at->second.memory != memory || at->second.mapped) continue;
        char *begin = region + at->first;
        device_used -= at->second.bytes;
        if (at->second.file >= 0)
            close_shared(at->second, begin);
        else if (at->second.pages > KEPT)
            madvise(begin, at->second.pages, MADV_DONTNEED);
        mprotect(begin, at->second.pages, PROT_NONE);
        allocations.erase(at);
        return result(broken);
    }
    return result(cudaErrorInvalidValue);
}

/* What a handle says. The file is opened through the exporting process, which keeps it open. */
struct shared_handle {
    int    process, file;
    size_t pages, bytes, at;
};

static allocation *find_allocation(const void *memory, char **begin)
{
    for (auto &entry : allocations)
        if (entry.second.memory == memory) {
            *begin = region + entry.first;
            return &entry.second;
        }
    return NULL;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    guard g(lock);
    INJECT("export", cudaErrorNotSupported);
    char       *begin;
    allocation *a = find_allocation(memory, &begin);
    if (!a || a->mapped) return result(cudaErrorInvalidValue);
    size_t usable = a->pages - page_size();
    if (a->file < 0) {
        finish_all(); /* nothing may write to it while it is moved */
        int file = memfd_create("lockstep-emulated-gpu", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)usable) != 0 || pwrite(file, begin, usable, 0) != (ssize_t)usable ||
            mmap(begin, usable, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
            if (file >= 0) close(file);
            return result(cudaErrorMemoryAllocation);
        }
        a->file = file;
    }
    shared_handle h = {(int)getpid(), a->file, a->pages, a->bytes, (size_t)(a->memory - begin)};
    *handle = {};
    memcpy(handle->reserved, &h, sizeof h);
    return cudaSuccess;
}

static bool drops_writes(void)
{
    static const char *const given = getenv("LK_CUDA_EMULATED_PEERS");
    return given && strcmp(given, "drop") == 0;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned)
{
    guard g(lock);
    *memory = NULL;
    INJECT("map", cudaErrorMapBufferObjectFailed);
    if (cudaError_t error = refuse_in_capture(__func__)) return error;
    shared_handle h;
    char          path[64];
    size_t        offset;
    memcpy(&h, handle.reserved, sizeof h);
    if (h.process == (int)getpid()) return result(cudaErrorInvalidValue); /* as CUDA */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.process, h.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || !find_addresses(h.pages, &offset)) {
        if (file >= 0) close(file);
        return result(cudaErrorMapBufferObjectFailed);
    }
    int   sharing = drops_writes() ? MAP_PRIVATE : MAP_SHARED;
    char *begin = region + offset;
    void *mapped = mmap(begin, h.pages - page_size(), PROT_READ | PROT_WRITE, sharing | MAP_FIXED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return result(cudaErrorMapBufferObjectFailed);
    allocations[offset] = allocation{h.pages, h.bytes, begin + h.at, -1, true};
    *memory = begin + h.at;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    guard g(lock);
    finish_all();
    char       *begin;
    allocation *a = find_allocation(memory, &begin);
    if (!a || !a->mapped) return result(cudaErrorInvalidValue);
    close_shared(*a, begin);
    allocations.erase((size_t)(begin - region));
    return cudaSuccess;
}

cudaError_t lk__emulated_malloc_host(void **memory, size_t bytes)
{
    guard g(lock);
    *memory = NULL;
    INJECT("host", cudaErrorMemoryAllocation);
    if (cudaError_t error = refuse_in_capture(__func__)) return error;
    if (bytes == 0) return cudaSuccess;
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes) != 0) return result(cudaErrorMemoryAllocation);
    memset(p, 0xCD, bytes);
    pinned[(char *)p] = bytes;
    *memory = p;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    guard g(lock);
    if (!memory) return cudaSuccess;
    auto at = pinned.find((char *)memory);
    if (at == pinned.end()) return result(cudaErrorInvalidValue);
    finish_all();
    pinned.erase(at);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    guard g(lock);
    INJECT("host", cudaErrorMemoryAllocation);
    if (is_pinned(memory, 1)) return result(cudaErrorInvalidValue);
    pinned[(char *)memory] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    guard g(lock);
    finish_all();
    return pinned.erase((char *)memory) ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *memory)
{
    guard g(lock);
    *a = {};
    a->type = is_device(memory, 1)   ? cudaMemoryTypeDevice
              : is_pinned(memory, 1) ? cudaMemoryTypeHost
                                     : cudaMemoryTypeUnregistered;
    if (a->type == cudaMemoryTypeDevice) a->devicePointer = (void *)memory;
    if (a->type != cudaMemoryTypeDevice) a->hostPointer = (void *)memory;
    return cudaSuccess;
}

/* ---- copies ---- */

/* Whether each side is where the kind says. */
static bool copy_is_valid(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault)
        return (!in_region(to) || is_device(to, bytes)) && (!in_region(from) || is_device(from, bytes));
    return (to_device ? is_device(to, bytes) : !in_region(to)) &&
           (from_device ? is_device(from, bytes) : !in_region(from));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    guard g(lock);
    INJECT("copy", cudaErrorIllegalAddress);
    if (bytes == 0) return cudaSuccess;
    if (!copy_is_valid(to, from, bytes, kind)) return result(cudaErrorInvalidValue);
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    bool              from_pageable = !in_region(from) && !is_pinned(from, bytes);
    bool              to_pageable = !in_region(to) && !is_pinned(to, bytes);
    lk__emulated_work about = {1, NULL, bytes, kind == cudaMemcpyDeviceToDevice ? 8 : (int)kind};
    job               whole([to, from, bytes] { memmove(to, from, bytes); }, about);
    if (s->captured) return submit(stream, whole);
    /* Pageable memory: the source may be reused at once, and the target has been written when the call returns. */
    if (from_pageable) {
        std::string copy((const char *)from, bytes);
        cudaError_t error = submit(stream, job([to, copy] { memcpy(to, copy.data(), copy.size()); }, about));
        if (error || !to_pageable) return error;
    } else if (cudaError_t error = submit(stream, whole)) {
        return error;
    }
    if (to_pageable) finish(s, s->queued);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    guard       g(lock);
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, cudaStreamLegacy);
    if (error) return error;
    finish(legacy(), legacy()->queued);
    return result(broken);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    guard g(lock);
    if (width > to_pitch || width > from_pitch) return result(cudaErrorInvalidValue);
    for (size_t i = 0; i < height; i++) {
        cudaError_t error =
            cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind, stream);
        if (error) return error;
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int byte, size_t bytes, cudaStream_t stream)
{
    guard g(lock);
    INJECT("copy", cudaErrorIllegalAddress);
    if (bytes == 0) return cudaSuccess;
    if (!is_device(memory, bytes) && !is_pinned(memory, bytes)) return result(cudaErrorInvalidValue);
    return submit(stream, job([memory, byte, bytes] { memset(memory, byte, bytes); }, {2, NULL, bytes, 0}));
}

cudaError_t cudaMemset(void *memory, int byte, size_t bytes)
{
    return cudaMemsetAsync(memory, byte, bytes, cudaStreamLegacy); /* it does not wait either */
}

/* ---- kernels ---- */

static size_t most_dynamic_shared = 48 << 10;

cudaError_t lk__emulated_function_attribute(cudaFuncAttribute attribute, int value)
{
    guard g(lock);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > 227 << 10) return result(cudaErrorInvalidValue);
    if ((size_t)value > most_dynamic_shared) most_dynamic_shared = (size_t)value;
    return cudaSuccess;
}

void lk__emulated_check_pointer(const char *name, int argument, const void *pointer)
{
    guard g(lock);
    if (!pointer || is_device(pointer, 0) || is_pinned(pointer, 0)) return;
    lk__emulated_abort("argument %d of kernel %s is %p, which is neither the device's memory nor pinned", argument,
                       name, pointer);
}

void lk__emulated_queue_kernel(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                               void (*run)(const void *call), const void *call, size_t bytes)
{
    guard    g(lock);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (cudaError_t error = inject("launch", cudaErrorLaunchFailure)) {
        result(error);
        return;
    }
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
        result(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared > most_dynamic_shared) {
        result(cudaErrorInvalidValue);
        return;
    }
    std::vector<max_align_t> copy((bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t));
    memcpy(copy.data(), call, bytes);
    submit(stream, job([=] { lk__emulated_run(name, grid, block, shared, run, copy.data()); }, {10, name, 0, 0}));
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    guard g(lock);
    INJECT("stream", cudaErrorMemoryAllocation);
    stream_pointer s = std::make_shared<CUstream_st>();
    s->blocking = !(flags & cudaStreamNonBlocking);
    streams.insert(s.get());
    owners[s.get()] = s;
    *stream = s.get();
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard g(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    finish(stream, stream->queued);
    streams.erase(stream);
    owners.erase(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    INJECT("sync", cudaErrorIllegalAddress);
    if (s->captured) return invalidate(s, cudaErrorStreamCaptureUnsupported);
    finish(s, s->queued);
    return result(broken);
}

/* Not ready where there was work, which is done now: who asks again learns that it is. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    if (broken) return result(broken);
    if (s->captured) return invalidate(s, cudaErrorStreamCaptureUnsupported);
    if (s->queue.empty()) return cudaSuccess;
    finish(s, s->queued);
    return cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    guard             g(lock);
    lk__emulated_work about = {-1};
    return submit(stream, job([function, data] { function(data); }, about));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    guard g(lock);
    INJECT("event", cudaErrorMemoryAllocation);
    *event = new CUevent_st();
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard g(lock);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s || !event) return result(cudaErrorInvalidResourceHandle);
    if (broken) return result(broken);
    event->captured = s->captured;
    if (s->captured) {
        if (s->captured->invalid) return result(cudaErrorStreamCaptureInvalidated);
        event->captured_stream = s;
        event->captured_ticket = s->captured_jobs;
        return cudaSuccess;
    }
    std::shared_ptr<double> time = event->time = std::make_shared<double>(0);
    cudaError_t             error = submit(stream, [time] { *time = now(); });
    event->stream = owners[s];
    event->ticket = s->queued;
    return error;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s || !event) return result(cudaErrorInvalidResourceHandle);
    if (broken) return result(broken);
    if (event->captured) { /* joins the capture, or orders two of its streams, whose jobs are in one list anyway */
        if (event->captured->invalid) return result(cudaErrorStreamCaptureInvalidated);
        if (s->captured && s->captured != event->captured) return invalidate(s, cudaErrorStreamCaptureMerge);
        if (!event->captured->streams.count(event->captured_stream)) return result(cudaErrorCapturedEvent);
        if (!s->captured) {
            s->captured = event->captured;
            s->captured->streams.insert(s);
            s->captured_jobs = 1; /* the wait itself must be joined */
            s->joined = 0;
        }
        if (event->captured_stream->joined < event->captured_ticket && event->captured_stream != s)
            event->captured_stream->joined = event->captured_ticket;
        return cudaSuccess;
    }
    if (s->captured) return invalidate(s, cudaErrorStreamCaptureIsolation);
    if (!event->stream) return cudaSuccess;
    stream_pointer on = event->stream;
    uint64_t       ticket = event->ticket;
    if (on.get() == s || on->done >= ticket) return cudaSuccess;
    return submit(stream, [on, ticket] { finish(on.get(), ticket); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard g(lock);
    INJECT("sync", cudaErrorIllegalAddress);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (event->captured) return invalidate(event->captured_stream, cudaErrorCapturedEvent);
    if (event->stream) finish(event->stream.get(), event->ticket);
    return result(broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard g(lock);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (broken) return result(broken);
    if (event->captured) return invalidate(event->captured_stream, cudaErrorCapturedEvent);
    if (!event->stream || event->stream->done >= event->ticket) return cudaSuccess;
    finish(event->stream.get(), event->ticket);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    guard g(lock);
    if (!from || !to || !from->timed || !to->timed || !from->stream || !to->stream)
        return result(cudaErrorInvalidResourceHandle);
    if (from->stream->done < from->ticket || to->stream->done < to->ticket) return result(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (*to->time - *from->time));
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    INJECT("capture", cudaErrorStreamCaptureUnsupported);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    if (s == legacy()) return result(cudaErrorStreamCaptureUnsupported);
    if (s->captured) return invalidate(s, cudaErrorInvalidValue);
    s->captured = std::make_shared<capture>();
    s->captured->origin = s;
    s->captured->mode = mode;
    s->captured->streams.insert(s);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    *graph = NULL;
    if (!s || !s->captured) return result(cudaErrorInvalidValue);
    std::shared_ptr<capture> c = s->captured;
    if (c->origin != s) return invalidate(s, cudaErrorStreamCaptureUnmatched);
    bool unjoined = false;
    for (CUstream_st *other : c->streams) {
        if (!streams.count(other)) continue;
        unjoined |= other != s && other->joined < other->captured_jobs;
        other->captured = NULL;
        other->captured_jobs = other->joined = 0;
    }
    c->streams.clear();
    if (c->invalid) return result(cudaErrorStreamCaptureInvalidated);
    if (unjoined) return result(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{c->graph};
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    *status = !s->captured           ? cudaStreamCaptureStatusNone
              : s->captured->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(current, *mode);
    return cudaSuccess;
}

static lk__emulated_nodes last_graph;

static void count_nodes(const CUgraph_st *graph)
{
    last_graph = {};
    for (const job &node : graph->jobs) {
        last_graph.kernels += node.work.kind == 10;
        last_graph.fills += node.work.kind == 2;
        last_graph.copies += node.work.kind == 1 && node.work.direction == 8;
        last_graph.host_copies += node.work.kind == 1 && node.work.direction != 8;
        last_graph.host_functions += node.work.kind < 0;
    }
}

lk__emulated_nodes lk__emulated_last_graph(void)
{
    guard g(lock);
    return last_graph;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long)
{
    guard g(lock);
    *executable = NULL;
    INJECT("instantiate", cudaErrorMemoryAllocation);
    if (!graph) return result(cudaErrorInvalidValue);
    count_nodes(graph);
    *executable = new CUgraphExec_st{std::make_shared<std::vector<job>>(graph->jobs)};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiate(executable, graph, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    guard g(lock);
    INJECT("graph", cudaErrorLaunchFailure);
    if (!executable) return result(cudaErrorInvalidValue);
    std::shared_ptr<std::vector<job>> jobs = executable->jobs;
    static uint32_t                   launches;
    uint32_t                          number = ++launches;
    return submit(stream, [jobs, number] {
        running_graph = number;
        for (const job &next : *jobs) next();
        running_graph = 0;
    });
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **, size_t *)
{
    guard        g(lock);
    CUstream_st *s = find_stream(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    *status = s->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    *id = 0;
    *graph = s->captured ? &s->captured->graph : NULL;
    return cudaSuccess;
}

/* A node is the address of its work, valid until more is captured. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    guard g(lock);
    for (size_t i = 0; nodes && i < *count && i < graph->jobs.size(); i++) nodes[i] = (cudaGraphNode_t)&graph->jobs[i];
    *count = graph->jobs.size();
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type)
{
    int kind = ((const job *)node)->work.kind;
    *type = kind == 10  ? cudaGraphNodeTypeKernel
            : kind == 1 ? cudaGraphNodeTypeMemcpy
            : kind == 2 ? cudaGraphNodeTypeMemset
            : kind < 0  ? cudaGraphNodeTypeHost
                        : cudaGraphNodeTypeEmpty;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    guard g(lock);
    delete executable;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    guard g(lock);
    delete graph;
    return cudaSuccess;
}
