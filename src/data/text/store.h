/* data/text/store.h - stores token ids that arrive piece by piece: in memory or, if there are many, in a temporary
 * file. */
#ifndef LK__TEXT_STORE_H
#define LK__TEXT_STORE_H

#include "data/array/map.h"
#include "data/text/ids.h"

typedef struct lk__text_store {
    lk_context    *context;
    int            width;    /* bytes of an id, as few as the vocabulary needs: 1, 2 or 4 */
    bool           counting; /* nothing is kept */
    size_t         limit;    /* bytes in memory; 0: the default, SIZE_MAX: any number */
    int64_t        count;
    unsigned char *bytes; /* LK_MEMORY_DATA: all ids, or those that are not in the file yet */
    size_t         capacity, used;
    bool           in_file; /* the file has no name, and is gone when it is closed and unmapped */
    int            fd;
} lk__text_store;

int lk__text_width(int64_t vocabulary);
/* Writes ids in `width` bytes each, the lowest byte first. */
void lk__text_pack(const int32_t *ids, size_t count, int width, unsigned char *out);

lk_status lk__text_store_add(lk__text_store *store, const int32_t *ids, size_t count);
/* After the last: where the ids are. Those in a file are mapped to *map, which the caller closes; others stay in
 * `bytes`. */
lk_status lk__text_store_finish(lk__text_store *store, lk__text_ids *ids, lk__map *map);
void      lk__text_store_free(lk__text_store *store);

#endif
