/* test_comm_mixed.c - groups over simulated hosts: hierarchical reductions have the bits of the flat order for every
 * type and reduction and send less over the network, also those of which every rank of a host gets a slice; what is
 * gathered once on every host is whole there; and when a rank dies, stops, makes another call or aborts, all others on
 * all hosts report the same.
 * ctest: timeout 200, ranks 8 */
#define _GNU_SOURCE
#include "comm_ranks.h"

#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/hosts.h"
#include "comm/mixed.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 12 };

/* The result of a rank, for the test to check. */
typedef struct outcome {
    int        status;
    char       text[LK__COMM_TEXT];
    atomic_int rounds; /* done */
} outcome;

static outcome *outcomes; /* shared with the ranks */
static pid_t    processes[MOST];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_rank(int rank, int size, int each, const lk_comm_config *config, void (*function)(rank_test *t),
                    void *user)
{
    rank_test t = {.rank = rank, .size = size, .function = function, .user = user, .config = *config};
    char      host[32];
    snprintf(host, sizeof host, "host-%d", rank / each);
    setenv("LOCKSTEP_HOST_ID", host, 1);
    t.config.rank = rank;
    t.config.world = size;
    t.config.backend = "mixed";
    t.config.join_ms = 60000;
    rank_main(&t);
    return check_result();
}

static void start_ranks(int size, int each, const lk_comm_config *config, void (*function)(rank_test *t), void *user)
{
    static int     jobs;
    char           job[64];
    lk_comm_config defaults = LK_COMM_CONFIG_INIT;
    check_ranks_announced(size);
    snprintf(job, sizeof job, "mixed-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", job, 1);
    fflush(stdout);
    memset(outcomes, 0, MOST * sizeof *outcomes);
    for (int i = 0; i < size; i++) {
        processes[i] = fork();
        REQUIRE(processes[i] >= 0);
        if (processes[i] == 0) _exit(run_rank(i, size, each, config ? config : &defaults, function, user));
    }
}

static void end_ranks(int size, int killed)
{
    for (int i = 0; i < size; i++) {
        int status = -1;
        waitpid(processes[i], &status, 0);
        CHECK(i == killed ? WIFSIGNALED(status) : status == 0, "rank %d of %d exited with status %x", i, size, status);
    }
}

/* ---- bits ---- */

enum { PERIOD = 509 }; /* after which values repeat, because the oracle is slow */

static void reduce_all_types(rank_test *t)
{
    static const size_t counts[] = {40000, 33333, 70001};
    char               *send = malloc(70001 * 8 + 8), *recv = malloc(70001 * 8 + 8);
    uint64_t            seed = 1;
    for (int type = 0; type < LK_DTYPE_COUNT; type++)
        for (int op = 0; op <= LK_PROD; op++)
            for (int k = 0; k < 3; k++) {
                size_t n = counts[k], size = lk_dtype_size((lk_dtype)type);
                int    root = (int)(seed % (uint64_t)t->size);
                bool   rooted = k == 2, in_place = seed % 2;
                char  *out = in_place ? send : recv;
                seed++;
                fill(send, seed, t->rank, PERIOD, (lk_dtype)type, (lk_reduce_op)op);
                for (size_t i = PERIOD; i < n; i += PERIOD)
                    memcpy(send + i * size, send, (n - i < PERIOD ? n - i : PERIOD) * size);
                lk_status status =
                    rooted ? lk_comm_reduce(t->comm, send, out, n, (lk_dtype)type, (lk_reduce_op)op, root, NULL)
                           : lk_comm_all_reduce(t->comm, send, out, n, (lk_dtype)type, (lk_reduce_op)op, NULL);
                REQUIRE(status == LK_OK, "%s", lk_context_error(t->context));
                if (rooted && t->rank != root) continue;
                char want[PERIOD * 8];
                for (size_t i = 0; i < PERIOD; i++)
                    save(want, (lk_dtype)type, i, reduced(seed, t->size, i, (lk_dtype)type, (lk_reduce_op)op));
                for (size_t i = 0; i < n; i += PERIOD)
                    if (memcmp(out + i * size, want, (n - i < PERIOD ? n - i : PERIOD) * size) != 0) {
                        CHECK(false, "rank %d of %d: %s op %d × %zu%s: elements from %zu on", t->rank, t->size,
                              lk_dtype_name((lk_dtype)type), op, n, rooted ? " to a root" : "", i);
                        break;
                    }
            }
    free(send);
    free(recv);
}

static void layers_give_the_bits_of_the_flat_order_for_every_type_and_reduction(void)
{
    static const int worlds[][2] = {{4, 2}, {6, 2}, {8, 4}, {8, 2}, {5, 4}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        start_ranks(worlds[i][0], worlds[i][1], NULL, reduce_all_types, NULL);
        end_ranks(worlds[i][0], -1);
    }
}

/* ---- slices of ranks that hold something once on every host ---- */

static void check_slice(const rank_test *t, const char *slice, uint64_t seed, size_t n, lk_dtype type, lk_reduce_op op)
{
    char   want[PERIOD * 8];
    size_t size = lk_dtype_size(type), first = (size_t)lk_comm_local_rank(t->comm) * n;
    for (size_t i = 0; i < PERIOD; i++) save(want, type, i, reduced(seed, t->size, i, type, op));
    for (size_t i = 0; i < n; i++)
        if (memcmp(slice + i * size, want + (first + i) % PERIOD * size, size) != 0) {
            CHECK(false, "rank %d of %d: %s op %d × %zu: element %zu", t->rank, t->size, lk_dtype_name(type), op, n, i);
            return;
        }
}

static void scatter_one(rank_test *t, uint64_t seed, size_t n, lk_dtype type, lk_reduce_op op, bool in_place)
{
    size_t   each = (size_t)lk_comm_local_size(t->comm), size = lk_dtype_size(type);
    char    *send = malloc(each * n * size + 8), *other = malloc(n * size + 8);
    char    *slice = in_place ? send + (size_t)lk_comm_local_rank(t->comm) * n * size : other;
    lk_work *work = NULL;
    fill(send, seed, t->rank, each * n < PERIOD ? each * n : PERIOD, type, op);
    for (size_t i = PERIOD; i < each * n; i += PERIOD)
        memcpy(send + i * size, send, (each * n - i < PERIOD ? each * n - i : PERIOD) * size);
    lk_status status = lk__comm_reduce_scatter_host(t->comm, send, slice, n, type, op, &work);
    if (status >= 0) status = lk_work_wait(work);
    REQUIRE(status == LK_OK, "%s", lk_context_error(t->context));
    check_slice(t, slice, seed, n, type, op);
    free(send);
    free(other);
}

/* Over the ranks with the same index, in place: of whole numbers, which have one sum. */
static void reduce_across(rank_test *t)
{
    int64_t data[1000];
    int     each = lk_comm_local_size(t->comm), own = lk_comm_local_rank(t->comm), hosts = t->size / each;
    for (int i = 0; i < 1000; i++) data[i] = (int64_t)t->rank * 1000 + i;
    REQUIRE(lk__comm_all_reduce_across(t->comm, data, 1000, LK_I64, LK_SUM) == LK_OK, "%s",
            lk_context_error(t->context));
    for (int i = 0; i < 1000; i++) {
        int64_t want = 0;
        for (int h = 0; h < hosts; h++) want += (int64_t)(h * each + own) * 1000 + i;
        CHECK(data[i] == want, "rank %d, element %d", t->rank, i);
    }
    REQUIRE(lk__comm_barrier_host(t->comm) == LK_OK, "%s", lk_context_error(t->context));
}

static void scatter_all_types(rank_test *t)
{
    static const size_t counts[] = {0, 1, 509, 40001};
    uint64_t            seed = 100;
    CHECK(lk_comm_hosts(t->comm) == t->size / lk_comm_local_size(t->comm));
    for (int type = 0; type < LK_DTYPE_COUNT; type++)
        for (int op = 0; op <= LK_PROD; op++, seed++)
            scatter_one(t, seed, counts[seed % 4], (lk_dtype)type, (lk_reduce_op)op, seed / 4 % 2);
    scatter_one(t, seed, 1300000, LK_BF16, LK_SUM, true); /* in several chunks */
    scatter_one(t, seed, 40001, LK_F32, LK_SUM, true);
    reduce_across(t);
}

/* Three ranks of a host are no subtree of the order over six; hosts with different numbers of ranks have no ranks
 * across. */
static void refuse_scatter(rank_test *t)
{
    float    data[8] = {0};
    lk_work *work;
    bool     equal = t->size == 6;
    CHECK(lk__comm_reduce_scatter_host(t->comm, data, data, 1, LK_F32, LK_SUM, &work) == LK_EUNSUPPORTED && !work);
    CHECK(strstr(lk_context_error(t->context), equal ? "cannot reduce host by host" : "different numbers"), "%s",
          lk_context_error(t->context));
    if (equal)
        reduce_across(t);
    else
        CHECK(lk__comm_all_reduce_across(t->comm, data, 1, LK_F32, LK_SUM) == LK_EUNSUPPORTED &&
              !lk_comm_hosts(t->comm));
}

static void slices_have_the_bits_of_the_flat_order_for_every_type_and_reduction(void)
{
    static const int worlds[][2] = {{4, 2}, {6, 2}, {8, 4}, {4, 4}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        start_ranks(worlds[i][0], worlds[i][1], NULL, scatter_all_types, NULL);
        end_ranks(worlds[i][0], -1);
    }
    start_ranks(6, 3, NULL, refuse_scatter, NULL);
    end_ranks(6, -1);
    start_ranks(5, 3, NULL, refuse_scatter, NULL);
    end_ranks(5, -1);
}

/* ---- parts for every rank, and from every rank ---- */

static void scatter_parts(rank_test *t, uint64_t seed, size_t n, lk_dtype type, lk_reduce_op op, bool in_place)
{
    size_t size = lk_dtype_size(type), all = (size_t)t->size * n, first = (size_t)t->rank * n;
    char  *send = malloc(all * size + 8), *other = malloc(n * size + 8), want[PERIOD * 8];
    char  *part = in_place ? send + first * size : other;
    fill(send, seed, t->rank, PERIOD, type, op);
    for (size_t i = PERIOD; i < all; i += PERIOD)
        memcpy(send + i * size, send, (all - i < PERIOD ? all - i : PERIOD) * size);
    REQUIRE(lk_comm_reduce_scatter(t->comm, send, part, n, type, op, NULL) == LK_OK, "%s",
            lk_context_error(t->context));
    for (size_t i = 0; i < PERIOD; i++) save(want, type, i, reduced(seed, t->size, i, type, op));
    for (size_t i = 0; i < n; i++)
        if (memcmp(part + i * size, want + (first + i) % PERIOD * size, size) != 0) {
            CHECK(false, "rank %d of %d: %s op %d × %zu: element %zu", t->rank, t->size, lk_dtype_name(type), op, n, i);
            break;
        }
    free(send);
    free(other);
}

static void move_parts(rank_test *t, size_t n)
{
    int32_t *all = calloc((size_t)t->size * n, sizeof *all), *own = all + (size_t)t->rank * n;
    for (size_t i = 0; i < n; i++) own[i] = (int32_t)(i * 7 + (size_t)t->rank);
    REQUIRE(lk_comm_all_gather(t->comm, own, all, n, LK_I32, NULL) == LK_OK, "%s", lk_context_error(t->context));
    for (size_t i = 0; i < (size_t)t->size * n; i++)
        if (all[i] != (int32_t)(i % n * 7 + i / n)) {
            CHECK(false, "rank %d of %d: %zu gathered: element %zu", t->rank, t->size, n, i);
            break;
        }
    for (int root = 0; root < t->size; root++) {
        for (size_t i = 0; i < n; i++) own[i] = (int32_t)i + (t->rank == root ? root : -1000);
        REQUIRE(lk_comm_broadcast(t->comm, own, n, LK_I32, root, NULL) == LK_OK, "%s", lk_context_error(t->context));
        for (size_t i = 0; i < n; i += 997) CHECK(own[i] == (int32_t)i + root, "rank %d, root %d", t->rank, root);
    }
    free(all);
}

static void exchange_parts(rank_test *t)
{
    static const size_t counts[] = {33333, 9001, 509};
    uint64_t            seed = 300;
    for (int type = 0; type < LK_DTYPE_COUNT; type++)
        for (int op = 0; op <= LK_PROD; op++, seed++)
            scatter_parts(t, seed, counts[seed % 3], (lk_dtype)type, (lk_reduce_op)op, seed / 3 % 2);
    scatter_parts(t, seed, 700001, LK_BF16, LK_SUM, true); /* in several chunks */
    move_parts(t, 33333);
    move_parts(t, 12);
}

static void parts_have_the_bits_of_the_flat_order_for_every_type_and_reduction(void)
{
    static const int worlds[][2] = {{4, 2}, {6, 3}, {6, 2}, {8, 4}, {5, 3}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        start_ranks(worlds[i][0], worlds[i][1], NULL, exchange_parts, NULL);
        end_ranks(worlds[i][0], -1);
    }
}

/* ---- gathered once on every host ---- */

/* The memory of `count` elements of every rank, of which each rank of the host has allocated as much as the others. */
static int32_t *host_copy(rank_test *t, size_t count, void **part)
{
    size_t each = (size_t)lk_comm_local_size(t->comm);
    REQUIRE(lk_comm_alloc(t->comm, ((size_t)t->size * count * 4 + each - 1) / each, part) == LK_OK, "%s",
            lk_context_error(t->context));
    return (int32_t *)lk__comm_peer(t->comm, *part, 0);
}

/* A rank that is late still reads what the round before has gathered. */
static void gather_on_hosts(rank_test *t)
{
    static const size_t counts[] = {0, 1, 509, 40001};
    void               *part;
    int32_t            *all = host_copy(t, 40001, &part), *mine = malloc(40001 * 4);
    for (int round = 0; round < 40; round++) {
        size_t   n = counts[round % 4], first = (size_t)t->rank * n, wrong = 0;
        bool     in_place = round % 3 == 2; /* the part is written first: no rank may read it any more */
        lk_work *work = NULL;
        if (in_place) REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
        int32_t *own = in_place ? all + first : mine;
        for (size_t i = 0; i < n; i++) own[i] = (int32_t)((first + i) * 31 + (size_t)round);
        lk_status status = lk__comm_all_gather_host(t->comm, own, all, n, LK_I32, round % 2 ? &work : NULL);
        if (status >= 0 && work) status = lk_work_wait(work);
        REQUIRE(status == LK_OK, "%s", lk_context_error(t->context));
        if (number_bits((uint64_t)t->rank, (uint64_t)round) % 8 == 0) usleep(2000);
        for (size_t i = 0; i < (size_t)t->size * n; i++) wrong += all[i] != (int32_t)(i * 31 + (size_t)round);
        CHECK(wrong == 0, "rank %d of %d, round %d: %zu of %zu elements", t->rank, t->size, round, wrong,
              (size_t)t->size * n);
    }
    lk_comm_release(t->comm, part);
    free(mine);
}

static void refuse_gather(rank_test *t)
{
    int32_t  own = 0, all[8];
    lk_work *work;
    CHECK(lk__comm_all_gather_host(t->comm, &own, all, 1, LK_I32, &work) == LK_EUNSUPPORTED && !work);
    CHECK(strstr(lk_context_error(t->context), "different numbers"), "%s", lk_context_error(t->context));
}

static void every_host_has_one_copy_of_what_is_gathered(void)
{
    static const int worlds[][2] = {{4, 2}, {6, 3}, {6, 2}, {8, 4}, {4, 4}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        start_ranks(worlds[i][0], worlds[i][1], NULL, gather_on_hosts, NULL);
        end_ranks(worlds[i][0], -1);
    }
    start_ranks(5, 3, NULL, refuse_gather, NULL);
    end_ranks(5, -1);
}

/* Bytes that this rank has sent to other hosts. */
static uint64_t sent_by_network(const rank_test *t)
{
    const lk__comm_mixed *m = t->comm->state;
    return lk__comm_sent(m->groups[LK__FLAT]) + lk__comm_sent(m->groups[LK__ACROSS]);
}

/* A rank sends one part to the other host, what it has or the sum within its own host; flat it would be to every rank
 * there, and the others' through the network, too. */
static void count_parts(rank_test *t)
{
    enum { COUNT = 1 << 18 };
    float   *all = calloc((size_t)t->size * COUNT, 4), *own = all + (size_t)t->rank * COUNT;
    uint64_t before = sent_by_network(t);
    REQUIRE(lk_comm_all_gather(t->comm, own, all, COUNT, LK_F32, NULL) == LK_OK);
    uint64_t gathered = sent_by_network(t);
    REQUIRE(lk_comm_reduce_scatter(t->comm, all, own, COUNT, LK_F32, LK_SUM, NULL) == LK_OK);
    double parts[] = {(double)(gathered - before) / (COUNT * 4), (double)(sent_by_network(t) - gathered) / (COUNT * 4)};
    CHECK(parts[0] < 1.01, "rank %d of %d sent %.2f parts", t->rank, t->size, parts[0]);
    CHECK(parts[1] < 1.01 || t->size == 6, "rank %d of %d sent %.2f parts to be summed", t->rank, t->size, parts[1]);
    free(all);
}

static void parts_cross_hosts_once(void)
{
    start_ranks(6, 3, NULL, count_parts, NULL);
    end_ranks(6, -1);
    start_ranks(8, 4, NULL, count_parts, NULL);
    end_ranks(8, -1);
}

/* Eight ranks, four per host: 1 × the buffer within the hosts, a quarter across them; flat it would be 1.75 ×. */
static void count_layered(rank_test *t)
{
    enum { COUNT = 1 << 20 };
    void *memory;
    REQUIRE(lk_comm_alloc(t->comm, COUNT * 4, &memory) == LK_OK, "%s", lk_context_error(t->context));
    float *ordinary = calloc(COUNT, 4);
    for (int k = 0; k < 2; k++) {
        uint64_t before = lk__comm_sent(t->comm);
        REQUIRE(lk_comm_all_reduce(t->comm, k ? memory : ordinary, k ? memory : ordinary, COUNT, LK_F32, LK_SUM,
                                   NULL) == LK_OK);
        uint64_t sent = lk__comm_sent(t->comm) - before;
        CHECK(sent <= COUNT * 4 * 1.26, "rank %d sent %llu bytes", t->rank, (unsigned long long)sent);
    }
    free(ordinary);
}

static void layers_send_less_over_the_network(void)
{
    start_ranks(8, 4, NULL, count_layered, NULL);
    end_ranks(8, -1);
}

/* ---- faults ---- */

typedef enum fault {
    MISMATCHES,
    MISMATCHES_WITHIN,
    CROSSES_WITHIN,
    CROSSES_HOSTS,
    CROSSES_LATER,
    DIES,
    STOPS,
    ABORTS,
    LEAVES,
    DIES_INSIDE,
    DIES_ON_ITS_HOST, /* the others wait for the ranks of their host, and exchange slices */
    DIES_ACROSS,      /* for the ranks with their index, and for those of their host */
    DIES_GATHERING    /* for both, in one call */
} fault;

static lk_status call_all(rank_test *t, fault what, float *data, size_t n, float *whole)
{
    size_t    slice = n / (size_t)lk_comm_local_size(t->comm);
    float    *own = data + (size_t)lk_comm_local_rank(t->comm) * slice;
    lk_status status;
    if (what == DIES_GATHERING) return lk__comm_all_gather_host(t->comm, data, whole, n, LK_F32, NULL);
    if (what < DIES_ON_ITS_HOST) return lk_comm_all_reduce(t->comm, data, data, n, LK_F32, LK_SUM, NULL);
    if (what == DIES_ACROSS)
        status = lk__comm_all_reduce_across(t->comm, own, slice, LK_F32, LK_SUM);
    else
        status = lk__comm_reduce_scatter_host(t->comm, data, own, slice, LK_F32, LK_SUM, NULL);
    for (int i = 0; i < 3 && status >= 0; i++) status = lk__comm_barrier_host(t->comm);
    return status;
}

/* The faulty rank is the last but one; all others call until one fails. */
static void run_with_fault(rank_test *t)
{
    fault     what = *(fault *)t->user;
    outcome  *mine = &outcomes[t->rank];
    size_t    count = what == DIES_INSIDE ? 1000000 : 100000;
    float    *data = calloc(count + 1, 4);
    bool      faulty = t->rank == t->size - 2;
    void     *part;
    float    *whole = what == DIES_GATHERING ? (float *)host_copy(t, count, &part) : NULL;
    lk_status status = LK_OK;
    for (int round = 0; status >= 0 && round < 100000; round++) {
        size_t n = count;
        if (round == 30 && faulty) {
            if (what == MISMATCHES) n = 99999;
            if (what == DIES) raise(SIGKILL);
            if (what == STOPS) raise(SIGSTOP);
            if (what == ABORTS) lk_comm_abort(t->comm, "no more");
            if (what == LEAVES) break;
        }
        if (round == 30 && faulty && what == MISMATCHES_WITHIN) {
            status = lk_comm_broadcast(t->comm, data, n, LK_F32, 0, NULL);
            continue;
        }
        if (round == 30 && faulty && what >= CROSSES_WITHIN && what <= CROSSES_LATER) { /* a receive without a send */
            lk_work *work = NULL;
            status = lk_comm_recv(t->comm, data, 3, LK_F32, what == CROSSES_HOSTS ? 0 : t->rank + 1, 4,
                                  what == CROSSES_LATER ? &work : NULL);
            if (work) status = lk_work_wait(work);
            continue;
        }
        status = call_all(t, what, data, n, whole);
        atomic_fetch_add(&mine->rounds, 1);
    }
    mine->status = status;
    snprintf(mine->text, sizeof mine->text, "%s", lk_comm_error(t->comm));
    if (status < 0) CHECK(lk_comm_barrier(t->comm, NULL) == status, "a later call fails differently");
    free(data);
}

/* Until every rank has joined and done a round, however long joining takes. */
static void await_first_round(int size)
{
    for (int i = 0; i < size; i++) {
        siginfo_t ended = {0};
        while (!atomic_load(&outcomes[i].rounds) && !ended.si_pid) {
            usleep(1000);
            waitid(P_PID, (id_t)processes[i], &ended, WEXITED | WNOHANG | WNOWAIT);
        }
    }
}

static void expect_everywhere(fault what, int size, int each, lk_status status, const char *expected)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    char           name[32];
    if (what == STOPS) config.timeout_ms = 1500;
    start_ranks(size, each, &config, run_with_fault, &what);
    if (what >= DIES_INSIDE) { /* somewhere in one of the layers, most of the time */
        await_first_round(size);
        usleep((useconds_t)(number_bits((uint64_t)each, (uint64_t)lrint(now() * 1e6)) % 200000));
        kill(processes[size - 2], SIGKILL);
    }
    if (what == STOPS) { /* it is killed once the others have ended */
        for (int i = 0; i < size; i++)
            if (i != size - 2) {
                int ended = -1;
                waitpid(processes[i], &ended, 0);
                CHECK(ended == 0, "rank %d exited with status %x", i, ended);
            }
        kill(processes[size - 2], SIGKILL);
        waitpid(processes[size - 2], NULL, 0);
    } else {
        end_ranks(size, what == DIES || what >= DIES_INSIDE ? size - 2 : -1);
    }
    snprintf(name, sizeof name, "rank %d", size - 2);
    for (int i = 0; i < size; i++) {
        outcome *o = &outcomes[i];
        if (i == size - 2 && what > CROSSES_LATER && what != ABORTS) continue;
        CHECK(o->status == status, "rank %d: status %d: %s", i, o->status, o->text);
        CHECK(strstr(o->text, name) && strstr(o->text, expected), "rank %d: %s", i, o->text);
    }
}

static void all_hosts_report_the_faulty_rank(void)
{
    for (int each = 2; each <= 4; each += 2) {
        expect_everywhere(MISMATCHES, 8, each, LK_EMISMATCH, "99999");
        expect_everywhere(MISMATCHES_WITHIN, 8, each, LK_EMISMATCH, "broadcast");
        expect_everywhere(CROSSES_WITHIN, 8, each, LK_EMISMATCH, "waits for rank 7 in recv f32 × 3 from rank 7, tag 4");
        expect_everywhere(CROSSES_HOSTS, 8, each, LK_EMISMATCH, "waits for rank 0 in recv f32 × 3 from rank 0, tag 4");
        expect_everywhere(CROSSES_LATER, 8, each, LK_EMISMATCH, "while rank 7 waits for rank 6 in #");
        expect_everywhere(DIES, 8, each, LK_EIO, "died");
        for (int round = 0; round < 3; round++) {
            expect_everywhere(DIES_INSIDE, 8, each, LK_EIO, "died");
            expect_everywhere(DIES_ON_ITS_HOST, 8, each, LK_EIO, "died");
            expect_everywhere(DIES_ACROSS, 8, each, LK_EIO, "died");
            expect_everywhere(DIES_GATHERING, 8, each, LK_EIO, "died");
        }
        expect_everywhere(STOPS, 8, each, LK_ETIMEOUT, "did not complete #");
        expect_everywhere(ABORTS, 8, each, LK_ECANCELED, "no more");
        expect_everywhere(LEAVES, 8, each, LK_EIO, "left the group");
    }
}

int main(void)
{
    outcomes = mmap(NULL, MOST * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(outcomes != MAP_FAILED);
    RUN(layers_give_the_bits_of_the_flat_order_for_every_type_and_reduction);
    RUN(slices_have_the_bits_of_the_flat_order_for_every_type_and_reduction);
    RUN(parts_have_the_bits_of_the_flat_order_for_every_type_and_reduction);
    RUN(every_host_has_one_copy_of_what_is_gathered);
    RUN(parts_cross_hosts_once);
    RUN(layers_send_less_over_the_network);
    RUN(all_hosts_report_the_faulty_rank);
    return check_result();
}
