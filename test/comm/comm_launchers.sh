#!/usr/bin/env bash
# comm_launchers.sh - a C program with one all_reduce, built outside the tree, joins its peers however it is started: by
# hand, by `lockstep run`, by torchrun and by mpirun, where they are installed; and `lockstep bench comm` prints its
# documented output. ctest: timeout 180
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a sanitized library needs a sanitized program"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

cat > "$work/sum.c" <<'C'
#include <lockstep.h>
#include <stdio.h>

int main(void)
{
    lk_context *context;
    lk_comm    *comm = NULL;
    int32_t     sum;
    if (lk_context_create(NULL, &context) < 0) return 1;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.join_ms = 30000;
    lk_status status = lk_comm_create(context, &config, &comm);
    if (status >= 0) {
        sum = lk_comm_rank(comm) + 1;
        status = lk_comm_all_reduce(comm, &sum, &sum, 1, LK_I32, LK_SUM, NULL);
    }
    if (status < 0)
        fprintf(stderr, "%s\n", lk_context_error(context));
    else if (lk_comm_rank(comm) == 0)
        printf("sum %d of %d over %s\n", (int)sum, lk_comm_size(comm), lk_comm_backend(comm));
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0;
}
C
"$CC" -std=gnu11 -Wall -Wextra -Werror -I"$SOURCE_DIR/include" "$work/sum.c" -L"$BUILD_DIR" -llockstep \
    -Wl,-rpath,"$BUILD_DIR" -o "$work/sum"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN

expect() { grep -q "^[^a-z]*sum $1 of $2 over $3" "$work/out" || fail "$4: $(cat "$work/out")"; }

"$work/sum" > "$work/out" 2>&1 || fail "alone: $(cat "$work/out")"
expect 1 1 self alone

for rank in 0 1 2; do RANK=$rank WORLD_SIZE=3 MASTER_PORT=$$ "$work/sum" >> "$work/by-hand" 2>&1 & done
wait
mv "$work/by-hand" "$work/out"
expect 6 3 shm "by hand"

"$LOCKSTEP" bench comm --ranks 3 --sizes 8,64K --json > "$work/out" || fail "bench comm: $(cat "$work/out")"
for key in bytes time_us algbw_gb_per_s busbw_gb_per_s memory limit_gb_per_s; do
    [ "$(grep -c "^{.*\"$key\": .*}$" "$work/out")" = 4 ] || fail "bench comm, $key: $(cat "$work/out")"
done
! grep -q '"limit_gb_per_s": \(null\|0[,}]\)' "$work/out" || fail "bench comm: no limit: $(cat "$work/out")"
[ "$(grep -o '"memory": "[a-z]*"' "$work/out" | tr -d '\n')" = \
    '"memory": "symmetric""memory": "ordinary""memory": "symmetric""memory": "ordinary"' ] ||
    fail "bench comm: symmetric comes first: $(cat "$work/out")"
for op in all_reduce reduce broadcast all_gather reduce_scatter all_to_all; do
    "$LOCKSTEP" bench comm --ranks 3 --op $op --sizes 1M --memory symmetric > "$work/out" ||
        fail "bench comm $op: $(cat "$work/out")"
    grep -q "with N ranks and buffers of S bytes" "$work/out" ||
        fail "bench comm $op does not say what its limit counts: $(cat "$work/out")"
done

if "$LOCKSTEP" help --names | grep -qx run; then
    "$LOCKSTEP" run --nproc-per-node 2 "$work/sum" > "$work/out" 2>&1 || fail "lockstep run: $(cat "$work/out")"
    grep -q 'sum 3 of 2 over shm' "$work/out" || fail "lockstep run: $(cat "$work/out")"
fi
if command -v torchrun > /dev/null && torchrun --help > /dev/null 2>&1; then
    torchrun --standalone --no-python --nproc-per-node 2 "$work/sum" > "$work/out" 2>&1 ||
        fail "torchrun: $(cat "$work/out")"
    grep -q 'sum 3 of 2 over shm' "$work/out" || fail "torchrun: $(cat "$work/out")"
else
    echo "torchrun is not here: not tried"
fi
if command -v mpirun > /dev/null; then
    # shellcheck source=test/mpi.bash
    . "$SOURCE_DIR/test/mpi.bash"
    mpirun -n 3 "$work/sum" > "$work/out" 2>&1 || fail "mpirun: $(cat "$work/out")"
    grep -q 'sum 6 of 3 over shm' "$work/out" || fail "mpirun: $(cat "$work/out")"
else
    echo "mpirun is not here: not tried"
fi
