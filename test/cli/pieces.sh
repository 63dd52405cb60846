#!/usr/bin/env bash
# pieces.sh - collectives of forward in pieces: a run has the bits of one without them, in training and evaluation, over
# shared memory and a network, for batches that the pieces do not divide and those that fill only some of them. The
# schedule is verified, and a rank has the bytes that the plan gives it.
# ctest: timeout 240, ranks 4
# shellcheck disable=SC2086 # options are lists of words
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
export LOCKSTEP_VERIFY_SCHEDULE=1

# 30 sequences in batches of 7: the last one of an epoch has 2.
for i in $(seq 30); do printf '%015d\n' "$((i * 7919))"; done > book.txt
common="--data text:book.txt --tokenizer char --holdout 0.1 --batch 7 --steps 6 --seed 5 --threads 1 --eval-every 3"
small="--layers 2 --width 32 --heads 4 --context 16"
gpt="--model gpt $small --dropout 0.1 --clip 0.5"
llama="--model llama $small --kv-heads 2"

# same PIECES BACKEND OPTIONS…: with so many pieces, which the plan has, the weights and losses are those without.
same() {
    local pieces=$1 backend=$2 n
    shift 2
    for n in 1 "$pieces"; do
        rm -rf run "log.$n"
        expect 0 "" timeout -s KILL 100 "$LOCKSTEP" train $common "$@" --backend "$backend" --pieces "$n" --save run \
            --json --log "log.$n" < /dev/null
        { sha256sum < run/model.safetensors; grep -oE '"(loss|perplexity|norm)": *[^,}]*' "log.$n"; } > "got.$n"
    done
    [ "$(wc -l < got.1)" -gt 6 ] || complain "$*: no losses: $(cat log.1)"
    cmp -s got.1 "got.$pieces" || complain "$*: in $pieces pieces other results: $(diff got.1 "got.$pieces")"
    joins=$("$LOCKSTEP" plan $common "$@" --pieces "$pieces" --sections 2> err.txt | grep -c ' = join(')
    [ "$joins" -gt 0 ] || complain "$*: nothing is cut into pieces: $(cat err.txt)"
}

same 2 shm $gpt --mesh tensor=2
same 3 tcp $gpt --mesh tensor=2
same 8 shm $llama --mesh tensor=2 --no-sequence-parallel
same 3 tcp $llama --mesh tensor=4 --dtype bf16
same 2 shm $llama --mesh data=2,tensor=2 --accumulate 2 --recompute
same 2 tcp $gpt --mesh shard=2,tensor=2 --state replicated

# By default, 0: where the axis joins hosts, which LOCKSTEP_HOST_ID simulates, and the collectives are large enough.
large="--model gpt --layers 1 --width 192 --heads 4 --context 128 --data text:book.txt --tokenizer char --batch 8"
large+=" --mesh tensor=2 --steps 7 --threads 1 --eval-every -1"
joins() { "$LOCKSTEP" plan $large "$@" --sections 2> err.txt | grep -c ' = join('; }
[ "$(joins --nnodes 2)" -gt 0 ] || complain "nothing is cut between hosts: $(cat err.txt)"
[ "$(joins)" = 0 ] || complain "collectives of one host are cut"
[ "$(joins --nnodes 2 --pieces 1)" = 0 ] || complain "--pieces 1: collectives are cut"
# shellcheck disable=SC2016
for pieces in 0 1; do
    expect 0 "" timeout -s KILL 100 "$LOCKSTEP" run -n 2 -- \
        bash -c 'export LOCKSTEP_HOST_ID=host-$RANK; exec "$@"' - "$LOCKSTEP" train $large --backend tcp \
        --pieces $pieces --save "hosts.$pieces" --trace trace.json
    grep -o '"all_gather' trace.json | wc -l >> gathers
done
cmp -s hosts.0/model.safetensors hosts.1/model.safetensors || complain "other weights between hosts"
[ "$(head -n 1 gathers)" -gt "$(tail -n 1 gathers)" ] || complain "traced all_gathers: $(cat gathers)"

# Nothing else is cut: without the axis the option is refused, and leaves keep the plan whole.
expect 2 "pieces" "$LOCKSTEP" train $common $gpt --mesh data=2 --pieces 2
expect 2 "pieces" "$LOCKSTEP" train $common $gpt --mesh tensor=2 --pieces 9
"$LOCKSTEP" plan $common $gpt --mesh tensor=2 --pieces 2 --reproducible --sections 2>&1 | grep -q ' = join(' &&
    complain "leaves are cut into pieces"
exit $((wrong > 0))
