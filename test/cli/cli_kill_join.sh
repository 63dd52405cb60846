#!/usr/bin/env bash
# cli_kill_join.sh - a rank that is killed before it has joined: the launcher names it, and ranks of `train` that wait
# for it end at once instead of after the grace period. ctest: timeout 120, ranks 3
set -eu
: "${LOCKSTEP:?the command}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
have_started() { # the ranks other than the victim run the command
    local rank
    for rank in 0 1 2; do
        [ -s "$work/$rank" ] || return 1
        [ $rank = $victim ] || [ "$(cat "/proc/$(cat "$work/$rank")/comm" 2> /dev/null)" = lockstep ] || return 1
    done
}

for victim in 0 1 2; do
    export LOCKSTEP work victim
    rm -f "$work"/[0-9]
    # shellcheck disable=SC2016
    "$LOCKSTEP" run -n 3 bash -c '
        echo $$ > "$work/$RANK"
        [ "$RANK" != "$victim" ] || exec sleep 60
        exec "$LOCKSTEP" train --model mlp --batch 24 --steps 1000000 --threads 1 --eval-every -1' > "$work/out" 2>&1 &
    launcher=$!
    wait_until 60 have_started
    pause_randomly 0 500 # the others join, or wait for it
    kill -KILL "$(cat "$work/$victim")"
    status=0
    wait "$launcher" || status=$?
    [ "$status" = 137 ] || { echo "rank $victim was killed: exit status $status: $(cat "$work/out")"; exit 1; }
    ! grep -qE 'grace period|still running' "$work/out" ||
        { echo "rank $victim was killed: the others did not end by themselves: $(cat "$work/out")"; exit 1; }
    grep -q "rank $victim failed first: signal 9" "$work/out" ||
        { echo "rank $victim is not named: $(cat "$work/out")"; exit 1; }
done
echo ok
