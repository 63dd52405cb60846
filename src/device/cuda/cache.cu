/* cache.cu - writes rows into a buffer that earlier runs have filled: keys and values of generation. If two rows of a
 * sample have the same place, the later one is kept. Bound by bytes. */
#include "device/cuda/map.h"

enum { THREADS = 256, CHUNK = 128 }; /* units of a row that one warp copies */

typedef struct writing {
    const char            *x;
    char                  *cache;
    const int32_t         *rows;
    int64_t                n, s, units; /* n: rows of x; s: rows of the cache, of a sample; units: of a row */
    divider                t, chunks;   /* rows of x, of a sample */
    lk__kernel_invalid_id *invalid;
} writing;

template <typename U> static __global__ void __launch_bounds__(THREADS) cache_write_kernel(writing w)
{
    int64_t lane = threadIdx.x % 32, chunk = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int64_t i = divide_off(chunk, w.chunks), end = (chunk + 1) * CHUNK < w.units ? (chunk + 1) * CHUNK : w.units;
    if (i >= w.n) return;
    int64_t sample = divide(i, w.t), row = w.rows[i];
    bool    later = false;
    if (row < 0) return;
    if (row >= w.s) {
        if (lane == 0 && chunk == 0) report_invalid(w.invalid, LK__OP_cache_write, w.rows, w.n, i, w.s);
        return;
    }
    for (int64_t k = i + 1 + lane; k < (sample + 1) * w.t.by; k += 32) later |= w.rows[k] == row;
    if (__ballot_sync(0xffffffffu, later)) return;
    const U *x = (const U *)w.x + i * w.units;
    U       *to = (U *)w.cache + (sample * w.s + row) * w.units;
#pragma unroll 4
    for (int64_t k = chunk * CHUNK + lane; k < end; k += 32) to[k] = x[k];
}

template <typename U> static void launch_cache_write(const lk__kernel_call *call, int64_t bytes)
{
    const lk__kernel_operand *x = &call->in[1];
    writing                   w = {};
    w.x = (const char *)x->data;
    w.cache = out_data<char>(call, 0);
    w.rows = in_data<int32_t>(call, 2);
    w.n = x->dims[0] * x->dims[1];
    w.s = call->out[0].dims[1];
    w.units = bytes / (int64_t)sizeof(U);
    w.t = make_divider(x->dims[1]);
    w.chunks = make_divider(cuda_tiles(w.units, CHUNK));
    w.invalid = call->invalid;
    unsigned blocks = (unsigned)cuda_tiles(w.n * w.chunks.by, THREADS / 32);
    LAUNCH(cache_write_kernel<U>, blocks, THREADS, 0, cuda_stream(call), w);
}

extern "C" lk_status lk__cuda_cache_write(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[1];
    int64_t                   bytes = x->dims[2] * (int64_t)cuda_size(x->dtype);
    if (lk__operand_elements(x) == 0) return LK_OK;
    uintptr_t bits = (uintptr_t)bytes | (uintptr_t)x->data | (uintptr_t)call->out[0].data;
    if (bits % 16 == 0)
        launch_cache_write<uint4>(call, bytes);
    else if (bits % 4 == 0)
        launch_cache_write<uint32_t>(call, bytes);
    else
        launch_cache_write<uint16_t>(call, bytes);
    return lk__cuda_launched(call);
}
