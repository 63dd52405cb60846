/* exif.c - the orientation tag of EXIF metadata. An EXIF block is a TIFF file (TIFF 6.0, section 2): byte order, an
 * offset to directory 0, and there 12-byte entries of tag, type, count and value. A block that is damaged has no
 * orientation. */
#include "data/image/decode.h"

static unsigned read_number(const unsigned char *at, int bytes, bool big)
{
    unsigned value = 0;
    for (int i = 0; i < bytes; i++) value |= (unsigned)at[i] << 8 * (big ? bytes - 1 - i : i);
    return value;
}

int lk__exif_orientation(const unsigned char *tiff, size_t size)
{
    enum { HEADER = 8, ENTRY = 12, ORIENTATION = 0x0112, SHORT = 3, LONG = 4 };
    if (size < HEADER || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return 1;
    bool   big = tiff[0] == 'M';
    size_t directory = read_number(tiff + 4, 4, big);
    if (read_number(tiff + 2, 2, big) != 42 || directory < HEADER || directory > size || size - directory < 2) return 1;
    unsigned entries = read_number(tiff + directory, 2, big);
    for (unsigned i = 0; i < entries && size - directory - 2 >= (size_t)(i + 1) * ENTRY; i++) {
        const unsigned char *entry = tiff + directory + 2 + (size_t)i * ENTRY;
        if (read_number(entry, 2, big) != ORIENTATION) continue;
        unsigned type = read_number(entry + 2, 2, big); /* SHORT by the standard; some cameras write LONG */
        unsigned value = read_number(entry + 8, type == LONG ? 4 : 2, big);
        bool     valid = (type == SHORT || type == LONG) && read_number(entry + 4, 4, big) == 1;
        return valid && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
