#!/usr/bin/env bash
# storm_ddp.sh - faults in jobs of two to four ranks: a random rank is killed, is stopped or reads a NaN, at a random
# step. Each time the job ends by itself with the right error, no process survives, the last checkpoint loads, and
# --resume auto with another number of ranks ends with the bits of an uninterrupted run.
#
#   ROUNDS=n storm_ddp.sh      50 rounds by default
# ctest: timeout 1800
set -eu
rounds=${ROUNDS:-50}
deadline=40 # seconds for a job to end after the fault; --timeout is 3
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
mark_jobs
what=uninterrupted
fail() { echo "round ${round:-0} ($what): $*"; exit 1; }

sanitize=${LK_SANITIZE:+-fsanitize=$LK_SANITIZE}
# shellcheck disable=SC2086
"$CC" -std=gnu11 -Wall -Wextra -Werror $sanitize -I"$SOURCE_DIR/include" "$SOURCE_DIR/test/cli/ddp_poison.c" \
    -L"$BUILD_DIR" -llockstep -lm \
    -Wl,-rpath,"$BUILD_DIR" -o poison
steps=40
data="--model cnn --data synthetic:3x16x16,count=200 --threads 1"
options="$data --batch 24 --steps $steps --save-every 1 --seed 3 --eval-every -1 --reproducible --timeout 3 --json"

# train RANKS SAMPLE: `lockstep train`, or with a sample ddp_poison.
train() {
    # shellcheck disable=SC2086
    if [ "$2" = none ]; then exec env "$mark" "$LOCKSTEP" train -n "$1" $options --save run --resume auto
    else exec env "$mark" "$LOCKSTEP" run -n "$1" ./poison run $steps "$2"; fi
}
saved() { if [ -e run/state.json ]; then field step < run/state.json; else echo 0; fi; }
has_saved() { [ "$(saved)" -ge "$1" ]; }
signal_rank() { # sends SIG$2 to rank $1 once step $3 is saved
    local pid
    wait_until_job 60 has_saved "$3" || true
    pid=$(rank_pid "$1")
    [ -n "$pid" ] || fail "rank $1 ended too early, at step $(saved): $(cat err.txt)"
    kill "-$2" "$pid"
}

(train 1 none) > out.json 2> err.txt || fail "$(cat err.txt)"
train_hash=$(field hash < out.json)
rm -rf run
(train 1 -1) > out.json 2> err.txt || fail "$(cat err.txt)"
poison_hash=$(field hash < out.json)
[ -n "$train_hash" ] && [ -n "$poison_hash" ] || fail "no hash to compare with"

kills=0 stops=0 nans=0
for round in $(seq "$rounds"); do
    ranks=$((RANDOM % 3 + 2))
    victim=$((RANDOM % ranks)) goal=$((RANDOM % 25 + 1)) sample=none whole=$train_hash
    rm -rf run
    case $((round % 3)) in
    0) what="SIGSTOP to rank $victim of $ranks at step $goal" signal=STOP stops=$((stops + 1)) ;;
    1) what="SIGKILL to rank $victim of $ranks at step $goal" signal=KILL kills=$((kills + 1)) ;;
    2)
        sample=$((RANDOM % 400)) whole=$poison_hash nans=$((nans + 1))
        what="NaN in sample $sample, $ranks ranks" signal=
        ;;
    esac
    (train $ranks "$sample") > out.json 2> err.txt < /dev/null &
    job=$!
    if [ -n "$signal" ]; then signal_rank $victim $signal $goal; fi
    await_end $deadline
    [ $code != 0 ] || fail "exit status 0 despite the fault: $(cat err.txt)"
    # The error names the rank and the cause; one rank prints the table.
    if [ -n "$signal" ] && [ "$(grep -c "^  rank $victim  .*<- missing" err.txt)" -gt 1 ]; then
        fail "more than one table: $(cat err.txt)"
    fi
    case $signal in
    KILL)
        grep -Eq "rank $victim( |.*)(SIGKILL|signal 9|Killed|killed)" err.txt ||
            fail "no message that rank $victim was killed: $(cat err.txt)"
        ;;
    STOP)
        grep -Eq "rank $victim .*(missing|stopped|did not)" err.txt ||
            fail "no message that rank $victim was missing: $(cat err.txt)"
        ;;
    *)
        victim=$(sed -n 's/.*rank \([0-9]\) read the bad sample.*/\1/p' err.txt | head -1)
        [ -n "$victim" ] || fail "no rank read it: $(cat err.txt)"
        grep -q "LK_ENAN: rank $victim's loss became .*nan at step .*[ ,]${sample}[,.]" err.txt ||
            fail "the error is not that of rank $victim: $(cat err.txt)"
        if grep "LK_ENAN: rank" err.txt | grep -qv "rank $victim's"; then fail "two errors: $(cat err.txt)"; fi
        ;;
    esac
    # The checkpoint loads, and the job resumes with another number of ranks.
    if [ -e run/model.safetensors ] && [ "$sample" = none ]; then
        # shellcheck disable=SC2086
        "$LOCKSTEP" eval --load run $data > /dev/null 2> eval.txt ||
            fail "the checkpoint of step $(saved) does not load: $(cat eval.txt)"
    fi
    other=$((ranks % 4 + 1)) from=$(saved)
    [ "$sample" = none ] || sample=-1
    (train $other $sample) > out.json 2> err.txt < /dev/null || fail "resumed with $other ranks: $(cat err.txt)"
    if [ "$sample" = none ]; then grep -q "resumed run at step $from of" err.txt ||
        fail "it did not resume from step $from: $(cat err.txt)"; fi
    [ "$(field hash < out.json)" = "$whole" ] ||
        fail "resumed with $other ranks it ends with $(field hash < out.json), not $whole"
    left=$(find run -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')
    [ -z "$left" ] || fail "leftover files: $left"
    expect_no_members 0
    echo "round $round: $what; resumed with $other"
done
echo "$kills kills, $stops stops, $nans NaNs"
