/* peer_threads.cpp - tests the kernels of queued collectives (device/cuda/peers.cu) with ranks that are threads of one
 * process, each of which runs its kernels at once, a block of one thread after the other: against lk__reduce, with
 * random delays, recorded and run again, and with ranks that never come, come late or are stopped. Compiled once more
 * with the thread sanitizer, which sees every access that the gates do not order.
 * ctest: timeout 300, ranks 8 */
#include "device/cuda/backend.h"
#include "device/cuda/peer_launch.h"

extern "C" {
#include "base/reduce.h"
}

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_THREAD__)
static const bool sanitized = true; /* fewer cases: it takes long, and types do not differ in what they access */
#else
static const bool sanitized = false;
#endif

static std::atomic<int> failures;
#define CHECK(condition, ...)                                                \
    do {                                                                     \
        if (condition) break;                                                \
        fprintf(stderr, "FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition); \
        fprintf(stderr, __VA_ARGS__);                                        \
        fprintf(stderr, "\n");                                               \
        failures++;                                                          \
    } while (0)

/* ---- what the kernels and the code that queues them need of the rest ---- */

thread_local uint3 threadIdx, blockIdx;
thread_local dim3  blockDim, gridDim;
lk__cuda_library   lk__cuda_host;

struct recorded_kernel {
    std::string name;
    unsigned    blocks;
    void (*run)(const void *call);
    std::vector<char> call;
};
static thread_local std::vector<recorded_kernel>            *recording; /* NULL: kernels run at once */
static thread_local std::function<void(const std::string &)> before;    /* of this rank: called before every kernel */

static void run_kernel(const recorded_kernel &kernel)
{
    if (before) before(kernel.name);
    gridDim = dim3(kernel.blocks);
    blockDim = dim3(1);
    for (unsigned i = 0; i < kernel.blocks; i++) {
        blockIdx = {i, 0, 0};
        kernel.run(kernel.call.data());
    }
}

void lk__emulated_queue_kernel(const char *name, dim3 grid, dim3, size_t, cudaStream_t, void (*run)(const void *call),
                               const void *call, size_t bytes)
{
    recorded_kernel kernel = {name, grid.x, run, std::vector<char>((const char *)call, (const char *)call + bytes)};
    if (recording)
        recording->push_back(kernel);
    else
        run_kernel(kernel);
}
void             lk__emulated_check_pointer(const char *, int, const void *) {}
int              lk__emulated_block_barrier(int value) { return value; }
cudaError_t      cudaGetLastError(void) { return cudaSuccess; }
cudaStream_t     lk__cuda_stream_of(lk__device *, lk__device_stream *) { return NULL; }
lk_status        lk__cuda_end(lk__device *, lk__device_stream *, cudaError_t, const char *) { return LK_OK; }
lk_status        lk__cuda_check(lk__device *, cudaError_t, const char *) { return LK_OK; }
static lk_status refuse(lk_context *, lk_status status, const char *, ...) { return status; }

/* ---- ranks ---- */

struct test_rank {
    std::vector<uint64_t> block;
    lk__peers_group       group = {};
    lk__peers_progress    progress = {};
    int32_t               halted = 0;
};

struct test_world {
    int                    n;
    std::vector<test_rank> ranks;
    explicit test_world(int size, int64_t deadline_ns = (int64_t)120 * 1000000000) : n(size), ranks((size_t)size)
    {
        for (test_rank &r : ranks) r.block.assign(LK__PEERS_BLOCK_BYTES / 8, 0);
        for (int i = 0; i < n; i++) {
            lk__peers_group *g = &ranks[(size_t)i].group;
            g->rank = i;
            g->ranks = n;
            g->deadline_ns = deadline_ns;
            g->progress = &ranks[(size_t)i].progress;
            for (int k = 0; k < n; k++) {
                g->flags[k] = (lk__peers_flags *)ranks[(size_t)k].block.data();
                g->scratch[k] = (char *)ranks[(size_t)k].block.data() + LK__PEERS_FLAG_BYTES;
            }
        }
    }
    void run(const std::function<void(int)> &body)
    {
        std::vector<std::thread> threads;
        for (int i = 0; i < n; i++)
            threads.emplace_back([&body, i] {
                before = nullptr;
                recording = NULL;
                body(i);
            });
        for (std::thread &t : threads) t.join();
    }
    lk__peers_call call(int rank, lk__peers_form form, lk_dtype type, size_t count)
    {
        lk__peers_call c = {};
        c.form = form;
        c.type = type;
        c.with = (1u << n) - 1;
        c.group = &ranks[(size_t)rank].group;
        c.halted = &ranks[(size_t)rank].halted;
        c.rank = rank;
        c.ranks = n;
        c.count = count;
        c.receives = true;
        return c;
    }
};

static lk_status enqueue(const lk__peers_call *call)
{
    lk__cuda_device device = {};
    device.processors = 2;
    return lk__cuda_peers_enqueue(&device.base, NULL, call);
}

/* ---- buffers ---- */

typedef std::vector<unsigned char> bytes;
typedef std::vector<bytes>         buffers; /* by rank */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
}

/* Numbers that are finite in every type, of different sizes, so that the order of sums shows. */
static void fill(bytes &b, size_t offset, lk_dtype type, size_t count, uint64_t seed)
{
    size_t size = cuda_size(type);
    b.assign(offset + count * size + 16, 0xEE);
    for (size_t i = 0; i < count; i++) {
        uint64_t x = mix(seed * 0x9E3779B97F4A7C15u + i + 1);
        double   d = ((double)(int64_t)(x >> 40) - 8388608.0) / (double)(1 << (x & 15));
        float    f = (float)d;
        uint32_t bits;
        uint16_t half = (uint16_t)((x & 0x83ff) | (10 + (x >> 20) % 10) << 10), narrow;
        memcpy(&bits, &f, 4);
        narrow = (uint16_t)(bits >> 16);
        const void *from = type == LK_F32    ? (const void *)&f
                           : type == LK_F64  ? (const void *)&d
                           : type == LK_BF16 ? (const void *)&narrow
                           : type == LK_F16  ? (const void *)&half
                                             : (const void *)&x;
        memcpy(b.data() + offset + i * size, from, size);
    }
}

static uint64_t hash(const bytes &b, uint64_t h)
{
    for (unsigned char c : b) h = (h ^ c) * 0x100000001B3u;
    return h;
}

static buffers make_buffers(int n, size_t offset, lk_dtype type, size_t count, uint64_t seed)
{
    buffers all((size_t)n);
    for (int i = 0; i < n; i++) fill(all[(size_t)i], offset, type, count, seed * 100 + (uint64_t)i);
    return all;
}

static bytes reduced(const buffers &in, size_t offset, lk_dtype type, size_t first, size_t count, lk_reduce_op op)
{
    std::vector<const void *> from;
    bytes                     out(count * cuda_size(type));
    for (const bytes &b : in) from.push_back(b.data() + offset + first * cuda_size(type));
    lk__reduce(out.data(), from.data(), (int)from.size(), count, type, op);
    return out;
}

static bool equal(const bytes &b, size_t at, const unsigned char *with, size_t count)
{
    return count == 0 || memcmp(b.data() + at, with, count) == 0;
}

static void set_mapped(lk__peers_call *c, buffers &send, buffers &recv, size_t offset)
{
    c->symmetric = true;
    for (int i = 0; i < c->ranks; i++) {
        c->peer_send[i] = (const char *)send[(size_t)i].data() + offset;
        c->peer_recv[i] = (char *)recv[(size_t)i].data() + offset;
    }
}

/* ---- results ---- */

struct reduction_case {
    int          n;
    lk_dtype     type;
    lk_reduce_op op;
    size_t       count, offset;
    bool         mapped, in_place;
};

static void check_all_reduce(const reduction_case &k)
{
    test_world world(k.n);
    buffers    send = make_buffers(k.n, k.offset, k.type, k.count, k.count), recv = send;
    bytes      expected = reduced(send, k.offset, k.type, 0, k.count, k.op);
    for (bytes &b : recv)
        if (!k.in_place) std::fill(b.begin(), b.end(), (unsigned char)0xEE);
    buffers &from = k.in_place ? recv : send;
    world.run([&](int rank) {
        lk__peers_call c = world.call(rank, LK__PEERS_REDUCE, k.type, k.count);
        c.reduce = k.op;
        c.send = from[(size_t)rank].data() + k.offset;
        c.recv = recv[(size_t)rank].data() + k.offset;
        if (k.mapped) set_mapped(&c, from, recv, k.offset);
        CHECK(enqueue(&c) == LK_OK, "rank %d", rank);
    });
    for (int i = 0; i < k.n; i++) {
        const bytes &b = recv[(size_t)i];
        CHECK(equal(b, k.offset, expected.data(), expected.size()),
              "rank %d of %d, type %d, op %d, %zu elements at %zu%s", i, k.n, (int)k.type, (int)k.op, k.count, k.offset,
              k.mapped ? ", mapped" : "");
        CHECK(b[k.offset + expected.size()] == 0xEE, "rank %d of %d wrote past the end", i, k.n);
        const lk__peers_progress &p = world.ranks[(size_t)i].progress;
        CHECK(p.began == 1 && p.ended == 1 && !p.failed, "began %d, ended %d", (int)p.began, (int)p.ended);
    }
}

/* All types, reductions and numbers of ranks, for few elements; then every way and awkward counts. */
static void sums_have_the_bits_of_shm(void)
{
    for (int n = 2; n <= LK__PEERS_MOST && !sanitized; n++)
        for (int type = 0; type < LK_DTYPE_COUNT; type++)
            for (int op = LK_SUM; op <= LK_PROD; op++) {
                size_t size = cuda_size((lk_dtype)type);
                check_all_reduce({n, (lk_dtype)type, (lk_reduce_op)op, 67, op % 2 ? size : 0, false, op % 2 == 0});
                if (n == 3 || n == 8)
                    check_all_reduce({n, (lk_dtype)type, (lk_reduce_op)op, 70001 / size, 0, true, op % 2 == 1});
            }
    for (int n : {2, 3, 5, 7, 8})
        for (size_t count : {1, 16383, 16385, 40001, 140003})
            for (int mapped = 0; mapped < 2 && (!sanitized || n == 3); mapped++)
                check_all_reduce({n, LK_F32, LK_AVG, count, mapped ? 0u : 4u, mapped != 0, count % 2 == 0});
    check_all_reduce({2, LK_BF16, LK_SUM, 2000003, 0, false, false}); /* several chunks */
    if (!sanitized) check_all_reduce({3, LK_F64, LK_SUM, 500001, 8, false, true});
}

/* NaN of both signs with payloads: those that come through keep their bits. */
static void nan_keeps_its_bits(lk_dtype type)
{
    const size_t count = 1003;
    for (lk_reduce_op op : {LK_MAX, LK_MIN}) {
        test_world world(3);
        buffers    all = make_buffers(3, 0, type, count, 13);
        for (size_t i = 0; i < count; i += 2) {
            uint16_t quiet = type == LK_BF16 ? 0x7fc0 : 0x7e00,
                     bits = (uint16_t)(quiet | (i & 8) << 12 | (i >> 1 & 31));
            memcpy(all[i % 3].data() + 2 * i, &bits, 2);
        }
        bytes expected = reduced(all, 0, type, 0, count, op);
        world.run([&](int rank) {
            lk__peers_call c = world.call(rank, LK__PEERS_REDUCE, type, count);
            c.reduce = op;
            c.send = c.recv = all[(size_t)rank].data();
            CHECK(enqueue(&c) == LK_OK, "rank %d", rank);
        });
        for (int i = 0; i < 3; i++)
            CHECK(equal(all[(size_t)i], 0, expected.data(), expected.size()), "rank %d, type %d", i, (int)type);
    }
}

/* Parts, with rows and without. */
static void check_parts(int n, size_t count, size_t row, bool mapped)
{
    test_world world(n);
    size_t     size = 4, whole = count * (size_t)n;
    buffers    send = make_buffers(n, 0, LK_F32, whole, 7), recv = make_buffers(n, 0, LK_F32, count, 8);
    buffers    gathered = make_buffers(n, 0, LK_F32, whole, 9);
    bytes      sum = reduced(send, 0, LK_F32, 0, whole, LK_SUM);
    world.run([&](int rank) {
        lk__peers_call c = world.call(rank, LK__PEERS_REDUCE_PARTS, LK_F32, count);
        c.row = row;
        c.send = send[(size_t)rank].data();
        c.recv = recv[(size_t)rank].data();
        if (mapped) set_mapped(&c, send, recv, 0);
        CHECK(enqueue(&c) == LK_OK, "reduce_scatter");
        c = world.call(rank, LK__PEERS_COPY, LK_F32, count);
        c.row = row;
        c.same = true;
        c.send = recv[(size_t)rank].data();
        c.recv = gathered[(size_t)rank].data();
        for (int i = 0; i < n; i++) {
            c.out_count[i] = c.in_count[i] = (int64_t)count;
            c.in_at[i] = row ? 0 : i * (int64_t)count;
        }
        if (mapped) set_mapped(&c, recv, gathered, 0);
        CHECK(enqueue(&c) == LK_OK, "all_gather");
    });
    for (int i = 0; i < n; i++) {
        for (size_t e = 0; e < count; e++) {
            size_t at = row ? lk__peers_row_at(row, n, i, e) : (size_t)i * count + e;
            if (equal(recv[(size_t)i], e * size, sum.data() + at * size, size)) continue;
            CHECK(false, "part of rank %d of %d, element %zu of %zu, row %zu", i, n, e, count, row);
            return;
        }
        CHECK(equal(gathered[(size_t)i], 0, sum.data(), sum.size()), "gathered by rank %d of %d, %zu, row %zu", i, n,
              count, row);
    }
}

/* all_to_all with counts: rank r sends 1 + (r * 5 + i * 3) % 7 times `unit` elements to rank i. */
static void check_exchange(int n, size_t unit, lk_dtype type, bool mapped)
{
    auto       sends = [&](int r, int i) { return (int64_t)(unit * (size_t)(1 + (r * 5 + i * 3) % 7)); };
    test_world world(n);
    size_t     size = cuda_size(type), whole = unit * 7 * (size_t)n;
    buffers    send = make_buffers(n, 0, type, whole, 3), recv = make_buffers(n, 0, type, whole, 4);
    auto       out_at = [&](int r, int i) {
        int64_t at = 0;
        for (int k = 0; k < i; k++) at += sends(r, k);
        return at;
    };
    auto in_at = [&](int r, int i) {
        int64_t at = 0;
        for (int k = 0; k < i; k++) at += sends(k, r);
        return at;
    };
    world.run([&](int rank) {
        lk__peers_call c = world.call(rank, LK__PEERS_COPY, type, unit * 7);
        c.send = send[(size_t)rank].data();
        c.recv = recv[(size_t)rank].data();
        for (int i = 0; i < n; i++) {
            c.out_count[i] = sends(rank, i);
            c.out_at[i] = out_at(rank, i);
            c.in_count[i] = sends(i, rank);
            c.in_at[i] = in_at(rank, i);
            c.peer_at[i] = out_at(i, rank);
        }
        if (mapped) set_mapped(&c, send, recv, 0);
        CHECK(enqueue(&c) == LK_OK, "all_to_all");
    });
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n; i++)
            CHECK(equal(recv[(size_t)r], (size_t)in_at(r, i) * size,
                        send[(size_t)i].data() + (size_t)out_at(i, r) * size, (size_t)sends(i, r) * size),
                  "rank %d from %d of %d", r, i, n);
}

/* Rank 0 sends to the last one, which sends back; the others call nothing. Then a barrier of all. */
static void check_pair(int n, size_t count)
{
    test_world world(n);
    buffers    send = make_buffers(n, 0, LK_I32, count, 5), recv = make_buffers(n, 0, LK_I32, count, 6);
    world.run([&](int rank) {
        for (int back = 0; back < 2 && (rank == 0 || rank == n - 1); back++) {
            int            other = n - 1 - rank;
            bool           sends = (rank == 0) == (back == 0);
            lk__peers_call c = world.call(rank, LK__PEERS_COPY, LK_I32, count);
            c.with = 1u | 1u << (n - 1);
            c.send = send[(size_t)rank].data();
            c.recv = recv[(size_t)rank].data();
            (sends ? c.out_count : c.in_count)[other] = (int64_t)count;
            CHECK(enqueue(&c) == LK_OK, "send and receive");
        }
        lk__peers_call c = world.call(rank, LK__PEERS_BARRIER, LK_U8, 0);
        CHECK(enqueue(&c) == LK_OK, "barrier");
    });
    for (int r : {0, n - 1})
        CHECK(equal(recv[(size_t)r], 0, send[(size_t)(n - 1 - r)].data(), count * 4), "rank %d of %d", r, n);
    lk__peers_call c = world.call(0, LK__PEERS_REDUCE, LK_F32, 1);
    c.with = 1;
    CHECK(enqueue(&c) == LK_EUNSUPPORTED, "a reduction of some ranks");
}

static void parts_and_copies(void)
{
    for (int n : {2, 3, 5, 8})
        for (int mapped = 0; mapped < 2 && (!sanitized || n == 3); mapped++) {
            check_parts(n, 1, 0, mapped != 0);
            check_parts(n, 35, 7, mapped != 0);
            check_parts(n, 20005, 0, mapped != 0);
            check_parts(n, 20000, 20, mapped != 0);
            check_parts(n, 300009, 3, mapped != 0);
            check_exchange(n, 1, LK_U8, mapped != 0);
            check_exchange(n, 5001, LK_BF16, mapped != 0);
            check_exchange(n, 30011, LK_F32, mapped != 0);
            check_pair(n, 77);
            check_pair(n, 50001);
        }
}

/* ---- one hash ---- */

/* Ten calls of all kinds, which depend on each other; the hash of what all ranks have in the end. */
static uint64_t run_sequence(int n, size_t count, uint64_t delay_ns, int runs)
{
    test_world world(n);
    buffers    a = make_buffers(n, 0, LK_F32, count * (size_t)n, 11), b = make_buffers(n, 0, LK_F32, count, 12);
    for (test_rank &r : world.ranks) r.group.delay_ns = delay_ns;
    world.run([&](int rank) {
        std::vector<recorded_kernel> graph;
        recording = &graph;
        for (int i = 0; i < 5; i++) {
            lk__peers_call c = world.call(rank, LK__PEERS_REDUCE_PARTS, LK_F32, count);
            c.reduce = LK_AVG;
            c.send = a[(size_t)rank].data();
            c.recv = b[(size_t)rank].data();
            CHECK(enqueue(&c) == LK_OK, "reduce_scatter");
            c = world.call(rank, LK__PEERS_REDUCE, LK_F32, count * (size_t)n);
            c.send = c.recv = a[(size_t)rank].data();
            c.reduce = i == 2 ? LK_MAX : LK_AVG;
            if (i % 2) set_mapped(&c, a, a, 0);
            CHECK(enqueue(&c) == LK_OK, "all_reduce");
            c = world.call(rank, LK__PEERS_COPY, LK_F32, count);
            c.same = true;
            c.send = b[(size_t)rank].data();
            c.recv = a[(size_t)rank].data();
            for (int k = 0; k < n; k++) {
                c.out_count[k] = c.in_count[k] = (int64_t)count;
                c.in_at[k] = (k + i) % n * (int64_t)count;
            }
            CHECK(enqueue(&c) == LK_OK, "all_gather");
        }
        recording = NULL;
        for (int i = 0; i < runs; i++)
            for (const recorded_kernel &kernel : graph) run_kernel(kernel);
        const lk__peers_progress &p = world.ranks[(size_t)rank].progress;
        CHECK(p.began == 15u * (unsigned)runs && p.ended == p.began, "%d of %d", (int)p.ended, 15 * runs);
    });
    uint64_t h = 1;
    for (int i = 0; i < n; i++) h = hash(b[(size_t)i], hash(a[(size_t)i], h));
    return h;
}

/* The same bits whatever the ranks' times; an odd number of runs of a recording with an odd number of waits. */
static void delays_change_nothing(int runs)
{
    for (int n : {2, 3, 5, 7})
        for (size_t count : {33, 9001}) {
            if (sanitized && count > 33 && n > 3) continue;
            uint64_t expected = run_sequence(n, count, 0, 3);
            for (int i = 0; i < runs / 8 + 1; i++)
                CHECK(run_sequence(n, count, 20000u + 10000u * (unsigned)i, 3) == expected, "run %d of %d ranks", i, n);
        }
}

/* ---- failures ---- */

struct failure_case {
    int    n, absent;
    size_t count;
    bool   mapped;
    /* What the absent rank does: never comes; comes when the others have given up; comes in time, but is stopped
     * before it writes. */
    enum { NEVER, LATE, STOPPED } kind;
};

static void check_failure(const failure_case &k)
{
    test_world       world(k.n, k.kind == failure_case::STOPPED ? 600000000 : 100000000);
    buffers          send = make_buffers(k.n, 0, LK_F32, k.count, 21), recv = make_buffers(k.n, 0, LK_F32, k.count, 22);
    buffers          untouched = recv;
    std::atomic<int> given_up(0), started(0);
    world.run([&](int rank) {
        bool absent = rank == k.absent;
        for (started++; started < k.n;) usleep(100); /* threads that start late are not the culprits */
        auto wait_for_others = [&] {
            while (given_up < k.n - 1) usleep(1000);
        };
        if (absent && k.kind == failure_case::NEVER) return;
        if (absent && k.kind == failure_case::LATE) wait_for_others();
        if (absent && k.kind == failure_case::STOPPED)
            before = [&](const std::string &name) {
                if (name.find("reduce_kernel") != std::string::npos) wait_for_others();
            };
        for (int i = 0; i < 3; i++) {
            lk__peers_call c = world.call(rank, LK__PEERS_REDUCE, LK_F32, k.count);
            c.id = 40u + (unsigned)i;
            c.send = send[(size_t)rank].data();
            c.recv = recv[(size_t)rank].data();
            if (k.mapped) set_mapped(&c, send, recv, 0);
            CHECK(enqueue(&c) == LK_OK, "rank %d", rank);
            if (i == 0 && !absent) given_up++;
        }
        before = nullptr;
        test_rank                &r = world.ranks[(size_t)rank];
        const lk__peers_progress &p = r.progress;
        CHECK(r.halted == LK__HALTED_BY_GROUP, "rank %d goes on", rank);
        r.halted = 0; /* as the host does behind a step whose loss is NaN */
        lk__peers_call again = world.call(rank, LK__PEERS_REDUCE, LK_F32, k.count);
        again.send = send[(size_t)rank].data();
        again.recv = recv[(size_t)rank].data();
        if (k.mapped) set_mapped(&again, send, recv, 0);
        CHECK(enqueue(&again) == LK_OK && r.halted == LK__HALTED_BY_GROUP, "rank %d goes on later", rank);
        CHECK(p.failed == 1 + k.absent, "rank %d names %d", rank, p.failed - 1);
        CHECK(p.failed_call == 40 && p.failed_number == 1 && p.began == 1 && p.ended == 0,
              "rank %d: call %d, number %d", rank, (int)p.failed_call, (int)p.failed_number);
    });
    for (int i = 0; i < k.n; i++) {
        if (k.kind != failure_case::STOPPED)
            CHECK(recv[(size_t)i] == untouched[(size_t)i], "rank %d of %d has changed", i, k.n);
        else /* peers had their part of the exchange; the slice of the stopped rank is nobody's */
            CHECK(equal(recv[(size_t)i], k.count * 2, untouched[(size_t)i].data() + k.count * 2, k.count * 2),
                  "the stopped rank wrote to rank %d", i);
    }
}

/* The host of one rank ends the waits, or another group has halted its step. */
static void check_order(int n, bool by_host)
{
    test_world world(n);
    double     begin = (double)lk__emulated_clock_ns();
    world.run([&](int rank) {
        test_rank &r = world.ranks[(size_t)rank];
        if (rank == 1 && by_host) {
            usleep(20000);
            host_store(&world.ranks[0].progress.stop, 1);
            return;
        }
        if (rank == 1) r.halted = LK__HALTED_BY_GROUP;
        lk__peers_call c = world.call(rank, LK__PEERS_BARRIER, LK_U8, 0);
        CHECK(enqueue(&c) == LK_OK, "barrier");
        CHECK(r.halted == LK__HALTED_BY_GROUP && r.progress.failed == 1 + LK__PEERS_STOPPED, "rank %d: %d", rank,
              r.progress.failed);
    });
    CHECK((double)lk__emulated_clock_ns() - begin < 100e9, "they waited until the deadline");
}

/* Two groups of the same ranks on two streams each: the last rank comes to neither. The wait with the longer deadline
 * ends with the other one. */
static void check_other_group(int n)
{
    test_world slow(n), quick(n, 100000000);
    double     begin = (double)lk__emulated_clock_ns();
    slow.run([&](int rank) {
        if (rank == n - 1) return;
        lk__peers_call waits = slow.call(rank, LK__PEERS_BARRIER, LK_U8, 0);
        lk__peers_call fails = quick.call(rank, LK__PEERS_BARRIER, LK_U8, 0);
        fails.halted = waits.halted;
        std::thread stream([&] {
            before = nullptr;
            recording = NULL;
            CHECK(enqueue(&fails) == LK_OK, "barrier");
        });
        CHECK(enqueue(&waits) == LK_OK, "barrier");
        stream.join();
        CHECK(quick.ranks[(size_t)rank].progress.failed == n, "rank %d names another", rank);
        CHECK(slow.ranks[(size_t)rank].progress.failed == 1 + LK__PEERS_STOPPED, "rank %d: %d", rank,
              slow.ranks[(size_t)rank].progress.failed);
        CHECK(slow.ranks[(size_t)rank].halted == LK__HALTED_BY_GROUP, "rank %d goes on", rank);
    });
    CHECK((double)lk__emulated_clock_ns() - begin < 100e9, "they waited until the longer deadline");
}

/* A rank says that it has arrived, and is not counted: its kernel ended in between. */
static void a_rank_lost_between_its_two_words_ends_the_wait(void)
{
    test_world world(3, 100000000);
    double     begin = (double)lk__emulated_clock_ns();
    world.ranks[0].group.flags[0]->gates[0].arrived[1] = 1;
    world.run([&](int rank) {
        lk__peers_call c = world.call(rank, LK__PEERS_BARRIER, LK_U8, 0);
        if (rank != 1) CHECK(enqueue(&c) == LK_OK, "barrier");
        if (rank != 1) CHECK(world.ranks[(size_t)rank].progress.failed == 1 + LK__PEERS_STOPPED, "rank %d", rank);
    });
    double seconds = ((double)lk__emulated_clock_ns() - begin) / 1e9;
    CHECK(seconds > 0.199 && seconds < 60, "%g s", seconds);
}

static void failed_waits_change_nothing(void)
{
    for (int n : {2, 3, 7})
        for (size_t count : {500, 40000})
            for (int mapped = 0; mapped < 2 && (!sanitized || n == 3); mapped++) {
                check_failure({n, n - 1, count, mapped != 0, failure_case::NEVER});
                check_failure({n, 0, count, mapped != 0, failure_case::LATE});
                check_failure({n, n / 2, count, mapped != 0, failure_case::LATE});
            }
    check_failure({2, 1, 40000, true, failure_case::STOPPED});
    check_order(3, true);
    check_order(3, false);
    check_other_group(2);
    check_other_group(5);
    a_rank_lost_between_its_two_words_ends_the_wait();
}

int main(int argc, char **argv)
{
    lk__cuda_host.fail = refuse;
    sums_have_the_bits_of_shm();
    nan_keeps_its_bits(LK_BF16);
    nan_keeps_its_bits(LK_F16);
    parts_and_copies();
    delays_change_nothing(argc > 1 ? atoi(argv[1]) : sanitized ? 0 : 16);
    failed_waits_change_nothing();
    printf("%d failures\n", (int)failures);
    return failures != 0;
}
