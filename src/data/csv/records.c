/* records.c - records of a CSV file. A record is split in place, in a buffer that grows to the longest one. Bound by
 * one pass over the bytes; test/data/test_data_csv.c prints its speed. */
#define _GNU_SOURCE
#include "data/csv/records.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LARGEST_RECORD = 1 << 28 };

static lk_status refill(lk__csv *c)
{
    lk_status status = lk__stream_refill(&c->stream, &c->text, LARGEST_RECORD);
    if (status != LK_END) return status;
    return lk__fail(c->context, LK_EFORMAT, "%s: line %lld is longer than %d bytes: is a closing quote missing?",
                    c->label, (long long)c->line, LARGEST_RECORD);
}

/* The most frequent of comma, semicolon and tab in the first line, outside of quotes. */
static char detect_separator(const char *text, size_t bytes)
{
    static const char candidates[] = ",;\t";
    size_t            counts[3] = {0}, best = 0;
    bool              quoted = false;
    for (size_t i = 0; i < bytes && (quoted || (text[i] != '\n' && text[i] != '\r')); i++) {
        if (text[i] == '"') quoted = !quoted;
        const char *found = quoted || !text[i] ? NULL : strchr(candidates, text[i]);
        if (found) counts[found - candidates]++;
    }
    for (size_t i = 1; i < 3; i++)
        if (counts[i] > counts[best]) best = i;
    return candidates[best];
}

lk_status lk__csv_open(lk_context *context, const lk__csv_source *source, lk__csv *c)
{
    *c = (lk__csv){.context = context, .label = source->label, .next_line = 1, .line = 1};
    c->stream = (lk__data_stream){.context = context, .fd = -1};
    lk_status status = source->bytes
                           ? lk__stream_memory(context, source->label, source->bytes, source->size, &c->stream)
                           : lk__stream_open(context, source->label, &c->stream);
    if (status < 0 || (status = refill(c)) < 0) return status;
    if (c->text.end >= 3 && memcmp(c->text.bytes, "\xef\xbb\xbf", 3) == 0) c->text.begin = 3;
    c->separator = detect_separator(c->text.bytes + c->text.begin, c->text.end - c->text.begin);
    c->special[(unsigned char)c->separator] = c->special['\n'] = c->special['\r'] = c->special['"'] = 1;
    return LK_OK;
}

void lk__csv_close(lk__csv *c)
{
    lk__stream_close(&c->stream);
    lk__stream_buffer_free(c->context, &c->text);
    lk__free(c->context, LK_MEMORY_OTHER, c->fields, c->fields_capacity * sizeof *c->fields);
    c->fields = NULL;
}

typedef enum scan { SCAN_RECORD, SCAN_INCOMPLETE, SCAN_FAILED } scan;

static scan fail_scan(lk__csv *c, const char *what)
{
    c->failure = lk__fail(c->context, LK_EFORMAT, "%s: line %lld, column %d: %s", c->label, (long long)c->line,
                          c->count + 1, what);
    return SCAN_FAILED;
}

/* From the opening quote at *p to behind the closing one. Lines inside are counted in *lines. */
static scan scan_quoted(lk__csv *c, char **p, lk__csv_text *field, int64_t *lines)
{
    char *end = c->text.bytes + c->text.end, *at = *p + 1;
    *field = (lk__csv_text){.at = at, .quoted = true};
    for (;;) {
        char *quote = memchr(at, '"', (size_t)(end - at));
        if (!quote) return c->text.ended ? fail_scan(c, "a quote is not closed") : SCAN_INCOMPLETE;
        for (char *line = at; (line = memchr(line, '\n', (size_t)(quote - line))); line++) ++*lines;
        if (quote + 1 == end && !c->text.ended) return SCAN_INCOMPLETE;
        if (quote + 1 == end || quote[1] != '"') {
            field->length = (size_t)(quote - field->at);
            *p = quote + 1;
            return SCAN_RECORD;
        }
        field->escaped = true;
        at = quote + 2;
    }
}

/* Splits the record at the beginning of the unread part; on success the next one begins at *next. */
static scan scan_record(lk__csv *c, char **next)
{
    char   *p = c->text.bytes + c->text.begin, *end = c->text.bytes + c->text.end;
    int64_t lines = 1;
    for (c->count = 0;;) {
        if ((size_t)c->count == c->fields_capacity) {
            c->failure =
                lk__grow(c->context, (void **)&c->fields, &c->fields_capacity, (size_t)c->count + 1, sizeof *c->fields);
            if (c->failure < 0) return SCAN_FAILED;
        }
        lk__csv_text *field = &c->fields[c->count];
        if (p < end && *p == '"') {
            scan result = scan_quoted(c, &p, field, &lines);
            if (result != SCAN_RECORD) return result;
            if (p < end && !c->special[(unsigned char)*p]) return fail_scan(c, "text follows a closing quote");
        } else {
            char *start = p;
            while (p < end && !c->special[(unsigned char)*p]) p++;
            *field = (lk__csv_text){.at = start, .length = (size_t)(p - start)};
            if (p < end && *p == '"') return fail_scan(c, "a quote inside an unquoted field");
        }
        if (p == end && !c->text.ended) return SCAN_INCOMPLETE;
        c->count++;
        if (p < end && *p == c->separator) {
            p++;
            continue;
        }
        if (p + 1 == end && *p == '\r' && !c->text.ended) return SCAN_INCOMPLETE; /* a newline may follow */
        if (p < end) p += *p == '\r' && p + 1 < end && p[1] == '\n' ? 2 : 1;
        *next = p;
        c->next_line = c->line + lines;
        return SCAN_RECORD;
    }
}

static void remove_doubled_quotes(lk__csv_text *field)
{
    size_t n = 0;
    for (size_t i = 0; i < field->length; i++) {
        field->at[n++] = field->at[i];
        if (field->at[i] == '"') i++;
    }
    field->length = n;
}

lk_status lk__csv_next(lk__csv *c)
{
    for (;;) {
        char *next = NULL;
        c->line = c->next_line;
        if (c->text.begin == c->text.end && c->text.ended) return LK_END;
        scan result = scan_record(c, &next);
        if (result == SCAN_FAILED) return c->failure;
        if (result == SCAN_INCOMPLETE) {
            lk_status status = refill(c);
            if (status < 0) return status;
            continue;
        }
        c->text.begin = (size_t)(next - c->text.bytes);
        if (c->count == 1 && c->fields[0].length == 0 && !c->fields[0].quoted) continue; /* an empty line */
        for (int i = 0; i < c->count; i++)
            if (c->fields[i].escaped) remove_doubled_quotes(&c->fields[i]);
        return LK_OK;
    }
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Long numbers and large exponents: correctly rounded by the C library. */
static bool parse_slowly(const char *text, size_t length, double *number)
{
    char buffer[512]; /* strtod needs a NUL; longer numbers are refused */
    if (length >= sizeof buffer) return false;
    memcpy(buffer, text, length);
    buffer[length] = 0;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* the program's locale may use a decimal comma */
    if (!c) return false;
    *number = strtod_l(buffer, NULL, c);
    freelocale(c);
    return true;
}

typedef struct decimal {
    uint64_t mantissa;
    int      digits; /* from the first that is not 0; above MOST_DIGITS the mantissa has only the first */
    int      places; /* of them, behind the point */
} decimal;
enum { MOST_DIGITS = 19 }; /* fit in 64 bits */

/* Returns whether there was a digit. */
static bool take_digits(const char **at, const char *end, bool behind_point, decimal *d)
{
    const char *begin = *at;
    for (; *at < end && is_digit(**at); ++*at) {
        if (d->digits < MOST_DIGITS) {
            d->mantissa = d->mantissa * 10 + (uint64_t)(**at - '0');
            d->digits += d->mantissa != 0;
            d->places += behind_point;
        } else {
            d->digits++;
        }
    }
    return *at > begin;
}

/* "e-7"; true also without one. */
static bool take_exponent(const char **at, const char *end, int *exponent)
{
    if (*at == end || (**at != 'e' && **at != 'E')) return true;
    bool down = ++*at < end && **at == '-';
    if (*at < end && (**at == '-' || **at == '+')) ++*at;
    if (*at == end) return false;
    for (; *at < end && is_digit(**at); ++*at)
        if (*exponent < 10000) *exponent = *exponent * 10 + (**at - '0');
    if (down) *exponent = -*exponent;
    return true;
}

bool lk__csv_number(const lk__csv_text *text, double *number)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char         *at = text->at, *end = at + text->length;
    while (at < end && is_space(*at)) at++;
    while (at < end && is_space(end[-1])) end--;
    const char *begin = at;
    decimal     d = {0};
    int         exponent = 0;
    bool        negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    bool any = take_digits(&at, end, false, &d);
    if (at < end && *at == '.') {
        at++;
        if (take_digits(&at, end, true, &d)) any = true;
    }
    if (!any || !take_exponent(&at, end, &exponent) || at != end) return false;
    exponent -= d.places;
    /* Clinger's fast path: both are exact as doubles, so one operation rounds correctly. */
    if (d.digits > MOST_DIGITS || d.mantissa > 1ULL << 53 || exponent < -22 || exponent > 22)
        return parse_slowly(begin, (size_t)(end - begin), number);
    double value = exponent < 0 ? (double)d.mantissa / powers[-exponent] : (double)d.mantissa * powers[exponent];
    *number = negative ? -value : value;
    return true;
}

bool lk__csv_missing(const lk__csv_text *text)
{
    static const char *const words[] = {"", "na", "n/a", "nan", "null", "none"};
    const char              *at = text->at, *end = at + text->length;
    while (at < end && is_space(*at)) at++;
    while (at < end && is_space(end[-1])) end--;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((size_t)(end - at) == strlen(words[i]) && strncasecmp(at, words[i], (size_t)(end - at)) == 0) return true;
    return false;
}
