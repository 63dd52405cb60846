/* fuzz_exif.c - the orientation in an EXIF block: 1 to 8 for any bytes, and what a second parser finds, which looks at
 * every entry. */
#include "data/image/decode.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t number(const uint8_t *data, size_t size, uint64_t at, int bytes)
{
    uint64_t value = 0;
    if (at + (uint64_t)bytes > size) return UINT64_MAX;
    for (int i = 0; i < bytes; i++) value = value << 8 | data[at + (uint64_t)(data[0] == 'M' ? i : bytes - 1 - i)];
    return value;
}

static int naive_orientation(const uint8_t *data, size_t size)
{
    if (size < 8 || data[0] != data[1] || (data[0] != 'M' && data[0] != 'I') || number(data, size, 2, 2) != 42)
        return 1;
    uint64_t directory = number(data, size, 4, 4), count = number(data, size, directory, 2);
    if (directory < 8 || count == UINT64_MAX) return 1;
    for (uint64_t i = 0, at = directory + 2; i < count && at + 12 <= size; i++, at += 12) {
        if (number(data, size, at, 2) != 0x112) continue;
        uint64_t value = number(data, size, at + 8, 2);
        return number(data, size, at + 2, 2) == 3 && number(data, size, at + 4, 4) == 1 && value >= 1 && value <= 8
                   ? (int)value
                   : 1;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int orientation = lk__exif_orientation(data, size);
    if (orientation < 1 || orientation > 8 || orientation != naive_orientation(data, size)) abort();
    return 0;
}
