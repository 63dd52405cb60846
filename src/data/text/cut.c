/* cut.c - where a text may be cut so that its pieces encode to the ids of the whole: between a letter and an ASCII
 * character that is not a letter. Every word of every pre-tokenizer ends there, the rules for a word do not look back,
 * and NFC joins nothing with an ASCII character. */
#include "data/text/encoder.h"
#include "data/text/unicode.h"
#include "data/text/utf8.h"

/* Whether the character that ends at `at` is a letter. */
static bool letter_before(const char *text, size_t at)
{
    size_t begin = at - 1;
    int    length;
    while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
    if (lk__utf8_valid(text + begin, at - begin) != at - begin) return false;
    return lk__char_class(lk__utf8_decode((const unsigned char *)text + begin, &length)) == LK__CHAR_LETTER;
}

static bool is_candidate(const char *text, size_t at)
{
    unsigned char c = (unsigned char)text[at];
    return c < 0x80 && lk__char_class(c) != LK__CHAR_LETTER && letter_before(text, at);
}

/* Whether an added token may extend over the place, or end there and take the white space behind it. */
static bool token_reaches(const lk__added *added, const char *text, size_t bytes, size_t at)
{
    size_t begin = at > added->longest ? at - added->longest : 0, start;
    if (bytes > at + added->longest) bytes = at + added->longest;
    while (begin < at) {
        const lk__added_token *token = lk__added_find(added, text, bytes, begin, &start);
        if (!token || start >= at) return false;
        if (start + token->length >= at) return true;
        begin = start + 1;
    }
    return false;
}

/* The beginning of the last character: invalid UTF-8 before it ends there, too. */
static size_t last_character(const char *text, size_t bytes)
{
    while (--bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80) {}
    return bytes;
}

static bool all_ascii(const char *text, size_t begin, size_t end)
{
    for (; begin < end; begin++)
        if ((unsigned char)text[begin] >= 0x80) return false;
    return true;
}

size_t lk__text_encoder_cut(const lk_tokenizer *t, const char *text, size_t bytes)
{
    if (t->kind == LK__TEXT_BYTES || bytes == 0) return bytes;
    if (t->kind == LK__TEXT_CHARACTERS && t->raw.count + t->normalized.count == 0) return last_character(text, bytes);
    size_t longest = t->raw.longest > t->normalized.longest ? t->raw.longest : t->normalized.longest;
    bool   whole = t->kind == LK__TEXT_BPE && t->pretokenizer == LK__SPLIT_NOTHING;
    if (whole || bytes <= longest + 1) return 0;
    for (size_t at = bytes - longest - 1; at > 0; at--) {
        if (!is_candidate(text, at) || token_reaches(&t->raw, text, bytes, at)) continue;
        /* Text around the place is its own normal form if it is ASCII. */
        size_t begin = at > longest ? at - longest : 0;
        if (t->nfc && t->normalized.count && !all_ascii(text, begin, at + longest)) continue;
        if (!token_reaches(&t->normalized, text, bytes, at)) return at;
    }
    return 0;
}
