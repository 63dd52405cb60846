# two_hosts.bash - for tests that simulate two hosts on this machine: network namespaces $a and $b, connected by a veth
# pair lkveth, with the addresses NET.1 and NET.2. A test sources it, does its checks for skipping, and calls two_hosts
# NET. It sets $work, a folder of the test's own. At the end of the test all processes in the namespaces are killed. A
# test may define before_link and before_end, which run before the pair is made and before the end.
skip() { echo "skipped: $*"; exit 77; }
need() { for tool in "$@"; do command -v "$tool" > /dev/null || skip "there is no $tool"; done; }
complain() { echo "$*" >&2; wrong=1; }

# shellcheck disable=SC2034 # used by the test
wrong=0
a=lka-$$ b=lkb-$$
work=$(mktemp -d)
export work
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
has_no_process() { [ -z "$(host_processes 2> /dev/null)" ]; }
host_processes() { ip netns pids $a; ip netns pids $b; }
kill_processes() { for pid in $(host_processes 2> /dev/null); do kill -KILL "$pid" 2> /dev/null; done; }
end_hosts() {
    { if declare -F before_end > /dev/null; then before_end; fi; } 2> /dev/null
    kill_processes
    wait_until 10 has_no_process 2> /dev/null
    ip netns del $a 2> /dev/null
    ip netns del $b 2> /dev/null
    rm -rf "$work"
}
trap end_hosts EXIT

two_hosts() { # NET
    need ip
    ip netns add $a 2> "$work/why" || skip "network namespaces are not permitted: $(cat "$work/why")"
    ip netns add $b
    if declare -F before_link > /dev/null; then before_link; fi
    ip -n $a link add lkveth type veth peer name lkveth netns $b 2> "$work/why" || skip "no veth: $(cat "$work/why")"
    for end in "$a 1" "$b 2"; do
        read -r space number <<< "$end"
        ip -n "$space" link set lo up
        ip -n "$space" addr add "$1.$number/24" dev lkveth
        ip -n "$space" link set lkveth up
    done
}

# compile SOURCE PROGRAM: against the library under test
compile() {
    "$CC" -std=gnu11 -O1 -Wall -Wextra -Werror -I"$SOURCE_DIR/include" "$1" -L"$BUILD_DIR" -llockstep \
        -Wl,-rpath,"$BUILD_DIR" -o "$2" || exit 1
}
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN \
    LOCKSTEP_TOKEN_FILE LOCKSTEP_PORT LOCKSTEP_HOST_ID
