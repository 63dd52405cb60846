/* data/array/zip.h - the directory of a zip archive (PKWARE's APPNOTE.TXT 6.3), with zip64. */
#ifndef LK__ZIP_H
#define LK__ZIP_H

#include "data/array/map.h"

typedef struct lk__zip_member {
    const char          *name; /* not terminated */
    size_t               name_length;
    const unsigned char *data; /* within the map */
    uint64_t             stored, size; /* bytes in the archive, and unpacked */
    uint32_t             crc;
    bool                 deflated;
} lk__zip_member;

typedef struct lk__zip {
    lk_context    *context;
    const char    *label;
    const lk__map *map;
    uint64_t       at, end; /* the part of the directory that is left */
    uint64_t       left;    /* members */
} lk__zip;

/* Finds the directory. LK_EFORMAT: not a zip, truncated, or in several parts. Borrows label and map. */
lk_status lk__zip_open(lk_context *context, const char *label, const lk__map *map, lk__zip *zip);
/* The next member, with its bounds checked; LK_END after the last. LK_EFORMAT: damaged, encrypted, or compressed with a
 * method other than deflate. */
lk_status lk__zip_next(lk__zip *zip, lk__zip_member *member);

#endif
