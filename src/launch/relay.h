/* launch/relay.h - lines from children to our own output: whole, prefixed, and never faster than they are read. */
#ifndef LK__RELAY_H
#define LK__RELAY_H

#include <lockstep/context.h>

enum { LK__TAIL_BYTES = 4096, LK__LINE_MOST = 1 << 20, LK__QUEUE_MOST = 1 << 20, LK__PREFIX = 256 };

/* Where lines go. What is queued is written only as the descriptor takes it without blocking, so that the launcher always
 * hears signals; the descriptor's flags stay as they are, since others share it. */
typedef struct lk__launch_sink {
    lk_context *context;
    int         fd;
    bool        terminal, closed; /* closed: it takes nothing any more */
    int         error;            /* why: errno, EPIPE when the reader is gone */
    bool        moving;           /* an unfinished line stands on the terminal and must be cleared before the next */
    size_t      piece;            /* bytes that a write takes without blocking once poll says so */
    int         columns;          /* of the terminal */
    char       *queue;
    size_t      begin, end, capacity;
} lk__launch_sink;

typedef struct lk__launch_tail { /* the last lines, oldest first */
    char   text[LK__TAIL_BYTES];
    size_t length;
} lk__launch_tail;

typedef struct lk__launch_stream {
    int              fd;   /* -1: ended */
    int              file; /* gets every byte as it came; -1: none */
    lk__launch_sink *sink; /* NULL: not shown */
    lk__launch_tail *tail;
    char             prefix[LK__PREFIX], label[LK__PREFIX]; /* before each line; the same without colours, for files */
    const char      *filters;                               /* of the lines that go to `filtered`; NULL: none do */
    int              filtered;                              /* the launcher's; it is not closed here */
    bool (*consume)(void *user, const char *line, size_t length); /* takes a line for itself; NULL: none */
    void  *user;
    char  *line; /* what came since the last newline */
    size_t length, capacity;
    bool   unseen;     /* there is something new in `line` */
    int    file_error; /* errno of the first write to file that failed */
} lk__launch_stream;

void lk__sink_open(lk__launch_sink *sink, lk_context *context, int fd);
void lk__sink_free(lk__launch_sink *sink);
/* Queues prefix, text and a newline. Without memory the line is dropped, and the context says so. */
void                 lk__sink_line(lk__launch_sink *sink, const char *prefix, const char *text, size_t length);
void                 lk__sink_flush(lk__launch_sink *sink); /* as much as goes without blocking */
static inline size_t lk__sink_waiting(const lk__launch_sink *sink) { return sink->end - sink->begin; }
static inline bool   lk__sink_full(const lk__launch_sink *sink)
{
    return sink && lk__sink_waiting(sink) >= LK__QUEUE_MOST;
}

/* Reads once and passes on what is whole; ends the stream at its end, its last line with it. */
void lk__line_stream_read(lk__launch_stream *stream, lk_context *context);
/* Shows the newest part of an unfinished line that holds a carriage return (a progress bar), on a terminal alone. */
void lk__line_stream_peek(lk__launch_stream *stream);
void lk__line_stream_end(lk__launch_stream *stream,
                         lk_context        *context); /* what is unfinished is passed on; NULLs are fine */
/* Whether the line holds one of "a,b"; ",," stands for a comma. (lines.c) */
bool lk__filters_match(const char *filters, const char *line, size_t length);
void lk__tail_add(lk__launch_tail *tail, const char *text, size_t length);

#endif
