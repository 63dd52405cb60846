/* dropout.cu - zeroes elements at random and scales the rest by 1 / (1 - p). Whether an element is kept is a function
 * of (seed, epoch, op, sample, element of the sample), the same as on the CPU (device/cpu/dropout.c). A thread computes
 * the four numbers of one index of Philox, whose arithmetic bounds it. */
#include "device/cuda/map.h"
#include "device/cuda/random.h"

extern "C" {
#include "device/sample_part.h"
}

enum { DROPOUT_THREADS = 256, QUADS = 2 }; /* quads: of four elements, of one thread */

template <typename T> struct dropping {
    const T *x;
    T       *y;
    int64_t  rows, columns, quads; /* a row is a sample; quads: of a row */
    divider  over;                 /* quads */
    uint32_t threshold;            /* draws below it zero the element */
    WIDE(T) scale;
    uint64_t               stream;
    const lk__kernel_step *step;
};

/* PACKED: every quad is whole and aligned. */
template <typename T, bool PACKED>
static __global__ void __launch_bounds__(DROPOUT_THREADS) dropout_kernel(dropping<T> d)
{
    __shared__ lk__random     random;
    __shared__ const int64_t *ids;
    __shared__ int64_t        known;
    if (threadIdx.x == 0) {
        random = dropout_random(d.step, d.stream);
        ids = d.step->sample_ids;
        known = d.step->count;
    }
    __syncthreads();
    for (int q = 0; q < QUADS; q++) {
        int64_t column = ((int64_t)blockIdx.x * QUADS + q) * DROPOUT_THREADS + threadIdx.x;
        if (column >= d.rows * d.quads) return;
        int64_t  row = divide_off(column, d.over), at = row * d.columns + 4 * column;
        uint32_t bits[4];
        random4(random, (uint64_t)(ids && row < known ? ids[row] : row), (uint32_t)column, bits);
        if (PACKED) {
            lk__pack<T, 4> x = load_pack<4>(d.x + at);
#pragma unroll
            for (int k = 0; k < 4; k++) store(&x.at[k], bits[k] >= d.threshold ? load(&x.at[k]) * d.scale : (WIDE(T))0);
            store_pack<4>(d.y + at, x);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (4 * column + k < d.columns)
                    store(d.y + at + k, bits[k] >= d.threshold ? load(d.x + at + k) * d.scale : (WIDE(T))0);
        }
    }
}

/* A part of a sample: a thread computes the number of one element of the whole sample. */
template <typename T>
static __global__ void __launch_bounds__(DROPOUT_THREADS) dropout_part_kernel(dropping<T> d, lk__sample_part p)
{
    lk__random     random = dropout_random(d.step, d.stream);
    const int64_t *ids = d.step->sample_ids, known = d.step->count;
    EACH_INDEX(i, p.samples * p.elements)
    {
        int64_t  sample = i / p.elements + p.first, run = i % p.elements / p.length, at = p.base + i % p.length;
        uint32_t bits[4];
        for (int k = p.rank - 1; k >= 0; k--) { /* lk__sample_run */
            at += (run % p.extent[k] + p.origin[k]) * p.step[k];
            run /= p.extent[k];
        }
        random4(random, (uint64_t)(ids && sample < known ? ids[sample] : sample), (uint32_t)(at / 4), bits);
        store(d.y + i, bits[at % 4] >= d.threshold ? load(d.x + i) * d.scale : (WIDE(T))0);
    }
}

template <typename T> static void launch_dropout(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    double                    p = call->attrs->probability, threshold = ceil(p * 4294967296.0 - 0.5);
    int64_t     rows = call->attrs->rows > 1 ? call->attrs->rows : 1; /* of a sample, where a reshape merged axes */
    dropping<T> d = {};
    d.x = (const T *)x->data;
    d.y = out_data<T>(call, 0);
    d.rows = (x->rank ? x->dims[0] : 1) / rows;
    d.columns = cuda_product(x, 1, x->rank) * rows;
    d.quads = cuda_tiles(d.columns, 4);
    d.over = make_divider(d.quads);
    d.threshold = threshold <= 0 ? 0 : threshold > 4294967295.0 ? UINT32_MAX : (uint32_t)threshold;
    d.scale = (WIDE(T))(1 / (1 - p));
    d.stream = call->attrs->stream;
    d.step = call->step_memory;
    if (d.rows * d.columns == 0) return;
    if (threshold > 4294967295.0) { /* nothing is kept */
        cudaMemsetAsync(d.y, 0, (size_t)(d.rows * d.columns) * sizeof(T), cuda_stream(call));
        return;
    }
    if (x->part) {
        lk__sample_part part = lk__sample_part_of(x, rows);
        LAUNCH(dropout_part_kernel<T>, cuda_blocks(d.rows * d.columns, DROPOUT_THREADS), DROPOUT_THREADS, 0,
               cuda_stream(call), d, part);
        return;
    }
    bool     packed = d.columns % 4 == 0 && is_aligned(d.x, 4 * sizeof(T)) && is_aligned(d.y, 4 * sizeof(T));
    unsigned blocks = (unsigned)cuda_tiles(d.rows * d.quads, DROPOUT_THREADS * QUADS);
    if (packed)
        LAUNCH((dropout_kernel<T, true>), blocks, DROPOUT_THREADS, 0, cuda_stream(call), d);
    else
        LAUNCH((dropout_kernel<T, false>), blocks, DROPOUT_THREADS, 0, cuda_stream(call), d);
}

extern "C" lk_status lk__cuda_dropout(const lk__kernel_call *call)
{
    BY_ELEMENT(call->out[0].dtype, T, launch_dropout<T>(call);)
    return lk__cuda_launched(call);
}
