/* data/array/map.h - a file as read-only memory. Pages are read when they are used, so that a file may be larger than
 * the memory. */
#ifndef LK__MAP_H
#define LK__MAP_H

#include "base/base.h"

typedef struct lk__map {
    const unsigned char *bytes;
    size_t               size;
    bool                 mapped; /* false: the bytes are borrowed */
} lk__map;

/* LK_ENOENT, LK_EIO, or LK_EFORMAT for what is not a file or is empty; *map is then empty. The file must not shrink
 * while it is mapped: reading past its new end is a signal. */
lk_status lk__map_open(lk_context *context, const char *path, lk__map *map);
void      lk__map_close(lk__map *map); /* an empty map is fine */

#endif
