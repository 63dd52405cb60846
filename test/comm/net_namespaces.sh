#!/usr/bin/env bash
# net_namespaces.sh - two hosts, as network namespaces of this machine connected by a veth pair: ranks in both, over
# IPv4 and IPv6, at a limited rate, with delay and loss; a rank that is killed, a host that is cut off, a link that is
# down for a while, also when ranks end, a missing route. Skipped where namespaces are not permitted.
# ctest: timeout 240, ranks 4
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a sanitized library needs a sanitized program"; exit 77; }
# shellcheck source=two_hosts.bash
. "$SOURCE_DIR/test/two_hosts.bash"
pids=()
before_end() { for pid in "${pids[@]:-}"; do [ -z "$pid" ] || kill -KILL "$pid"; done; }
two_hosts 10.77.0
ip -n $a -6 addr add fd00:77::1/64 dev lkveth nodad
ip -n $b -6 addr add fd00:77::2/64 dev lkveth nodad

# Sums known numbers repeatedly, for SECONDS or until a call fails; then prints the error. Last of all, ranks 0 and 1
# wait until the file LAST exists, in declared work, and all sum once more and end.
cat > "$work/ranks.c" <<'C'
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    double         seconds = atof(argv[1]);
    size_t         count = (size_t)atol(argv[2]);
    lk_context    *context;
    lk_comm       *comm = NULL;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    double        *x = malloc(count * sizeof *x);
    long           rounds = 0;
    if (lk_context_create(NULL, &context) < 0) return 1;
    config.backend = argc > 3 ? argv[3] : NULL;
    if (seconds > 0) config.join_ms = 30000; /* else LOCKSTEP_JOIN_TIMEOUT */
    lk_status status = lk_comm_create(context, &config, &comm);
    if (status >= 0) puts("joined");
    fflush(stdout);
    for (double end = now() + seconds; status >= 0; rounds++) {
        int32_t more = now() < end || rounds == 0;
        for (size_t i = 0; i < count; i++) x[i] = (double)(lk_comm_rank(comm) + 1) * (double)(i % 97 + 1);
        if ((status = lk_comm_all_reduce(comm, &more, &more, 1, LK_I32, LK_MIN, NULL)) < 0 || !more) break;
        status = lk_comm_all_reduce(comm, x, x, count, LK_F64, LK_SUM, NULL);
        int n = lk_comm_size(comm) * (lk_comm_size(comm) + 1) / 2;
        for (size_t i = 0; status >= 0 && i < count; i++)
            if (x[i] != (double)n * (double)(i % 97 + 1)) {
                printf("wrong sum at %zu: %g\n", i, x[i]);
                return 2;
            }
    }
    if (status >= 0 && argc > 4) {
        if (lk_comm_rank(comm) < 2) lk_comm_busy_begin(comm, "saving");
        puts("last");
        fflush(stdout);
        while (lk_comm_rank(comm) < 2 && access(argv[4], F_OK) != 0) usleep(10000);
        if (lk_comm_rank(comm) < 2) lk_comm_busy_end(comm);
        status = lk_comm_all_reduce(comm, x, x, count, LK_F64, LK_SUM, NULL);
    }
    if (status < 0)
        printf("failed %s %s\n", lk_status_name(status), lk_context_error(context));
    else
        printf("rank %d of %d, %d of %d here, %s: %s\n", lk_comm_rank(comm), lk_comm_size(comm),
               lk_comm_local_rank(comm), lk_comm_local_size(comm), lk_comm_backend(comm),
               rounds > 0 ? "right" : "nothing");
    lk_comm_free(comm);
    lk_context_free(context);
    free(x);
    return status < 0;
}
C
compile "$work/ranks.c" "$work/ranks"
export LOCKSTEP_JOB=namespaces LOCKSTEP_TOKEN=0123456789abcdef LOCKSTEP_PORT=4000-4060

# start ADDRESS ARGS… : two ranks in each namespace
start() {
    export MASTER_ADDR=$1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
    shift
    pids=()
    rm -f "$work"/out.*
    for rank in 0 1 2 3; do
        [ $rank -lt 2 ] && space=$a || space=$b
        RANK=$rank ip netns exec $space "$work/ranks" "$@" > "$work/out.$rank" 2>&1 &
        pids+=($!)
    done
}
ends_right() { # WHAT BACKEND
    for rank in 0 1 2 3; do
        wait "${pids[$rank]}" && grep -q "^rank $rank of 4, $((rank % 2)) of 2 here, $2: right" "$work/out.$rank" ||
            complain "$1: rank $rank: $(cat "$work/out.$rank")"
    done
    pids=()
    echo "$1"
}
have_printed() { [ "$(cat "$work"/out.* | grep -c "$1")" -eq 4 ]; } # all ranks that line
# Waits until all ranks have joined, and then a moment: they are amid their collectives.
all_joined() {
    wait_until 60 have_printed "^joined"
    pause_randomly 300 700
}
# All of RANKS have failed with PATTERN in their error.
ends_failed() { # WHAT PATTERN RANKS…
    what=$1 pattern=$2
    shift 2
    for rank in "$@"; do
        wait "${pids[$rank]}" && complain "$what: rank $rank did not fail"
        grep -qE "^failed .*$pattern" "$work/out.$rank" ||
            complain "$what: rank $rank does not report '$pattern': $(cat "$work/out.$rank")"
    done
    pids=()
    echo "$what: detected by all"
}

start 10.77.0.1 0.3 1000 tcp; ends_right "two hosts over IPv4" tcp
start 10.77.0.1 0.3 100000; ends_right "two hosts, backend chosen" mixed
start fd00:77::1 0.3 100000 tcp; ends_right "two hosts over IPv6" tcp

if command -v tc > /dev/null && ip netns exec $a tc qdisc add dev lkveth root tbf rate 200mbit burst 128kb latency \
    100ms 2> "$work/why"; then
    start 10.77.0.1 1 200000 tcp; ends_right "at 200 Mbit/s" tcp
    ip netns exec $a tc qdisc del dev lkveth root
else
    echo "no rate: $(cat "$work/why")"
fi

if "$CC" -std=gnu11 -O1 -Wall -Wextra -Werror "$SOURCE_DIR/test/comm/link_delay.c" -o "$work/link_delay" &&
    mkfifo "$work/hold"; then
    is_ready_or_ended() { grep -q ready "$work/link" || ! is_running $link; }
    "$work/link_delay" $a $b 10 10 < "$work/hold" > "$work/link" 2>&1 &
    link=$!
    exec 9> "$work/hold"
    wait_until 20 is_ready_or_ended
    if grep -q ready "$work/link"; then
        ip -n $a addr add 10.78.0.1 peer 10.78.0.2 dev lktun
        ip -n $b addr add 10.78.0.2 peer 10.78.0.1 dev lktun
        ip -n $a link set lktun up
        ip -n $b link set lktun up
        start 10.78.0.1 1 20000 tcp; ends_right "with 10 ms of delay and 1 % of loss" tcp
    else
        echo "no delay and no loss: $(cat "$work/link")"
    fi
    exec 9>&-
    wait $link
fi

# Ranks that are started by hand, without LOCAL_WORLD_SIZE: with a token they join, and know which of them share a host;
# without one, a rank on another host than rank 0's says at once what is missing.
by_hand() {
    env -u LOCKSTEP_JOB -u LOCKSTEP_TOKEN -u LOCKSTEP_PORT -u LOCAL_WORLD_SIZE \
        WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29533 "$@"
}
(umask 077 && echo 0123456789abcdef > "$work/token")
pids=()
for rank in 0 1 2 3; do
    [ $rank -lt 2 ] && space=$a || space=$b
    RANK=$rank by_hand LOCKSTEP_TOKEN_FILE="$work/token" ip netns exec $space "$work/ranks" 0.1 1000 > \
        "$work/out.$rank" 2>&1 &
    pids+=($!)
done
ends_right "by hand, without LOCAL_WORLD_SIZE" mixed
RANK=2 by_hand ip netns exec $b "$work/ranks" 0.1 1000 > "$work/out.2" 2>&1 && complain "it joined without a token"
grep -q "several hosts (MASTER_ADDR is 10.77.0.1, and LOCAL_WORLD_SIZE is not set).*LOCKSTEP_TOKEN_FILE" "$work/out.2" \
    || complain "by hand, without a token: $(cat "$work/out.2")"

LOCKSTEP_JOIN_TIMEOUT=3 RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.99.0.1 ip netns exec $a "$work/ranks" 0 \
    1 tcp > "$work/out.0" 2>&1 && complain "it joined where there is no route"
grep -q "no route to that host" "$work/out.0" || complain "no route: $(cat "$work/out.0")"
echo "no route"

# Two of three ranks have joined, the third is missing, and one of the two hosts is cut off meanwhile: the other reports
# its rank as missing too.
export LOCKSTEP_JOIN_TIMEOUT=12 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1
RANK=0 ip netns exec $a "$work/ranks" 0 1 tcp > "$work/out.0" 2>&1 &
zero=$!
RANK=1 ip netns exec $b "$work/ranks" 0 1 tcp > "$work/out.1" 2>&1 &
one=$!
are_connected() { ip netns exec $b awk '$4 == "01" { found = 1 } END { exit !found }' /proc/net/tcp; } # 01: established
wait_until 20 are_connected
pause_randomly 300 700 # they authenticate, and wait for the third
ip -n $b link set lkveth down
wait $zero && complain "two of three ranks joined"
wait $one && complain "two of three ranks joined"
ip -n $b link set lkveth up
unset LOCKSTEP_JOIN_TIMEOUT
grep -q "ranks 1, 2 of 3 did not join" "$work/out.0" ||
    complain "a host is cut off while it waits: $(cat "$work/out.0")"
grep -q "rank 0 of 3 is not reachable" "$work/out.1" &&
    ! grep -q "did not report that all ranks have joined" "$work/out.1" ||
    complain "a host is cut off while it waits: $(cat "$work/out.1")"
echo "a host is cut off while it waits for others to join"

start 10.77.0.1 60 100000 tcp
all_joined
victim=${pids[3]} # ip netns exec becomes the program
{ kill -KILL $victim; wait "${pids[3]}"; } 2> /dev/null
ends_failed "a rank is killed" "rank 3 of 4 .* died" 0 1 2

start 10.77.0.1 60 100000 tcp
all_joined
ip -n $b link set lkveth down
ends_failed "a host is cut off" "rank [0-3] of 4 .* was cut off" 0 1 2 3
ip -n $b link set lkveth up

# A host that reaches this one, but is not reached. Its kernel may end a connection first, by a reset, which looks as if
# the process there had ended.
start 10.77.0.1 60 100000 tcp
all_joined
ip -n $a route add blackhole 10.77.0.2/32
ends_failed "a host is cut off in one direction" "rank [0-3] of 4 .* (was cut off|died|closed a connection)" 0 1 2 3
ip -n $a route del blackhole 10.77.0.2/32

start 10.77.0.1 6 100000 tcp
all_joined
ip -n $b link set lkveth down
sleep 2 # the link is down
ip -n $b link set lkveth up
ends_right "the link is down for 2 s" tcp

# The link is down when ranks 0 and 1, for which the others wait, enter the last collective, complete it and leave: its
# messages arrive nevertheless. The others ask what they are doing meanwhile, which a closed connection would answer by
# a reset.
for backend in tcp mixed; do
    for round in 1 2 3; do
        rm -f "$work/end"
        start 10.77.0.1 0.1 10 $backend "$work/end"
        wait_until 60 have_printed "^last"
        pause_randomly 200 600 # ranks 2 and 3 enter the last collective
        ip -n $b link set lkveth down
        : > "$work/end"
        sleep 0.5 # the link is down
        ip -n $b link set lkveth up
        ends_right "the link is down for 0.5 s when ranks end, $backend, round $round" $backend
    done
done

exit $wrong
