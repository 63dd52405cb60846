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
