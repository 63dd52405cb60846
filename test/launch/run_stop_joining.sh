#!/usr/bin/env bash
# run_stop_joining.sh - a rank is stopped while ranks join, or while memory that they share is given to them: the
# launcher names that rank, not one that waited for it. A preloaded library stops it before its n-th message to another
# rank of this host.
# ctest: timeout 120, ranks 3
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a preloaded library does not work with sanitizers"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
wrong=0
cat > stop.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void stop_if_due(int fd)
{
    static int              count;
    struct sockaddr_storage address;
    socklen_t               length = sizeof address;
    const char             *rank = getenv("RANK"), *victim = getenv("STOP_RANK"), *at = getenv("STOP_AT");
    if (!rank || !victim || !at || strcmp(rank, victim) != 0) return;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 || address.ss_family != AF_UNIX) return;
    if (++count == atoi(at)) raise(SIGSTOP);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) =
        (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    stop_if_due(fd);
    return next(fd, message, flags);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    ssize_t (*next)(int, const void *, size_t, int) =
        (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    stop_if_due(fd);
    return next(fd, data, bytes, flags);
}
C
"${CC:-cc}" -shared -fPIC -O1 -o stop.so stop.c -ldl || { echo "skipped: no preloaded library can be built"; exit 77; }

# For rank 0: 3 to 8 when it joins, 11 to 16 and 18 in the memory of the state and of the gradients; for rank 2: 2 and 4
# are its reports that it has mapped memory.
for stop in '0 4' '0 6' '0 7' '0 8' '0 10' '0 12' '0 14' '0 15' '0 18' '2 1' '2 2' '2 3' '2 4'; do
    read -r rank at <<< "$stop"
    STOP_RANK=$rank STOP_AT=$at LD_PRELOAD=$work/stop.so LOCKSTEP_JOIN_TIMEOUT=1 timeout -s KILL 60 "$LOCKSTEP" train \
        -n 3 --model mlp --data synthetic:64,count=200 \
        --batch 24 --steps 3 --eval-every -1 --threads 1 --timeout 1 --state shared > out.txt 2>&1 < /dev/null
    code=$?
    if [ $code != 1 ] || [ "$(grep -c '^lockstep run: [^ ]' out.txt)" != 1 ] ||
        ! grep -q "^lockstep run: rank $rank stopped answering (state: stopped by a signal)" out.txt; then
        echo "rank $rank, before message $at: exit status $code: $(cat out.txt)" >&2
        wrong=1
    fi
done
exit $wrong
