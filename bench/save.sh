#!/usr/bin/env bash
# save.sh - the time of a save by several ranks against dd, which writes the same bytes and flushes them. An MLP of 84
# million parameters and Adam's state are 1.0 GB. Each round: the second save of a run, as the log reports it (copy,
# digests, flush, rename, and the state file; the first also touches the memory of the copies for the first time), then
# dd of the same bytes out of the page cache. Prints the rounds, the medians and their ratio.
#   bench/save.sh [RANKS] [ROUNDS] [DIRECTORY]     e.g. bench/save.sh 4 5 /tmp;
#                                                  OTHER=COMMAND measures another lockstep in the same rounds
set -euo pipefail
ranks=${1:-4} rounds=${2:-5} \
    work=$(mktemp -d "${3:-/tmp}/lockstep-save-XXXXXX") lockstep=$(realpath "${LOCKSTEP:-build/lockstep}")
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1
save() { # COMMAND NAME
    rm -rf "$2"
    sync
    "$1" train --model mlp --hidden 1000000 --data synthetic:73,count=64 --batch "$ranks" --steps 2 --save-every 1 \
        --keep 2 --optimizer adam --eval-every -1 --seed 1 \
        --threads 1 -n "$ranks" --save "$2" --log "$2.jsonl" > "$2.out" 2>&1 || { cat "$2.out" >&2; exit 1; }
    sed -n 's/.*"event": "saved".*"seconds": \([0-9.]*\).*/\1/p' "$2.jsonl" | tail -1
    rm -f "$2.jsonl"
}
copy() { # the same bytes by dd
    cat new/model.safetensors new/optimizer.safetensors > bytes
    sync
    dd if=bytes of=copied bs=8M conv=fsync 2>&1 | sed -n 's/.* \([0-9.]*\) s,.*/\1/p'
    rm -f copied bytes
}
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
for ((i = 1; i <= rounds; i++)); do
    save "$lockstep" new >> saves
    copy >> copies
    line="round $i: save $(tail -1 saves) s, dd $(tail -1 copies) s"
    if [ -n "${OTHER:-}" ]; then
        save "$OTHER" other >> others
        line="$line, other $(tail -1 others) s"
    fi
    echo "$line, load $(cut -d' ' -f1 /proc/loadavg)"
done
a=$(median < saves) b=$(median < copies)
awk -v a="$a" -v b="$b" -v n="$ranks" \
    'BEGIN { printf "%d ranks: save %.2f s, dd %.2f s, ratio %.2f\n", n, a, b, a / b }'
if [ -n "${OTHER:-}" ]; then echo "other: save $(median < others) s"; fi
