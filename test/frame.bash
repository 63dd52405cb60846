# frame.bash - what the tests of the command begin with. It changes to $work, an empty directory, which is removed at
# the end, when the process $job is killed if there is one; and it removes from the environment what launchers tell
# ranks. Sourced behind `set`:
#   set -eu                              the first failure ends the test; without -e it goes on, and ends with
#                                        `exit $((wrong > 0))`
#   . "$SOURCE_DIR/test/frame.bash"
#   expect 2 "^lockstep eval: .*no such" "$LOCKSTEP" eval --load nowhere
#   [ "$(field loss < out.txt)" = 0.5 ] || complain "another loss: $(cat out.txt)"
# shellcheck shell=bash
work=$(mktemp -d)
job=
trap 'if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null || true; fi; rm -rf "$work"' EXIT
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN LOCKSTEP_HOST_ID
wrong=0
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
case $- in *e*) first_ends=1 ;; *) first_ends= ;; esac # subshells forget -e

fail() { echo "$*" >&2; exit 1; }
complain() { # counts a failure, or ends the test
    echo "$*" >&2
    wrong=$((wrong + 1))
    [ -z "$first_ends" ] || exit 1
}

# check_command GREP STATUS PATTERN COMMAND…
check_command() {
    local grep=$1 status=$2 pattern=$3 got=0
    shift 3
    "$@" > out.txt 2> err.txt || got=$?
    if [ $got != "$status" ]; then
        complain "$*: exit status $got, not $status: $(cat out.txt err.txt)"
    elif [ -n "$pattern" ] && ! grep "$grep" -- "$pattern" err.txt > /dev/null; then
        complain "$*: no '$pattern' in: $(cat err.txt)"
    fi
}
# expect STATUS PATTERN COMMAND…: its exit status, and an extended regular expression that standard error, err.txt,
# matches; "": anything. Standard output is in out.txt.
expect() { check_command -E "$@"; }
# expect_text STATUS TEXT COMMAND…: the same with a text as it is.
expect_text() { check_command -F "$@"; }

# field NAME < FILE: a number or a word of an object of JSON.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([-0-9a-zA-Z.+]*\).*/\1/p"; }

# rank_pid N: the process of rank N of the job $job, if it runs.
rank_pid() {
    local pid
    for pid in $(pgrep -P "$job"); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=$1"; then echo "$pid"; return; fi
    done
}

# ---- jobs that are killed ----
# mark_jobs: those that are started as `env "$mark" COMMAND…` are found by that mark in their environment: members lists
# the processes that run. They are killed when the test ends.
mark_jobs() {
    mark=LOCKSTEP_TEST_JOBS=$$.$RANDOM
    trap 'for pid in $(members) $job; do kill -KILL "$pid" 2> /dev/null || true; done; rm -rf "$work"' EXIT
}
members() {
    local file pid
    for file in $(grep -slz "^$mark\$" /proc/[0-9]*/environ 2> /dev/null || true); do
        pid=${file#/proc/}
        pid=${pid%/environ}
        if is_running "$pid"; then echo "$pid"; fi
    done
}
has_no_members() { [ -z "$(members)" ]; }
# expect_no_members SECONDS: fails with a list of those that still run then; 0: now.
expect_no_members() {
    has_no_members || { [ "$1" -gt 0 ] && wait_until "$1" has_no_members; } ||
        fail "survivors: $(members | xargs ps -o pid,ppid,stat,args -p)"
}
# await_end SECONDS: the job ends within that time, and no process of it survives. Its exit status is in $code.
await_end() {
    wait_for_end "$1" "$job" || fail "still running after $1 s: $(cat err.txt)"
    code=0
    # shellcheck disable=SC2034 # of the caller
    wait "$job" || code=$?
    job=
    expect_no_members 10
}
