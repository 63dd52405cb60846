/* base/op.h - the operations of which a program consists: one list, what each expects of its operands, and their
 * attributes. Everything else about an operation is in its descriptor (graph/op.h).
 *
 * Conventions for all kernels:
 * - REAL is the program's floating type (f32 or f64). Operands are dense. `dims` are logical sizes with the run-time
 *   count already applied, so a kernel sees only rows that exist and never reads padding.
 * - "image" operands are logical (N, C, H, W), stored channels last: element (n, c, h, w) is at
 *   ((n*H + h)*W + w)*C + c. All others are row-major in the order of their dims. Weights are always row-major
 *   (PyTorch's layouts).
 * - [x] is optional: its operand has data == NULL. An output may alias an input only where it says "in place".
 * - Outputs are written whole (never accumulated into), except where it says "updated". */
#ifndef LK__OP_H
#define LK__OP_H

#include "base/function.h"
#include "base/sum_parts.h"

#include <lockstep/comm.h>

/* X(name, types) and, in comments, inputs → outputs; attributes: those with kernels of their own in every table of a
 * device. types: the element types of its kernels, on every device, and nothing else says it. ANY: all of them, also
 * those that are narrower than the type of their sums (bf16). WIDE: f32 and f64; a narrower operand is cast first. */
#define LK__OP_LIST_OPTIMIZERS(X)                                                                                     \
    /* grad, scale f64 () ; param, moments: updated; [stored: the updated param in a narrower type]; weight_decay, */ \
    /* lr_scale */                                                                                                    \
    X(sgd, WIDE)                  /* [momentum buffer]; momentum, dampening, nesterov */                              \
    X(adam, WIDE)                 /* m, v; beta1, beta2, epsilon, decoupled: AdamW */                                 \
    X(lion, WIDE)                 /* m; beta1, beta2 */                                                               \
    X(rmsprop, WIDE)              /* squares, [average: centered], [momentum buffer]; alpha, epsilon, momentum, */    \
                                  /* centered */                                                                      \
    /* sum of squares; epsilon, lr_decay, initial_accumulator_value: what the sums begin with */                      \
    X(adagrad, WIDE)

#define LK__OP_LIST_BUILT_IN(X)                                                                                        \
    /* image x (N,C,H,W), w (O,C/groups,kh,kw), [b (O)] → image y [after activation and pool], [index u8 image]. */    \
    /* pool = p > 1: y is the p×p max pool (stride p, floor) of activation(conv + b); index holds the maximum's */     \
    /* position in its window (row*p+col), 255 where relu's gradient is zero. stride, padding, groups, activation, */  \
    /* pool */                                                                                                         \
    X(conv2d, ANY)                                                                                                     \
    /* image dy (of y), w, [index] → image dx; attributes of the conv2d. Without pool, dy is the gradient before */    \
    /* the activation (a unary_grad precedes it); with pool, index says where it goes. */                              \
    X(conv2d_grad_input, ANY)                                                                                          \
    X(conv2d_grad_weight, ANY)    /* image x, image dy, [index] → dw (O,C/groups,kh,kw), [db (O)] */                   \
    X(max_pool2d, ANY)            /* image x → image y, [index u8 image]; kernel, stride, padding; index = */          \
                                  /* row*kernel+col */                                                                 \
    X(max_pool2d_grad, ANY)       /* image dy, index → image dx; windows may overlap (then sum) */                     \
    X(avg_pool2d, ANY)            /* image x → image y; kernel, stride, padding (counted in the divisor, as */         \
                                  /* PyTorch) */                                                                       \
    X(avg_pool2d_grad, ANY)       /* image dy → image dx */                                                            \
    X(global_avg_pool2d, ANY)     /* image x → y (N,C) */                                                              \
    X(global_avg_pool2d_grad, ANY) /* dy (N,C) → image dx */                                                           \
    /* x (…,I), w (O,I), [b (O)] → y (…,O) after activation, [what gelu_tanh was applied to, on devices that fuse */   \
    /* it]; activation; transposed: w is (I,O), in all three */                                                        \
    X(linear, ANY)                                                                                                     \
    /* dy (…,O), w (O,I), [before (…,I)] → dx (…,I), with `before` times the gradient of gelu_tanh there; dy is */     \
    /* before the activation */                                                                                        \
    X(linear_grad_input, ANY)                                                                                          \
    X(linear_grad_weight, ANY)    /* x (…,I), dy (…,O) → dw (O,I), [db (O)] */                                         \
    X(matmul, ANY)                /* a (B…,M,K), b (B…,K,N) → y (B…,M,N); B… equal, or either side has none; */        \
                                  /* transpose_a and transpose_b: that operand's last two dims are stored swapped. */  \
                                  /* An output with no B… from inputs with B… sums over the batch (the gradient of */  \
                                  /* a shared operand) */                                                              \
    X(add, ANY) X(sub, ANY) X(mul, ANY) X(div, ANY) /* a, b → y, broadcasting as PyTorch; in place on a or b when */   \
                                                    /* its shape is y's */                                             \
    X(unary, ANY)                 /* x → y; unary; in place */                                                         \
    X(unary_grad, ANY)            /* dy, saved → dx; unary; saved is y where lk__unary_saves_result, else x; in */     \
                                  /* place on dy */                                                                    \
    X(scale, ANY)                 /* x → y = x * scale; in place */                                                    \
    X(scale_by, ANY)              /* x, factor f64 () → y = x * factor; in place on x */                               \
    X(where, WIDE)                /* condition (any type), a, b → y = condition is not 0 ? a : b, all three */         \
                                  /* broadcast; in place on a or b when its shape is y's */                            \
    X(softmax, WIDE) X(log_softmax, WIDE) /* x → y along axis; in place */                                             \
    X(softmax_grad, WIDE) X(log_softmax_grad, WIDE) /* dy, y → dx along axis; in place on dy */                        \
    /* x, [w], [b], [residual: as x] → y, mean (rows), rstd (rows), [sum: with residual, x + residual, whose norm y */ \
    /* is then]; a row is the last `axis` dims; epsilon */                                                             \
    X(layer_norm, ANY)                                                                                                 \
    X(layer_norm_grad, ANY)       /* dy, x, [w], mean, rstd, [residual] → dx [+ residual], [dw], [db]; in place on */  \
                                  /* residual */                                                                       \
    X(rms_norm, ANY)              /* x, [w], [residual] → y, rstd (rows), [sum]; as layer_norm */                      \
    X(rms_norm_grad, ANY)         /* dy, x, [w], rstd, [residual] → dx [+ residual], [dw]; in place on residual */     \
    /* x (N,C,…), [w (C)], [b (C)] → y, mean (N,groups), rstd (N,groups); groups, epsilon; a group is C/groups */      \
    /* neighbouring channels of one sample */                                                                          \
    X(group_norm, ANY)                                                                                                 \
    X(group_norm_grad, ANY)       /* dy, x, [w], mean, rstd → dx, [dw], [db] */                                        \
    /* image or (N,C) x, [w], [b], [running_mean, running_var, num_batches_tracked i64: updated when attribute */      \
    /* update is set], [residual: as x, added before the activation] → y, mean (C), rstd (C); biased variance */       \
    /* normalises, unbiased goes into running_var; epsilon, momentum, activation; statistics are accumulated in */     \
    /* double or by a compensated two-pass method */                                                                   \
    X(batch_norm, ANY)                                                                                                 \
    X(batch_norm_eval, ANY)       /* image or (N,C) x, [w], [b], running_mean, running_var, [residual] → y; */         \
                                  /* activation; in place on x */                                                      \
    X(batch_norm_grad, ANY)       /* dy, x, [w], mean, rstd, [y: given when activation is relu] → dx, [dw], [db] */    \
    X(batch_norm_eval_grad, ANY)  /* dy, x, [w], running_mean, running_var → dx, [dw], [db] */                         \
    /* The same over the rows of all ranks and leaves, split at the sums over them; see plan/sync_norm.c. */           \
    /* x, [running_mean] → stats f64 (3,C): rows, each channel's sum of x - centre, and that of its square; */         \
    /* centre f64 (C): running_mean, or 0. Sums of no rows are 0. */                                                   \
    X(batch_norm_stats, ANY)                                                                                           \
    /* image or (N,C) x, [w], [b], [running_mean, running_var, num_batches_tracked: as batch_norm], stats summed, */   \
    /* centre → y, mean (C), rstd (C); epsilon, momentum, activation, update */                                        \
    X(batch_norm_apply, ANY)                                                                                           \
    /* dy, x, mean, rstd, [y: given when activation is relu] → sums f64 (2,C): of g (x - mean), then of g; [dw], */    \
    /* [db], all of this rank's rows */                                                                                \
    X(batch_norm_grad_stats, ANY)                                                                                      \
    X(batch_norm_grad_apply, ANY) /* dy, x, [w], mean, rstd, [y], sums summed, stats summed → dx */                    \
    /* Collectives, run by the interpreter: y is complete once its wait has run, and x must not change before. */      \
    /* Their kernels are for a group of one, where y is x. */                                                          \
    X(all_reduce, WIDE)           /* x → y: reduced over the group in the pairwise tree; group, reduction, order */    \
    X(all_gather, WIDE)           /* x → y (parts, x's axes): the x of every part of the group, in order; group, */    \
                                  /* order, parts */                                                                   \
    X(reduce_scatter, WIDE)       /* x (parts, y's axes) → y: this part's part of x reduced as by all_reduce; */       \
                                  /* group, reduction, order, parts */                                                 \
    X(wait, WIDE)                 /* y of a collective, its x → y: the same bytes, complete */                         \
    X(own_part, WIDE)             /* x (parts, y's axes) → y: that of this rank or leaf, step->part; with mesh: as */  \
                                  /* slice */                                                                          \
    X(dropout, ANY)               /* x → y; probability, stream; axis 0: samples of `rows` rows each; in place. Its */ \
                                  /* gradient is itself on dy */                                                       \
    /* q (B,T,heads·D), [k, v (B,S,kv_heads·D)], [first, last i32 (B,T), lengths i32 (B)] → y (B,T,heads·D), [lse */   \
    /* (B,heads,T)]; without k and v, q is (B,T,(heads + 2 kv_heads)·D): queries, keys, values. A query attends to */  \
    /* keys first … last below lengths, up to itself with causal, the latest `window` of them; no such key: zeros. */  \
    /* heads, kv_heads, causal, window, scale, probability (of dropout), stream */                                     \
    X(attention, ANY)                                                                                                  \
    X(attention_grad, ANY)        /* dy, q, [k], [v], y, lse, [first], [last], [lengths] → [dq], [dk], [dv] */         \
    /* x (B,T,heads·D), table (P,D): cos then sin of D/2 angles, [positions i32 (B,T)] → y: element i of a head and */ \
    /* i + D/2 rotated by the angle of their position (0, 1, … without positions), back with inverse; in place. A */   \
    /* position out of range is reported. heads, inverse */                                                            \
    X(rope, ANY)                                                                                                       \
    /* cache (B,S,W): a buffer, x (B,T,W), rows i32 (B,T) → y (B,S,W): the cache's memory, updated: row t of a */      \
    /* sample's x is in row rows[t]; below 0: nowhere. A row out of range is reported. */                              \
    X(cache_write, ANY)                                                                                                \
    /* ids i32 (…), table (V,D) → y (…,D); an id out of range gives zeros, and is reported. Of a part of the table: */ \
    /* ids are those of the whole, and one that is in another part gives zeros */                                      \
    X(embedding, ANY)                                                                                                  \
    X(embedding_grad, ANY)        /* ids, dy (…,D) → dtable (V,D); fixed order of addition; of a part as above */      \
    /* The largest k of the last axis, the largest first, of equal ones the one with the lower index; NaN is larger */ \
    /* than any number: x (…,n) → y (…,k), index i32 (…,k) */                                                          \
    X(topk, WIDE)                                                                                                      \
    X(topk_grad, WIDE)            /* dy (…,k), index → dx (…,n): 0 where nothing was chosen */                         \
    /* Mixture of experts. An assignment is a row and one of its k experts, number row*k + j; they are grouped by */   \
    /* expert, in the order of their numbers. */                                                                       \
    /* ids i32 (N,k): the experts of each row → order i32 (N·k): the assignment at each place, -1 past the last; */    \
    /* place i32 (N,k): where each assignment is, -1: nowhere, offsets i32 (experts + 1): where each expert begins, */ \
    /* and the end; [counts f64 (experts): how often each was named]; an id out of range is reported and nowhere. */   \
    /* experts; capacity: at most so many assignments an expert, the later ones are nowhere; 0: all */                 \
    X(group_rows, WIDE)                                                                                                \
    /* x (N,C), order, place, [weight (N,k)] → y (N·k,C): the row of each assignment times its weight; 0 where */      \
    /* there is none */                                                                                                \
    X(gather_rows, ANY)                                                                                                \
    /* y (N·k,C), order, place, [weight (N,k)] → x (N,C): the sum over a row's assignments, in their order */          \
    X(combine_rows, ANY)                                                                                               \
    X(combine_rows_grad_weight, ANY) /* dx (N,C), y (N·k,C), place → dweight (N,k) */                                  \
    /* x (S,I), w (experts,O,I), offsets i32 (experts + 1) → y (S,O): rows offsets[e] … offsets[e + 1] times expert */ \
    /* e's weight; 0 past the last; transposed: w is (experts,I,O) */                                                  \
    X(grouped_linear, ANY)                                                                                             \
    X(grouped_linear_grad_weight, ANY) /* x (S,I), dy (S,O), offsets → dw: that of each expert's rows; transposed */   \
    /* offsets i32 (ranks,experts + 1) of all ranks, of which rank `start` has an equal part of the experts → those */ \
    /* of the rows that it receives, by expert i32 (experts / ranks + 1), order i32 (R): where each of these is */     \
    /* among the rows by rank and then expert, -1 past the last, place i32 (R,1): the reverse */                       \
    X(route_rows, WIDE)                                                                                                \
    /* Also run by the interpreter: x (S,C), those offsets → y (R,C): rows of all ranks for this one's experts, by */  \
    /* rank and then expert; transposed: the reverse, 0 past the last */                                               \
    X(exchange_rows, WIDE)                                                                                             \
    X(reshape, ANY)               /* x → y: the same bytes; the planner makes it an alias, else a copy */              \
    X(stop_gradient, ANY)         /* x → y: the same bytes, without a gradient; as reshape */                          \
    X(permute, ANY)               /* x → y; y's axis i is x's axis axes[i] */                                          \
    X(slice, ANY)                 /* x → y = x[…, start : start + length, …] along axis */                             \
    X(slice_grad, ANY)            /* dy → dx: zeros but for the slice */                                               \
    X(concat, ANY)                /* up to 8 x → y along axis */                                                       \
    X(sum, WIDE)                  /* x → y over axes where mask bit i is set; y has those dims 1 or dropped; mean: */  \
                                  /* divided by the number of elements that were added, the count included */          \
    X(expand, WIDE)               /* dy → dx: the gradient of sum; dx's shape is the attribute's x; mean as in sum */  \
    X(max, WIDE)                  /* x → y, [index i32 of y's shape: where the first maximum, or the first NaN, */     \
                                  /* is]; axis, keepdim */                                                             \
    X(max_grad, WIDE)             /* dy, index → dx: zeros but at the index; axis */                                   \
    X(argmax, WIDE)               /* x → index i32, as max's; axis, keepdim */                                         \
    /* logits (rows,C), labels i32 (rows), [w (rows)], [statistics] → sum f64 (), weight f64 (), correct f64 (), */    \
    /* probs (rows,C); ignore_index, label_smoothing. sum and weight as PyTorch's numerator and denominator of the */  \
    /* mean. A label out of range gives sum = NaN, and is reported. statistics f64 (parts,rows,5): logits are a */     \
    /* part of the classes, and these are the class_statistics of all parts, in their order. */                        \
    X(cross_entropy, WIDE)                                                                                             \
    X(cross_entropy_grad, WIDE)   /* probs, labels, [w], [dloss f64 ()] → dlogits; in place on probs */                \
    /* logits, labels, [w], [statistics] → loss (rows), 0 where the label is ignored; probs (rows,C) */                \
    X(cross_entropy_each, WIDE)                                                                                        \
    /* logits (rows,C), labels i32 (rows) → statistics f64 (1 or parts,rows,5): the largest logit, the sum of */       \
    /* exp(logit - largest), the label's logit (0: it is in another part), the sum of the logits (0 without */         \
    /* label_smoothing), the class of the first of the largest; zeros where the label is ignored or out of range. */   \
    /* ignore_index, label_smoothing */                                                                                \
    X(class_statistics, WIDE)                                                                                          \
    X(mse, WIDE)                  /* x, target → sum f64 (), weight f64 () (number of elements) */                     \
    X(mse_grad, WIDE)             /* x, target, [dloss f64 ()] → dx */                                                 \
    X(l1, WIDE)                   /* x, target → sum f64 (), weight f64 () (number of elements) */                     \
    X(l1_grad, WIDE)              /* x, target, [dloss f64 ()] → dx */                                                 \
    /* logits, target, [w: of logits' first axes] → sum f64 (), weight f64 () (w's sum over the elements), */          \
    /* [dlogits: the gradient of sum] */                                                                               \
    X(bce_with_logits, WIDE)                                                                                           \
    /* x (rows,C), w (V,C), labels i32 (rows) → sum, weight, correct of cross_entropy of x w', [dx], [dw]: the */      \
    /* gradients of sum */                                                                                             \
    X(linear_cross_entropy, ANY)                                                                                       \
    X(swiglu, ANY)                /* gate, up → y = silu(gate) up; in place */                                         \
    X(swiglu_grad, ANY)           /* dy, gate, up → [dgate], [dup] */                                                  \
    X(total, WIDE)                /* x, [w] → sum f64 () of x, weight f64 () of w, or the number of elements of x */   \
    X(fill, ANY)                  /* → y = scale */                                                                    \
    X(cast, ANY)                  /* x bf16, f32, f64, i32, i64 or u8 → y bf16, f32 or f64: the same numbers, */       \
                                  /* rounded */                                                                        \
    X(to_channels_last, ANY)      /* x row-major (N,C,H,W) → image y */                                                \
    X(to_channels_first, ANY)     /* image x → y row-major */                                                          \
    X(square_sum, WIDE)           /* x → y f64 (): sum of squares in double, fixed order; parts above 0: y f64 */      \
                                  /* (parts), without rounding (base/exact_sum.h), on the CPU */                       \
    X(gradient_scale, WIDE)       /* [weight f64 ()], square sums f64 () or, exact, f64 (parts) → scale f64 (), see */ \
                                  /* optimizer.c */                                                                    \
    /* Around a step, outside of its graph. */                                                                         \
    /* headers u8 (slots,bytes), [ring_slot i64 ()], [table (1 or C,256)], [normal f64 (2,1 or C): mean and std], up */\
    /* to 7 samples (N,…) → header u8 (bytes): that of the ring slot; for each of the samples rows (R,…) of the */     \
    /* batch: device/batch.h; by_row, padding, probability (of a flip), cutout */                                      \
    X(sample_rows, WIDE)                                                                                               \
    /* logits (R,V), sampling u8 (bytes) ; chosen i32 (steps,R), prompts u8 (R,bytes), [places], [tokens], */          \
    /* [positions], [first], [last] i32 (R): all updated: device/tokens.h; window, sorts */                            \
    X(choose_tokens, WIDE)                                                                                             \
    LK__OP_LIST_OPTIMIZERS(X)

/* And users' own operations (lockstep/operation.h), whose callbacks are the kernels, and what runs nothing. */
#define LK__OP_LIST(X)                                                                                               \
    LK__OP_LIST_BUILT_IN(X)                                                                                          \
    X(bucket, WIDE)               /* up to 8 gradients ; y: the bucket that they are in, of which they are a part */ \
                                  /* in memory */                                                                    \
    X(send, ANY)                  /* x → sent u8 (), which nobody writes: to the same coordinates of another stage; */ \
                                  /* mesh, transfer */                                                               \
    X(receive, ANY)               /* → y, complete once a wait has run: what that stage sends; mesh, transfer */     \
    X(join, ANY)                  /* up to 8 x → y: all rows of x, one behind the other, where they are in memory */ \
    X(custom, WIDE)               /* up to 8 x → up to 4 y, as the operation says; custom */                         \
    X(custom_grad, WIDE)          /* its [x], its [y], their [dy] → their [dx] */

typedef enum lk__op {
#define LK__OP_ENUM(name, types) LK__OP_##name,
    LK__OP_LIST(LK__OP_ENUM)
#undef LK__OP_ENUM
        LK__OP_COUNT
} lk__op;

/* ---- attributes ----
 *
 * One flat record for all operations, generated from one schema, so that copying, hashing, comparing and printing a
 * record cannot omit a field. A descriptor lists those that its operation has (LK__HAS(name)); the others are zero. */

/* Numbers of a row in class_statistics. */
enum { LK__CLASS_STATISTICS = 5 };

/* The ranks that share every batch: all at once, or those of each host, then those with the same slice on all hosts. */
typedef enum lk__op_group { LK__GROUP_DATA, LK__GROUP_DATA_BY_HOST } lk__op_group;

/* What the leaves of a collective's pairwise tree are: ranks, or fixed parts of the batch (lk_parallel.leaves). */
typedef enum lk__op_order { LK__ORDER_RANKS, LK__ORDER_LEAVES } lk__op_order;

/* A value that crosses from one stage of a pipeline to another. */
typedef struct lk__op_transfer {
    int stage;  /* at the other end: the coordinate along the attribute `mesh` */
    int number; /* among all such values of a list, the same at both ends: with the micro-batch it is the tag */
} lk__op_transfer;

/* X(kind, name): the kinds and their C types are below. Printed in this order. */
#define LK__ATTR_LIST(X)                                                                                             \
    X(reduction, reduction)   /* collectives */                                                                      \
    X(order, order)                                                                                                  \
    X(group, group)                                                                                                  \
    X(mesh, mesh)             /* collectives, own_part: axes of the mesh along which the group is; 0: the batch's */ \
    X(transfer, transfer)     /* send, receive */                                                                   \
    X(integer, parts)         /* all_gather, reduce_scatter: ranks, or leaves; square_sum: doubles of an exact sum */ \
    X(summation, sum)         /* products and other sums along a factor that an axis may cut: its parts */          \
    X(unary, unary)           /* unary, unary_grad: which function */                                                \
    X(activation, activation) /* fused into conv2d, linear, batch norm: which function */                          \
    X(pool, pool)             /* conv2d: fused max pool; 0 none */                                                   \
    X(integer, kernel)        /* pools; square */                                                                    \
    X(count, stride)          /* conv2d, pools */                                                                    \
    X(integer, padding)                                                                                              \
    X(count, groups)                                                                                                 \
    X(flag, transposed)       /* linear */                                                                           \
    X(flag, transpose_a)      /* matmul */                                                                           \
    X(flag, transpose_b)                                                                                             \
    X(flag, sum_batch)        /* matmul: added over the batch axes */                                                \
    X(flag, mean)             /* sum, expand */                                                                      \
    X(flag, keepdim)          /* sum, max, argmax */                                                                 \
    X(flag, causal)           /* attention */                                                                        \
    X(flag, inverse)          /* rope */                                                                             \
    X(flag, update)           /* batch_norm: running statistics */                                                   \
    X(flag, nesterov)         /* sgd */                                                                              \
    X(flag, decoupled)        /* adam: AdamW */                                                                      \
    X(flag, centered)         /* rmsprop */                                                                          \
    X(flag, by_row)           /* sample_rows: the samples are those of the batch, not those of the whole set */      \
    X(flag, sorts)            /* choose_tokens: top_k or top_p leave some out */                                     \
    X(index, axis)            /* softmax, max, slice, concat: which; row norms: how many trailing axes */            \
    X(axes, axes)             /* permute */                                                                          \
    X(mask, mask)             /* sum, expand: bit i for axis i */                                                    \
    X(integer, start)         /* slice */                                                                            \
    X(integer, length)        /* slice */                                                                            \
    X(count, heads)           /* attention, rope: of queries */                                                      \
    X(count, kv_heads)        /* attention: of keys and values */                                                    \
    X(integer, window)        /* attention, choose_tokens */                                                         \
    X(integer, cutout)        /* sample_rows: side of a square that is set to 0 */                                   \
    X(integer, rows)          /* dropout: of a sample, where axes were merged; collectives: axes before the parts' */  \
    X(integer, k)             /* topk */                                                                             \
    X(integer, experts)       /* group_rows */                                                                       \
    X(integer, capacity)      /* group_rows */                                                                       \
    X(ignored, ignore_index)  /* cross_entropy */                                                                    \
    X(real, label_smoothing)                                                                                         \
    X(real, epsilon)          /* norms, adam, rmsprop, adagrad */                                                    \
    X(real, momentum)         /* batch_norm, sgd, rmsprop */                                                         \
    X(real, probability)      /* dropout; sample_rows: of a flip */                                                  \
    X(stream, stream)         /* dropout: which one of the model */                                                  \
    X(real, scale)            /* scale, fill */                                                                      \
    X(real, exponent)         /* unary pow */                                                                        \
    X(real, minimum)          /* unary clamp; -INFINITY: none */                                                     \
    X(real, maximum)          /* unary clamp; INFINITY: none */                                                      \
    X(real, slope)            /* unary leaky_relu: below 0 */                                                        \
    X(real, beta1)            /* adam, lion */                                                                       \
    X(real, beta2)                                                                                                   \
    X(real, weight_decay)     /* optimizers */                                                                       \
    X(real, dampening)        /* sgd */                                                                              \
    X(real, alpha)            /* rmsprop */                                                                          \
    X(real, lr_decay)         /* adagrad */                                                                          \
    X(real, initial_accumulator_value) /* adagrad */                                                                 \
    X(real, clip)             /* gradient_scale */                                                                   \
    X(factor, lr_scale)       /* optimizers: this parameter group's factor on the step's rate */                       \
    X(custom, custom)         /* custom: which of the graph's operations, from 1 */

#define LK__ATTR_reduction(name) lk_reduce_op name;
#define LK__ATTR_order(name) lk__op_order name;
#define LK__ATTR_group(name) lk__op_group name;
#define LK__ATTR_mesh(name) uint32_t name; /* not printed when it is 0 */
#define LK__ATTR_transfer(name) lk__op_transfer name;
#define LK__ATTR_summation(name) lk__op_summation name; /* not printed where it is one sum */
#define LK__ATTR_unary(name) lk__op_unary name;
#define LK__ATTR_activation(name) lk__op_unary name;
#define LK__ATTR_pool(name) int64_t name;
#define LK__ATTR_integer(name) int64_t name; /* not printed when it is 0 */
#define LK__ATTR_count(name) int64_t name;   /* not printed when it is 0 or 1 */
#define LK__ATTR_flag(name) bool name;
#define LK__ATTR_index(name) int name; /* always printed */
#define LK__ATTR_axes(name) int name[LK_MAX_RANK];
#define LK__ATTR_mask(name) uint32_t name;
#define LK__ATTR_real(name) double name;
#define LK__ATTR_factor(name) double name;   /* not printed when it is 1 */
#define LK__ATTR_ignored(name) int64_t name; /* not printed when it is -100, as in PyTorch */
#define LK__ATTR_stream(name) uint64_t name;
#define LK__ATTR_custom(name) int64_t name; /* lk__node_text prints the operation */

typedef struct lk__op_attrs {
#define LK__ATTR_FIELD(kind, name) LK__ATTR_##kind(name)
    LK__ATTR_LIST(LK__ATTR_FIELD)
#undef LK__ATTR_FIELD
} lk__op_attrs;

enum {
#define LK__ATTR_ENUM(kind, name) LK__ATTR_ID_##name,
    LK__ATTR_LIST(LK__ATTR_ENUM)
#undef LK__ATTR_ENUM
        LK__ATTR_COUNT
};
/* A set of attributes, one bit each. */
typedef unsigned __int128 lk__attr_set;
#define LK__ATTR_SET_BITS ((int)sizeof(lk__attr_set) * 8)
#define LK__HAS(name) ((lk__attr_set)1 << LK__ATTR_ID_##name)
/* The set of a descriptor without attributes, which must not be 0; op.c asserts that no attribute has this bit. */
#define LK__NO_ATTRIBUTES ((lk__attr_set)1 << (LK__ATTR_SET_BITS - 1))

/* For a value of which this rank has a part: the extents of the whole, and where the part begins in it. What a kernel
 * computes and in which order it adds follow from the whole; random numbers belong to the whole's elements. */
typedef struct lk__op_part {
    int     rank;                                   /* dimensions; 0: the rank has the whole value */
    int64_t whole[LK_MAX_RANK], first[LK_MAX_RANK]; /* at the capacity, where a dimension has a run-time count */
    /* A dimension may consist of repetitions, each of which is cut, such as (batch tokens) with the tokens cut: how
     * many the whole has, at the capacity, which may be 1 sample; 0: none. `first` is then the origin in each of
     * them. */
    int64_t outer[LK_MAX_RANK];
} lk__op_part;

uint64_t     lk__attrs_hash(const lk__op_attrs *attrs, uint64_t seed);
bool         lk__attrs_equal(const lk__op_attrs *a, const lk__op_attrs *b);
lk__attr_set lk__attrs_set(const lk__op_attrs *attrs); /* those that are not zero */
/* " relu", "+relu+max_pool 2, padding 1": the text after an operation's name, from the attributes in `has`. */
void        lk__attrs_text(const lk__op_attrs *attrs, lk__attr_set has, char *text, size_t bytes);
const char *lk__attr_name(int id);
const char *lk__unary_name(lk__op_unary unary);

const char *lk__op_name(lk__op op);
bool lk__op_is_wide(lk__op op); /* WIDE in the list: it has no kernels for types that are narrower than their sums */

#endif
