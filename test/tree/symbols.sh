#!/usr/bin/env bash
# symbols.sh - the shared library exports what the public headers declare, all of it and nothing else; and no global
# name of the static one can collide with a program's names.
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: sanitizers add names"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# LK_API … name( in any header, over lines.
awk '/^#/ { inside = 1 } !inside { print } !/\\$/ { inside = 0 }' "$SOURCE_DIR"/include/lockstep/*.h |
    sed 's,/\*.*\*/,,; s,__attribute__((.*)),,' | tr '\n' ' ' | grep -oE 'LK_API [^;(]*\(' |
    sed 's/.*[ *]\(lk_[a-z0-9_]*\) *($/\1/' | sort -u > "$work/declared"
nm -D --defined-only "$BUILD_DIR/liblockstep.so" | awk '$2 ~ /[A-Z]/ { print $3 }' | sort -u > "$work/exported"
[ "$(wc -l < "$work/declared")" -gt 50 ] || { echo "the headers could not be parsed" >&2; exit 1; }

status=0
extra=$(comm -13 "$work/declared" "$work/exported")
missing=$(comm -23 "$work/declared" "$work/exported")
[ -z "$extra" ] || { echo "exported, but in no public header: $extra" >&2; status=1; }
[ -z "$missing" ] || { echo "in a public header, but not exported: $missing" >&2; status=1; }
inside=$(grep '^lk__' "$work/exported" || true)
[ -z "$inside" ] || { echo "internal, but exported: $inside" >&2; status=1; }

foreign=$(nm -g --defined-only "$BUILD_DIR/liblockstep.a" | awk 'NF == 3 && $3 !~ /^lk_/ { print $3 }' | sort -u)
[ -z "$foreign" ] || { echo "global names without lk_ in the static library: $foreign" >&2; status=1; }

readelf -d "$BUILD_DIR/liblockstep.so" | grep -q 'soname: \[liblockstep\.so\.0\.[0-9]*\]' ||
    { echo "no soname with major and minor version" >&2; status=1; }

# Mutable state belongs to a context. docs/architecture.md, "Mutable state", says why these are an exception; names of
# functions' own variables end with a number. Sanitizers add variables.
if ! nm -D --undefined-only "$BUILD_DIR/liblockstep.so" | grep -qE '__(asan|tsan|ubsan)_'; then
    writable=$(objdump -t "$BUILD_DIR/liblockstep.so" |
        awk 'NF > 3 && $(NF-2) ~ /^\.(bss|data|tbss|tdata)(\.|$)/ && $(NF-2) !~ /^\.data\.rel\.ro/ &&
             $(NF-1) !~ /^0+$/ { print $NF }' |
        sed 's/\.[0-9]*$//' | sort -u | grep -vE '^(__.*|_.*|completed)$' |
        grep -vxE 'messages|creation|next_message|copy|message|name|pass_to|passing|owner|processes|'\
'lk__tiles_configured_bf16_amx_emulated' || true)
    [ -z "$writable" ] || { echo "variables outside of a context: $writable" >&2; status=1; }
fi

# Users' models call the library in the command.
nm -D --defined-only "$BUILD_DIR/lockstep" | awk '$2 ~ /[A-Z]/ { print $3 }' | sort -u > "$work/command"
missing=$(comm -23 "$work/declared" "$work/command")
[ -z "$missing" ] || { echo "not exported by the command: $missing" >&2; status=1; }
# Functions alone: data may be the C library's.
foreign=$(nm -D --defined-only "$BUILD_DIR/lockstep" | awk '$2 == "T" && $3 !~ /^(lk_|_|main$)/ { print $3 }')
[ -z "$foreign" ] || { echo "exported by the command: $foreign" >&2; status=1; }
needed=$(readelf -d "$BUILD_DIR/liblockstep.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libm|libz|libpng16|libjpeg|libpthread|libdl|ld-linux.*|libgcc_s)\.so' || true)
[ -z "$needed" ] || { echo "the library needs more than it should: $needed" >&2; status=1; }
exit $status
