#!/usr/bin/env bash
# mpi_namespaces.sh - MPI between two hosts: network namespaces of this machine, each with its own host name, connected
# by a veth pair, and an mpirun in one of them that starts its daemon in the other, for each MPI whose module was built
# and whose mpirun is installed. Sums over mpi and mixed with shared memory; a rank that is killed; tcp with a token.
# Skipped where namespaces are not permitted. ctest: timeout 240, ranks 4
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a sanitized library needs a sanitized program"; exit 77; }
# shellcheck source=two_hosts.bash
. "$SOURCE_DIR/test/two_hosts.bash"
need ip unshare hostname timeout
# As on hosts with containers: a bridge, listed first, with the same address on every host, by which no host reaches the
# other.
before_link() {
    for space in $a $b; do
        ip -n $space link add lkbridge type bridge 2> "$work/why" || { echo "no bridge: $(cat "$work/why")"; break; }
        ip -n $space addr add 172.31.79.1/24 dev lkbridge
        ip -n $space link set lkbridge up
    done
}
two_hosts 10.79.0
ip netns exec $a unshare --uts hostname lk-first 2> "$work/why" ||
    skip "separate host names are not permitted: $(cat "$work/why")"
compile "$SOURCE_DIR/test/comm/rank_sums.c" "$work/ranks"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=$work

# In place of ssh: HOST COMMAND…, in that host's namespace, with its host name and a new environment.
cat > "$work/reach" <<SH
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in
10.79.0.1) space=$a name=lk-first ;;
10.79.0.2) space=$b name=lk-second ;;
*) echo "unknown host \$1" >&2; exit 255 ;;
esac
shift
exec env -i "PATH=$PATH" "HOME=$HOME" "TMPDIR=$work" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    ip netns exec \$space unshare --uts sh -c "hostname \$name; \$*"
SH
chmod +x "$work/reach"

# job FIRST SECOND SETTINGS ARGS… : FIRST ranks on the first host and SECOND on the second, with these settings.
job() {
    local first=$1 second=$2 setting start
    case $flavour in
    openmpi) start="$mpirun --mca plm_rsh_agent $work/reach --mca oob_tcp_if_include lkveth
        --mca oob_tcp_dynamic_ipv4_ports 5200-5299 --oversubscribe --mca pml ob1 --mca btl tcp,self
        --mca btl_tcp_if_include lkveth --mca btl_tcp_port_min_v4 5000 --mca btl_tcp_port_range_v4 200
        --host 10.79.0.1:$first,10.79.0.2:$second -n $((first + second))"
        for setting in $3; do start+=" -x $setting"; done ;;
    mpich) start="$mpirun -launcher ssh -launcher-exec $work/reach -iface lkveth
        -hosts 10.79.0.1:$first,10.79.0.2:$second -n $((first + second))"
        for setting in $3; do start+=" -genv ${setting%%=*} ${setting#*=}"; done ;;
    esac
    shift 3
    ip netns exec $a unshare --uts sh -c 'hostname lk-first; exec "$@"' sh timeout -k 5 50 $start "$work/ranks" "$@" > \
        "$work/out" 2>&1
}
# Every rank is on the right host, and got the right sums over BACKEND.
right() { # WHAT FIRST SECOND BACKEND
    local rank here
    for ((rank = 0; rank < $2 + $3; rank++)); do
        [ $rank -lt $2 ] && here="lk-first, $rank of $2" || here="lk-second, $((rank - $2)) of $3"
        grep -q "^rank $rank of $(($2 + $3)) on $here here, $4: right" "$work/out" ||
            { complain "$flavour, $1: rank $rank: $(cat "$work/out")"; return; }
    done
    echo "$flavour: $1"
}
# The last of four ranks was killed: the job has ended, the survivors that reported an error named it, and no process is
# left on either host.
ended() { # STATUS WHAT
    [ $1 != 0 ] && [ $1 != 124 ] || complain "$flavour, $2: mpirun ends with $1: $(cat "$work/out")"
    wait_until 20 has_no_process || complain \
        "$flavour, $2: processes are left: $(ps -fp "$(echo $(ip netns pids $a) $(ip netns pids $b) | tr ' ' ,)")"
    local reported
    reported=$(grep -c '^failed' "$work/out")
    [ "$reported" = "$(grep -cE '^failed LK_EIO rank 3 of 4 \(lk-second, .* died' "$work/out")" ] ||
        complain "$flavour, $2: $(cat "$work/out")"
    echo "$flavour: $2: $reported of 3 survivors named it before mpirun ended them"
}

openssl rand -hex 16 > "$work/token" 2> /dev/null || head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/token"
chmod 600 "$work/token"
tried=0
for flavour in openmpi mpich; do
    mpirun=$(command -v mpirun.$flavour) || { echo "there is no mpirun.$flavour: not tried"; continue; }
    [ -e "$BUILD_DIR/lockstep_mpi_$flavour.so" ] || { echo "no module was built for $flavour: not tried"; continue; }
    tried=1
    job 2 2 "" mpi 0.3 100000; right "two ranks on each host, mpi" 2 2 "mpi with MPI"
    job 2 2 "" - 0.3 100000; right "two ranks on each host, backend chosen" 2 2 "mixed with MPI"
    job 1 1 "" - 0.3 1000; right "one rank on each host, backend chosen" 1 1 "mixed with MPI"
    job 1 3 "" - 0.3 100000; right "one rank and three, backend chosen" 1 3 "mixed with MPI"

    # Without MPI the ranks have no shared secret.
    job 2 2 "MASTER_ADDR=10.79.0.1 LOCKSTEP_PORT=4000-4060" tcp 0.3 1000 &&
        complain "$flavour, tcp without a token: $(cat "$work/out")"
    grep -q 'on several hosts .* set LOCKSTEP_TOKEN_FILE to a file' "$work/out" ||
        complain "$flavour, tcp without a token: $(cat "$work/out")"
    job 2 2 "MASTER_ADDR=10.79.0.1 LOCKSTEP_PORT=4000-4060 LOCKSTEP_TOKEN_FILE=$work/token" tcp 0.3 1000; right \
        "tcp with LOCKSTEP_TOKEN_FILE" 2 2 tcp

    if [ $flavour = openmpi ] && command -v ss > /dev/null; then \
        # Lockstep's connections use only LOCKSTEP_PORT, also those of split groups, as a firewall may require
        : > "$work/out" # of the job before: what waits below must not see it
        job 2 2 "LOCKSTEP_PORT=4000-4060" mpi 3 1000 &
        wait_for=$!
        wait_for_line 60 '^under way' "$work/out"
        ip netns exec $a ss -Htn state established > "$work/connections"
        wait $wait_for
        right "within LOCKSTEP_PORT" 2 2 "mpi with MPI"
        ours=$(grep -c ':40[0-6][0-9] ' "$work/connections")
        [ "$ours" -gt 0 ] || complain "no connection within LOCKSTEP_PORT: $(cat "$work/connections")"
        grep '10\.79\.0\.2' "$work/connections" | grep -vE ':(40[0-6][0-9]|5[0-2][0-9][0-9])( |$)' &&
            complain "connections outside of LOCKSTEP_PORT: $(cat "$work/connections")"
    fi

    job 2 2 "" mpi 3 100000 kill; ended $? "a rank is killed, mpi"
    job 2 2 "" - 3 100000 kill; ended $? "a rank is killed, backend chosen"
done
[ $tried = 1 ] || skip "there is no mpirun with a module"
exit $wrong
