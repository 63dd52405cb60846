"""Writes ops.safetensors: outputs and gradients that PyTorch computes in f64 for the cases of test_golden_ops.c. Operand i of a
case is drawn with seed 100 + i; the loss is the sum of the output times a last operand of its shape. python3 make_ops.py."""
import os

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F

from draw import plain, positive, spread, wide

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {}
OUT = {}


def case(name, operands, function, kind="value"):
    CASES[name] = (operands, function, kind)


class Statistics:
    """Of the batch_norm case at hand."""


def batch_norm(x, w, b):
    return F.batch_norm(x, Statistics.mean, Statistics.var, w, b, training=Statistics.training, momentum=0.3)


def both(name, operands, function, kind="value"):
    """With and without a relu behind it."""
    case(name, operands, function, kind)
    case(name + "_relu", operands, lambda *x: F.relu(function(*x)), kind)


# ---- element by element ----
case("add", [(plain, 3, 1, 5), (plain, 2, 1)], lambda a, b: a + b)
case("sub", [(plain, 5), (plain, 3, 7, 5)], lambda a, b: a - b)
case("mul", [(plain, 2, 1, 3, 1), (plain, 5, 1, 7)], lambda a, b: a * b)
case("div", [(plain, 3, 5), (positive, 3, 1)], lambda a, b: a / b)
case("div_scalar", [(plain, 7), (positive,)], lambda a, b: a / b)
case("scale", [(plain, 17)], lambda x: -2.5 * x)
case("relu", [(spread, 3, 17)], F.relu)
case("silu", [(wide, 3, 5, 7)], F.silu)
case("sigmoid", [(wide, 17)], torch.sigmoid)
case("tanh", [(wide, 3, 7)], torch.tanh)
case("gelu", [(wide, 5, 7)], F.gelu)
case("gelu_tanh", [(wide, 5, 7)], lambda x: F.gelu(x, approximate="tanh"))
case("exp", [(wide, 3, 17)], torch.exp)
case("log", [(positive, 5, 7)], torch.log)
case("sqrt", [(positive, 17)], torch.sqrt)
case("pow", [(positive, 3, 7)], lambda x: x.pow(2.5))
case("pow_negative", [(positive, 5)], lambda x: x.pow(-1.5))
case("pow_cube", [(spread, 3, 5)], lambda x: x.pow(3))
case("pow_square", [(plain, 17)], lambda x: x.pow(2))
case("pow_zero", [(plain, 3)], lambda x: x.pow(0))
case("clamp", [(wide, 3, 17)], lambda x: x.clamp(-2, 3))
case("clamp_low", [(wide, 17)], lambda x: x.clamp(min=0.5))
case("clamp_high", [(wide, 17)], lambda x: x.clamp(max=-0.5))
case("clamp_crossed", [(wide, 17)], lambda x: x.clamp(2, -1))
case("leaky_relu", [(spread, 3, 17)], lambda x: F.leaky_relu(x, 0.1))
CONDITION = torch.tensor([1, 0, 2, 0, -3, 1]).reshape(3, 2, 1) != 0
case("where", [(plain, 3, 1, 5), (plain, 2, 1)], lambda a, b: torch.where(CONDITION, a, b))
case("where_bytes", [(plain, 3, 2, 5), (positive,)], lambda a, b: torch.where(torch.tensor([1, 0, 0, 255, 7]) != 0, a, b))
case("where_computed", [(plain, 3, 5), (plain, 3, 5)], lambda a, b: torch.where(F.relu(a) != 0, a * b, b))
case("where_swapped", [(plain, 5), (plain, 3, 1, 5)], lambda a, b: torch.where(CONDITION, a, b))

# ---- along axes ----
case("softmax", [(wide, 3, 7)], lambda x: F.softmax(x, -1))
case("softmax_first", [(wide, 5, 3)], lambda x: F.softmax(x, 0))
case("softmax_middle", [(plain, 3, 5, 7)], lambda x: F.softmax(x, 1))
case("log_softmax", [(wide, 5, 17)], lambda x: F.log_softmax(x, -1))
case("log_softmax_middle", [(plain, 2, 3, 5)], lambda x: F.log_softmax(x, 1))
case("sum", [(plain, 3, 5, 7)], lambda x: x.sum())
case("sum_keepdim", [(plain, 3, 5, 7)], lambda x: x.sum(1, keepdim=True))
case("sum_two", [(plain, 3, 5, 7)], lambda x: x.sum((0, 2)))
case("mean", [(plain, 3, 5, 7)], lambda x: x.mean())
case("mean_two", [(plain, 2, 3, 5, 3)], lambda x: x.mean((1, 3)))
case("max", [(spread, 3, 7, 5)], lambda x: x.max(1).values)
case("max_keepdim", [(spread, 5, 3)], lambda x: x.max(0, keepdim=True).values)
case("max_last", [(plain, 3, 5, 17)], lambda x: x.max(-1).values)
case("max_first_of_equals", [(plain, 3, 5)], lambda x: torch.cat([x, x.detach()], 1).max(1).values)
case("max_second_of_equals", [(plain, 3, 5)], lambda x: (torch.cat([x.detach(), x], 1).max(1, keepdim=True).values * x))
case("argmax", [(plain, 3, 7), (plain, 7, 5)], lambda x, t: F.embedding(x.argmax(1), t).square())

# ---- shape ----
case("reshape", [(plain, 3, 5, 4)], lambda x: x.reshape(6, 10).square())
case("flatten", [(plain, 3, 5, 2, 2)], lambda x: x.flatten(1).square())
case("transpose", [(plain, 3, 5, 7)], lambda x: x.transpose(0, 2).square())
case("permute", [(plain, 2, 3, 1, 5, 2, 3)], lambda x: x.permute(2, 0, 1, 5, 3, 4).square())
case("slice", [(plain, 3, 7, 5)], lambda x: x[:, 2:6].square())
case("concat", [(plain, 3, 1, 5), (plain, 3, 4, 5), (plain, 3, 2, 5)], lambda *x: torch.cat(x, 1).square())

# ---- products ----
case("matmul", [(plain, 5, 7), (plain, 7, 3)], torch.matmul)
case("matmul_ta", [(plain, 7, 5), (plain, 7, 3)], lambda a, b: a.mT @ b)
case("matmul_tb", [(plain, 5, 7), (plain, 3, 7)], lambda a, b: a @ b.mT)
case("matmul_tatb", [(plain, 7, 5), (plain, 3, 7)], lambda a, b: a.mT @ b.mT)
case("matmul_batched", [(plain, 3, 5, 7), (plain, 3, 2, 7)], lambda a, b: a @ b.mT)
case("matmul_shared_right", [(plain, 3, 5, 7), (plain, 7, 2)], torch.matmul)
case("matmul_shared_left", [(plain, 7, 5), (plain, 3, 7, 2)], lambda a, b: a.mT @ b)
case("matmul_four_axes", [(plain, 2, 3, 5, 3), (plain, 2, 3, 3, 1)], torch.matmul)
both("linear", [(plain, 3, 17), (plain, 7, 17), (plain, 7)], F.linear)
case("linear_three_axes", [(plain, 2, 3, 5), (plain, 7, 5)], F.linear)

# ---- convolution and pooling ----
both("conv", [(plain, 2, 3, 7, 5), (plain, 5, 3, 3, 3), (plain, 5)], lambda x, w, b: F.conv2d(x, w, b, padding=1))
case("conv_stride", [(plain, 2, 5, 7, 7), (plain, 3, 5, 3, 3)], lambda x, w: F.conv2d(x, w, stride=2, padding=1))
case("conv_five", [(plain, 1, 2, 17, 5), (plain, 3, 2, 5, 5), (plain, 3)],
     lambda x, w, b: F.conv2d(x, w, b, stride=3, padding=2))
case("conv_groups", [(plain, 3, 4, 5, 7), (plain, 6, 2, 3, 3), (plain, 6)],
     lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2))
case("conv_depthwise", [(plain, 2, 6, 7, 5), (plain, 6, 1, 3, 3)], lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=6))
case("conv_one", [(plain, 1, 3, 7, 7), (plain, 16, 3, 1, 1)], lambda x, w: F.conv2d(x, w, stride=2))
case("conv_oblong", [(plain, 2, 3, 5, 7), (plain, 5, 3, 3, 5)], lambda x, w: F.conv2d(x, w, padding=2))
case("conv_stem", [(plain, 1, 3, 11, 11), (plain, 4, 3, 7, 7)], lambda x, w: F.conv2d(x, w, stride=2, padding=3))
case("conv_many", [(plain, 2, 16, 5, 5), (plain, 17, 16, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1))
case("conv_relu_pool", [(plain, 2, 3, 9, 8), (plain, 8, 3, 3, 3), (plain, 8)],
     lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2))
case("conv_pool_three", [(plain, 1, 2, 9, 10), (plain, 5, 2, 3, 3)], lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 3))
case("max_pool", [(spread, 3, 5, 7, 7)], lambda x: F.max_pool2d(x, 2))
case("max_pool_overlap", [(spread, 2, 3, 7, 5)], lambda x: F.max_pool2d(x, 3, 2, 1))
case("avg_pool", [(plain, 3, 5, 7, 7)], lambda x: F.avg_pool2d(x, 2).square())
case("avg_pool_overlap", [(plain, 2, 3, 7, 5)], lambda x: F.avg_pool2d(x, 3, 2, 1).square())
case("global_avg_pool", [(plain, 2, 5, 3, 7)], lambda x: x.mean((2, 3)).square())

# ---- norms and tables ----
case("layer_norm", [(wide, 3, 17), (positive, 17), (plain, 17)], lambda x, w, b: F.layer_norm(x, (17,), w, b))
case("layer_norm_two", [(wide, 2, 3, 5, 3), (positive, 5, 3), (plain, 5, 3)],
     lambda x, w, b: F.layer_norm(x, (5, 3), w, b, eps=0.25))
case("layer_norm_alone", [(wide, 2, 3, 7)], lambda x: F.layer_norm(x, (7,)))
case("rms_norm", [(wide, 3, 17), (positive, 17)], lambda x, w: F.rms_norm(x, (17,), w))
case("rms_norm_alone", [(plain, 2, 3, 7)], lambda x: F.rms_norm(x, (7,), eps=0.25))
both("batch_norm", [(wide, 3, 5, 2, 3), (positive, 5), (plain, 5)], lambda x, w, b: batch_norm(x, w, b), "batch_norm")
case("batch_norm_rows", [(wide, 7, 3)], lambda x: batch_norm(x, None, None), "batch_norm")
case("group_norm", [(wide, 3, 6, 5), (positive, 6), (plain, 6)], lambda x, w, b: F.group_norm(x, 3, w, b))
case("group_norm_image", [(wide, 2, 4, 3, 5), (positive, 4), (plain, 4)],
     lambda x, w, b: F.group_norm(x, 2, w, b, eps=0.25))
case("group_norm_rows", [(wide, 3, 8), (positive, 8)], lambda x, w: F.group_norm(x, 2, w))
case("group_norm_alone", [(plain, 2, 5, 3)], lambda x: F.group_norm(x, 1))
IDS = torch.tensor([2, 0, 2, 6, 2, 5, 0])
case("embedding", [(plain, 7, 5)], lambda t: F.embedding(IDS, t).square())
case("embedding_two_axes", [(plain, 7, 3)], lambda t: F.embedding(IDS.repeat(3).reshape(3, 7), t).square())


# ---- mixture of experts: each token's experts one by one, as MixtralSparseMoeBlock computes it ----
def experts(normalised, capacity=None):
    def function(x, gate, w1, w3, w2):
        probabilities = F.softmax(x @ gate.T, -1)
        weight, index = probabilities.topk(2, -1)
        if normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        rows, used = [], [0] * gate.shape[0]
        for token in range(x.shape[0]):
            row = torch.zeros_like(x[0])
            for j in range(2):
                e = int(index[token, j])
                used[e] += 1
                if capacity is None or used[e] <= capacity:
                    row = row + weight[token, j] * (w2[e] @ (F.silu(w1[e] @ x[token]) * (w3[e] @ x[token])))
            rows.append(row)
        return torch.stack(rows)

    return function


EXPERTS = [(plain, 7, 5), (spread, 4, 5), (plain, 4, 3, 5), (plain, 4, 3, 5), (plain, 4, 5, 3)]
case("topk", [(spread, 3, 7)], lambda x: x.topk(3, -1).values.square())
case("experts", EXPERTS, experts(True))
case("experts_plain", EXPERTS, experts(False))
case("experts_capacity", EXPERTS, experts(True, 3))

# ---- losses ----
LABELS = torch.tensor([2, 0, 1, 4, -100, 2, 3, -100, 0])
SAMPLE = torch.tensor([0.5, 2, 0, 1.25, 3, 1, 0.75, 1, 0.125], dtype=torch.float64)


def cross_entropy(smoothing=0.0, ignore=-100, weighted=False):
    labels = LABELS if ignore == -100 else LABELS.clamp(min=1)

    def function(x):
        rows = x.reshape(-1, x.shape[-1])
        w = SAMPLE if weighted else torch.ones(9, dtype=torch.float64)
        each = F.cross_entropy(rows, labels, reduction="none", label_smoothing=smoothing, ignore_index=ignore)
        if not weighted:  # our sum over our weight must be PyTorch's own mean
            mean = F.cross_entropy(rows, labels, label_smoothing=smoothing, ignore_index=ignore)
            assert abs(each.sum() / (labels != ignore).sum() - mean) < 1e-14
        return (each * w).sum(), w[labels != ignore].sum()

    return function


def fused_attention(heads, groups, causal=False, window=0, packed=False, scale=None):
    def function(q, k=None, v=None):
        if packed:
            d = q.shape[-1] // (heads + 2 * groups)
            q, k, v = q.split([heads * d, groups * d, groups * d], -1)
        split = lambda x, n: x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
        q, k, v = split(q, heads), split(k, groups), split(v, groups)
        k, v = (x.repeat_interleave(heads // groups, 1) for x in (k, v))
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if causal:
            mask &= j <= i
        if window:
            mask &= j > i - window
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return y.transpose(1, 2).flatten(2)

    return function


def rope(x):  # transformers' apply_rotary_pos_emb with rotate_half, 2 heads of 4, theta 10000
    angle = torch.arange(5, dtype=torch.float64)[:, None] / 10000 ** (torch.arange(2, dtype=torch.float64) / 2)
    cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
    x = x.reshape(2, 5, 2, 4)
    rotated = torch.cat([-x[..., 2:], x[..., :2]], -1)
    return (x * cos + rotated * sin).flatten(2)


case("fused_attention", [(plain, 2, 5, 6), (plain, 2, 7, 6), (plain, 2, 7, 6)], fused_attention(2, 2))
case("attention_causal", [(wide, 2, 5, 6), (plain, 2, 5, 6), (plain, 2, 5, 6)], fused_attention(2, 2, causal=True))
case("attention_grouped", [(plain, 2, 5, 12), (plain, 2, 5, 6), (plain, 2, 5, 6)], fused_attention(4, 2, causal=True, scale=0.3))
case("attention_window", [(plain, 1, 9, 4), (plain, 1, 9, 4), (plain, 1, 9, 4)], fused_attention(1, 1, causal=True, window=3))
case("attention_packed", [(plain, 2, 5, 16)], fused_attention(2, 1, causal=True, packed=True))
case("rope", [(plain, 2, 5, 8)], rope)
case("swiglu", [(wide, 3, 7), (plain, 3, 7)], lambda gate, up: F.silu(gate) * up)
case("linear_cross_entropy", [(plain, 9, 4), (plain, 5, 4)],
     lambda x, w: (F.cross_entropy(x @ w.T, LABELS, reduction="sum", ignore_index=-100),
                   (LABELS != -100).sum().double()), "loss")
case("cross_entropy", [(wide, 9, 5)], cross_entropy(), "loss")
case("cross_entropy_smooth", [(wide, 9, 5)], cross_entropy(0.1), "loss")
case("cross_entropy_ignore", [(plain, 9, 5)], cross_entropy(0, 2), "loss")
case("cross_entropy_weight", [(wide, 9, 5)], cross_entropy(0, -100, True), "loss")
case("cross_entropy_all", [(wide, 9, 5)], cross_entropy(0.3, 2, True), "loss")
case("cross_entropy_three_axes", [(wide, 3, 3, 5)], cross_entropy(0.1), "loss")


def entropy_each(smoothing=0.0, weighted=False):
    def function(x):
        rows = x.reshape(-1, x.shape[-1])
        each = F.cross_entropy(rows, LABELS, reduction="none", label_smoothing=smoothing)
        return (each * SAMPLE if weighted else each).reshape(x.shape[:-1])

    return function


case("cross_entropy_each", [(wide, 9, 5)], entropy_each())
case("cross_entropy_each_weight", [(plain, 9, 5)], entropy_each(0.3, True))
case("cross_entropy_each_three_axes", [(wide, 3, 3, 5)], entropy_each(0.1))
case("mse_each", [(plain, 5), (plain, 5)], lambda a, b: F.mse_loss(a, b, reduction="none"))
case("mse_each_image", [(plain, 2, 3, 5, 3), (plain, 2, 3, 5, 3)],
     lambda a, b: F.mse_loss(a, b, reduction="none").flatten(1).mean(1))
case("mse", [(plain, 3, 5), (plain, 3, 5)], lambda a, b: ((a - b).square().sum(), torch.tensor(15.0)), "loss")
case("mse_image", [(plain, 2, 3, 5, 3), (plain, 2, 3, 5, 3)], lambda a, b: ((a - b).square().sum(), torch.tensor(90.0)), "loss")
case("loss", [(plain, 9, 5)], lambda x: (((x * x.tanh()).sum(1) * SAMPLE).sum(), SAMPLE.sum()), "loss")
case("l1", [(plain, 3, 5), (plain, 3, 5)], lambda a, b: ((a - b).abs().sum(), torch.tensor(15.0)), "loss")
case("l1_image", [(plain, 2, 3, 5, 3), (plain, 2, 3, 5, 3)],
     lambda a, b: (F.l1_loss(a, b, reduction="sum"), torch.tensor(90.0)), "loss")
TARGET = (torch.arange(45, dtype=torch.float64) * 7 % 11 / 10).reshape(9, 5)


def bce_with_logits(weight=None):
    def function(x):
        w = torch.ones(9, dtype=torch.float64) if weight is None else weight
        return F.binary_cross_entropy_with_logits(x, TARGET, w[:, None], reduction="sum"), 5 * w.sum()

    return function


case("bce_with_logits", [(wide, 9, 5)], bce_with_logits(), "loss")
case("bce_with_logits_weight", [(wide, 9, 5)], bce_with_logits(SAMPLE), "loss")

# ---- recorded data, and no gradient ----
DATA = torch.tensor([0.5, -2, 3, 0, 1.25], dtype=torch.float64)
case("constant", [(plain, 3, 5)], lambda x: x * DATA + DATA[:3, None])
case("stop_gradient", [(plain, 3, 5), (plain, 5)], lambda x, y: x * x.detach() + y.detach() * x)


# ---- several at once ----
def attention(x, wq, wk, wv):
    p = F.softmax(F.linear(x, wq) @ F.linear(x, wk).mT / 2, -1)
    return F.layer_norm(x + p @ F.linear(x, wv), (5,))


def squeeze_and_excite(x, w1, w2):
    y = F.relu(F.conv2d(x, w1, padding=1)) + x
    return y * torch.sigmoid(F.linear(y.mean((2, 3)), w2))[:, :, None, None]


case("attention", [(plain, 3, 7, 5), (plain, 5, 5), (plain, 5, 5), (plain, 5, 5)], attention)
case("squeeze_and_excite", [(plain, 3, 4, 5, 5), (plain, 4, 4, 3, 3), (plain, 4, 4)], squeeze_and_excite)


def draw_operand(index, kind, *shape):
    return torch.from_numpy(np.asarray(kind(100 + index, *shape), dtype=np.float64)).requires_grad_()


def put(name, value):
    OUT[name] = value.detach().double().numpy().copy()


def run(name, operands, function, kind):
    x = [draw_operand(i, *o) for i, o in enumerate(operands)]
    if kind == "loss":
        loss, weight = function(*x)
        put(name + "/weight", weight)
    elif kind == "batch_norm":
        Statistics.mean = torch.zeros(x[0].shape[1], dtype=torch.float64)
        Statistics.var = torch.ones(x[0].shape[1], dtype=torch.float64)
        Statistics.training = True
        y = function(*x)
        put(name + "/mean", Statistics.mean)
        put(name + "/var", Statistics.var)
        Statistics.training = False
        put(name + "/y", function(*x))  # in evaluation, from the statistics of this one step
        loss = (y * torch.from_numpy(plain(100 + len(x), *y.shape))).sum()
    else:
        y = function(*x)
        put(name + "/y", y)
        loss = (y * torch.from_numpy(np.asarray(plain(100 + len(x), *y.shape)))).sum()
    loss.backward()
    put(name + "/loss", loss)
    for i, p in enumerate(x):
        put(f"{name}/p{i}", torch.zeros_like(p) if p.grad is None else p.grad)


for key, value in CASES.items():
    run(key, *value)
save_file(OUT, os.path.join(HERE, "ops.safetensors"))
os.chmod(os.path.join(HERE, "ops.safetensors"), 0o644)
print(len(CASES), "cases,", sum(v.nbytes for v in OUT.values()), "bytes")
