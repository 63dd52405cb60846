#!/usr/bin/env bash
# overlap.sh - the time of a step between two hosts with a slow link, against the critical path that `lockstep plan`
# prints. The hosts are network namespaces of this machine, connected by a veth whose rate tbf limits to RATE. As root.
#   bench/overlap.sh [BATCH] [RATE]     e.g. bench/overlap.sh 384 1gbit
#   OPTIONS="--model gpt --layers 2 --width 256 --heads 4 --context 128 --mesh tensor=2 --pieces 4" \
#       bench/overlap.sh 8 100mbit      another model or mesh; --pieces 1 beside it shows what pieces save
set -euo pipefail
batch=${1:-384} rate=${2:-1gbit} lockstep=${LOCKSTEP:-build/lockstep}
steps=${STEPS:-40} trace=${TRACE:-/tmp/overlap.json}
read -ra options <<< "${OPTIONS:---model cnn --data synthetic}"
case " ${options[*]} " in *" --mesh "*) measure=() ;; *) measure=(--measure) ;; esac # plan measures whole models
a=lk-a-$$ b=lk-b-$$
finish() { ip netns del "$a" 2> /dev/null || true; ip netns del "$b" 2> /dev/null || true; }
trap finish EXIT
ip netns add "$a"
ip netns add "$b"
ip link add ve0 netns "$a" type veth peer name ve0 netns "$b"
for host in "$a 10.77.0.1" "$b 10.77.0.2"; do
    set -- $host
    ip -n "$1" addr add "$2/24" dev ve0
    ip -n "$1" link set lo up
    ip -n "$1" link set ve0 up
    ip netns exec "$1" tc qdisc add dev ve0 root tbf rate "$rate" burst 256kb latency 50ms
done
LOCKSTEP_TOKEN=$(head -c16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export LOCKSTEP_TOKEN OMP_NUM_THREADS=1
run() { # NAMESPACE NODE CORE
    ip netns exec "$1" taskset -c "$3" "$lockstep" run -n 1 --nnodes 2 --node-rank "$2" --master-addr 10.77.0.1 \
        --master-port 29577 -- \
        "$lockstep" train "${options[@]}" --batch "$batch" --steps "$steps" --eval-every -1 --threads 1 \
            --trace "$trace" --log "/tmp/overlap-$2.jsonl" --json
}
rm -f /tmp/overlap-0.jsonl /tmp/overlap-1.jsonl
run "$b" 1 1 > /tmp/overlap-b.txt 2>&1 &
run "$a" 0 0 > /tmp/overlap-a.txt 2>&1
wait
link=${rate/gbit/Gbit}
taskset -c 0 "$lockstep" plan "${options[@]}" --batch "$batch" -n 2 --threads 1 "${measure[@]}" --link \
    "${link/mbit/Mbit}" | tail -8
python3 - "$trace" <<'P'
import json, statistics, sys
steps = [e for e in map(json.loads, open("/tmp/overlap-0.jsonl")) if e["event"] == "step"]
times = sorted(1e3 * e["seconds"] for e in steps[5:])
overlap = json.load(open(sys.argv[1]))["otherData"]["overlap_percent"]
print(f"measured: median step {statistics.median(times):.1f} ms of {len(times)}; overlap {overlap} %")
P
