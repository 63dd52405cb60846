/* data/text/unicode.h - properties of characters for pre-tokenizers and normalisation. The tables are generated;
 * unicode_tables.py names the versions of Unicode. */
#ifndef LK__UNICODE_H
#define LK__UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* How the regular expressions of `tokenizers` classify a character: \p{L}, \p{N}, \s, or none of these. */
typedef enum lk__unicode_class { LK__CHAR_OTHER, LK__CHAR_LETTER, LK__CHAR_NUMBER, LK__CHAR_SPACE } lk__unicode_class;

/* Blocks of 256 characters, 2 bits each. */
enum { LK__UNICODE_CLASSIFIED = 0x40000 }; /* from here on all are LK__CHAR_OTHER */
extern const uint8_t lk__unicode_index[LK__UNICODE_CLASSIFIED / 256];
extern const uint8_t lk__unicode_blocks[][64];

static inline lk__unicode_class lk__char_class(uint32_t code)
{
    if (code >= LK__UNICODE_CLASSIFIED) return LK__CHAR_OTHER;
    return (lk__unicode_class)(lk__unicode_blocks[lk__unicode_index[code >> 8]][code >> 2 & 63] >> 2 * (code & 3) & 3);
}

/* Characters that may change under NFC beside others: their combining class, or LK__UNICODE_STARTER for characters of
 * class 0 that have a decomposition which NFC keeps, or that may combine with the character before. Sorted. */
enum { LK__UNICODE_STARTER = 255 };
typedef struct lk__unicode_range {
    uint32_t first, last;
    uint32_t combining;
} lk__unicode_range;
extern const lk__unicode_range lk__unicode_unstable[];
extern const size_t            lk__unicode_unstable_count;

/* Canonical decompositions, one step each, by character; second is 0 where it is a single one. */
typedef struct lk__unicode_pair {
    uint32_t code, first, second;
} lk__unicode_pair;
extern const lk__unicode_pair lk__unicode_decompositions[];
extern const size_t           lk__unicode_decompositions_count;
/* Primary composites, by first, then second: indices into the table above. */
extern const uint16_t lk__unicode_compositions[];
extern const size_t   lk__unicode_compositions_count;

#endif
