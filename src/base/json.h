/* base/json.h - a strict JSON reader (RFC 8259) over a span of bytes. It allocates nothing: a value is a span of a text
 * that lk__json_parse has validated as a whole, so iterating over it cannot fail. */
#ifndef LK__JSON_H
#define LK__JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LK__JSON_DEPTH = 64 }; /* maximum nesting of containers, which bounds the reader's stack */

typedef enum lk__json_kind {
    LK__JSON_NULL,
    LK__JSON_BOOL,
    LK__JSON_NUMBER,
    LK__JSON_STRING,
    LK__JSON_ARRAY,
    LK__JSON_OBJECT
} lk__json_kind;

/* Borrows from the parsed text. Quotes and brackets are part of the span. */
typedef struct lk__json {
    lk__json_kind kind;
    const char   *text;
    size_t        length;
} lk__json;

typedef struct lk__json_error {
    const char *what;   /* "expected ':' after a key" */
    size_t      offset; /* byte of the text */
} lk__json_error;

/* Validates the whole text (which needs no NUL at its end): grammar, depth, UTF-8, escapes. False fills error. The
 * caller checks for duplicate keys: only it knows which objects may be large. */
bool lk__json_parse(const char *text, size_t length, lk__json *value, lk__json_error *error);

/* Iterates over an array or an object: `lk__json_walk w = lk__json_begin(&v); while (lk__json_next(&w, &key, &item))
 * …`. key may be NULL; it is not set in an array. A value of another kind has no members. */
typedef struct lk__json_walk {
    const char *at, *end;
    bool        object;
} lk__json_walk;
lk__json_walk lk__json_begin(const lk__json *container);
bool          lk__json_next(lk__json_walk *walk, lk__json *key, lk__json *value);

bool   lk__json_get(const lk__json *object, const char *key, lk__json *value); /* the first member with that key */
size_t lk__json_count(const lk__json *container);

bool lk__json_integer(const lk__json *value, int64_t *out); /* false for fractions, exponents and overflow */
bool lk__json_number(const lk__json *value, double *out);   /* in any locale; false if not a number, or on overflow */
bool lk__json_bool(const lk__json *value, bool *out);

/* Decodes a string into out (size bytes, including the NUL; out may be NULL if size is 0) and returns its full length
 * without the NUL, as snprintf does; SIZE_MAX if value is not a string. A decoded U+0000 is a byte like any other. */
size_t lk__json_string(const lk__json *value, char *out, size_t size);
bool   lk__json_equals(const lk__json *value, const char *text); /* a string that decodes to text */

bool lk__json_check_utf8(const char *text, size_t length); /* valid UTF-8, which may be written as a string, escaped */
size_t lk__json_character(const char *at); /* bytes of the UTF-8 character of a string, 0: there is none */
/* What a reader gets after a text that need not be UTF-8 was written as a string: each byte that is not part of a
 * character becomes U+FFFD. out has 3 × length + 1 bytes. */
void lk__json_as_read(const char *text, size_t length, char *out);
/* Writes the escaped form of one byte of a string to out and returns its length, 1 … 6. UTF-8 stays unchanged. */
size_t lk__json_escape(unsigned char byte, char out[6]);

#endif
