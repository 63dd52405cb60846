#!/usr/bin/env bash
# cli_eval_ranks.sh - `lockstep eval` on several ranks, started by -n, by `lockstep run` and by mpirun if installed,
# over every transport: each sample once, the line of one rank for every kind of data, fewer samples than ranks; only
# rank 0 needs the checkpoint and prints; errors are printed once; a rank that is killed is named.
# ctest: timeout 300, ranks 4
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
train() { expect 0 "" "$LOCKSTEP" train --threads 1 "$@"; }

# same OPTIONS…: with any number of ranks and every transport the line of one rank, bit for bit, and nothing is said
# twice.
transports=(shm tcp)
same() {
    local ranks
    expect 0 "" "$LOCKSTEP" eval --threads 1 "$@"
    cp out.txt one.txt
    cp err.txt said.txt
    [ "$(wc -l < one.txt)" = 1 ] || fail "one rank: $(cat one.txt)"
    expect 0 "" "$LOCKSTEP" eval --threads 1 --json "$@"
    cp out.txt one.json
    for ranks in 2 3 4; do
        expect 0 "" "$LOCKSTEP" eval -n $ranks --backend "${transports[0]}" --threads 1 "$@"
        cmp -s one.txt out.txt || fail \
            "-n $ranks --backend ${transports[0]} $*: $(cat out.txt), one rank: $(cat one.txt)"
        cmp -s said.txt err.txt || fail \
            "-n $ranks --backend ${transports[0]} $*: $(cat err.txt), one rank: $(cat said.txt)"
        expect 0 "" "$LOCKSTEP" eval -n $ranks --backend "${transports[1]}" --threads 1 --json "$@"
        cmp -s one.json out.txt || fail \
            "-n $ranks --backend ${transports[1]} --json $*: $(cat out.txt), one rank: $(cat one.json)"
        transports=("${transports[1]}" "${transports[0]}") # each number of ranks and kind of line with both
    done
}

# ---- every kind of data ----

train --model cnn --data synthetic:3x16x16,count=200 --batch 24 --epochs 1 --save images -n 2
same --load images # 50 samples in batches of 24, also where training had 2 ranks
[ "$(field samples < one.json)" = 50 ] || fail "the test set: $(cat one.json)"
same --load images --split all --batch 7
same --load images --data synthetic:3x16x16,count=12         # 3 samples
same --load images --batch 1                                 # less than a sample for each rank
same --load images/model.safetensors --model cnn --data synthetic:3x16x16,count=80 --dtype bf16
train --model resnet20 --data synthetic:3x16x16,count=64 --batch 16 --steps 2 --save running
same --load running                                          # running statistics

words() {
    awk -v seed="$1" -v count="$2" 'BEGIN { srand(seed)
        n = split("the quick brown fox jumps over a lazy dog and sleeps under some green tree", w, " ")
        for (i = 0; i < count; i++) printf("%s%s", w[int(rand() * n) + 1], (i % 9 == 8 ? "\n" : " ")) }'
}
words 1 600 > train.txt
words 2 90 > new.txt
train --model gpt --layers 1 --heads 2 --width 16 --context 24 --data text:train.txt --tokenizer char --steps 20 \
    --batch 8 --save text
same --load text
same --load text --data text:new.txt --stride 7
[ "$(field tokens < one.json)" = $(($(wc -c < new.txt) - 1)) ] || fail "every token but the first: $(cat one.json)"
same --load text --data text:train.txt                       # the note that it was trained on is printed once, too
grep -q "the model was trained on .*train.txt" err.txt || fail "no note: $(cat err.txt)"
expect 0 "" "$LOCKSTEP" data tokenize new.txt --tokenizer text --out new.bin
same --load text --data tokens:new.bin
head -c 30 new.txt > short.txt
same --load text --data text:short.txt                       # 2 windows

for i in $(seq 50); do
    if [ $((i % 2)) = 0 ]; then text="good day" kind=yes; else text="bad rain" kind=no; fi
    echo "{\"text\": \"$text $i\", \"kind\": \"$kind\"}"
done > kinds.jsonl
train --model encoder --layers 1 --heads 2 --width 8 --context 16 --data jsonl:kinds.jsonl --label kind --tokenizer \
    byte --epochs 1 --batch 10 --save kinds
{ head -n 13 kinds.jsonl; echo '{"text": "grey fog", "kind": "perhaps"}'; } > other.jsonl
same --load kinds --data jsonl:other.jsonl --label kind --unknown-label skip
[ "$(field samples < one.json)" = 13 ] || fail "an unknown label: $(cat one.json)"

{
    echo "x,y,kind"
    awk 'BEGIN { srand(5)
        for (i = 0; i < 130; i++) {
            k = i % 3
            printf("%.3f,%.3f,%s\n", rand() + k, rand() - k, (k == 0 ? "ant" : k == 1 ? "bee" : "cow")) } }'
} > table.csv
train --model mlp --hidden 8 --data csv:table.csv --label kind --holdout 0.2 --steps 30 --batch 10 --save table
same --load table
same --load table --split train
for rows in 1 2 3; do
    head -n $((rows + 1)) table.csv > few.csv
    same --load table --data csv:few.csv --label kind
    [ "$(field samples < one.json)" = $rows ] || fail "$rows rows: $(cat one.json)"
done
{
    echo "x,y"
    awk 'BEGIN { srand(6); for (i = 0; i < 70; i++) { x = rand(); printf("%.3f,%.3f\n", x, 3 * x + rand()) } }'
} > numbers.csv
train --model mlp --hidden 8 --data csv:numbers.csv --label y --loss mse --steps 30 --batch 16 --save numbers
same --load numbers --data csv:numbers.csv --label y
if command -v python3 > /dev/null && "$LOCKSTEP" info | grep -q '^libpng *[0-9]'; then
    python3 - << 'END'
import os, random, struct, zlib
random.seed(1)
def png(path, light):
    pixel = lambda: min(255, max(0, int(light + random.gauss(0, 30))))
    rows = b"".join(b"\0" + bytes(pixel() for x in range(8)) for y in range(8))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for folder, count in (("pictures/train", 12), ("pictures/test", 3), ("new", 9)):
    for name, light in (("dark", 80), ("light", 150)):
        for i in range(count): png(f"{folder}/{name}/{i:02}.png", light)
END
    train --model cnn --data folder:pictures --epochs 1 --batch 8 --mean 0.4 --save pictures.run
    same --load pictures.run
    same --load pictures.run --data folder:new
    # A file that one rank cannot read: that rank names it, and the others end without a word.
    head -c 60 new/light/00.png > cut.png && mv cut.png new/light/00.png
    for ranks in 2 3; do
        expect 2 "^lockstep eval: rank 1: .*new/light/00.png is damaged" "$LOCKSTEP" eval -n $ranks --load \
            pictures.run --data folder:new --threads 1
        [ "$(wc -l < err.txt)" = 2 ] && [ ! -s out.txt ] ||
            fail "more than the record and the error: $(cat out.txt err.txt)"
    done
else
    echo "skip: folders of images, which python3 writes for libpng"
fi

# ---- launchers ----

expect 0 "" "$LOCKSTEP" eval --load text --threads 1
cp out.txt one.txt
expect 0 "" "$LOCKSTEP" eval --load text -n 1 --threads 1
cmp -s one.txt out.txt || fail "-n 1: $(cat out.txt), without: $(cat one.txt)"
# result COMMAND…: prints the result of one rank once.
result() {
    expect 0 "" "$@"
    [ "$(grep -c 'loss' out.txt)" = 1 ] && grep -qF -- "$(cat one.txt)" out.txt ||
        fail "$*: $(cat out.txt), one rank: $(cat one.txt)"
    [ "$(cat out.txt err.txt | grep -c 'from the record of')" = 1 ] || fail "$*: not one note: $(cat out.txt err.txt)"
}
result "$LOCKSTEP" run -n 3 -- "$LOCKSTEP" eval --load text
result "$LOCKSTEP" run -n 2 -- "$LOCKSTEP" eval --load text --mesh data=2
result "$LOCKSTEP" eval --load text --mesh data=3 --threads 1
# shellcheck disable=SC2016 # expanded by each rank
result "$LOCKSTEP" run -n 4 -- bash -c 'export LOCKSTEP_HOST_ID=host-$((RANK / 2)); exec "$@"' - "$LOCKSTEP" eval \
    --load text --backend mixed --threads 1
if command -v mpirun > /dev/null; then
    # shellcheck source=test/mpi.bash
    . "$SOURCE_DIR/test/mpi.bash"
    result mpirun -n 2 "$LOCKSTEP" eval --load text --threads 1
    if "$LOCKSTEP" info 2> /dev/null | grep -q 'MPI modules.*openmpi' && mpirun --version 2> /dev/null |
        grep -q 'Open MPI'; then
        result mpirun -n 2 "$LOCKSTEP" eval --load text --backend mpi --threads 1
    fi
else
    echo "skip: no mpirun"
fi
if command -v torchrun > /dev/null && torchrun --help > /dev/null 2>&1; then
    result torchrun --standalone --no-python --nproc-per-node 2 "$LOCKSTEP" eval --load text --threads 1
else
    echo "skip: no torchrun"
fi
# Only rank 0's directory has the checkpoint; all have the data.
expect 0 "" "$LOCKSTEP" eval --load table --data csv:few.csv --label kind
cp out.txt one.txt
for rank in 0 1; do mkdir -p apart/$rank && cp few.csv apart/$rank; done
cp -r table apart/0
# shellcheck disable=SC2016
result "$LOCKSTEP" run -n 2 -- bash -c 'cd "apart/$RANK" && exec "$@"' - "$LOCKSTEP" eval --load table --data \
    csv:few.csv --label kind
echo "load = $PWD/table
ranks = 2
backend = tcp
timeout = 30" > eval.conf
expect 0 "" "$LOCKSTEP" eval --config eval.conf
cp out.txt two.txt
expect 0 "" "$LOCKSTEP" eval --load table
cmp -s out.txt two.txt || fail "options of a file: $(cat two.txt), not $(cat out.txt)"

# ---- mistakes are printed once, before ranks are started or by rank 0 ----

once() { # once PATTERN OPTIONS…
    local pattern=$1
    shift
    expect 2 "^lockstep eval: .*$pattern" "$LOCKSTEP" eval -n 3 --threads 1 "$@"
    [ "$(grep -vc 'from the record of' err.txt)" = 1 ] && [ ! -s out.txt ] || fail "-n 3 $*: $(cat out.txt err.txt)"
    code=0
    "$LOCKSTEP" run -n 3 -- "$LOCKSTEP" eval --threads 1 "$@" > once.txt 2>&1 || code=$?
    [ "$code" = 2 ] && [ "$(grep '^\[rank' once.txt | grep -vc 'from the record of')" = 1 ] &&
        grep -qE "^\[rank 0\] lockstep eval: .*$pattern" once.txt && ! grep -q 'collectives' once.txt ||
        fail "run -n 3 $*: exit status $code: $(cat once.txt)"
}
once "--load is missing"
once "nowhere" --load nowhere
once "nowhere.csv: No such file" --load table --data csv:nowhere.csv --label kind
sed '3s/^[^,]*,/many,/' table.csv > broken.csv
once "broken.csv: line 3.*'many' is not a number" --load table --data csv:broken.csv --label kind
once "was trained on samples of image" --load images --data synthetic:5
once "--stride applies only to language models" --load kinds --stride 4
once "belongs to a different model" --load images/model.safetensors --model resnet20 --data synthetic:3x16x16
once "'perhaps'" --load kinds --data jsonl:other.jsonl --label kind
once "timeout.*never" --load table --timeout never
once "would need .* of memory" --load table/model.safetensors --model mlp --hidden 1000000 --data \
    synthetic:1000000,count=2 --batch 2
expect 2 "mesh data=2 has 2 ranks, but -n 3 is 3" "$LOCKSTEP" eval -n 3 --mesh data=2 --load table
expect 2 "2 ranks along expert" "$LOCKSTEP" eval --mesh data=1,expert=2 --load table
for size in OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 SLURM_STEP_NUM_TASKS=2; do expect 2 "remove -n" env $size "$LOCKSTEP" \
    eval -n 2 --load table; done
expect 2 "unknown option --ranks" "$LOCKSTEP" predict --ranks 2 --load table

# ---- a rank that is killed is named ----

has_rank() { victim=$(rank_pid "$1"); [ -n "$victim" ]; }
for backend in shm tcp; do
    "$LOCKSTEP" eval -n 2 --backend $backend --load text --data text:train.txt --stride 1 --batch 1 --threads 1 > \
        out.txt 2> err.txt &
    job=$!
    wait_until_job 20 has_rank 1
    kill -KILL "$victim"
    code=0
    wait "$job" || code=$?
    job=
    [ $code = 137 ] && [ ! -s out.txt ] && grep -q 'rank 1 failed first: signal 9' err.txt ||
        fail "$backend: exit status $code: $(cat out.txt err.txt)"
done
echo ok
