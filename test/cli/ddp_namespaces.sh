#!/usr/bin/env bash
# ddp_namespaces.sh - data parallel over two hosts, simulated by network namespaces with a veth pair: two ranks on each,
# with shared memory within a host and tcp between hosts, one copy of the state on each host or one of each rank, or tcp
# alone, give the bits of one process; a rank that dies on one host ends the job on the other, which names it. Skipped
# where namespaces are not permitted. ctest: timeout 200, ranks 4
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: other sanitizer tests cover the same code faster"; exit 77; }
# shellcheck source=two_hosts.bash
. "$SOURCE_DIR/test/two_hosts.bash"
jobs=()
before_end() { for pid in "${jobs[@]:-}"; do [ -z "$pid" ] || kill -KILL "$pid"; done; }
two_hosts 10.78.0
fail() { echo "$*" >&2; exit 1; }
hash_of() { sed -n 's/.*"hash": *"\([0-9a-f]*\)".*/\1/p' "$1"; }
LOCKSTEP_TOKEN=$(head -c16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export LOCKSTEP_TOKEN
options="--model cnn --data synthetic --batch 48 --threads 1 --seed 5 --eval-every -1 --reproducible --json"
port=29600

# start OPTIONS…: the same command on both hosts, two ranks on each
start() {
    port=$((port + 1)) jobs=()
    for node in 1 0; do
        [ $node = 0 ] && space=$a || space=$b
        # shellcheck disable=SC2086
        ip netns exec $space "$LOCKSTEP" run -n 2 --nnodes 2 --node-rank $node --master-addr 10.78.0.1 --master-port \
            $port -- \
            "$LOCKSTEP" train $options "$@" > "$work/out.$node" 2> "$work/err.$node" &
        jobs+=($!)
    done
}

# shellcheck disable=SC2086
"$LOCKSTEP" train $options --steps 12 > "$work/whole" 2> "$work/err" || fail "one process: $(cat "$work/err")"
want=$(hash_of "$work/whole")
[ -n "$want" ] || fail "one process prints no hash: $(cat "$work/whole")"
for way in "mixed shared" "mixed replicated" "tcp replicated"; do
    start --steps 12 --backend "${way% *}" --state "${way#* }"
    for job in "${jobs[@]}"; do wait "$job" || fail "$way: $(cat "$work"/err.*)"; done
    [ "$(hash_of "$work/out.0")" = "$want" ] ||
        fail "$way: $(hash_of "$work/out.0") instead of $want: $(cat "$work"/err.*)"
    echo "two hosts, $way: the bits of one process"
done

start --steps 100000 --state shared --log "$work/log"
wait_for_line 60 '"step"' "$work/log"
victim=
for pid in $(pgrep -P "${jobs[0]}"); do
    tr '\0' '\n' < /proc/"$pid"/environ 2> /dev/null | grep -qx RANK=3 && victim=$pid
done
[ -n "$victim" ] || fail "rank 3 was not found: $(cat "$work"/err.*)"
kill -KILL "$victim"
for job in "${jobs[@]}"; do wait "$job" && fail "a host did not notice that rank 3 died"; done
jobs=()
grep -q "rank 3 of 4 .* died" "$work/err.0" || fail "the other host does not name the dead rank: $(cat "$work/err.0")"
echo "a rank killed on one host is named on the other"
