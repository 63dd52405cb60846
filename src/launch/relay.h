/* launch/relay.h - relays lines from children to our own output: whole, prefixed, and with back-pressure from the
 * reader. */
#ifndef LK__RELAY_H
#define LK__RELAY_H

#include <lockstep/context.h>

enum { LK__TAIL_BYTES = 4096, LK__LINE_MOST = 1 << 20, LK__QUEUE_MOST = 1 << 20, LK__PREFIX = 256 };

/* A destination of lines. The queue is written only as far as the descriptor accepts data without blocking, so that the
 * launcher can always handle signals; the descriptor's flags are not changed, since other processes share it. */
typedef struct lk__launch_sink {
    lk_context *context;
    int         fd;
    bool        terminal, closed; /* closed: writing failed */
    int         error;            /* errno of that write; EPIPE if the reader closed it */
    bool        partial_line;     /* the terminal shows an unfinished line, to be cleared before the next */
    size_t      piece;            /* bytes that one write accepts without blocking after POLLOUT */
    int         columns;          /* of the terminal */
    uint64_t    lines;            /* printed so far */
    char       *queue;
    size_t      begin, end, capacity;
} lk__launch_sink;

typedef struct lk__launch_tail { /* the last lines, oldest first */
    const lk__launch_sink *sink; /* where the newest was printed; NULL: nowhere */
    uint64_t               line; /* its number there */
    char                   text[LK__TAIL_BYTES];
    size_t                 length;
} lk__launch_tail;

typedef struct lk__launch_stream {
    int              fd;   /* -1: ended */
    int              file; /* gets every byte unchanged; -1: none */
    lk__launch_sink *sink; /* NULL: not shown */
    lk__launch_tail *tail;
    char             prefix[LK__PREFIX], label[LK__PREFIX]; /* before each line; the same without colours, for files */
    const char      *filters;                               /* select the lines for `filtered`; NULL: none */
    int              filtered;                              /* owned by the job; not closed here */
    bool (*consume)(void *user, const char *line,
                    size_t length); /* true: the line is a message and is not shown; NULL: none */
    void  *user;
    char  *line; /* data since the last newline */
    size_t length, capacity;
    bool   unseen;     /* `line` has data that was not shown */
    int    file_error; /* errno of the first write to file that failed */
} lk__launch_stream;

void lk__sink_open(lk__launch_sink *sink, lk_context *context, int fd);
void lk__sink_free(lk__launch_sink *sink);
/* Queues prefix, text and a newline. If memory is exhausted, the line is dropped and the context has the error. */
void                 lk__sink_line(lk__launch_sink *sink, const char *prefix, const char *text, size_t length);
void                 lk__sink_flush(lk__launch_sink *sink); /* as much as possible without blocking */
static inline size_t lk__sink_waiting(const lk__launch_sink *sink) { return sink->end - sink->begin; }
static inline bool   lk__sink_full(const lk__launch_sink *sink)
{
    return sink && lk__sink_waiting(sink) >= LK__QUEUE_MOST;
}

/* Reads once and relays whole lines; at end of file relays the rest and closes the stream. */
void lk__line_stream_read(lk__launch_stream *stream, lk_context *context);
/* Shows the newest part of an unfinished line with a carriage return (a progress bar), only on a terminal. */
void lk__line_stream_peek(lk__launch_stream *stream);
/* relays an unfinished line; NULLs are fine */
void lk__line_stream_end(lk__launch_stream *stream, lk_context *context);
/* Whether the line contains one of "a,b"; ",," is a comma. (lines.c) */
bool lk__filters_match(const char *filters, const char *line, size_t length);
void lk__tail_add(lk__launch_tail *tail, const char *text, size_t length);

#endif
