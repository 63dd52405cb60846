#!/usr/bin/env bash
# x_setup.sh - ./x shows progress while it installs and builds, on a terminal and elsewhere, and shows a log only on
# failure; it builds only what a task uses; ./x test prints why tests were skipped; ./x demo does not train twice.
# apt-get, cmake, ctest and the command are stubs.
# ctest: timeout 240
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"

# All commands of this machine except those that x checks for: the stub of apt-get installs that of cmake, which
# "builds" the command.
mkdir tree bin stubs
cp "$SOURCE_DIR/x" tree/
for folder in /bin /usr/bin; do ln -s $folder/* bin/ 2> /dev/null; done
unset LK_MPI LK_TEST_PROGRAMS LK_WERROR LK_CUDA_ARCHITECTURES # continuous integration sets them for itself
rm -f bin/cmake bin/ninja bin/apt-get bin/sudo bin/ctest bin/id bin/mpi* bin/zsh bin/fish bin/clang-format
printf '#!/bin/sh\necho 0\n' > bin/id # root, which needs no sudo
for tool in gcc g++ cc make pkg-config pgrep; do [ -e bin/$tool ] || ln -s /bin/true bin/$tool; done
cat > bin/apt-get <<'T'
#!/bin/sh
echo "apt-get $*" >> "$STUBS/calls"
fd=$(echo "$*" | sed -n 's/.*Status-Fd=\([0-9]\).*/\1/p')
eval "exec 9>&${fd:?no descriptor of the status}"
echo "dlstatus:1:10.0:Retrieving file 2 of 57" >&9
echo "pmstatus:cmake:62.5:Unpacking cmake (arm64)" >&9
case $* in *update*) ;; *) await_line "${APT_WAITS_FOR:-}" ;; esac
eval "exec $fd>&-" # apt closes it in packages' scripts, which write to their standard output
echo "Reading package lists..." || exit 100
[ -z "${APT_FAILS:-}" ] || { echo "E: Unable to locate package cmake"; exit 100; }
cp "$STUBS/cmake" "$STUBS/ctest" "$BIN/"
T
cat > bin/await_line <<'T'
#!/bin/sh
# FILE: waits until it has a progress line, which x prints every 10 seconds; gives up after two minutes
[ -n "$1" ] || exit 0
for i in $(seq 1200); do grep -q '^  [a-z].*, [0-9]* s$' "$1" && exit 0; sleep 0.1; done
T
cat > stubs/cmake <<'T'
#!/bin/sh
echo "cmake $*" >> "$STUBS/calls"
[ "$1" = --build ] || { echo "-- Configuring done"; exit 0; }
[ -z "${BUILD_WARNS:-}" ] || echo "first.c:1:1: warning: unused variable 'a' [-Wunused-variable]"
echo "[1/318] Building C object CMakeFiles/a.dir/src/first.c.o"
echo "[ 42%] Building C object CMakeFiles/a.dir/src/second.c.o"
[ -z "${BUILD_FAILS:-}" ] || { echo "third.c:1: error: invalid statement"; exit 1; }
await_line "${BUILD_WAITS_FOR:-}"
mkdir -p build && cp "$STUBS/lockstep" build/lockstep
T
cat > stubs/ctest <<'T'
#!/bin/sh
echo "ctest $*" >> "$STUBS/calls"
while [ "$1" != --output-junit ]; do shift; done
cp "$STUBS/tests.xml" "$2"
exit "${TESTS_FAIL:-0}"
T
cat > stubs/lockstep <<'T'
#!/bin/sh
echo "lockstep $*" >> "$STUBS/calls"
save=$(echo "$*" | sed 's/.*--save \([^ ]*\).*/\1/')
mkdir -p "$save"
echo '{"lockstep":"0.1.0","step":2814,"epoch":2,"position":60000,"seed":"0"}' > "$save/state.json"
T
cat > stubs/tests.xml <<'T'
	<testcase name="one" classname="one" time="0.01" status="run">
		<system-out>fine
</system-out>
	</testcase>
	<testcase name="two" classname="two" time="0.01" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out>skipped: there is no &apos;second&apos; host
and more
</system-out>
	</testcase>
	<testcase name="three" classname="three" time="0.01" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out></system-out>
	</testcase>
T
chmod +x bin/apt-get bin/id bin/await_line stubs/cmake stubs/ctest stubs/lockstep
export STUBS=$work/stubs BIN=$work/bin
x() { env PATH="$work/bin" DEBIAN_FRONTEND=noninteractive "$work/tree/x" "$@"; }
remove_stubs() { rm -rf bin/cmake bin/ctest stubs/calls tree/build; }

# Without a terminal: a progress line while it builds and installs, no logs, no escape sequences.
remove_stubs
BUILD_WAITS_FOR=$work/out.txt x build > out.txt 2>&1 || complain "build: $(cat out.txt)"
grep -q '^Installing .*cmake' out.txt || complain "does not print what it installs: $(cat out.txt)"
grep -Eq '^  building, 42%: second.c.o, [0-9]+ s$' out.txt ||
    complain "no progress line while it builds: $(cat out.txt)"
grep -Eq 'status:|Configuring|Reading' out.txt && complain "prints logs although nothing failed: $(cat out.txt)"
grep -q $'[\033\r]' out.txt && complain "control characters in a pipe: $(cat -v out.txt)"
grep -q 'first.c.o' tree/build/x.log && grep -q 'Configuring done' tree/build/x.log ||
    complain "the log lacks output: $(cat tree/build/x.log)"
grep -q '^cmake --build build .*--target installed$' stubs/calls ||
    complain "./x build builds more, or less, than is installed: $(cat stubs/calls)"
grep -Eq 'mpi|zsh|fish' stubs/calls && complain "./x build installs what it does not need: $(cat stubs/calls)"
remove_stubs
APT_WAITS_FOR=$work/out.txt x build > out.txt 2>&1 || complain "a slow apt-get: $(cat out.txt)"
grep -Eq '^  installing, 62 %: Unpacking cmake \(arm64\), [0-9]+ s$' out.txt ||
    complain "no progress line while apt-get installs: $(cat out.txt)"

# On a terminal: one line is updated in place and cleared at the end.
if has_terminal; then
    remove_stubs
    on_terminal "PATH='$work/bin' '$work/tree/x' build" < /dev/null > tty.txt ||
        complain "on a terminal: $(cat -v tty.txt)"
    for text in 'downloading: Retrieving file 2 of 57' 'installing, 62 %: Unpacking cmake' \
        'building, 1/318: first.c.o' 'building, 42%: second.c.o'; do
        grep -q $'\r\033\[K  '"$text" tty.txt || complain "on a terminal: no '$text': $(cat -v tty.txt)"
    done
    grep -q $'\r\033\[K\033\[1mbuild/lockstep is ready' tty.txt ||
        complain "the progress line is not cleared: $(cat -v tty.txt)"
fi

# Errors are shown.
remove_stubs
APT_FAILS=1 x build > out.txt 2>&1 && complain "x succeeded although apt-get failed"
grep -q 'E: Unable to locate package cmake' out.txt && grep -q 'x: apt-get could not install: .*cmake' out.txt &&
    ! grep -q 'status:' out.txt || complain "apt-get fails: $(cat out.txt)"
remove_stubs
BUILD_FAILS=1 x build > out.txt 2>&1 && complain "x succeeded although the build failed"
grep -q 'third.c:1: error: invalid statement' out.txt &&
    grep -q 'x: the build failed; its full output is in build/x.log' out.txt ||
    complain "the build fails: $(cat out.txt)"

# The reason of a skipped test is printed.
remove_stubs
x test > out.txt 2>&1 || complain "test: $(cat out.txt)"
[ "$(grep '^skipped' out.txt | tr '\n' '|')" = \
    "skipped two: there is no 'second' host|skipped three: no reason given|" ] ||
    complain "does not print why a test was skipped: $(cat out.txt)"

grep -q '^cmake --build build -j [0-9]*$' stubs/calls ||
    complain "./x test does not build everything: $(cat stubs/calls)"

# Continuous integration installs both MPIs and runs the suite of a build without LK_WERROR, as a user has it, then the
# quick part of it with sanitizers, for which a compiler suffices. Warnings of the first build fail it.
remove_stubs
rm -f bin/valgrind
mkdir tree/.ci
cp "$SOURCE_DIR/.ci/run" tree/.ci/
env PATH="$work/bin" tree/.ci/run > out.txt 2>&1 || complain ".ci/run: $(cat out.txt)"
[ "$(grep -c '^ctest ' stubs/calls)" = 2 ] && grep '^ctest ' stubs/calls | tail -1 |
    grep -Fq -- "--test-dir build-asan " &&
    grep -Fq -- "-L ^(c|cxx|fuzz|quick)\$ -LE ^(slow|guarded|emulated)\$" stubs/calls ||
        complain ".ci/run: $(cat stubs/calls)"
for package in openmpi-bin libopenmpi-dev mpich libmpich-dev zsh fish clang-format; do
    grep -q "^apt-get .* install .* $package\( \|$\)" stubs/calls ||
        complain ".ci/run does not install $package: $(cat stubs/calls)"
done
grep -q valgrind stubs/calls && complain "asan --quick installs valgrind: $(cat stubs/calls)"
BUILD_WARNS=1 env PATH="$work/bin" tree/.ci/run > out.txt 2>&1 &&
    complain ".ci/run succeeded although the build has warnings"
grep -q 'unused variable' out.txt || complain ".ci/run does not show the warning: $(cat out.txt)"
x check asan --slow > out.txt 2>&1 && complain "an unknown option of a check is ignored"
grep -q "unknown check '--slow'" out.txt || complain "an unknown check: $(cat out.txt)"

TESTS_FAIL=8 x test > out.txt 2>&1
[ $? = 8 ] && grep -q '^skipped two' out.txt ||
    complain "exit status or reasons are wrong when tests fail: $(cat out.txt)"

# The demo trains once and then reports that it has; --epochs trains further.
remove_stubs
x demo > out.txt 2>&1 || complain "demo: $(cat out.txt)"
grep -q '^Training SimpleCNN on Fashion-MNIST for 3 epochs' out.txt &&
    [ "$(grep -c '^lockstep train' stubs/calls)" = 1 ] || complain "the first demo: $(cat out.txt stubs/calls)"
grep -q '^cmake --build build .*--target lockstep_command$' stubs/calls &&
    [ "$(grep -c '^cmake --build' stubs/calls)" = 1 ] ||
    complain "the demo builds more than the command: $(cat stubs/calls)"
x demo > out.txt 2>&1 || complain "demo again: $(cat out.txt)"
[ "$(grep -c '^lockstep train' stubs/calls)" = 1 ] || complain "the second demo trains: $(cat stubs/calls)"
for text in 'has already been trained \(3 epochs\)' 'lockstep eval --load' 'lockstep predict --load' \
    './x demo --epochs 6'; do
    grep -Eq -e "$text" out.txt || complain "the second demo does not print '$text': $(cat out.txt)"
done
x demo --epochs 6 > out.txt 2>&1 || complain "demo --epochs 6: $(cat out.txt)"
grep -q -e '--epochs 3 .*--epochs 6$' stubs/calls || complain "demo --epochs 6 does not train: $(cat stubs/calls)"
finish $wrong
