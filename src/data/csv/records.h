/* data/csv/records.h - records of a CSV file (RFC 4180), one at a time. */
#ifndef LK__CSV_READ_H
#define LK__CSV_READ_H

#include "data/stream.h"

/* Where the text comes from; it is read more than once. */
typedef struct lk__csv_source {
    const char *label; /* the path, for messages */
    const void *bytes; /* NULL: the file `label` */
    size_t      size;
} lk__csv_source;

typedef struct lk__csv_text {
    char  *at; /* not terminated */
    size_t length;
    bool   quoted, escaped; /* escaped: had doubled quotes; they are single now */
} lk__csv_text;

typedef struct lk__csv {
    lk_context       *context;
    const char       *label;
    lk__data_stream   stream;
    lk__stream_buffer text; /* not split yet */
    char              separator;
    unsigned char     special[256]; /* the bytes that end an unquoted field, or may not be in it */
    int64_t           line;         /* of the record, counted from 1 */
    int64_t           next_line;
    lk__csv_text     *fields; /* of the record; valid until the next */
    size_t            fields_capacity;
    int               count;
    lk_status         failure;
} lk__csv;

/* Opens the text, plain or gzip, skips a byte-order mark, and detects the separator (comma, semicolon or tab) in the
 * first line. Close it in either case. */
lk_status lk__csv_open(lk_context *context, const lk__csv_source *source, lk__csv *csv);
void      lk__csv_close(lk__csv *csv);
/* The next record that is not an empty line; LK_END after the last. LK_EFORMAT names the line. */
lk_status lk__csv_next(lk__csv *csv);

/* A decimal number, in any locale; spaces around it are skipped. False: something else. */
bool lk__csv_number(const lk__csv_text *text, double *number);
/* Empty, NA, N/A, NaN, null or None. */
bool lk__csv_missing(const lk__csv_text *text);

#endif
