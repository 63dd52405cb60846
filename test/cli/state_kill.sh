#!/usr/bin/env bash
# state_kill.sh - ranks that share their state, one of which is repeatedly killed with SIGKILL while they train, some of
# the times amid an update, which leaves the state partly new: the others fail, the last checkpoint is intact, and the
# run that resumes it ends with the bits of an uninterrupted one.
#
#   state_kill.sh [ROUNDS] [RANKS] [EACH]
#
# With EACH so many ranks on each of several hosts, which LOCKSTEP_HOST_ID simulates.
# ctest: timeout 300, ranks 2
set -eu
rounds=${1:-8} ranks=${2:-2}
export EACH=${3:-$ranks}
work=$(mktemp -d)
job=
trap 'if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
# Few samples and many parameters: half of a step is the update.
[ "$EACH" = "$ranks" ] && every=250 || every=60
options="--model mlp --data synthetic:256,count=512 --features 256 --hidden 2048 --batch $ranks"
options="$options --steps $((rounds * every * 3)) --save-every $every"
options="$options --state shared --threads 1 --seed 7 --eval-every -1 --json"

has_saved_or_ended() { # a step beyond that
    local step
    step=$(field step "$work/killed/state.json" 2> /dev/null || true)
    [ "${step:-0}" -gt "$1" ] || ! is_running "$job"
}
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([0-9a-f.]*\).*/\1/p" "$2"; }

# The processes of the ranks, which have that in their environment; the launcher has other children too.
members_of() { # members_of LAUNCHER
    local child
    for child in $(pgrep -P "$1"); do
        if grep -qz '^RANK=' "/proc/$child/environ" 2> /dev/null; then echo "$child"; fi
    done
}

neighbours_of() { # neighbours_of RANK LAUNCHER: the processes of all ranks of its host
    local member rank
    for member in $(members_of "$2"); do
        rank=$(sed -zn 's/^RANK=//p' "/proc/$member/environ" 2> /dev/null | tr -d '\0')
        if [ $((${rank:-99} / EACH)) = $(($1 / EACH)) ]; then echo "$member"; fi
    done | tr '\n' ' '
}

# shellcheck disable=SC2016,SC2086
train() { # train OPTIONS...
    if [ "$EACH" = "$ranks" ]; then exec "$LOCKSTEP" train -n "$ranks" $options "$@"; fi
    exec "$LOCKSTEP" run -n "$ranks" -- bash -c 'export LOCKSTEP_HOST_ID=host-$((RANK / EACH)); exec "$@"' - \
        "$LOCKSTEP" train --backend mixed $options "$@"
}

(train --save "$work/whole") > "$work/whole.json" 2> "$work/whole.err" || { cat "$work/whole.err"; exit 1; }
whole=$(field hash "$work/whole.json" | tail -1)

best=0 kills=0 amid=0 done=no
for round in $(seq "$rounds"); do
    train --save "$work/killed" --resume auto > "$work/killed.json" 2> "$work/killed.err" &
    job=$!
    # Once the ranks have saved something new, at a moment that nobody chose.
    wait_until 60 has_saved_or_ended "$best"
    pause_randomly 20 200
    victim=$(members_of "$job" | sed -n "$((RANDOM % ranks + 1))p" || true)
    number=$(sed -zn 's/^RANK=//p' "/proc/${victim:-none}/environ" 2> /dev/null | tr -d '\0' || true)
    # With several hosts every other time all ranks of one.
    if [ "$EACH" != "$ranks" ] && [ $((round % 2)) = 0 ] &&
        [ -n "$number" ]; then victim=$(neighbours_of "$number" "$job"); fi
    # shellcheck disable=SC2086
    if [ -n "$victim" ] && kill -9 $victim 2> /dev/null; then kills=$((kills + 1)); else number=; fi
    code=0
    wait "$job" 2> /dev/null || code=$?
    job=
    if [ "$code" = 0 ]; then done=yes; break; fi
    if [ -n "$number" ] && [ "$(wc -w <<< "$victim")" = 1 ] &&
        ! grep -q "rank $number of $ranks" "$work/killed.err"; then
        echo "round $round: rank $number was killed, and nobody says so:"; cat "$work/killed.err"; exit 1
    fi
    # Between the exchange of reports and the end of the update.
    amid_update='dead; it was outside any operation.*last finished #[0-9]+ all_gatherv .*report.c|'
    amid_update+='it had finished (#[0-9]+ )?all_gatherv .*report.c|'
    amid_update+='it was in (#[0-9]+ )?barrier_host at .*shared_update.c'
    if grep -qE "$amid_update" "$work/killed.err"; then amid=$((amid + 1)); fi
    for step in "$work"/killed/step-*; do
        case $step in *.tmp.* | *.old.* | *'*') continue ;; esac
        for file in model.safetensors optimizer.safetensors state.json; do
            if [ ! -e "$step/$file" ]; then echo "round $round: $step has no $file"; exit 1; fi
        done
    done
    step=$(field step "$work/killed/state.json" 2> /dev/null || true)
    if [ "${step:-0}" -lt "$best" ]; then echo "round $round: the checkpoint went from step $best to ${step:-none}"; \
        exit 1; fi
    best=${step:-0}
done
if [ "$done" = no ]; then
    (train --save "$work/killed" --resume auto) > "$work/killed.json" 2> "$work/killed.err" ||
        { cat "$work/killed.err"; exit 1; }
fi
killed=$(field hash "$work/killed.json" | tail -1)
if [ -z "$whole" ] || [ "$whole" != "$killed" ]; then echo "uninterrupted: $whole; killed $kills times: $killed"; exit \
    1; fi
cmp "$work/whole/model.safetensors" "$work/killed/model.safetensors"
cmp "$work/whole/optimizer.safetensors" "$work/killed/optimizer.safetensors"
if [ "$kills" -lt 3 ] || [ "$best" = 0 ]; then echo "only $kills kills, at step $best: too few for this test"; exit 1; \
    fi
echo "killed $kills times, $amid of them seen in an update, last checkpoint at step $best; the same result: $killed"
