/* skinny_transposed.cu - products with up to 8 rows of A whose B is transposed, (n, k): a row of B is a column of C,
 * which a warp sums, or a segment of it. The bytes of B bound it: generation reads all weights for each token.
 *
 * Memory must not be idle between two kernels, so the blocks of the next kernel start while this one runs (overlap.h),
 * and request their first weights before they wait for A. A kernel has one block for each multiprocessor, whose memory
 * holds two of them: one of this kernel and one of the next. More and smaller blocks would be placed where the first
 * ones end, several on one multiprocessor and none on others. A lane copies the packs that it adds itself, in the
 * background: nothing of a block has to be synchronised for them. Columns are divided over the blocks evenly, and where
 * that leaves warps without work, they are cut into segments. The division of a sum depends on the shape alone, and not
 * on the number of rows. */
#include "device/cuda/skinny_call.h"

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    UNIT = 4,       /* packs of a lane that are asked for together, at most */
    BLOCKS = 132,   /* multiprocessors of an H200; other GPUs get the same division */
    MANY = 32,      /* columns of a block from which on warps have enough, without segments */
    SEGMENTS = 8,   /* of a column at most */
    SLOTS = 16,     /* sums of a warp that are kept: at least MANY SEGMENTS / WARPS */
    HELD = 28 << 10 /* bytes of A that a block copies into its memory */
};

/* What a launch divides over blocks: items are columns of all products, or with a gate pairs of columns. */
struct column_work {
    int each, more;    /* items of a block; the first `more` blocks have one more */
    int shift, length; /* a column has 1 << shift segments, of so many elements */
    int rounds;        /* packs of a lane in a unit */
};

/* A warp's part of it. */
struct column_part {
    int first; /* item of the block */
    int items; /* of the block */
    int count; /* segments of the warp */
};

template <typename T>
static __device__ __forceinline__ column_part find_part(const skinny_call<T> &f, const column_work &work)
{
    int         warp = (int)threadIdx.x / 32, block = (int)blockIdx.x;
    column_part own = {block * work.each + (block < work.more ? block : work.more), work.each + (block < work.more), 0};
    int         all = own.items << work.shift;
    own.count = all > warp ? (all - warp + WARPS - 1) / WARPS * (f.gated ? 2 : 1) : 0;
    return own;
}

/* Segment `number` of a warp: where it is. */
struct column_place {
    int part, begin, column;
};

/* With a gate the same column of both products, one after the other; otherwise segments of neighbouring columns go to
 * neighbouring warps. */
template <typename T>
static __device__ __forceinline__ column_place find_place(const skinny_call<T> &f, const column_work &work,
                                                          const column_part &own, int number)
{
    int          at = (int)threadIdx.x / 32 + WARPS * (f.gated ? number / 2 : number), item = at >> work.shift;
    column_place place = {f.gated ? number % 2 : 0, (at - (item << work.shift)) * work.length, own.first + item};
    while (!f.gated && place.part + 1 < f.count && place.column >= (int)f.of[place.part].n)
        place.column -= (int)f.of[place.part++].n;
    return place;
}
template <typename T>
static __device__ __forceinline__ const T *row_of(const skinny_call<T> &f, const column_place &place)
{
    return f.of[place.part].b + place.column * f.of[place.part].b_ld + place.begin;
}
template <typename T>
static __device__ __forceinline__ int length_of(const skinny_call<T> &f, const column_work &work, int begin)
{
    return f.k - begin < work.length ? f.k - begin : work.length;
}

/* Where a warp asks next. */
template <typename T> struct column_cursor {
    const T *b;    /* of this lane */
    int      left; /* elements of the segment from there on */
    int      number;
};
template <typename T>
static __device__ __forceinline__ void begin_segment(const skinny_call<T> &f, const column_work &work,
                                                     const column_part &own, column_cursor<T> *c)
{
    if (c->number >= own.count) return;
    column_place place = find_place(f, work, own, c->number);
    int          skip = (int)(threadIdx.x % 32) * PACK(T);
    c->b = row_of(f, place) + skip;
    c->left = length_of(f, work, place.begin) - skip;
}

/* Asks for a unit, which goes to a lane's packs at `to`, and goes on to the next one. */
template <typename T>
static __device__ __forceinline__ void ask_unit(const skinny_call<T> &f, const column_work &work,
                                                const column_part &own, column_cursor<T> *c, T *to)
{
    constexpr int ROUND = 32 * PACK(T);
    if (c->number < own.count) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            if (i < work.rounds && i * ROUND < c->left) copy_pack(to + i * ROUND, c->b + i * ROUND, true);
        c->b += work.rounds * ROUND;
        c->left -= work.rounds * ROUND;
        if (c->left + (int)(threadIdx.x % 32) * PACK(T) <= 0) {
            c->number++;
            begin_segment(f, work, own, c);
        }
    }
    copies_commit();
}

/* Adds `COUNT` packs of a lane, whose first element is number q of A. */
template <int COUNT, typename T, int R>
static __device__ __forceinline__ void add_packs(const skinny_call<T> &f, const T *unit, const T *a, int ld, int q,
                                                 WIDE(T) (&sums)[R])
{
    constexpr int N = PACK(T), ROUND = 32 * N;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float row[N];
        unpack(load_bits(unit + i * ROUND), row);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float x[N];
            unpack(load_bits(a + (r < f.m ? r : 0) * ld + q + i * ROUND), x);
#pragma unroll
            for (int e = 0; e < N; e++) sums[r] += x[e] * row[e];
        }
    }
}

template <typename W> static __device__ __forceinline__ W silu(W x) { return x / ((W)1 + (W)exp(-x)); }

/* C rounded as it is stored. */
template <typename T> static __device__ __forceinline__ WIDE(T) rounded(WIDE(T) x)
{
    T narrow;
    store(&narrow, x);
    return load(&narrow);
}

/* What warps have summed, by warp and segment: one that is not needed any more is replaced by the SLOTS-th after it. */
template <typename W, int R> struct column_sums {
    W of[WARPS][SLOTS][R];
};

/* The sum of row r of a block's item, of product `part`. */
template <typename T, int R>
static __device__ __forceinline__ WIDE(T) add_segments(const skinny_call<T> &f, const column_work &work,
                                                       const column_sums<WIDE(T), R> &sums, int item, int part, int r)
{
    if (f.gated) return sums.of[item % WARPS][(item / WARPS * 2 + part) % SLOTS][r];
    int first = item << work.shift;
    WIDE(T) total = sums.of[first % WARPS][first / WARPS % SLOTS][r];
    for (int at = first + 1; at < first + (1 << work.shift); at++) total += sums.of[at % WARPS][at / WARPS % SLOTS][r];
    return total;
}

/* Items first … end-1 of those of a warp, which has every WARPS-th: a lane finishes one row of one. */
template <typename T, int R>
static __device__ __forceinline__ void finish_items(const skinny_call<T> &f, const column_work &work,
                                                    const column_part &own, const column_sums<WIDE(T), R> &sums,
                                                    int first, int end)
{
    typedef WIDE(T) W;
    for (int i = first * R + (int)threadIdx.x % 32; i < end * R; i += 32) {
        int r = i % R, item = (int)threadIdx.x / 32 + i / R * WARPS, column = own.first + item, part = 0;
        W   gate = 0;
        if (r >= f.m) continue;
        while (!f.gated && part + 1 < f.count && column >= (int)f.of[part].n) column -= (int)f.of[part++].n;
#pragma unroll 1
        for (int last = f.gated ? 1 : part; part <= last; part++) {
            const product_epilogue<T> &to = f.of[part].to;
            int64_t                    at = r * to.ld + column;
            W                          c = to.finish(at, column, add_segments<T, R>(f, work, sums, item, part, r));
            to.write(to.c, at, c);
            c = rounded<T>(c);
            if (f.gated && part == 1) store(f.gated + r * f.of[0].n + column, silu(gate) * c);
            gate = c;
        }
    }
}

/* FROM: where A is. */
enum { FROM_MEMORY, FROM_COPY, FROM_NORM };

/* DEEP: units of a warp that are under way. */
template <typename T, int R, int FROM, int DEEP>
static __global__ void __launch_bounds__(THREADS, R > 2 ? 1 : 2)
    multiply_columns(const __grid_constant__ skinny_call<T> f, const column_work work)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), ROUND = 32 * N;
    DYNAMIC_SHARED(T, memory); /* packs of weights, by warp, unit, pack and lane; then A */
    __shared__ column_sums<W, R> shared;
    column_part                  own = find_part(f, work);
    column_cursor<T>             asked = {NULL, 0, 0};
    int                          skip = (int)(threadIdx.x % 32) * N, warp = (int)threadIdx.x / 32;
    T *ring = memory + warp * DEEP * UNIT * ROUND + skip, *rows = memory + WARPS * DEEP * UNIT * ROUND;
    W  sums[R] = {};
    if (FROM == FROM_NORM) stage_norm<T, THREADS>(f, rows);
    begin_segment(f, work, own, &asked);
#pragma unroll 1
    for (int d = 0; d < DEEP; d++) ask_unit(f, work, own, &asked, ring + d * UNIT * ROUND);
    await_previous();
    const T *a = FROM == FROM_MEMORY ? f.a : rows;
    int      ld = FROM == FROM_MEMORY ? (int)f.a_ld : f.k;
    if constexpr (FROM == FROM_NORM) {
        copies_wait<DEEP>();
        normalise_rows<T, R, THREADS>(f, rows);
    }
    if constexpr (FROM == FROM_COPY)
        for (int i = (int)threadIdx.x * N; i < f.k; i += THREADS * N)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (r < f.m) store_pack<N>(rows + r * f.k + i, load_pack<N>(f.a + r * f.a_ld + i));
    if (FROM != FROM_MEMORY) __syncthreads();
    int number = 0, finished = 0, begin = 0, at = 0, length = 0; /* the segment that is added, and the unit in it */
    for (int slot = 0;; slot = slot + 1 < DEEP ? slot + 1 : 0) {
        if (number < own.count) {
            T *unit = ring + slot * UNIT * ROUND;
            if (at == 0) {
                begin = find_place(f, work, own, number).begin;
                length = length_of(f, work, begin);
            }
            int q = begin + at + skip;
            copies_wait<DEEP - 1>();
            if (work.rounds == UNIT && at + UNIT * ROUND <= length)
                add_packs<UNIT>(f, unit, a, ld, q, sums);
            else if (work.rounds == UNIT - 1 && at + (UNIT - 1) * ROUND <= length)
                add_packs<UNIT - 1>(f, unit, a, ld, q, sums);
            else
#pragma unroll 1
                for (int i = 0; i < work.rounds && at + i * ROUND + skip < length; i++)
                    add_packs<1>(f, unit + i * ROUND, a, ld, q + i * ROUND, sums);
            ask_unit(f, work, own, &asked, unit);
            at += work.rounds * ROUND;
            if (at < length) continue;
#pragma unroll
            for (int r = 0; r < R; r++) {
                W total = warp_sum(sums[r]);
                if (skip == 0) shared.of[warp][number % SLOTS][r] = total;
                sums[r] = 0;
            }
            number++;
            at = 0;
        }
        bool ends = number >= own.count;
        int  done = f.gated ? number / 2 : number; /* items of this warp */
        if (work.shift) {
            if (!ends) continue;
            __syncthreads(); /* segments of a column are of several warps; each comes here once */
            done = own.items > warp ? (own.items - warp + WARPS - 1) / WARPS : 0;
        } else if (!ends && (done - finished) * (f.gated ? 2 : 1) < SLOTS / 2)
            continue;
        __syncwarp();
        finish_items<T, R>(f, work, own, shared, finished, done);
        if (ends) return;
        __syncwarp();
        finished = done;
    }
}

/* ---- launches ---- */

/* The fewest rounds of a block's warps, in whole columns. */
static int choose_shift(int64_t columns, int64_t k, int pack)
{
    int    best = 0;
    double least = (double)cuda_tiles(columns, WARPS);
    for (int shift = 1; 1 << shift <= SEGMENTS && columns < MANY && k >> shift >= 32 * pack; shift++) {
        double rounds = (double)cuda_tiles(columns << shift, WARPS) / (1 << shift);
        if (rounds < 0.95 * least) best = shift, least = rounds;
    }
    return best;
}

template <typename T> static column_work divide_work(const skinny_call<T> &f, unsigned *blocks)
{
    constexpr int N = PACK(T);
    column_work   work = {};
    int64_t       items = 0;
    for (int i = 0; i < (f.gated ? 1 : f.count); i++) items += f.of[i].n;
    int64_t most = items < BLOCKS ? items : (int64_t)BLOCKS;
    *blocks = (unsigned)most;
    work.each = (int)(items / most);
    work.more = (int)(items % most);
    work.shift = f.gated ? 0 : choose_shift(cuda_tiles(items, most), f.k, N);
    work.length = (int)cuda_tiles(f.k, (int64_t)N << work.shift) * N;
    int64_t rounds = cuda_tiles(work.length, 32 * N); /* units that are all full, where there are such */
    work.rounds = (int)(rounds < UNIT ? rounds : rounds % UNIT != 0 && rounds % (UNIT - 1) == 0 ? UNIT - 1 : (int)UNIT);
    return work;
}

/* Two blocks of 96 KiB of weights and 16 KiB of A fit into a multiprocessor's 228 KiB. False: the GPU has less for one
 * block. */
template <typename T, int R, int FROM, int DEEP>
static bool launch_from(const lk__kernel_call *call, const skinny_call<T> &f, size_t bytes)
{
    unsigned    blocks;
    column_work work = divide_work(f, &blocks);
    bytes += (size_t)DEEP * UNIT * THREADS * 16;
    if (cudaFuncSetAttribute(multiply_columns<T, R, FROM, DEEP>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    lk__prefer_shared(multiply_columns<T, R, FROM, DEEP>);
    LAUNCH_EARLY_IF(f.early, (multiply_columns<T, R, FROM, DEEP>), blocks, THREADS, bytes, cuda_stream(call), f, work);
    return true;
}

template <typename T, int R, int DEEP> static bool launch_columns(const lk__kernel_call *call, const skinny_call<T> &f)
{
    size_t bytes = (size_t)(f.m * f.k) * sizeof(T);
    if (f.x) return launch_from<T, R, FROM_NORM, DEEP>(call, f, norm_bytes(f));
    if (bytes <= HELD) return launch_from<T, R, FROM_COPY, DEEP>(call, f, bytes);
    return launch_from<T, R, FROM_MEMORY, DEEP>(call, f, 0);
}

template <typename T, int R> static void launch_rows(const lk__kernel_call *call, const skinny_call<T> &f)
{
    if (!launch_columns<T, R, 3>(call, f)) (void)launch_columns<T, R, 1>(call, f);
}

template <typename T> static void launch(const lk__kernel_call *call, const skinny_call<T> &f)
{
    if (f.m == 1)
        launch_rows<T, 1>(call, f);
    else if (f.m == 2)
        launch_rows<T, 2>(call, f);
    else if (f.m <= 4)
        launch_rows<T, 4>(call, f);
    else
        launch_rows<T, 8>(call, f);
}

void lk__skinny_transposed(const lk__kernel_call *call, const skinny_call<bf16> &f) { launch(call, f); }
void lk__skinny_transposed(const lk__kernel_call *call, const skinny_call<float> &f) { launch(call, f); }
