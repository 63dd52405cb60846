# wait.bash - waiting for what is expected instead of for some time. Sourced, also by frame.bash:
#   wait_until 20 test -s log                 the command succeeds
#   wait_until_job 20 test -s log             the same, and the process $job must run until then
#   wait_for_line 20 '^ready' out.txt         a line of the file matches; the file need not be there yet
#   wait_for_end 20 "$pid"                    the process has ended, or is a zombie
#   pause_randomly 20 200                     that many milliseconds at least and at most: before a fault that may come
#                                             at any moment
# The number is a deadline in seconds, and only for tests that fail: long enough for a loaded machine. At the deadline
# they print what did not happen and return 1; under `set -e` that ends the test.
# shellcheck shell=bash
wait_interval=0.02

wait_until() { # SECONDS COMMAND…
    local deadline=$((SECONDS + $1)) seconds=$1
    shift
    until "$@"; do
        if [ $SECONDS -gt $deadline ]; then echo "not within $seconds s: $*" >&2; return 1; fi
        sleep $wait_interval
    done
}
wait_until_job() { # SECONDS COMMAND…
    local deadline=$((SECONDS + $1)) seconds=$1
    shift
    until "$@"; do
        if ! is_running "${job:?}"; then
            "$@" && return # at its very end
            echo "the job ended before: $*" >&2
            return 1
        fi
        if [ $SECONDS -gt $deadline ]; then echo "not within $seconds s: $*" >&2; return 1; fi
        sleep $wait_interval
    done
}
wait_for_line() { wait_until "$1" grep -qsaE -- "$2" "$3"; } # SECONDS PATTERN FILE
wait_for_end() { wait_until "$1" has_ended "$2"; }        # SECONDS PID

# Whether the process runs: neither gone nor a zombie.
is_running() { [ -d "/proc/$1" ] && ! grep -qs '^State:.Z' "/proc/$1/status"; }
has_ended() { ! is_running "$1"; }

pause_randomly() { # LEAST MOST, in milliseconds
    local delay=$(($1 + RANDOM % ($2 - $1 + 1)))
    sleep "$((delay / 1000)).$(printf '%03d' $((delay % 1000)))"
}
