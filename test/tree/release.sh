#!/usr/bin/env bash
# release.sh - `./x release`: what it refuses, what it changes, and the archive; in a copy of the tree, without its long
# checks.
set -eu
command -v git > /dev/null || { echo "skipped: there is no git"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
mkdir -p tree/include/lockstep tree/cmake tree/test/headers
cp "$SOURCE_DIR/x" tree/ && cp "$SOURCE_DIR/cmake/release.sh" tree/cmake/ &&
    cp -r "$SOURCE_DIR/include/lockstep" tree/include/
printf '# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- All.\n' > tree/CHANGELOG.md
printf '/build*/\n' > tree/.gitignore
cd tree
sed -i -e 's/^#define LK_VERSION_STRING .*/#define LK_VERSION_STRING "0.1.0"/' \
    -e 's/^#define LK_VERSION_MINOR .*/#define LK_VERSION_MINOR 1/' include/lockstep/base.h
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost \
    GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q . && git add -A && git commit -qm first
out=$work # frame.bash's commands write their output there
build_command='grep "\"$(basename "$PWD" | sed s/lockstep-//)\"" include/lockstep/base.h'
release() {
    (cd "$work/tree" && RELEASE_CHECKS=${CHECKS:-true} RELEASE_BUILD=$build_command ./x release "$@")
}
cd "$out"
expect 2 "usage" release
expect 2 "usage" release 0.2
expect 1 "0.1.0 is not greater than 0.1.0" release 0.1.0
expect 1 "0.0.9 is not greater than 0.1.0" release 0.0.9
expect 1 "no entries under" release 0.2.0
sed -i 's/^## Unreleased$/## Unreleased\n\n- A thing./' tree/CHANGELOG.md
expect 1 "uncommitted" release 0.2.0
git -C tree commit -qam change
CHECKS=false expect 1 "a check failed: nothing was released" release 0.2.0
[ -z "$(git -C tree status --porcelain)" ] && [ "$(git -C tree tag)" = "" ] ||
    complain "a failed release left: $(git -C tree status --porcelain; git -C tree tag)"
expect 0 "" release 0.2.0
[ "$(git -C tree tag)" = v0.2.0 ] && [ "$(git -C tree log -1 --format=%s)" = "release: 0.2.0" ] &&
    [ -z "$(git -C tree status --porcelain)" ] || complain "no tag or commit: $(git -C tree log --oneline)"
grep -q '^#define LK_VERSION_MINOR 2$' tree/include/lockstep/base.h && [ -e tree/test/headers/0.2/lockstep/base.h ] ||
    complain "the version or the headers were not stored"
[ "$(grep '^## ' tree/CHANGELOG.md | tr '\n' ' ')" = "## Unreleased ## 0.2.0 ## 0.1.0 " ] ||
    complain "CHANGELOG.md: $(cat tree/CHANGELOG.md)"
(cd tree/build-release && sha256sum -c lockstep-0.2.0.tar.gz.sha256 > /dev/null &&
    tar tzf lockstep-0.2.0.tar.gz | grep -q '^lockstep-0.2.0/include/lockstep/base.h$') ||
    complain "the archive: $(ls tree/build-release)"
expect 1 "0.1.9 is not greater than 0.2.0" release 0.1.9
