#!/usr/bin/env bash
# images_without_libraries.sh - a build without libpng and libjpeg: its decoders refuse files by name, and folder:DIR
# says what is missing. The sources that know these libraries are compiled once more without them, and take the place of
# those in the static library.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
[ -z "$LK_SANITIZE" ] || { echo "skipped: it links objects with and without sanitizers"; exit 77; }
cat > main.c <<'T'
#include "data/image/image.h"
#include <lockstep/data.h>
#include <stdio.h>

static int probe(const char *path)
{
    static unsigned char bytes[1 << 16];
    lk__image_info       info;
    char                 message[LK__IMAGE_MESSAGE];
    FILE                *file = fopen(path, "rb");
    size_t               size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file) fclose(file);
    lk_status status = lk__image_probe(bytes, size, true, &info, message);
    printf("%s: %s\n", lk_status_name(status), message);
    return status == LK_EUNSUPPORTED ? 0 : 1;
}

int main(int count, char **arguments)
{
    lk_context *context;
    lk_dataset *dataset;
    int         failed = 0;
    for (int i = 1; i < count; i++) failed += probe(arguments[i]);
    if (lk_context_create(NULL, &context) < 0) return 1;
    lk_status status = lk_dataset_open(context, "folder:.", LK_SPLIT_TRAIN, NULL, &dataset);
    printf("%s: %s\n", lk_status_name(status), lk_context_error(context));
    lk_context_free(context);
    return failed || status != LK_EUNSUPPORTED;
}
T
"$CC" -std=gnu11 -Wall -Wextra -Werror -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/include" main.c \
    "$SOURCE_DIR"/src/data/image/*.c "$BUILD_DIR/liblockstep.a" -lz -lm -ldl -lpthread -o main
./main "$SOURCE_DIR/test/golden/images/rgb8.png" "$SOURCE_DIR/test/golden/images/420.jpg" > out.txt ||
    { cat out.txt; exit 1; }
grep -q 'is a PNG file, but this build has no libpng' out.txt || { cat out.txt; exit 1; }
grep -q 'is a JPEG file, but this build has no libjpeg' out.txt || { cat out.txt; exit 1; }
grep -q 'folder:.* this build cannot decode images; install libpng and libjpeg' out.txt || { cat out.txt; exit 1; }
