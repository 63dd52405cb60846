/* cuda_peers.cu - the all_reduce of queued collectives (src/device/cuda/peers.cu) among processes on the GPUs of one
 * host, without the rest of the library: time and bandwidth by size, of graphs, with nccl-tests' columns, and the share
 * of the rate at which one GPU copies. Processes that share a GPU need MPS.
 *
 *   cuda_peers RANKS [GPUS]    ranks use GPU rank % GPUS, 1 by default
 *
 * Every wait of a kernel ends after 5 s, and the program after 120 s. */
#include "device/cuda/backend.h"
#include "device/cuda/peer_launch.h"

#include <algorithm>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

/* ---- what the code that queues needs of the rest of the module ---- */

bool                lk__cuda_early = true;
lk__cuda_library    lk__cuda_host;
static cudaStream_t stream;

cudaStream_t lk__cuda_stream_of(lk__device *, lk__device_stream *) { return stream; }
lk_status    lk__cuda_check(lk__device *, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return LK_OK;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    _exit(1);
}
lk_status lk__cuda_end(lk__device *device, lk__device_stream *, cudaError_t error, const char *what)
{
    return lk__cuda_check(device, error, what);
}
static void check(cudaError_t error, const char *what) { (void)lk__cuda_check(NULL, error, what); }

/* ---- ranks ---- */

enum { LARGEST = 256 << 20, SMALLEST = 8 << 10, RUNS = 7 };

struct shared_state { /* of the host */
    pthread_barrier_t  barrier;
    cudaIpcMemHandle_t block[LK__PEERS_MOST], data[LK__PEERS_MOST];
};

struct bench_rank {
    int                 rank, ranks;
    lk__cuda_device     device;
    lk__peers_group    *group;
    lk__peers_progress *progress;
    char               *block[LK__PEERS_MOST], *data[LK__PEERS_MOST];
};

static void map_all(shared_state *s, bench_rank *b, cudaIpcMemHandle_t *handles, char **at, size_t bytes)
{
    check(cudaMalloc((void **)&at[b->rank], bytes), "allocating");
    check(cudaMemset(at[b->rank], 0, bytes), "filling");
    check(cudaIpcGetMemHandle(&handles[b->rank], at[b->rank]), "sharing");
    check(cudaDeviceSynchronize(), "filling");
    pthread_barrier_wait(&s->barrier);
    for (int i = 0; i < b->ranks; i++)
        if (i != b->rank)
            check(cudaIpcOpenMemHandle((void **)&at[i], handles[i], cudaIpcMemLazyEnablePeerAccess), "mapping");
    pthread_barrier_wait(&s->barrier);
}

static void create_group(shared_state *s, bench_rank *b)
{
    lk__peers_group g = {};
    map_all(s, b, s->block, b->block, LK__PEERS_BLOCK_BYTES);
    map_all(s, b, s->data, b->data, LARGEST);
    check(cudaMallocHost((void **)&b->progress, sizeof *b->progress), "allocating");
    memset(b->progress, 0, sizeof *b->progress);
    g.rank = b->rank;
    g.ranks = b->ranks;
    g.deadline_ns = (int64_t)5 * 1000000000;
    g.progress = b->progress;
    for (int i = 0; i < b->ranks; i++) {
        g.flags[i] = (lk__peers_flags *)b->block[i];
        g.scratch[i] = b->block[i] + LK__PEERS_FLAG_BYTES;
    }
    check(cudaMalloc((void **)&b->group, sizeof g), "allocating");
    lk__peers_group *stopped;
    check(cudaMalloc((void **)&stopped, sizeof g), "allocating");
    check(cudaMemset(stopped, 1, sizeof g), "filling");
    check(cudaMemcpy(b->group, &g, sizeof g, cudaMemcpyHostToDevice), "copying");
    (void)lk__peer_load_kernels(&b->device.base, stream, stopped);
    check(cudaDeviceSynchronize(), "loading kernels");
}

/* ---- graphs ---- */

typedef enum work { COPY_RATE, MAPPED, STAGED } work;

static void queue_work(bench_rank *b, work kind, size_t bytes)
{
    lk__peers_call c = {};
    if (kind == COPY_RATE) {
        check(cudaMemcpyAsync(b->data[b->rank], b->data[b->rank] + bytes / 2, bytes / 2, cudaMemcpyDeviceToDevice,
                              stream),
              "copying");
        return;
    }
    c.form = LK__PEERS_REDUCE;
    c.type = LK_F32;
    c.with = (1u << b->ranks) - 1;
    c.group = b->group;
    c.rank = b->rank;
    c.ranks = b->ranks;
    c.count = bytes / 4;
    c.receives = true;
    c.send = c.recv = b->data[b->rank];
    c.symmetric = kind == MAPPED;
    for (int i = 0; i < b->ranks && c.symmetric; i++) {
        c.peer_send[i] = b->data[i];
        c.peer_recv[i] = b->data[i];
    }
    (void)lk__cuda_peers_enqueue(&b->device.base, NULL, &c);
}

/* Seconds of one of `times` of them in a graph: the median. `alone`: one rank at a time is measured. */
static double measure(shared_state *s, bench_rank *b, work kind, size_t bytes, int times)
{
    cudaGraph_t         graph;
    cudaGraphExec_t     run;
    cudaEvent_t         begin, end;
    std::vector<double> seconds;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording");
    for (int i = 0; i < times; i++) queue_work(b, kind, bytes);
    check(cudaStreamEndCapture(stream, &graph), "recording");
    check(cudaGraphInstantiate(&run, graph, 0), "instantiating");
    check(cudaGraphUpload(run, stream), "uploading");
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    check(cudaStreamSynchronize(stream), "uploading");
    for (int i = 0; i < RUNS; i++) {
        float ms = 0;
        pthread_barrier_wait(&s->barrier);
        if (kind != COPY_RATE || b->rank == 0) {
            check(cudaEventRecord(begin, stream), "event");
            check(cudaGraphLaunch(run, stream), "running");
            check(cudaEventRecord(end, stream), "event");
            check(cudaStreamSynchronize(stream), "running");
            check(cudaEventElapsedTime(&ms, begin, end), "event");
        }
        pthread_barrier_wait(&s->barrier);
        if (i > 1) seconds.push_back(ms * 1e-3 / times);
    }
    check(cudaGraphExecDestroy(run), "graph");
    check(cudaGraphDestroy(graph), "graph");
    std::sort(seconds.begin(), seconds.end());
    if (b->progress->failed) {
        fprintf(stderr, "rank %d: a wait failed; the culprit is rank %d\n", b->rank, b->progress->failed - 1);
        _exit(1);
    }
    return seconds[seconds.size() / 2];
}

/* Bytes that an all_reduce must read and write in all ranks' memory: 2NS (base/collective.h). */
static void report(bench_rank *b, work kind, size_t bytes, int times, double seconds, double copy_rate)
{
    double algorithm = (double)bytes / seconds / 1e9, bus = algorithm * 2 * (b->ranks - 1) / b->ranks;
    double moved = 2.0 * b->ranks * (double)bytes / seconds / 1e9;
    if (b->rank == 0)
        printf("%12zu %10zu   float     sum %8d %-9s %10.2f %9.2f %9.2f %10.1f %8.1f\n", bytes, bytes / 4, times,
               kind == MAPPED ? "symmetric" : "staged", seconds * 1e6, algorithm, bus, moved, 100 * moved / copy_rate);
}

static int run_rank(shared_state *s, int rank, int ranks, int gpus)
{
    bench_rank     b = {};
    cudaDeviceProp p;
    b.rank = rank;
    b.ranks = ranks;
    alarm(120);
    check(cudaSetDevice(rank % gpus), "choosing a GPU");
    check(cudaGetDeviceProperties(&p, rank % gpus), "reading properties");
    b.device.processors = p.multiProcessorCount;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    create_group(s, &b);
    double copy = (double)LARGEST / measure(s, &b, COPY_RATE, LARGEST, 10) / 1e9; /* read and written */
    if (rank == 0)
        printf("# %d ranks on %d GPU(s), %s; a copy of %d MiB reads and writes %.0f GB/s\n"
               "%12s %10s %7s %7s %8s %-9s %10s %9s %9s %10s %8s\n",
               ranks, gpus, p.name, LARGEST >> 21, copy, "# size (B)", "count", "type", "redop", "in graph", "way",
               "time (us)", "algbw", "busbw", "moved GB/s", "% copy");
    for (size_t bytes = SMALLEST; bytes <= LARGEST; bytes *= 4) {
        int times = bytes <= (1 << 20) ? 100 : 10;
        for (work kind : {MAPPED, STAGED}) report(&b, kind, bytes, times, measure(s, &b, kind, bytes, times), copy);
    }
    for (size_t bytes : {(size_t)25 << 20, (size_t)LARGEST})
        report(&b, MAPPED, bytes, 10, measure(s, &b, MAPPED, bytes, 10), copy);
    fflush(stdout);
    pthread_barrier_wait(&s->barrier);
    return 0;
}

int main(int argc, char **argv)
{
    int                   ranks = argc > 1 ? atoi(argv[1]) : 2, gpus = argc > 2 ? atoi(argv[2]) : 1, status, worst = 0;
    pthread_barrierattr_t attributes;
    shared_state *s = (shared_state *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 2 || ranks > LK__PEERS_MOST || gpus < 1 || s == MAP_FAILED) {
        fprintf(stderr, "usage: cuda_peers RANKS [GPUS], with 2 to %d ranks\n", LK__PEERS_MOST);
        return 2;
    }
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&s->barrier, &attributes, (unsigned)ranks);
    std::vector<pid_t> children;
    for (int i = 0; i < ranks; i++) {
        pid_t child = fork();
        if (child == 0) _exit(run_rank(s, i, ranks, gpus));
        if (child > 0) children.push_back(child);
    }
    /* A rank that ends in error leaves the others at a barrier of the host. */
    for (size_t i = 0; i < children.size(); i++) {
        if (wait(&status) < 0) break;
        if (status == 0) continue;
        worst = 1;
        sleep(6); /* kernels end by their deadline first */
        for (pid_t child : children) kill(child, SIGKILL);
    }
    return worst;
}
