/* optimizer.cu - the common scale of all gradients; finds the kernels that update many tensors by the optimizer's
 * operation. */
#include "device/cuda/backend.h"
#include "device/cuda/sum.h"
#include "device/cuda/update.h"

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

lk_status lk__cuda_scale_many(const lk__kernel_call *const *squares, int n, const lk__kernel_call *call,
                              void *workspace)
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

typedef lk_status update_many(const lk__kernel_call *const *calls, int n, const step_end *ending);

extern "C" {
#define DECLARE(name, types)                                                                             \
    lk_status lk__cuda_update_##name(const lk__kernel_call *const *calls, int n, const step_end *ending) \
        __attribute__((weak));
LK__OP_LIST_OPTIMIZERS(DECLARE)
#undef DECLARE
}

/* NULL: it is not the operation of an optimizer, or there is no kernel. */
static update_many *find_update(lk__op op)
{
#define FIND(name, types) \
    if (op == LK__OP_##name) return lk__cuda_update_##name;
    LK__OP_LIST_OPTIMIZERS(FIND)
#undef FIND
    return NULL;
}

bool lk__cuda_updates(lk__op op) { return find_update(op) != NULL; }

lk_status lk__cuda_update_many(lk__op op, const lk__kernel_call *const *calls, int n)
{
    return find_update(op)(calls, n, NULL);
}

/* ---- the end of a step ---- */

/* Whether nothing but what the plan knows stands in the way: numbers that fit, and updates that this step alone can
 * halt. */
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
    end.ring_slot = n->ring_slot;
    end.halted = n->halted;
    end.scaling = describe_scaling(lk__group_call(update, LK__ROLE_SCALE));
    end.results = results;
    return find_update(update->ops[1])(update->calls + 1, update->count - 1, &end);
}
