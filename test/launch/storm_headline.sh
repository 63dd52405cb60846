#!/usr/bin/env bash
# storm_headline.sh - which rank the launcher names as the cause. In turn: rank 0 is killed during a save over tcp; rank
# 0 cannot save; a random rank is stopped. Each time the first line of the report names that rank and the cause, with
# the right exit status.
#
#   ROUNDS=n SECONDS_MOST=s storm_headline.sh      100 rounds of each by default, at most 1500 s
# ctest: timeout 1800
set -eu
rounds=${ROUNDS:-100} most=${SECONDS_MOST:-1500}
work=$(mktemp -d)
job=
finish() {
    if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null || true; fi
    chmod -R u+w "$work"
    rm -rf "$work"
}
trap finish EXIT
cd "$work"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
wrong=0
train() { # train RANKS OPTIONS…: in the background, $job its pid
    local ranks=$1
    shift
    rm -rf run
    "$LOCKSTEP" train -n "$ranks" --model mlp --data synthetic:256,count=400 --batch 24 --steps 1000000 --eval-every \
        -1 --threads 1 --save run \
        --save-every 1 --keep 2 "$@" > out.txt 2> err.txt < /dev/null &
    job=$!
}
rank_pid() {
    local pid
    for pid in $(pgrep -P "$job"); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=$1"; then echo "$pid"; return; fi
    done
}
# check_end WHAT STATUS PATTERN: the job's exit status and report
check_end() {
    local got=0
    wait "$job" || got=$?
    job=
    if [[ $got =~ ^$2$ ]] && [ "$(grep '^lockstep run: [^ ]' err.txt | grep -cE "$3")" = 1 ] &&
        ! grep '^lockstep run: rank' err.txt | grep -qvE "$3"; then return 0; fi
    echo "$1: exit status $got, not $2, or not '$3': $(cat err.txt)"
    wrong=$((wrong + 1))
    return 1
}
kill_during_save() {
    train $((RANDOM % 2 + 2)) --backend tcp
    wait_until_job 60 test -e run/state.json
    pause_randomly 10 100
    kill -KILL "$(rank_pid 0)"
    check_end "SIGKILL to rank 0" 137 "rank 0 failed first: signal 9 "
}
save_error() {
    train $((RANDOM % 3 + 2)) ${1:+--backend $1}
    wait_until_job 60 test -e run/state.json
    pause_randomly 10 100
    # root can write anywhere: so a file replaces the directory.
    until mv run "gone.$RANDOM" && : > run; do :; done 2> /dev/null
    check_end "no directory to save to" "[12]" "rank 0 failed first: exit code [12],"
}
stop_rank() {
    local ranks=$((RANDOM % 3 + 2)) victim
    victim=$((RANDOM % ranks))
    train $ranks --timeout 1 ${1:+--backend $1}
    wait_until_job 60 test -e run/state.json
    pause_randomly 10 100
    kill -STOP "$(rank_pid $victim)"
    check_end "SIGSTOP to rank $victim of $ranks" 1 "rank $victim stopped answering \(state: stopped by a signal\)"
}
right_a=0 right_b=0 right_c=0 done_rounds=0
while [ $done_rounds -lt "$rounds" ] && [ $SECONDS -lt "$most" ]; do
    backend=
    if [ $((done_rounds % 2)) = 1 ]; then backend=tcp; fi
    if kill_during_save; then right_a=$((right_a + 1)); fi
    if save_error $backend; then right_b=$((right_b + 1)); fi
    if stop_rank $backend; then right_c=$((right_c + 1)); fi
    rm -rf gone.*
    done_rounds=$((done_rounds + 1))
done
echo "of $done_rounds rounds each: $right_a correct with rank 0 killed during a save, $right_b with a failed save," \
    "$right_c with a stopped rank"
exit $((wrong > 0))
