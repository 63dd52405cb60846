/* pretokenize.c - the pre-tokenizers' regular expressions as scanners. Their alternatives are tried in order, and each
 * character begins some match, so that words follow one another without gaps. No alternative looks back, so a word
 * depends only on where it begins. */
#include "data/text/pretokenize.h"

#include "data/text/unicode.h"
#include "data/text/utf8.h"

#include <string.h>

/* Spellings of one rule: possessive quantifiers (`++`) change no match here, because what follows never matches what
 * they repeat; and \s*[\r\n] ends at the last line break of the white space, as \s*[\r\n]+ does. */
static const struct known_pattern {
    lk__pretokenizer rule;
    const char      *text;
} known_patterns[] = {
    {LK__SPLIT_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {LK__SPLIT_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {LK__SPLIT_LLAMA3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                       "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {LK__SPLIT_LLAMA3, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
                       "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {LK__SPLIT_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

bool lk__pretokenizer_find(const char *pattern, size_t bytes, lk__pretokenizer *rule)
{
    for (size_t i = 0; i < sizeof known_patterns / sizeof *known_patterns; i++) {
        const struct known_pattern *known = &known_patterns[i];
        if (strlen(known->text) != bytes || memcmp(known->text, pattern, bytes) != 0) continue;
        *rule = known->rule;
        return true;
    }
    return false;
}

#define L LK__CHAR_LETTER
#define N LK__CHAR_NUMBER
#define S LK__CHAR_SPACE
static const uint8_t ascii_classes[128] = {
    ['\t'] = S, ['\n'] = S, ['\v'] = S, ['\f'] = S, ['\r'] = S, [' '] = S, ['0'] = N, ['1'] = N, ['2'] = N, ['3'] = N,
    ['4'] = N,  ['5'] = N,  ['6'] = N,  ['7'] = N,  ['8'] = N,  ['9'] = N, ['A'] = L, ['B'] = L, ['C'] = L, ['D'] = L,
    ['E'] = L,  ['F'] = L,  ['G'] = L,  ['H'] = L,  ['I'] = L,  ['J'] = L, ['K'] = L, ['L'] = L, ['M'] = L, ['N'] = L,
    ['O'] = L,  ['P'] = L,  ['Q'] = L,  ['R'] = L,  ['S'] = L,  ['T'] = L, ['U'] = L, ['V'] = L, ['W'] = L, ['X'] = L,
    ['Y'] = L,  ['Z'] = L,  ['a'] = L,  ['b'] = L,  ['c'] = L,  ['d'] = L, ['e'] = L, ['f'] = L, ['g'] = L, ['h'] = L,
    ['i'] = L,  ['j'] = L,  ['k'] = L,  ['l'] = L,  ['m'] = L,  ['n'] = L, ['o'] = L, ['p'] = L, ['q'] = L, ['r'] = L,
    ['s'] = L,  ['t'] = L,  ['u'] = L,  ['v'] = L,  ['w'] = L,  ['x'] = L, ['y'] = L, ['z'] = L,
};
#undef L
#undef N
#undef S

static inline lk__unicode_class class_at(const unsigned char *at, int *length)
{
    if (*at < 0x80) {
        *length = 1;
        return (lk__unicode_class)ascii_classes[*at];
    }
    return lk__char_class(lk__utf8_decode(at, length));
}

static inline const unsigned char *skip_class(const unsigned char *at, const unsigned char *end, lk__unicode_class kind)
{
    int length;
    while (at < end && class_at(at, &length) == kind) at += length;
    return at;
}

static bool is_line_break(unsigned char c) { return c == '\r' || c == '\n'; }

/* The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the apostrophe; 0: none. Without regard to case s is also U+017F. */
static size_t match_contraction(const unsigned char *at, const unsigned char *end, bool any_case)
{
    unsigned char fold = any_case ? 0x20 : 0;
    if (end - at < 2) return 0;
    unsigned char first = at[1] | fold, second = end - at > 2 ? at[2] | fold : 0;
    switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return second == 'e' ? 3 : 0;
    case 'l': return second == 'l' ? 3 : 0;
    default: return any_case && end - at > 2 && at[1] == 0xc5 && at[2] == 0xbf ? 3 : 0;
    }
}

/* \s+(?!\S)|\s+: white space up to the last character before something else, which that may take; all of it at the end
 * of the text, or where it is one character. With `lines`, \s*[\r\n]+ first: up to and with the last line break. */
static const unsigned char *match_spaces(const unsigned char *at, const unsigned char *end, bool lines)
{
    const unsigned char *line = NULL, *next = at, *last = at;
    int                  length;
    while (next < end && class_at(next, &length) == LK__CHAR_SPACE) {
        if (is_line_break(*next)) line = next + 1;
        last = next, next += length;
    }
    if (lines && line) return line;
    return next == end || last == at ? next : last;
}

static const unsigned char *next_gpt2(const unsigned char *at, const unsigned char *end)
{
    int               length, next_length;
    size_t            contraction = *at == '\'' ? match_contraction(at, end, false) : 0;
    lk__unicode_class kind = class_at(at, &length);
    if (contraction) return at + contraction;
    if (kind != LK__CHAR_SPACE) return skip_class(at + length, end, kind);
    if (*at == ' ' && at + 1 < end) {
        lk__unicode_class next = class_at(at + 1, &next_length);
        if (next != LK__CHAR_SPACE) return skip_class(at + 1 + next_length, end, next);
    }
    return match_spaces(at, end, false);
}

/* Digits are those of Unicode 17 here, as in Rust's is_numeric: these are not yet \p{N}. */
static bool is_new_digit(uint32_t code)
{
    return (code >= 0x11de0 && code <= 0x11de9) || (code >= 0x16ff4 && code <= 0x16ff6);
}

static bool digit_at(const unsigned char *at, int *length)
{
    return class_at(at, length) == LK__CHAR_NUMBER || (*at == 0xf0 && is_new_digit(lk__utf8_decode(at, length)));
}

/* A word of GPT-2 in the text up to the next digit, at which the text ends: white space before it is one word. */
static const unsigned char *next_gpt2_digits(const unsigned char *at, const unsigned char *end)
{
    int                  length;
    const unsigned char *next = at + (*at == ' '), *stop;
    if (digit_at(at, &length)) return at + length;
    lk__unicode_class kind = next < end ? class_at(next, &length) : LK__CHAR_SPACE;
    if (next < end && digit_at(next, &length)) return next;
    if (kind == LK__CHAR_SPACE) {
        stop = skip_class(next, end, kind);
        return stop < end && digit_at(stop, &length) ? stop : next_gpt2(at, end);
    }
    stop = next_gpt2(at, end);
    for (; kind == LK__CHAR_OTHER && next < stop; next += length) /* the new digits are in such words */
        if (digit_at(next, &length)) return next;
    return stop;
}

static const unsigned char *skip_digits(const unsigned char *at, const unsigned char *end, int most)
{
    int length;
    for (int i = 0; i < most && at < end && class_at(at, &length) == LK__CHAR_NUMBER; i++) at += length;
    return at;
}

static const unsigned char *next_llama3(const unsigned char *at, const unsigned char *end, int digits)
{
    int               length, next_length;
    size_t            contraction = *at == '\'' ? match_contraction(at, end, true) : 0;
    lk__unicode_class kind = class_at(at, &length), next = LK__CHAR_SPACE;
    if (contraction) return at + contraction;
    if (kind == LK__CHAR_LETTER) return skip_class(at + length, end, kind);
    if (kind == LK__CHAR_NUMBER) return skip_digits(at, end, digits);
    if (at + length < end) next = class_at(at + length, &next_length);
    if (next == LK__CHAR_LETTER && !is_line_break(*at)) return skip_class(at + length + next_length, end, next);
    if (kind == LK__CHAR_OTHER || (*at == ' ' && next == LK__CHAR_OTHER)) {
        at = skip_class(at + length, end, LK__CHAR_OTHER);
        while (at < end && is_line_break(*at)) at++;
        return at;
    }
    return match_spaces(at, end, true);
}

const unsigned char *lk__pretokenize(lk__pretokenizer rule, const unsigned char *at, const unsigned char *end)
{
    switch (rule) {
    case LK__SPLIT_GPT2: return next_gpt2(at, end);
    case LK__SPLIT_GPT2_DIGITS: return next_gpt2_digits(at, end);
    case LK__SPLIT_LLAMA3: return next_llama3(at, end, 3);
    case LK__SPLIT_QWEN2: return next_llama3(at, end, 1);
    case LK__SPLIT_NOTHING: break;
    }
    return end;
}
