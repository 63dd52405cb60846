/* peers.cu - queued collectives of the GPUs of one host (device/peers.h): chooses the kernels of a call.
 *
 *   small      one kernel of one block: it publishes this rank's data in scratch memory, waits, and takes the others';
 *   symmetric  all buffers are mapped: a wait, one pass over the data, a wait. A reduction that all ranks receive is
 *              divided: a rank reduces a slice and writes it to all;
 *   staged     everything else, in chunks through scratch memory: published, a wait, taken. Large reductions publish
 *              reduced slices and wait once more.
 *
 * In each of them an element is reduced by itself, so all give the same bits. */
#include "device/cuda/backend.h"
#include "device/cuda/peer_launch.h"

enum {
    SMALL = 64 << 10,     /* bytes that a rank publishes and one block handles */
    ONE_PASS = 512 << 10, /* bytes of a staged reduction that every rank reduces by itself */
    PAIR_HALF = 64 << 10, /* of scratch memory, for what two ranks send each other */
    PAIRS = LK__PEERS_MOST * 2 * PAIR_HALF,
    HALF = (LK__PEERS_SCRATCH - PAIRS) / 2,
    LINE = 128, /* bytes: slices begin at multiples */
};
static_assert(HALF % LINE == 0 && sizeof(lk__peers_flags) <= LK__PEERS_FLAG_BYTES, "the block of a rank");

/* A call that is being queued. */
typedef struct queued_call {
    const lk__peers_call *call;
    peer_launcher         on;
    peer_call             c;
    int64_t               size;   /* bytes of an element */
    int64_t               region; /* in scratch memory: of what this rank publishes, */
    int64_t               theirs; /* and of what it takes from others */
} queued_call;

/* ---- where things are ---- */

static peer_run at_address(const void *base) { return peer_run{(char *)base, AT_ADDRESS, 0, 0, 0, 0}; }
static peer_run published(const queued_call *q, int rank, int64_t offset, peer_space space)
{
    int64_t region = rank == q->call->rank ? q->region : q->theirs;
    return peer_run{(char *)(region + offset), space, rank, 0, 0, 0};
}
/* From byte `first` on of rank `part`'s part of what has rows. */
static peer_run in_rows(const queued_call *q, const void *base, int part, int64_t first)
{
    int64_t row = (int64_t)q->call->row * q->size;
    return peer_run{(char *)base + part * row, AT_ADDRESS, 0, row, q->call->ranks * row, first};
}

static void add_copy(peer_copies *copies, peer_run from, peer_run to, int64_t bytes)
{
    bool same = from.space == AT_ADDRESS && to.space == AT_ADDRESS && !from.row && !to.row && from.base == to.base;
    if (bytes <= 0 || same) return;
    copies->from[copies->n] = from;
    copies->to[copies->n] = to;
    copies->bytes[copies->n++] = bytes;
}

static peer_reduction make_reduction(const queued_call *q, int64_t count)
{
    peer_reduction r = {};
    r.n = q->call->ranks;
    r.op = q->call->reduce;
    r.count = count;
    return r;
}

/* Elements of a rank's slice of n: whole lines. */
static void slice_of(const queued_call *q, int64_t n, int rank, int64_t *begin, int64_t *end)
{
    int64_t line = LINE / q->size, lines = cuda_tiles(n, line), each = cuda_tiles(lines, q->call->ranks) * line;
    *begin = rank * each < n ? rank * each : n;
    *end = *begin + each < n ? *begin + each : n;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What is left of `count` from `first` on, n at most. */
static int64_t chunk_of(int64_t count, int64_t first, int64_t n)
{
    return count <= first ? 0 : least(count - first, n);
}

/* ---- launches ---- */

static peer_call step_of(const queued_call *q, bool first, bool last)
{
    peer_call c = q->c;
    c.first = first;
    c.last = last;
    return c;
}

static void queue_gate(const queued_call *q, bool first, bool last)
{
    lk__peer_launch_gate(&q->on, step_of(q, first, last));
}

/* ---- reductions ---- */

/* What every rank publishes of its parts, and the reduction of this rank's part. Parts are `stride` bytes apart. */
static void stage_reduction(const queued_call *q, int64_t first, int64_t count, int64_t stride, peer_copies *publish,
                            peer_reduction *r)
{
    const lk__peers_call *call = q->call;
    bool                  parts = call->form == LK__PEERS_REDUCE_PARTS;
    int64_t               bytes = count * q->size, part_bytes = (int64_t)call->count * q->size;
    *publish = peer_copies{};
    *r = make_reduction(q, count);
    for (int i = 0; i < (parts ? call->ranks : 1); i++) {
        peer_run from = call->row && parts ? in_rows(q, call->send, i, first * q->size)
                                           : at_address((const char *)call->send + i * part_bytes + first * q->size);
        add_copy(publish, from, published(q, call->rank, i * stride, IN_NEXT_HALF), bytes);
    }
    for (int i = 0; i < call->ranks; i++) r->from[i] = published(q, i, parts ? call->rank * stride : 0, IN_LAST_HALF);
    if (call->receives || parts) r->to[r->results++] = at_address((char *)call->recv + first * q->size);
}

/* Every rank reduces all that it receives. */
static void queue_one_pass(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    int64_t               parts = call->form == LK__PEERS_REDUCE_PARTS ? call->ranks : 1, count = (int64_t)call->count;
    int64_t               stride = HALF / parts / LINE * LINE, n = stride / q->size;
    peer_copies           publish;
    peer_reduction        r;
    if (parts * count * q->size <= SMALL) {
        stage_reduction(q, 0, count, cuda_tiles(count * q->size, LINE) * LINE, &publish, &r);
        lk__peer_launch_small_reduce(&q->on, step_of(q, true, true), publish, r, call->type);
        return;
    }
    for (int64_t first = 0; first < count; first += n) {
        bool last = first + n >= count;
        stage_reduction(q, first, chunk_of(count, first, n), stride, &publish, &r);
        lk__peer_launch_copy(&q->on, step_of(q, first == 0, false), publish);
        queue_gate(q, false, last && !r.results);
        if (r.results) lk__peer_launch_reduce(&q->on, step_of(q, false, last), r, call->type);
    }
}

/* Every rank reduces a slice and publishes it. */
static void queue_two_passes(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    int64_t               n = HALF / q->size / LINE * LINE, count = (int64_t)call->count, begin, end;
    for (int64_t first = 0; first < count; first += n) {
        int64_t        here = chunk_of(count, first, n);
        bool           last = first + n >= count;
        peer_copies    publish, taken = {};
        peer_reduction r;
        stage_reduction(q, first, here, 0, &publish, &r);
        lk__peer_launch_copy(&q->on, step_of(q, first == 0, false), publish);
        queue_gate(q, false, false);
        slice_of(q, here, call->rank, &begin, &end);
        for (int i = 0; i < call->ranks; i++) r.from[i].base += begin * q->size;
        r.count = end - begin;
        r.results = 1;
        r.to[0] = published(q, call->rank, begin * q->size, IN_NEXT_HALF);
        lk__peer_launch_reduce(&q->on, step_of(q, false, false), r, call->type);
        queue_gate(q, false, last && !call->receives);
        for (int i = 0; i < call->ranks; i++) {
            slice_of(q, here, i, &begin, &end);
            add_copy(&taken, published(q, i, begin * q->size, IN_LAST_HALF),
                     at_address((char *)call->recv + (first + begin) * q->size), (end - begin) * q->size);
        }
        if (call->receives) lk__peer_launch_copy(&q->on, step_of(q, false, last), taken);
    }
}

/* Directly from all ranks' buffers: a slice to all of them, or all that this rank receives. */
static void queue_mapped_reduction(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    bool                  parts = call->form == LK__PEERS_REDUCE_PARTS, pushes = !parts && call->peer_recv[0];
    int64_t               begin = 0, end = (int64_t)call->count;
    if (pushes) slice_of(q, end, call->rank, &begin, &end);
    peer_reduction r = make_reduction(q, end - begin);
    for (int i = 0; i < call->ranks; i++) {
        const char *send = call->peer_send[i];
        if (parts && call->row)
            r.from[i] = in_rows(q, send, call->rank, 0);
        else
            r.from[i] = at_address(send + (parts ? call->rank * end : begin) * q->size);
        if (pushes) r.to[r.results++] = at_address(call->peer_recv[(i + call->rank) % call->ranks] + begin * q->size);
    }
    if (!pushes && (parts || call->receives)) r.to[r.results++] = at_address(call->recv);
    queue_gate(q, true, false);
    peer_call c = step_of(q, false, false);
    c.pushes = pushes;
    if (r.results) lk__peer_launch_reduce(&q->on, c, r, call->type);
    queue_gate(q, false, true);
}

/* ---- copies ---- */

/* Where bytes [first, …) of rank i's part go. */
static peer_run copy_target(const queued_call *q, int i, int64_t first)
{
    const lk__peers_call *call = q->call;
    if (call->row) return in_rows(q, call->recv, i, first);
    return at_address((char *)call->recv + call->in_at[i] * q->size + first);
}

static bool takes_part(const lk__peers_call *call, int i) { return call->with >> i & 1; }

static void stage_copies(const queued_call *q, int64_t first, int64_t n, int64_t stride, peer_copies *publish,
                         peer_copies *taken)
{
    const lk__peers_call *call = q->call;
    *publish = *taken = peer_copies{};
    for (int i = 0; i < call->ranks; i++) {
        if (!takes_part(call, i)) continue;
        int64_t out = chunk_of(call->out_count[i], first, n) * q->size;
        int64_t in = chunk_of(call->in_count[i], first, n) * q->size;
        if (!call->same || publish->n == 0)
            add_copy(publish, at_address((const char *)call->send + (call->out_at[i] + first) * q->size),
                     published(q, call->rank, call->same ? 0 : i * stride, IN_NEXT_HALF), out);
        add_copy(taken, published(q, i, call->same ? 0 : call->rank * stride, IN_LAST_HALF),
                 copy_target(q, i, first * q->size), in);
    }
}

static void queue_staged_copies(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    bool                  pair = q->c.other != 0;
    int64_t               parts = call->same || pair ? 1 : call->ranks, count = (int64_t)call->count;
    int64_t               stride = q->c.half_bytes / parts / LINE * LINE, n = stride / q->size;
    peer_copies           publish, taken;
    if (parts * count * q->size <= SMALL) {
        stage_copies(q, 0, count, pair ? 0 : cuda_tiles(count * q->size, LINE) * LINE, &publish, &taken);
        lk__peer_launch_small_copy(&q->on, step_of(q, true, true), publish, taken);
        return;
    }
    for (int64_t first = 0; first < count; first += n) {
        bool last = first + n >= count;
        stage_copies(q, first, n, pair ? 0 : stride, &publish, &taken);
        if (publish.n) lk__peer_launch_copy(&q->on, step_of(q, first == 0, false), publish);
        queue_gate(q, first == 0 && !publish.n, last && !taken.n);
        if (taken.n) lk__peer_launch_copy(&q->on, step_of(q, false, last), taken);
    }
}

static void queue_mapped_copies(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    peer_copies           taken = {};
    for (int k = 0; k < call->ranks; k++) {
        int i = (call->rank + k) % call->ranks; /* so that not all read from the same rank at once */
        if (takes_part(call, i))
            add_copy(&taken, at_address(call->peer_send[i] + call->peer_at[i] * q->size), copy_target(q, i, 0),
                     call->in_count[i] * q->size);
    }
    queue_gate(q, true, false);
    if (taken.n) lk__peer_launch_copy(&q->on, step_of(q, false, false), taken);
    queue_gate(q, false, true);
}

/* ---- a call ---- */

/* The gate of the ranks that take part; false: there is none for them. */
static bool find_gate(queued_call *q)
{
    const lk__peers_call *call = q->call;
    uint32_t              all = (1u << call->ranks) - 1;
    q->c.with = call->with;
    q->c.ranks = __builtin_popcount(call->with);
    q->c.half_bytes = HALF;
    if (call->with == all) return true;
    if (q->c.ranks != 2 || call->form != LK__PEERS_COPY || !takes_part(call, call->rank)) return false;
    int low = __builtin_ctz(call->with), high = 31 - __builtin_clz(call->with), other = low + high - call->rank;
    q->c.home = low;
    q->c.gate = 1 + high;
    q->c.other = 1 + other;
    q->c.half_bytes = PAIR_HALF;
    q->region = 2 * HALF + other * 2 * PAIR_HALF;
    q->theirs = 2 * HALF + call->rank * 2 * PAIR_HALF;
    return true;
}

static void queue_call(const queued_call *q)
{
    const lk__peers_call *call = q->call;
    int64_t               bytes = (int64_t)call->count * q->size;
    bool                  reduces = call->form == LK__PEERS_REDUCE || call->form == LK__PEERS_REDUCE_PARTS;
    int64_t               parts = call->form == LK__PEERS_REDUCE || call->same || q->c.other ? 1 : call->ranks;
    bool                  mapped = call->symmetric && parts * bytes > SMALL;
    if (call->form == LK__PEERS_BARRIER || call->count == 0)
        queue_gate(q, true, true);
    else if (reduces && mapped)
        queue_mapped_reduction(q);
    else if (call->form == LK__PEERS_REDUCE && bytes > ONE_PASS)
        queue_two_passes(q);
    else if (reduces)
        queue_one_pass(q);
    else if (mapped)
        queue_mapped_copies(q);
    else
        queue_staged_copies(q);
}

lk_status lk__cuda_peers_enqueue(lk__device *device, lk__device_stream *stream, const lk__peers_call *call)
{
    queued_call q = {};
    q.call = call;
    q.size = (int64_t)cuda_size(call->type);
    q.on.stream = lk__cuda_stream_of(device, stream);
    q.on.blocks = 2 * ((lk__cuda_device *)device)->processors;
    q.c.group = call->group;
    q.c.halted = call->halted;
    q.c.id = call->id;
    if (call->ranks < 1 || call->ranks > LK__PEERS_MOST || !find_gate(&q))
        return lk__cuda_host.fail(device->context, LK_EUNSUPPORTED,
                                  "there is no kernel for a collective in which %d of %d ranks take part",
                                  __builtin_popcount(call->with), call->ranks);
    queue_call(&q);
    return lk__cuda_end(device, stream, cudaGetLastError(), "queueing a collective");
}
