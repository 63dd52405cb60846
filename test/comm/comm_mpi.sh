#!/usr/bin/env bash
# comm_mpi.sh - groups over MPI under a real mpirun, for each MPI whose module was built and whose mpirun is here: every
# collective against the oracle, alone and mixed with shared memory; groups open no descriptors; messages reuse their
# memory; different calls are reported within a second; a killed rank ends the job; the program needs no `lockstep run`;
# and without mpirun the error explains what to do. ctest: timeout 400, ranks 11
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }
# shellcheck source=test/mpi.bash
. "$SOURCE_DIR/test/mpi.bash"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN LOCKSTEP_HOST_ID

if [ -z "${LK_SANITIZE:-}" ]; then # a sanitized library needs a sanitized program
    cat > "$work/odd.c" <<'C'
/* odd.c WHAT - the last rank makes another call than the others, or dies. */
#include <lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Four messages each way at once, again and again: what earlier ones allocated is used again. */
static lk_status exchange_messages(lk_context *context, lk_comm *comm, float *data, uint64_t *allocations)
{
    enum { AT_ONCE = 4, ROUNDS = 20, EACH = 5000 };
    int       other = 1 - lk_comm_rank(comm);
    lk_work  *works[2 * AT_ONCE];
    lk_status status = LK_OK;
    for (int round = 0; round < ROUNDS && status >= 0; round++) {
        if (round == ROUNDS / 2) *allocations = lk_context_allocations(context);
        for (int i = 0; i < AT_ONCE && status >= 0; i++) {
            float *at = data + 2 * i * EACH;
            status = lk_comm_recv(comm, at, EACH, LK_F32, other, i, &works[2 * i]);
            if (status >= 0) status = lk_comm_send(comm, at + EACH, EACH, LK_F32, other, i, &works[2 * i + 1]);
        }
        for (int i = 0; i < 2 * AT_ONCE && status >= 0; i++) status = lk_work_wait(works[i]);
        if (status >= 0) status = lk_comm_barrier(comm, NULL);
    }
    *allocations = lk_context_allocations(context) - *allocations;
    return status;
}

int main(int count, char **arguments)
{
    uint64_t       allocations = 0;
    const char    *what = count > 1 ? arguments[1] : "";
    lk_context    *context;
    lk_comm       *comm = NULL;
    static float   data[1 << 20];
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.backend = strcmp(what, "hosts") == 0 ? NULL : "mpi";
    config.join_ms = 30000;
    if (lk_context_create(NULL, &context) < 0) return 1;
    if (lk_comm_create(context, &config, &comm) < 0) {
        fprintf(stderr, "%s\n", lk_context_error(context));
        return 1;
    }
    int    last = lk_comm_rank(comm) == lk_comm_size(comm) - 1, rounds = 0;
    size_t n = strcmp(what, "mismatch") == 0 && last ? 1000 : 1001;
    if (strcmp(what, "large") == 0) n = last ? 1 << 20 : (1 << 20) - 1;
    lk_status status = LK_OK;
    if (strcmp(what, "messages") == 0) {
        status = exchange_messages(context, comm, data, &allocations);
        printf("%d allocations\n", (int)allocations);
    }
    while (status >= 0 && (strcmp(what, "kill") == 0 || rounds == 0)) {
        if (strcmp(what, "kill") == 0 && last && rounds == 20) raise(SIGKILL);
        status = lk_comm_all_reduce(comm, data, data, n, LK_F32, LK_SUM, NULL);
        rounds++;
    }
    if (status >= 0)
        printf("fine over %s\n", lk_comm_backend(comm));
    else
        printf("%s: %s\n", lk_status_name(status), lk_comm_error(comm));
    fflush(stdout);
    if (status == LK_EMISMATCH) sleep(1); /* so that all can print it before mpirun ends the job */
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0 ? 3 : 0;
}
C
    "$CC" -std=gnu11 -Wall -Wextra -Werror -I"$SOURCE_DIR/include" "$work/odd.c" -L"$BUILD_DIR" -llockstep \
        -Wl,-rpath,"$BUILD_DIR" -o "$work/odd"
    if RANK=0 WORLD_SIZE=2 "$work/odd" > "$work/out" 2>&1; then fail "backend mpi without mpirun: $(cat "$work/out")"; \
        fi
    grep -q 'start it with mpirun' "$work/out" || fail "without mpirun: $(cat "$work/out")"
    if OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 LOCKSTEP_MODULES="$work" "$work/odd" > "$work/out" 2>&1; then \
        fail "without a module: $(cat "$work/out")"; fi
    grep -q 'LOCKSTEP_MODULES' "$work/out" || fail "without a module: $(cat "$work/out")"
fi

# expect_mismatch WHAT: all three ranks report LK_EMISMATCH, with both calls.
expect_mismatch() {
    if timeout 60 $start -n 3 "$work/odd" "$1" > "$work/out" 2>&1; then fail \
        "$flavour, $1: no rank failed: $(cat "$work/out")"; fi
    [ "$(grep -c '^LK_EMISMATCH: ' "$work/out")" = 3 ] || fail "$flavour, $1: $(cat "$work/out")"
    grep -q "all_reduce f32 × $2 sum at .*odd.c" "$work/out" &&
        grep -q "all_reduce f32 × $3 sum at .*odd.c" "$work/out" || fail "$flavour, $1: $(cat "$work/out")"
}

tried=0
for flavour in openmpi mpich; do
    start=$(command -v mpirun.$flavour || true)
    if [ -z "$start" ] && command -v mpirun > /dev/null; then
        case $flavour-$(mpirun --version 2>&1 | tr '\n' ' ') in
        openmpi-*"Open MPI"*|mpich-*HYDRA*) start=$(command -v mpirun) ;;
        esac
    fi
    if [ -z "$start" ]; then echo "there is no mpirun of $flavour: not tried"; continue; fi
    if [ ! -e "$BUILD_DIR/lockstep_mpi_$flavour.so" ]; then echo "no module was built for $flavour: not tried"; \
        continue; fi
    tried=1
    for ranks in 2 3 5 8 11; do
        [ $flavour = openmpi ] || [ $ranks -lt 5 ] || continue
        timeout 200 $start -n $ranks "$BUILD_DIR/test_comm_net" mpi > "$work/out" 2>&1 ||
            fail "$flavour, $ranks ranks: $(tail -40 "$work/out")"
        [ "$(grep -c '^ok ' "$work/out")" = $((ranks * 9)) ] || fail "$flavour, $ranks ranks: $(tail -40 "$work/out")"
        echo "     $flavour, $ranks ranks"
    done
    timeout 200 $start -n 4 "$BUILD_DIR/test_comm_net" mixed launched > "$work/out" 2>&1 ||
        fail "$flavour, mixed: $(tail -40 "$work/out")"
    timeout 100 $start -n 4 "$BUILD_DIR/test_comm_groups" mpi > "$work/out" 2>&1 ||
        fail "$flavour, groups: $(tail -40 "$work/out")"
    [ -z "${LK_SANITIZE:-}" ] || continue
    timeout 60 $start -n 3 "$work/odd" > "$work/out" 2>&1 || fail "$flavour: $(cat "$work/out")"
    [ "$(grep -c 'fine over mpi' "$work/out")" = 3 ] || fail "$flavour: $(cat "$work/out")"
    # Simulated hosts with two ranks each: shared memory and MPI are chosen, and no token or port is needed.
    cat > "$work/hosts" <<SH
#!/bin/sh
export LOCKSTEP_HOST_ID=\$((\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-0}} / 2))
export OMPI_COMM_WORLD_LOCAL_SIZE=2 MPI_LOCALNRANKS=2
[ $flavour = openmpi ] || unset OMPI_COMM_WORLD_LOCAL_SIZE
exec "$work/odd" hosts
SH
    chmod +x "$work/hosts"
    timeout 60 $start -n 4 "$work/hosts" > "$work/out" 2>&1 || fail "$flavour, hosts: $(cat "$work/out")"
    [ "$(grep -c 'fine over mixed' "$work/out")" = 4 ] || fail "$flavour, hosts: $(cat "$work/out")"
    timeout 60 $start -n 2 "$work/odd" messages > "$work/out" 2>&1 || fail "$flavour, messages: $(cat "$work/out")"
    # of 80 messages; a list may still grow where more of them than before arrive early
    [ "$(grep -c '^[0-7] allocations' "$work/out")" = 2 ] || fail "$flavour, messages: $(cat "$work/out")"
    expect_mismatch mismatch 1000 1001
    expect_mismatch large 1048575 1048576
    code=0
    timeout 60 $start -n 3 "$work/odd" kill > "$work/out" 2>&1 || code=$?
    [ $code != 0 ] && [ $code != 124 ] ||
        fail "$flavour: a killed rank did not end the job: exit status $code: $(cat "$work/out")"
    echo "ok   $flavour"
done
[ $tried = 1 ] || { echo "skipped: no MPI for which a module was built"; exit 77; }
