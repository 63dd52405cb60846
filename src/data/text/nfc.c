/* nfc.c - normalisation by segments: from a stable character, which nothing before it can change or join, to the next
 * stable character that is not followed by an unstable one. Ordinary text has few such segments; everything else is
 * copied. Unicode Standard Annex 15. */
#include "data/text/nfc.h"

#include "data/text/unicode.h"
#include "data/text/utf8.h"

#include <string.h>

enum { CODE = 0xffffff, CLASS_SHIFT = 24 };
/* Hangul syllables are composed by arithmetic: The Unicode Standard, section 3.12. */
enum { S0 = 0xac00, L0 = 0x1100, V0 = 0x1161, T0 = 0x11a7, LS = 19, VS = 21, TS = 28, SYLLABLES = LS * VS * TS };
enum { FIRST_UNSTABLE = 0x300 };

static const lk__unicode_range *find_range(uint32_t code)
{
    size_t low = 0, high = lk__unicode_unstable_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (lk__unicode_unstable[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < lk__unicode_unstable_count && lk__unicode_unstable[low].first <= code ? &lk__unicode_unstable[low]
                                                                                       : NULL;
}

bool lk__nfc_unstable(uint32_t code) { return code >= FIRST_UNSTABLE && find_range(code); }

static uint32_t combining_class(uint32_t code)
{
    const lk__unicode_range *range = code >= FIRST_UNSTABLE ? find_range(code) : NULL;
    return range && range->combining != LK__UNICODE_STARTER ? range->combining : 0;
}

void lk__nfc_scratch_free(lk_context *context, lk__nfc_scratch *s)
{
    lk__free(context, LK_MEMORY_OTHER, s->codes, s->codes_room * sizeof *s->codes);
    lk__free(context, LK_MEMORY_OTHER, s->sorted, s->sorted_room * sizeof *s->sorted);
    lk__free(context, LK_MEMORY_OTHER, s->text, s->text_room);
    *s = (lk__nfc_scratch){0};
}

static lk_status append_code(lk_context *context, lk__nfc_scratch *s, uint32_t code)
{
    lk_status status = lk__grow(context, (void **)&s->codes, &s->codes_room, s->codes_count + 1, sizeof *s->codes);
    if (status < 0) return status;
    s->codes[s->codes_count++] = code | combining_class(code) << CLASS_SHIFT;
    return LK_OK;
}

static const lk__unicode_pair *find_decomposition(uint32_t code)
{
    size_t low = 0, high = lk__unicode_decompositions_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (lk__unicode_decompositions[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    const lk__unicode_pair *found = &lk__unicode_decompositions[low];
    return low < lk__unicode_decompositions_count && found->code == code ? found : NULL;
}

/* Decompositions are nested a few levels deep, on the left. */
static lk_status decompose(lk_context *context, lk__nfc_scratch *s, uint32_t code)
{
    lk_status status;
    if (code >= S0 && code < S0 + SYLLABLES) {
        uint32_t index = code - S0, tail = index % TS;
        if ((status = append_code(context, s, L0 + index / (VS * TS))) < 0 ||
            (status = append_code(context, s, V0 + index % (VS * TS) / TS)) < 0)
            return status;
        return tail ? append_code(context, s, T0 + tail) : LK_OK;
    }
    const lk__unicode_pair *pair = find_decomposition(code);
    if (!pair) return append_code(context, s, code);
    if ((status = decompose(context, s, pair->first)) < 0) return status;
    return pair->second ? decompose(context, s, pair->second) : LK_OK;
}

/* Sorts a run of combining characters by their class; equal ones keep their order. A counting sort: runs may be long in
 * hostile text. */
static lk_status sort_run(lk_context *context, lk__nfc_scratch *s, uint32_t *codes, size_t count)
{
    size_t    begin[257] = {0};
    lk_status status = lk__grow(context, (void **)&s->sorted, &s->sorted_room, count, sizeof *s->sorted);
    if (status < 0) return status;
    for (size_t i = 0; i < count; i++) begin[(codes[i] >> CLASS_SHIFT) + 1]++;
    for (size_t i = 1; i < 257; i++) begin[i] += begin[i - 1];
    for (size_t i = 0; i < count; i++) s->sorted[begin[codes[i] >> CLASS_SHIFT]++] = codes[i];
    memcpy(codes, s->sorted, count * sizeof *codes);
    return LK_OK;
}

static lk_status sort_marks(lk_context *context, lk__nfc_scratch *s)
{
    for (size_t i = 0; i < s->codes_count;) {
        size_t    first = i;
        lk_status status;
        while (i < s->codes_count && s->codes[i] >> CLASS_SHIFT) i++;
        if (i - first > 1 && (status = sort_run(context, s, s->codes + first, i - first)) < 0) return status;
        if (i == first) i++;
    }
    return LK_OK;
}

/* The primary composite of two characters, or 0. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    if (first >= L0 && first < L0 + LS && second >= V0 && second < V0 + VS)
        return S0 + ((first - L0) * VS + second - V0) * TS;
    if (first >= S0 && first < S0 + SYLLABLES && (first - S0) % TS == 0 && second > T0 && second < T0 + TS)
        return first + second - T0;
    size_t   low = 0, high = lk__unicode_compositions_count;
    uint64_t wanted = (uint64_t)first << 32 | second;
    while (low < high) {
        size_t                  middle = low + (high - low) / 2;
        const lk__unicode_pair *pair = &lk__unicode_decompositions[lk__unicode_compositions[middle]];
        uint64_t                key = (uint64_t)pair->first << 32 | pair->second;
        if (key == wanted) return pair->code;
        if (key < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* A character joins the last starter unless one of the same or a higher class stands between them. */
static void compose(lk__nfc_scratch *s)
{
    uint32_t *starter = NULL;
    int       last = -1; /* the class of the character before; -1: that is the starter */
    size_t    kept = 0;
    for (size_t i = 0; i < s->codes_count; i++) {
        uint32_t code = s->codes[i] & CODE;
        int class = (int)(s->codes[i] >> CLASS_SHIFT);
        uint32_t joined = starter && last < class ? compose_pair(*starter & CODE, code) : 0;
        if (joined) {
            *starter = joined;
            continue;
        }
        s->codes[kept] = s->codes[i];
        if (class == 0) starter = &s->codes[kept];
        last = class == 0 ? -1 : class;
        kept++;
    }
    s->codes_count = kept;
}

static lk_status append_text(lk_context *context, lk__nfc_scratch *s, const char *text, size_t bytes)
{
    lk_status status = lk__grow(context, (void **)&s->text, &s->text_room, s->text_count + bytes, 1);
    if (status < 0 || bytes == 0) return status;
    memcpy(s->text + s->text_count, text, bytes);
    s->text_count += bytes;
    return LK_OK;
}

static lk_status append_segment(lk_context *context, lk__nfc_scratch *s, const unsigned char *at,
                                const unsigned char *end)
{
    lk_status status = LK_OK;
    s->codes_count = 0;
    while (at < end && status >= 0) {
        int length;
        status = decompose(context, s, lk__utf8_decode(at, &length));
        at += length;
    }
    if (status < 0 || (status = sort_marks(context, s)) < 0) return status;
    compose(s);
    for (size_t i = 0; i < s->codes_count && status >= 0; i++) {
        char utf8[4];
        status = append_text(context, s, utf8, lk__utf8_encode(s->codes[i] & CODE, utf8));
    }
    return status;
}

/* The first unstable character from `at` on, or end; *stable: the last stable one before it, if there is one. */
static const unsigned char *find_unstable(const unsigned char *at, const unsigned char *end,
                                          const unsigned char **stable)
{
    while (at < end) {
        uint64_t eight;
        int      length = *at < 0x80 ? 1 : 2;
        if (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u))) { /* most text is ASCII */
            at += 8, *stable = at - 1;
            continue;
        }
        if (*at >= 0xcc && lk__nfc_unstable(lk__utf8_decode(at, &length))) break; /* 0xcc begins U+0300 */
        *stable = at;
        at += length;
    }
    return at;
}

static const unsigned char *find_stable(const unsigned char *at, const unsigned char *end)
{
    int length;
    while (at < end && lk__nfc_unstable(lk__utf8_decode(at, &length))) at += length;
    return at;
}

lk_status lk__nfc(lk_context *context, lk__nfc_scratch *s, const char **text, size_t *bytes)
{
    const unsigned char *at = (const unsigned char *)*text, *end = at + *bytes, *copied = at;
    s->text_count = 0;
    for (;;) {
        const unsigned char *begin = at, *unstable = find_unstable(at, end, &begin);
        if (unstable == end) break;
        at = find_stable(unstable, end);
        lk_status status = append_text(context, s, (const char *)copied, (size_t)(begin - copied));
        if (status < 0 || (status = append_segment(context, s, begin, at)) < 0) return status;
        copied = at;
    }
    if (copied == (const unsigned char *)*text) return LK_OK;
    lk_status status = append_text(context, s, (const char *)copied, (size_t)(end - copied));
    *text = s->text, *bytes = s->text_count;
    return status;
}
