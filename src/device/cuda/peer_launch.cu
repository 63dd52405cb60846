/* peer_launch.cu - launches the kernels of queued collectives, by type, reduction and number of ranks. */
#include "device/cuda/peer_launch.h"

static unsigned peer_blocks(const peer_launcher *on, int64_t bytes)
{
    int64_t blocks = cuda_tiles(bytes, 16 * PEER_THREADS);
    return (unsigned)(blocks < 1 ? 1 : blocks > on->blocks ? on->blocks : blocks);
}

void lk__peer_launch_gate(const peer_launcher *on, peer_call c) { LAUNCH_EARLY(gate_kernel, 1, 32, 0, on->stream, c); }

void lk__peer_launch_copy(const peer_launcher *on, peer_call c, const peer_copies &copies)
{
    int64_t most = 0;
    for (int i = 0; i < copies.n; i++) most = copies.bytes[i] > most ? copies.bytes[i] : most;
    LAUNCH_EARLY(copy_kernel, peer_blocks(on, most), PEER_THREADS, 0, on->stream, c, copies);
}

void lk__peer_launch_small_copy(const peer_launcher *on, peer_call c, const peer_copies &publish,
                                const peer_copies &copies)
{
    LAUNCH_EARLY(small_copy_kernel, 1, PEER_THREADS, 0, on->stream, c, publish, copies);
}

/* ---- reductions: sums of floating-point numbers are the usual ones ---- */

template <bool SUMS, typename T>
static void launch_reduce(const peer_launcher *on, peer_call c, const peer_reduction &r)
{
    unsigned blocks = peer_blocks(on, r.count * (int64_t)sizeof(T));
    if (SUMS && r.n == 2)
        LAUNCH_EARLY((reduce_kernel<2, SUMS, T>), blocks, PEER_THREADS, 0, on->stream, c, r);
    else if (SUMS && r.n <= 4)
        LAUNCH_EARLY((reduce_kernel<4, SUMS, T>), blocks, PEER_THREADS, 0, on->stream, c, r);
    else
        LAUNCH_EARLY((reduce_kernel<8, SUMS, T>), blocks, PEER_THREADS, 0, on->stream, c, r);
}

template <bool SUMS, typename T>
static void launch_small_reduce(const peer_launcher *on, peer_call c, const peer_copies &publish,
                                const peer_reduction &r)
{
    if (SUMS && r.n == 2)
        LAUNCH_EARLY((small_reduce_kernel<2, SUMS, T>), 1, PEER_THREADS, 0, on->stream, c, publish, r);
    else
        LAUNCH_EARLY((small_reduce_kernel<8, SUMS, T>), 1, PEER_THREADS, 0, on->stream, c, publish, r);
}

/* Calls FUNCTION<SUMS, T>(arguments…). */
#define BY_TYPE(type, sums, FUNCTION, ...)                                                                       \
    switch (type) {                                                                                              \
    case LK_F32: sums ? FUNCTION<true, float>(__VA_ARGS__) : FUNCTION<false, float>(__VA_ARGS__); break;         \
    case LK_F64: sums ? FUNCTION<true, double>(__VA_ARGS__) : FUNCTION<false, double>(__VA_ARGS__); break;       \
    case LK_BF16: sums ? FUNCTION<true, bf16>(__VA_ARGS__) : FUNCTION<false, bf16>(__VA_ARGS__); break;          \
    case LK_F16: sums ? FUNCTION<true, half_bits>(__VA_ARGS__) : FUNCTION<false, half_bits>(__VA_ARGS__); break; \
    case LK_I8: FUNCTION<false, int8_t>(__VA_ARGS__); break;                                                     \
    case LK_U8: FUNCTION<false, uint8_t>(__VA_ARGS__); break;                                                    \
    case LK_I32: FUNCTION<false, int32_t>(__VA_ARGS__); break;                                                   \
    case LK_I64: FUNCTION<false, int64_t>(__VA_ARGS__); break;                                                   \
    case LK_DTYPE_COUNT: break;                                                                                  \
    }

static bool is_sum(const peer_reduction &r) { return r.op == LK_SUM || r.op == LK_AVG; }

void lk__peer_launch_reduce(const peer_launcher *on, peer_call c, const peer_reduction &r, lk_dtype type)
{
    BY_TYPE(type, is_sum(r), launch_reduce, on, c, r)
}

void lk__peer_launch_small_reduce(const peer_launcher *on, peer_call c, const peer_copies &publish,
                                  const peer_reduction &r,
                                  lk_dtype type){BY_TYPE(type, is_sum(r), launch_small_reduce, on, c, publish, r)}

/* ---- loading ---- */

/* With lazy loading the first launch of a kernel loads it, and waits for the device. */
lk_status lk__peer_load_kernels(lk__device *device, cudaStream_t stream, lk__peers_group *stopped)
{
    peer_launcher  on = {stream, 1};
    peer_call      c = {};
    peer_copies    none = {};
    peer_reduction r = {};
    c.group = stopped;
    lk__peer_launch_gate(&on, c);
    lk__peer_launch_copy(&on, c, none);
    lk__peer_launch_small_copy(&on, c, none, none);
    for (int type = 0; type < LK_DTYPE_COUNT; type++)
        for (int n = 2; n <= LK__PEERS_MOST; n *= 2)
            for (int op = LK_SUM; op <= LK_MIN; op += LK_MIN - LK_SUM) {
                r.n = n;
                r.op = (lk_reduce_op)op;
                lk__peer_launch_reduce(&on, c, r, (lk_dtype)type);
                lk__peer_launch_small_reduce(&on, c, none, r, (lk_dtype)type);
            }
    return lk__cuda_check(device, cudaGetLastError(), "loading the kernels of collectives");
}
