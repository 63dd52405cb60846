#!/usr/bin/env bash
# cli_algorithms.sh - the choice of algorithms on the device cuda, in the emulation, whose stand-in for cuBLASLt has two
# with different bits: measured once and kept, the same on all ranks, saved, and used again on resume.
# ctest: timeout 240, ranks 3
set -eu
export LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated LOCKSTEP_DEVICE=cuda LOCKSTEP_SHARE_DEVICE=1 LOCKSTEP_CUDA_TENSOR=1
[ -f "$LOCKSTEP_MODULES/liblockstep-cuda.so" ] || { echo "skipped: this build has no emulation of CUDA"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
export XDG_CACHE_HOME=$work/cache LK_CUDA_EMULATED_MEASURED=$work/measured LK_CUDA_EMULATED_FASTEST=1
mkdir cache
measured() { # measured N TEXT: so many measurements since the last call
    local n=0
    [ ! -f measured ] || n=$(wc -l < measured)
    rm -f measured
    [ "$n" = "$1" ] || fail "$2: $n measurements, not $1"
}
train() { # train DIRECTORY OPTION…: messages in err.txt
    local to=$1
    shift
    "$LOCKSTEP" train --model mlp --batch 256 --threads 1 --save "$to" "$@" > err.txt 2>&1 ||
        fail "$to $*: $(cat err.txt)"
}
same() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }

# Measured once, then kept.
train whole --steps 6
measured 1 "the first start"
train again --steps 6
measured 0 "the second start"
same whole again || fail "two runs with the same algorithms differ"
grep -qF '"algorithms":["on ' whole/state.json || fail "state.json has no algorithms: $(cat whole/state.json)"
grep -qF 'stand-in 1","' whole/state.json || fail "state.json does not say what was measured"
LK_CUDA_EMULATED_FASTEST=0 XDG_CACHE_HOME=$work/none train other --steps 6
measured 1 "another cache"
! same whole other || fail "both algorithms have the same bits: the tests below would prove nothing"

# A resumed run has the bits of an undisturbed one, whatever would be measured now.
train half --steps 3
measured 0 "the third start"
LK_CUDA_EMULATED_FASTEST=0 XDG_CACHE_HOME=$work/empty train half --resume auto --steps 6
measured 0 "a resumed run"
same whole half || fail "a resumed run does not use the checkpoint's algorithms"

# With another version of the library that is said, and measured anew; the CPU has no algorithms to choose.
LK_CUDA_EMULATED_VERSION=2 XDG_CACHE_HOME=$work/empty train half --resume auto --steps 7
measured 1 "another version"
grep -q 'the algorithms of the checkpoint were chosen on .*stand-in 1; this is .*stand-in 2: they are tuned again' \
    err.txt ||
    fail "another version is not said: $(cat err.txt)"
train half --resume auto --steps 8 --device cpu
! grep -qF '"algorithms"' half/state.json || fail "a run on the CPU saved algorithms"

# --reproducible measures nothing.
XDG_CACHE_HOME=$work/empty train reproducible --steps 2 --reproducible
measured 0 "--reproducible"
! grep -qF '"algorithms"' reproducible/state.json || fail "--reproducible saved algorithms"

# Ranks take rank 0's: what they would measure themselves, and what their caches hold, does not count. (No rank can keep
# its choice.)
ranks() { # ranks DIRECTORY VARIABLES: 3 ranks, with variables that may contain $RANK
    # shellcheck disable=SC2016
    XDG_CACHE_HOME=/dev/null "$LOCKSTEP" run -n 3 -- bash -c \
        "$2"' exec "$LOCKSTEP" train --model mlp --batch 768 --threads 1 --steps 4 --save '"$1" \
        > err.txt 2>&1 || fail "$1: $(cat err.txt)"
}
ranks three 'export LK_CUDA_EMULATED_FASTEST=1;'
measured 1 "three ranks"
# shellcheck disable=SC2016
ranks mixed 'export LK_CUDA_EMULATED_FASTEST=$((RANK == 0));'
measured 1 "three ranks that would choose differently"
same three mixed || fail "ranks do not use the algorithms of rank 0"

# A rank with another version says that it cannot.
# shellcheck disable=SC2016
ranks versions 'export LK_CUDA_EMULATED_VERSION=$((RANK == 2 ? 2 : 1));'
measured 1 "three ranks, one with another version"
pattern='the algorithms of rank 0 were chosen on .*stand-in 1; this is .*stand-in 2: '
pattern+='its libraries. first choices are used'
grep -q "$pattern" err.txt ||
    fail "a rank with another version does not say so: $(cat err.txt)"
