#!/usr/bin/env bash
# readme.sh - builds and runs README.md's program with README.md's own commands, unchanged, against an installed
# Lockstep. They install into /usr/local: the test runs them in its own mount namespace, where overlays catch what they
# write.
# ctest: timeout 300
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: a program outside the tree would need the sanitizer's flags"; exit 77; }
for tool in pkg-config unshare cc; do command -v $tool > /dev/null ||
    { echo "skipped: there is no $tool"; exit 77; }; done
if [ "${1:-}" != inside ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export work
    unshare --mount true 2> "$work/why" || { echo "skipped: no mount namespace: $(cat "$work/why")"; exit 77; }
    unshare --mount bash "$0" inside
    exit
fi

# The overlays' upper directories are in memory: an overlay cannot be the upper layer of another, and a container's root
# often is an overlay.
mkdir "$work/memory"
mount -t tmpfs tmpfs "$work/memory"
for folder in /usr/local /etc /var/cache; do
    name=$(basename $folder)
    mkdir "$work/memory/$name" "$work/memory/$name.work"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$work/memory/$name,workdir=$work/memory/$name.work" $folder \
        2> "$work/why" ||
        { echo "skipped: no overlay over $folder: $(cat "$work/why")"; exit 77; }
done
rm -rf /usr/local/lib/liblockstep* /usr/local/include/lockstep*
/sbin/ldconfig

# The first C block is model.c. The first fenced block under the heading "Use it from your own program" contains the
# commands.
cd "$work"
awk '/^```c$/ { inside = 1; next } /^```/ && inside { exit } inside' "$SOURCE_DIR/README.md" > model.c
awk '/^## / { here = /Use it from your own program/ } /^```/ && here { if (inside) exit; inside = 1; next } inside' \
    "$SOURCE_DIR/README.md" > commands.sh
[ -s model.c ] && grep -q '^cc model.c' commands.sh && grep -qx './model' commands.sh ||
    { echo "README.md does not contain the expected program and commands" >&2; exit 1; }
ln -s "$BUILD_DIR" build

# A small CIFAR-10: each record is a label and 3 × 32 × 32 bytes.
mkdir -p data/cifar10
for file in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    for label in 0 1 2 3 4 5 6 7 8 9; do printf "\\$(printf %o $label)"; head -c 3072 /dev/urandom; done > \
        data/cifar10/$file.bin
done
export LOCKSTEP_DATA=$work/data PATH=$PATH:/sbin:/usr/sbin
unset LD_LIBRARY_PATH PKG_CONFIG_PATH
bash -e commands.sh > out.txt 2>&1 || { echo "README.md's commands fail:" >&2; cat commands.sh out.txt >&2; exit 1; }
grep -q '^step 1: loss [0-9.]*$' out.txt && grep -q '^epoch 5: test loss [0-9.]*$' out.txt ||
    { echo "the program prints no progress: $(cat out.txt)" >&2; exit 1; }
[ -s runs/cnn/model.safetensors ] || { echo "the program saved nothing: $(cat out.txt)" >&2; exit 1; }
/usr/local/bin/lockstep --version

# The same under another prefix, with an rpath.
cmake --install build --prefix "$work/prefix" > install.log
# shellcheck disable=SC2046
cc model.c $(PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig pkg-config --cflags --libs lockstep) \
    -Wl,-rpath,"$work/prefix/lib" -o other
ldd other | grep -q "$work/prefix/lib/liblockstep" || { echo "the rpath is not used: $(ldd other)" >&2; exit 1; }
echo "ok"
