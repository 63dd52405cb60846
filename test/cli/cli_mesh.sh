#!/usr/bin/env bash
# cli_mesh.sh - --mesh and -n: which of them start ranks, how they must agree, also with a launcher, and what a
# checkpoint records and a resumed run takes of them; a plan for 1,024 ranks that are not here. ctest: timeout 120
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "FAIL $*" >&2; failed=1; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
small="--model mlp --data synthetic --steps 4 --threads 1 --eval-every -1"

ranks_of() { sed -n 's/.*"ranks": *\([0-9]*\).*/\1/p' "$1"; }
hash_of() { sed -n 's/.*"hash": *"\([0-9a-f]*\)".*/\1/p' "$1"; }
train() { # train NAME WORDS…: into NAME.json and NAME.err
    local name=$1
    shift
    # shellcheck disable=SC2086
    "$LOCKSTEP" train $small "$@" --json >"$name.json" 2>"$name.err" ||
        fail "train $*: exit status $?: $(cat "$name.err")"
}
refused() { # refused TEXT COMMAND…: exit status 2, and one line of error that contains TEXT
    local text=$1 status=0
    shift
    "$@" >out 2>err || status=$?
    [ $status = 2 ] || fail "$*: exit status $status, not 2: $(cat err)"
    grep -qF -- "$text" err || fail "$*: no '$text' in: $(cat err)"
    [ "$(grep -c '^lockstep' err)" = 1 ] || fail "$*: more than one line: $(cat err)"
}

# --mesh alone starts its ranks; -n alone is one axis; both may be given. The same bits.
train count -n 2
train mesh --mesh data=2
train both -n 2 --mesh tensor=1,data=2
for name in count mesh both; do
    [ "$(ranks_of $name.json)" = 2 ] || fail "$name: not 2 ranks: $(cat $name.json)"
    [ "$(hash_of $name.json)" = "$(hash_of count.json)" ] || fail "$name: other bits than -n 2: $(cat $name.json)"
done
echo 'mesh = data=2' >run.conf
train config --config run.conf
[ "$(ranks_of config.json)" = 2 ] || fail "--config with a mesh: $(cat config.json)"

# What is no mesh, or not that of -n or of the launcher.
# shellcheck disable=SC2086
{
    refused "--mesh data=2 has 2 ranks, but -n 3 is 3: omit one of the two, or make them equal" "$LOCKSTEP" train \
        $small --mesh data=2 -n 3
    refused "--mesh: a mesh has no axis 'tensr' (did you mean tensor?)" "$LOCKSTEP" train $small --mesh data=2,tensr=2
    refused "--mesh: the mesh's data axis has no extent" "$LOCKSTEP" train $small --mesh data
    refused "has 9 pipeline stages, but the model can be cut into at most" "$LOCKSTEP" train $small --mesh pipeline=9
    refused "has 1 rank, but -n is 2" "$LOCKSTEP" plan -n 2 --model mlp --mesh data=1
    refused "the mesh data=4 has 4 ranks, but there is 1" env WORLD_SIZE=1 RANK=0 "$LOCKSTEP" train $small --mesh data=4
    refused "--mesh applies only to \`lockstep bench train\`" "$LOCKSTEP" bench comm --mesh data=2
    refused "--batch 64 for 65 ranks" "$LOCKSTEP" train $small --mesh data=65
    refused "--batch 64 for 66 ranks along data and shard" "$LOCKSTEP" plan --model mlp --mesh data=33,shard=2,tensor=2
    # An option of an axis that the mesh does not have is not ignored.
    refused "--shard-stage applies only to the shard axis of a mesh" "$LOCKSTEP" train $small --mesh data=2 \
        --shard-stage 2
    refused "--blocks-in-flight applies only to the shard axis" "$LOCKSTEP" plan --model mlp -n 2 --blocks-in-flight 3
    refused "--tactics applies only to the tensor axis of a mesh" "$LOCKSTEP" train $small -n 2 --tactics run.conf
    refused "--no-sequence-parallel applies only to the tensor axis" "$LOCKSTEP" bench train --model mlp \
        --no-sequence-parallel
    refused "--tactics missing: No such file" "$LOCKSTEP" train $small --mesh tensor=2 --tactics missing
    : >empty
    refused "--tactics empty: the file is empty" "$LOCKSTEP" train $small --mesh tensor=2 --tactics empty
    # Ranks of different meshes do not start.
    "$LOCKSTEP" run -n 2 sh -c 'mesh=data=2; [ "$RANK" = 0 ] || mesh=tensor=1,data=2; exec "$@" --mesh $mesh' sh \
        "$LOCKSTEP" train $small >out 2>&1 && fail "ranks of different meshes train"
    grep -q 'rank 0: mesh data=2$' out && grep -q 'rank 1: mesh tensor=1,data=2$' out ||
        fail "different meshes: $(cat out)"
    "$LOCKSTEP" run -n 2 -- "$LOCKSTEP" train $small --mesh data=3 >out 2>&1
    [ $? = 2 ] && grep -q 'the mesh data=3 has 3 ranks, but there are 2' out ||
        fail "another mesh than the launcher's ranks: $(cat out)"
    "$LOCKSTEP" run -n 2 -- "$LOCKSTEP" train $small --mesh data=2 --json >run.json 2>err ||
        fail "the mesh of the launcher's ranks: $(cat err)"
}
[ "$(hash_of run.json)" = "$(hash_of count.json)" ] || fail "lockstep run with --mesh: other bits: $(cat run.json)"

# A plan says what each rank has and what it sends along which axes; of 4 ranks, three quarters of a gathered value.
# shellcheck disable=SC2086
{
    sharded="--model mlp --hidden 128 --features 64 --mesh data=2,shard=4 --state replicated"
    "$LOCKSTEP" plan $sharded --json >plan.json 2>err || fail "plan of a mesh with shard: $(cat err)"
    total=$(sed -E 's/.*"total": ([0-9]+).*/\1/' plan.json)
    grep -q "\"rank_bytes\": \[{\"first\": 0, \"last\": 7, \"bytes\": $total}\]" plan.json ||
        fail "the bytes of each rank: $(cat plan.json)"
    for axis in data shard; do
        grep -qE "\"axes\": \"$axis\", \"collectives\": [1-9]" plan.json ||
            fail "traffic along $axis: $(cat plan.json)"
    done
    "$LOCKSTEP" plan $sharded >out 2>err || fail "plan of a mesh with shard: $(cat err)"
    for text in 'mesh data=2,shard=4, in which each rank has' 'all ranks  *[0-9]' \
        'along data, 2 ranks: [0-9]* collectives*,' 'along shard, 4 ranks: [0-9]* collectives*,' \
        'critical path [0-9.]* ms$'; do
        grep -qE "$text" out || fail "plan has no '$text': $(cat out)"
    done
    alone=$("$LOCKSTEP" plan --model mlp --hidden 128 --features 64 -n 4 --state replicated --json)
    case $alone in # 3/4, twice, of 38464 bytes of gradients
        *'"traffic": [{"axes": "data", "collectives": 1, "bytes": 57696}]'*) ;;
        *) fail "traffic of data parallel: $alone" ;;
    esac
}

# Ranks that generate have the same prompts and choose the same tokens; rank 0 prints them.
# shellcheck disable=SC2086
{
    gpt="--model gpt --layers 2 --width 32 --heads 4 --context 16 --vocabulary 64 --data synthetic --batch 8"
    "$LOCKSTEP" train $gpt --steps 3 --threads 1 --eval-every -1 --save gpt >out 2>&1 || fail "train gpt: $(cat out)"
    ids="--load gpt --prompt-ids 1,2,3 --prompt-ids 9 --ids --tokens 9 --threads 1"
    "$LOCKSTEP" generate $ids >alone.ids 2>err || fail "generate: $(cat err)"
    "$LOCKSTEP" generate $ids --mesh shard=2 >ranks.ids 2>err || fail "generate of 2 ranks: $(cat err)"
    cmp -s alone.ids ranks.ids || fail "2 ranks generate $(cat ranks.ids), one $(cat alone.ids)"
    "$LOCKSTEP" run -n 2 -- "$LOCKSTEP" generate $ids --mesh shard=2 >ranks.ids 2>err || fail "run generate: $(cat err)"
    [ "$(sed 's/^\[rank 0\] //' ranks.ids)" = "$(cat alone.ids)" ] || fail "lockstep run: $(cat ranks.ids)"
    refused "has 2 ranks along data, but all generating ranks must have the same prompts" "$LOCKSTEP" generate $ids \
        --mesh data=2
    refused "--prompt-file -: several ranks cannot share standard input" "$LOCKSTEP" generate --load gpt \
        --prompt-file - --mesh shard=2 </dev/null
    # Fewer heads of keys and values than ranks: neighbours have copies of their caches.
    for heads in 1 2; do
        "$LOCKSTEP" train ${gpt/gpt/llama} --kv-heads $heads --steps 9 --lr 0.01 --dtype f64 --threads 1 \
            --eval-every -1 --save few$heads >out 2>&1 || fail "train llama: $(cat out)"
        ids="--load few$heads --prompt-ids 1,2,3 --prompt-ids 9 --ids --tokens 12 --temperature 1.5 --threads 1"
        "$LOCKSTEP" generate $ids >alone.ids 2>err || fail "generate: $(cat err)"
        "$LOCKSTEP" generate $ids --mesh tensor=4 >ranks.ids 2>err || fail "$heads heads over 4 ranks: $(cat err)"
        cmp -s alone.ids ranks.ids || fail "4 ranks generate $(cat ranks.ids), one $(cat alone.ids)"
    done
}

# --parallel data is accepted, with one line that names --mesh.
train parallel -n 2 --parallel data
[ "$(hash_of parallel.json)" = "$(hash_of count.json)" ] || fail "--parallel data: other bits"
[ "$(grep -c -- '--parallel is replaced by --mesh' parallel.err)" = 1 ] || fail "--parallel data: $(cat parallel.err)"
grep -q -- '--mesh' count.err && fail "-n 2 alone names --mesh: $(cat count.err)"

# The record has the mesh, also of ranks that a launcher started; a resumed run takes the user's number, else the
# recorded one.
# shellcheck disable=SC2086
"$LOCKSTEP" run -n 2 -- "$LOCKSTEP" train $small --save by_launcher >out 2>&1 || fail "a checkpoint: $(cat out)"
train recorded --mesh data=2 --save recorded
grep -q '"mesh":"data=2"' by_launcher/state.json || fail "no mesh in the record: $(cat by_launcher/state.json)"
"$LOCKSTEP" info recorded | grep -q '^mesh  *data=2$' || fail "info: $("$LOCKSTEP" info recorded)"
"$LOCKSTEP" info --json recorded | grep -q '"mesh": *"data=2"' ||
    fail "info --json: $("$LOCKSTEP" info --json recorded)"
resume() { # resume RANKS DIRECTORY WORDS…
    local want=$1 from=$2
    shift 2
    rm -rf again && cp -r "$from" again
    "$LOCKSTEP" train --resume again --save again --steps 6 --threads 1 "$@" --json >resumed.json 2>err ||
        fail "--resume with $*: exit status $?: $(cat err)"
    [ "$(ranks_of resumed.json)" = "$want" ] || fail "--resume of $from with '$*': not $want ranks: $(cat resumed.json)"
    grep -q "\"mesh\":\"data=$want\"" again/state.json || fail "--resume of $from with '$*': $(cat again/state.json)"
}
resume 2 recorded
resume 3 recorded -n 3
resume 1 recorded --mesh data=1
resume 1 by_launcher
resume 2 by_launcher --mesh data=2
train counted -n 2 --save counted
resume 3 counted --mesh data=3
resume 1 counted -n 1
"$LOCKSTEP" run -n 3 -- "$LOCKSTEP" train --resume recorded --steps 6 --threads 1 >out 2>&1 ||
    fail "3 ranks of a launcher resume a mesh of 2: $(cat out)"

# A plan for ranks that are not here: the same by either option, and of any number.
"$LOCKSTEP" plan -n 1024 --model mlp --batch 4100 >by_count 2>err || fail "plan -n 1024: $(cat err)"
"$LOCKSTEP" plan --model mlp --batch 4100 --mesh data=1024 >by_mesh 2>err || fail "plan --mesh data=1024: $(cat err)"
grep -q 'rank 0 of 1024' by_count || fail "plan -n 1024: $(cat by_count)"
cmp -s by_count by_mesh || fail "plan: $(diff by_count by_mesh)"
"$LOCKSTEP" plan --model mlp --batch 8192 --mesh data=8192 >out 2>err && grep -q 'rank 0 of 8192' out ||
    fail "plan --mesh data=8192: $(cat out err)"

[ $failed = 0 ] && echo "the number of ranks is that of -n and --mesh, in runs, records and plans"
exit $failed
