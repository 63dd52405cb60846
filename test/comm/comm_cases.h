/* comm_cases.h - test cases for every backend, against the naive oracle: every collective, type, reduction, awkward
 * size and world size; in place and not, symmetric memory and not, aligned and not, blocking and in flight. The
 * including test defines how ranks are started, and the sizes at which the backend changes its algorithm. */
#ifndef COMM_CASES_H
#define COMM_CASES_H

#include "comm_ranks.h"

#include "comm/comm.h"

typedef struct backend_case {
    /* Runs function on `size` ranks. */
    void (*run)(int size, void (*function)(rank_test *t));
    size_t small;                                  /* bytes that are sent with the arrival */
    size_t (*chunk)(lk__comm_kind kind, int size); /* bytes that are processed at once */
    int  modes;                                    /* how many ways to call each edge; fewer from six ranks on */
    bool few;                                      /* of the world sizes */
} backend_case;

static const backend_case *the_case;

static void run_world(int size, void (*function)(rank_test *t)) { the_case->run(size, function); }

enum { PLAIN = 0, IN_PLACE = 1, SYMMETRIC = 2, LATER = 4, UNALIGNED = 8, MODES = 16 };

typedef struct call {
    lk__comm_kind kind;
    lk_dtype      type;
    lk_reduce_op  op;
    size_t        count;
    int           root, mode;
    uint64_t      seed;
} call;

/* Buffers that are large enough for anything here: two of ordinary memory, two of symmetric. */
typedef struct buffers {
    char          *memory[4];
    size_t         bytes;
    struct tables *tables;
} buffers;

static size_t send_blocks(const call *c, const rank_test *t)
{
    bool parts = c->kind == LK__REDUCE_SCATTER || c->kind == LK__ALL_TO_ALL || c->kind == LK__SCATTER;
    return parts ? (size_t)t->size : 1;
}

static size_t recv_blocks(const call *c, const rank_test *t)
{
    bool gathers = c->kind == LK__ALL_GATHER || c->kind == LK__GATHER || c->kind == LK__ALL_TO_ALL;
    return gathers ? (size_t)t->size : 1;
}

static bool receives(const call *c, const rank_test *t)
{
    return (c->kind != LK__REDUCE && c->kind != LK__GATHER) || t->rank == c->root;
}

/* Values repeat after PERIOD elements, a prime, so that tables can hold them, because the oracle is slow. */
enum { PERIOD = SANITIZED ? 127 : 1009 };

typedef struct tables {
    size_t period;
    char   values[12][PERIOD * 8]; /* by rank, as in memory */
    char   reduced[PERIOD * 8];
} tables;

static void make_tables(const call *c, const rank_test *t, tables *out)
{
    size_t total = send_blocks(c, t) * c->count;
    bool   reduces = c->kind == LK__ALL_REDUCE || c->kind == LK__REDUCE || c->kind == LK__REDUCE_SCATTER;
    out->period = total < PERIOD ? total : PERIOD;
    for (int r = 0; r < t->size; r++) fill(out->values[r], c->seed, r, out->period, c->type, c->op);
    for (size_t i = 0; reduces && i < out->period; i++) {
        element values[12];
        for (int r = 0; r < t->size; r++) values[r] = load(out->values[r], c->type, i);
        save(out->reduced, c->type, i, oracle(values, t->size, c->type, c->op));
    }
}

static void fill_from(const tables *tables, int rank, char *data, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i += tables->period)
        memcpy(data + i * size, tables->values[rank], (count - i < tables->period ? count - i : tables->period) * size);
}

/* Element i of this rank's expected result, which is followed by the next *run - 1. */
static const char *expected(const call *c, const rank_test *t, const tables *tables, size_t i, size_t *run)
{
    size_t      block = i / c->count, at = i % c->count, own = (size_t)t->rank * c->count, index = at;
    const char *from = tables->values[block];
    if (c->kind == LK__ALL_REDUCE || c->kind == LK__REDUCE || c->kind == LK__REDUCE_SCATTER) from = tables->reduced;
    if (c->kind == LK__BROADCAST || c->kind == LK__SCATTER) from = tables->values[c->root];
    if (c->kind == LK__REDUCE_SCATTER || c->kind == LK__SCATTER || c->kind == LK__ALL_TO_ALL) index += own;
    index %= tables->period;
    *run = tables->period - index < c->count - at ? tables->period - index : c->count - at;
    return from + index * lk_dtype_size(c->type);
}

static void check_received(const call *c, const rank_test *t, const tables *tables, const char *recv, size_t received)
{
    size_t size = lk_dtype_size(c->type), run = 0;
    for (size_t i = 0; i < received; i += run) {
        const char *want = expected(c, t, tables, i, &run);
        if (memcmp(recv + i * size, want, run * size) == 0) continue;
        for (; memcmp(recv + i * size, want, size) == 0; i++) want += size;
        element a = load(recv, c->type, i), b = load(want, c->type, 0);
        CHECK(false, "rank %d of %d: %s %s op %d count %zu root %d mode %d: element %zu is %.17g %lld, not %.17g %lld",
              t->rank, t->size, lk__comm_kind_name(c->kind), lk_dtype_name(c->type), c->op, c->count, c->root, c->mode,
              i, a.real, (long long)a.whole, b.real, (long long)b.whole);
        break;
    }
}

static lk_status perform(const call *c, lk_comm *comm, const void *send, void *recv, lk_work **work)
{
    switch (c->kind) {
    case LK__ALL_REDUCE: return lk_comm_all_reduce(comm, send, recv, c->count, c->type, c->op, work);
    case LK__REDUCE: return lk_comm_reduce(comm, send, recv, c->count, c->type, c->op, c->root, work);
    case LK__REDUCE_SCATTER: return lk_comm_reduce_scatter(comm, send, recv, c->count, c->type, c->op, work);
    case LK__BROADCAST: return lk_comm_broadcast(comm, recv, c->count, c->type, c->root, work);
    case LK__ALL_GATHER: return lk_comm_all_gather(comm, send, recv, c->count, c->type, work);
    case LK__GATHER: return lk_comm_gather(comm, send, recv, c->count, c->type, c->root, work);
    case LK__SCATTER: return lk_comm_scatter(comm, send, recv, c->count, c->type, c->root, work);
    default: return lk_comm_all_to_all(comm, send, recv, c->count, c->type, work);
    }
}

static void check_call(rank_test *t, const buffers *b, const call *c)
{
    tables *tables = b->tables;
    make_tables(c, t, tables);
    size_t size = lk_dtype_size(c->type), sends = send_blocks(c, t) * c->count,
           received = receives(c, t) ? recv_blocks(c, t) * c->count : 0;
    int   offset = c->mode & SYMMETRIC ? 2 : 0;
    char *send = b->memory[offset] + (c->mode & UNALIGNED ? 1 : 0),
         *recv = b->memory[offset + 1] + (c->mode & UNALIGNED ? 3 : 0);
    REQUIRE((sends > received ? sends : received) * size + 8 <= b->bytes);
    if (c->mode & IN_PLACE) { /* the smaller buffer is this rank's part of the larger */
        size_t part = (size_t)t->rank * c->count * size;
        if (c->kind == LK__ALL_GATHER || (c->kind == LK__GATHER && t->rank == c->root))
            recv = send, send += part;
        else if (c->kind == LK__REDUCE_SCATTER || (c->kind == LK__SCATTER && t->rank == c->root))
            recv = send + part;
        else
            recv = send;
    }
    memset(recv, 0xA5, received * size + 1);
    if (c->kind == LK__BROADCAST) {
        if (t->rank == c->root) fill_from(tables, t->rank, recv, c->count, size);
    } else if (c->kind != LK__SCATTER || t->rank == c->root) {
        fill_from(tables, t->rank, send, sends, size);
    }
    lk_work  *work = NULL;
    char      guard = recv[received * size];
    bool      inside = (c->mode & IN_PLACE) && (c->kind == LK__REDUCE_SCATTER || c->kind == LK__SCATTER);
    lk_status status = perform(c, t->comm, send, recv, c->mode & LATER ? &work : NULL);
    if (work) status = lk_work_wait(work);
    REQUIRE(status == LK_OK, "%s: %s", lk__comm_kind_name(c->kind), lk_context_error(t->context));
    check_received(c, t, tables, recv, received);
    CHECK(inside || recv[received * size] == guard, "%s wrote past the end", lk__comm_kind_name(c->kind));
    if (!(c->mode & IN_PLACE) && c->kind != LK__BROADCAST && c->kind != LK__SCATTER && sends)
        CHECK(memcmp(send + (sends - 1) * size, tables->values[t->rank] + (sends - 1) % tables->period * size, size) ==
                  0,
              "%s changed what was sent", lk__comm_kind_name(c->kind));
}

static void open_buffers(rank_test *t, buffers *b, size_t bytes)
{
    void *memory;
    b->bytes = bytes;
    b->tables = malloc(sizeof *b->tables);
    for (int i = 0; i < 2; i++) b->memory[i] = malloc(bytes);
    for (int i = 2; i < 4; i++) {
        REQUIRE(lk_comm_alloc(t->comm, bytes, &memory) == LK_OK, "%s", lk_context_error(t->context));
        b->memory[i] = memory;
    }
}

static void close_buffers(rank_test *t, buffers *b)
{
    free(b->memory[0]);
    free(b->memory[1]);
    free(b->tables);
    lk_comm_release(t->comm, b->memory[2]); /* the other one is freed with the comm */
}

static const lk__comm_kind kinds[] = {LK__ALL_REDUCE, LK__REDUCE, LK__REDUCE_SCATTER, LK__BROADCAST,
                                      LK__ALL_GATHER, LK__GATHER, LK__SCATTER,        LK__ALL_TO_ALL};
enum { KINDS = sizeof kinds / sizeof *kinds };

static size_t several_chunks(lk__comm_kind kind, int size, size_t chunks, size_t most)
{
    size_t bytes = chunks * the_case->chunk(kind, size);
    return bytes < most - 4096 ? bytes : most - 4096;
}

/* Every collective × type × reduction × mode at small sizes; then sizes around those at which the algorithm changes. */
static void run_all_calls(rank_test *t)
{
    static const size_t sizes[] = {0, 1, 3, 67};
    buffers             b;
    uint64_t            seed = 1;
    int                 turn = 0;
    size_t              most = (size_t)8 << 20;
    open_buffers(t, &b, most);
    for (int k = 0; k < KINDS; k++)
        for (int type = 0; type < LK_DTYPE_COUNT; type++)
            for (int op = 0; op <= LK_PROD; op++)
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                    if (op > 0 && k > 2) continue; /* the others do not reduce */
                    call c = {kinds[k], type, op, sizes[i], (int)seed % t->size, turn++ % MODES, seed};
                    check_call(t, &b, &c);
                    seed++;
                }
    for (int k = 0; k < KINDS; k++) {
        size_t blocks = kinds[k] == LK__REDUCE_SCATTER || kinds[k] == LK__SCATTER || kinds[k] == LK__ALL_TO_ALL
                            ? (size_t)t->size
                            : 1;
        for (int edge = 0; edge < 8; edge++) {
            lk_dtype type = (lk_dtype)(turn % LK_DTYPE_COUNT);
            size_t   small = the_case->small / lk_dtype_size(type) / blocks,
                   chunk = the_case->chunk(kinds[k], t->size) / lk_dtype_size(type) / blocks;
            size_t counts[] = {small - 1, small, small + 1, chunk - 1, chunk, chunk + 1, chunk + chunk / 2 + 13, 1009};
            if (t->size > 5 && edge == 6) continue; /* the oracle would take too long */
            for (int m = 0; m < (t->size > 5 ? (the_case->modes + 1) / 2 : the_case->modes); m++) {
                call c = {kinds[k],
                          type,
                          (lk_reduce_op)(seed % 5),
                          counts[edge],
                          (int)seed % t->size,
                          (turn++ * 5 + 3 * m) % MODES,
                          seed};
                check_call(t, &b, &c);
                seed++;
            }
        }
    }
    /* Several chunks, so that buffers are reused. */
    for (int m = 0; m < 4; m++) {
        call c = {m & 1 ? LK__ALL_TO_ALL : LK__ALL_REDUCE,
                  LK_F32,
                  LK_SUM,
                  several_chunks(m & 1 ? LK__ALL_TO_ALL : LK__ALL_REDUCE, t->size, m & 1 ? 5 : 6, most) / 4 /
                          (m & 1 ? (size_t)t->size : 1) +
                      11,
                  0,
                  m & 2 ? SYMMETRIC : PLAIN,
                  seed};
        check_call(t, &b, &c);
        seed++;
    }
    for (int m = 0; m < 2; m++) {
        call c = {
            m ? LK__BROADCAST : LK__ALL_GATHER,
            LK_U8,
            LK_SUM,
            several_chunks(m ? LK__BROADCAST : LK__ALL_GATHER, t->size, m ? 5 : 2, m ? most : most / (size_t)t->size) +
                5,
            t->size - 1,
            PLAIN,
            seed++};
        check_call(t, &b, &c);
    }
    close_buffers(t, &b);
}

static void every_collective_matches_the_oracle_at_every_world_size(void)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8, 11};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        if (the_case->few && worlds[i] != 5 && worlds[i] != 8) continue;
        run_world(worlds[i], run_all_calls);
        printf("     a world of %d\n", worlds[i]);
        fflush(stdout);
    }
}

/* ---- the v forms ---- */

static void run_v_calls(rank_test *t)
{
    static const size_t bases[] = {0, 1, 5, 1000, 30011};
    size_t              counts[16], at[16], send_counts[16], send_at[16], recv_counts[16], recv_at[16];
    for (size_t k = 0; k < sizeof bases / sizeof *bases; k++) {
        size_t total = 0, sends = 0, recvs = 0;
        for (int r = 0; r < t->size; r++) {
            counts[r] = r % 3 == 1 ? 0 : bases[k] + (size_t)r * 3;
            at[r] = total + 2; /* with gaps */
            total += counts[r] + 2;
            send_counts[r] = bases[k] / 4 + (size_t)((t->rank * 5 + r * 3) % 7);
            recv_counts[r] = bases[k] / 4 + (size_t)((r * 5 + t->rank * 3) % 7);
            send_at[r] = sends + 1, sends += send_counts[r] + 1;
            recv_at[r] = recvs + 3, recvs += recv_counts[r] + 3;
        }
        int32_t *send = malloc((sends + total + 8) * 4), *recv = malloc((recvs + total + 8) * 4);
        for (int kind = 0; kind < 2; kind++) {
            int root = t->size - 1;
            for (size_t i = 0; i < counts[t->rank]; i++) send[i] = (int32_t)(t->rank * 1000000 + (int)i);
            memset(recv, 0xEE, (total + 8) * 4);
            lk_status status = kind ? lk_comm_gatherv(t->comm, send, recv, counts, at, LK_I32, root, NULL)
                                    : lk_comm_all_gatherv(t->comm, send, recv, counts, at, LK_I32, NULL);
            REQUIRE(status == LK_OK, "%s", lk_context_error(t->context));
            for (int r = 0; r < t->size && (!kind || t->rank == root); r++) {
                CHECK(recv[at[r] - 1] == (int32_t)0xEEEEEEEE, "a gap was written to");
                for (size_t i = 0; i < counts[r]; i++)
                    if (recv[at[r] + i] != r * 1000000 + (int)i) {
                        CHECK(false, "kind %d: rank %d: element %zu of rank %d", kind, t->rank, i, r);
                        break;
                    }
            }
        }
        for (int r = 0; r < t->size; r++)
            for (size_t i = 0; i < send_counts[r]; i++) send[send_at[r] + i] = t->rank * 10000000 + r * 100000 + (int)i;
        lk_work *work;
        REQUIRE(lk_comm_all_to_allv(t->comm, send, send_counts, send_at, recv, recv_counts, recv_at, LK_I32, &work) ==
                LK_OK);
        REQUIRE(lk_work_wait(work) == LK_OK, "%s", lk_context_error(t->context));
        for (int r = 0; r < t->size; r++)
            for (size_t i = 0; i < recv_counts[r]; i++)
                if (recv[recv_at[r] + i] != r * 10000000 + t->rank * 100000 + (int)i) {
                    CHECK(false, "all_to_allv: rank %d of %d: element %zu from rank %d", t->rank, t->size, i, r);
                    break;
                }
        free(send);
        free(recv);
    }
}

static void gatherv_and_all_to_allv_move_every_element(void)
{
    static const int worlds[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_world(worlds[i], run_v_calls);
}

/* ---- send and receive ---- */

static void run_transfers(rank_test *t)
{
    static const size_t counts[] = {0, 1, 1000, 40000, 300001};
    int                 right = (t->rank + 1) % t->size, left = (t->rank + t->size - 1) % t->size;
    for (size_t k = 0; k < sizeof counts / sizeof *counts;
         k++) { /* every rank sends first, and far more than buffers hold */
        size_t   n = counts[k];
        int32_t *out = malloc(n * 4 + 4), *in = malloc(n * 4 + 4);
        for (size_t i = 0; i < n; i++) out[i] = t->rank * 1000000 + (int)i;
        lk_work *work;
        REQUIRE(lk_comm_send(t->comm, out, n, LK_I32, right, 7, &work) == LK_OK);
        REQUIRE(lk_comm_recv(t->comm, in, n, LK_I32, left, 7, NULL) == LK_OK, "%s", lk_context_error(t->context));
        REQUIRE(lk_work_wait(work) == LK_OK);
        size_t bad = 0;
        for (size_t i = 0; i < n; i++) bad += in[i] != left * 1000000 + (int)i;
        CHECK(bad == 0, "rank %d: %zu of %zu are wrong", t->rank, bad, n);
        free(out);
        free(in);
    }
    /* Tags are received in another order than they were sent, two of one tag in order. */
    int      tags[] = {3, 1, 3, 2}, order[] = {2, 3, 1, 3}, sums = 0;
    uint64_t message;
    if (t->rank == 0) {
        for (int i = 0; i < 4; i++) {
            message = (uint64_t)(100 * i + tags[i]);
            for (int r = 1; r < t->size; r++)
                REQUIRE(lk_comm_send(t->comm, &message, 1, LK_I64, r, tags[i], NULL) == LK_OK);
        }
    } else {
        uint64_t want[] = {302, 3, 101, 203};
        for (int i = 0; i < 4; i++) {
            REQUIRE(lk_comm_recv(t->comm, &message, 1, LK_I64, 0, order[i], NULL) == LK_OK);
            CHECK(message == want[i], "got %d", (int)message);
            sums++;
        }
    }
    /* Many in flight at once, in both directions, then a collective behind them. */
    int32_t  numbers[2][16];
    lk_work *works[33];
    int      n = 0;
    for (int i = 0; i < 16; i++) {
        numbers[0][i] = t->rank * 100 + i;
        REQUIRE(lk_comm_recv(t->comm, &numbers[1][15 - i], 1, LK_I32, left, 15 - i, &works[n++]) == LK_OK);
        REQUIRE(lk_comm_send(t->comm, &numbers[0][i], 1, LK_I32, right, i, &works[n++]) == LK_OK);
    }
    int32_t one = 1;
    REQUIRE(lk_comm_all_reduce(t->comm, &one, &one, 1, LK_I32, LK_SUM, &works[n++]) == LK_OK);
    while (n > 0) REQUIRE(lk_work_wait(works[--n]) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(one == t->size);
    for (int i = 0; i < 16; i++) CHECK(numbers[1][i] == left * 100 + i, "%d", numbers[1][i]);
}

static void sends_and_receives_match_by_tag_and_never_block_each_other(void)
{
    static const int worlds[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_world(worlds[i], run_transfers);
}

/* ---- groups ---- */

static void run_splits(rank_test *t)
{
    lk_comm *half, *back, *again, *none;
    int32_t  sum = t->rank, twice;
    REQUIRE(lk_comm_split(t->comm, t->rank % 2, 0, &half) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_comm_split(t->comm, 5, -t->rank, &back) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_comm_split(t->comm, t->rank == 0 ? -1 : 0, 0, &none) == LK_OK);
    REQUIRE(lk_comm_split(half, 0, 0, &again) == LK_OK, "%s", lk_context_error(t->context));
    CHECK((none == NULL) == (t->rank == 0));
    CHECK(lk_comm_rank(half) == t->rank / 2 && lk_comm_rank(back) == t->size - 1 - t->rank &&
          lk_comm_rank(again) == t->rank / 2);
    REQUIRE(lk_comm_all_reduce(half, &sum, &sum, 1, LK_I32, LK_SUM, NULL) == LK_OK);
    REQUIRE(lk_comm_all_reduce(again, &t->rank, &twice, 1, LK_I32, LK_SUM, NULL) == LK_OK);
    int32_t want = 0;
    for (int r = t->rank % 2; r < t->size; r += 2) want += r;
    CHECK(sum == want && twice == want, "%d %d, not %d", sum, twice, want);
    int32_t who = t->rank; /* the last rank is the first of `back` */
    REQUIRE(lk_comm_broadcast(back, &who, 1, LK_I32, 0, NULL) == LK_OK);
    CHECK(who == t->size - 1);
    void *memory;
    REQUIRE(lk_comm_alloc(back, 100000, &memory) == LK_OK, "%s", lk_context_error(t->context));
    for (int i = 0; i < 25000; i++) ((int32_t *)memory)[i] = i;
    REQUIRE(lk_comm_all_reduce(back, memory, memory, 25000, LK_I32, LK_SUM, NULL) == LK_OK);
    for (int i = 0; i < 25000; i++)
        if (((int32_t *)memory)[i] != i * t->size) {
            CHECK(false, "element %d", i);
            break;
        }
    lk_comm_free(half); /* before what was made from it */
    REQUIRE(lk_comm_barrier(again, NULL) == LK_OK);
    lk_comm_free(back);
    lk_comm_free(none);
    lk_comm_free(again);
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
}

static void groups_coexist_and_are_freed_in_any_order(void)
{
    static const int worlds[] = {1, 2, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_world(worlds[i], run_splits);
}

/* ---- bytes, bits and buffers ---- */

static void count_bytes(rank_test *t)
{
    static const size_t counts[] = {2, 4000, 5000, 65536, 1000003};
    void               *memory;
    float              *ordinary = calloc(1000003, 4);
    REQUIRE(lk_comm_alloc(t->comm, 1000003 * 4, &memory) == LK_OK);
    for (int k = 0; k < 10; k++) {
        size_t   n = counts[k / 2];
        float   *buffer = k % 2 ? memory : ordinary;
        uint64_t before = lk__comm_sent(t->comm);
        REQUIRE(lk_comm_all_reduce(t->comm, buffer, buffer, n, LK_F32, LK_SUM, NULL) == LK_OK);
        uint64_t sent = lk__comm_sent(t->comm) - before;
        CHECK((double)sent <= 2.0 * (t->size - 1) / t->size * (double)n * 4 + 64,
              "rank %d of %d sent %llu bytes for %zu", t->rank, t->size, (unsigned long long)sent, n * 4);
        CHECK((double)sent >= (double)n * 4 / t->size - 64, "%llu bytes of %zu cannot have been enough",
              (unsigned long long)sent, n * 4);
    }
    free(ordinary);
}

static void a_rank_sends_no_more_than_it_must_for_an_all_reduce(void)
{
    static const int worlds[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_world(worlds[i], count_bytes);
}

/* Ranks arrive in another order each time; some use symmetric memory and some do not. */
static void reduce_in_any_order(rank_test *t)
{
    enum { COUNT = 30011 };
    void  *memory;
    float *ordinary = malloc(COUNT * 4);
    REQUIRE(lk_comm_alloc(t->comm, COUNT * 4, &memory) == LK_OK);
    for (int round = 0; round < 8; round++) {
        float *buffer = (round + t->rank) % 3 == 0 || round == 7 ? memory : ordinary;
        fill(buffer, 42, t->rank, COUNT, LK_F32, LK_SUM);
        usleep((useconds_t)(number_bits((uint64_t)t->rank, (uint64_t)round) % 3000));
        REQUIRE(lk_comm_all_reduce(t->comm, buffer, buffer, COUNT, LK_F32, LK_SUM, NULL) == LK_OK);
        for (size_t i = 0; i < COUNT; i++)
            if (!same_element(load(buffer, LK_F32, i), reduced(42, t->size, i, LK_F32, LK_SUM), LK_F32)) {
                CHECK(false, "round %d, rank %d: element %zu", round, t->rank, i);
                break;
            }
    }
    free(ordinary);
}

static void all_reduce_gives_the_same_bits_in_any_arrival_order_and_from_any_memory(void)
{
    run_world(5, reduce_in_any_order);
}

static void special_numbers(rank_test *t)
{
    float values[4] = {t->rank == 1 ? NAN : 1, t->rank == 2 ? -INFINITY : 2, t->rank == 0 ? INFINITY : 0,
                       (float)t->rank},
          out[4];
    uint16_t half = t->rank == 0 ? 0x0001 : 0x8001,
             large = 0x7bff; /* the smallest f16 of either sign, and the largest */
    REQUIRE(lk_comm_all_reduce(t->comm, values, out, 4, LK_F32, LK_MIN, NULL) == LK_OK);
    CHECK(isnan(out[0]) && out[1] == -INFINITY && out[2] == 0 && out[3] == 0);
    REQUIRE(lk_comm_all_reduce(t->comm, values, out, 4, LK_F32, LK_MAX, NULL) == LK_OK);
    CHECK(isnan(out[0]) && out[1] == 2 && out[2] == INFINITY && out[3] == 2);
    REQUIRE(lk_comm_all_reduce(t->comm, &half, &half, 1, LK_F16, LK_SUM, NULL) == LK_OK);
    CHECK(half == 0x8001, "%04x", half); /* 1 - 1 - 1 in steps of 2^-24 */
    REQUIRE(lk_comm_all_reduce(t->comm, &large, &large, 1, LK_F16, LK_SUM, NULL) == LK_OK);
    CHECK(large == 0x7c00, "%04x", large);
    large = 0x7bff; /* in f32 the sum does not overflow, so the mean is what each had */
    REQUIRE(lk_comm_all_reduce(t->comm, &large, &large, 1, LK_F16, LK_AVG, NULL) == LK_OK);
    CHECK(large == 0x7bff, "%04x", large);
}

static void nan_propagates_and_halves_are_rounded_once(void) { run_world(3, special_numbers); }

static void many_in_flight(rank_test *t)
{
    enum { WORKS = 50, COUNT = 3000 };
    lk_work *works[WORKS];
    float   *data = malloc(sizeof(float) * WORKS * COUNT);
    for (int i = 0; i < WORKS * COUNT; i++) data[i] = (float)(i % 100 + t->rank);
    for (int i = 0; i < WORKS; i++)
        REQUIRE(lk_comm_all_reduce(t->comm, data + i * COUNT, data + i * COUNT, COUNT, LK_F32, LK_SUM, &works[i]) ==
                LK_OK);
    float after = 1; /* a blocking call runs after them */
    REQUIRE(lk_comm_all_reduce(t->comm, &after, &after, 1, LK_F32, LK_SUM, NULL) == LK_OK);
    CHECK(after == (float)t->size);
    for (int i = 0; i < WORKS; i++) CHECK(lk_work_test(works[i]) == LK_OK);
    for (int i = WORKS - 1; i >= 0; i--) REQUIRE(lk_work_wait(works[i]) == LK_OK);
    for (int i = 0; i < WORKS * COUNT; i++)
        if (data[i] != (float)(t->size * (i % 100) + t->size * (t->size - 1) / 2)) {
            CHECK(false, "element %d is %g", i, (double)data[i]);
            break;
        }
    if (t->rank == 0) { /* cancelled with the comm: freeing does not wait for the others, which never call */
        lk_work *left;
        REQUIRE(lk_comm_recv(t->comm, data, 1, LK_F32, t->size - 1, 99, &left) == LK_OK || t->size == 1);
    }
    free(data);
}

static void works_run_in_order_and_need_not_be_waited_for_in_order(void) { run_world(3, many_in_flight); }

/* ---- invalid calls ---- */

static void make_invalid_calls(rank_test *t)
{
    float    x = 1, y[8];
    lk_work *work = (lk_work *)&x;
    CHECK(lk_comm_all_reduce(t->comm, &x, &x, 1, (lk_dtype)77, LK_SUM, NULL) == LK_EINVAL);
    CHECK(lk_comm_all_reduce(t->comm, &x, &x, 1, LK_F32, (lk_reduce_op)9, &work) == LK_EINVAL && !work);
    CHECK(lk_comm_all_reduce(t->comm, NULL, &x, 1, LK_F32, LK_SUM, NULL) == LK_EINVAL);
    CHECK(strstr(lk_context_error(t->context), "comm_cases.h:") && strstr(lk_context_error(t->context), "NULL"), "%s",
          lk_context_error(t->context));
    CHECK(lk_comm_broadcast(t->comm, &x, 1, LK_F32, 2, NULL) == LK_EINVAL &&
          lk_comm_broadcast(t->comm, &x, 1, LK_F32, -1, NULL) == LK_EINVAL);
    CHECK(lk_comm_all_gather(t->comm, &x, y, SIZE_MAX / 8, LK_F64, NULL) == LK_EINVAL);
    CHECK(lk_comm_send(t->comm, &x, 1, LK_F32, t->rank, 0, NULL) == LK_EINVAL);
    CHECK(lk_comm_all_gatherv(t->comm, &x, y, NULL, NULL, LK_F32, NULL) == LK_EINVAL);
    CHECK(lk_comm_all_reduce(t->comm, y, y + 1, 4, LK_F32, LK_SUM, NULL) == LK_EINVAL);
    CHECK(strstr(lk_context_error(t->context), "overlap"), "%s", lk_context_error(t->context));
    CHECK(lk_comm_all_gather(t->comm, y + 1 - t->rank, y, 2, LK_F32, NULL) == LK_EINVAL);
    CHECK(lk_comm_reduce_scatter(t->comm, y, y + 1, 3, LK_F32, LK_SUM, NULL) == LK_EINVAL);
    CHECK(lk_comm_all_to_allv(t->comm, y, (size_t[]){1, 1}, (size_t[]){0, 3}, y + 3, (size_t[]){1, 1}, (size_t[]){0, 1},
                              LK_F32, NULL) == LK_EINVAL);
    CHECK(lk_work_wait(NULL) == LK_OK && lk_comm_status(t->comm) == LK_OK && lk_comm_error(t->comm)[0] == 0);
    REQUIRE(lk_comm_all_reduce(t->comm, &x, &x, 1, LK_F32, LK_SUM, NULL) == LK_OK); /* the group has not failed */
    CHECK(x == 2);
    REQUIRE(lk_comm_barrier(t->comm, &work) == LK_OK && work && lk_work_wait(work) == LK_OK);
}

static void an_invalid_call_fails_alone_and_is_located(void) { run_world(2, make_invalid_calls); }

static int run_cases(const backend_case *which)
{
    the_case = which;
    RUN(every_collective_matches_the_oracle_at_every_world_size);
    RUN(gatherv_and_all_to_allv_move_every_element);
    RUN(sends_and_receives_match_by_tag_and_never_block_each_other);
    RUN(groups_coexist_and_are_freed_in_any_order);
    RUN(a_rank_sends_no_more_than_it_must_for_an_all_reduce);
    RUN(all_reduce_gives_the_same_bits_in_any_arrival_order_and_from_any_memory);
    RUN(nan_propagates_and_halves_are_rounded_once);
    RUN(works_run_in_order_and_need_not_be_waited_for_in_order);
    RUN(an_invalid_call_fails_alone_and_is_located);
    return check_result();
}

#endif
