#!/usr/bin/env bash
# configure.sh - what is optional is probed by linking when the tree is configured: an mpicc, an nvcc, a libpng and a
# libjpeg that are there but do not link, and an hwloc.h that does not compile, are each left out with one line that
# says why; LK_MPI=openmpi makes it an error instead.
# ctest: timeout 240
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: it configures, which sanitizers do not change"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*" >&2; exit 1; }

mkdir bin include
cat > bin/mpicc <<'T'
#!/bin/sh
case $* in *--showme:version*) echo "mpicc: Open MPI 4.1.4 (Language: C)"; exit 0 ;; esac
echo "/usr/bin/ld: cannot find -lmpi: No such file or directory" >&2
echo "collect2: error: ld returned 1 exit status" >&2
exit 1
T
printf '#!/bin/sh\nexit 1\n' > bin/mpicc.mpich
cp bin/mpicc bin/mpicc.openmpi
cat > bin/nvcc <<'T'
#!/bin/sh
case $* in --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;; esac
echo "nvcc fatal: libcudart_static.a: error: wrong architecture" >&2
exit 1
T
chmod +x bin/*
echo '#error no hwloc for this architecture' > include/hwloc.h
echo 'not a library' > libbroken.so
configure() {
    PATH=$work/bin:$PATH cmake -S "$SOURCE_DIR" -B "$1" -DCMAKE_C_COMPILER="$CC" -DLK_TESTS=OFF \
        -DLK_NVCC="$work/bin/nvcc" -DPNG_LIBRARY="$work/libbroken.so" \
        -DPNG_PNG_INCLUDE_DIR="$work/include" -DJPEG_LIBRARY="$work/libbroken.so" -DJPEG_INCLUDE_DIR="$work/include" \
            -DLK_HWLOC_HEADER="$work/include" "${@:2}" > out.txt 2>&1
}
configure build || fail "tools that do not link stop the configuration: $(cat out.txt)"
no_mpi="/usr/bin/ld: cannot find -lmpi: No such file or directory"
no_cuda="nvcc fatal: libcudart_static.a: error: wrong architecture"
for line in "No MPI module built with $work/bin/mpicc.openmpi, which cannot link a shared object: $no_mpi" \
    "No MPI module built with $work/bin/mpicc.mpich, which cannot link a shared object: exit status 1, and no message" \
    "No CUDA module: $work/bin/nvcc does not compile and link: $no_cuda"; do
    [ "$(grep -cF -- "-- $line" out.txt)" = 1 ] || fail "no line '$line': $(cat out.txt)"
done
for line in 'PNG files cannot be read without libpng: a program that uses it does not compile and link' \
    'JPEG files cannot be read without libjpeg: a program that uses it does not compile and link' \
    "Ranks are pinned by the kernel's core numbers without hwloc: a program that uses it does not compile and link"; do
    [ "$(grep -cF -- "-- $line" out.txt)" = 1 ] || fail "no line '$line': $(cat out.txt)"
done
if grep -rq 'lockstep_mpi_\|liblockstep-cuda' build/cmake_install.cmake; then fail \
    "a module that is not built would be installed"; fi
if configure required -DLK_MPI=openmpi; then fail \
    "LK_MPI=openmpi accepts an mpicc that does not link: $(cat out.txt)"; fi
tr -s '\n ' '  ' < out.txt | grep -q 'LK_MPI is openmpi, but no mpicc of openmpi that compiles and links was found' ||
    fail "LK_MPI=openmpi: $(cat out.txt)"
if configure unknown -DLK_MPI=lam; then fail "LK_MPI=lam is accepted"; fi
