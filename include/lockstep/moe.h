/* moe.h - mixture of experts: a router chooses k experts for each token, and the weighted outputs of the chosen experts
 * are added. lk_moe is the whole layer; the functions declared before it are its parts, from which other layers of this
 * kind can be built. No token is dropped unless a capacity is set. How many tokens an expert gets is known only when
 * the step runs, and this number stays on the device. */
#ifndef LOCKSTEP_MOE_H
#define LOCKSTEP_MOE_H

#include <lockstep/graph.h>

LK_BEGIN_DECLS

/* The k largest elements along the last axis and their i32 indices, in descending order; equal elements are ordered by
 * index. */
typedef struct lk_topk_result {
    lk_tensor values, index; /* (…, k) */
} lk_topk_result;
LK_API lk_topk_result lk_topk_at(lk_site site, lk_tensor x, int64_t k);
#define lk_topk(x, k) lk_topk_at(LK_HERE, x, k)

/* The tokens of a batch in the order of their experts. */
typedef struct lk_groups {
    lk_tensor order;   /* i32 (N·k): the assignment in each row: token · k + j for a token's j-th expert; -1: none */
    lk_tensor place;   /* i32 (N, k): the row of each assignment; -1: beyond the capacity */
    lk_tensor offsets; /* i32 (experts + 1): where each expert's rows begin, and where the last rows end */
    lk_tensor counts;  /* f64 (experts): how often each expert was chosen */
} lk_groups;
/* ids i32 (N, k): the experts of each token. capacity: the maximum number of rows per expert, beyond which rows are
 * dropped; 0: no limit. An id outside 0 … experts - 1 makes the step fail. */
LK_API lk_groups lk_group_rows_at(lk_site site, lk_tensor ids, int64_t experts, int64_t capacity);
#define lk_group_rows(ids, experts, capacity) lk_group_rows_at(LK_HERE, ids, experts, capacity)
/* x (N, W) → (N·k, W): the rows ordered by expert, times weight (N, k), which may be missing. */
LK_API lk_tensor lk_gather_rows_at(lk_site site, lk_tensor x, lk_groups groups, lk_tensor weight);
#define lk_gather_rows(x, groups, weight) lk_gather_rows_at(LK_HERE, x, groups, weight)
/* y (N·k, W) → (N, W): restores the order of the tokens; the k rows of a token, times weight (N, k), are added. */
LK_API lk_tensor lk_combine_rows_at(lk_site site, lk_tensor y, lk_groups groups, lk_tensor weight);
#define lk_combine_rows(y, groups, weight) lk_combine_rows_at(LK_HERE, y, groups, weight)
/* x (N·k, in), weight (experts, out, in) → (N·k, out): each row times the weight of its expert. */
LK_API lk_tensor lk_grouped_linear_at(lk_site site, lk_tensor x, lk_tensor weight, lk_groups groups);
#define lk_grouped_linear(x, weight, groups) lk_grouped_linear_at(LK_HERE, x, weight, groups)

typedef struct lk_moe_options {
    int     reserved LK_ZERO;
    int64_t experts LK_ZERO; /* required */
    int64_t k LK_ZERO;       /* experts per token; 0 means 2 */
    int64_t hidden LK_ZERO;  /* width inside an expert; 0 means 4 times the width of x */
    /* The weights of a token's experts are their probabilities among all experts. If false, these probabilities are
     * divided by their sum, which is the same as a softmax over the chosen experts alone (Mixtral; norm_topk_prob of
     * Qwen3-MoE). */
    bool plain_weights LK_ZERO;
    /* An expert takes at most capacity · N · k / experts rows, where N is the number of tokens that fit into a rank's
     * batch. It takes the first ones and contributes 0 to the others. 0: no limit. */
    double capacity LK_ZERO;
    double std LK_ZERO; /* initial weights are normal with this standard deviation; 0: uniform, as in nn.Linear */
    bool   frozen LK_ZERO;
    /* Three names to use instead of w1, w2 and w3; NULL: none. */
    const char *const *names LK_ZERO;
} lk_moe_options;

typedef struct lk_moe_result {
    lk_tensor y;             /* in x's shape */
    lk_tensor probabilities; /* (N, experts): the router's, for each token */
    lk_tensor index;         /* i32 (N, k): the chosen experts, the most probable first */
    lk_tensor counts;        /* f64 (experts): how often each was chosen, regardless of the capacity */
} lk_moe_result;

/* x (…, W) → (…, W): name.gate.weight (experts, W); for each expert w2 (silu(w1 x) ⊙ w3 x), with
 * name.experts.*.w1.weight and name.experts.*.w3.weight (experts, hidden, W), name.experts.*.w2.weight (experts, W,
 * hidden). If one part of a parameter's name is "*", files hold the slices along its first axis as separate tensors:
 * name.experts.0.w1.weight (hidden, W) and so on for each expert, as in Hugging Face's Mixtral. */
LK_API lk_moe_result lk_moe_at(lk_site site, lk_tensor x, const char *name, lk_moe_options options);
#define lk_moe(x, name, ...) lk_moe_at(LK_HERE, x, name, LK_OPTIONS(lk_moe_options, ##__VA_ARGS__))

/* The auxiliary loss that balances the experts, over all layers recorded so far in the graph of x, like
 * load_balancing_loss_func in transformers: experts · Σ over experts of (the share of tokens that chose the expert ×
 * its mean probability); it is k if all experts are used equally. The shares are taken over the tokens of all ranks and
 * layers in each micro-batch; with lk_parallel.reproducible_layout, in each leaf; in evaluation, over the whole batch
 * if ranks evaluate it together (lk_plan_config.joint_evaluation), otherwise over this rank's tokens. Scale it and add
 * it to the model's loss: lk_add(loss, lk_scale(balance, 0.02)). */
LK_API lk_tensor lk_moe_balance_at(lk_site site, lk_tensor x);
#define lk_moe_balance(x) lk_moe_balance_at(LK_HERE, x)

#define LK_MOE_METRICS 24
/* Records a metric "expert_0", "expert_1", … for each expert, over all layers recorded so far in the graph of x: its
 * share of all choices. With more than LK_MOE_METRICS experts, neighbouring experts share a metric: "experts_0_to_5",
 * …. */
LK_API void lk_moe_metrics_at(lk_site site, lk_tensor x);
#define lk_moe_metrics(x) lk_moe_metrics_at(LK_HERE, x)

LK_END_DECLS
#endif
