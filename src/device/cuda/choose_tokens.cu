/* choose_tokens.cu - chooses the next token of each prompt from its logits, as device/choose_token.c does, and makes it
 * the input of the next step, so that a step begins without the host. A block has a chunk of the vocabulary; the last
 * block of a row to end chooses the token, and which one that is does not matter to the result. Latency bounds it: the
 * logits are in the second-level cache. */
#include "device/cuda/choose_tokens.h"

enum { THREADS = 256, EACH = 8, CHUNK = THREADS * EACH, MOST_CHUNKS = 256 };

/* What another block wrote. */
static __device__ __forceinline__ chunk_result read_result(const volatile chunk_result *r)
{
    return chunk_result{r->most, r->total, r->best};
}

static __device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

/* ---- chunks ---- */

/* Over a block; `shared`: 32 of each. */
static __device__ __forceinline__ int64_t block_least(int64_t x, int64_t *shared) { return -block_max(-x, shared); }

template <typename T>
static __device__ chunk_result weigh_chunk(const T *logits, int64_t begin, int64_t n, double temperature, double *reals,
                                           int64_t *integers)
{
    double       x[EACH];
    chunk_result r = {-INFINITY, 0, INT64_MAX};
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int64_t at = begin + e * THREADS + threadIdx.x;
        x[e] = at < n ? (double)logits[at] : -INFINITY;
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) r.most = x[e] > r.most || x[e] != x[e] ? x[e] : r.most;
    r.most = block_max(r.most, reals);
#pragma unroll
    for (int e = EACH - 1; e >= 0; e--)
        if (x[e] == r.most) r.best = begin + e * THREADS + threadIdx.x;
    r.best = block_least(r.best, integers);
    if (temperature > 0 && is_finite(r.most)) {
#pragma unroll
        for (int e = 0; e < EACH; e++) r.total += weight_of(x[e], r.most, temperature);
        r.total = block_sum(r.total, reals);
    }
    return r;
}

/* The largest logit of the row and the first token that has it: -1 where the row has NaN, or no finite logit as its
 * largest. */
static __device__ chunk_result weigh_row(const sampler &s, const chunk_result *results, double *reals,
                                         int64_t *integers)
{
    chunk_result r = {-INFINITY, 0, INT64_MAX};
    for (int64_t c = threadIdx.x; c < s.chunks; c += blockDim.x) {
        double most = read_result(&results[c]).most;
        r.most = most > r.most || most != most ? most : r.most;
    }
    r.most = block_max(r.most, reals);
    for (int64_t c = threadIdx.x; c < s.chunks; c += blockDim.x) {
        chunk_result chunk = read_result(&results[c]);
        if (chunk.most == r.most && chunk.best < r.best) r.best = chunk.best;
    }
    r.best = block_least(r.best, integers);
    if (!is_finite(r.most)) r.best = -1;
    return r;
}

/* ---- a token of all ---- */

/* The sum of x over the threads behind this one. */
static __device__ double sum_behind(double x, double *shared)
{
    int    lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    double sum = x, behind = 0;
    for (int offset = 1; offset < 32; offset *= 2) {
        double other = __shfl_down_sync(0xffffffffu, sum, offset);
        if (lane + offset < 32) sum += other;
    }
    __syncthreads();
    if (lane == 0) shared[warp] = sum;
    __syncthreads();
    for (int w = warps - 1; w > warp; w--) behind += shared[w];
    double next = __shfl_down_sync(0xffffffffu, sum, 1);
    return behind + (lane < 31 ? next : 0);
}

/* The last token of a chunk at which the sum of weights, from the chunk's end, exceeds `limit`. */
template <typename T>
static __device__ int64_t find_in_chunk(const T *logits, int64_t begin, int64_t n, double most, double temperature,
                                        double limit, double *reals, int64_t *integers)
{
    double  w[EACH], mine = 0;
    int64_t first = begin + threadIdx.x * EACH, found = -1, possible = INT64_MAX;
#pragma unroll
    for (int e = EACH - 1; e >= 0; e--) {
        w[e] = first + e < n ? weight_of((double)logits[first + e], most, temperature) : 0;
        if (w[e] > 0) possible = first + e;
        mine += w[e];
    }
    double sum = sum_behind(mine, reals);
#pragma unroll
    for (int e = EACH - 1; e >= 0; e--) {
        sum += w[e];
        if (found < 0 && w[e] > 0 && sum > limit) found = first + e;
    }
    found = block_max(found, integers);
    if (found >= 0) return found;
    __syncthreads();
    return block_least(possible, integers); /* rounding: the one that comes last */
}

/* By the whole block, whose chunks are all there. */
template <typename T>
static __device__ int64_t choose_of_all(const sampler &s, int64_t row, const chunk_result &all, double *reals,
                                        int64_t *integers)
{
    __shared__ double  scaled[MOST_CHUNKS], limit;
    __shared__ int64_t chosen;
    double             temperature = s.t.sampling->temperature;
    if (all.best < 0 || temperature == 0) return all.best;
    for (int64_t c = threadIdx.x; c < s.chunks; c += blockDim.x) {
        chunk_result r = read_result(&s.results[row * s.chunks + c]);
        scaled[c] = r.total > 0 ? r.total * weight_of(r.most, all.most, temperature) : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0, sum = 0;
        for (int64_t c = s.chunks - 1; c >= 0; c--) total += scaled[c];
        limit = uniform_of(s, row) * total;
        chosen = -1;
        for (int64_t c = s.chunks - 1; c >= 0 && chosen < 0; c--) {
            if (scaled[c] > 0 && sum + scaled[c] > limit) {
                chosen = c;
                limit -= sum;
            }
            sum += scaled[c];
        }
        if (chosen < 0) { /* rounding */
            chosen = 0;
            while (scaled[chosen] == 0) chosen++;
            limit = INFINITY;
        }
    }
    __syncthreads();
    return find_in_chunk((const T *)s.t.logits + row * s.t.vocabulary, chosen * CHUNK, s.t.vocabulary, all.most,
                         temperature, limit, reals, integers);
}

/* A block a chunk of a row. */
template <typename T> static __global__ void __launch_bounds__(THREADS) weigh_chunks(sampler s)
{
    __shared__ double   reals[32];
    __shared__ int64_t  integers[32];
    __shared__ bool     last;
    int64_t             row = blockIdx.x / s.chunks, chunk = blockIdx.x % s.chunks;
    unsigned long long *ended = (unsigned long long *)&s.t.prompts[row].ended;
    const T            *logits = (const T *)s.t.logits + row * s.t.vocabulary;
    wait_for_earlier();
    double       temperature = s.t.sorts ? 0 : s.t.sampling->temperature;
    chunk_result r = weigh_chunk(logits, chunk * CHUNK, s.t.vocabulary, temperature, reals, integers);
    if (threadIdx.x == 0) {
        s.results[row * s.chunks + chunk] = r;
        __threadfence();
        last = atomicAdd(ended, 1ull) == (unsigned long long)s.chunks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    chunk_result all = weigh_row(s, s.results + row * s.chunks, reals, integers);
    __syncthreads();
    int64_t token = s.t.sorts ? -1 : choose_of_all<T>(s, row, all, reals, integers);
    if (threadIdx.x != 0) return;
    *ended = 0;
    s.all[row] = all;
    if (!s.t.sorts) take_token(s, row, token);
}

/* ---- the step ---- */

static size_t results_bytes(int64_t n) { return lk__round_up((size_t)n * sizeof(chunk_result), 256); }

/* Sums of 2^19 weights fit into 64 bits. */
extern "C" bool lk__cuda_choose_tokens_supports(const lk__kernel_call *call)
{
    return cuda_tiles(call->in[LK__TOKENS_LOGITS].dims[1], CHUNK) <= MOST_CHUNKS;
}

/* Chunks' results, rows' results, weights. */
extern "C" size_t lk__cuda_choose_tokens_workspace(const lk__kernel_call *call, int)
{
    int64_t rows = call->in[LK__TOKENS_LOGITS].dims[0], vocabulary = call->in[LK__TOKENS_LOGITS].dims[1];
    return results_bytes(rows * cuda_tiles(vocabulary, CHUNK)) + results_bytes(rows) +
           (size_t)(rows * vocabulary) * sizeof(whole);
}

static token_operands operands_of(const lk__kernel_call *call)
{
    const lk__kernel_operand *logits = &call->in[LK__TOKENS_LOGITS];
    token_operands            t = {};
    t.logits = logits->data;
    t.type = logits->dtype;
    t.rows = logits->dims[0];
    t.vocabulary = logits->dims[1];
    t.window = call->attrs->window;
    t.sorts = call->attrs->sorts;
    t.sampling = in_data<lk__device_sampling>(call, LK__TOKENS_SAMPLING);
    t.prompts = out_data<lk__device_prompt>(call, LK__TOKENS_PROMPTS);
    t.chosen = out_data<int32_t>(call, LK__TOKENS_CHOSEN);
    t.places = out_data<int32_t>(call, LK__TOKENS_PLACES);
    t.tokens = out_data<int32_t>(call, LK__TOKENS_TOKENS);
    t.positions = out_data<int32_t>(call, LK__TOKENS_POSITIONS);
    t.first = out_data<int32_t>(call, LK__TOKENS_FIRST);
    t.last = out_data<int32_t>(call, LK__TOKENS_LAST);
    return t;
}

static sampler make_sampler(const lk__kernel_call *call)
{
    sampler s = {};
    char   *at = (char *)call->workspace;
    s.t = operands_of(call);
    s.chunks = cuda_tiles(s.t.vocabulary, CHUNK);
    s.results = (chunk_result *)at;
    at += results_bytes(s.t.rows * s.chunks);
    s.all = (chunk_result *)at;
    at += results_bytes(s.t.rows);
    s.weights = (whole *)at;
    return s;
}

extern "C" lk_status lk__cuda_choose_tokens(const lk__kernel_call *call)
{
    sampler      s = make_sampler(call);
    unsigned     blocks = (unsigned)(s.t.rows * s.chunks);
    cudaStream_t stream = cuda_stream(call);
    if (blocks == 0) return LK_OK;
    if (s.t.type == LK_F64)
        LAUNCH_EARLY(weigh_chunks<double>, blocks, THREADS, 0, stream, s);
    else
        LAUNCH_EARLY(weigh_chunks<float>, blocks, THREADS, 0, stream, s);
    if (s.t.sorts) lk__cuda_choose_top(stream, &s);
    return lk__cuda_launched(call);
}
