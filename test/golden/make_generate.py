"""Writes generate/gpt and generate/llama: small models with random weights and a tokenizer, as Hugging Face's transformers and tokenizers save
them, and generate/expected.txt: prompts, their ids, and the 64 ids and the text that transformers continues each with, greedily and with its
own cache. The largest logit is always at least 0.01 above the next, so that rounding decides no token. Needs torch, transformers, tokenizers."""
import json, pathlib, shutil
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

here = pathlib.Path(__file__).parent / "generate"
text = ["The quick brown fox jumps over the lazy dog.", "Grüße aus Zürich, 日本語のテキスト und 🙂 emoji!", "To be, or not to be: that is the question."] * 3
prompts = ["To be", "日本語", "Zürich, or not", "The quick brown fox jumps over the lazy dog. 🙂"]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
def wrap(): return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
size = len(wrap())
common = dict(vocab_size=size, bos_token_id=0, eos_token_id=None, initializer_range=0.4)
made = {
    "gpt": (GPT2LMHeadModel, GPT2Config(n_positions=96, n_embd=32, n_layer=2, n_head=4, **common)),
    "llama": (LlamaForCausalLM, LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **common)),
}

def continue_greedily(model, ids):
    """64 ids, or None where two logits are near each other."""
    out, cache, new = [], None, torch.tensor([ids])
    with torch.no_grad():
        for _ in range(64):
            step = model(input_ids=new, past_key_values=cache, use_cache=True)
            cache, logits = step.past_key_values, step.logits[0, -1]
            best = torch.topk(logits, 2).values
            if best[0] - best[1] < 0.01: return None
            out.append(int(logits.argmax()))
            new = torch.tensor([[out[-1]]])
    return out

shutil.rmtree(here, ignore_errors=True)
lines = []
for name, (kind, config) in made.items():
    if name == "llama": # as Llama 3's, it puts a token before each text
        tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    fast = wrap()
    for seed in range(1000):
        torch.manual_seed(seed)
        model = kind(config).eval()
        found = [continue_greedily(model, fast(p)["input_ids"]) for p in prompts]
        if all(f and len(set(f)) > 20 for f in found): break
    model.save_pretrained(here / name)
    fast.save_pretrained(here / name)
    for p, ids in zip(prompts, found):
        given = torch.tensor([fast(p)["input_ids"]])
        generated = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=64, do_sample=False, pad_token_id=0)[0].tolist()
        assert generated == fast(p)["input_ids"] + ids
        lines.append(json.dumps({"model": name, "prompt": p, "prompt_ids": fast(p)["input_ids"], "ids": ids, "text": fast.decode(ids, skip_special_tokens=True)}, ensure_ascii=False))
for file in here.glob("*/*"): file.chmod(0o644)
(here / "expected.txt").write_text("\n".join(lines) + "\n")
