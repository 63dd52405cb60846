#!/usr/bin/env bash
# release.sh VERSION - makes a release: `./x release 0.2.0`. The version is in include/lockstep/base.h, which CMake
# reads; this script sets it.
#   1. Refuses a version that is not greater than the last, changes that are not committed, a tag that exists, and a
#      CHANGELOG.md without entries under "Unreleased".
#   2. Sets the version, names the changes in CHANGELOG.md after it, and stores the public headers (test/headers) of a
#      new minor version.
#   3. Runs the checks: the suite, `./x check` and test/extend/run.sh. Where one fails, the files are as before.
#   4. Commits, tags vVERSION, writes build-release/lockstep-VERSION.tar.gz and its SHA-256, and builds the command from
#      that archive.
# Nothing is pushed. RELEASE_CHECKS and RELEASE_BUILD are other commands for 3 and for the build of 4, which runs in the
# archive's folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { echo "release: $*" >&2; exit 1; }
[ $# = 1 ] && [[ $1 =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]] ||
    { echo "usage: ./x release MAJOR.MINOR.PATCH" >&2; exit 2; }
version=$1 major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]} patch=${BASH_REMATCH[3]}
header=include/lockstep/base.h
checks=${RELEASE_CHECKS:-./x test && ./x check && test/extend/run.sh}
build=${RELEASE_BUILD:-cmake -S . -B build -DLK_TESTS=OFF && \
cmake --build build -j "$(nproc)" --target lockstep_command && build/lockstep --version}

last=$(sed -n 's/^#define LK_VERSION_STRING "\(.*\)"$/\1/p' $header)
[ -n "$last" ] || die "$header has no LK_VERSION_STRING"
[ "$version" != "$last" ] && [ "$(printf '%s\n' "$last" "$version" | sort -V | tail -1)" = "$version" ] ||
    die "$version is not greater than $last"
[ -z "$(git status --porcelain)" ] ||
    die "there are uncommitted changes: $(git status --porcelain | head -5)"
! git rev-parse -q --verify "refs/tags/v$version" > /dev/null || die "the tag v$version already exists"
awk '/^## / { inside = $2 == "Unreleased" } inside && /^- / { found = 1 } END { exit !found }' CHANGELOG.md ||
    die "CHANGELOG.md has no entries under \"Unreleased\""

restore() { git checkout -q -- . && git clean -fdq test/headers; }
trap restore EXIT
sed -i "s/^#define LK_VERSION_MAJOR .*/#define LK_VERSION_MAJOR $major/
    s/^#define LK_VERSION_MINOR .*/#define LK_VERSION_MINOR $minor/
    s/^#define LK_VERSION_PATCH .*/#define LK_VERSION_PATCH $patch/
    s/^#define LK_VERSION_STRING .*/#define LK_VERSION_STRING \"$version\"/" $header
sed -i "s/^## Unreleased\$/## Unreleased\n\n## $version/" CHANGELOG.md
[ "$major.$minor" = "${last%.*}" ] || ./x headers
echo "Checking $version: $checks"
bash -ec "$checks" || die "a check failed: nothing was released"

git add -A
git commit -qm "release: $version"
trap - EXIT
git tag -a "v$version" -m "Lockstep $version"
mkdir -p build-release
archive=build-release/lockstep-$version.tar.gz
git archive --prefix="lockstep-$version/" "v$version" | gzip -n > "$archive"
(cd build-release && sha256sum "lockstep-$version.tar.gz" > "lockstep-$version.tar.gz.sha256")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar xzf "$archive" -C "$work"
(cd "$work/lockstep-$version" && bash -ec "$build") > build-release/build.log 2>&1 ||
    die "the archive does not build (build-release/build.log). Remove the tag and the commit:" \
        "git tag -d v$version && git reset --hard HEAD~1"
echo "$archive is ready. To publish: git push origin HEAD v$version"
