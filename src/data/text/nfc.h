/* data/text/nfc.h - Unicode's Normalization Form C. */
#ifndef LK__NFC_H
#define LK__NFC_H

#include "base/base.h"

/* Memory of a normalisation; zero it at first. */
typedef struct lk__nfc_scratch {
    uint32_t *codes, *sorted; /* characters of a segment: the combining class above the lowest 24 bits */
    size_t    codes_room, sorted_room, codes_count;
    char     *text;
    size_t    text_room, text_count;
} lk__nfc_scratch;
void lk__nfc_scratch_free(lk_context *context, lk__nfc_scratch *scratch);

/* Makes *text, valid UTF-8, its normalised form. Unless it is normalised already, that is in the scratch memory, until
 * the next call. */
lk_status lk__nfc(lk_context *context, lk__nfc_scratch *scratch, const char **text, size_t *bytes);
/* Whether NFC can change this character, or join it with those before it. */
bool lk__nfc_unstable(uint32_t code);

#endif
