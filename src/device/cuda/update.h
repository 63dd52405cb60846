/* device/cuda/update.h - updates many tensors in a few launches, for the kernels of optimizers. Each optimizer defines
 * a rule in its own file and instantiates its kernels with UPDATE_KERNELS.
 *
 * Bound by bytes. The rate and the step's number are read from the step block, so a launch can be recorded once; a
 * step that is halted changes nothing. What a launch must know of its tensors is in its parameters, 4 KiB at most,
 * so it needs no memory of the device. */
#ifndef LK__CUDA_UPDATE_H
#define LK__CUDA_UPDATE_H

#include "device/cuda/backend.h"
#include "device/cuda/map.h"
#include "device/cuda/optimizer.h"

/* ---- one tensor ----
 *
 * A rule has the number of its MOMENTS, attributes (the node's), the tensor that a call names, read and write of N
 * elements, and coefficients, which one thread of a block makes from the step while the others already read: the
 * powers of Adam's betas are in double. */

template <typename R, int M> struct tensor {
    const R *gradient;
    R       *parameter, *moment[M]; /* in the order of the operation's outputs; NULL: absent */
    bf16    *stored;                /* the parameter after the update, rounded; NULL: not needed */
    int64_t  n;
};

template <typename R, int M> static tensor<R, M> tensor_of_call(const lk__kernel_call *call)
{
    tensor<R, M> t = {};
    t.gradient = in_data<R>(call, 0);
    t.parameter = out_data<R>(call, 0);
    for (int m = 0; m < M; m++) t.moment[m] = out_data<R>(call, 1 + m);
    t.stored = out_data<bf16>(call, 1 + M);
    t.n = lk__operand_elements(&call->out[0]);
    return t;
}

template <typename R, int M, int N> struct tensor_values {
    lk__pack<R, N> gradient, parameter, moment[M];
};

static __device__ __forceinline__ float  square_root(float x) { return sqrtf(x); }
static __device__ __forceinline__ double square_root(double x) { return sqrt(x); }

/* Of a rule whose moments are all there. */
template <int N, typename R, int M>
static __device__ __forceinline__ void read_tensor(const tensor<R, M> &t, int64_t at, tensor_values<R, M, N> &v)
{
    v.gradient = load_pack<N>(t.gradient + at);
    v.parameter = load_pack<N>(t.parameter + at);
#pragma unroll
    for (int m = 0; m < M; m++) v.moment[m] = load_pack<N>(t.moment[m] + at);
}

template <typename R, int M, int N>
static __device__ __forceinline__ void store_parameter(const tensor<R, M> &t, int64_t at, const lk__pack<R, N> &p)
{
    store_pack<N>(t.parameter + at, p);
    if (!t.stored) return;
    lk__pack<bf16, N> rounded;
#pragma unroll
    for (int i = 0; i < N; i++) store(&rounded.at[i], (float)p.at[i]);
    store_pack<N>(t.stored + at, rounded);
}

enum { UPDATE_THREADS = 256, UPDATE_UNROLL = 2 };

/* What a block has to know before it writes: thread 0 makes it while the others already read. */
template <typename RULE> struct update_state {
    RULE rule;
    bool halted;
};

/* UPDATE_THREADS × UPDATE_UNROLL packs from `begin` on; all threads of the block call it. make(): sets *shared, by
 * thread 0. */
template <int N, typename RULE, typename R, int M, typename F>
static __device__ __forceinline__ void update_part(const tensor<R, M> &t, int64_t begin, update_state<RULE> *shared,
                                                   const F &make)
{
    tensor_values<R, M, N> v[UPDATE_UNROLL];
#pragma unroll
    for (int u = 0; u < UPDATE_UNROLL; u++) {
        int64_t at = begin + (u * UPDATE_THREADS + threadIdx.x) * N;
        if (at + N <= t.n) RULE::template read<N>(t, at, v[u]);
    }
    if (threadIdx.x == 0) make();
    __syncthreads();
    if (shared->halted) return;
    RULE own = shared->rule;
#pragma unroll
    for (int u = 0; u < UPDATE_UNROLL; u++) {
        int64_t at = begin + (u * UPDATE_THREADS + threadIdx.x) * N;
        if (at + N <= t.n) own.template write<N>(t, at, v[u]);
    }
    if (N == 1) return;
    int64_t                whole = t.n / N * N, at = whole + threadIdx.x; /* fewer than a pack */
    tensor_values<R, M, 1> one;
    if (begin + UPDATE_THREADS * UPDATE_UNROLL * N < t.n || at >= t.n) return; /* not the last block */
    RULE::template read<1>(t, at, one);
    own.template write<1>(t, at, one);
}

/* ---- launches ---- */

enum { RULES = 8 }; /* of one launch */

template <typename RULE, typename R> struct updates {
    enum { TENSORS = RULE::MOMENTS > 2 ? 48 : 56 }; /* as many as parameters of a kernel have room for */
    tensor<R, RULE::MOMENTS>  at[TENSORS];
    int32_t                   begin[TENSORS + 1]; /* the first block of each, and the end */
    uint8_t                   rule[TENSORS];      /* which of the attributes */
    typename RULE::attributes attributes[RULES];
    int32_t                   count, rules;
    const lk__kernel_step    *step;
    const double             *scale;
    const int32_t            *halted;
};

/* What a launch does besides, where it ends a step (backend.h): numbers of one micro-batch, as numbers.cu has them. */
enum { END_NUMBERS = 8 };
struct step_end {
    const void                  *value[END_NUMBERS];
    double                       otherwise[END_NUMBERS];
    int                          count, narrow; /* narrow: bits */
    bool                         judges, writes;
    double                      *sums;
    const lk__kernel_invalid_id *report;
    const lk__kernel_step       *step;
    int64_t                     *ring_slot;
    int32_t                     *halted;
    gradient_scaling             scaling;
    lk__device_result           *results;
};

static __device__ __forceinline__ double step_number(const step_end &e, int i)
{
    if (!e.value[i]) return e.otherwise[i];
    return e.narrow >> i & 1 ? (double)*(const float *)e.value[i] : *(const double *)e.value[i];
}
static __device__ __forceinline__ bool step_fails(const step_end &e)
{
    bool found = e.report->found;
    return !isfinite(step_number(e, 0)) || found;
}

/* One block: the sums, the scale, whether updates are halted, and all of it for the host. Updates of other blocks
 * judge by themselves. */
static __device__ void finish_step(const step_end &e)
{
    int i = (int)threadIdx.x;
    if (i >= 32) return;
    lk__device_result *to = e.results + e.step->ring_slot;
    if (i < e.count) e.sums[i] = to->sums[i] = step_number(e, i);
    __syncwarp();
    if (i != 0) return;
    int32_t halted = *e.halted;
    if (halted == 0 && step_fails(e)) *e.halted = halted = 1 + e.step->micro_batch;
    scale_gradients(e.scaling, 0);
    if (e.ring_slot) ++*e.ring_slot;
    to->norm = 0;
    to->invalid = *e.report;
    to->halted = halted;
    __threadfence_system(); /* the host polls the number of the step */
    *(volatile int64_t *)&to->step = e.step->step;
}

template <int N, typename RULE, typename R>
static __global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(const __grid_constant__ updates<RULE, R> u, const __grid_constant__ step_end end)
{
    await_previous();
    __shared__ update_state<RULE> shared;
    int32_t                       block = (int32_t)blockIdx.x - end.writes;
    if (block < 0) { /* beside the update: it takes as long as the way to the host's memory */
        finish_step(end);
        return;
    }
    int     i = find_tensor(u.begin, u.count, block);
    int64_t begin = (int64_t)(block - u.begin[i]) * UPDATE_THREADS * UPDATE_UNROLL * N;
    update_part<N>(u.at[i], begin, &shared, [&] {
        double           scale;
        gradient_scaling own = end.scaling;
        own.scale = &scale;
        own.norm = NULL;
        shared.halted = (u.halted && *u.halted) || (end.judges && step_fails(end));
        if (end.judges) scale_gradients(own, 0);
        shared.rule.prepare(u.attributes[u.rule[i]], u.step, end.judges ? &scale : u.scale);
    });
}

template <typename R, int M> static bool is_packed(const tensor<R, M> &t)
{
    bool packed = is_aligned(t.gradient, 16) && is_aligned(t.parameter, 16) && is_aligned(t.stored, 2 * PACK(R));
    for (int m = 0; m < M; m++) packed = packed && is_aligned(t.moment[m], 16);
    return packed;
}

/* The index of these attributes, which are added where they are new; -1: there is no room. */
template <typename RULE, typename R>
static int find_rule(updates<RULE, R> *u, const typename RULE::attributes &attributes)
{
    for (int i = 0; i < u->rules; i++)
        if (memcmp(&u->attributes[i], &attributes, sizeof attributes) == 0) return i;
    if (u->rules == RULES) return -1;
    u->attributes[u->rules] = attributes;
    return u->rules++;
}

/* Takes tensors from the call `first` on while there is room and they are aligned alike; returns how many. */
template <typename RULE, typename R>
static int collect_updates(updates<RULE, R> *u, const lk__kernel_call *const *calls, int first, int n, bool *packed)
{
    int i = first;
    *u = {};
    u->step = calls[first]->step_memory;
    u->scale = in_data<double>(calls[first], 1);
    u->halted = calls[first]->halted;
    *packed = is_packed(RULE::of_call(calls[first]));
    int64_t each = UPDATE_THREADS * UPDATE_UNROLL * (*packed ? PACK(R) : 1);
    for (; i < n && u->count < updates<RULE, R>::TENSORS; i++) {
        auto    t = RULE::of_call(calls[i]);
        int64_t blocks = cuda_tiles(t.n, each);
        if (t.n == 0) continue;
        if (is_packed(t) != *packed || u->begin[u->count] + blocks > INT32_MAX) break;
        int rule = find_rule(u, RULE::of_node(calls[i]->attrs));
        if (rule < 0) break;
        u->rule[u->count] = (uint8_t)rule;
        u->at[u->count++] = t;
        u->begin[u->count] = u->begin[u->count - 1] + (int32_t)blocks;
    }
    return i - first;
}

/* The last launch writes the step's result. */
template <typename RULE, typename R>
static void launch_updates(const lk__kernel_call *const *calls, int n, const step_end *ending)
{
    static_assert(sizeof(updates<RULE, R>) + sizeof(step_end) <= 4096, "a kernel's parameters");
    for (int first = 0; first < n;) {
        updates<RULE, R> u;
        bool             packed;
        cudaStream_t     stream = cuda_stream(calls[first]);
        step_end         end = ending ? *ending : step_end{};
        first += collect_updates(&u, calls, first, n, &packed);
        end.writes = ending && first == n;
        unsigned blocks = (unsigned)u.begin[u.count] + end.writes;
        if (blocks == 0) continue;
        if (packed)
            LAUNCH_EARLY((update_kernel<PACK(R), RULE, R>), blocks, UPDATE_THREADS, 0, stream, u, end);
        else
            LAUNCH_EARLY((update_kernel<1, RULE, R>), blocks, UPDATE_THREADS, 0, stream, u, end);
    }
}

/* The kernels of one optimizer: of one tensor, for table.cu, and of many. */
#define UPDATE_KERNELS(name)                                                                                          \
    extern "C" lk_status lk__cuda_update_##name(const lk__kernel_call *const *calls, int n, const step_end *ending)   \
    {                                                                                                                 \
        const lk__kernel_call *call = calls[0];                                                                       \
        BY_WIDE_ELEMENT(call->out[0].dtype, R, launch_updates<name##_rule<R>, R>(calls, n, ending);)                  \
        return lk__cuda_launched(call);                                                                               \
    }                                                                                                                 \
    extern "C" lk_status lk__cuda_##name(const lk__kernel_call *call) { return lk__cuda_update_##name(&call, 1, NULL); }

#endif
