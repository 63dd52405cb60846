"""Writes transformers.safetensors: losses of 50 AdamW steps and first gradients of small GPT and Llama models, from weights and batches
that test_transformers_golden.c makes by the same formula. The models are written here in plain PyTorch with every norm, rope table,
softmax and loss in f64. Where transformers is installed, the same weights in its own models, in f32, must give the same logits and first
gradients to 1e-5, and these gradients are stored too. python3 make_transformers.py, beside this file."""
import math
import os

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F

import draw

STEPS, PROJECTIONS, BATCH, LENGTH, VOCABULARY = 50, 8, 4, 16, 61
HERE = os.path.dirname(os.path.abspath(__file__))

# Under transformers' names of the configuration. test_transformers_golden.c has the same models.
GPT = dict(vocab_size=VOCABULARY, n_positions=24, n_embd=32, n_layer=2, n_head=4, activation_function="gelu_new", layer_norm_epsilon=1e-5,
           resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
LLAMA = dict(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, intermediate_size=88, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# Heads that are wider than width / heads, biases, a tied head, and Llama 3's scaling, of which 8 positions reach all three ranges.
LLAMA3 = dict(LLAMA, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
              rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8))


def gpt_shapes(c):
    width, hidden = c["n_embd"], 4 * c["n_embd"]
    yield "transformer.wte.weight", (c["vocab_size"], width)
    yield "transformer.wpe.weight", (c["n_positions"], width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            yield layer + norm + ".weight", (width,)
            yield layer + norm + ".bias", (width,)
        for name, inside, outside in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width), ("mlp.c_fc", width, hidden), ("mlp.c_proj", hidden, width)):
            yield layer + name + ".weight", (inside, outside)
            yield layer + name + ".bias", (outside,)
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def llama_shapes(c):
    width, hidden, queries = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, inside, outside, bias in (("self_attn.q_proj", width, queries, "attention_bias"), ("self_attn.k_proj", width, keys, "attention_bias"),
                                            ("self_attn.v_proj", width, keys, "attention_bias"), ("self_attn.o_proj", queries, width, "attention_bias"),
                                            ("mlp.gate_proj", width, hidden, "mlp_bias"), ("mlp.up_proj", width, hidden, "mlp_bias"), ("mlp.down_proj", hidden, width, "mlp_bias")):
            yield layer + name + ".weight", (outside, inside)
            if c[bias]: yield layer + name + ".bias", (outside,)
        yield layer + "input_layernorm.weight", (width,)
        yield layer + "post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    if not c["tie_word_embeddings"]: yield "lm_head.weight", (c["vocab_size"], width)


def initialise(shapes):
    """As make_training.py: weights uniform within 1 / sqrt(columns), norms' weights in 0.75 … 1.25, biases within a tenth."""
    weights = {}
    for name, shape in shapes:
        u = draw.plain(draw.seed_of(name), *shape)
        u = u / math.sqrt(shape[1]) if len(shape) > 1 else 1 + u / 4 if name.endswith("weight") else u / 10
        weights[name] = torch.from_numpy(u).requires_grad_()
    return weights


def batch(step):
    """Mostly a rule that can be learnt, 7 t + 3; a quarter of the tokens are drawn; of the labels a sixteenth is ignored."""
    bits = [int(b) for b in draw.bits(5000 + step, BATCH * (LENGTH + 1))]
    tokens, labels = np.zeros((BATCH, LENGTH + 1), np.int64), np.zeros((BATCH, LENGTH), np.int64)
    for n in range(BATCH):
        for i in range(LENGTH + 1):
            b = bits[n * (LENGTH + 1) + i]
            drawn = i == 0 or b >> 62 == 0
            tokens[n, i] = (b >> 32) % VOCABULARY if drawn else (7 * tokens[n, i - 1] + 3) % VOCABULARY
            if i: labels[n, i - 1] = -100 if (b >> 8) % 16 == 0 else tokens[n, i]
    return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(labels)


def layer_norm(x, weight, bias, epsilon):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * weight + bias


def rms_norm(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def attend(q, k, v):
    """(N, heads, T, head), causal; keys and values may have fewer heads."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    masked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(masked, -math.inf)
    weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
    y = weights / weights.sum(-1, keepdim=True) @ v
    return y.transpose(1, 2).flatten(2)


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def gelu_new(x):
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gpt(w, c, tokens):
    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], c["layer_norm_epsilon"])

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        q, k, v = (heads(t, c["n_head"]) for t in conv1d(norm(x, layer + "ln_1"), layer + "attn.c_attn").chunk(3, -1))
        x = x + conv1d(attend(q, k, v), layer + "attn.c_proj")
        x = x + conv1d(gelu_new(conv1d(norm(x, layer + "ln_2"), layer + "mlp.c_fc")), layer + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def rope_table(c, length):
    """Cosines and sines (T, head / 2)."""
    rope, size = c["rope_parameters"], c["head_dim"]
    frequencies = [rope["rope_theta"] ** (-2 * i / size) for i in range(size // 2)]
    if rope["rope_type"] == "llama3":
        original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        for i, f in enumerate(frequencies):
            share = original * f / (2 * math.pi)  # turns within the original context
            kept = min(max((share - low) / (high - low), 0), 1)
            frequencies[i] = kept * f + (1 - kept) * f / rope["factor"]
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    return angles.cos(), angles.sin()


def rotate(x, table):
    """The pairs (i, i + head / 2)."""
    (cos, sin), (a, b) = table, x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def llama(w, c, tokens):
    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def norm(x, name):
        return rms_norm(x, w[name + ".weight"], c["rms_norm_eps"])

    table = rope_table(c, tokens.shape[1])
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm")
        q = rotate(heads(linear(y, layer + "self_attn.q_proj"), c["num_attention_heads"]), table)
        k = rotate(heads(linear(y, layer + "self_attn.k_proj"), c["num_key_value_heads"]), table)
        v = heads(linear(y, layer + "self_attn.v_proj"), c["num_key_value_heads"])
        x = x + linear(attend(q, k, v), layer + "self_attn.o_proj")
        y = norm(x, layer + "post_attention_layernorm")
        gate = linear(y, layer + "mlp.gate_proj")
        x = x + linear(gate / (1 + torch.exp(-gate)) * linear(y, layer + "mlp.up_proj"), layer + "mlp.down_proj")
    return norm(x, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def mean_loss(logits, labels):
    counted = labels >= 0
    logits, labels = logits[counted], labels[counted]
    largest = logits.max(-1, keepdim=True).values
    normaliser = torch.log(torch.exp(logits - largest).sum(-1)) + largest[:, 0]
    return (normaliser - logits[torch.arange(len(labels)), labels]).mean()


def summarise(name, gradient):
    """Norm and projections, as make_training.py stores them."""
    g, seed = gradient.detach().double().numpy().ravel(), draw.seed_of(name)
    return np.array([np.linalg.norm(g)] + [g @ draw.plain(seed + 1 + k & 0xFFFFFFFFFFFFFFFF, g.size) for k in range(PROJECTIONS)])


def train(model, shapes, config, out, prefix):
    weights = initialise(shapes(config))
    decayed, others = ([w for w in weights.values() if (w.dim() > 1) == matrix] for matrix in (True, False))
    adam = torch.optim.AdamW([dict(params=decayed, weight_decay=0.1), dict(params=others, weight_decay=0.0)], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, first = [], {}
    for step in range(1, STEPS + 1):
        tokens, labels = batch(step)
        logits = model(weights, config, tokens)
        loss = mean_loss(logits, labels)
        adam.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 1:
            first = dict(logits=logits.detach(), loss=loss.item(), gradients={name: w.grad.clone() for name, w in weights.items()})
        adam.step()
    out[prefix + "losses"] = np.array(losses)
    for name, gradient in first["gradients"].items(): out[prefix + "gradient/" + name] = summarise(name, gradient)
    print(f"{prefix} loss {losses[0]:.6f} to {losses[-1]:.6f}")
    return first


def compare(hf, shapes, config, first, out, prefix):
    """transformers in f32 against the first step above."""
    missing, unexpected = hf.load_state_dict({k: v.detach().float() for k, v in initialise(shapes(config)).items()}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    hf.tie_weights()
    tokens, labels = batch(1)
    logits = hf.train()(input_ids=tokens).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    off = (logits.double() - first["logits"]).abs().max() / first["logits"].abs().max()
    assert off < 1e-5 and abs(loss.item() - first["loss"]) < 1e-5, (prefix, off, loss.item(), first["loss"])
    worst = 0
    for name, p in hf.named_parameters():
        wanted = first["gradients"][name]
        worst = max(worst, ((p.grad.double() - wanted).norm() / wanted.norm()).item())
        out[prefix + "f32_gradient/" + name] = summarise(name, p.grad)
    assert worst < 1e-5, (prefix, worst)
    print(f"{prefix} transformers in f32: logits within {off:.1e}, gradients within {worst:.1e}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = {}
    try:
        import transformers as hf
    except ImportError:
        hf = None
        print("transformers is not installed: nothing to compare with, and its gradients in f32 are not stored")
    for prefix, model, shapes, config in (("gpt/", gpt, gpt_shapes, GPT), ("llama/", llama, llama_shapes, LLAMA), ("llama3/", llama, llama_shapes, LLAMA3)):
        first = train(model, shapes, config, out, prefix)
        if hf:
            made = hf.GPT2LMHeadModel(hf.GPT2Config(**config)) if model is gpt else hf.LlamaForCausalLM(hf.LlamaConfig(**config))
            compare(made, shapes, config, first, out, prefix)
    save_file(out, os.path.join(HERE, "transformers.safetensors"))
    os.chmod(os.path.join(HERE, "transformers.safetensors"), 0o644)


if __name__ == "__main__":
    main()
