#!/usr/bin/env bash
# comm_slurm.sh - ranks that srun starts join each other, in a private cluster of two nodes: network namespaces of this
# machine with a host name each, a slurmd in both and slurmctld in the first. On one node and on two, with --mpi=none,
# pmi2 and pmix; in a batch script; and a rank that is killed. Skipped where Slurm or munge is not installed or
# namespaces are not permitted. ctest: timeout 150
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a sanitized library needs a sanitized program"; exit 77; }
# shellcheck source=two_hosts.bash
. "$SOURCE_DIR/test/two_hosts.bash"
PATH=$PATH:/usr/sbin:/sbin
need slurmctld slurmd munged srun sbatch sinfo ip unshare hostname timeout mount
[ "$(id -u)" = 0 ] || skip "slurmd and slurmctld need root here"
daemons=()
before_end() { # ends the daemons in order
    for pid in "${daemons[@]:-}"; do [ -z "$pid" ] || kill "$pid"; done
    wait_until 10 has_no_process
}
two_hosts 10.80.0
ip netns exec $a unshare --uts hostname lk-1 2> "$work/why" ||
    skip "separate host names are not permitted: $(cat "$work/why")"
compile "$SOURCE_DIR/test/comm/rank_sums.c" "$work/ranks"
for name in $(compgen -e | grep -E '^(SLURM|SRUN|SBATCH|PMI|OMPI|LOCKSTEP_)' | grep -vx LOCKSTEP_MODULES); do unset \
    "$name"; done

# The cluster. Each node has a directory of its own in place of /tmp.
mkdir "$work/state" "$work/tmp" "$work"/{spool,tmp}.lk-{1,2}
(
    umask 077
    head -c 1024 /dev/urandom > "$work/munge.key"
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/token"
)
cat > "$work/slurm.conf" <<CONF
ClusterName=lockstep
SlurmctldHost=lk-1(10.80.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%h
TmpFS=$work/tmp
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%h.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=lk-1 NodeAddr=10.80.0.1 CPUs=4 State=UNKNOWN
NodeName=lk-2 NodeAddr=10.80.0.2 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
echo "CgroupPlugin=cgroup/v1" > "$work/cgroup.conf" # the one that needs no systemd; it is not used
export SLURM_CONF=$work/slurm.conf
on() { # NODE COMMAND… : exec COMMAND on the node
    [ "$1" = 1 ] && space=$a || space=$b
    exec ip netns exec $space unshare --uts sh -c \
        'hostname "$0" && mount --bind "$work/tmp.$0" "$work/tmp" && exec "$@"' lk-"$@"
}
munged --force --foreground --socket="$work/munge.socket" --key-file="$work/munge.key" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" \
    --seed-file="$work/munge.seed" > "$work/munged.log" 2>&1 &
daemons+=($!)
wait_until 20 test -S "$work/munge.socket" || skip "munged does not start here: $(cat "$work/munged.log")"
on 1 slurmctld -D > "$work/slurmctld.log" 2>&1 & daemons+=($!)
on 1 slurmd -D > "$work/slurmd.1.log" 2>&1 & daemons+=($!)
on 2 slurmd -D > "$work/slurmd.2.log" 2>&1 & daemons+=($!)
are_idle() { (on 1 sinfo -h -o '%t %D') 2> /dev/null | grep -qx 'idle 2'; }
wait_until 30 are_idle || skip "the cluster does not start here: $(grep -hE 'error|fatal' "$work"/*.log | tail -n 8)"

step() { (on 1 timeout -k 5 30 srun "$@") > "$work/out" 2>&1; }
# So many ranks on the first node and on the second got the right sums over BACKEND.
right() { # WHAT FIRST SECOND BACKEND
    local rank here
    for ((rank = 0; rank < $2 + $3; rank++)); do
        [ $rank -lt $2 ] && here="lk-1, $rank of $2" || here="lk-2, $((rank - $2)) of $3"
        [ $3 != 0 ] || here="lk-[12], $rank of $2" # one node: either
        grep -q "^rank $rank of $(($2 + $3)) on $here here, $4: right" "$work/out" ||
            { complain "$1: rank $rank: $(cat "$work/out")"; return; }
    done
    echo "$1"
}
named() { # WHAT SURVIVORS PATTERN: each of them named the killed rank
    [ "$(grep -cE "^failed LK_EIO $3 .* died" "$work/out")" = "$2" ] || complain "$1: $(cat "$work/out")"
    echo "$1"
}

step -N 1 -n 2 "$work/ranks" - 0.2 1000; right "srun -n 2" 2 0 shm
step -N 1 -n 3 --mpi=none "$work/ranks" - 0.2 1000; right "srun -n 3 --mpi=none" 3 0 shm
step -N 1 -n 3 "$work/ranks" - 1 1000 kill && complain "a killed rank was not detected: $(cat "$work/out")"
named "a rank is killed" 2 "rank 2 of 3 \(lk-1,"

step -N 2 -n 4 "$work/ranks" - 0.2 1000 && complain "two nodes without a token: $(cat "$work/out")"
[ "$(grep -c 'on several hosts .* set LOCKSTEP_TOKEN_FILE to a file' "$work/out")" = 4 ] ||
    complain "two nodes without a token: $(cat "$work/out")"
# As scripts do for other programs; it does not give the number of ranks on a node.
step -N 2 -n 4 sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec "$0" - 0.2 1000' "$work/ranks" &&
    complain "RANK by hand: $(cat "$work/out")"
[ "$(grep -c 'on several hosts .* set LOCKSTEP_TOKEN_FILE to a file' "$work/out")" = 4 ] ||
    complain "RANK by hand: $(cat "$work/out")"
export LOCKSTEP_TOKEN_FILE=$work/token
step -N 2 -n 4 "$work/ranks" - 0.2 1000 && complain "two nodes without an address: $(cat "$work/out")"
[ "$(grep -c "rank 0's address is not known: set MASTER_ADDR" "$work/out")" = 4 ] ||
    complain "two nodes without an address: $(cat "$work/out")"
export MASTER_ADDR=10.80.0.1 LOCKSTEP_PORT=4000-4060
step -N 2 -n 4 --ntasks-per-node=2 "$work/ranks" - 0.2 100000; right "two nodes, two tasks each" 2 2 mixed
step -N 2 -n 4 -m plane=3 "$work/ranks" - 0.2 100000; right "two nodes, three tasks and one" 3 1 mixed
step -N 2 -n 4 --ntasks-per-node=2 "$work/ranks" - 1 100000 kill &&
    complain "a killed rank was not detected: $(cat "$work/out")"
named "two nodes, a rank is killed" 3 "rank 3 of 4 \(lk-2,"
unset LOCKSTEP_TOKEN_FILE MASTER_ADDR LOCKSTEP_PORT

# MPI, which needs no settings: MPICH by pmi2, Open MPI by pmix.
(on 1 srun --mpi=list) > "$work/kinds" 2>&1
for pair in "pmi2 mpich" "pmix openmpi"; do
    read -r kind flavour <<< "$pair"
    grep -qw $kind "$work/kinds" && [ -e "$BUILD_DIR/lockstep_mpi_$flavour.so" ] ||
        { echo "no $kind in Slurm, or no module for $flavour: not tried"; continue; }
    step -N 1 -n 3 --mpi=$kind "$work/ranks" - 0.2 1000; right "srun --mpi=$kind" 3 0 shm
    step -N 1 -n 3 --mpi=$kind "$work/ranks" mpi 0.2 1000; right "srun --mpi=$kind, mpi" 3 0 "mpi with MPI"
    step -N 2 -n 4 --ntasks-per-node=2 --mpi=$kind "$work/ranks" mpi 0.2 100000; right \
        "srun --mpi=$kind, two nodes, mpi" 2 2 "mpi with MPI"
    step -N 2 -n 4 --ntasks-per-node=2 --mpi=$kind "$work/ranks" - 0.2 100000; right \
        "srun --mpi=$kind, two nodes, backend chosen" 2 2 "mixed with MPI"
done

# A batch script is not a step of two tasks, whatever Slurm sets for it; what it starts by srun is.
script="$work/ranks - 0 10; srun $work/ranks - 0 1000; $LOCKSTEP run -n 2 $work/ranks - 0 1000"
(on 1 timeout -k 5 30 sbatch --wait -N 1 -n 2 -o "$work/out" --wrap "$script") > "$work/batch" 2>&1 ||
    complain "sbatch: $(cat "$work/batch" "$work/out")"
grep -q '^rank 0 of 1 on lk-1, 0 of 1 here, self: right' "$work/out" || complain "in a batch script: $(cat "$work/out")"
right "a batch script" 2 0 shm
[ "$(grep -c '^\[rank [01]\] rank [01] of 2 on lk-1, [01] of 2 here, shm: right' "$work/out")" = 2 ] ||
    complain "lockstep run in a batch script: $(cat "$work/out")"
exit $wrong
