#!/usr/bin/env bash
# state_memory.sh - what the ranks of a host hold, by the system's own count: their proportional set sizes add up to
# what `lockstep plan` prints for a host, with shared and with replicated state, with one copy of the parameters for
# each of two memory nodes, and with the state split over the axes shard (slices) and tensor; and each rank of a mesh
# holds what is printed for a rank. All within 1 % and 4 MiB. And shared memory is gone when all ranks are killed.
#
# state_memory.sh [RANKS [HIDDEN [KIND...]]] measures other sizes: of 16 ranks and 100 million parameters, in 8 GB,
#     LOCKSTEP=build/lockstep test/cli/state_memory.sh 16 96618 shared nodes
#
# ctest: timeout 300, ranks 2
set -eu
work=$(mktemp -d)
job=
trap 'if [ -n "$job" ]; then kill -9 "$job" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
ranks=${1:-2} hidden=${2:-12000}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- shared nodes replicated shard tensor
common="--data synthetic:1024,count=64 --features 1024 --batch $ranks --threads 1 --eval-every -1"
large="--model mlp --hidden $hidden $common" small="--model mlp --hidden 8 $common"

# The processes of the ranks, which have that in their environment; the launcher has other children too.
members_of() { # members_of LAUNCHER
    local child
    for child in $(pgrep -P "$1"); do
        if grep -qz '^RANK=' "/proc/$child/environ" 2> /dev/null; then echo "$child"; fi
    done
}
# The ranks of the job, once they have trained for some steps.
has_steps() { [ -e "$work/log.json" ] && [ "$(grep -c '"step"' "$work/log.json")" -ge "$1" ]; }
start() { # start OPTIONS...
    "$LOCKSTEP" train -n "$ranks" --steps 100000 --log "$work/log.json" "$@" > "$work/out.txt" 2>&1 &
    job=$!
    wait_until_job 300 has_steps 3 || { cat "$work/out.txt" >&2; exit 1; }
    members=$(members_of "$job" | tr '\n' ' ')
    [ "$(echo "$members" | wc -w)" = "$ranks" ] || { echo "the job has ranks $members" >&2; exit 1; }
}
stop() {
    kill -9 "$job" 2> /dev/null || true
    # shellcheck disable=SC2086
    kill -9 $members 2> /dev/null || true
    wait "$job" 2> /dev/null || true
    job=
    rm -f "$work/log.json"
}
held() { # held MEMBER…: the sum of proportional set sizes, in KiB
    local total=0 member
    for member; do
        total=$((total + $(awk '/^Pss:/ {print $2}' "/proc/$member/smaps_rollup")))
    done
    echo $total
}
planned() { # planned STATE WHOSE OPTIONS...: of a host or a rank, in KiB
    local state=$1 whose=$2
    shift 2
    "$LOCKSTEP" plan -n "$ranks" --state "$state" --json "$@" |
        python3 -c "import json, sys; print(json.load(sys.stdin)['$state']['$whose'] // 1024)"
}
compare() { # compare NAME ACTUAL EXPECTED, in KiB
    awk -v a="$2" -v e="$3" -v s="$1" 'BEGIN {
        off = a - e
        printf "%s: %.1f MiB, planned %.1f MiB: %+.2f %%\n", s, a / 1024, e / 1024, 100 * off / e
        exit off > e / 100 + 4096 || -off > e / 100 + 4096 }'
}

# shellcheck disable=SC2086
for kind; do
    state=$kind
    unset LOCKSTEP_MEMORY_NODES
    if [ $kind = nodes ]; then state=shared && export LOCKSTEP_MEMORY_NODES=2; fi
    axes=
    case $kind in shard | tensor) state=replicated axes="--mesh $kind=$ranks" ;; esac
    start $small --state $state $axes
    little=$(held $members)
    little_each=$(held ${members%% *})
    stop
    start $large --state $state $axes
    much=$(held $members)
    much_each=$(held ${members%% *})
    inodes=$(awk '$6 == "/memfd:lockstep" && $7 == "(deleted)" {print $5}' /proc/${members%% *}/maps | sort -u)
    [ -n "$inodes" ] || { echo "rank 0 maps no shared memory"; exit 1; }
    stop
    # Programs differ by their models alone, so what all ranks have besides is in both.
    grown() { echo $(($(planned $state $1 $large $axes) - $(planned $state $1 $small $axes))); } # of a host or a rank
    compare "$kind" $((much - little)) "$(grown host)"
    [ -z "$axes" ] || compare "$kind, rank 0" $((much_each - little_each)) "$(grown rank)"
    # No process maps it any more, and it never had a name in a file system.
    for inode in $inodes; do
        if awk -v inode="$inode" '$5 == inode && $6 ~ /memfd:lockstep/ {found = 1} END {exit !found}' \
            /proc/[0-9]*/maps 2> /dev/null; then
            echo "memory $inode is still mapped"; exit 1
        fi
    done
done
