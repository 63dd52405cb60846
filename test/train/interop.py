"""Exchanges directories with transformers, both ways; test/train/interop.sh runs it. Arguments: the program of
hf_model.c, the command lockstep.

Ours → theirs: a directory that Lockstep wrote opens, without missing or unexpected weights, and gives the same logits;
AutoTokenizer opens its tokenizer and gives the same tokens.
Theirs → ours: what save_pretrained wrote (whole, in shards, in bf16) gives the same logits here, and trains here as in
PyTorch.
Gradients of one batch are PyTorch's.
Both give the same 64 tokens by greedy generation, and the same perplexity of a file of tokens in windows that overlap.
The command trains from a directory of theirs into one that they open."""
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
hf.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()
torch.manual_seed(0)
torch.set_num_threads(1)
program, lockstep = sys.argv[1], sys.argv[2]
TOLERANCE = 1e-5  # of the largest logit
LLAMA = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=88, max_position_embeddings=96, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
             rms_norm_eps=1e-5)
SCALED = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)
# name, class of the configuration, its arguments as version 4 has them
CASES = [
    ("gpt", hf.GPT2Config, dict(vocab_size=61, n_positions=80, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2,
                                bos_token_id=60, eos_token_id=60)),
    ("gpt with relu", hf.GPT2Config,
     dict(vocab_size=61, n_positions=80, n_embd=24, n_layer=1, n_head=3, n_inner=40, activation_function="relu",
          initializer_range=0.2, bos_token_id=None, eos_token_id=None)),
    ("llama, llama3 rope, tied", hf.LlamaConfig,
     dict(LLAMA, tie_word_embeddings=True, rope_theta=500.0, rope_scaling=SCALED)),
    ("llama, linear rope, biases, wide heads", hf.LlamaConfig,
     dict(LLAMA, num_key_value_heads=1, head_dim=16, attention_bias=True, mlp_bias=True, rope_theta=5000.0,
          rope_scaling=dict(rope_type="linear", factor=4.0))),
    ("llama, plain rope", hf.LlamaConfig, dict(LLAMA, rope_theta=300.0)),
    ("mistral, window of 5", hf.MistralConfig, dict(LLAMA, sliding_window=5, rope_theta=300.0)),
    ("mixtral", hf.MixtralConfig,
     dict(LLAMA, num_local_experts=4, num_experts_per_tok=2, rope_theta=300.0, sliding_window=None)),
    ("mixtral, auxiliary loss, 3 of 5 experts, window of 5", hf.MixtralConfig,
     dict(LLAMA, num_local_experts=5, num_experts_per_tok=3, rope_theta=300.0, sliding_window=5,
          output_router_logits=True, router_aux_loss_coef=0.5)),
    ("qwen3", hf.Qwen3Config, dict(LLAMA, head_dim=16, rope_theta=300.0, use_sliding_window=False)),
    ("qwen3-moe", hf.Qwen3MoeConfig,
     dict(LLAMA, moe_intermediate_size=88, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
          rope_theta=300.0)),
    ("qwen3-moe, plain router, auxiliary loss, biases, window of 5, wide heads", hf.Qwen3MoeConfig,
     dict(LLAMA, moe_intermediate_size=88, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, head_dim=16,
          attention_bias=True, use_sliding_window=True, sliding_window=5, output_router_logits=True,
          router_aux_loss_coef=0.5, tie_word_embeddings=True)),
    ("bert", hf.BertConfig, dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                 intermediate_size=56, max_position_embeddings=24, initializer_range=0.2,
                                 id2label={0: "no", 1: "perhaps", 2: "yes"},
                                 label2id={"no": 0, "perhaps": 1, "yes": 2})),
]
N, LENGTH = 3, 16
tokens = torch.randint(1, 61, (N, LENGTH))  # 0 is BERT's padding, to which PyTorch gives no gradient
lengths = torch.tensor([LENGTH, 7, 1])


def make_config(kind, arguments):
    """In version 5, rope_theta and rope_scaling are read as version 4's when they come from a file."""
    with open("from_file.json", "w") as file:
        json.dump(dict(arguments, model_type=kind.model_type), file)
    return kind.from_json_file("from_file.json")


def is_encoder(config): return config.model_type == "bert"


def auto(config): return AutoModelForSequenceClassification if is_encoder(config) else AutoModelForCausalLM


def masked(config):
    """Padding of a batch of unequal lengths, for encoders."""
    return dict(attention_mask=(torch.arange(LENGTH) < lengths[:, None]).long()) if is_encoder(config) else {}


def labels_of(config):
    return torch.tensor([2, 0, 1]) if is_encoder(config) else torch.where(tokens % 7 == 0, -100, tokens.roll(-1, 1))


def run(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def write_batch(config):
    parts = [torch.tensor([N, LENGTH]), tokens, lengths, labels_of(config)]
    torch.cat([part.flatten() for part in parts]).int().numpy().tofile("batch")


def our_logits(directory, config):
    write_batch(config)
    run("logits", directory, "batch", "logits")
    return torch.from_numpy(np.fromfile("logits", np.float32)).double()


def open_theirs(directory, config, **options):
    """Everything in the file is used, and nothing is missing; bf16 is converted."""
    model, info = auto(config).from_pretrained(directory, output_loading_info=True, attn_implementation="eager",
                                               **options)
    missing = set(info["missing_keys"]) - {"lm_head.weight"}
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.float().eval()


def compare(name, model, directory):
    with torch.no_grad(): expected = model(input_ids=tokens, **masked(model.config)).logits.double().flatten()
    got = our_logits(directory, model.config)
    off = ((got - expected).abs().max() / expected.abs().max()).item()
    assert got.shape == expected.shape and off < TOLERANCE, (name, off)
    return off


def check_ours(name, config, directory):
    config.architectures = [auto(config)._model_mapping[type(config)].__name__]
    config.save_pretrained(directory + "-config")
    run("make", directory + "-config", directory)
    back = AutoConfig.from_pretrained(directory)
    for key, value in config.to_dict().items():
        if key[0] == "_" or key in ("transformers_version", "dtype", "torch_dtype", "n_inner", "head_dim",
                                    "problem_type"): continue
        assert getattr(back, key, None) == value, (name, key, value, getattr(back, key, None))
    model = open_theirs(directory, config)
    if not is_encoder(config):
        generation = model.generation_config
        got = (generation.bos_token_id, generation.eos_token_id)
        assert got == (config.bos_token_id, config.eos_token_id), generation
    return compare(name, model, directory)


def check_theirs(name, config, directory):
    """Whole, in shards, in bf16; version 5 has no rope_theta of its own in config.json, version 4 no
    rope_parameters."""
    model = auto(config).from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(directory)
    worst = compare(name, model, directory)
    model.save_pretrained(directory + "-shards", max_shard_size="20KB")
    assert len([f for f in os.listdir(directory + "-shards") if f.endswith(".safetensors")]) > 1
    worst = max(worst, compare(name + " in shards", model, directory + "-shards"))
    model.bfloat16().save_pretrained(directory + "-bf16")
    dtype = "dtype" if hf.__version__ >= "5" else "torch_dtype"
    narrow = open_theirs(directory + "-bf16", config, **{dtype: torch.float32})
    return max(worst, compare(name + " in bf16", narrow, directory + "-bf16"))


def loss_of(model, config):
    result = model(input_ids=tokens, **masked(config))
    loss = torch.nn.functional.cross_entropy(result.logits.flatten(0, -2), labels_of(config).flatten(),
                                             ignore_index=-100)
    if getattr(config, "output_router_logits", False): loss = loss + config.router_aux_loss_coef * result.aux_loss
    return loss


def our_gradients(directory, config):
    """By the names in files, where each expert has its own."""
    write_batch(config)
    run("gradients", directory, "batch", "gradients")
    gradients, experts = {}, getattr(config, "num_local_experts", getattr(config, "num_experts", 1))
    with open("gradients", "rb") as file:
        while line := file.readline():
            name, count = line.decode().split()
            values = np.frombuffer(file.read(4 * int(count)), np.float32)
            if ".*." not in name: gradients[name] = values
            else: gradients |= {name.replace("*", str(i)): v for i, v in enumerate(np.split(values, experts))}
    return gradients


def check_gradients(name, config, directory):
    """Theirs are saved as if they were the weights, so that they have the names in files."""
    model = open_theirs(directory, config).eval()
    loss_of(model, config).backward()
    with torch.no_grad():
        for p in model.parameters(): p.copy_(p.grad if p.grad is not None else torch.zeros_like(p))
    model.save_pretrained(directory + "-gradients")
    expected = load_file(directory + "-gradients/model.safetensors")
    got, worst = our_gradients(directory, config), 0.0
    assert got.keys() == expected.keys(), (name, got.keys() ^ expected.keys())
    most = max(float(value.abs().max()) for value in expected.values())
    for key, value in expected.items():  # some, as of the bias of keys, are nothing but rounding
        value, largest = value.double().flatten().numpy(), max(float(value.abs().max()), 0.01 * most)
        worst = max(worst, float(np.abs(got[key] - value).max()) / largest)
    assert worst < TOLERANCE, (name, worst)
    return worst


def check_training(name, config, directory, steps=5):
    """On one batch, without dropout; then what was trained here opens there again."""
    write_batch(config)
    losses = [float(line) for line in run("train", directory, "batch", str(steps), directory + "-trained").split()]
    model = open_theirs(directory, config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout): module.p = 0
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    expected = []
    for _ in range(steps):
        loss = loss_of(model, config)
        adam.zero_grad()
        loss.backward()
        adam.step()
        expected.append(loss.item())
    off = max(abs(a - b) / b for a, b in zip(losses, expected))
    assert len(losses) == steps and losses[-1] < losses[0] and off < 1e-4, (name, losses, expected)
    compare(name + ", trained here", open_theirs(directory + "-trained", config), directory + "-trained")
    return off


def check_generation(name, config, directory, count=64):
    """By the library and by the command; the end token does not end it."""
    prompt = [5, 17, 3, 42, 60]
    ids = [int(line) for line in run("generate", directory, str(count), *map(str, prompt)).split()]
    model = open_theirs(directory, config)
    model.generation_config.eos_token_id = None
    # transformers 4 would also compute the auxiliary loss, for which its mask is too short once there is a cache.
    model.config.output_router_logits = False
    output = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                            do_sample=False, max_new_tokens=count, pad_token_id=0)
    expected = output[0, len(prompt):].tolist()
    assert ids == expected and len(ids) == count, (name, ids, expected)
    printed = command("generate", "--load", directory, "--prompt-ids", ",".join(map(str, prompt)),
                      "--tokens", str(count), "--temperature", "0", "--ignore-eos", "--ids")
    assert [int(t) for t in printed.stdout.replace(",", " ").split()] == expected, (name, printed.stdout, expected)
    return len(set(ids))


def their_loss(model, ids, length, stride):
    """The loop of https://huggingface.co/docs/transformers/perplexity; its windows are one token longer, which is the last label."""
    total, before = 0.0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length + 1, len(ids))
        scored = min(end - before, end - begin - 1)
        with torch.no_grad(): logits = model(input_ids=ids[None, begin:end - 1]).logits[0, -scored:].double()
        total += torch.nn.functional.cross_entropy(logits, ids[end - scored:end], reduction="sum").item()
        before = end
        if end == len(ids): break
    return total / (len(ids) - 1)


def check_perplexity(name, model, directory, data, ids, length):
    worst = 0.0
    for stride in (length, 5, 1):
        got = json.loads(command("eval", "--load", directory, "--data", data, "--context", str(length),
                                 "--stride", str(stride), "--json").stdout)
        expected = their_loss(model, ids, length, stride)
        off = abs(got["loss"] - expected) / expected
        assert (got["tokens"] == len(ids) - 1 and off < TOLERANCE
                and abs(got["perplexity"] / np.exp(expected) - 1) < 1e-4), (name, stride, got, expected)
        worst = max(worst, off)
    return worst, got


def check_tokens(name, config, directory):
    ids = torch.randint(1, 61, (203,))
    ids.numpy().astype(np.uint16).tofile("ids.u16")
    worst, _ = check_perplexity(name, open_theirs(directory, config), directory, "tokens:ids.u16", ids, LENGTH)
    print(f"{name}: losses of overlapping windows differ by {worst:.0e}")


def check_text(directory):
    """A text with its tokenizer: bits for each byte of the tokens that are scored."""
    with open("other.txt", "w") as file: file.write(TEXT[7:])
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor(tokenizer(TEXT[7:])["input_ids"])
    model = open_theirs(directory, AutoConfig.from_pretrained(directory))
    worst, got = check_perplexity(directory, model, directory, "text:other.txt", ids, 24)
    scored = len(TEXT[7:].encode()) - len(tokenizer.decode(ids[:1], skip_special_tokens=True).encode())
    assert abs(got["bits_per_byte"] / (got["loss"] * (len(ids) - 1) / np.log(2) / scored) - 1) < 1e-6, (got, scored)
    print(f"a text of {len(ids)} tokens: losses of overlapping windows differ by {worst:.0e}, "
          f"{got['bits_per_byte']:.4f} bits per byte")


TEXT = ("First Citizen:\nBefore we proceed any further, hear me speak.\n\n"
        "Zwölf Boxkämpfer jagen Viktor: 猫 🙂 and 3,14!\n") * 3


def train_bpe():
    """A small GPT-2 tokenizer with an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save("tokenizer.json")


def check_tokenizers(config):
    """Bytes, characters and BPE beside a model that Lockstep saved: the same tokens, and the text comes back."""
    with open("text.txt", "w") as file: file.write(TEXT)
    train_bpe()
    config.save_pretrained("tokenizer-config")
    for i, kind in enumerate(("byte", "text.txt", "tokenizer.json")):
        directory = f"tokenizer{i}"
        run("make", "tokenizer-config", directory, kind)
        theirs = hf.AutoTokenizer.from_pretrained(directory)
        ids = [int(line) for line in run("encode", directory, "text.txt").split()]
        expected = theirs(TEXT, add_special_tokens=False)["input_ids"]
        assert ids == expected, (kind, ids[:20], theirs(TEXT)["input_ids"][:20])
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == TEXT and len(theirs) > max(ids), kind
        print(f"{kind}: AutoTokenizer gives the same {len(ids)} tokens")


def command(*arguments, fails=None):
    done = subprocess.run([lockstep, *arguments], capture_output=True, text=True)
    if fails is None: assert done.returncode == 0, (arguments, done.stderr)
    else: assert done.returncode == 2 and fails in done.stderr, (arguments, done.returncode, done.stderr, fails)
    return done


TRAIN = ["train", "--batch", "4", "--steps", "3", "--threads", "1"]


def check_saved(name, directory, text):
    """What `lockstep train --save` wrote: model and tokenizer open, and the tokens of a text give the same logits."""
    global tokens
    config, tokenizer = AutoConfig.from_pretrained(directory), hf.AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    before, tokens = tokens, ids[:N * LENGTH].reshape(N, LENGTH)
    off = compare(name, open_theirs(directory, config), directory)
    tokens = before
    print(f"{name}: a directory of `lockstep train` opens, logits differ by {off:.0e}")
    return config


def check_command(config):
    """From a directory of transformers to one of ours, as the documentation has it; a model of characters; classes; and
    mistakes."""
    with open("corpus.txt", "w") as file: file.write(TEXT * 10)
    config.vocab_size = 300
    auto(config).from_config(config).save_pretrained("hub", max_shard_size="20KB")
    hf.PreTrainedTokenizerFast(tokenizer_file="tokenizer.json", eos_token="<|endoftext|>").save_pretrained("hub")
    command("data", "tokenize", "corpus.txt", "--tokenizer", "hub/tokenizer.json", "--out", "data/train.bin")
    for data, save in (("text:corpus.txt", "mine"), ("tokens:data/train.bin", "runs/mine")):
        command(*TRAIN, "--model", "hub/config.json", "--init", "hub", "--data", data, "--context", "32",
                "--save", save)
        check_saved(f"from hub to {save}", save, TEXT)
        assert hf.AutoTokenizer.from_pretrained(save).eos_token == "<|endoftext|>"
    check_text("mine")
    command(*TRAIN, "--model", "gpt", "--layers", "1", "--heads", "2", "--width", "16", "--context", "16",
            "--data", "text:corpus.txt", "--tokenizer", "char", "--save", "characters")
    check_saved("characters", "characters", TEXT)
    with open("data.jsonl", "w") as file:
        for i in range(40):
            text = ("good day " if i % 2 else "bad rain ") * (i % 3 + 1)
            file.write(json.dumps(dict(text=text, label="positive" if i % 2 else "negative")) + "\n")
    command(*TRAIN, "--model", "encoder", "--layers", "1", "--heads", "2", "--width", "16", "--context", "32",
            "--data", "jsonl:data.jsonl", "--label", "label", "--tokenizer", "byte", "--save", "classes")
    assert check_saved("classes", "classes", TEXT).id2label == {0: "negative", 1: "positive"}
    # the body of another BERT: its head is not ours, and it has neither a pooler nor classes
    body = hf.BertForMaskedLM(make_config(hf.BertConfig, dict(CASES[-1][2], vocab_size=256, max_position_embeddings=32,
                                                              id2label=None, label2id=None)))
    body.save_pretrained("body")
    done = command(*TRAIN, "--model", "body/config.json", "--init-partial", "body", "--data", "jsonl:data.jsonl",
                   "--label", "label", "--tokenizer", "byte", "--save", "tuned")
    assert all(name in done.stderr for name in ("bert.encoder.layer.1.output.dense.weight", "classifier.weight",
                                                "cls.predictions.bias")), done.stderr
    tuned = open_theirs("tuned", AutoConfig.from_pretrained("tuned")).bert.embeddings.position_embeddings.weight
    assert (tuned - body.bert.embeddings.position_embeddings.weight).abs().max() < 0.01

    swapped = dict(json.load(open("classes/config.json")), id2label={0: "positive", 1: "negative"})
    with open("swapped.json", "w") as file: json.dump(swapped, file)
    command(*TRAIN, "--model", "swapped.json", "--data", "jsonl:data.jsonl", "--tokenizer", "byte", "--save", "swapped")
    assert AutoConfig.from_pretrained("swapped").id2label == {0: "positive", 1: "negative"}
    other = dict(json.load(open("hub/config.json")), n_embd=16)
    unknown = dict(other, architectures=["MambaForCausalLM"], model_type="mamba")
    os.mkdir("own")
    for name, content in (("other.json", other), ("unknown.json", unknown), ("own/tokenizer.json", {})):
        with open(name, "w") as file: json.dump(content, file)
    data = ["--data", "text:corpus.txt", "--tokenizer", "hub", "--context", "32"]
    command(*TRAIN, "--model", "unknown.json", *data, fails='"architectures" is ["MambaForCausalLM"]')
    command(*TRAIN, "--model", "other.json", "--init", "hub", *data, fails="it belongs to a different model")
    command(*TRAIN, "--model", "hub/config.json", "--save", "own", *data,
            fails="own/tokenizer.json is not a link created by a save")
    assert os.listdir("own") == ["tokenizer.json"]
    os.remove("hub/" + sorted(f for f in os.listdir("hub") if f.endswith(".safetensors"))[1])
    command(*TRAIN, "--model", "hub/config.json", "--init", "hub", *data, fails="but there is no such file")


distinct = [0]  # a tied model with random weights may repeat its last token, but not all models do
for i, (name, kind, arguments) in enumerate(CASES):
    config = make_config(kind, arguments)
    ours = check_ours(name, config, f"ours{i}")
    theirs = check_theirs(name, config, f"theirs{i}")
    gradients = check_gradients(name, config, f"theirs{i}")
    trained = check_training(name, config, f"theirs{i}-shards")
    if not is_encoder(config):
        distinct += [check_generation(name, config, directory) for directory in (f"ours{i}", f"theirs{i}-shards")]
        check_tokens(name, config, f"theirs{i}")
    print(f"{name}: logits differ by {ours:.0e} (written by Lockstep) and {theirs:.0e} "
          f"(by transformers {hf.__version__}), gradients by {gradients:.0e}, losses of 5 steps by {trained:.0e}")
assert max(distinct) > 10, distinct
print(f"greedy generation gives the same 64 tokens, of which {max(distinct)} are distinct")
check_tokenizers(make_config(*CASES[0][1:]))
check_command(make_config(*CASES[0][1:]))
