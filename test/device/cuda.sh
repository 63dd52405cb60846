#!/usr/bin/env bash
# cuda.sh - everything that needs a GPU, in one go or part by part: the tests of kernels, programs and trainers
# on the device cuda, losses beside the CPU's, ranks that share the GPU, killed ranks, code for sm_80 from PTX, and
# compute-sanitizer over our kernels. Skipped where there is no GPU. ctest: timeout 900, ranks 3, label gpu
#
#   cuda.sh [--logs DIR] [--at-once N] [--deadline SECONDS] [--kills N] [PART…]
#
# PART: kernels tests losses recipe trace ranks kill ptx sanitizer; all of them by default. Logs of all runs stay in DIR
# ($BUILD_DIR/cuda_logs). At most N tests share the GPU (8). What has not ended by the deadline (470 s) fails.
# That is too early for all parts where the CPU is slow: the part sanitizer, the last one, then needs a run of its own.
# LOCKSTEP_TEST_DATA: a text for the part recipe, instead of ../shared/data/tinyshakespeare/input.txt; without either it
# is this tree's documentation. The part ptx needs a module with PTX: cmake -DLK_CUDA_ARCHITECTURES='90a;compute_80'.
# With LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated the emulation is tested instead.
# shellcheck disable=SC2317 # functions are called by name
set -u
: "${LOCKSTEP:?the command}" "${BUILD_DIR:?the build}"
source=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
# shellcheck source=test/wait.bash
. "$source/test/wait.bash"
build=$(cd "$BUILD_DIR" && pwd)
LOCKSTEP=$(realpath "$LOCKSTEP")
logs=$build/cuda_logs at_once=8 deadline=470 kills=50
all="kernels tests losses recipe trace ranks kill ptx sanitizer"
while [ $# -gt 0 ]; do
    case $1 in
    --logs | --at-once | --deadline | --kills)
        [ $# -gt 1 ] || { echo "cuda.sh: $1 needs a value" >&2; exit 2; }
        case $1 in --logs) logs=$2 ;; --at-once) at_once=$2 ;; --deadline) deadline=$2 ;; *) kills=$2 ;; esac
        shift 2 ;;
    -*) echo "cuda.sh: there is no option $1; see the top of $0" >&2; exit 2 ;;
    *) break ;;
    esac
done
parts=" ${*:-$all} "
for part in $parts; do
    case " $all " in *" $part "*) ;; *) echo "cuda.sh: there is no part $part; there are $all" >&2; exit 2 ;; esac
done
has_part() { case $parts in *" $1 "*) true ;; *) false ;; esac; }

unset LOCKSTEP_CUDA_ANY_ORDER LOCKSTEP_CUDA_MEASURE LOCKSTEP_CUDA_OVERLAP LOCKSTEP_CUDA_PLAIN \
    LOCKSTEP_CUDA_LAUNCH_GROUPS LOCKSTEP_CUDA_TOGETHER LOCKSTEP_TF32 LOCKSTEP_JOB LK_TEST_RANKS
export LOCKSTEP_DEVICE=cuda LOCKSTEP_SHARE_DEVICE=1
work=$(mktemp -d)
export XDG_CACHE_HOME=$work/cache # algorithms that were chosen: none at first, then shared by all
declare -A running=() aside=() job_part=() part_from=() part_to=() passed=() failed=() skipped=()
problems=() notes=() queue=()

# ---- results ----

pass() { passed[$1]=$((${passed[$1]:-0} + 1)); } # pass PART
fail() {                                           # fail PART TEXT
    failed[$1]=$((${failed[$1]:-0} + 1))
    problems+=("$1: $2")
    echo "FAIL $1: $2"
}
skip() { # skip PART TEXT
    skipped[$1]=$((${skipped[$1]:-0} + 1))
    notes+=("skipped, $1: $2")
}
expect() { # expect PART TEXT COMMAND…: it succeeds
    local part=$1 text=$2
    shift 2
    if "$@"; then pass "$part"; else fail "$part" "$text"; fi
}
touched() { : "${part_from[$1]:=$SECONDS}"; part_to[$1]=$SECONDS; }

# ---- jobs ----
#
# A job is `PART NAME LIMIT COMMAND…`, in a process of its own. Its standard output and error go to $logs/NAME.log, its
# exit status to $work/NAME.status.

children_of() { grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status | cut -d/ -f3; }
end_jobs() {
    local pid child
    for pid in "${!running[@]}"; do
        for child in $(children_of "$pid"); do kill "$child"; done # `timeout`, which passes it on
        kill "$pid"
    done 2> /dev/null
    rm -rf "$work"
}
trap end_jobs EXIT
trap 'exit 130' INT TERM

start_job() {
    local part=$1 name=$2 limit=$3 left=$((deadline - SECONDS))
    shift 3
    touched "$part"
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -le 0 ]; then
        fail "$part" "$name: not started after $deadline s"
        return
    fi
    (
        begin=$EPOCHREALTIME
        timeout -k 5 "$limit" "$@" > "$logs/$name.log" 2>&1 < /dev/null
        status=$?
        echo "$status $limit $begin $EPOCHREALTIME" > "$work/$name.new"
        mv "$work/$name.new" "$work/$name.status"
    ) 2> /dev/null & # the shell's own messages about what was killed
    running[$!]=$name
    job_part[$name]=$part
}

# Counts how a job ended.
finish_job() {
    local name=$1 part=${job_part[$1]} log=$logs/$1.log status limit begin end seconds line
    touched "$part"
    read -r status limit begin end < "$work/$name.status"
    seconds=$(awk "BEGIN { printf \"%.1f\", $end - $begin }")
    echo "$part $name $seconds s, status $status" >> "$logs/jobs"
    case $status in
    0)
        pass "$part"
        while read -r line; do notes+=("$name: $line"); done < <(grep '^skipped' "$log") ;;
    77) skip "$part" "$name: $(grep -m1 skipped "$log" || tail -1 "$log")" ;;
    124 | 137) fail "$part" "$name: more than $limit s" ;;
    *)
        line=$(grep -m2 -iE 'fail|error:|wrong|invalid|uninitialized|hazard|barrier' "$log" || tail -2 "$log")
        fail "$part" "$name: status $status: $(head -c 500 <<< "$line" | tr '\n' ' ')" ;;
    esac
}

# wait_jobs N: until fewer than N run, those aside not counted; 0: until all have ended, those aside too.
wait_jobs() {
    local pid name
    while [ ${#running[@]} -gt 0 ]; do
        for pid in "${!running[@]}"; do
            name=${running[$pid]}
            if [ ! -e "$work/$name.status" ]; then
                kill -0 "$pid" 2> /dev/null && continue
                [ -e "$work/$name.status" ] || echo "255 0 0 0" > "$work/$name.status" # its shell was killed
            fi
            wait "$pid"
            finish_job "$name"
            unset "running[$pid]" "aside[$name]"
        done
        [ "$1" = 0 ] || [ $((${#running[@]} - ${#aside[@]})) -ge "$1" ] || return 0
        sleep 0.05
    done
}
start_aside() { # start_aside PART NAME LIMIT COMMAND…: on the CPU, beside all others
    start_job "$@"
    [ -z "${job_part[$2]:-}" ] || aside[$2]=1
}

# Jobs of a stage: queued by `job`, then run so many at a time. The longest should come first.
job() { queue+=("$(printf '%q ' "$@")"); }
run_queue() {
    local line
    for line in ${queue[@]+"${queue[@]}"}; do
        wait_jobs "$1"
        eval "start_job $line"
    done
    queue=()
    wait_jobs 0
}
job_succeeded() { [ "$(cut -d' ' -f1 "$work/$1.status" 2> /dev/null)" = 0 ]; }

# ---- kernels and C tests ----

kernel_tests() {
    for test in "$build"/test_kernels* "$build"/test_sync_norm; do
        [ -x "$test" ] && [ ! -d "$test" ] && basename "$test"
    done | grep -v covered
}

# Hundreds of shapes: the library's first choice for each of them. What measuring chooses runs in a second pass over
# fewer, which starts before all others; that of test_kernels_conv is minutes of plans that cuDNN builds, and the tests
# of models measure those they need.
queue_measured() {
    local name
    for name in test_kernels_attention test_kernels_nn test_kernels_loss; do
        job kernels "$name.measured" 170 env LK_TEST_SLOW=1 "$build/$name"
    done
}
queue_kernels() {
    local name
    mkdir -p "$work/ran"
    for name in $(kernel_tests); do
        job kernels "$name" 150 env LOCKSTEP_CUDA_MEASURE=0 LK_KERNELS_RAN="$work/ran" "$build/$name"
    done
}
end_kernels() {
    if LK_KERNELS_RAN=$work/ran "$build/test_kernels_covered" > "$logs/test_kernels_covered.log" 2>&1; then
        pass kernels
    else
        fail kernels "test_kernels_covered: $(head -c 300 "$logs/test_kernels_covered.log")"
    fi
}

# "NAME COMMAND…" of the tests of programs and trainers: those that the build registered for the device `guarded`, too
registered() {
    sed -nE 's/^add_test\([]="[]*(test_[a-z0-9_]+)_guarded[]="[]* (.*)\)$/\1 \2/p' "$build/CTestTestfile.cmake"
}
# Those that take long are divided over so many processes; they start first.
shares="test_slices 4 test_program 3 test_shard_leaves 3 test_shard 3 test_reproducible 5"
shares+=" test_trainer_ranks 4 test_gradients 3 test_shard_hosts 2 test_pipeline 2 test_transformers 3"
shares+=" test_data_parallel 3 test_data_parallel_resnet 3 test_fields 3"
measured_tests=" test_golden_ops test_parity test_transformers_golden test_program test_generate test_trainer "
queue_test() { # queue_test NAME SHARES
    local command settings=() share
    command=$(sed -n "s/^$1 //p" "$work/registered" | tr -d '"')
    [ -n "$command" ] || return
    case $measured_tests in *" $1 "*) ;; *) settings+=(LOCKSTEP_CUDA_MEASURE=0) ;; esac
    [ "$1" != test_gradients ] || settings+=(LK_TEST_SLOW=1) # fewer single elements in 5000 programs
    for share in $(seq 0 $(($2 - 1))); do
        # shellcheck disable=SC2086
        job tests "$1$([ "$2" = 1 ] || echo ".$share")" 170 env LK_TEST_SHARE="$share/$2" "${settings[@]}" $command
    done
}
queue_tests() {
    local name
    registered > "$work/registered"
    [ -s "$work/registered" ] || fail tests "no test is registered in $build/CTestTestfile.cmake"
    # shellcheck disable=SC2086
    set -- $shares
    while [ $# -gt 0 ]; do
        queue_test "$1" "$2"
        shift 2
    done
    while read -r name _; do
        case " $shares " in *" $name "*) continue ;; esac
        if [ "$name" = test_operation ]; then
            skip tests "test_operation: users' own operations run on the host alone"
        else
            queue_test "$name" 1
        fi
    done < "$work/registered"
    job tests test_device 60 "$build/test_device"
}

# ---- losses ----

images="--data synthetic:3x32x32,count=400 --batch 16"
tokens="--data synthetic --batch 4 --layers 2 --heads 4 --width 64"
# NAME TOLERANCE FIRST STEPS OPTIONS…: relative differences of all losses and of the first one
compared_losses() {
    echo "resnet_f64 1e-9 1e-9 50 --model resnet20 --dtype f64 $images"
    echo "llama_f64 1e-9 1e-9 50 --model llama --kv-heads 2 --dtype f64 $tokens"
    echo "gpt_f64 1e-9 1e-9 50 --model gpt --dtype f64 $tokens"
    echo "cnn_f64 1e-9 1e-9 50 --model cnn --dtype f64 $images"
    echo "gpt_f32 1e-4 1e-5 20 --model gpt $tokens"
    # with the 400 images of the others the CPU's own losses in f32 and f64 are 5e-4 apart after 18 steps
    echo "cnn_f32 1e-4 1e-5 20 --model cnn --data synthetic:3x32x32,count=2000 --batch 64"
    echo "resnet_f32 1 1e-5 1 --model resnet20 $images" # later losses amplify rounding
    echo "llama_f32 1 1e-5 1 --model llama --kv-heads 2 $tokens"
}
train=("$LOCKSTEP" train --optimizer adamw --lr 1e-3 --eval-every -1)
start_references() { # the CPU's, beside all other jobs
    local name options
    while read -r name _ _ steps options; do
        # shellcheck disable=SC2086
        start_aside losses "loss_$name.cpu" 200 "${train[@]}" $options --steps "$steps" --device cpu --threads 2 --log \
            "$work/$name.cpu"
    done < <(compared_losses)
}
queue_losses() {
    local name options
    while read -r name _ _ steps options; do
        # shellcheck disable=SC2086
        job losses "loss_$name.cuda" 100 "${train[@]}" $options --steps "$steps" --log "$work/$name.cuda"
    done < <(compared_losses)
}
losses() { sed -n 's/.*"event": "step", "step": \([0-9]*\),.*"loss": \([^,}]*\).*/\1 \2/p' "$1" 2> /dev/null; }
end_losses() {
    local name tolerance first steps
    while read -r name tolerance first steps _; do
        if paste -d' ' <(losses "$work/$name.cpu") <(losses "$work/$name.cuda") |
            awk -v name="$name" -v tolerance="$tolerance" -v first="$first" -v steps="$steps" '
                { error = ($2 - $4) / $2
                  if (error < 0) error = -error
                  if (NR == 1) begin = error
                  if (!(error <= worst)) worst = error }
                END { printf "%-10s %2d steps: the first loss differs by %.1e, none by more than %.1e\n",
                             name, NR, begin, worst
                      exit NR == steps && worst <= tolerance && begin <= first ? 0 : 1 }' > "$work/compared"; then
            pass losses
        else
            fail losses "$(cat "$work/compared"): more than $tolerance, or $first at first"
        fi
        notes+=("losses: $(cat "$work/compared")")
    done < <(compared_losses)
}

# nanoGPT's recipe for CPUs, as `./x demo text`: f32 on the CPU, bf16 and f32 on the GPU.
text=${LOCKSTEP_TEST_DATA:-$source/../shared/data/tinyshakespeare/input.txt}
recipe=("$LOCKSTEP" train --model gpt --layers 4 --heads 4 --width 128 --context 64 --tokenizer char --batch 12
    --optimizer adamw --lr 1e-3 --schedule cosine --lr-min 1e-4 --warmup 100 --betas "0.9,0.99" --weight-decay 0.1
    --clip 1 --steps 2000)
if [ -f "$text" ]; then
    recipe+=(--data "text:$text")
else
    recipe+=(--data "text:$source/docs" --packing windows)
    text=$source/docs
fi
start_recipe() {
    start_aside recipe recipe.cpu 300 "${recipe[@]}" --device cpu \
        --threads "$(($(nproc) > 8 ? 8 : $(nproc)))" --log "$work/recipe.cpu"
}
queue_recipe() {
    job recipe recipe.bf16 120 "${recipe[@]}" --dtype bf16 --log "$work/recipe.bf16"
    job recipe recipe.f32 120 "${recipe[@]}" --log "$work/recipe.f32"
}
end_recipe() {
    local type cpu loss
    evaluated() { sed -n 's/.*"event": "evaluated".*"loss": \([^,}]*\).*/\1/p' "$1" 2> /dev/null | tail -1; }
    cpu=$(evaluated "$work/recipe.cpu")
    for type in bf16 f32; do
        loss=$(evaluated "$work/recipe.$type")
        notes+=("recipe: $(basename "$text"): validation loss $loss in $type on the GPU, $cpu on the CPU")
        expect recipe "validation loss $loss in $type on the GPU, $cpu on the CPU: more than 0.02 apart" \
            awk "BEGIN { apart = (${loss:-9}) - (${cpu:-0}); exit apart * apart <= 0.0004 ? 0 : 1 }"
    done
}

# ---- ranks ----

# NAME RANKS OPTIONS…
rank_runs() {
    local model name options
    for model in cnn gpt; do
        options="--model gpt --data synthetic --layers 2 --heads 2 --width 32"
        [ $model = gpt ] || options="--model cnn --data synthetic:3x32x32,count=200"
        echo "$model.1 --reproducible $options"
        for name in 2.shm 3.shm 2.tcp 3.tcp; do
            echo "$model.$name --reproducible --share-device -n ${name%.*} --backend ${name#*.} $options"
        done
        echo "$model.2.plain --share-device -n 2 $options"
        echo "$model.3.plain --share-device -n 3 --backend tcp $options"
    done
}
queue_ranks() {
    local name options
    while read -r name options; do
        # shellcheck disable=SC2086
        job ranks "ranks_$name" 100 "$LOCKSTEP" train $options --batch 24 --steps 8 --threads 1 --eval-every -1 --json \
            --save "$work/$name"
    done < <(rank_runs)
}
# The hash of the weights that a run prints, and the digest of the file that it saved.
result_of() {
    echo "$(sed -n 's/.*"hash": *"\([0-9a-f]*\)".*/\1/p' "$logs/ranks_$1.log")" \
        "$(sha256sum < "$work/$1/model.safetensors" 2> /dev/null)"
}
end_ranks() {
    local model name
    for model in cnn gpt; do
        for name in 2.shm 3.shm 2.tcp 3.tcp; do
            job_succeeded "ranks_$model.$name" || continue # has failed already
            expect ranks "$model.$name: $(result_of "$model.$name") instead of one rank's $(result_of "$model.1")" \
                [ "$(result_of "$model.$name")" = "$(result_of "$model.1")" ]
        done
    done
    env -u LOCKSTEP_SHARE_DEVICE "$LOCKSTEP" train --model mlp --batch 130 --steps 1 -n 65 > "$logs/ranks_65.log" 2>&1
    expect ranks \
        "65 ranks share GPUs that they were not allowed to, or the reason is missing: $(tail -1 "$logs/ranks_65.log")" \
        grep -q -- '--share-device' "$logs/ranks_65.log"
}

# ---- kills ----
#
# A rank is killed at a random moment: while ranks start, while they measure, in a step. The launcher names it, ends the
# others and leaves nothing.

# Processes with this variable in their environment, of any ancestry
processes_of() { grep -lsz "^LK_CUDA_KILL=$1\$" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3; }
find_victim() { # any rank of kill_one's job
    for pid in $(children_of $launcher | shuf --random-source=<(yes "$number")); do
        rank=$(tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | sed -n 's/^RANK=//p')
        [ -z "$rank" ] || { victim=$pid; return 0; }
    done
    return 1
}
has_none_left() { left=$(processes_of "$number"); [ -z "$left" ]; }
kill_one() { # kill_one NUMBER: exit status 0, or a line that says what is wrong
    local number=$1 ranks=$((2 + $1 % 2)) out=$logs/kill_$1.out victim="" rank pid launcher status left
    RANDOM=$((number * 7919 + 1))
    options="--model cnn --data synthetic:3x32x32,count=200"
    [ $((number % 3)) != 0 ] || options="--model gpt --data synthetic --layers 2 --heads 2 --width 32"
    # shellcheck disable=SC2086
    LK_CUDA_KILL=$number "$LOCKSTEP" train $options --batch 24 --steps 1000000 --threads 1 --eval-every -1 \
        --share-device -n $ranks > "$out" 2>&1 &
    launcher=$!
    pause_randomly 0 3000
    wait_until 10 find_victim ||
        { echo "no rank to kill: $(tail -1 "$out")"; kill $launcher; wait $launcher; return 1; }
    kill -KILL "$victim"
    if ! wait_for_end 30 $launcher; then kill -KILL $launcher; echo \
        "30 s after the kill of rank $rank the launcher had not ended"; return 1; fi
    wait $launcher
    status=$?
    [ $status = 137 ] || { echo "exit status $status after the kill of rank $rank: $(tail -3 "$out")"; return 1; }
    grep -q "rank $rank failed first: signal 9" "$out" ||
        { echo "rank $rank is not named: $(grep -m3 rank "$out")"; return 1; }
    wait_until 5 has_none_left && return
    echo "processes stay after the kill of rank $rank: $left"
    return 1
}
gpu_state() { # MiB in use; empty without nvidia-smi
    [ -z "${LOCKSTEP_MODULES:-}" ] || return 0
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2> /dev/null
}
is_as_before() { after=$(gpu_state); [ "$after" = "$before" ]; }
run_kills() {
    local number before after shm_before shm_after
    before=$(gpu_state)
    shm_before=$(ls /dev/shm)
    export -f kill_one find_victim has_none_left processes_of children_of wait_until wait_for_end pause_randomly \
        has_ended is_running
    export logs wait_interval
    for number in $(seq "$kills"); do job kill "kill_$number" 60 bash -c "kill_one $number"; done
    run_queue 3 # with 6 at once, 15 processes on an H200, the ranks that were left took more than 10 s to end
    shm_after=$(comm -13 <(echo "$shm_before") <(ls /dev/shm))
    expect kill "shared memory stays: $shm_after" [ -z "$shm_after" ]
    if [ -z "$before" ]; then
        skip kill "memory of the GPU: nvidia-smi does not tell"
    else
        wait_until 5 is_as_before
        expect kill "memory of the GPU: $after MiB are in use, and $before before" [ "${after%%[!0-9]*}" -le \
            $((${before%%[!0-9]*} + 8)) ]
    fi
}

# ---- PTX ----

# GPUs of other kinds run what the driver makes of the PTX. The libraries have none for all of their kernels, and are
# left out. Tests of kernels compile different files, at the same time; programs come last, and find them in the
# driver's cache.
jit=(env CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_PATH="$work/jit" CUDA_CACHE_MAXSIZE=4294967296
    LOCKSTEP_CUDA_PLAIN=1 LK_TEST_SLOW=1)
has_ptx() { [ -n "${LOCKSTEP_MODULES:-}" ] || grep -q 'compute_80' "$logs/info"; }
queue_ptx() {
    local name
    has_ptx || { skip ptx "the module has no PTX: build it with -DLK_CUDA_ARCHITECTURES='90a;compute_80'"; return; }
    for name in test_kernels_gemm test_kernels_conv test_kernels_attention \
        $(kernel_tests | grep -v -e gemm -e conv -e attention); do
        job ptx "$name.ptx" 200 "${jit[@]}" "$build/$name"
    done
}
queue_ptx_programs() {
    local name
    has_ptx || return
    for name in test_golden_ops test_transformers_golden; do job ptx "$name.ptx" 200 "${jit[@]}" "$build/$name"; done
    # shellcheck disable=SC2086
    job ptx train_cnn.ptx 200 "${jit[@]}" "${train[@]}" --model cnn $images --dtype bf16 --steps 3
}

# ---- compute-sanitizer ----

find_sanitizer() {
    local folder
    for folder in "$(dirname "$(command -v compute-sanitizer || echo /none/x)")" "${CUDA_HOME:-/none}/bin" \
        /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do
        [ -x "$folder/compute-sanitizer" ] && echo "$folder/compute-sanitizer" && return
    done
}
# Our kernels alone (the libraries are left out), in small calls. memcheck and initcheck need an allocation for each
# operand: they find accesses outside of it, and reads of what nothing has written.
queue_sanitizer() {
    local tool name sanitizer port=49152 options command settings
    sanitizer=$(find_sanitizer)
    [ -n "$sanitizer" ] || { skip sanitizer "compute-sanitizer is not installed"; return; }
    for tool in racecheck memcheck initcheck synccheck; do
        for name in test_kernels_gemm test_kernels_conv test_kernels_norm test_kernels_batch_norm \
            $(kernel_tests | grep -v -e gemm -e conv -e norm) test_device train_gpt train_cnn; do
            port=$((port + 16)) # each has some for itself
            options=(--tool "$tool" --error-exitcode 99 --print-limit 10 --port "$port" --launch-timeout 60
                --target-processes application-only)
            command=("$build/$name")
            settings=(LOCKSTEP_CUDA_PLAIN=1 LK_TEST_SLOW=1 LK_TEST_ELEMENTS=60000 LK_TEST_EVERY=5)
            [ $tool != memcheck ] || options+=(--report-api-errors no) # test_device asks for more memory than there is
            case $tool in
            memcheck | initcheck) settings+=(LK_TEST_MEMORY=apart) ;;
            racecheck) settings+=(LK_TEST_ELEMENTS=30000 LK_TEST_EVERY=19) ;; # it is the slowest
            esac
            case $name in
            train_gpt) command=("${train[@]}" --model gpt --dtype bf16 --data synthetic --batch 2 --context 32 \
                --layers 1 --heads 2 --width 32 --steps 4) ;;
            train_cnn) command=("${train[@]}" --model cnn --data "synthetic:3x32x32,count=40" --batch 4 --clip 1 \
                --steps 4) ;;
            esac
            job sanitizer "$name.$tool" 200 env "${settings[@]}" "$sanitizer" "${options[@]}" "${command[@]}"
        done
    done
}
end_sanitizer() {
    local tool
    for tool in memcheck racecheck initcheck synccheck; do
        notes+=("sanitizer: $tool: $(cat "$logs"/*."$tool".log 2> /dev/null |
            sed -n -e 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' \
                -e 's/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' |
            awk '{ sum += $1 } END { printf "%d errors in %d runs", sum, NR }')")
    done
}

# ---- traces and profiles, by CUPTI and by events ----

queue_trace() {
    local on=gpu
    case ${LOCKSTEP_MODULES:-} in *cuda_emulated*) on=emulation ;; esac
    job trace trace 150 bash "$source/test/cli/cli_cuda_trace.sh" $on
}

# ---- all of it ----

mkdir -p "$work/cache"
if ! "$LOCKSTEP" train --model mlp --batch 8 --steps 1 --eval-every -1 > "$work/first" 2>&1; then
    echo "skipped: $(grep -m1 -E 'cuda|GPU' "$work/first" || tail -1 "$work/first")"
    exit 77
fi
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
rm -f "$logs"/*.log "$logs"/kill_*.out "$logs/jobs" # of an earlier run
"$LOCKSTEP" info > "$logs/info" 2>&1
grep -iE 'gpu|cuda' "$logs/info"

# What the CPU computes beside it takes no part of the GPU.
! has_part losses || start_references
! has_part recipe || start_recipe
! has_part kernels || queue_measured
for part in tests kernels losses recipe trace ranks; do ! has_part $part || "queue_$part"; done
run_queue "$at_once"
for part in kernels losses recipe ranks; do
    has_part $part || continue
    "end_$part"
    touched $part
done
! has_part kill || run_kills
for part in ptx sanitizer; do ! has_part $part || "queue_$part"; done
! has_part ptx || queue_ptx_programs
run_queue $((at_once * 2))
! has_part sanitizer || end_sanitizer

echo
printf '%s\n' ${notes[@]+"${notes[@]}"} | sort -u
printf '\n%-10s %8s %7s %7s %7s\n' part seconds passed failed skipped
wrong=0
for part in $all; do
    has_part "$part" || continue
    seconds=$((${part_to[$part]:-0} - ${part_from[$part]:-0}))
    printf '%-10s %8d %7d %7d %7d\n' "$part" $seconds "${passed[$part]:-0}" "${failed[$part]:-0}" "${skipped[$part]:-0}"
    wrong=$((wrong + ${failed[$part]:-0}))
done
printf '%-10s %8d\n' all $SECONDS
[ $wrong = 0 ] || { echo; printf 'FAIL %s\n' "${problems[@]}"; echo "logs are in $logs"; exit 1; }
echo ok
