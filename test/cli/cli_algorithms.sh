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
pattern+='the libraries. first choices are used'
grep -q "$pattern" err.txt ||
    fail "a rank with another version does not say so: $(cat err.txt)"

# The costliest shapes are measured first, until the time is spent: a measurement takes 2 of 3 seconds here. The others
# use the library's first choice, which the file and the list say: later starts, resumed runs and ranks do not measure
# them either.
export LK_CUDA_EMULATED_SECONDS=2 LK_CUDA_EMULATED_FASTEST=1
shapes="--data synthetic:400,classes=100,count=768 --hidden 96" # three shapes with a choice
wide() { # wide DIRECTORY OPTION…
    local to=$1
    shift
    # shellcheck disable=SC2086
    train "$to" $shapes --steps 3 "$@"
}
XDG_CACHE_HOME=$work/short wide short
[ "$(wc -l < measured)" = 2 ] || fail "2 of 3 seconds for a measurement: $(cat measured)"
[ "$(head -1 measured)" = "measured 256 96 400" ] || fail "the costliest shape is not the first: $(cat measured)"
grep -qF "measured for the 2 costliest shapes, in 4.0 s; the library's first choice is used for 1 more" err.txt ||
    fail "what was not measured is not said: $(cat err.txt)"
grep -q 'tune  step' err.txt || fail "no progress is shown: $(cat err.txt)"
grep -q ' first$' short/lockstep/cuda-algorithms || fail "the file has no first choices"
firsts=$(grep -c ' first$' short/lockstep/cuda-algorithms)
grep -qE ' first"' short/state.json || fail "the list has no first choices: $(cat short/state.json)"
XDG_CACHE_HOME=$work/short "$LOCKSTEP" info |
    grep -q "tuned algorithms: 2 measured, $firsts set to the library's first" ||
    fail "info: $(XDG_CACHE_HOME=$work/short "$LOCKSTEP" info)"
rm measured
XDG_CACHE_HOME=$work/short wide again_short
measured 0 "the second start"
! grep -q 'costliest' err.txt || fail "it is said again: $(cat err.txt)"
same short again_short || fail "the second start has other bits"
LOCKSTEP_CUDA_TUNING_SECONDS=1000 XDG_CACHE_HOME=$work/empty_too wide long
[ "$(wc -l < measured)" = $((firsts + 2)) ] || fail "1000 seconds: $(cat measured)"
rm measured
! same short long || fail "all measured: the bits of first choices"
XDG_CACHE_HOME=$work/short wide half_short --steps 2
measured 0 "the start of a run that is resumed"
XDG_CACHE_HOME=$work/empty_three wide half_short --resume auto --steps 3
measured 0 "a resumed run with first choices"
same short half_short || fail "a resumed run measures what the list says is the first choice"
LOCKSTEP_CUDA_TUNING_SECONDS=1000 XDG_CACHE_HOME=$work/short wide more
[ "$(wc -l < measured)" = "$firsts" ] || fail "more time does not measure the first choices: $(cat measured)"
rm measured
! grep -q ' first$' short/lockstep/cuda-algorithms || fail "the file still has first choices"
same more long || fail "measured later: other bits than measured at once"
short_ranks() { # short_ranks DIRECTORY VARIABLES: as ranks
    # shellcheck disable=SC2016
    XDG_CACHE_HOME=/dev/null "$LOCKSTEP" run -n 3 -- bash -c \
        "$2 exec \"\$LOCKSTEP\" train --model mlp --batch 768 --threads 1 --steps 2 --save $1 $shapes" \
        > err.txt 2>&1 || fail "$1: $(cat err.txt)"
    measured 2 "$1: three ranks with time for two shapes"
}
short_ranks three_short 'export LK_CUDA_EMULATED_FASTEST=1;'
# shellcheck disable=SC2016
short_ranks mixed_short 'export LK_CUDA_EMULATED_FASTEST=$((RANK == 0));'
same three_short mixed_short || fail "ranks do not use the first choices of rank 0"
