"""bf16_losses.py - losses of 20 steps in bf16 beside PyTorch's, from the same weights on the same samples;
test/train/bf16_losses.sh runs it. Argument: the command lockstep.

PyTorch trains in f32 and with autocast to bf16: how far the two are apart is the spread that bf16 has by itself. Ours
in bf16, and in f32 with --matmul-precision bf16, is as near to PyTorch's autocast: two roundings of that size differ by
at most twice the spread. Ours in f32 is nearer to its f32 by far. The distance of two runs is the largest difference of
their losses at a step; that of two methods, the largest over the seeds. Each step has all samples, so their order does
not matter."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from make_training import SimpleCNN  # noqa: E402

LOCKSTEP, STEPS, SEEDS, RATE = sys.argv[1], 20, 3, 2e-4
OURS = {"bf16": ["--dtype", "bf16"], "products in bf16": ["--matmul-precision", "bf16"], "f32": []}
torch.set_num_threads(1)


def train_there(model, loss_of, autocast):
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast): loss = loss_of(model)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def train_here(arguments, count):
    """The losses of the steps, of all `count` samples each."""
    log = "log.jsonl"
    if os.path.exists(log): os.remove(log)
    subprocess.run([LOCKSTEP, "train", *arguments, "--batch", str(count), "--steps", str(STEPS), "--optimizer", "adamw",
                    "--lr", str(RATE), "--weight-decay", "0", "--eval-every", "-1", "--threads", "1", "--log", log],
                   check=True, capture_output=True, text=True)
    with open(log) as file: events = [json.loads(line) for line in file]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert len(losses) == STEPS, losses
    return losses


def prepare_cnn(seed):
    """The model, its loss, and the arguments of the command."""
    count, generator = 10, torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = SimpleCNN()
    x, y = torch.rand(count, 3, 32, 32, generator=generator) * 2 - 1, torch.arange(count) % 10
    x += 0.3 * torch.rand(10, 3, 32, 32, generator=generator)[y]  # something to learn
    save_file(model.state_dict(), "cnn.safetensors")
    np.savez("samples.npz", x_train=x.numpy(), y_train=y.numpy().astype(np.int32))
    arguments = ["--model", "cnn", "--data", "npz:samples.npz", "--holdout", "0", "--init", "cnn.safetensors"]
    return model, lambda m: F.cross_entropy(m(x).float(), y), arguments, count


def prepare_gpt(seed):
    import transformers as hf
    hf.utils.logging.disable_progress_bar()
    count, context, vocabulary = 4, 32, 65
    torch.manual_seed(seed)
    config = hf.GPT2Config(vocab_size=vocabulary, n_positions=context, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0,
                           embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None)
    model = hf.GPT2LMHeadModel(config).train()
    model.save_pretrained("gpt")
    tokens = torch.randint(0, vocabulary, (count + context,))
    tokens.numpy().astype(np.uint16).tofile("tokens.bin")  # a sample begins at each of the first
    x = torch.stack([tokens[i:i + context] for i in range(count)])
    y = torch.stack([tokens[i + 1:i + context + 1] for i in range(count)])
    arguments = ["--init", "gpt", "--data", "tokens:tokens.bin", "--context", str(context)]
    return model, lambda m: F.cross_entropy(m(x).logits.float().flatten(0, 1), y.flatten()), arguments, count


def distance(a, b): return max(abs(x - y) for x, y in zip(a, b))


def compare(name, prepare):
    spread, ours = 0, dict.fromkeys(OURS, 0)
    for seed in range(SEEDS):
        model, loss_of, arguments, count = prepare(seed)
        start = {key: value.clone() for key, value in model.state_dict().items()}
        wide = train_there(model, loss_of, False)
        model.load_state_dict(start)
        narrow = train_there(model, loss_of, True)
        spread = max(spread, distance(narrow, wide))
        assert wide[-1] < 0.95 * wide[0], (name, wide)
        for kind, options in OURS.items():
            theirs = wide if kind == "f32" else narrow
            ours[kind] = max(ours[kind], distance(train_here(arguments + options, count), theirs))
    print(f"{name}: loss {wide[0]:.3f} to {wide[-1]:.3f}; PyTorch's autocast is {spread:.2e} from its f32; ours in f32 "
          f"{ours['f32']:.2e} from its f32, in bf16 {ours['bf16']:.2e} and with products in bf16 "
          f"{ours['products in bf16']:.2e} from its autocast", flush=True)
    assert max(ours["bf16"], ours["products in bf16"]) <= 2 * spread and ours["f32"] <= spread / 10, name


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    compare("SimpleCNN", prepare_cnn)
    try:
        import transformers  # noqa: F401
    except ImportError:
        print("GPT: not compared, for lack of transformers")
    else:
        compare("GPT", prepare_gpt)
