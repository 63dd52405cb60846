/* optimizer.cu - the common scale of all gradients, SGD and Adam, with PyTorch's order of operations, over one tensor or over many in a
 * few launches. Bound by bytes: 7 streams for Adam, 8 where the parameter is also stored in bf16. The rate and the step's number are
 * read from the step block, so a launch can be recorded once; a step that is halted changes nothing.
 *
 * What a launch over many tensors must know of them is in its parameters, 4 KiB at most, so it needs no memory of the device. */
#include "device/cuda/backend.h"
#include "device/cuda/map.h"
#include "device/cuda/optimizer.h"
#include "device/cuda/sum.h"

/* ---- square_sum, gradient_scale ---- */

template <typename T> static void launch_square_sum(const lk__kernel_call *call)
{
    square_sum<T> f = {in_data<T>(call, 0)};
    sums_out<1>   out = {{out_data<double>(call, 0)}};
    launch_sums<PACK(T)>(call, f, lk__operand_elements(&call->in[0]), out, is_aligned(f.x, 16));
}

extern "C" size_t lk__cuda_square_sum_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return sums_workspace(lk__operand_elements(&call->in[0]), 1);
}

extern "C" lk_status lk__cuda_square_sum(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_square_sum<T>(call);)
    return lk__cuda_launched(call);
}

typedef struct square_sums {
    const double *at[LK__MAX_IN]; /* NULL: absent */
} square_sums;

static __global__ void gradient_scale_kernel(gradient_scaling g, square_sums s)
{
    await_previous();
    double squares = 0;
#pragma unroll
    for (int i = 0; i < LK__MAX_IN; i++) squares += s.at[i] ? *s.at[i] : 0;
    scale_gradients(g, squares);
}

extern "C" lk_status lk__cuda_gradient_scale(const lk__kernel_call *call)
{
    square_sums s = {};
    for (int i = 1; i < call->inputs; i++) s.at[i] = in_data<double>(call, i);
    LAUNCH_EARLY(gradient_scale_kernel, 1, 1, 0, cuda_stream(call), describe_scaling(call), s);
    return lk__cuda_launched(call);
}

/* ---- the scale from many gradients ---- */

enum { GRADIENTS = 160 }; /* of one launch */

template <typename T> struct gradients {
    const T *x[GRADIENTS];
    int64_t  n[GRADIENTS];
    int32_t  begin[GRADIENTS + 1]; /* the first block of each, and the end */
    int32_t  count;
};

/* Which of `count` has this block. */
static __device__ __forceinline__ int find_tensor(const int32_t *begin, int count, int32_t block)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (begin[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A part of SUM_PART elements of one gradient; aligned ones in packs. */
template <typename T>
static __global__ void __launch_bounds__(SUM_THREADS) gradient_parts_kernel(gradients<T> g, double *partial)
{
    await_previous();
    __shared__ double shared[32];
    int               tensor = find_tensor(g.begin, g.count, (int32_t)blockIdx.x);
    square_sum<T>     f = {g.x[tensor]};
    int64_t           n = g.n[tensor], begin = (int64_t)((int32_t)blockIdx.x - g.begin[tensor]) * SUM_PART;
    int64_t           end = begin + SUM_PART < n ? begin + SUM_PART : n;
    int64_t           whole = begin + (end - begin) / PACK(T) * PACK(T);
    bool              aligned = (uintptr_t)f.x % 16 == 0;
    double            sum[1] = {};
#pragma unroll 4
    for (int64_t at = begin + threadIdx.x * PACK(T); at < whole; at += SUM_THREADS * PACK(T)) {
        if (aligned) f.template add<PACK(T)>(at, sum);
        for (int i = 0; !aligned && i < PACK(T); i++) f.template add<1>(at + i, sum);
    }
    for (int64_t at = whole + threadIdx.x; at < end; at += SUM_THREADS) f.template add<1>(at, sum);
    sum[0] = block_sum(sum[0], shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

static __global__ void __launch_bounds__(SUM_THREADS)
    scale_from_parts_kernel(const double *partial, int64_t parts, gradient_scaling g)
{
    await_previous();
    __shared__ double shared[32];
    double            sum = 0;
#pragma unroll 4
    for (int64_t part = threadIdx.x; part < parts; part += SUM_THREADS) sum += partial[part];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) scale_gradients(g, sum);
}

size_t lk__cuda_scale_many_workspace(const lk__kernel_call *const *squares, int n)
{
    int64_t parts = 0;
    for (int i = 0; i < n; i++) parts += sum_parts(lk__operand_elements(&squares[i]->in[0]));
    return (size_t)parts * sizeof(double);
}

template <typename T>
static int64_t launch_gradient_parts(const lk__kernel_call *const *squares, int n, double *partial)
{
    int64_t done = 0;
    for (int first = 0; first < n; first += GRADIENTS) {
        gradients<T> g = {};
        for (g.count = 0; g.count < GRADIENTS && first + g.count < n; g.count++) {
            const lk__kernel_operand *x = &squares[first + g.count]->in[0];
            g.x[g.count] = (const T *)x->data;
            g.n[g.count] = lk__operand_elements(x);
            g.begin[g.count + 1] = g.begin[g.count] + (int32_t)sum_parts(g.n[g.count]);
        }
        unsigned blocks = (unsigned)g.begin[g.count];
        LAUNCH_EARLY(gradient_parts_kernel<T>, blocks, SUM_THREADS, 0, cuda_stream(squares[0]), g, partial + done);
        done += blocks;
    }
    return done;
}

lk_status lk__cuda_scale_many(const lk__kernel_call *const *squares, int n, const lk__kernel_call *call, void *workspace)
{
    double *partial = (double *)workspace;
    int64_t parts = 0;
    if (n > 0) {
        BY_WIDE_ELEMENT(squares[0]->in[0].dtype, T, parts = launch_gradient_parts<T>(squares, n, partial);)
    }
    LAUNCH_EARLY(scale_from_parts_kernel, 1, SUM_THREADS, 0, cuda_stream(call), partial, parts, describe_scaling(call));
    return lk__cuda_launched(call);
}

/* ---- optimizers ---- */

enum { TENSORS = 56, RULES = 8 }; /* of one launch */

template <typename RULE, typename R> struct updates {
    tensor<R>                 at[TENSORS];
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
    int64_t                     *turn;
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

/* One block: the sums, the scale, whether updates are halted, and all of it for the host. Updates of other blocks judge by themselves. */
static __device__ void finish_step(const step_end &e)
{
    int i = (int)threadIdx.x;
    if (i >= 32) return;
    lk__device_result *to = e.results + e.step->turn;
    if (i < e.count) e.sums[i] = to->sums[i] = step_number(e, i);
    __syncwarp();
    if (i != 0) return;
    int32_t halted = *e.halted;
    if (halted == 0 && step_fails(e)) *e.halted = halted = 1 + e.step->micro_batch;
    scale_gradients(e.scaling, 0);
    if (e.turn) ++*e.turn;
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

template <typename R> static bool is_packed(const tensor<R> &t)
{
    return is_aligned(t.gradient, 16) && is_aligned(t.parameter, 16) && is_aligned(t.first, 16) &&
           is_aligned(t.second, 16) && is_aligned(t.stored, 2 * PACK(R));
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
    for (; i < n && u->count < TENSORS; i++) {
        tensor<R> t = RULE::of_call(calls[i]);
        int64_t   blocks = cuda_tiles(t.n, each);
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

static lk_status update_all(lk__op op, const lk__kernel_call *const *calls, int n, const step_end *ending)
{
    const lk__kernel_call *call = calls[0];
    BY_WIDE_ELEMENT(call->out[0].dtype, R, if (op == LK__OP_sgd) launch_updates<sgd_rule<R>, R>(calls, n, ending);
                    else launch_updates<adam_rule<R>, R>(calls, n, ending);)
    return lk__cuda_launched(call);
}

lk_status lk__cuda_update_many(lk__op op, const lk__kernel_call *const *calls, int n)
{
    return update_all(op, calls, n, NULL);
}

/* ---- the end of a step ---- */

/* Whether nothing but what the plan knows stands in the way: numbers that fit, and updates that this step alone can halt. */
static bool ends_simply(const lk__device_numbers *n, const lk__device_group *update)
{
    if (!n->first || n->count > END_NUMBERS) return false;
    for (int i = 1; i < update->count; i++)
        if (update->calls[i]->halted != n->halted) return false;
    return true;
}

lk_status lk__cuda_end_step(lk__device *device, const lk__device_numbers *n, const lk__device_group *update,
                            lk__device_result *results, bool *done)
{
    (void)device;
    *done = ends_simply(n, update);
    if (!*done) return LK_OK;
    step_end end = {};
    for (int i = 0; i < n->count; i++) {
        end.value[i] = n->value[i];
        end.narrow |= n->narrow[i] << i;
        end.otherwise[i] = n->otherwise[i];
    }
    end.count = n->count;
    end.judges = true;
    end.sums = n->sums;
    end.report = n->report;
    end.step = n->step;
    end.turn = n->turn;
    end.halted = n->halted;
    end.scaling = describe_scaling(lk__group_call(update, LK__ROLE_SCALE));
    end.results = results;
    return update_all(update->ops[1], update->calls + 1, update->count - 1, &end);
}

extern "C" lk_status lk__cuda_sgd(const lk__kernel_call *call) { return lk__cuda_update_many(LK__OP_sgd, &call, 1); }
extern "C" lk_status lk__cuda_adam(const lk__kernel_call *call) { return lk__cuda_update_many(LK__OP_adam, &call, 1); }
