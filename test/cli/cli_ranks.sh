#!/usr/bin/env bash
# cli_ranks.sh - `lockstep train` with several ranks, started by -n, by `lockstep run`, and by torchrun and mpirun if
# installed. The results are the same bits, on one line of JSON; evaluation counts every sample once; a signal to one
# rank makes all save the same step. ctest: timeout 300
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
small="--model cnn --data synthetic:3x16x16,count=200 --batch 24 --threads 1"

# One line of JSON on standard output and the same bits with every launcher.
hash_of() { # hash_of NAME COMMAND…
    local name=$1 lines
    shift
    "$@" > "$name.json" 2> "$name.err" || fail "$name: exit status $?: $(cat "$name.err")"
    lines=$(wc -l < "$name.json")
    [ "$lines" = 1 ] || fail "$name: $lines lines of results: $(cat "$name.json")"
    if command -v python3 > /dev/null; then python3 -c 'import json, sys; json.loads(open(sys.argv[1]).read())' \
        "$name.json" || fail "$name: no JSON: $(cat "$name.json")"; fi
    hash=$(field hash < "$name.json")
    [ -n "$hash" ] || fail "$name: no hash: $(cat "$name.json")"
    [ "$(field ranks < "$name.json")" = "$world" ] || fail "$name: not $world ranks: $(cat "$name.json")"
}
world=2
# shellcheck disable=SC2086
hash_of short "$LOCKSTEP" train -n 2 $small --epochs 2 --log short.jsonl --json
two=$hash
evaluated() { [ "$(grep '"event": "evaluated"' "$1" | grep -c '"samples": 50[,}]')" = 2 ] ||
    fail "evaluation did not see 50 samples: $(cat "$1")"; }
evaluated short.jsonl
# shellcheck disable=SC2086
"$LOCKSTEP" run -n 2 -- "$LOCKSTEP" train $small --epochs 2 --json > run.out 2> run.err ||
    fail "lockstep run: $(cat run.err)"
[ "$(field hash < run.out)" = "$two" ] || fail "lockstep run: $(cat run.out), -n 2: $two"
[ "$(grep -c '"hash"' run.out)" = 1 ] || fail "lockstep run: more than one result: $(cat run.out)"
# More threads than a rank may have, and a terminal whose size was never set.
OMP_NUM_THREADS=512 "$LOCKSTEP" train -n 2 --model mlp --steps 2 --eval-every -1 > many.txt 2>&1 ||
    fail "OMP_NUM_THREADS=512: $(cat many.txt)"
if command -v script > /dev/null; then
    script -qec "stty cols 0; '$LOCKSTEP' train -n 2 --model mlp --steps 2 --eval-every -1 --threads 1" /dev/null < \
        /dev/null > tty.txt || fail "a terminal of 0 columns: $(cat tty.txt)"
fi
# Arguments reach the ranks byte for byte, also those that are not UTF-8.
name=$'odd\xff\xfename'
"$LOCKSTEP" train -n 2 --model mlp --data synthetic --batch 8 --steps 1 --eval-every -1 --threads 1 --save "$name" \
    > odd.txt 2>&1 || fail "a name that is not UTF-8: $(cat -v odd.txt)"
folders=(odd*/)
[ -s "$name/state.json" ] && [ ${#folders[@]} = 1 ] || fail "not saved in the directory named: $(ls -b)"
# A task of mpirun or srun starts no ranks of its own.
for size in OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 SLURM_STEP_NUM_TASKS=2; do
    status=0
    env $size "$LOCKSTEP" train -n 2 --model mlp --steps 2 > task.txt 2>&1 || status=$?
    [ $status = 2 ] && grep -q 'remove -n' task.txt || fail "-n with $size: exit status $status: $(cat task.txt)"
done
# shellcheck disable=SC2086
"$LOCKSTEP" train -n 2 $small --steps 1 --device guarded --verbose-ranks > guarded.out 2>&1 ||
    fail "--device guarded: $(cat guarded.out)"
[ "$(grep -cE 'rank [01] of 2 \(.*\): guarded [a-z0-9_]+, 1 thread on core' guarded.out)" = 2 ] ||
    fail "--verbose-ranks does not show the device: $(cat guarded.out)"
for backend in shm tcp; do
    # shellcheck disable=SC2086
    hash_of $backend "$LOCKSTEP" train -n 2 --backend $backend $small --epochs 2 --json
    [ "$hash" = "$two" ] || fail "--backend $backend changes bits"
done
if command -v torchrun > /dev/null && torchrun --help > /dev/null 2>&1; then
    # shellcheck disable=SC2086
    hash_of torchrun torchrun --standalone --no-python --nproc-per-node 2 "$LOCKSTEP" train $small --epochs 2 --json
    [ "$hash" = "$two" ] || fail "torchrun: $hash, not $two"
else
    echo "skip: no torchrun"
fi
if command -v mpirun > /dev/null; then
    # shellcheck source=test/mpi.bash
    . "$SOURCE_DIR/test/mpi.bash"
    # shellcheck disable=SC2086
    hash_of mpirun mpirun -n 2 "$LOCKSTEP" train $small --epochs 2 --json
    [ "$hash" = "$two" ] || fail "mpirun: $hash, not $two"
    if "$LOCKSTEP" info 2> /dev/null | grep -q 'MPI modules.*openmpi' && mpirun --version 2> /dev/null |
        grep -q 'Open MPI'; then
        # shellcheck disable=SC2086
        hash_of mpi mpirun -n 2 "$LOCKSTEP" train --backend mpi $small --epochs 2 --json
        [ "$hash" = "$two" ] || fail "--backend mpi: $hash, not $two"
    fi
else
    echo "skip: no mpirun"
fi

# The same accuracy and number of samples with any number of ranks; with --reproducible the same bits.
world=1
# shellcheck disable=SC2086
hash_of one "$LOCKSTEP" train $small --epochs 2 --reproducible --save one --json
one=$hash
for world in 2 3; do
    # shellcheck disable=SC2086
    hash_of many "$LOCKSTEP" train -n $world $small --epochs 2 --reproducible --save many$world --log many$world.jsonl \
        --json
    [ "$hash" = "$one" ] || fail "--reproducible with $world ranks: $hash, with one $one"
    for key in loss accuracy train_loss; do
        [ "$(field $key < many.json)" = "$(field $key < one.json)" ] ||
            fail "$key with $world ranks: $(cat many.json), with one: $(cat one.json)"
    done
    evaluated many$world.jsonl
    cmp one/model.safetensors many$world/model.safetensors
    cmp one/optimizer.safetensors many$world/optimizer.safetensors
done

# Different options of ranks are an error on every rank, with the first difference.
cat > apart.sh <<'S'
if [ "$RANK" = 1 ]; then set -- "$@" --lr 0.002; fi
exec "$@"
S
code=0
# shellcheck disable=SC2086
"$LOCKSTEP" run -n 3 sh apart.sh "$LOCKSTEP" train $small --epochs 2 > apart.txt 2>&1 || code=$?
[ "$code" != 0 ] || fail "different rates were accepted"
grep -q 'rank 0: .*lr 0.001,' apart.txt && grep -q 'rank 1: .*lr 0.002' apart.txt ||
    fail "different rates: $(cat apart.txt)"

# A user error is printed once, without collectives: it is found before ranks are started, or by all of them.
mkdir labels
for i in 1 2 3 4 5; do head -c 6146 /dev/zero > labels/data_batch_$i.bin; done
# A label that is found only by reading every sample.
{ head -c 3073 /dev/zero; printf '\013'; head -c 3072 /dev/zero; } > labels/data_batch_3.bin
head -c 3073 /dev/zero > labels/test_batch.bin
once() { # once PATTERN ARGUMENTS…
    local pattern=$1 code=0
    shift
    # shellcheck disable=SC2086
    "$LOCKSTEP" train -n 3 $small --steps 1 "$@" > once.txt 2>&1 || code=$?
    [ "$code" = 2 ] && [ "$(wc -l < once.txt)" = 1 ] && grep -q "^lockstep train: .*$pattern" once.txt ||
        fail "-n 3 $*: exit status $code: $(cat once.txt)"
    code=0
    # shellcheck disable=SC2086
    "$LOCKSTEP" run -n 3 "$LOCKSTEP" train $small --steps 1 "$@" > once.txt 2>&1 || code=$?
    [ "$code" = 2 ] && [ "$(grep -c '^\[rank' once.txt)" = 1 ] &&
        grep -q "^\[rank 0\] lockstep train: .*$pattern" once.txt && ! grep -q 'collectives' once.txt ||
        fail "run -n 3 $*: exit status $code: $(cat once.txt)"
}
once 'unknown data set: nothing' --data nothing
once '--reproducible with 3 ranks: .* 2 leaves.* --leaves 3 or more' --reproducible --leaves 2
once 'CIFAR-10 not found in nowhere' --data cifar10:nowhere
once 'data_batch_3.bin: record 1, .* has label 11' --data cifar10:labels
once 'cnn needs images' --data synthetic:64
once 'batch 2 for 3 ranks' --batch 2
once 'none.safetensors: cannot open' --init none.safetensors
once 'belongs to a different model' --init one --model resnet20
once 'one already holds a checkpoint' --save one
once 'nowhere holds no checkpoint' --resume nowhere
once 'mean and --std for 2 channels' --mean 1,2
once 'momentum' --momentum 0.9
once 'trace-steps requires' --trace-steps 5
once 'tensorboard /proc/none: cannot create' --tensorboard /proc/none
rm -rf nowhere

# An error of only one rank is printed by that rank, and by no other.
cat > alone.sh <<'S'
if [ "$RANK" = 1 ]; then set -- "$@" --data nothing; fi
exec "$@"
S
code=0
# shellcheck disable=SC2086
"$LOCKSTEP" run -n 3 sh alone.sh "$LOCKSTEP" train $small --steps 1 > alone.txt 2>&1 || code=$?
[ "$code" = 2 ] && grep -q '^\[rank 1\] lockstep train: rank 1: unknown data set: nothing' alone.txt &&
    [ "$(grep -c '^\[rank' alone.txt)" = 1 ] ||
    fail "one rank's error: exit status $code: $(cat alone.txt)"

# --lr-scale scales the learning rate with the batch.
rate() {
    rm -f rate.jsonl
    "$LOCKSTEP" train --model mlp --batch 128 --lr 0.01 --steps 1 --eval-every -1 --threads 1 --log rate.jsonl "$@" \
        2> /dev/null
    field lr < rate.jsonl
}
[ "$(rate)" = 0.01 ] || fail "no scaling: $(rate)"
[ "$(rate --lr-scale linear --base-batch 32)" = 0.04 ] ||
    fail "linear scaling: $(rate --lr-scale linear --base-batch 32)"
[ "$(rate --lr-scale sqrt --base-batch 32)" = 0.02 ] ||
    fail "square root scaling: $(rate --lr-scale sqrt --base-batch 32)"

# A missing data set is downloaded once, for any number of ranks.
images=/usr/share/datasets/fashion-mnist
if [ -d "$images" ] && "$LOCKSTEP" info | grep -q 'libcurl *[0-9a-z]*/'; then
    mkdir nothing
    python3 - nothing > server.txt 2> requests.txt <<'P' &
import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
print(server.server_address[1], flush=True)
server.serve_forever()
P
    server=$!
    wait_until 20 test -s server.txt
    # The server has none of the files: only the number of requests matters.
    address=http://127.0.0.1:$(cat server.txt)
    "$LOCKSTEP" data get fashion-mnist --dir alone --url "$address" > alone.txt 2>&1 &&
        fail "a missing file was accepted"
    requests=$(grep -c 'GET ' requests.txt)
    code=0
    "$LOCKSTEP" train -n 3 --model cnn --data "fashion-mnist:$PWD/got" --download "$address" --steps 2 --eval-every -1 \
        --threads 1 > got.txt 2>&1 || code=$?
    # After an interrupted download the rest is downloaded: an existing file is compared with the published one first.
    mkdir half && ln -s "$images"/train-* half/
    "$LOCKSTEP" train -n 2 --model cnn --data "fashion-mnist:$PWD/half" --download "$address" --steps 2 \
        --eval-every -1 --threads 1 > half.txt 2>&1 && fail "the test set is missing, but: $(cat half.txt)"
    grep -q 'train-images-idx3-ubyte.gz already exists, but its SHA-256 is' half.txt ||
        fail "the missing test set was not downloaded: $(cat half.txt)"
    kill "$server"; wait "$server" 2> /dev/null || true
    [ "$code" != 0 ] && [ "$(grep -c 404 got.txt)" = 1 ] && ! grep -q 'collectives\|aborted the group' got.txt ||
        fail "a data set that cannot be got: $(cat got.txt)"
    [ "$(grep -c 'GET ' requests.txt)" = $((2 * requests)) ] ||
        fail "three ranks made more requests than one: $(cat requests.txt)"
    # An existing data set is not downloaded.
    "$LOCKSTEP" train -n 3 --model cnn --data fashion-mnist --download "$address" --steps 2 --eval-every -1 --threads \
        1 > there.txt 2>&1 ||
        fail "an existing data set: $(cat there.txt)"
else
    echo "skip: no libcurl or no Fashion-MNIST"
fi

# A signal to one rank: all save at the same step, and with save-exit the exit status is 0.
signal_one() { # signal_one SIGNAL RANK HOW
    rm -rf signalled log.*
    # shellcheck disable=SC2086
    env --default-signal=INT "$LOCKSTEP" train -n 3 $small --epochs 100000 --eval-every -1 --save signalled \
        --on-signal "$3" --log-dir log.d --json > out.json 2> err.txt &
    job=$!
    wait_until_job 60 test -s log.d/rank-2.jsonl
    if [ "$2" = launcher ]; then pid=$job; else pid=$(rank_pid "$2"); fi
    [ -n "$pid" ] || fail "rank $2 was not found: $(pgrep -aP "$job"); $(cat err.txt)"
    kill "-$1" "$pid"
    code=0
    wait "$job" || code=$?
    job=
    steps=$(for rank in 0 1 2; do grep '"event": *"step"' log.d/rank-$rank.jsonl | tail -1 | field step; done | sort -u)
    [ "$(echo "$steps" | wc -l)" = 1 ] || fail "SIG$1: the ranks stopped at different steps: $steps"
    [ "$(field step < signalled/state.json)" = "$steps" ] ||
        fail "SIG$1: stopped after step $steps, saved $(cat signalled/state.json)"
    rm -rf log.d
}
signal_one INT launcher save-stop
[ "$code" = 130 ] && [ "$(grep -c '^lockstep' err.txt)" = 1 ] &&
    grep -q "^lockstep train: interrupted, saved step $steps; --resume auto continues" err.txt &&
    [ "$(grep -c "saved step $steps" err.txt)" = 1 ] ||
    fail "Ctrl-C: exit status $code, stopped after step $steps: $(cat err.txt)"
signal_one TERM 1 save-exit
[ "$code" = 0 ] || fail "SIGTERM with save-exit: exit status $code: $(cat err.txt)"
signal_one USR1 2 save-exit
[ "$code" = 0 ] || fail "SIGUSR1 with save-exit: exit status $code: $(cat err.txt)"
signal_one USR1 0 save-exit
[ "$code" = 0 ] || fail "SIGUSR1 to rank 0 with save-exit: exit status $code: $(cat err.txt)"
signal_one TERM launcher save-exit
[ "$code" = 0 ] || fail "SIGTERM to all with save-exit: exit status $code: $(cat err.txt)"
signal_one TERM launcher save-stop
[ "$code" = 143 ] || fail "SIGTERM to all with save-stop: exit status $code: $(cat err.txt)"
# Ranks that saved and ended with the signal's exit code have not failed; rank 0 prints the only message.
for case in "TERM 2 143" "USR1 launcher 138" "USR1 0 138" "USR1 1 138"; do
    read -r signal to status <<< "$case"
    signal_one "$signal" "$to" save-stop
    [ "$code" = "$status" ] && [ "$(grep -c '^lockstep' err.txt)" = 1 ] &&
        grep -q "^lockstep train: .*, saved step $steps; --resume auto continues" err.txt ||
        fail "SIG$signal to $to: exit status $code, stopped after step $steps: $(cat err.txt)"
done
# shellcheck disable=SC2086
"$LOCKSTEP" eval --load signalled $small > /dev/null || fail "the saved checkpoint cannot be loaded"
echo ok
