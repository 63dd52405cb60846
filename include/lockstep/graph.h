/* graph.h - a model is a graph: calls record operations, and nothing is computed until a program runs.
 *
 * A tensor is a value in a graph and is passed by value. Optional arguments are named: lk_max_pool2d(x, 3, .stride =
 * 2). Errors are kept in the graph: it stores the first invalid call with its file and line, later calls do nothing,
 * and lk_plan_create reports the error. An empty tensor, (lk_tensor){0}, belongs to no graph; its rank and sizes are 0.
 * A call whose tensors are all empty records nothing and returns an empty tensor, whose id is minus the line of the
 * first such call; functions that take a model or a loss report that line. Every lk_name(...) that records a call is a
 * macro for lk_name_at(site, ...), which other languages can call. */
#ifndef LOCKSTEP_GRAPH_H
#define LOCKSTEP_GRAPH_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_graph lk_graph; /* use from one thread */

typedef struct lk_tensor {
    lk_graph *graph;
    int       id;
} lk_tensor;

/* real is the type of all floating-point values of the graph: LK_F32, or LK_F64 for numerical checks. */
LK_API lk_status   lk_graph_create(lk_context *context, lk_dtype real, lk_graph **graph);
LK_API void        lk_graph_free(lk_graph *graph);
LK_API lk_status   lk_graph_status(const lk_graph *graph); /* LK_OK, or the first failure … */
LK_API const char *lk_graph_error(const lk_graph *graph);  /* … and its message, with file and line; "" if none */
/* Makes the graph fail with this message, as after an invalid call but without a file and line; for functions that
 * record a model and check their own arguments. Has no effect if the graph has already failed. */
LK_API void        lk_graph_fail(lk_graph *graph, const char *format, ...) __attribute__((format(printf, 2, 3)));
LK_API lk_context *lk_graph_context(const lk_graph *graph);
LK_API lk_dtype    lk_graph_dtype(const lk_graph *graph);

/* Write a listing with one operation per line, or the graph in Graphviz's DOT language. */
LK_API void lk_graph_print(const lk_graph *graph, lk_text_callback write, void *user);
LK_API void lk_graph_dot(const lk_graph *graph, lk_text_callback write, void *user);

LK_API int      lk_tensor_rank(lk_tensor x);
LK_API int64_t  lk_tensor_dim(lk_tensor x, int axis); /* capacity; axis may count from the end (-1) */
LK_API lk_dtype lk_tensor_dtype(lk_tensor x);

/* ---- inputs, parameters, buffers, constants, blocks ---- */

typedef struct lk_input_options {
    int  reserved LK_ZERO;
    bool fixed LK_ZERO; /* axis 0 is not the batch axis: its size does not change from run to run */
} lk_input_options;

/* A value that the caller binds before a run. Its type is the graph's, LK_U8, LK_I32 or LK_I64. Axis 0 is the batch
 * axis: dims[0] is its capacity, and each run sets the number of samples. */
LK_API lk_tensor lk_input_at(lk_site site, lk_graph *graph, const char *name, lk_dtype type, int rank,
                             const int64_t *dims, lk_input_options options);
#define lk_input(graph, name, type, rank, dims, ...) \
    lk_input_at(LK_HERE, graph, name, type, rank, dims, LK_OPTIONS(lk_input_options, ##__VA_ARGS__))

typedef enum lk_initializer { LK_INIT_ZERO, LK_INIT_CONSTANT, LK_INIT_UNIFORM, LK_INIT_NORMAL } lk_initializer;

typedef struct lk_parameter_options {
    int            reserved LK_ZERO;
    lk_initializer init LK_ZERO;
    double         a LK_ZERO;        /* the constant; the uniform's bound (-a … a); the normal's standard deviation */
    bool           frozen LK_ZERO;   /* no gradient, no update */
    bool           no_decay LK_ZERO; /* for biases and norms: no weight decay unless the optimizer's decay_all is set */
} lk_parameter_options;

/* A trained value with a global name, prefixed with the names of the open blocks: "layer1.0.conv1.weight". */
LK_API lk_tensor lk_parameter_at(lk_site site, lk_graph *graph, const char *name, int rank, const int64_t *dims,
                                 lk_parameter_options options);
#define lk_parameter(graph, name, rank, dims, ...) \
    lk_parameter_at(LK_HERE, graph, name, rank, dims, LK_OPTIONS(lk_parameter_options, ##__VA_ARGS__))
typedef struct lk_buffer_options {
    int  reserved LK_ZERO;
    bool not_saved LK_ZERO; /* not saved, and not changed by loading, like a cache; PyTorch's persistent=False */
} lk_buffer_options;

/* State that is saved but not trained (running statistics), initialised to `value`. type is the graph's or LK_I64. */
LK_API lk_tensor lk_buffer_at(lk_site site, lk_graph *graph, const char *name, lk_dtype type, int rank,
                              const int64_t *dims, double value, lk_buffer_options options);
#define lk_buffer(graph, name, type, rank, dims, value, ...) \
    lk_buffer_at(LK_HERE, graph, name, type, rank, dims, value, LK_OPTIONS(lk_buffer_options, ##__VA_ARGS__))
/* Data that the graph copies. It must be the same on all ranks (they compare it), has no gradient and is never saved.
 * type is LK_F32, LK_F64, LK_I32, LK_I64 or LK_U8; for operations on floating-point values it must be the graph's. */
LK_API lk_tensor lk_constant_at(lk_site site, lk_graph *graph, lk_dtype type, int rank, const int64_t *dims,
                                const void *data);
#define lk_constant(...) lk_constant_at(LK_HERE, __VA_ARGS__)
/* Makes `name` (under the open blocks) a second name of a parameter or buffer: tied weights. Checkpoints contain both
 * names. */
LK_API void lk_tie_at(lk_site site, lk_tensor parameter, const char *name);
#define lk_tie(...) lk_tie_at(LK_HERE, __VA_ARGS__)

typedef struct lk_block_options {
    int  reserved LK_ZERO;
    bool recompute LK_ZERO; /* keep only the block's inputs, and run its forward again in backward */
} lk_block_options;

/* A block is the unit of name scopes, recomputation, gathering of sharded parameters and pipeline stages. Blocks may be
 * nested; x identifies the graph. An empty name adds nothing to the names within the block. */
LK_API void lk_block_begin_at(lk_site site, lk_tensor x, const char *name, lk_block_options options);
#define lk_block_begin(x, name, ...) lk_block_begin_at(LK_HERE, x, name, LK_OPTIONS(lk_block_options, ##__VA_ARGS__))
LK_API void lk_block_end_at(lk_site site, lk_tensor x);
#define lk_block_end(x) lk_block_end_at(LK_HERE, x)

/* ---- element-wise ---- */

LK_API lk_tensor lk_add_at(lk_site site, lk_tensor a, lk_tensor b); /* these four broadcast as in PyTorch */
LK_API lk_tensor lk_sub_at(lk_site site, lk_tensor a, lk_tensor b);
LK_API lk_tensor lk_mul_at(lk_site site, lk_tensor a, lk_tensor b);
LK_API lk_tensor lk_div_at(lk_site site, lk_tensor a, lk_tensor b);
LK_API lk_tensor lk_scale_at(lk_site site, lk_tensor x, double factor);
LK_API lk_tensor lk_relu_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_silu_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_sigmoid_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_tanh_at(lk_site site, lk_tensor x);
#define lk_add(a, b) lk_add_at(LK_HERE, a, b)
#define lk_sub(a, b) lk_sub_at(LK_HERE, a, b)
#define lk_mul(a, b) lk_mul_at(LK_HERE, a, b)
#define lk_div(a, b) lk_div_at(LK_HERE, a, b)
#define lk_scale(x, factor) lk_scale_at(LK_HERE, x, factor)
#define lk_relu(x) lk_relu_at(LK_HERE, x)
#define lk_silu(x) lk_silu_at(LK_HERE, x)
#define lk_sigmoid(x) lk_sigmoid_at(LK_HERE, x)
#define lk_tanh(x) lk_tanh_at(LK_HERE, x)

LK_API lk_tensor lk_exp_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_log_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_sqrt_at(lk_site site, lk_tensor x);
LK_API lk_tensor lk_pow_at(lk_site site, lk_tensor x, double exponent); /* like pow in C */
/* A bound of -INFINITY or INFINITY means no bound on that side. */
LK_API lk_tensor lk_clamp_at(lk_site site, lk_tensor x, double minimum, double maximum);
LK_API lk_tensor lk_leaky_relu_at(lk_site site, lk_tensor x, double slope);
#define lk_exp(x) lk_exp_at(LK_HERE, x)
#define lk_log(x) lk_log_at(LK_HERE, x)
#define lk_sqrt(x) lk_sqrt_at(LK_HERE, x)
#define lk_pow(x, exponent) lk_pow_at(LK_HERE, x, exponent)
#define lk_clamp(x, minimum, maximum) lk_clamp_at(LK_HERE, x, minimum, maximum)
#define lk_leaky_relu(x, slope) lk_leaky_relu_at(LK_HERE, x, slope)

/* a where the condition is not 0, b elsewhere; all three broadcast. The condition may have any type and has no
 * gradient. */
LK_API lk_tensor lk_where_at(lk_site site, lk_tensor condition, lk_tensor a, lk_tensor b);
#define lk_where(condition, a, b) lk_where_at(LK_HERE, condition, a, b)

/* Converts x, of any type, to LK_F32, LK_F64 or LK_BF16. All floating-point operands of an operation must have the same
 * type, except that f32 and bf16 may be mixed: most operations then compute in bf16; softmax, losses, sums and maxima
 * compute in f32 or wider. */
LK_API lk_tensor lk_cast_at(lk_site site, lk_tensor x, lk_dtype type);
#define lk_cast(x, type) lk_cast_at(LK_HERE, x, type)

/* x, without a gradient (PyTorch's detach). */
LK_API lk_tensor lk_stop_gradient_at(lk_site site, lk_tensor x);
#define lk_stop_gradient(x) lk_stop_gradient_at(LK_HERE, x)

/* Sets how x is placed over the ranks along an axis of the mesh, which must be "tensor": split along a dimension
 * (negative: counted from the last) or, with LK_REPLICATED, whole on every rank (like JAX's with_sharding_constraint).
 * The placement of other values follows from it. Has no effect if the mesh lacks that axis. x must not be an input of
 * the model, because every rank has whole inputs. Returns x. */
enum { LK_REPLICATED = -1000 };
LK_API lk_tensor lk_place_at(lk_site site, lk_tensor x, const char *axis, int dim);
#define lk_place(x, axis, dim) lk_place_at(LK_HERE, x, axis, dim)

typedef struct lk_gelu_options {
    int  reserved LK_ZERO;
    bool tanh LK_ZERO; /* the tanh approximation (GPT-2's) instead of the exact erf */
} lk_gelu_options;
LK_API lk_tensor lk_gelu_at(lk_site site, lk_tensor x, lk_gelu_options options);
#define lk_gelu(x, ...) lk_gelu_at(LK_HERE, x, LK_OPTIONS(lk_gelu_options, ##__VA_ARGS__))

/* In training, zeroes elements with the given probability and scales the rest; in evaluation, returns x unchanged. */
LK_API lk_tensor lk_dropout_at(lk_site site, lk_tensor x, double probability);
#define lk_dropout(x, probability) lk_dropout_at(LK_HERE, x, probability)

/* ---- along an axis (which may count from the end) ---- */

LK_API lk_tensor lk_softmax_at(lk_site site, lk_tensor x, int axis);
LK_API lk_tensor lk_log_softmax_at(lk_site site, lk_tensor x, int axis);
#define lk_softmax(x, axis) lk_softmax_at(LK_HERE, x, axis)
#define lk_log_softmax(x, axis) lk_log_softmax_at(LK_HERE, x, axis)

typedef struct lk_reduce_options {
    int        reserved LK_ZERO;
    const int *axes LK_ZERO; /* NULL: all; else as .axes = (int[]){0, 1}, .axes_count = 2 */
    int        axes_count LK_ZERO;
    bool       keepdim LK_ZERO;
} lk_reduce_options;
LK_API lk_tensor lk_sum_at(lk_site site, lk_tensor x, lk_reduce_options options);
/* along the batch axis, divides by the actual number of samples, not by the capacity */
LK_API lk_tensor lk_mean_at(lk_site site, lk_tensor x, lk_reduce_options options);
#define lk_sum(x, ...) lk_sum_at(LK_HERE, x, LK_OPTIONS(lk_reduce_options, ##__VA_ARGS__))
#define lk_mean(x, ...) lk_mean_at(LK_HERE, x, LK_OPTIONS(lk_reduce_options, ##__VA_ARGS__))

typedef struct lk_axis_options {
    int  reserved LK_ZERO;
    bool keepdim LK_ZERO;
} lk_axis_options;
/* Over one axis, which must not be the batch axis. NaN counts as larger than all numbers; the gradient goes to the
 * first maximum. argmax returns the i32 index of the first maximum, and has no gradient. */
LK_API lk_tensor lk_max_at(lk_site site, lk_tensor x, int axis, lk_axis_options options);
LK_API lk_tensor lk_argmax_at(lk_site site, lk_tensor x, int axis, lk_axis_options options);
#define lk_max(x, axis, ...) lk_max_at(LK_HERE, x, axis, LK_OPTIONS(lk_axis_options, ##__VA_ARGS__))
#define lk_argmax(x, axis, ...) lk_argmax_at(LK_HERE, x, axis, LK_OPTIONS(lk_axis_options, ##__VA_ARGS__))

/* ---- shape ---- */

LK_API lk_tensor lk_reshape_at(lk_site site, lk_tensor x, int rank, const int64_t *dims); /* one dim may be -1 */
LK_API lk_tensor lk_flatten_at(lk_site site, lk_tensor x); /* (N, …) → (N, product) */
LK_API lk_tensor lk_transpose_at(lk_site site, lk_tensor x, int axis_a, int axis_b);
LK_API lk_tensor lk_permute_at(lk_site site, lk_tensor x, const int *axes); /* as many as x has axes */
LK_API lk_tensor lk_slice_at(lk_site site, lk_tensor x, int axis, int64_t start, int64_t length);
LK_API lk_tensor lk_concat_at(lk_site site, const lk_tensor *x, int count, int axis); /* 1 to 8 tensors */
#define lk_reshape(...) lk_reshape_at(LK_HERE, __VA_ARGS__)
#define lk_flatten(x) lk_flatten_at(LK_HERE, x)
#define lk_transpose(x, axis_a, axis_b) lk_transpose_at(LK_HERE, x, axis_a, axis_b)
#define lk_permute(...) lk_permute_at(LK_HERE, __VA_ARGS__)
#define lk_slice(x, axis, start, length) lk_slice_at(LK_HERE, x, axis, start, length)
#define lk_concat(...) lk_concat_at(LK_HERE, __VA_ARGS__)

/* ---- products, convolution, pooling and norms with explicit weights (like torch.nn.functional; layers that create
 * their own weights are in nn.h). A missing tensor is (lk_tensor){0}. ---- */

typedef struct lk_matmul_options {
    int  reserved LK_ZERO;
    bool transpose_a LK_ZERO, transpose_b LK_ZERO; /* of the last two axes */
} lk_matmul_options;
/* (B…, M, K) × (B…, K, N); the B… must be equal, or missing on one side. */
LK_API lk_tensor lk_matmul_at(lk_site site, lk_tensor a, lk_tensor b, lk_matmul_options options);
#define lk_matmul(a, b, ...) lk_matmul_at(LK_HERE, a, b, LK_OPTIONS(lk_matmul_options, ##__VA_ARGS__))

LK_API lk_tensor lk_f_linear_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias);
#define lk_f_linear(x, weight, bias) lk_f_linear_at(LK_HERE, x, weight, bias)
/* bias + x (…, I) · weight (I, O): a linear layer whose weight is stored transposed, as in GPT-2. The bias may be
 * missing. */
LK_API lk_tensor lk_addmm_at(lk_site site, lk_tensor bias, lk_tensor x, lk_tensor weight);
#define lk_addmm(bias, x, weight) lk_addmm_at(LK_HERE, bias, x, weight)

typedef struct lk_window_options {
    int     reserved LK_ZERO;
    int64_t stride LK_ZERO;  /* 0 means 1 for convolution, the kernel size for pooling */
    int64_t padding LK_ZERO; /* on each side */
    int64_t groups LK_ZERO;  /* convolution only, otherwise an error; 0 means 1 */
} lk_window_options;
LK_API lk_tensor lk_f_conv2d_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_window_options options);
LK_API lk_tensor lk_max_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options);
LK_API lk_tensor lk_avg_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options);
LK_API lk_tensor lk_global_avg_pool2d_at(lk_site site, lk_tensor x); /* (N, C, H, W) → (N, C) */
#define lk_f_conv2d(x, weight, bias, ...) \
    lk_f_conv2d_at(LK_HERE, x, weight, bias, LK_OPTIONS(lk_window_options, ##__VA_ARGS__))
#define lk_max_pool2d(x, kernel, ...) lk_max_pool2d_at(LK_HERE, x, kernel, LK_OPTIONS(lk_window_options, ##__VA_ARGS__))
#define lk_avg_pool2d(x, kernel, ...) lk_avg_pool2d_at(LK_HERE, x, kernel, LK_OPTIONS(lk_window_options, ##__VA_ARGS__))
#define lk_global_avg_pool2d(x) lk_global_avg_pool2d_at(LK_HERE, x)

typedef struct lk_norm_options {
    int    reserved LK_ZERO;
    double epsilon LK_ZERO;  /* 0 means 1e-5 (RMS norm: the type's machine epsilon, as in PyTorch) */
    double momentum LK_ZERO; /* batch norm only, otherwise an error; 0 means 0.1 */
} lk_norm_options;
/* Over as many of the last axes as weight has (without a weight, over the last axis). weight and bias may be
 * missing. */
LK_API lk_tensor lk_f_layer_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias,
                                    lk_norm_options options);
LK_API lk_tensor lk_f_rms_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_norm_options options);
/* x (N, C, …); normalises over groups of consecutive channels of each sample. weight and bias (C) may be missing. */
LK_API lk_tensor lk_f_group_norm_at(lk_site site, lk_tensor x, int64_t groups, lk_tensor weight, lk_tensor bias,
                                    lk_norm_options options);
#define lk_f_group_norm(x, groups, weight, bias, ...) \
    lk_f_group_norm_at(LK_HERE, x, groups, weight, bias, LK_OPTIONS(lk_norm_options, ##__VA_ARGS__))
/* x (N, C) or (N, C, H, W). Training uses the statistics of the batch and updates the running ones; evaluation uses the
 * running ones. tracked is the i64 buffer num_batches_tracked, or missing. */
LK_API lk_tensor lk_f_batch_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_tensor running_mean,
                                    lk_tensor running_var, lk_tensor tracked, lk_norm_options options);
#define lk_f_layer_norm(x, weight, bias, ...) \
    lk_f_layer_norm_at(LK_HERE, x, weight, bias, LK_OPTIONS(lk_norm_options, ##__VA_ARGS__))
#define lk_f_rms_norm(x, weight, ...) lk_f_rms_norm_at(LK_HERE, x, weight, LK_OPTIONS(lk_norm_options, ##__VA_ARGS__))
#define lk_f_batch_norm(x, weight, bias, running_mean, running_var, tracked, ...)        \
    lk_f_batch_norm_at(LK_HERE, x, weight, bias, running_mean, running_var, tracked, \
                       LK_OPTIONS(lk_norm_options, ##__VA_ARGS__))

LK_API lk_tensor lk_f_embedding_at(lk_site site, lk_tensor ids, lk_tensor table); /* i32 (…), (V, D) → (…, D) */
#define lk_f_embedding(ids, table) lk_f_embedding_at(LK_HERE, ids, table)

typedef struct lk_attention_options {
    int     reserved LK_ZERO;
    int64_t heads LK_ZERO;    /* of queries; 0 means 1 */
    int64_t kv_heads LK_ZERO; /* of keys and values, a divisor of heads (grouped-query attention); 0 means heads */
    bool    causal LK_ZERO;   /* token i attends to tokens up to i */
    int64_t window LK_ZERO;   /* a token attends only to the last `window` tokens, including itself; 0 means all */
    double  scale LK_ZERO;    /* of the scores; 0 means 1 / sqrt(width of a head) */
    double  dropout LK_ZERO;  /* probability of dropping an attention weight in training */
    /* i32 (N, T): the first and last key that each query may attend to, such as those of its document */
    lk_tensor first LK_ZERO, last LK_ZERO;
    lk_tensor lengths LK_ZERO; /* i32 (N): number of keys of each sample; the rest are padding */
} lk_attention_options;
/* softmax(q kᵀ · scale) v for each head: q (N, T, heads·D), k and v (N, S, kv_heads·D) → (N, T, heads·D), without a T ×
 * S matrix in memory. If k and v are missing, q is (N, T, (heads + 2 kv_heads)·D): queries, keys and values side by
 * side, as one linear layer computes them. A query without keys gives 0. */
LK_API lk_tensor lk_attention_at(lk_site site, lk_tensor q, lk_tensor k, lk_tensor v, lk_attention_options options);
#define lk_attention(q, k, v, ...) lk_attention_at(LK_HERE, q, k, v, LK_OPTIONS(lk_attention_options, ##__VA_ARGS__))

/* Rotary position embedding of x (N, T, heads·D) over the pairs (i, i + D/2) of each head, as in Hugging Face's models.
 * table (P, D) contains the cosines and sines of D/2 angles for each position; positions is i32 (N, T); if it is
 * missing, the positions are 0, 1, …. */
LK_API lk_tensor lk_rope_at(lk_site site, lk_tensor x, lk_tensor table, int64_t heads, lk_tensor positions);
#define lk_rope(x, table, heads, positions) lk_rope_at(LK_HERE, x, table, heads, positions)

/* Writes rows of x (N, T, W) into a cache (N, S, W), which is a buffer with not_saved: row t of a sample is written to
 * row rows[t], i32 (N, T), or not at all if that is negative. Returns the cache with these rows; its contents are kept
 * from run to run. Used in generation to keep the keys and values of earlier tokens; allowed only in evaluation (a plan
 * that trains rejects it), and nothing else may read the buffer. */
LK_API lk_tensor lk_cache_write_at(lk_site site, lk_tensor cache, lk_tensor x, lk_tensor rows);
#define lk_cache_write(cache, x, rows) lk_cache_write_at(LK_HERE, cache, x, rows)

LK_API lk_tensor lk_swiglu_at(lk_site site, lk_tensor gate, lk_tensor up); /* silu(gate) · up */
#define lk_swiglu(gate, up) lk_swiglu_at(LK_HERE, gate, up)

/* 1 where a and b are equal, 0 elsewhere, in the graph's type; both broadcast and may have any types. No gradient. */
LK_API lk_tensor lk_equal_at(lk_site site, lk_tensor a, lk_tensor b);
#define lk_equal(a, b) lk_equal_at(LK_HERE, a, b)

/* ---- losses. A loss is a sum over samples together with its weight. The program divides by the weight of the whole
 * global batch, which gives PyTorch's mean however the batch is split.
 *
 * Losses can be combined: lk_add, lk_sub and lk_scale of losses give a loss, for example lk_add(a, lk_scale(b, 0.5)).
 * Each loss is divided by its own weight in the global batch before it is scaled and added, as PyTorch adds means. A
 * loss whose weight in a batch is 0, because all its labels are ignored, adds 0. Numbers that do not depend on samples,
 * such as a penalty on parameters, may be added. The weights must be known before the model runs, so they must be
 * computed only from inputs and constants. lk_plan_create rejects other functions of a loss. ---- */

#define LK_MAX_LOSSES 16 /* in one sum */

typedef struct lk_cross_entropy_options {
    int            reserved LK_ZERO;
    double         label_smoothing LK_ZERO;
    const int64_t *ignore_index LK_ZERO; /* NULL: -100, as in PyTorch */
    lk_tensor      weight LK_ZERO;       /* one per label, in their shape; missing: 1 */
} lk_cross_entropy_options;
/* logits (…, C), labels i32 (…). Also counts the labels that have the largest logit (lk_metrics.correct). */
LK_API lk_tensor lk_cross_entropy_at(lk_site site, lk_tensor logits, lk_tensor labels,
                                     lk_cross_entropy_options options);
#define lk_cross_entropy(logits, labels, ...) \
    lk_cross_entropy_at(LK_HERE, logits, labels, LK_OPTIONS(lk_cross_entropy_options, ##__VA_ARGS__))
/* The same with logits = x (…, C) · weightᵀ (V, C), which are never materialised: for large vocabularies. */
LK_API lk_tensor lk_linear_cross_entropy_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor labels,
                                            lk_cross_entropy_options options);
#define lk_linear_cross_entropy(x, weight, labels, ...) \
    lk_linear_cross_entropy_at(LK_HERE, x, weight, labels, LK_OPTIONS(lk_cross_entropy_options, ##__VA_ARGS__))
/* The individual losses, like PyTorch's reduction="none": one value per label, in the labels' shape, times its weight;
 * 0 where the label is ignored. Use lk_loss to turn them into the loss to minimise, for example lk_loss(lk_mul(each,
 * w), .weight = w). */
LK_API lk_tensor lk_cross_entropy_each_at(lk_site site, lk_tensor logits, lk_tensor labels,
                                          lk_cross_entropy_options options);
#define lk_cross_entropy_each(logits, labels, ...) \
    lk_cross_entropy_each_at(LK_HERE, logits, labels, LK_OPTIONS(lk_cross_entropy_options, ##__VA_ARGS__))
/* (N, …), (N, …) → (N): the mean of each sample's squared differences. For the squared differences of single elements,
 * use lk_pow(lk_sub(x, target), 2). */
LK_API lk_tensor lk_mse_each_at(lk_site site, lk_tensor x, lk_tensor target);
#define lk_mse_each(x, target) lk_mse_each_at(LK_HERE, x, target)
LK_API lk_tensor lk_mse_at(lk_site site, lk_tensor x, lk_tensor target);
#define lk_mse(x, target) lk_mse_at(LK_HERE, x, target)
LK_API lk_tensor lk_l1_at(lk_site site, lk_tensor x, lk_tensor target);
#define lk_l1(x, target) lk_l1_at(LK_HERE, x, target)

typedef struct lk_bce_with_logits_options {
    int reserved LK_ZERO;
    /* has the shape of the first axes of logits, for example (N), with one weight per sample; missing: 1 */
    lk_tensor weight LK_ZERO;
} lk_bce_with_logits_options;
/* Binary cross-entropy of sigmoid(logits) with a target of the same shape, from 0 to 1: the weighted mean over all
 * elements, which divides by the sum of their weights. Target and weight get no gradient. */
LK_API lk_tensor lk_bce_with_logits_at(lk_site site, lk_tensor logits, lk_tensor target,
                                       lk_bce_with_logits_options options);
#define lk_bce_with_logits(logits, target, ...) \
    lk_bce_with_logits_at(LK_HERE, logits, target, LK_OPTIONS(lk_bce_with_logits_options, ##__VA_ARGS__))

typedef struct lk_total_options {
    int       reserved LK_ZERO;
    lk_tensor weight LK_ZERO; /* any shape; missing: 1 for each element of x */
} lk_total_options;
/* Any other loss: its sum is the sum of all elements of x, and its weight is the sum of all elements of `weight`. A
 * weighted mean over samples, for example, is lk_loss(lk_mul(each, w), .weight = w). The weight gets no gradient. If x
 * is already summed or averaged over samples, its weight must be given, because a program sees only part of the batch.
 * If x is a loss, it already has a weight and is returned unchanged. */
LK_API lk_tensor lk_loss_at(lk_site site, lk_tensor x, lk_total_options options);
#define lk_loss(x, ...) lk_loss_at(LK_HERE, x, LK_OPTIONS(lk_total_options, ##__VA_ARGS__))

#define LK_MAX_METRICS 32

/* Records a metric: the sum of all elements of x divided by the sum of all elements of its weight, as for lk_loss.
 * Programs compute it in training and in evaluation, and add both sums over micro-batches, leaves and ranks
 * (lk_metrics.named). x and the weight may have any type, and their values are not changed. The metric of a loss is its
 * mean, whether or not the loss is minimised. */
LK_API void lk_metric_at(lk_site site, lk_tensor x, const char *name, lk_total_options options);
#define lk_metric(x, name, ...) lk_metric_at(LK_HERE, x, name, LK_OPTIONS(lk_total_options, ##__VA_ARGS__))

LK_END_DECLS
#endif
