/* json.c - the JSON reader: one recursive validation of the whole text, then iteration over spans of it without
 * checks. */
#define _GNU_SOURCE
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char     *text, *at, *end;
    int             depth;
    lk__json_error *error;
} reader;

static bool syntax_error(reader *r, const char *what)
{
    r->error->what = what;
    r->error->offset = (size_t)(r->at - r->text);
    return false;
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

static bool is_digit(const char *at, const char *end) { return at < end && *at >= '0' && *at <= '9'; }

/* ---- validation ---- */

static int parse_hex4(const char *at, const char *end)
{
    int value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int  digit = c >= '0' && c <= '9'   ? c - '0'
                     : c >= 'a' && c <= 'f' ? c - 'a' + 10
                     : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                            : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The bytes of the UTF-8 sequence at `at` (Unicode 15, table 3-7: no overlong forms, no surrogates), or 0. */
static int utf8_length(const unsigned char *at, const unsigned char *end)
{
    unsigned char lead = at[0], low = 0x80, high = 0xbf;
    int           length;
    if (lead >= 0xc2 && lead <= 0xdf)
        length = 2;
    else if (lead >= 0xe0 && lead <= 0xef)
        length = 3;
    else if (lead >= 0xf0 && lead <= 0xf4)
        length = 4;
    else
        return 0;
    if (end - at < length) return 0;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
    if (at[1] < low || at[1] > high) return 0;
    for (int i = 2; i < length; i++)
        if (at[i] < 0x80 || at[i] > 0xbf) return 0;
    return length;
}

static bool check_escape(reader *r)
{
    const char *escape = r->at++;
    if (r->at == r->end) return syntax_error(r, "an unterminated string");
    char c = *r->at++;
    if (strchr("\"\\/bfnrt", c) && c) return true;
    if (c == 'u') {
        int code = parse_hex4(r->at, r->end);
        if (code >= 0 && (code < 0xd800 || code > 0xdfff)) {
            r->at += 4;
            return true;
        }
        bool pair = code >= 0xd800 && code <= 0xdbff && r->end - r->at >= 10 && r->at[4] == '\\' && r->at[5] == 'u';
        int  low = pair ? parse_hex4(r->at + 6, r->end) : -1;
        if (low >= 0xdc00 && low <= 0xdfff) {
            r->at += 10;
            return true;
        }
        r->at = escape;
        return syntax_error(r, code < 0 ? "\\u not followed by four hexadecimal digits" : "an unpaired surrogate");
    }
    r->at = escape;
    return syntax_error(r, "an unknown escape sequence in a string");
}

/* Past the bytes of a string that need no check, 8 at a time: ASCII without quotes, backslashes and control
 * characters. */
static const char *skip_plain(const char *at, const char *end)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    for (; end - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
        /* the high bit of each byte that is 0, and of those below 0x20 (Warren, Hacker's Delight 6-1) */
        if ((((quote - ones) | (backslash - ones) | (word - ones * 0x20)) | word) & high) break;
    }
    return at;
}

static bool check_string(reader *r)
{
    r->at++;
    while ((r->at = skip_plain(r->at, r->end)) < r->end) {
        unsigned char c = (unsigned char)*r->at;
        if (c == '"') {
            r->at++;
            return true;
        }
        if (c < 0x20) return syntax_error(r, "a control character in a string");
        if (c == '\\') {
            if (!check_escape(r)) return false;
        } else if (c < 0x80) {
            r->at++;
        } else {
            int length = utf8_length((const unsigned char *)r->at, (const unsigned char *)r->end);
            if (!length) return syntax_error(r, "a string that is not UTF-8");
            r->at += length;
        }
    }
    return syntax_error(r, "an unterminated string");
}

static bool check_number(reader *r)
{
    if (*r->at == '-') r->at++;
    if (!is_digit(r->at, r->end)) return syntax_error(r, "a number without digits");
    if (*r->at == '0' && is_digit(r->at + 1, r->end)) return syntax_error(r, "a number with a leading zero");
    while (is_digit(r->at, r->end)) r->at++;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!is_digit(r->at, r->end)) return syntax_error(r, "a number without digits after the decimal point");
        while (is_digit(r->at, r->end)) r->at++;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        if (!is_digit(r->at, r->end)) return syntax_error(r, "a number without digits in the exponent");
        while (is_digit(r->at, r->end)) r->at++;
    }
    return true;
}

static bool check_literal(reader *r, const char *literal)
{
    size_t length = strlen(literal);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, literal, length) != 0)
        return syntax_error(r, "expected a value");
    r->at += length;
    return true;
}

static bool check_value(reader *r);

/* The members up to and including the closing bracket; r->at is at the opening one. */
static bool check_members(reader *r, char close)
{
    if (++r->depth > LK__JSON_DEPTH) return syntax_error(r, "nested too deeply");
    r->at = skip_space(r->at + 1, r->end);
    if (r->at < r->end && *r->at == close) {
        r->at++, r->depth--;
        return true;
    }
    for (;;) {
        if (close == '}') {
            if (r->at == r->end || *r->at != '"') return syntax_error(r, "expected a key in quotes");
            if (!check_string(r)) return false;
            r->at = skip_space(r->at, r->end);
            if (r->at == r->end || *r->at != ':') return syntax_error(r, "expected ':' after a key");
            r->at = skip_space(r->at + 1, r->end);
        }
        if (!check_value(r)) return false;
        r->at = skip_space(r->at, r->end);
        if (r->at < r->end && *r->at == close) {
            r->at++, r->depth--;
            return true;
        }
        if (r->at == r->end || *r->at != ',')
            return syntax_error(r, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        r->at = skip_space(r->at + 1, r->end);
    }
}

static bool check_value(reader *r)
{
    if (r->at == r->end) return syntax_error(r, "expected a value");
    switch (*r->at) {
    case '{': return check_members(r, '}');
    case '[': return check_members(r, ']');
    case '"': return check_string(r);
    case 't': return check_literal(r, "true");
    case 'f': return check_literal(r, "false");
    case 'n': return check_literal(r, "null");
    default:
        if (*r->at == '-' || is_digit(r->at, r->end)) return check_number(r);
        return syntax_error(r, "expected a value");
    }
}

static lk__json_kind value_kind(char first)
{
    switch (first) {
    case '{': return LK__JSON_OBJECT;
    case '[': return LK__JSON_ARRAY;
    case '"': return LK__JSON_STRING;
    case 't':
    case 'f': return LK__JSON_BOOL;
    case 'n': return LK__JSON_NULL;
    default: return LK__JSON_NUMBER;
    }
}

bool lk__json_parse(const char *text, size_t length, lk__json *value, lk__json_error *error)
{
    lk__json_error ignored;
    reader         r = {.text = text, .at = text, .end = text + length, .error = error ? error : &ignored};
    r.at = skip_space(r.at, r.end);
    const char *begin = r.at;
    if (!check_value(&r)) return false;
    *value = (lk__json){value_kind(*begin), begin, (size_t)(r.at - begin)};
    r.at = skip_space(r.at, r.end);
    if (r.at != r.end) return syntax_error(&r, "trailing characters after the value");
    return true;
}

/* ---- iteration over validated text ---- */

/* The closing quote of a string, or the end; `at` is behind the opening quote. A quote is escaped if an odd number of
 * backslashes is before it. */
static const char *find_quote(const char *at, const char *end)
{
    for (const char *begin = at, *quote; (quote = memchr(at, '"', (size_t)(end - at))); at = quote + 1) {
        const char *first = quote;
        while (first > begin && first[-1] == '\\') first--;
        if ((quote - first) % 2 == 0) return quote;
    }
    return end;
}

/* The end of the value at `at`. Only brackets outside strings count. */
static const char *skip_value(const char *at, const char *end)
{
    int depth = 0;
    for (; at < end; at++) {
        if (*at == '"') {
            at = find_quote(at + 1, end);
            if (depth == 0) return at + 1;
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0) return at; /* a number or literal at the end of its container */
            if (--depth == 0) return at + 1;
        } else if (depth == 0 && (*at == ',' || *at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) {
            return at;
        }
    }
    return end;
}

lk__json_walk lk__json_begin(const lk__json *container)
{
    if (container->kind != LK__JSON_ARRAY && container->kind != LK__JSON_OBJECT)
        return (lk__json_walk){NULL, NULL, false};
    return (lk__json_walk){container->text + 1, container->text + container->length - 1,
                           container->kind == LK__JSON_OBJECT};
}

bool lk__json_next(lk__json_walk *walk, lk__json *key, lk__json *value)
{
    if (walk->at == walk->end) return false;
    walk->at = skip_space(walk->at, walk->end);
    if (walk->at < walk->end && *walk->at == ',') walk->at = skip_space(walk->at + 1, walk->end);
    if (walk->at == walk->end) return false;
    if (walk->object) {
        const char *begin = walk->at;
        walk->at = skip_value(begin, walk->end);
        if (key) *key = (lk__json){LK__JSON_STRING, begin, (size_t)(walk->at - begin)};
        walk->at = skip_space(walk->at, walk->end) + 1; /* the colon */
        walk->at = skip_space(walk->at, walk->end);
    }
    const char *begin = walk->at;
    walk->at = skip_value(begin, walk->end);
    *value = (lk__json){value_kind(*begin), begin, (size_t)(walk->at - begin)};
    return true;
}

bool lk__json_get(const lk__json *object, const char *name, lk__json *value)
{
    lk__json      key, item;
    lk__json_walk walk = lk__json_begin(object);
    if (object->kind != LK__JSON_OBJECT) return false;
    while (lk__json_next(&walk, &key, &item)) {
        if (!lk__json_equals(&key, name)) continue;
        *value = item;
        return true;
    }
    return false;
}

size_t lk__json_count(const lk__json *container)
{
    lk__json      item;
    lk__json_walk walk = lk__json_begin(container);
    size_t        count = 0;
    while (lk__json_next(&walk, NULL, &item)) count++;
    return count;
}

/* ---- scalars ---- */

bool lk__json_integer(const lk__json *value, int64_t *out)
{
    if (value->kind != LK__JSON_NUMBER) return false;
    bool     negative = value->text[0] == '-';
    uint64_t limit = (uint64_t)INT64_MAX + negative, n = 0;
    for (size_t i = negative; i < value->length; i++) {
        char c = value->text[i];
        if (c < '0' || c > '9') return false;
        unsigned digit = (unsigned)(c - '0');
        if (n > (limit - digit) / 10) return false;
        n = n * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}

bool lk__json_number(const lk__json *value, double *out)
{
    char buffer[512]; /* strtod needs a NUL; longer numbers are refused */
    if (value->kind != LK__JSON_NUMBER || value->length >= sizeof buffer) return false;
    memcpy(buffer, value->text, value->length);
    buffer[value->length] = 0;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* the program's locale may use a decimal comma */
    if (!c) return false;
    double number = strtod_l(buffer, NULL, c);
    freelocale(c);
    if (!isfinite(number)) return false;
    *out = number;
    return true;
}

bool lk__json_bool(const lk__json *value, bool *out)
{
    if (value->kind != LK__JSON_BOOL) return false;
    *out = value->text[0] == 't';
    return true;
}

static size_t encode_utf8(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Decodes the character at *at of a validated string, 1 to 4 bytes, and advances *at. */
static size_t decode_character(const char **at, const char *end, char out[4])
{
    const char *p = *at;
    if (*p != '\\') {
        out[0] = *p;
        *at = p + 1;
        return 1;
    }
    *at = p + 2;
    switch (p[1]) {
    case 'b': out[0] = '\b'; return 1;
    case 'f': out[0] = '\f'; return 1;
    case 'n': out[0] = '\n'; return 1;
    case 'r': out[0] = '\r'; return 1;
    case 't': out[0] = '\t'; return 1;
    case 'u': break;
    default: out[0] = p[1]; return 1;
    }
    uint32_t code = (uint32_t)parse_hex4(p + 2, end);
    *at = p + 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code - 0xd800) << 10) + ((uint32_t)parse_hex4(p + 8, end) - 0xdc00);
        *at = p + 12;
    }
    return encode_utf8(code, out);
}

size_t lk__json_string(const lk__json *value, char *out, size_t size)
{
    if (value->kind != LK__JSON_STRING) return SIZE_MAX;
    const char *at = value->text + 1, *end = value->text + value->length - 1;
    size_t      length = 0;
    while (at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at)), *from = at;
        char        bytes[4];
        size_t      n = escape ? (size_t)(escape - at) : (size_t)(end - at);
        at += n;
        if (n == 0) {
            n = decode_character(&at, end, bytes);
            from = bytes;
        }
        if (length + 1 < size) memcpy(out + length, from, n < size - 1 - length ? n : size - 1 - length);
        length += n;
    }
    if (size) out[length < size ? length : size - 1] = 0;
    return length;
}

bool lk__json_equals(const lk__json *value, const char *text)
{
    if (value->kind != LK__JSON_STRING) return false;
    const char *at = value->text + 1, *end = value->text + value->length - 1;
    while (at < end) {
        char   bytes[4];
        size_t n = decode_character(&at, end, bytes);
        for (size_t i = 0; i < n; i++, text++)
            if (*text == 0 || *text != bytes[i]) return false;
    }
    return *text == 0;
}

bool lk__json_check_utf8(const char *text, size_t length)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + length;
    while (at < end) {
        int n = *at < 0x80 ? 1 : utf8_length(at, end);
        if (!n) return false;
        at += n;
    }
    return true;
}

size_t lk__json_escape(unsigned char byte, char out[6])
{
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char       *found = byte ? strchr(plain, byte) : NULL;
    if (found) {
        out[0] = '\\';
        out[1] = letters[found - plain];
        return 2;
    }
    if (byte >= 0x20) {
        out[0] = (char)byte;
        return 1;
    }
    memcpy(out, "\\u00", 4);
    out[4] = "0123456789abcdef"[byte >> 4];
    out[5] = "0123456789abcdef"[byte & 15];
    return 6;
}

size_t lk__json_character(const char *at)
{
    for (size_t length = 1; length <= 4; length++) {
        if (length > 1 && !at[length - 1]) return 0;
        if (lk__json_check_utf8(at, length)) return length;
    }
    return 0;
}

void lk__json_as_read(const char *text, size_t length, char *out)
{
    for (size_t i = 0; i < length;) {
        size_t n = 1;
        while (n <= 4 && i + n <= length && !lk__json_check_utf8(text + i, n)) n++;
        bool valid = n <= 4 && i + n <= length;
        memcpy(out, valid ? text + i : "\xef\xbf\xbd", valid ? n : 3);
        out += valid ? n : 3;
        i += valid ? n : 1;
    }
    *out = 0;
}
