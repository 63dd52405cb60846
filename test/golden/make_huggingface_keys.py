"""Writes huggingface_keys.jsonl: for every key that transformers knows for a model that Lockstep opens, and several values of it, what
transformers makes of a small model with a config.json that has it. Weights come from a formula (draw.py), so that only logits are stored: their
projections, one for each token of a text or one for each of the texts to classify; "same", where they are those of the model without the key;
"fails", where transformers makes no model of it; or "differs", where its logits depend on whether its cache is used. test_huggingface_keys.c
compares them. Needs torch and transformers 5. python3 make_huggingface_keys.py, beside this file."""
import dataclasses, json, logging, math, pathlib, re, tempfile, warnings
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.generation import GenerationConfig
from transformers.modeling_rope_utils import RopeParameters

import draw

here = pathlib.Path(__file__).parent
source = pathlib.Path(transformers.__file__).parent
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
logging.disable(logging.CRITICAL)

VOCABULARY, LENGTH = 23, 12
TOKENS = [int(b % VOCABULARY) for b in draw.bits(77, LENGTH)]
LENGTHS = [LENGTH, 7]  # of the texts to classify, which begin alike

tokens = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
llama = dict(vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=50.0), **tokens)
MODELS = {
    "gpt2": dict(architectures=["GPT2LMHeadModel"], vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=4, **tokens),
    "llama": dict(architectures=["LlamaForCausalLM"], **llama),
    "mistral": dict(architectures=["MistralForCausalLM"], sliding_window=5, head_dim=4, **llama),
    "bert": dict(architectures=["BertForSequenceClassification"], vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=16, num_hidden_layers=2,
                 num_attention_heads=4, intermediate_size=20, num_labels=3, **tokens),
}
SHARED = ["masking_utils.py", "cache_utils.py", "modeling_rope_utils.py", "modeling_layers.py"]
# Of version 4's configuration classes, where version 5 has no such key any more.
VERSION4 = """rope_theta rope_scaling partial_rotary_factor original_max_position_embeddings position_embedding_type pruned_heads torchscript use_bfloat16
torch_dtype tf_legacy_loss tie_encoder_decoder cross_attention_hidden_size is_decoder add_cross_attention decoder_start_token_id sep_token_id prefix
finetuning_task task_specific_params tokenizer_class output_attentions n_ctx num_labels gradient_checkpointing attn_implementation name_or_path layer_types
sliding_window attention_chunk_size is_causal num_kv_shared_layers per_layer_config tie_last_hidden_states""".split()
GENERATION = list(GenerationConfig._get_default_generation_params())
NOT_KEYS = {"model_type", "architectures", "get_text_config", "to_dict", "standardize_rope_params", "quantization_config", "from_pretrained", "is_heterogeneous"}

# Values that mean something for a key; others get values of the type that they have.
VALUES = {
    "rope_scaling": [None, {}, {"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 2}, {"rope_type": "default", "rope_theta": 7.0}],
    "hidden_act": ["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "relu", "quick_gelu", "gelu_10", "mish", "tanh", None],
    "layer_types": [None, ["full_attention"] * 2, ["sliding_attention"] * 2, ["full_attention", "sliding_attention"], ["chunked_attention"] * 2,
                    ["full_attention"], ["attention"] * 2, "full_attention"],
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query", None],
    "problem_type": [None, "single_label_classification", "regression", "multi_label_classification", "other"],
    "per_layer_config": [None, {}, {"0": {"hidden_act": "relu"}}, {"1": {"intermediate_size": 24}}],
    "pruned_heads": [None, {}], # others are refused, and version 5 ignores them
    "id2label": [None, {"0": "a", "1": "b", "2": "c", "3": "d"}, {"1": "b", "0": "a"}],
    "label2id": [None, {"a": 0, "b": 1, "c": 2}],
    "dtype": ["float32", "float16", "bfloat16", None], "torch_dtype": ["float32", "float16", None],
    "attn_implementation": ["eager", "sdpa", None],
    "head_dim": [None, 4, 6, 8, 5, 0], "num_key_value_heads": [None, 1, 2, 4, 3], "sliding_window": [None, 2, 3, 12, 64],
    "vocab_size": [VOCABULARY, 32, 0, None], "hidden_size": [16, 24, 18, None], "n_embd": [16, 24, 18, None], "num_labels": [2, 5, None],
    "max_position_embeddings": [12, 32, None], "n_positions": [12, 32, None],
    "rope_theta": [100.0, 500000, 0.5, None], "partial_rotary_factor": [1.0, 0.5, None],
    "original_max_position_embeddings": [4, 16, None], "type_vocab_size": [2, 3, 1, None],
    "tie_word_embeddings": [True, False, None], "classifier_dropout": [None, 0.0, 0.1, 0.5],
}
VALUES["activation_function"] = VALUES["hidden_act"]
LLAMA3 = dict(rope_type="llama3", rope_theta=50.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
ROPE = {
    "rope_type": ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "axial", "other", None],
    "type": ["default", "linear", "yarn"], "mrope_section": [[1, 1], None], "short_factor": [[1.0, 1.0], None], "long_factor": [[2.0, 2.0], None],
    "truncate": [True, False, None],
}


def known_keys(name, config_class):
    """Of the configuration class, of generation, and of the code that models share."""
    keys = [f.name for f in dataclasses.fields(config_class)] + VERSION4 + list(config_class.attribute_map)
    keys += GENERATION
    files = [source / "models" / name / f"modeling_{name}.py"] + [source / f for f in SHARED]
    for file in files:
        text = file.read_text()
        keys += re.findall(r'\bconfig\.(\w+)', text) + re.findall(r'[gh]etattr\((?:self\.)?config, "(\w+)"', text)
    methods = {k for k in dir(config_class) if callable(getattr(config_class, k, None))}
    return [k for k in dict.fromkeys(keys) if not k.startswith("_") and k not in NOT_KEYS and k not in methods]


def values_of(key, value):
    if key in VALUES: return VALUES[key]
    if isinstance(value, bool): return [True, False, None]
    if isinstance(value, int): return [1, 2, value + 1, 2 * value, 0, None]
    if isinstance(value, float): return [0.0, 0.01, 0.1, 0.5, 1.0, None]
    if isinstance(value, str): return [value, "other", None]
    if key in GENERATION: return [3, None]
    return [True, False, 3, "other", [], None]


def fill(model):
    """As make_transformers.py's initialise()."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            u = torch.from_numpy(draw.plain(draw.seed_of(name), *p.shape))
            p.copy_(u / math.sqrt(math.prod(p.shape[1:])) if p.dim() > 1 else 1 + u / 4 if name.endswith("weight") else u / 10)


def project(logits):
    return [float(v) for v in (logits.double() * torch.from_numpy(draw.plain(99, *logits.shape))).sum(-1)]


def run(name, config):
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "config.json").write_text(json.dumps(dict(model_type=name, **config)))
        torch.manual_seed(0)
        made = AutoConfig.from_pretrained(directory)
        made._attn_implementation = "eager"
        model = (AutoModelForSequenceClassification if name == "bert" else AutoModelForCausalLM).from_config(made).float().eval()
    fill(model)
    with torch.no_grad():
        if name == "bert":
            rows = [TOKENS[:n] + [0] * (LENGTH - n) for n in LENGTHS]
            mask = [[1] * n + [0] * (LENGTH - n) for n in LENGTHS]
            return project(model(torch.tensor(rows), attention_mask=torch.tensor(mask), return_dict=True).logits)
        whole = model(torch.tensor([TOKENS]), use_cache=False, return_dict=True).logits[0]
        cache, steps = None, []
        for i, token in enumerate(TOKENS):
            out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True, return_dict=True)
            cache = out.past_key_values
            steps.append(out.logits[0, -1])
        if not torch.allclose(whole, torch.stack(steps), atol=1e-4): return "differs"
        return project(whole)


def attempt(name, config):
    try:
        result = run(name, config)
    except (Exception, SystemExit):
        return "fails"
    return result if isinstance(result, str) or all(map(math.isfinite, result)) else "fails"


def close(a, b):
    return isinstance(a, list) and len(a) == len(b) and all(abs(x - y) < 1e-5 for x, y in zip(a, b))


groups = []  # of a model and a key: pairs of a value and its result
def add(name, base, key, value, config, part=None):
    result = attempt(name, config)
    if close(result, base): result = "same"
    elif isinstance(result, list): result = [float(f"{v:.6g}") for v in result]
    head = dict(model=name, key=key, **(dict(part=part) if part else {}))
    if not groups or {k: groups[-1].get(k) for k in ("model", "key", "part")} != {k: head.get(k) for k in ("model", "key", "part")}:
        groups.append(dict(head, cases=[]))
    groups[-1]["cases"].append([value, result])


for name, config in MODELS.items():
    base = run(name, config)
    groups.append(dict(model=name, config=dict(model_type=name, **config), logits=[float(f"{v:.6g}") for v in base]))
    config_class = type(AutoConfig.for_model(name))
    default = config_class()
    for key in known_keys(name, config_class):
        if key == "rope_parameters" and "rope_parameters" in config: continue
        for value in values_of(key, config.get(key, getattr(default, key, None))):
            if (name, key, value) == ("mistral", "num_key_value_heads", None): continue # as many as heads in version 4, refused by version 5
            changed = {k: v for k, v in config.items() if k != key}
            add(name, base, key, value, dict(changed, **{key: value}))
    if "rope_parameters" not in config: continue
    for kind in (config["rope_parameters"], dict(config["rope_parameters"], rope_type="linear", factor=4.0), LLAMA3):
        for part in [*RopeParameters.__annotations__, "type"]:
            before = kind.get(part)
            values = ROPE.get(part) or [2.0, 16, 0.5, None]
            for value in values + (["(missing)"] if part in kind else []):
                rope = {k: v for k, v in kind.items() if k != part}
                if value != "(missing)": rope[part] = value
                add(name, base, "rope_parameters", rope, dict(config, rope_parameters=rope), part)
(here / "huggingface_keys.jsonl").write_text("".join(json.dumps(g, separators=(",", ":")) + "\n" for g in groups))
print(sum(len(g.get("cases", [])) for g in groups), "cases of", len(groups), "keys")
