/* data/text/ids.h - a sequence of token ids in memory or in a mapped file. */
#ifndef LK__TEXT_IDS_H
#define LK__TEXT_IDS_H

#include <stdint.h>
#include <string.h>

typedef struct lk__text_ids {
    const unsigned char *bytes; /* the lowest byte of an id first, at any alignment */
    int                  width; /* bytes of an id: 1, 2 or 4 */
    int64_t              count;
} lk__text_ids;

static inline uint32_t lk__text_id(const lk__text_ids *ids, int64_t i)
{
    const unsigned char *at = ids->bytes + (size_t)i * (size_t)ids->width;
    if (ids->width == 1) return at[0];
    if (ids->width == 2) return (uint32_t)at[0] | (uint32_t)at[1] << 8;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline lk__text_ids lk__text_ids_part(const lk__text_ids *ids, int64_t first, int64_t count)
{
    return (lk__text_ids){ids->bytes ? ids->bytes + (size_t)first * (size_t)ids->width : NULL, ids->width, count};
}

#endif
