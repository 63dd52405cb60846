#!/usr/bin/env bash
# layouts.sh - the layout matrix: a run has the losses, metrics, gradient norms, weights and moments of one rank in
# every layout of its ranks, and a checkpoint of one layout continues in another. In f64 20 steps are within 1e-9 of one
# rank, in f32 within 1e-5.
#
#   layouts.sh                     some cells in f64, in the suite
#   layouts.sh --whole             all of them in f64 and f32, and checkpoints through all of them, both ways
#   layouts.sh --pairs             checkpoints of each cell, resumed in each other one of its task
#   layouts.sh --cells PATTERN     those whose line matches the extended regular expression, without checkpoints
#   layouts.sh --hashes [PATTERN]  each cell with --reproducible layout, in f32 and bf16: all of a task end with the
#                                  bits of one rank; 12 cells that a seed draws (LOCKSTEP_LAYOUT_SEED); a run through
#                                  cells. Prints the table of docs/parallel.md. Of those that match, or all
# ctest: timeout 600, ranks 8
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
steps=20

# ---- what is trained ----

# Between them: packed documents of unequal length, batches that the ranks do not divide and
# ranks without samples (the last batch of an epoch), clipping, dropout, tied, frozen and grouped states, recomputation,
# two key-value heads for four heads, one for eight, six for twelve over four ranks, and six heads over four ranks.

python3 - << 'PY'
import json

words = "the quick brown fox jumps over lazy dogs while seven wizards mix bright potions".split()
draw = lambda i: (i * 2654435761 >> 7) & 0xFFFF
text = lambda i, count: " ".join(words[draw(997 * i + k) % len(words)] for k in range(count))
with open("book.txt", "w") as file:
    file.write("\n".join(text(i, 12) for i in range(60)))
with open("documents.jsonl", "w") as file:  # of 1 to 40 words
    for i in range(120):
        file.write(json.dumps({"text": text(i, 1 + draw(i) % 40)}) + "\n")
# A token for each byte, and one for the end of a document.
alphabet = [i for i in range(256) if 33 <= i <= 126 or 161 <= i <= 172 or i >= 174]
letters = {byte: chr(byte) for byte in alphabet}
letters.update((byte, chr(256 + k)) for k, byte in enumerate(i for i in range(256) if i not in alphabet))
end = dict(id=256, content="<|endoftext|>", single_word=False, lstrip=False, rstrip=False, normalized=False)
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
vocabulary = {**{letter: byte for byte, letter in letters.items()}, end["content"]: 256}
model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
             fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=[])
with open("tokenizer.json", "w") as file:
    json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=[dict(end, special=True)],
                   normalizer=None, pre_tokenizer=level, post_processor=None, decoder=level, model=model), file)
with open("labels.jsonl", "w") as file:
    for i in range(90):
        label = ["no", "perhaps", "yes"][draw(i + 7) % 3]
        file.write(json.dumps({"text": text(i, 1 + draw(i) % 9), "label": label}) + "\n")
PY
echo 'transformer.h.*.attn.c_attn.weight: whole@tensor' > tactics.txt
small="--layers 2 --width 32 --heads 4 --context 16"
declare -A task=(
    [gpt]="--model gpt $small --data text:book.txt --tokenizer char --batch 8 --dropout 0.1 --clip 0.5 --warmup 3
           --weight-decay 0.1"
    [packed]="--model gpt $small --data jsonl:documents.jsonl --tokenizer tokenizer.json --vocabulary 260
              --holdout 0.2 --batch 6 --clip 1"
    [llama]="--model llama $small --kv-heads 2 --data text:book.txt --tokenizer char --batch 8 --weight-decay 0.1
             --freeze *.input_layernorm.* --group *down_proj*:lr=2,decay=0 --recompute"
    [untied]="--model llama $small --kv-heads 2 --untied --data text:book.txt --tokenizer char --batch 8
              --schedule cosine --dropout 0.1"
    [few]="--model llama --layers 2 --width 32 --heads 8 --context 16 --kv-heads 1 --data text:book.txt
           --tokenizer char --batch 8 --dropout 0.1 --clip 0.5"
    [six]="--model llama --layers 2 --width 48 --heads 12 --context 16 --kv-heads 6 --data text:book.txt
           --tokenizer char --batch 8 --dropout 0.1 --clip 0.5"
    [heads]="--model gpt --layers 2 --width 24 --heads 6 --context 16 --data text:book.txt --tokenizer char --batch 8
             --dropout 0.1 --recompute"
    [mixtral]="--model mixtral $small --kv-heads 2 --hidden 24 --experts 4 --data text:book.txt --tokenizer char
               --batch 10 --clip 0.5"
    [encoder]="--model encoder $small --data jsonl:labels.jsonl --tokenizer byte --holdout 0.2 --batch 10 --dropout 0.1"
    [cnn]="--model cnn --data synthetic:3x8x8,count=50 --batch 24 --clip 1"
    [resnet]="--model resnet20 --data synthetic:3x8x8,count=64 --batch 16 --sync-batchnorm"
    [mlp]="--model mlp --data synthetic:24,classes=8,count=33 --hidden 64 --batch 10"
)
common="--steps $steps --threads 1 --eval-every 10 --seed 5"
# Adam divides noise by its own magnitude, where a gradient is zero but for rounding; f32 has too much of it.
declare -A optimizer=([f64]="--optimizer adamw --lr 0.003" [f32]="--optimizer sgd --momentum 0.9 --lr 0.01")
reproducible=
declare -A tolerance=([f64]=1e-9 [f32]=1e-5)

# ---- the cells: in the suite or not, task, mesh, options ----

cells=(
    "suite  gpt     data=2                   -"
    "suite  packed  data=4                   --backend tcp"
    "suite  cnn     data=3                   -"
    "suite  mlp     data=8                   --state replicated"
    "whole  gpt     data=2                   --accumulate 2"
    "whole  llama   data=4                   -"
    "whole  untied  data=2                   --state replicated"
    "whole  encoder data=3                   -"
    "whole  resnet  data=2                   -"
    "suite  gpt     shard=2                  -"
    "whole  gpt     shard=2                  --state replicated --shard-stage 1"
    "whole  gpt     shard=2                  --state replicated --shard-stage 2"
    "suite  gpt     shard=2                  --state replicated"
    "whole  gpt     shard=4                  --backend tcp --accumulate 2"
    "suite  packed  shard=4                  --backend tcp --shard-stage 2"
    "suite  llama   shard=4                  --state replicated"
    "whole  llama   shard=3                  --state replicated --shard-stage 1"
    "whole  untied  shard=2                  --state replicated"
    "whole  encoder shard=2                  --state replicated --accumulate 2"
    "suite  cnn     shard=3                  --state replicated"
    "whole  resnet  shard=2                  --state replicated"
    "whole  mlp     shard=8                  --state replicated"
    "whole  gpt     data=2,shard=2           --state replicated --shard-stage 1"
    "suite  gpt     data=2,shard=2           --state replicated"
    "whole  packed  data=2,shard=2           --backend tcp"
    "whole  llama   data=2,shard=4           --state replicated"
    "suite  mlp     data=4,shard=2           --state replicated --shard-stage 2"
    "whole  cnn     shard=2,data=2           --state replicated"
    "suite  gpt     tensor=2                 -"
    "whole  gpt     tensor=2                 --no-sequence-parallel"
    "whole  gpt     tensor=4                 --accumulate 2"
    "whole  gpt     tensor=2                 --tactics tactics.txt"
    "suite  packed  tensor=2                 --backend tcp"
    "suite  llama   tensor=2                 -"
    "suite  llama   tensor=4                 -"
    "whole  untied  tensor=4                 --backend tcp"
    "whole  llama   data=2,tensor=4          -"
    "whole  few     tensor=8                 -"
    "whole  few     tensor=4                 --no-sequence-parallel --accumulate 2"
    "whole  few     shard=2,tensor=4         --state replicated"
    "suite  six     tensor=4                 -"
    "whole  six     data=2,tensor=4          --no-sequence-parallel"
    "whole  heads   tensor=4                 -"
    "whole  heads   shard=2,tensor=4         --state replicated"
    "whole  gpt     tensor=8                 -"
    "whole  untied  tensor=2                 -"
    "whole  encoder tensor=2                 -"
    "suite  cnn     tensor=2                 -"
    "suite  resnet  tensor=2                 -"
    "suite  mlp     tensor=4                 -"
    "suite  gpt     data=2,tensor=2          -"
    "whole  gpt     data=2,tensor=2          --state replicated"
    "whole  packed  data=2,tensor=2          --state replicated"
    "whole  encoder data=2,tensor=2          -"
    "whole  cnn     data=2,tensor=2          -"
    "whole  mlp     data=4,tensor=2          -"
    "whole  gpt     shard=2,tensor=2         --state replicated --shard-stage 1"
    "whole  packed  shard=2,tensor=2         --state replicated --shard-stage 2"
    "suite  llama   shard=2,tensor=2         --state replicated"
    "whole  llama   shard=2,tensor=2         -"
    "suite  gpt     data=2,shard=2,tensor=2  --state replicated"
    "whole  llama   data=2,shard=2,tensor=2  --state replicated"
    "suite  encoder data=2,shard=2,tensor=2  --state replicated"
    "suite  mixtral expert=2                 -"
    "whole  mixtral expert=4                 --accumulate 2"
    "whole  mixtral expert=2                 --backend tcp --recompute"
    "whole  mixtral expert=4                 --state replicated --shard-stage 3"
    "whole  mixtral data=2                   -"
    "whole  mixtral data=2,expert=2          -"
    "whole  mixtral shard=2,expert=2         --state replicated --shard-stage 1"
    "whole  mixtral shard=2,expert=2         --state replicated --shard-stage 2 --accumulate 2"
    "suite  mixtral shard=2,expert=2         -"
    "whole  mixtral shard=2,expert=2         --state replicated"
    "whole  mixtral expert=2,tensor=2        -"
    "whole  mixtral data=2,shard=2,expert=2  -"
    "suite  mixtral data=2,expert=2,tensor=2 -"
    "whole  mixtral shard=2,expert=2,tensor=2 -"
    "suite  gpt     pipeline=2               --micro-batches 4"
    "whole  gpt     pipeline=3               --micro-batches 4 --pipeline-schedule gpipe"
    "suite  gpt     pipeline=2               --micro-batches 4 --pipeline-schedule zero-bubble"
    "whole  gpt     pipeline=4               --micro-batches 8 --pipeline-schedule zero-bubble"
    "whole  packed  pipeline=2               --backend tcp --micro-batches 3"
    "suite  llama   pipeline=2               --micro-batches 2 --stages 0,1"
    "whole  untied  pipeline=4               --micro-batches 2"
    "whole  encoder pipeline=2               --micro-batches 2"
    "whole  cnn     pipeline=2               --micro-batches 4"
    "whole  resnet  pipeline=2               -"
    "whole  mlp     pipeline=2               --micro-batches 5"
    "suite  gpt     pipeline=2,data=2        --micro-batches 2"
    "whole  packed  data=2,pipeline=2        --micro-batches 3"
    "whole  gpt     pipeline=2,data=2        --micro-batches 2 --pipeline-schedule zero-bubble"
    "whole  gpt     pipeline=2,shard=2       --state replicated --shard-stage 1 --micro-batches 2"
    "whole  llama   pipeline=2,shard=2       --state replicated --shard-stage 2 --micro-batches 2"
    "suite  gpt     pipeline=2,shard=2       --state replicated --micro-batches 2"
    "whole gpt pipeline=2,shard=2 --state replicated --shard-stage 1 --micro-batches 4 --pipeline-schedule zero-bubble"
    "whole llama shard=2,pipeline=2 --state replicated --shard-stage 2 --accumulate 2 --pipeline-schedule zero-bubble"
    "suite  gpt     pipeline=2,shard=2       --state replicated --micro-batches 4 --pipeline-schedule zero-bubble"
    "whole  llama   shard=2,pipeline=2       --micro-batches 4 --pipeline-schedule zero-bubble"
    "suite  gpt     pipeline=2,tensor=2      --micro-batches 2"
    "whole  llama   pipeline=2,tensor=2      --micro-batches 4 --pipeline-schedule zero-bubble"
    "whole  gpt     data=2,pipeline=2,tensor=2 --micro-batches 2"
    "whole  mixtral pipeline=2,expert=2      --micro-batches 2"
    "whole  mixtral pipeline=2               --micro-batches 2"
)
# train NAME DTYPE TASK WORDS…: into NAME and NAME.jsonl
train() {
    local name=$1 dtype=$2 of=$3
    shift 3
    # shellcheck disable=SC2086
    (set -f; "$LOCKSTEP" train ${task[$of]} ${optimizer[$dtype]} $common $reproducible --dtype "$dtype" \
        --save "$name" --log "$name.jsonl" "$@") > "$name.txt" 2>&1
}
reference() { # reference TASK DTYPE: one rank, once
    local name=one-$1-$2
    [ -d "$name" ] || train "$name" "$2" "$1" || fail "one rank: $1 $2: $(tail -n 3 "$name.txt")"
    echo "$name"
}
# compare NAME DTYPE TASK CELL: prints how far the run is from one rank
compare() {
    local one found
    one=$(reference "$3" "$2") || exit 1
    found=$(python3 "$SOURCE_DIR/test/cli/layouts.py" "${tolerance[$2]}" "$one" "$1" 2>&1) ||
        { complain "$4, $2: $found"; return 1; }
    far=${found%% *}
}
cell_words() { # "gpt shard=2 --shard-stage 1": its words behind --mesh
    read -r _ of mesh options <<< "$1"
    [ "$options" != - ] || options=
}
try_cell() { # try_cell DTYPE "CELL"
    local name=cell of mesh options
    cell_words "$2"
    rm -rf $name $name.jsonl
    # shellcheck disable=SC2086
    train $name "$1" "$of" --mesh "$mesh" $options ||
        { complain "$of on $mesh $options, $1: exit status $?: $(tail -n 3 $name.txt)"; return 1; }
    compare $name "$1" "$of" "$of on $mesh $options"
}
# try_chain "CELL"…: one run that continues in each of these cells, with other layouts from save to save.
try_chain() {
    local name=cell of mesh options at=0 count=$# path= cell
    rm -rf $name $name.jsonl
    for cell in "$@"; do
        at=$((at + 1))
        cell_words "$cell"
        path+="${path:+, then }$mesh${options:+ $options}"
        # shellcheck disable=SC2086
        train $name f64 "$of" --mesh "$mesh" $options --resume auto --steps $((steps * at / count)) ||
            { complain "$of on $path: exit status $?: $(tail -n 3 $name.txt)"; return 1; }
    done
    compare $name f64 "$of" "$of on $path"
}

# try_evaluation "CELL"…: `eval` of the run that is in the directory cell, in each of their layouts.
try_evaluation() {
    local of mesh options cell one other
    one=$("$LOCKSTEP" eval --load cell --threads 1 --json 2> eval.txt | field loss)
    for cell in "$@"; do
        cell_words "$cell"
        other=$("$LOCKSTEP" eval --load cell --mesh "$mesh" --threads 1 --json 2> eval.txt | field loss)
        awk -v a="$one" -v b="$other" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-12 * a && d > -1e-12 * a) }' ||
            complain "eval of $of on $mesh: loss $other, not $one: $(cat eval.txt)"
    done
}

# try_open TASK: transformers opens the run in the directory cell, and misses nothing.
python=${LOCKSTEP_TEST_PYTHON:-python3}
"$python" -c 'import torch, transformers' 2> /dev/null || python=
try_open() {
    local kind=AutoModelForCausalLM
    [ "$1" != encoder ] || kind=AutoModelForSequenceClassification
    [ -n "$python" ] && [[ gpt,llama,encoder,mixtral =~ $1 ]] || return 0
    HF_HUB_OFFLINE=1 "$python" - $kind > open.txt 2>&1 << 'PY' || complain "transformers, $1: $(tail -n 3 open.txt)"
import sys
import transformers

_, about = getattr(transformers, sys.argv[1]).from_pretrained("cell", output_loading_info=True)
sys.exit(str({name: list(found) for name, found in about.items() if found}) if any(about.values()) else 0)
PY
}
[ -n "$python" ] || echo "python3 has no torch and transformers: they open no checkpoint"

# ---- which of them ----

small_only=1 pattern= both_ways= pairs= hashes=
case ${1-} in
"") ;;
--whole) small_only= both_ways=1 ;;
--pairs) small_only= pairs=1 ;;
--cells) small_only= pattern=${2:?a pattern} ;;
--hashes) small_only= hashes=1 pattern=${2-} ;;
*) fail "usage: layouts.sh [--whole | --pairs | --cells PATTERN | --hashes [PATTERN]]" ;;
esac

# ---- one hash in every layout ----

# Adam divides small gradients by their magnitude: what differs in one bit differs everywhere soon.
declare -A leaves=([packed]=6) hashed=([mixtral]="--router-loss 0.02")
hash_of() { cat "$1/model.safetensors" "$1/optimizer.safetensors" | sha256sum | cut -c -12; }
set_hashed() { # set_hashed TASK
    reproducible="--reproducible layout --sum-part-minimum 2 --leaves ${leaves[$1]-8} ${hashed[$1]-}"
}
one_hash() { # one_hash TASK DTYPE: that of one rank
    local name=hash-$1-$2
    set_hashed "$1"
    [ -d "$name" ] || train "$name" "$2" "$1" || fail "one rank: $1 $2: $(tail -n 3 "$name.txt")"
    hash_of "$name"
}
hash_cell() { # hash_cell DTYPE "CELL": in $found
    local of mesh options one
    cell_words "$2"
    one=$(one_hash "$of" "$1") || exit 1
    set_hashed "$of"
    rm -rf cell cell.jsonl
    found=refused
    # shellcheck disable=SC2086
    train cell "$1" "$of" --mesh "$mesh" $options ||
        { complain "$of on $mesh $options, $1: exit status $?: $(tail -n 3 cell.txt)"; return 1; }
    found=$(hash_of cell)
    [ "$found" = "$one" ] || complain "$of on $mesh $options, $1: $found, not $one"
}
hash_chain() { # hash_chain DTYPE "CELL"…: one run that continues in each of these cells
    local dtype=$1 of mesh options at=0 count cell one
    shift
    count=$#
    cell_words "$1"
    one=$(one_hash "$of" "$dtype") || exit 1
    set_hashed "$of"
    rm -rf cell cell.jsonl
    for cell in "$@"; do
        at=$((at + 1))
        cell_words "$cell"
        # shellcheck disable=SC2086
        train cell "$dtype" "$of" --mesh "$mesh" $options --resume auto --steps $((steps * at / count)) ||
            { complain "$of through $mesh $options: exit status $?: $(tail -n 3 cell.txt)"; return 1; }
    done
    [ "$(hash_of cell)" = "$one" ] || complain "$of through $count cells, $dtype: $(hash_of cell), not $one"
}
draw_cells() { # draw_cells SEED: 12 of them, always the same of one seed
    python3 - "$1" << 'PY'
import random
import sys

draw = random.Random(int(sys.argv[1]))
cells = 0
while cells < 12:
    task = draw.choice("gpt packed llama untied few encoder cnn mlp mixtral mixtral mixtral".split())
    axes, ranks = {}, 1
    kinds = ["data", "shard", "tensor", "pipeline"] + ["expert"] * (task == "mixtral")
    for axis in draw.sample(kinds, draw.choice([1, 2, 2, 3])):
        extent = draw.choice([2, 2, 4])
        if ranks * extent <= 8:
            axes[axis], ranks = extent, ranks * extent
    if task == "packed" and axes.get("data", 1) * axes.get("shard", 1) > 6:
        continue  # its batch
    cells += 1
    options = "-"
    if "shard" in axes:
        options = f"--state replicated --shard-stage {draw.choice([1, 2, 3])}"
    elif "tensor" in axes and draw.random() < 0.3:
        options = "--no-sequence-parallel"
    if "pipeline" in axes:
        schedule = draw.choice(["gpipe", "1f1b", "zero-bubble"])
        more = f"--micro-batches {draw.choice([1, 2])} --pipeline-schedule {schedule}"
        options = more if options == "-" else f"{options} {more}"
    print("drawn", task, ",".join(f"{axis}={extent}" for axis, extent in axes.items()), options)
PY
}
if [ -n "$hashes" ]; then
    steps=6 common="--steps 6 --threads 1 --eval-every 3 --seed 5"
    optimizer[f32]=${optimizer[f64]} optimizer[bf16]=${optimizer[f64]}
    : "${LOCKSTEP_LAYOUT_SEED:=$$}"
    cells+=("suite mixtral tensor=2 -" "whole mixtral shard=2 --state replicated --shard-stage 3"
        "whole mixtral data=2,shard=2,tensor=2 --state replicated")
    readarray -t drawn < <(draw_cells "$LOCKSTEP_LAYOUT_SEED")
    cells+=("${drawn[@]}")
    printf '%-8s %-26s %-40s %-12s %s\n' task mesh options f32 bf16
    declare -A chains=()
    for cell in "${cells[@]}"; do
        [[ -z $pattern || $cell =~ $pattern ]] || continue
        if [[ $cell =~ resnet.*pipeline= ]]; then # docs/parallel.md, "Before a rank starts"
            echo "not trained: $cell: stages do not support leaves that batch norm couples" >&2
            continue
        fi
        line=
        for dtype in f32 bf16; do
            hash_cell $dtype "$cell"
            line+=$(printf '%-13s' "$found")
        done
        cell_words "$cell"
        printf '%-8s %-26s %-40s %s\n' "$of" "$mesh" "$options" "$line"
        chains[$of]+="$cell"$'\n'
    done
    for of in "${!chains[@]}"; do
        readarray -t chain <<< "${chains[$of]%$'\n'}"
        part=() most=$((${#chain[@]} < steps ? ${#chain[@]} : steps)) # each has a step at least
        for ((at = 0; at < most; at++)); do part+=("${chain[at * ${#chain[@]} / most]}"); done # of all kinds
        [ "$of" = untied ] || hash_chain f32 "${part[@]}" # its cosine ends where --steps does
    done
    echo "LOCKSTEP_LAYOUT_SEED=$LOCKSTEP_LAYOUT_SEED drew the last 12"
    exit $((wrong > 0))
fi
dtypes="f64 f32"
[ -z "$small_only" ] || dtypes=f64
printf '%-8s %-26s %-40s %-8s %s\n' task mesh options f64 f32
for cell in "${cells[@]}"; do
    [[ -z $small_only || $cell == suite* ]] && [ -z "$pairs" ] || continue
    [[ -z $pattern || $cell =~ $pattern ]] || continue
    line=
    for dtype in $dtypes; do
        far=failed
        # 19 norms over few samples amplify the rounding of f32 to anything within 20 steps.
        if [ "$dtype" = f32 ] && [[ $cell =~ resnet ]]; then line+=-; continue; fi
        try_cell "$dtype" "$cell"
        line+=$(printf '%-9s' "$far")
    done
    cell_words "$cell"
    printf '%-8s %-26s %-40s %s\n' "$of" "$mesh" "$options" "$line"
done
[ -z "$pattern" ] || exit $((wrong > 0))

# Ranks that divide the state have the bits of as many ranks that each have all of it.
same_bits() { # same_bits TASK "LAYOUT"…
    local of=$1 layout first=
    shift
    for layout in "$@"; do
        rm -rf cell cell.jsonl
        # shellcheck disable=SC2086
        train cell f32 "$of" --mesh $layout || { complain "$of on $layout: $(tail -n 3 cell.txt)"; continue; }
        if [ -z "$first" ]; then rm -rf first && mv cell first && first=$layout; continue; fi
        cmp first/model.safetensors cell/model.safetensors &&
            cmp first/optimizer.safetensors cell/optimizer.safetensors ||
            complain "$of: $layout has other bits than $first"
    done
}
if [ -z "$pairs" ]; then
    same_bits gpt data=4 "shard=4 --state replicated --shard-stage 1" "data=2,shard=2 --state replicated"
    same_bits llama "data=3 --state replicated" "shard=3 --state replicated --shard-stage 2" "shard=3 --backend tcp"
    # And with leaves those of one rank.
    same_bits gpt "data=1 --reproducible" "shard=3 --reproducible --backend tcp --shard-stage 2" \
        "data=2,shard=2 --reproducible --state replicated"
fi

# Checkpoints cross: one run through all cells of a task. Not of untied: its cosine ends where --steps does.
chained=0
chain_back() { # the cells, from the last to the first
    local back=() cell
    for cell in "$@"; do back=("$cell" "${back[@]}"); done
    try_chain "${back[@]}" && chained=$((chained + $# - 1))
}
for name in gpt packed llama few six heads encoder cnn resnet mlp mixtral; do
    chain=("- $name data=1 -")
    for cell in "${cells[@]}"; do
        read -r when of _ <<< "$cell"
        [ "$of" = "$name" ] && [[ -z $small_only || $when = suite ]] && chain+=("$cell")
    done
    [ ${#chain[@]} -ge 2 ] || continue
    if [ -z "$pairs" ]; then
        for ((at = 1; at < ${#chain[@]}; at += steps - 1)); do # each has a step at least
            part=("${chain[0]}" "${chain[@]:at:steps-1}")
            try_chain "${part[@]}" && chained=$((chained + ${#part[@]} - 1)) && try_evaluation "${part[@]}" &&
                try_open "$name"
            [ -z "$both_ways" ] || chain_back "${part[@]}"
        done
        continue
    fi
    for cell in "${chain[@]}"; do
        for other in "${chain[@]}"; do
            if [ "$cell" != "$other" ]; then try_chain "$cell" "$other" && chained=$((chained + 1)); fi
        done
    done
done
echo "$chained checkpoints were resumed in another layout"
exit $((wrong > 0))
