/* dnn_attention.cu - attention and its gradient as graphs of cuDNN operations, which its engines recognise and run as
 * one kernel each. The graphs are those that NVIDIA's cudnn-frontend composes for scaled_dot_product_attention;
 * operations and their order matter. q, k and v are read where they are, packed in one tensor or not, by strides. The
 * saved logarithm is cuDNN's `stats`: the natural logarithm of the sum of exp(score), as ours.
 *
 * The gradient's sums over keys are added with atomics by default, and with LOCKSTEP_CUDA_ANY_ORDER. Given dq as the
 * product's output, instead of a f32 accumulator, the engine stores the gradients of all scores (2 bytes each: B H T S)
 * and multiplies them afterwards: the same bits in every run. */
#include "device/cuda/dnn.h"
#include "device/cuda/dnn_attention.h"
#include "device/cuda/gemm.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifndef LK__CUDA_DNN

size_t lk__cuda_dnn_attention_workspace(const lk__kernel_call *call, bool gradient)
{
    (void)call, (void)gradient;
    return 0;
}
lk_status lk__cuda_dnn_attention_prepare(const lk__kernel_call *call, bool gradient)
{
    (void)call, (void)gradient;
    return LK_OK;
}
lk_status lk__cuda_dnn_attention(const lk__kernel_call *call, bool gradient)
{
    (void)call, (void)gradient;
    return LK_EUNSUPPORTED;
}

#else

/* ---- operands ---- */

typedef struct shapes {
    int64_t b, t, s, heads, groups, d, q_row, k_row;
    int64_t causal, gradient, atomics; /* 0 or 1; all fields are of one type, so that the struct is a key */
} shapes;

typedef struct pointers {
    char *q, *k, *v, *y, *dy, *dq, *dk, *dv;
    void *lse;
} pointers;

static bool has_whole_tiles(const shapes *x) { return x->t % 128 == 0 && x->s % 128 == 0; }
/* Others than whole tiles, from 64 on: with versions with which they were tested (find_plan). Where heads share keys,
 * cuDNN rounds the gradients of each before it adds them, which our own kernels do not. */
static bool has_known_lengths(const shapes *x)
{
    return has_whole_tiles(x) || (x->t >= 64 && x->s >= 64 && !(x->gradient && x->heads != x->groups));
}
enum { VERSION_OF_ANY_LENGTH = 91400 };

/* Whether cuDNN may compute it. Keys that a query does not see by other rules than causal, dropout (whose numbers are
 * ours) and odd widths are left to our own kernels. */
static bool describe_call(const lk__kernel_call *call, bool gradient, shapes *x)
{
    int                       operand = gradient ? 1 : 0;
    const lk__op_attrs       *attrs = call->attrs;
    const lk__kernel_operand *q = &call->in[operand], *k = &call->in[operand + 1];
    bool                      packed = !in_data<char>(call, operand + 1);
    memset(x, 0, sizeof *x);
    x->b = q->dims[0];
    x->t = q->dims[1];
    x->s = packed ? x->t : k->dims[1];
    x->heads = attrs->heads;
    x->groups = attrs->kv_heads;
    x->d = q->dims[2] / (packed ? x->heads + 2 * x->groups : x->heads);
    x->q_row = q->dims[2];
    x->k_row = packed ? x->q_row : k->dims[2];
    x->causal = attrs->causal;
    x->gradient = gradient;
    x->atomics = gradient && lk__cuda_any_order();
    for (int i = operand + 3 + 2 * gradient; i < call->inputs; i++)
        if (call->in[i].data) return false; /* first, last, lengths */
    if (gradient && !(call->out[0].data && (packed || (out_data<char>(call, 1) && out_data<char>(call, 2)))))
        return false;
    return q->dtype == LK_BF16 && x->d % 8 == 0 && x->d <= 128 && attrs->window == 0 && attrs->probability == 0 &&
           x->t > 1 && has_known_lengths(x);
}

static pointers find_operands(const lk__kernel_call *call, const shapes *x)
{
    int      operand = x->gradient ? 1 : 0;
    bool     packed = !in_data<char>(call, operand + 1);
    int64_t  k = x->heads * x->d * 2, v = k + x->groups * x->d * 2; /* bytes within a packed row */
    pointers p = {};
    p.q = (char *)call->in[operand].data;
    p.k = packed ? p.q + k : (char *)call->in[operand + 1].data;
    p.v = packed ? p.q + v : (char *)call->in[operand + 2].data;
    p.y = (char *)(x->gradient ? call->in[4].data : call->out[0].data);
    p.lse = x->gradient ? call->in[5].data : out_data<char>(call, 1);
    if (!x->gradient) return p;
    p.dy = (char *)call->in[0].data;
    p.dq = (char *)call->out[0].data;
    p.dk = packed ? p.dq + k : (char *)call->out[1].data;
    p.dv = packed ? p.dq + v : (char *)call->out[2].data;
    return p;
}

/* ---- graphs ---- */

enum { Q = 1, K, V, Y, LSE, SCALE, UNSEEN, ONE, DY, DQ, DK, DV, DELTA, DQ_SUMS };

typedef struct builder {
    lk__dnn_graph *g;
    shapes         x;
} builder;

static lk__dnn_descriptor make_tensor(const builder *b, const char *what, int64_t uid, cudnnDataType_t type,
                                      int64_t heads, int64_t rows, int64_t columns, int64_t batch_stride,
                                      int64_t head_stride, int64_t row_stride, int64_t column_stride)
{
    lk__dnn_tensor_shape shape = {{b->x.b, heads, rows, columns},
                                  {batch_stride, head_stride, row_stride, column_stride}};
    return lk__dnn_tensor(b->g, what, uid, type, 4, &shape);
}

/* Of queries and of what is laid out alike: row elements from a token to the next. */
static lk__dnn_descriptor make_heads(const builder *b, const char *what, int64_t uid, int64_t heads, int64_t tokens,
                                     int64_t row)
{
    return make_tensor(b, what, uid, CUDNN_DATA_BFLOAT16, heads, tokens, b->x.d, tokens * row, b->x.d, row, 1);
}

/* The same memory as (…, d, tokens). */
static lk__dnn_descriptor make_transposed(const builder *b, const char *what, int64_t uid)
{
    return make_tensor(b, what, uid, CUDNN_DATA_BFLOAT16, b->x.groups, b->x.d, b->x.s, b->x.s * b->x.k_row, b->x.d, 1,
                       b->x.k_row);
}

/* A virtual value for every score. */
static lk__dnn_descriptor make_scores(const builder *b, const char *what, cudnnDataType_t type)
{
    int64_t s = b->x.s, t = b->x.t;
    return make_tensor(b, what, 0, type, b->x.heads, t, s, b->x.heads * t * s, t * s, s, 1);
}

/* A value for every query. */
static lk__dnn_descriptor make_rows(const builder *b, const char *what, int64_t uid)
{
    int64_t t = b->x.t;
    return make_tensor(b, what, uid, CUDNN_DATA_FLOAT, b->x.heads, t, 1, b->x.heads * t, t, 1, 1);
}

static lk__dnn_descriptor add_scores(const builder *b, const char *what, cudnnPointwiseMode_t mode,
                                     lk__dnn_descriptor x, lk__dnn_descriptor y)
{
    lk__dnn_descriptor to = make_scores(b, what, CUDNN_DATA_FLOAT);
    lk__dnn_pointwise(b->g, what, mode, CUDNN_DATA_FLOAT, -1, x, y, NULL, to);
    return to;
}

/* Scores of keys behind their query become minus infinity. */
static lk__dnn_descriptor mask_scores(const builder *b, lk__dnn_descriptor scores)
{
    lk__dnn_graph     *g = b->g;
    lk__dnn_descriptor rows = make_scores(b, "the row indices", CUDNN_DATA_INT32);
    lk__dnn_descriptor columns = make_scores(b, "the column indices", CUDNN_DATA_INT32);
    lk__dnn_descriptor seen = make_scores(b, "the mask", CUDNN_DATA_BOOLEAN);
    lk__dnn_descriptor masked = make_scores(b, "the masked scores", CUDNN_DATA_FLOAT);
    lk__dnn_descriptor unseen = lk__dnn_scalar(g, "minus infinity", UNSEEN, CUDNN_DATA_FLOAT, 4);
    lk__dnn_pointwise(g, "row indices", CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, scores, NULL, NULL, rows);
    lk__dnn_pointwise(g, "column indices", CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, scores, NULL, NULL, columns);
    lk__dnn_pointwise(g, "row >= column", CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, rows, columns, NULL, seen);
    lk__dnn_pointwise(g, "selection by the mask", CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, unseen,
                      seen, masked);
    return masked;
}

/* The softmax of scores by rows, as bf16; writes lse. */
static lk__dnn_descriptor add_softmax(const builder *b, lk__dnn_descriptor scores, lk__dnn_descriptor lse)
{
    lk__dnn_graph     *g = b->g;
    lk__dnn_descriptor most = make_rows(b, "the row maxima", 0), total = make_rows(b, "the row sums", 0);
    lk__dnn_descriptor logarithm = make_rows(b, "the logarithms of the row sums", 0);
    lk__dnn_descriptor probs = make_scores(b, "the probabilities", CUDNN_DATA_BFLOAT16);
    lk__dnn_reduction(g, "maximum of each row", CUDNN_REDUCE_TENSOR_MAX, scores, most);
    lk__dnn_descriptor less = add_scores(b, "score - maximum", CUDNN_POINTWISE_SUB, scores, most);
    lk__dnn_descriptor powers = add_scores(b, "exp", CUDNN_POINTWISE_EXP, less, NULL);
    lk__dnn_reduction(g, "sum of each row", CUDNN_REDUCE_TENSOR_ADD, powers, total);
    lk__dnn_pointwise(g, "log", CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, -1, total, NULL, NULL, logarithm);
    lk__dnn_pointwise(g, "maximum + log", CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, most, logarithm, NULL, lse);
    lk__dnn_pointwise(g, "division by the sum", CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, powers, total, NULL, probs);
    return probs;
}

static void build_forward(const builder *b)
{
    const shapes      *x = &b->x;
    lk__dnn_descriptor q = make_heads(b, "q", Q, x->heads, x->t, x->q_row), k = make_transposed(b, "k", K);
    lk__dnn_descriptor v = make_heads(b, "v", V, x->groups, x->s, x->k_row);
    lk__dnn_descriptor y = make_heads(b, "y", Y, x->heads, x->t, x->heads * x->d), lse = make_rows(b, "lse", LSE);
    lk__dnn_descriptor scale = lk__dnn_scalar(b->g, "scale", SCALE, CUDNN_DATA_FLOAT, 4);
    lk__dnn_descriptor scores = make_scores(b, "the scores", CUDNN_DATA_FLOAT);
    lk__dnn_matmul(b->g, "q k'", q, k, scores);
    scores = add_scores(b, "scores × scale", CUDNN_POINTWISE_MUL, scores, scale);
    if (x->causal) scores = mask_scores(b, scores);
    lk__dnn_matmul(b->g, "probabilities v", add_softmax(b, scores, lse), v, y);
}

/* What has a value for every score, as the left side of a product over queries: (…, keys, queries) in bf16. */
static lk__dnn_descriptor transpose_scores(const builder *b, const char *what, lk__dnn_descriptor scores)
{
    int64_t            s = b->x.s, t = b->x.t;
    lk__dnn_descriptor to =
        make_tensor(b, what, 0, CUDNN_DATA_BFLOAT16, b->x.heads, s, t, b->x.heads * t * s, t * s, 1, s);
    lk__dnn_reshape(b->g, what, scores, to);
    return to;
}

/* to = left × right, of which heads that share keys are added. */
static void multiply_keys(const builder *b, const char *what, lk__dnn_descriptor left, lk__dnn_descriptor right,
                          lk__dnn_descriptor to)
{
    const shapes *x = &b->x;
    if (x->heads == x->groups) {
        lk__dnn_matmul(b->g, what, left, right, to);
        return;
    }
    lk__dnn_descriptor all = make_tensor(b, what, 0, CUDNN_DATA_BFLOAT16, x->heads, x->s, x->d, x->heads * x->s * x->d,
                                         x->s * x->d, x->d, 1);
    lk__dnn_matmul(b->g, what, left, right, all);
    lk__dnn_reduction(b->g, "sum of a group's heads", CUDNN_REDUCE_TENSOR_ADD, all, to);
}

static void build_gradient(const builder *b)
{
    const shapes      *x = &b->x;
    lk__dnn_graph     *g = b->g;
    int64_t            t = x->t, d = x->d, row = x->heads * x->d;
    lk__dnn_descriptor q = make_heads(b, "q", Q, x->heads, t, x->q_row);
    lk__dnn_descriptor k = make_transposed(b, "k", K), v = make_transposed(b, "v", V);
    lk__dnn_descriptor y = make_heads(b, "y", Y, x->heads, t, row), dy = make_heads(b, "dy", DY, x->heads, t, row);
    lk__dnn_descriptor dq = make_heads(b, "dq", DQ, x->heads, t, x->q_row);
    lk__dnn_descriptor dk = make_heads(b, "dk", DK, x->groups, x->s, x->k_row);
    lk__dnn_descriptor dv = make_heads(b, "dv", DV, x->groups, x->s, x->k_row);
    lk__dnn_descriptor lse = make_rows(b, "lse", LSE), delta = make_rows(b, "delta", DELTA);
    lk__dnn_descriptor scale = lk__dnn_scalar(g, "scale", SCALE, CUDNN_DATA_FLOAT, 4);
    lk__dnn_descriptor one = lk__dnn_scalar(g, "one", ONE, CUDNN_DATA_FLOAT, 4);

    /* delta = dy · y; the factor is dropout's, without which it is one */
    lk__dnn_descriptor products =
        make_tensor(b, "dy y", 0, CUDNN_DATA_FLOAT, x->heads, t, d, x->heads * t * d, t * d, x->heads * d, 1);
    lk__dnn_descriptor sums = make_rows(b, "the sums of dy y", 0);
    lk__dnn_pointwise(g, "dy y", CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, dy, y, NULL, products);
    lk__dnn_reduction(g, "sum of dy y", CUDNN_REDUCE_TENSOR_ADD, products, sums);
    lk__dnn_pointwise(g, "delta", CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sums, one, NULL, delta);

    /* probabilities, and dv */
    lk__dnn_descriptor scores = make_scores(b, "the scores", CUDNN_DATA_FLOAT);
    lk__dnn_matmul(g, "q k'", q, k, scores);
    scores = add_scores(b, "scores × scale", CUDNN_POINTWISE_MUL, scores, scale);
    scores = add_scores(b, "scores - lse", CUDNN_POINTWISE_SUB, scores, lse);
    if (x->causal) scores = mask_scores(b, scores);
    lk__dnn_descriptor probs = add_scores(b, "exp", CUDNN_POINTWISE_EXP, scores, NULL);
    multiply_keys(b, "probabilities' dy", transpose_scores(b, "probabilities'", probs), dy, dv);

    /* gradients of scores, and dk */
    lk__dnn_descriptor ds = make_scores(b, "the gradients of probabilities", CUDNN_DATA_FLOAT);
    lk__dnn_matmul(g, "dy v'", dy, v, ds);
    ds = add_scores(b, "gradients - delta", CUDNN_POINTWISE_SUB, ds, delta);
    ds = add_scores(b, "gradients × probabilities", CUDNN_POINTWISE_MUL, ds, probs);
    ds = add_scores(b, "gradients × scale", CUDNN_POINTWISE_MUL, ds, scale);
    multiply_keys(b, "gradients' q", transpose_scores(b, "gradients'", ds), q, dk);

    /* dq */
    lk__dnn_descriptor rows =
        make_tensor(b, "k as rows", 0, CUDNN_DATA_FLOAT, x->groups, x->s, d, x->s * x->k_row, d, x->k_row, 1);
    lk__dnn_reshape(g, "k as rows", k, rows);
    if (!x->atomics) {
        lk__dnn_matmul(g, "gradients k", ds, rows, dq);
        return;
    }
    lk__dnn_descriptor dq_sums =
        make_tensor(b, "dq's sums", DQ_SUMS, CUDNN_DATA_FLOAT, x->heads, t, d, x->heads * t * d, t * d, d, 1);
    lk__dnn_matmul(g, "gradients k", ds, rows, dq_sums);
    lk__dnn_pointwise(g, "dq from its sums", CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, dq_sums, NULL, NULL, dq);
}

/* ---- plans ---- */

/* Of what we give cuDNN: lse where the call has none, or delta. */
static size_t rows_space(const shapes *x) { return lk__round_up((size_t)(x->b * x->heads * x->t) * 4, 256); }
static size_t sums_space(const shapes *x) { return (size_t)(x->b * x->heads * x->t * x->d) * 4; }
/* Of the engine: backward the gradients of all scores, and sums of each head where heads share keys; in addition 9.19
 * asks for 384 bytes at most. A version that wants more than this is not used. */
static size_t engine_space(const shapes *x)
{
    if (!x->gradient) return (size_t)1 << 20;
    size_t t = lk__round_up((size_t)x->t, 128), s = lk__round_up((size_t)x->s, 128); /* whole tiles */
    size_t scores = (size_t)(x->b * x->heads) * t * s * 2, heads = (size_t)(x->b * x->heads * x->s * x->d) * 2;
    if (x->atomics) scores = sums_space(x);
    return scores + (x->heads == x->groups ? 0 : 2 * heads) + ((size_t)1 << 20);
}

size_t lk__cuda_dnn_attention_workspace(const lk__kernel_call *call, bool gradient)
{
    shapes x;
    return describe_call(call, gradient, &x) ? rows_space(&x) + engine_space(&x) + (x.atomics ? sums_space(&x) : 0) : 0;
}

/* The entry of these shapes, with one plan or a reason against it; NULL: there is no cuDNN. */
static lk__dnn_entry *find_plan(const lk__kernel_call *call, const shapes *x)
{
    static const char kind[8] = "attn";
    struct {
        char   kind[8];
        shapes x;
    } key;
    lk__cuda_dnn *dnn = lk__cuda_plain() ? NULL : lk__cuda_dnn_of(cuda_device(call));
    if (!dnn || (!has_whole_tiles(x) && lk__dnn_version(dnn) < VERSION_OF_ANY_LENGTH)) return NULL;
    memcpy(key.kind, kind, sizeof kind);
    key.x = *x;
    lk__dnn_entry *entry = lk__dnn_find(dnn, &key, sizeof key);
    if (entry || !(entry = lk__dnn_add(dnn, &key, sizeof key))) return entry;
    builder b = {&entry->graph, *x};
    if (x->gradient)
        build_gradient(&b);
    else
        build_forward(&b);
    if (!lk__dnn_build_plans(entry, engine_space(x) - 256, !x->atomics, 1)) /* it begins at a multiple of 256 */
        lk__cuda_host.log(call->device->context, LK_LOG_INFO,
                          "attention%s (%lld, %lld, %lld×%lld): cuDNN is not used: %s", x->gradient ? "_grad" : "",
                          (long long)x->b, (long long)x->t, (long long)x->heads, (long long)x->d, entry->graph.why);
    return entry;
}

/* On Hopper the gradient has the deterministic form; elsewhere it is unknown. Its heuristic may choose by the number of
 * samples, on which the bits of a sample must not depend where algorithms are not measured (--reproducible): our own
 * kernels run then. */
static bool is_device_known(const lk__kernel_call *call, bool gradient)
{
    const lk__cuda_device *device = cuda_device(call);
    return !device->base.by_heuristic && (gradient ? device->capability == 90 : device->capability >= 80);
}

lk_status lk__cuda_dnn_attention_prepare(const lk__kernel_call *call, bool gradient)
{
    shapes x;
    if (describe_call(call, gradient, &x) && x.b > 0 && is_device_known(call, gradient)) find_plan(call, &x);
    return LK_OK;
}

lk_status lk__cuda_dnn_attention(const lk__kernel_call *call, bool gradient)
{
    shapes         x;
    lk__dnn_entry *entry =
        describe_call(call, gradient, &x) && x.b > 0 && is_device_known(call, gradient) ? find_plan(call, &x) : NULL;
    if (!entry || entry->plan_count == 0) return LK_EUNSUPPORTED;
    pointers p = find_operands(call, &x);
    float    scale = (float)call->attrs->scale, one = 1;
    /* as its own frontend does */
    float unseen = lk__dnn_version(cuda_device(call)->dnn) < 91000 ? -FLT_MAX : -INFINITY;
    char   *rows = (char *)call->workspace, *engine = (char *)lk__round_up((size_t)(rows + rows_space(&x)), 256);
    int64_t uids[16];
    void   *at[16];
    int     count = 0;
#define OPERAND(uid, pointer) (uids[count] = (uid), at[count++] = (void *)(pointer))
    OPERAND(Q, p.q);
    OPERAND(K, p.k);
    OPERAND(V, p.v);
    OPERAND(Y, p.y);
    OPERAND(LSE, p.lse ? p.lse : rows);
    OPERAND(SCALE, &scale);
    if (x.causal) OPERAND(UNSEEN, &unseen);
    if (gradient) {
        OPERAND(ONE, &one);
        OPERAND(DY, p.dy);
        OPERAND(DQ, p.dq);
        OPERAND(DK, p.dk);
        OPERAND(DV, p.dv);
        OPERAND(DELTA, rows);
        if (x.atomics) OPERAND(DQ_SUMS, engine + engine_space(&x));
    }
#undef OPERAND
    return lk__dnn_run(cuda_device(call)->dnn, call, &entry->plans[0], count, uids, at, engine);
}

#endif
