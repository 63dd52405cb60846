#!/usr/bin/env bash
# cli_stop.sh - a stop request saves, however it is sent: twice at once, as GNU timeout does; to launcher and ranks
# together, as schedulers do; while saving takes longer than the grace period. A second one, later, ends the run at
# once. ctest: timeout 240, ranks 2
set -eu
work=$(mktemp -d)
job=
trap 'if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null || true; fi; rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; [ ! -f out ] || cat out; exit 1; }
preload=()
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

# start COMMAND…: a run of two ranks, $job, which has made steps
start() {
    rm -rf saved log out
    env "${preload[@]}" "$@" train --model mlp --steps 100000000 --eval-every -1 --threads 1 --log log --save saved \
        --save-every 100000000 > out 2>&1 &
    job=$!
    wait_for_line 60 '"step": 2,' log || fail "no step"
}
alone() { start "$LOCKSTEP"; }
started() { start "$LOCKSTEP" run -n 2 "$LOCKSTEP"; }
own() { start bash -c 'command=$1; shift 2; exec "$command" train -n 2 "$@"' start "$LOCKSTEP"; } # train -n 2 …
# ended STATUS TEXT: how $job ended
ended() {
    local status=0
    wait "$job" || status=$?
    job=
    [ $status = "$1" ] || fail "$2: exit status $status, not $1"
}
saved() { ls -d saved/step-* 2> /dev/null | grep -vq tmp; }
ranks_of() { grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status | cut -d/ -f3; }

for how in alone own started; do
    # Twice: two signals are pending as one, unless the first has been received.
    $how
    kill -TERM "$job"; pause_randomly 20 40; kill -TERM "$job" 2> /dev/null || true # it may have ended
    ended 143 "$how, signalled twice"
    saved || fail "$how: a signal that was sent twice at once has not saved"
    [ $how != alone ] || continue
    # The launcher, and its ranks, which get a second one from it.
    $how
    # shellcheck disable=SC2046
    kill -TERM $(ranks_of "$job") "$job"
    ended 143 "$how, all signalled"
    saved || fail "$how: signals to launcher and ranks have not saved"
done

# Saving takes longer than the launcher's 10 s; then a second request, which ends it.
cat > slow.c <<'C'
#include <time.h>
int fsync(int fd);
int fsync(int fd) { (void)fd; struct timespec t = {1, 500000000}; nanosleep(&t, 0); return 0; }
C
if [ -z "${LK_SANITIZE:-}" ] && "${CC:-cc}" -shared -fPIC -o slow.so slow.c; then
    preload=(LD_PRELOAD="$work/slow.so")
    own
    kill -TERM "$job"
    ended 143 "slow saving"
    saved || fail "a run whose saving takes long was killed"
    grep -q '2 ranks are still running 10 s after Terminated, and may be saving' out ||
        fail "nothing says why the run goes on"
    own
    kill -TERM "$job"; sleep 1; kill -TERM "$job"
    ended 143 "a second request"
    ! saved || fail "a second request waited for the save"
fi
echo "stop requests save"
