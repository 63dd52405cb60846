/* encoder.c - text to ids, section by section between added tokens, word by word. Words repeat, so a table remembers
 * the ids of short ones: looking a word up takes most of the time, merging hardly any. bench/tokenizer.c measures
 * it. */
#include "data/text/encoder.h"

#include "data/text/byte_level.h"
#include "data/text/nfc.h"
#include "data/text/unicode.h"
#include "data/text/utf8.h"

#include <string.h>

enum { WORD_BYTES = 15, WORD_IDS = 11, FEW_IDS = 4, FEWEST_WORDS = 64, MOST_WORDS = 1 << 15 };

/* A cache line. */
typedef struct known_word {
    uint64_t key[2]; /* the bytes of the word, zeros, and in the last byte their number; 0: nothing is known here */
    int32_t  ids[WORD_IDS];
    uint32_t count;
} known_word;

struct lk__text_encoder {
    const lk_tokenizer *tokenizer;
    lk_context         *context;
    int32_t            *ids; /* own memory, or the caller's */
    size_t              room, count;
    bool                borrowed;
    int32_t            *own_ids;
    size_t              own_room;
    const char         *begin;     /* of the text, for messages */
    bool                continues; /* the next section goes on with the text of the call before */
    known_word         *words;
    size_t              words_count;
    int32_t            *symbols; /* of the word that is merged */
    size_t              symbols_room;
    char               *name; /* of the word, as a vocabulary spells it */
    size_t              name_room;
    lk__bpe_scratch     bpe;
    lk__nfc_scratch     nfc;
    char               *clean, *prefixed; /* text with replacements; a section with a space before it */
    size_t              clean_room, prefixed_room;
};

lk_status lk__text_encoder_create(const lk_tokenizer *tokenizer, size_t bytes, lk__text_encoder **encoder)
{
    lk_context       *context = tokenizer->context;
    lk__text_encoder *e = *encoder = lk__alloc(context, LK_MEMORY_OTHER, sizeof *e);
    if (!e) return LK_ENOMEM;
    e->tokenizer = tokenizer;
    e->context = context;
    if (tokenizer->kind != LK__TEXT_BPE) return LK_OK;
    e->words_count = FEWEST_WORDS;
    while (e->words_count < MOST_WORDS && e->words_count * 16 < bytes) e->words_count *= 2;
    e->words = lk__alloc(context, LK_MEMORY_OTHER, e->words_count * sizeof *e->words);
    if (e->words) return LK_OK;
    lk__text_encoder_free(e);
    *encoder = NULL;
    return LK_ENOMEM;
}

void lk__text_encoder_free(lk__text_encoder *e)
{
    if (!e) return;
    lk__free(e->context, LK_MEMORY_OTHER, e->words, e->words_count * sizeof *e->words);
    lk__free(e->context, LK_MEMORY_OTHER, e->own_ids, e->own_room * sizeof *e->own_ids);
    lk__free(e->context, LK_MEMORY_OTHER, e->symbols, e->symbols_room * sizeof *e->symbols);
    lk__free(e->context, LK_MEMORY_OTHER, e->name, e->name_room);
    lk__free(e->context, LK_MEMORY_OTHER, e->clean, e->clean_room);
    lk__free(e->context, LK_MEMORY_OTHER, e->prefixed, e->prefixed_room);
    lk__bpe_scratch_free(e->context, &e->bpe);
    lk__nfc_scratch_free(e->context, &e->nfc);
    lk__free(e->context, LK_MEMORY_OTHER, e, sizeof *e);
}

/* ---- ids ---- */

/* Where there is no room: more of the encoder's own memory, or only counting. */
static lk_status append_slowly(lk__text_encoder *e, const int32_t *ids, size_t count)
{
    if (!e->borrowed) {
        lk_status status = lk__grow(e->context, (void **)&e->own_ids, &e->own_room, e->count + count, sizeof *ids);
        if (status < 0) return status;
        e->ids = e->own_ids, e->room = e->own_room;
    }
    size_t fits = e->count >= e->room ? 0 : e->room - e->count < count ? e->room - e->count : count;
    if (fits) memcpy(e->ids + e->count, ids, fits * sizeof *ids);
    e->count += count;
    return LK_OK;
}

static inline lk_status append_ids(lk__text_encoder *e, const int32_t *ids, size_t count)
{
    if (e->room < count || e->count > e->room - count) return append_slowly(e, ids, count);
    for (size_t i = 0; i < count; i++) e->ids[e->count + i] = ids[i];
    e->count += count;
    return LK_OK;
}

/* ---- bytes and characters ---- */

static lk_status append_bytes(lk__text_encoder *e, const char *text, size_t bytes)
{
    lk_status status = LK_OK;
    if (!e->borrowed) { /* at once, instead of growing step by step */
        status = lk__grow(e->context, (void **)&e->own_ids, &e->own_room, e->count + bytes, sizeof *e->own_ids);
        e->ids = e->own_ids, e->room = e->own_room;
    }
    for (size_t i = 0; i < bytes && status >= 0; i++)
        status = append_ids(e, &(int32_t){e->tokenizer->single[(unsigned char)text[i]]}, 1);
    return status;
}

static lk_status refuse_character(lk__text_encoder *e, const unsigned char *at, uint32_t code, int length)
{
    char name[5] = {0}, shown[24];
    memcpy(name, at, (size_t)length);
    lk_printable(name, shown, sizeof shown);
    return lk__fail(e->context, LK_EINVAL,
                    "the character \"%s\" (U+%04X) at byte %zu of the text is not in the tokenizer's vocabulary of "
                    "%zu characters",
                    shown, code, (size_t)((const char *)at - e->begin), e->tokenizer->vocabulary.count);
}

static lk_status append_characters(lk__text_encoder *e, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    lk_status            status = LK_OK;
    int                  length;
    for (; at < end && status >= 0; at += length) {
        uint32_t code = lk__utf8_decode(at, &length);
        int32_t  id = code < 128 ? e->tokenizer->single[code]
                                 : lk__vocabulary_find(&e->tokenizer->vocabulary, (const char *)at, (size_t)length);
        status = id < 0 ? refuse_character(e, at, code, length) : append_ids(e, &id, 1);
    }
    return status;
}

/* ---- words ---- */

/* The token that is the whole word, where the tokenizer takes it without merging; -1: none. */
static int32_t find_whole_word(lk__text_encoder *e, const unsigned char *word, size_t bytes)
{
    const lk__vocabulary *vocabulary = &e->tokenizer->vocabulary;
    size_t                length = 0;
    if (bytes > vocabulary->longest_name) return -1; /* each byte is at least one byte of the name */
    for (size_t i = 0; i < bytes; i++) length += lk__byte_level_spell(word[i], e->name + length);
    int32_t id = lk__vocabulary_find(vocabulary, e->name, length);
    return id >= 0 && vocabulary->tokens[id].in_model ? id : -1;
}

/* Fills e->symbols with the ids of a word. */
static lk_status merge_word(lk__text_encoder *e, const unsigned char *word, size_t bytes, size_t *count)
{
    const lk_tokenizer *t = e->tokenizer;
    lk_status status = lk__grow(e->context, (void **)&e->symbols, &e->symbols_room, bytes, sizeof *e->symbols);
    if (status < 0) return status;
    if (t->ignore_merges) {
        status = lk__grow(e->context, (void **)&e->name, &e->name_room, 2 * t->vocabulary.longest_name, 1);
        if (status < 0) return status;
        e->symbols[0] = find_whole_word(e, word, bytes);
        *count = 1;
        if (e->symbols[0] >= 0) return LK_OK;
    }
    for (size_t i = 0; i < bytes; i++)
        if ((e->symbols[i] = t->single[word[i]]) < 0)
            return lk__fail(e->context, LK_EINVAL, "the byte 0x%02x of the text is not in the tokenizer's vocabulary",
                            word[i]);
    *count = bytes;
    return lk__bpe_apply(e->context, &t->bpe, &e->bpe, e->symbols, count);
}

/* The key of a word of at most WORD_BYTES. */
static inline void make_key(const unsigned char *word, size_t bytes, const unsigned char *end, uint64_t key[2])
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (end - word >= 16) { /* loads of a fixed size, and masks */
        memcpy(key, word, 16);
        if (bytes < 8) key[0] &= ((uint64_t)1 << 8 * bytes) - 1;
        key[1] = bytes <= 8 ? 0 : key[1] & (((uint64_t)1 << 8 * (bytes - 8)) - 1);
        key[1] |= (uint64_t)bytes << 56;
        return;
    }
#endif
    unsigned char padded[16] = {[15] = (unsigned char)bytes};
    (void)end;
    memcpy(padded, word, bytes);
    memcpy(key, padded, 16);
}

/* Most words have few ids: copies of a fixed size, where there is room for what is not needed. */
static inline lk_status append_known(lk__text_encoder *e, const known_word *known)
{
    if (e->room < WORD_IDS || e->count > e->room - WORD_IDS) return append_ids(e, known->ids, known->count);
    memcpy(e->ids + e->count, known->ids, FEW_IDS * sizeof *e->ids);
    if (known->count > FEW_IDS) memcpy(e->ids + e->count, known->ids, sizeof known->ids);
    e->count += known->count;
    return LK_OK;
}

static lk_status append_word(lk__text_encoder *e, const unsigned char *word, size_t bytes, const unsigned char *end)
{
    known_word *known = NULL;
    uint64_t    key[2];
    size_t      count = 0;
    if (bytes == 1 && e->tokenizer->single[*word] >= 0) return append_ids(e, &e->tokenizer->single[*word], 1);
    if (bytes <= WORD_BYTES) {
        make_key(word, bytes, end, key);
        uint64_t hash = (key[0] ^ key[1] * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
        known = &e->words[(hash ^ hash >> 32) & (e->words_count - 1)];
        if (known->key[0] == key[0] && known->key[1] == key[1]) return append_known(e, known);
    }
    lk_status status = merge_word(e, word, bytes, &count);
    if (status < 0) return status;
    if (known && count <= WORD_IDS) {
        *known = (known_word){.key = {key[0], key[1]}, .count = (uint32_t)count};
        memcpy(known->ids, e->symbols, count * sizeof *e->symbols);
    }
    return append_ids(e, e->symbols, count);
}

static lk_status append_words(lk__text_encoder *e, const char *text, size_t bytes)
{
    lk_status            status = LK_OK;
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    while (at < end && status >= 0) {
        const unsigned char *next = lk__pretokenize(e->tokenizer->pretokenizer, at, end);
        status = append_word(e, at, (size_t)(next - at), end);
        at = next;
    }
    return status;
}

/* A section between added tokens, which is not empty. */
static lk_status append_section(lk__text_encoder *e, const char *text, size_t bytes)
{
    bool continues = e->continues;
    e->continues = false;
    if (e->tokenizer->kind == LK__TEXT_CHARACTERS) return append_characters(e, text, bytes);
    if (!e->tokenizer->prefix_space || continues || text[0] == ' ') return append_words(e, text, bytes);
    lk_status status = lk__grow(e->context, (void **)&e->prefixed, &e->prefixed_room, bytes + 1, 1);
    if (status < 0) return status;
    e->prefixed[0] = ' ';
    memcpy(e->prefixed + 1, text, bytes);
    return append_words(e, e->prefixed, bytes + 1);
}

/* ---- added tokens ---- */

static size_t spaces_after(const char *text, size_t at, size_t bytes)
{
    for (int length; at < bytes; at += (size_t)length)
        if (lk__char_class(lk__utf8_decode((const unsigned char *)text + at, &length)) != LK__CHAR_SPACE) break;
    return at;
}

static size_t spaces_before(const char *text, size_t at)
{
    while (at > 0) {
        size_t before = at - 1;
        int    length;
        while (before > 0 && ((unsigned char)text[before] & 0xc0) == 0x80) before--;
        if (lk__char_class(lk__utf8_decode((const unsigned char *)text + before, &length)) != LK__CHAR_SPACE) break;
        at = before;
    }
    return at;
}

typedef lk_status (*take_section)(lk__text_encoder *e, const char *text, size_t bytes);

/* Appends the ids of the added tokens in the text, and gives what is between them to `section`. */
static lk_status split_at_added(lk__text_encoder *e, const lk__added *added, const char *text, size_t bytes,
                                take_section section)
{
    const lk__added_token *token;
    size_t                 done = 0, from = 0, begin;
    lk_status              status = LK_OK;
    while (status >= 0 && (token = lk__added_find(added, text, bytes, from, &begin))) {
        size_t end = from = begin + token->length;
        if (token->strip_left) {
            begin = spaces_before(text, begin);
            if (begin < done) begin = done; /* the token before took them */
        }
        if (token->strip_right) end = spaces_after(text, end, bytes);
        if (done < begin) status = section(e, text + done, begin - done);
        if (status >= 0) status = append_ids(e, &token->id, 1);
        e->continues = false;
        done = end;
    }
    return status >= 0 && done < bytes ? section(e, text + done, bytes - done) : status;
}

static lk_status normalize_section(lk__text_encoder *e, const char *text, size_t bytes)
{
    if (e->tokenizer->nfc) {
        lk_status status = lk__nfc(e->context, &e->nfc, &text, &bytes);
        if (status < 0) return status;
    }
    return split_at_added(e, &e->tokenizer->normalized, text, bytes, append_section);
}

/* ---- a text ---- */

/* Text that is not UTF-8 is copied, with replacements. */
static lk_status clean_text(lk__text_encoder *e, const char **text, size_t *bytes, size_t *invalid)
{
    *invalid = 0;
    if (lk__utf8_valid(*text, *bytes) == *bytes) return LK_OK;
    size_t    length = lk__utf8_replace(*text, *bytes, NULL, invalid);
    lk_status status = lk__grow(e->context, (void **)&e->clean, &e->clean_room, length, 1);
    if (status < 0) return status;
    lk__utf8_replace(*text, *bytes, e->clean, invalid);
    *text = e->clean, *bytes = length;
    return LK_OK;
}

static lk_status encode(lk__text_encoder *e, lk__text_span span, lk__text_encoded *encoded)
{
    const char *text = span.text;
    size_t      bytes = span.bytes;
    *encoded = (lk__text_encoded){.ids = e->ids};
    e->count = 0;
    if (bytes == 0) return LK_OK;
    e->continues = span.continues;
    lk_status status;
    if (e->tokenizer->kind == LK__TEXT_BYTES) {
        status = append_bytes(e, text, bytes);
    } else {
        status = clean_text(e, &text, &bytes, &encoded->invalid);
        e->begin = text;
        if (status >= 0) status = split_at_added(e, &e->tokenizer->raw, text, bytes, normalize_section);
    }
    encoded->ids = e->ids;
    encoded->count = e->count;
    return status;
}

lk_status lk__text_encoder_encode(lk__text_encoder *e, lk__text_span span, lk__text_encoded *encoded)
{
    e->borrowed = false;
    e->ids = e->own_ids, e->room = e->own_room;
    return encode(e, span, encoded);
}

lk_status lk__text_encoder_encode_into(lk__text_encoder *e, lk__text_span span, int32_t *ids, size_t room,
                                       lk__text_encoded *encoded)
{
    e->borrowed = true;
    e->ids = ids, e->room = room;
    return encode(e, span, encoded);
}

lk_status lk_tokenizer_encode(const lk_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *ids, size_t room,
                              size_t *count, size_t *invalid)
{
    lk__text_encoder *e;
    lk__text_encoded  encoded = {0};
    lk_status         status = lk__text_encoder_create(tokenizer, bytes, &e);
    if (status >= 0) status = lk__text_encoder_encode_into(e, (lk__text_span){text, bytes, false}, ids, room, &encoded);
    *count = encoded.count;
    if (invalid) *invalid = encoded.invalid;
    lk__text_encoder_free(e);
    return status;
}
