/* choose_top.cu - chooses a token where top-k or top-p excludes some: one block per row finds the last remaining token
 * by the bits of its logit, three bits with each pass over the row, and then chooses a token in the same way. Weights
 * are integers, whose sums are the same in any order. Latency bounds it: tens of passes over numbers in the
 * second-level cache, unless top-k leaves few. */
#include "device/cuda/choose_tokens.h"

enum { WEIGH_THREADS = 256, GATHERED = 1024 };
#if defined(LK_CUDA_EMULATED)
enum { TOP_THREADS = 64 }; /* the result is the same with any number */
#else
enum { TOP_THREADS = 1024 };
#endif

/* ---- the order of tokens: by logit, the largest first, equal ones by number ---- */

template <typename T> struct bits_of;
template <> struct bits_of<float> {
    typedef uint32_t type;
};
template <> struct bits_of<double> {
    typedef uint64_t type;
};

/* An integer in the order of the logit; both zeros are one number. */
static __device__ __forceinline__ uint32_t order_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
static __device__ __forceinline__ uint64_t order_of(double x)
{
    uint64_t bits;
    x += 0.0;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

template <typename K> struct limit_token {
    K       key;
    int64_t token;
};

/* The tokens that are looked at: all of a row, or those that were gathered. */
template <typename T> struct candidates {
    typedef typename bits_of<T>::type  K;
    const T                           *logits;
    const whole                       *weights;
    int64_t                            n;
    const K                           *keys; /* gathered; NULL: all */
    const int32_t                     *tokens;
    __device__ __forceinline__ K       key(int64_t i) const { return keys ? keys[i] : order_of(logits[i]); }
    __device__ __forceinline__ int64_t token(int64_t i) const { return keys ? tokens[i] : i; }
    __device__ __forceinline__ whole   weight(int64_t i) const { return weights[token(i)]; }
    __device__ __forceinline__ bool    remains(int64_t i, const limit_token<K> &limit) const
    {
        K k = key(i);
        return k > limit.key || (k == limit.key && token(i) <= limit.token);
    }
};

/* Sums of several numbers over the block. shared: (32, N). */
template <int N> static __device__ void block_sums(whole (&x)[N], whole *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = warp_sum(x[j]);
    __syncthreads();
    if (lane == 0)
        for (int j = 0; j < N; j++) shared[warp * N + j] = x[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = warp_sum(lane < warps ? shared[lane * N + j] : (whole)0);
}

/* The sum of x over the threads before this one. */
static __device__ whole sum_before(whole x, whole *shared)
{
    int   lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    whole sum = x, before = 0;
    for (int offset = 1; offset < 32; offset *= 2) {
        whole other = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += shared[w];
    return before + sum - x;
}

enum { DIGIT = 3, STEPS = 1 << DIGIT }; /* bits of a key that a pass finds */

/* The key at which the sum of weights (COUNT: the number) of tokens in order reaches `target`. */
template <typename T, bool COUNT, typename K>
static __device__ K find_key(const candidates<T> &c, const limit_token<K> &within, whole target, whole *shared)
{
    const int BITS = (int)sizeof(K) * 8;
    K         prefix = 0;
    for (int shift = (BITS - 1) / DIGIT * DIGIT; shift >= 0; shift -= DIGIT) {
        whole at_least[STEPS - 1] = {};
        int   steps = BITS - shift < DIGIT ? 1 << (BITS - shift) : (int)STEPS;
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < c.n; i += blockDim.x) {
            if (!c.remains(i, within)) continue;
            K     key = c.key(i);
            whole w = COUNT ? 1 : c.weight(i);
#pragma unroll
            for (int j = 1; j < STEPS; j++)
                if (j < steps && key >= (prefix | (K)j << shift)) at_least[j - 1] += w;
        }
        block_sums(at_least, shared);
        K digit = 0;
#pragma unroll
        for (int j = 1; j < STEPS; j++)
            if (j < steps && at_least[j - 1] >= target) digit = (K)j;
        prefix |= digit << shift;
    }
    return prefix;
}

/* A thread's range of the candidates, which are in the order of their numbers. */
struct range {
    int64_t begin, end;
};
static __device__ __forceinline__ range range_of(int64_t n)
{
    int64_t each = (n + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * each;
    return range{begin < n ? begin : n, begin + each < n ? begin + each : n};
}

/* The token at which the sum of weights (COUNT: the number) of tokens in order reaches `target`, at least 1 and at most
 * that of all; *sum: through it. */
template <typename T, bool COUNT, typename K>
static __device__ limit_token<K> find_limit(const candidates<T> &c, const limit_token<K> &within, whole target,
                                            whole *shared, whole *sum)
{
    __shared__ int64_t found;
    K                  key = find_key<T, COUNT>(c, within, target, shared);
    range              mine = range_of(c.n);
    whole above[1] = {}, one = 0, equal = 0; /* weight of larger keys, weight of a token with this key, their number */
    for (int64_t i = mine.begin; i < mine.end; i++) {
        if (!c.remains(i, within) || c.key(i) < key) continue;
        whole w = COUNT ? 1 : c.weight(i);
        if (c.key(i) > key)
            above[0] += w;
        else
            one = w, equal++;
    }
    block_sums(above, shared);
    __syncthreads();
    one = block_max(one, shared);
    whole wanted = (target - above[0] + one - 1) / one, before = sum_before(equal, shared);
    for (int64_t i = mine.begin; i < mine.end && before < wanted && before + equal >= wanted; i++)
        if (c.key(i) == key && c.remains(i, within) && ++before == wanted) found = c.token(i);
    __syncthreads();
    limit_token<K> limit = {key, found};
    *sum = above[0] + wanted * one;
    __syncthreads();
    return limit;
}

/* The candidates that remain, in the order of their numbers; at most GATHERED. */
template <typename T, typename K>
static __device__ candidates<T> gather(const candidates<T> &c, const limit_token<K> &limit, whole *shared, K *keys,
                                       int32_t *tokens)
{
    range mine = range_of(c.n);
    whole count = 0;
    for (int64_t i = mine.begin; i < mine.end; i++) count += c.remains(i, limit);
    whole before = sum_before(count, shared), all[1] = {count};
    for (int64_t i = mine.begin; i < mine.end; i++) {
        if (!c.remains(i, limit)) continue;
        keys[before] = c.key(i);
        tokens[before++] = (int32_t)c.token(i);
    }
    block_sums(all, shared);
    __syncthreads();
    candidates<T> some = c;
    some.n = (int64_t)all[0];
    some.keys = keys;
    some.tokens = tokens;
    return some;
}

template <typename T, typename K>
static __device__ whole weight_within(const candidates<T> &c, const limit_token<K> &limit, whole *shared)
{
    whole sum[1] = {};
    for (int64_t i = threadIdx.x; i < c.n; i += blockDim.x)
        if (c.remains(i, limit)) sum[0] += c.weight(i);
    block_sums(sum, shared);
    return sum[0];
}

/* ---- kernels ---- */

template <typename T> static __global__ void __launch_bounds__(WEIGH_THREADS) weigh_tokens(sampler s)
{
    double temperature = s.t.sampling->temperature;
    EACH_INDEX(i, s.t.rows * s.t.vocabulary)
    {
        double w = weight_of((double)((const T *)s.t.logits)[i], s.all[i / s.t.vocabulary].most, temperature);
        s.weights[i] = (whole)(w * 17592186044416.0 + 0.5); /* 2^44 */
    }
}

/* A block a row. */
template <typename T> static __global__ void __launch_bounds__(TOP_THREADS) choose_top(sampler s)
{
    typedef typename candidates<T>::K K;
    __shared__ whole                  shared[32 * (STEPS - 1)];
    __shared__ K                      keys[GATHERED];
    __shared__ int32_t                tokens[GATHERED];
    int64_t                           row = blockIdx.x, n = s.t.vocabulary, top_k = s.t.sampling->top_k;
    double                            top_p = s.t.sampling->top_p;
    if (s.all[row].best < 0) {
        if (threadIdx.x == 0) take_token(s, row, -1);
        return;
    }
    candidates<T>  c = {(const T *)s.t.logits + row * n, s.weights + row * n, n, NULL, NULL};
    limit_token<K> limit = {0, n};
    whole          sum;
    if (top_k > 0 && top_k < n) {
        limit = find_limit<T, true>(c, limit, (whole)top_k, shared, &sum);
        if (top_k <= GATHERED) c = gather(c, limit, shared, keys, tokens);
    }
    whole total = weight_within(c, limit, shared);
    __syncthreads();
    if (top_p > 0 && top_p < 1) {
        whole wanted = (whole)ceil(top_p * (double)total);
        wanted = wanted < 1 ? 1 : wanted > total ? total : wanted;
        limit = find_limit<T, false>(c, limit, wanted, shared, &total);
        if (!c.keys) { /* few, as a rule */
            whole count[1] = {};
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) count[0] += c.remains(i, limit);
            block_sums(count, shared);
            __syncthreads();
            if (count[0] <= GATHERED) c = gather(c, limit, shared, keys, tokens);
        }
    }
    whole target = (whole)(uniform_of(s, row) * (double)total) + 1;
    limit = find_limit<T, false>(c, limit, target < total ? target : total, shared, &sum);
    if (threadIdx.x == 0) take_token(s, row, limit.token);
}

template <typename T> static void launch_top(cudaStream_t stream, const sampler *s)
{
    LAUNCH(weigh_tokens<T>, cuda_blocks(s->t.rows * s->t.vocabulary, WEIGH_THREADS), WEIGH_THREADS, 0, stream, *s);
    LAUNCH(choose_top<T>, (unsigned)s->t.rows, TOP_THREADS, 0, stream, *s);
}

void lk__cuda_choose_top(cudaStream_t stream, const sampler *s)
{
    if (s->t.type == LK_F64)
        launch_top<double>(stream, s);
    else
        launch_top<float>(stream, s);
}
