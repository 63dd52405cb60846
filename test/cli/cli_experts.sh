#!/usr/bin/env bash
# cli_experts.sh - the expert axis at the command: training, evaluation and plans of a model whose experts are split
# over ranks; checkpoints that cross from one mesh to another amid a run; a rank that is killed; mistakes in one
# sentence.
# ctest: timeout 300, ranks 4
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
# shellcheck source=test/cli/axis.bash
. "$SOURCE_DIR/test/cli/axis.bash"

lockstep=$LOCKSTEP
data="$data --dtype f64"
small="--model mixtral --layers 2 --heads 2 --width 16 --hidden 24 --experts 4 --context 16 $data"

# ---- a run goes on in another mesh ----
expect 0 "" "$lockstep" train $small --eval-every 4 --steps 8 --save one
expect 0 "" "$lockstep" train $small --eval-every 4 --steps 3 --save run --mesh expert=2
expect 0 "" "$lockstep" train --resume auto --steps 5 --save run --mesh shard=2,expert=2 --check-every 1
expect 0 "" "$lockstep" train --resume auto --steps 7 --save run --mesh expert=4 --shard-stage 2 \
    --state replicated
expect 0 "" "$lockstep" train --resume auto --steps 8 --save run --mesh data=1
far_from one run
head -c 20000 run/model.safetensors | grep -aq "model.layers.1.block_sparse_moe.experts.3.w2.weight" ||
    complain "files of ranks with different experts do not hold the experts apart"
eval_alike run expert=2 data=2,expert=2
expect 0 "" "$lockstep" train $small --eval-every -1 --steps 2 --mesh expert=2 --dtype bf16 --router-loss 0.1
expect 0 "" "$lockstep" bench train $small --mesh expert=2 --steps 2
generate_alike run expert=2

# ---- before a rank starts ----
expect 0 "" "$lockstep" plan $small --mesh expert=4
grep -q "along expert, 4 ranks: .* collectives" out.txt || complain "plan: $(cat out.txt)"
number="[0-9.]+ ms"
costs="experts compute for $number if loads are equal; "
costs+="a rank with 1.5 times the mean load takes $number longer, and a rank with"
tr '\n' ' ' < out.txt | tr -s ' ' | grep -Eq "$costs all tokens $number" ||
    complain "plan: no cost of unequal loads: $(cat out.txt)"
expect 0 "" "$lockstep" plan $small --mesh expert=4 --sections
! grep -q "along shard × expert" out.txt || complain "plan --mesh expert=4: slices of what no stage was asked for"
expect 0 "" "$lockstep" plan $small --mesh expert=4 --sections --shard-stage 3 --state replicated
grep -q "along shard × expert" out.txt || complain "plan --shard-stage 3: no slices"
expect 0 "" "$lockstep" plan $small --mesh shard=2,expert=2
grep -q "the state is shared by 4 ranks, and the experts split over 2 ranks along expert" out.txt ||
    complain "plan: $(cat out.txt)"
expect 0 "" "$lockstep" plan $small --mesh shard=2,expert=2 --state replicated
grep -q "along shard and expert, 4 ranks" out.txt || complain "plan: $(cat out.txt)"
grep -q "the state is split over 2 ranks along expert and 2 along shard (stage 3)" out.txt ||
    complain "plan: $(cat out.txt)"
expect_text 2 "has 2 ranks along expert, but the model has no experts: use the data axis instead" "$lockstep" train \
    --model gpt $data --steps 1 --mesh expert=2
expect_text 2 "has 3 ranks along expert, which do not divide the 4 experts" "$lockstep" train $small --steps 1 \
    --mesh expert=3
expect_text 2 "use --reproducible layout, which computes that loss for each leaf" "$lockstep" train $small \
    --steps 1 --mesh expert=2 --reproducible --router-loss 0.1 --batch 8
expect_text 2 "the ranks have different experts on several hosts, so they cannot share their state" "$lockstep" plan \
    $small --mesh data=2,expert=2 --nnodes 2 --state shared

# ---- a state that ranks share has the bits of one that each has ----
for mesh in expert=2 data=2,expert=2 expert=2,tensor=2; do
    for state in replicated shared; do
        rm -rf "state_$state"
        expect 0 "" "$lockstep" train $small --eval-every -1 --steps 3 --clip 0.2 --mesh "$mesh" --state $state \
            --dtype f32 --save "state_$state" --check-every 1
    done
    for file in model optimizer; do
        cmp -s "state_replicated/$file.safetensors" "state_shared/$file.safetensors" ||
            complain "--mesh $mesh: $file.safetensors of a shared state has other bits"
    done
done

# ---- all tokens at one rank and none at the other, over every transport ----
# Where gates are 0 all experts are equally likely, and the first two get all tokens.
expect 0 "" "$lockstep" train $small --eval-every -1 --steps 1 --save start
python3 - start/model.safetensors even.safetensors << 'end' || complain "no file with gates of 0"
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
head = struct.unpack("<Q", data[:8])[0]
for name, tensor in json.loads(data[8:8 + head]).items():
    if name.endswith(".gate.weight"):
        begin, end = (8 + head + at for at in tensor["data_offsets"])
        data[begin:end] = bytes(end - begin)
open(sys.argv[2], "wb").write(data)
end
even="$small --eval-every -1 --steps 3 --init even.safetensors"
trains_alike() { # trains_alike NAME COMMAND…: saves what one rank does, and its first step had all tokens at one rank
    local name=$1
    shift
    rm -f even.jsonl
    expect 0 "" "$@" train $even --save "$name" --log even.jsonl --mesh expert=2 --backend "${name#even_}"
    [ "$(grep -m1 '"expert_load"' even.jsonl | field expert_load)" = 2 ] ||
        complain "$name: tokens are at both ranks: $(head -1 even.jsonl)"
    far_from even_one "$name"
}
expect 0 "" "$lockstep" train $even --save even_one
trains_alike even_shm "$lockstep"
trains_alike even_tcp "$lockstep"
trains_alike even_mixed "$lockstep" run -n 2 -- bash -c 'export LOCKSTEP_HOST_ID=host-$RANK; exec "$@"' - "$lockstep"
if "$lockstep" info 2> /dev/null | grep -q 'MPI modules.*openmpi' &&
    mpirun --version 2> /dev/null | grep -q "Open MPI"; then
    # shellcheck source=test/mpi.bash
    . "$SOURCE_DIR/test/mpi.bash"
    trains_alike even_mpi mpirun -n 2 "$lockstep"
fi

# ---- what unequal loads cost, in a trace and among the metrics ----
expect 0 "" "$lockstep" train $small --eval-every -1 --steps 4 --mesh expert=2 --trace trace.json --trace-steps 2 \
    --log loads.jsonl
for rank in 0 1; do
    load="\"ph\":\"C\",\"name\":\"expert load, most / mean\",\"pid\":$rank,.*\"value\":(1|2)\.[0-9]{3}"
    [ "$(grep -Ec "$load" trace.json)" = 2 ] ||
        complain "trace: no loads of the two steps of rank $rank"
    [ "$(grep -c "\"name\":\"ms lost to unequal loads\",\"pid\":$rank" trace.json)" = 2 ] ||
        complain "trace: no loss of the two steps of rank $rank"
done
tail -1 loads.jsonl | tr ',' '\n' | sed -n 's/.*"expert_\([0-3]\|load\)": *\([0-9.e-]*\).*/\2/p' |
    tr '\n' ' ' > loads.txt
awk '{ a = $1 + $2; b = $3 + $4; most = 2 * (a > b ? a : b); exit !(NF == 5 && ($5 - most)^2 < 1e-8) }' loads.txt ||
    complain "expert_load is not the larger of two ranks' loads over the mean: $(cat loads.txt), $(tail -1 loads.jsonl)"
python3 -c 'import json; json.load(open("trace.json"))' || complain "trace.json is not JSON"

# ---- a rank that is killed ----
kill_a_rank expert=4 $small --mesh expert=2

exit $((wrong > 0))
