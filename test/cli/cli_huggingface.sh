#!/usr/bin/env bash
# cli_huggingface.sh - directories in Hugging Face's form at the command, without Python: the files of a transformer's
# checkpoints, training from config.json and weights, resuming, a run that is killed; mistakes in config.json, in
# weights and in --save get one sentence and exit code 2. interop.sh has the same with transformers itself.
# ctest: timeout 240, label quick
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

lockstep=$LOCKSTEP
for _ in $(seq 40); do echo "All: speak, speak. First Citizen: you are all resolved rather to die than to famish?"; \
    done > text.txt
data="--data text:text.txt --tokenizer char --batch 4 --threads 1 --eval-every -1"
small="--model gpt --layers 2 --heads 2 --width 16 --context 16 $data"

# ---- the files of a checkpoint ----
expect 0 "" "$lockstep" train $small --steps 4 --save run --seed 3 --json
hash=$(field hash < out.txt)
for file in model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json; do
    [ "$(readlink run/$file)" = step-00000004/$file ] || complain "run/$file is $(readlink run/$file)"
done
grep -q '"GPT2LMHeadModel"' run/config.json && grep -q '"eos_token_id": null' run/config.json ||
    complain "config.json: $(cat run/config.json)"
head -c 60 run/model.safetensors | grep -q '"__metadata__":{"format":"pt"}' ||
    complain "model.safetensors has no format"
expect 0 "" "$lockstep" info run
grep -q "tokenizer.json$" out.txt && grep -q "match the files" out.txt || complain "info: $(cat out.txt)"

# ---- from config.json and weights: the same model ----
expect 0 "" "$lockstep" train $small --steps 8 --save longer --seed 3 --json
longer=$(field hash < out.txt)
expect 0 "" "$lockstep" train --save run --resume auto --steps 8 --json
[ "$(field hash < out.txt)" = "$longer" ] && [ -n "$longer" ] && [ "$longer" != "$hash" ] ||
    complain "resumed: $(cat out.txt)"
mkdir plain && cp -L run/model.safetensors run/config.json run/tokenizer.json run/tokenizer_config.json plain/
expect 0 "" "$lockstep" train --model plain/config.json --init plain --data text:text.txt --tokenizer plain --batch 4 \
    --threads 1 --eval-every -1 --steps 1 --lr 0 --save copied
cmp -s plain/model.safetensors copied/model.safetensors || complain "weights changed with a rate of 0"
cmp -s plain/config.json copied/config.json ||
    complain "config.json changed: $(diff plain/config.json copied/config.json)"
cmp -s plain/tokenizer.json copied/tokenizer.json || complain "tokenizer.json changed"

# ---- without --model: the config.json of the directory with the weights ----
own="--data text:text.txt --batch 4 --threads 1"
expect 0 "" "$lockstep" train --init plain $own --eval-every -1 --steps 1 --lr 0 --save unnamed
cmp -s plain/model.safetensors unnamed/model.safetensors || complain "train --init without --model: $(cat err.txt)"
expect 0 "" "$lockstep" train --init plain $own --eval-every -1 --steps 1 --lr 0 --save unnamed2 -n 2
cmp -s plain/model.safetensors unnamed2/model.safetensors ||
    complain "train -n 2 --init without --model: $(cat err.txt)"
expect 0 "" "$lockstep" train --resume auto --save unnamed --steps 2 --eval-every -1
expect 0 "" "$lockstep" eval --load plain --model plain/config.json --tokenizer plain $own --json
named=$(field loss < out.txt)
expect 0 "" "$lockstep" eval --load plain $own --json
[ -n "$named" ] && [ "$(field loss < out.txt)" = "$named" ] ||
    complain "eval without --model: $(cat out.txt), with it $named"
expect 0 "" "$lockstep" eval --load plain --model ./plain $own --json
[ "$(field loss < out.txt)" = "$named" ] || complain "eval --model DIRECTORY: $(cat out.txt)"
expect 0 "" "$lockstep" plan --init plain $own
expect 2 '^lockstep train: --init nowhere: No such file or directory$' "$lockstep" train --init nowhere $own
expect 2 '--model plain/config.json is a language model' "$lockstep" predict --load plain $own
expect 2 '--layers does not apply to --model plain/config.json, whose configuration is fixed: omit it' \
    "$lockstep" train --init plain --layers 3 $own
mkdir named && cp plain/* named/ && sed 's/"use_cache"/"own_key": 3, "use_cache"/' plain/config.json > named/config.json
expect 0 'warning: named/config.json: ignoring unknown keys: "own_key"$' "$lockstep" train --init named $own --steps 1 \
    --eval-every -1 -n 2
[ "$(grep -c own_key err.txt)" = 1 ] || complain "a key is named more than once: $(cat err.txt)"

# ---- a kill between saves leaves complete steps; the next run goes on ----
"$lockstep" train $small --steps 100000 --save-every 1 --keep 1 --save killed > out.txt 2>&1 &
pid=$!
wait_until 60 test -e killed/tokenizer.json
kill -KILL $pid
wait $pid 2> /dev/null
expect 0 "" "$lockstep" info killed
step=$(sed -n 's/^step *//p' out.txt)
expect 0 "" "$lockstep" train --save killed --resume auto --steps $((step + 2))
[ "$(ls killed | grep -c '^step-')" = 1 ] && ! ls -A killed | grep -q 'tmp\|old\|link' ||
    complain "left after a kill: $(ls -A killed)"

# ---- mistakes ----
edit() { sed "$1" plain/config.json > "$2"; }
from="--data text:text.txt --tokenizer plain --batch 4 --steps 1 --threads 1"
edit 's/GPT2LMHeadModel/MambaForCausalLM/' unknown.json
pattern='^lockstep train: --model: unknown.json: "architectures" is \["MambaForCausalLM"\]: '
pattern+='GPT2LMHeadModel, .* are supported$'
expect 2 "$pattern" "$lockstep" train --model unknown.json $from
edit 's/gelu_new/mish/' mish.json
expect 2 '"activation_function" is "mish": supported activations are gelu_new, gelu, relu and silu$' "$lockstep" train \
    --model mish.json $from
edit 's/"n_head": 2/"n_head": 3/' heads.json
expect 2 'heads.json: gpt: 3 heads do not divide the width 16$' "$lockstep" train --model heads.json $from
edit 's/"n_embd": 16/"n_embd": 32/' wide.json
expect 2 '"transformer.wte.weight" is \([0-9]*×16\) in plain/model.safetensors and \([0-9]*×32\) in the model' \
    "$lockstep" train --model wide.json --init plain $from
edit 's/"n_layer": 2/"n_layer": 1/' shallow.json
expect 2 'holds "transformer.h.1.attn.c_attn.bias", which the model does not have' "$lockstep" train --model \
    shallow.json --init plain $from
head -c 100 plain/config.json > cut.json
expect 2 'cut.json: byte [0-9]*: ' "$lockstep" train --model cut.json $from
expect 2 'nowhere.json: cannot open: No such file' "$lockstep" train --model nowhere.json $from
expect 2 'has only 16 positions' "$lockstep" train --model plain/config.json --context 17 $from

mkdir shards && cp plain/config.json shards/
echo '{"weight_map": {"transformer.wte.weight": "../plain/model.safetensors"}}' > shards/model.safetensors.index.json
expect 2 'names the shard "../plain/model.safetensors", which is not the name of a file in the same directory' \
    "$lockstep" train --model shards/config.json --init shards $from
echo '{"weight_map": {"transformer.wte.weight": "model-1.safetensors"}}' > shards/model.safetensors.index.json
expect 2 'names the shard "model-1.safetensors", but there is no such file' "$lockstep" train --model \
    shards/config.json --init shards $from

for file in config.json generation_config.json tokenizer.json tokenizer_config.json; do
    rm -rf own && mkdir own && echo mine > own/$file
    expect 2 "own/$file is not a link created by a save" "$lockstep" train $small --steps 1 --save own -n 2
    [ "$(ls -A own)" = "$file" ] && [ "$(cat own/$file)" = mine ] || complain "a run changed own/$file"
done
exit $((wrong > 0))
