#!/usr/bin/env bash
# cli_mixtral.sh - models with experts at the command: the same bits with any number of ranks, with the auxiliary loss
# too; sharded, accumulated, recomputed and tensor-parallel runs; files that hold the experts apart, resuming and
# loading them; the loads of experts; mistakes in one sentence. interop.sh compares with transformers.
# ctest: timeout 240, label quick
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

lockstep=$LOCKSTEP
for _ in $(seq 40); do echo "All: speak, speak. First Citizen: you are all resolved rather to die than to famish?"; \
    done > text.txt
data="--data text:text.txt --tokenizer char --batch 8 --threads 1 --eval-every -1 --seed 3"
small="--model mixtral --layers 2 --heads 2 --width 16 --hidden 24 --experts 4 --context 16 $data"

hash_of() {
    "$lockstep" train "$@" --json > out.txt 2> err.txt || complain "train $*: $(cat err.txt)"
    field hash < out.txt
}
loss_of() {
    "$lockstep" train "$@" --log log.jsonl > out.txt 2> err.txt || complain "train $*: $(cat err.txt)"
    field loss < log.jsonl | tail -1
}
close_to() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && (a - b)^2 < 1e-8 * b * b) }'; }

# ---- ranks do not change the result ----
for extra in "" "--router-loss 0.5"; do
    one=$(hash_of $small $extra --steps 4 --reproducible)
    two=$(hash_of $small $extra --steps 4 --reproducible -n 2)
    [ -n "$one" ] && [ "$one" = "$two" ] || complain "$extra: one rank $one, two $two"
    first=$(loss_of $small $extra --steps 3)
    for layout in "-n 2" "-n 2 --mesh shard=2" "-n 2 --mesh tensor=2" "--recompute"; do
        rm -f log.jsonl
        other=$(loss_of $small $extra --steps 3 $layout)
        close_to "$first" "$other" || complain "$extra $layout: a loss of $other, not $first"
    done
done
[ "$(hash_of $small --steps 4 --reproducible)" != "$(hash_of $small --steps 4 --reproducible --router-loss 0.5)" ] ||
    complain "--router-loss changes nothing"
expect 0 "" "$lockstep" train $small --steps 2 --accumulate 2 --router-loss 0.1

# In evaluation the auxiliary loss is that of the whole batch, however many ranks have parts of it.
evaluated() { # the loss of an evaluation, and of it the part without the auxiliary loss
    rm -f log.jsonl
    expect 0 "" "$lockstep" train ${small/--eval-every -1/--eval-every 2} --steps 2 --dtype f64 --router-loss 0.5 \
        --log log.jsonl "$@"
    grep '"evaluated"' log.jsonl | tail -1 | tr ',' '\n' | sed -n 's/.*"\(loss\|cross_entropy\)": *//p' | tr '\n' ' '
}
one=$(evaluated -n 1)
for layout in "-n 2" "-n 3" "-n 4" "-n 2 --mesh expert=2" "-n 4 --mesh data=2,expert=2" "-n 2 --mesh shard=2"; do
    other=$(evaluated $layout)
    echo "$one $other" | awk '{ exit !(NF == 4 && $1 > $2 + 0.5 && ($1 - $3)^2 < 1e-24 && ($2 - $4)^2 < 1e-24) }' ||
        complain "$layout: evaluated to $other, not $one"
done
expect 0 "" "$lockstep" train $small --steps 2 --dtype bf16

# ---- loads of the experts ----
expect 0 "" "$lockstep" train $small --steps 2 --log loads.jsonl
tail -1 loads.jsonl | tr ',' '\n' | sed -n 's/.*"expert_[0-3]": *\([0-9.e-]*\).*/\1/p' > loads.txt
awk '{ s += $1 } END { exit !(NR == 4 && s > 0.999 && s < 1.001) }' loads.txt ||
    complain "loads: $(cat loads.txt), $(tail -1 loads.jsonl)"

# Of more than 24 experts some neighbours share a number.
expect 0 "" "$lockstep" train ${small/--experts 4/--experts 30} --steps 1 --log many.jsonl
tail -1 many.jsonl | tr ',' '\n' | sed -n 's/.*"experts_[0-9]*_to_[0-9]*": *\([0-9.e-]*\).*/\1/p' > loads.txt
awk '{ s += $1 } END { exit !(NR == 15 && s > 0.999 && s < 1.001) }' loads.txt ||
    complain "loads: $(cat loads.txt), $(tail -1 many.jsonl)"

# ---- files hold the experts apart ----
expect 0 "" "$lockstep" train $small --steps 4 --save run
for name in gate.weight experts.0.w1.weight experts.3.w2.weight experts.2.w3.weight; do
    head -c 20000 run/model.safetensors | grep -aq "model.layers.1.block_sparse_moe.$name" || complain "no $name"
done
head -c 60000 run/optimizer.safetensors | grep -aq "block_sparse_moe.experts.3.w1.weight.exp_avg" ||
    complain "the optimizer has no expert 3"
grep -q '"MixtralForCausalLM"' run/config.json && grep -q '"num_local_experts": 4' run/config.json ||
    complain "config.json: $(cat run/config.json)"
longer=$(hash_of $small --steps 8)
resumed=$(hash_of --save run --resume auto --steps 8)
[ -n "$longer" ] && [ "$longer" = "$resumed" ] || complain "resumed: $resumed, not $longer"
# and by two ranks, of which each reads many small tensors of a chunk
many="${small/--hidden 24 --experts 4/--hidden 8 --experts 32} --reproducible"
longer=$(hash_of $many --steps 3)
expect 0 "" "$lockstep" train $many -n 2 --steps 1 --save many
resumed=$(hash_of --save many --resume auto --steps 3 -n 2)
[ -n "$longer" ] && [ "$longer" = "$resumed" ] || complain "32 experts resumed: $resumed, not $longer"
expect 0 "" "$lockstep" info run
expect 0 "" "$lockstep" generate --load run --prompt "All: " --tokens 8 --temperature 0
mkdir plain && cp -L run/model.safetensors run/config.json run/tokenizer.json run/tokenizer_config.json plain/
expect 0 "" "$lockstep" train --init plain --data text:text.txt --batch 4 --threads 1 --eval-every -1 --steps 1 --lr 0 \
    --save copied
cmp -s plain/model.safetensors copied/model.safetensors || complain "weights changed with a rate of 0"
expect 0 "" "$lockstep" train --init plain --data text:text.txt --batch 4 --threads 1 --eval-every -1 --steps 1 --lr 0 \
    --save copied2 -n 2 --mesh shard=2
cmp -s plain/model.safetensors copied2/model.safetensors || complain "weights changed with slices"

# ---- Qwen3-MoE, from a config.json ----
cat > qwen.json << 'EOF'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 256, "hidden_size": 16,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 24,
 "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": true, "max_position_embeddings": 16,
 "decoder_sparse_step": 1, "mlp_only_layers": []}
EOF
qwen="--model ./qwen.json --tokenizer byte ${data/--tokenizer char/}"
one=$(hash_of $qwen --steps 4 --reproducible)
two=$(hash_of $qwen --steps 4 --reproducible -n 2)
[ -n "$one" ] && [ "$one" = "$two" ] || complain "qwen: one rank $one, two $two"
rm -f log.jsonl
first=$(loss_of $qwen --steps 3)
for layout in "-n 2 --mesh tensor=2" "-n 2 --mesh shard=2" "--recompute"; do
    rm -f log.jsonl
    other=$(loss_of $qwen --steps 3 $layout)
    close_to "$first" "$other" || complain "qwen $layout: a loss of $other, not $first"
done
# and one hash in every layout where that is wanted, with the norms of queries and keys
mode="--reproducible layout --sum-part-minimum 2 --steps 2"
one=$(hash_of $qwen $mode)
for layout in "-n 2 --mesh tensor=2" "-n 2 --mesh shard=2"; do
    other=$(hash_of $qwen $mode $layout)
    [ -n "$one" ] && [ "$one" = "$other" ] || complain "qwen $layout: $other, not $one"
done
expect 0 "" "$lockstep" train $qwen --steps 2 --save qwen
for name in self_attn.q_norm.weight self_attn.k_norm.weight mlp.gate.weight mlp.experts.5.down_proj.weight; do
    head -c 20000 qwen/model.safetensors | grep -aq "model.layers.1.$name" || complain "no $name"
done
grep -q '"Qwen3MoeForCausalLM"' qwen/config.json && grep -q '"norm_topk_prob": true' qwen/config.json ||
    complain "config.json: $(cat qwen/config.json)"
expect 0 "" "$lockstep" generate --load qwen --prompt "All: " --tokens 8 --temperature 0
expect 0 "" "$lockstep" eval --load qwen --data text:text.txt -n 2 --mesh tensor=2
sed 's/"mlp_only_layers": \[\]/"mlp_only_layers": [0]/' qwen.json > dense.json
expect_text 2 '"mlp_only_layers" is [0]: layers without experts are not supported' "$lockstep" train \
    ${qwen/qwen.json/dense.json} --steps 1

# ---- mistakes ----
expect_text 2 "mixtral: 5 experts per token, but the model has only 4" "$lockstep" train $small --experts-per-token 5 \
    --steps 1
expect_text 2 "--experts applies only to --model mixtral; gpt has no experts" "$lockstep" train --model gpt \
    --experts 4 $data --steps 1
expect_text 2 "--router-loss applies only to --model mixtral; llama has no experts" "$lockstep" train --model llama \
    --router-loss 1 $data --steps 1
sed 's/"num_local_experts": 4/"num_local_experts": 5/' plain/config.json > more.json
expect_text 2 'gate.weight" is (4×16) in plain/model.safetensors and (5×16) in the model' "$lockstep" train \
    --model ./more.json --init plain --tokenizer plain --data text:text.txt --batch 4 --steps 1
sed 's/"intermediate_size": 24/"intermediate_size": 32/' plain/config.json > wider.json
expect_text 2 'experts.0.w1.weight" is (24×16) in plain/model.safetensors and (32×16) in the model' "$lockstep" train \
    --model ./wider.json --init plain --tokenizer plain --data text:text.txt --batch 4 --steps 1
sed 's/"router_jitter_noise": 0.0/"router_jitter_noise": 0.1/' plain/config.json > noise.json
expect_text 2 '"router_jitter_noise" is 0.1: router noise is not supported' "$lockstep" train \
    --model ./noise.json --tokenizer plain --data text:text.txt --batch 4 --steps 1

exit $((wrong > 0))
