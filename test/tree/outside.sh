#!/usr/bin/env bash
# outside.sh - the tree is installed into an empty prefix, which is then moved; a program outside is built against it by
# pkg-config and by find_package, shared and static, and run. Every public header compiles by itself in C and in C++.
# The installed command trains over each MPI for which a module was installed.
# ctest: timeout 300, ranks 2
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: the program outside would need the same flags"; exit 77; }
command -v pkg-config >/dev/null || { echo "skipped: there is no pkg-config"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cmake --install "$BUILD_DIR" --prefix "$work/first" > install.log
# `./x build` builds the target `installed` alone: each file that is both built and installed is made by it.
if [ -e "$BUILD_DIR/build.ninja" ] && command -v ninja > /dev/null; then
    ninja -C "$BUILD_DIR" -t commands installed > commands.txt
    for file in $(grep -o "$BUILD_DIR/[^\"/]*\"" "$BUILD_DIR/cmake_install.cmake" | sed "s|.*/||; s/\"//" | sort -u); do
        ninja -C "$BUILD_DIR" -t query "$file" 2> /dev/null | grep -q 'input: ' || continue
        grep -qF "$file" commands.txt || { echo "the target installed does not make $file" >&2; exit 1; }
    done
fi
mv first prefix # installed files must not contain the prefix
libdir=$(dirname "$(find prefix -name liblockstep.so)")
pcdir=$(dirname "$(find prefix -name lockstep.pc)")
[ "$(readlink "$libdir/liblockstep.so.0.1")" != "" ] || { echo "no liblockstep.so.0.1" >&2; exit 1; }
prefix/bin/lockstep --version | grep -q '^lockstep [0-9]'
[ -s prefix/share/man/man1/lockstep.1 ] && [ -s prefix/share/man/man1/lockstep-info.1 ] ||
    { echo "no man pages" >&2; exit 1; }
for file in bash-completion/completions/lockstep zsh/site-functions/_lockstep fish/vendor_completions.d/lockstep.fish; \
    do
    grep -q 'completion for lockstep' "prefix/share/$file" || { echo "no share/$file" >&2; exit 1; }
done

# shellcheck source=test/mpi.bash
. "$SOURCE_DIR/test/mpi.bash"
for module in "$libdir"/lockstep/lockstep_mpi_*.so; do
    flavour=${module##*lockstep_mpi_}
    start=mpirun.${flavour%.so}
    command -v "$start" > /dev/null || { echo "there is no $start: training over it is not tried"; continue; }
    timeout 100 $start -n 2 prefix/bin/lockstep train --backend mpi --model mlp --data synthetic:64,count=64 --batch \
        16 --steps 3 --threads 1 --json > mpi.txt 2>&1 &&
        grep -q '"ranks": 2' mpi.txt || { echo "training over $flavour: $(cat mpi.txt)" >&2; exit 1; }
done

cat > main.c <<'C'
#include <lockstep.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    lk_context *context;
    lk_graph   *graph;
    if (strcmp(lk_version(), LK_VERSION_STRING) != 0 || lk_context_create(NULL, &context) < 0) return 1;
    if (lk_graph_create(context, LK_F32, &graph) < 0) return 1;
    int64_t   dims[] = {2, 3, 8, 8};
    lk_tensor y = lk_model_cnn(lk_input(graph, "x", LK_F32, 4, dims), (lk_model_options){.classes = 7});
    printf("%d axes, %lld classes\n", lk_tensor_rank(y), (long long)lk_tensor_dim(y, -1));
    int wrong = lk_tensor_rank(y) != 2 || lk_tensor_dim(y, 1) != 7;
    lk_graph_free(graph);
    lk_context_free(context);
    return wrong;
}
C

export PKG_CONFIG_PATH=$work/$pcdir
[ "$(pkg-config --modversion lockstep)" = "$(prefix/bin/lockstep --version | cut -d' ' -f2)" ]
# shellcheck disable=SC2046
"$CC" -std=gnu11 -Wall -Wextra -Werror main.c -o by_pkg_config $(pkg-config --cflags --libs lockstep)
LD_LIBRARY_PATH=$libdir ./by_pkg_config
mkdir static_only && cp "$libdir/liblockstep.a" static_only/
# shellcheck disable=SC2046
"$CC" -std=gnu11 main.c -o by_pkg_config_static $(pkg-config --cflags lockstep) -Lstatic_only \
    $(pkg-config --static --libs-only-l lockstep) -pthread
./by_pkg_config_static

mkdir project && cp main.c project/
cat > project/CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.22)
project(outside C)
find_package(lockstep 0.1 REQUIRED)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE lockstep::lockstep)
add_executable(static main.c)
target_link_libraries(static PRIVATE lockstep::static)
C
cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$CC" > cmake.log 2>&1 ||
    { cat cmake.log >&2; exit 1; }
cmake --build project/build > build.log 2>&1 || { cat build.log >&2; exit 1; }
project/build/shared
project/build/static
sed 's/lockstep 0.1/lockstep 9.0/' -i project/CMakeLists.txt
if cmake -S project -B project/newer -DCMAKE_PREFIX_PATH="$work/prefix" > /dev/null 2>&1; then echo \
    "version 9.0 was found" >&2; exit 1; fi

for header in lockstep.h $(cd prefix/include && ls lockstep/*.h); do
    echo "#include <$header>" > alone.c
    "$CC" -std=gnu11 -Wall -Wextra -Werror -pedantic -Iprefix/include -fsyntax-only alone.c ||
        { echo "$header does not compile by itself in C" >&2; exit 1; }
    if command -v g++ > /dev/null; then
        cp alone.c alone.cpp
        g++ -std=c++20 -Wall -Wextra -Werror -Iprefix/include -fsyntax-only alone.cpp ||
            { echo "$header does not compile by itself in C++" >&2; exit 1; }
    fi
done
