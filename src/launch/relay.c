/* relay.c - splits the children's output into lines and queues whole lines, so that lines of different ranks never
 * mix. */
#define _GNU_SOURCE
#include "launch/relay.h"

#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLEAR_LINE "\r\033[K"
enum { READ_BYTES = 65536, TAIL_LINE = 400, TERMINAL_PIECE = 512 };

/* ---- sinks ---- */

void lk__sink_open(lk__launch_sink *sink, lk_context *context, int fd)
{
    struct stat    about;
    struct winsize window;
    memset(sink, 0, sizeof *sink);
    sink->context = context;
    sink->fd = fd;
    sink->terminal = isatty(fd);
    bool file = fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    sink->piece = sink->terminal ? TERMINAL_PIECE : file ? (size_t)INT_MAX : PIPE_BUF;
    sink->columns = sink->terminal && ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : 80;
}

void lk__sink_free(lk__launch_sink *sink) { lk__free(sink->context, LK_MEMORY_OTHER, sink->queue, sink->capacity); }

static bool reserve_queue(lk__launch_sink *sink, size_t bytes)
{
    if (sink->begin && sink->end + bytes > sink->capacity) {
        memmove(sink->queue, sink->queue + sink->begin, sink->end - sink->begin);
        sink->end -= sink->begin;
        sink->begin = 0;
    }
    return lk__grow(sink->context, (void **)&sink->queue, &sink->capacity, sink->end + bytes, 1) == LK_OK;
}

static void append_queue(lk__launch_sink *sink, const char *text, size_t length)
{
    memcpy(sink->queue + sink->end, text, length);
    sink->end += length;
}

void lk__sink_line(lk__launch_sink *sink, const char *prefix, const char *text, size_t length)
{
    size_t lead = strlen(prefix);
    if (sink->closed || !reserve_queue(sink, sizeof CLEAR_LINE + lead + length + 1)) return;
    if (sink->partial_line) append_queue(sink, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    sink->partial_line = false;
    append_queue(sink, prefix, lead);
    append_queue(sink, text, length);
    append_queue(sink, "\n", 1);
    sink->lines++;
}

void lk__sink_flush(lk__launch_sink *sink)
{
    while (lk__sink_waiting(sink)) {
        struct pollfd ready = {sink->fd, POLLOUT, 0};
        if (poll(&ready, 1, 0) <= 0) return;
        size_t  some = lk__sink_waiting(sink);
        ssize_t wrote = write(sink->fd, sink->queue + sink->begin, some < sink->piece ? some : sink->piece);
        if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (wrote < 0) {
            sink->closed = true;
            sink->error = errno;
            sink->begin = sink->end = 0;
            return;
        }
        sink->begin += (size_t)wrote;
    }
    sink->begin = sink->end = 0;
}

/* ---- tails ---- */

void lk__tail_add(lk__launch_tail *tail, const char *text, size_t length)
{
    while (length && text[length - 1] == '\r') length--;
    const char *shown = memrchr(text, '\r', length); /* of a progress bar only the last state */
    if (shown) {
        length -= (size_t)(shown + 1 - text);
        text = shown + 1;
    }
    if (length > TAIL_LINE) length = TAIL_LINE;
    while (tail->length + length + 1 > sizeof tail->text) {
        char  *next = memchr(tail->text, '\n', tail->length);
        size_t drop = next ? (size_t)(next + 1 - tail->text) : tail->length;
        memmove(tail->text, tail->text + drop, tail->length - drop);
        tail->length -= drop;
    }
    memcpy(tail->text + tail->length, text, length);
    tail->length += length;
    tail->text[tail->length++] = '\n';
}

/* ---- streams ---- */

static void write_file(int fd, const char *text, size_t length, int *error)
{
    while (length) {
        ssize_t wrote = write(fd, text, length);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            *error = errno;
            return;
        }
        text += wrote;
        length -= (size_t)wrote;
    }
}

static void copy_filtered(lk__launch_stream *stream, const char *text, size_t length)
{
    if (!stream->filters || stream->file_error || !lk__filters_match(stream->filters, text, length)) return;
    write_file(stream->filtered, stream->label, strlen(stream->label), &stream->file_error);
    write_file(stream->filtered, text, length, &stream->file_error);
    write_file(stream->filtered, "\n", 1, &stream->file_error);
}

static void finish_line(lk__launch_stream *stream, const char *text, size_t length)
{
    copy_filtered(stream, text, length);
    if (stream->consume && stream->consume(stream->user, text, length)) return;
    if (stream->sink) lk__sink_line(stream->sink, stream->prefix, text, length);
    if (!stream->tail) return;
    lk__tail_add(stream->tail, text, length);
    stream->tail->sink = stream->sink;
    stream->tail->line = stream->sink ? stream->sink->lines : 0;
}

/* Appends to the unfinished line. A line longer than LK__LINE_MOST is split into several. */
static void append_line(lk__launch_stream *stream, lk_context *context, const char *text, size_t length)
{
    while (length) {
        size_t room = LK__LINE_MOST - stream->length, some = length < room ? length : room;
        if (lk__grow(context, (void **)&stream->line, &stream->capacity, stream->length + some, 1) < 0) {
            finish_line(stream, stream->line, stream->length);
            finish_line(stream, text, length);
            stream->length = 0;
            return;
        }
        memcpy(stream->line + stream->length, text, some);
        stream->length += some;
        stream->unseen = true;
        text += some;
        length -= some;
        if (stream->length < LK__LINE_MOST) return;
        finish_line(stream, stream->line, stream->length);
        stream->length = 0;
    }
}

static void write_log(lk__launch_stream *stream, const char *text, size_t length)
{
    int error = 0;
    if (stream->file < 0) return;
    write_file(stream->file, text, length, &error);
    if (!error) return;
    stream->file_error = error;
    close(stream->file);
    stream->file = -1;
}

void lk__line_stream_read(lk__launch_stream *stream, lk_context *context)
{
    char    bytes[READ_BYTES];
    ssize_t got = read(stream->fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        lk__line_stream_end(stream, context);
        return;
    }
    write_log(stream, bytes, (size_t)got);
    const char *at = bytes, *end = bytes + got;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t      length = (size_t)((newline ? newline : end) - at);
        if (newline && stream->length == 0) {
            finish_line(stream, at, length);
        } else {
            append_line(stream, context, at, length);
            if (newline) {
                finish_line(stream, stream->line, stream->length);
                stream->length = 0;
            }
        }
        at += length + (newline ? 1 : 0);
    }
}

/* The end of the first `room` columns of text. Counts characters: UTF-8 continuation bytes are 10xxxxxx, and sequences
 * such as ESC [ 3 2 m, which end with a letter, have no width. *room is what is left. */
static const char *fit_columns(const char *text, const char *end, int *room)
{
    bool escape = false;
    for (; text < end && (*room > 0 || escape || *text == '\033'); text++) {
        if (*text == '\033')
            escape = true;
        else if (escape)
            escape = !((*text >= 'A' && *text <= 'Z') || (*text >= 'a' && *text <= 'z'));
        else
            *room -= ((unsigned char)*text & 0xc0) != 0x80;
    }
    return text;
}

void lk__line_stream_peek(lk__launch_stream *stream)
{
    lk__launch_sink *sink = stream->sink;
    if (!stream->unseen || !sink || !sink->terminal || sink->closed || !stream->length) return;
    stream->unseen = false;
    size_t end = stream->length;
    if (!memchr(stream->line, '\r', end)) return;
    if (stream->line[end - 1] == '\r') end--;
    const char *start = memrchr(stream->line, '\r', end);
    const char *at = start ? start + 1 : stream->line;
    size_t      lead = strlen(stream->prefix);
    int         room = sink->columns - 1; /* a wrapped line cannot be cleared */
    lead = (size_t)(fit_columns(stream->prefix, stream->prefix + lead, &room) - stream->prefix);
    size_t length = (size_t)(fit_columns(at, stream->line + end, &room) - at);
    if (!reserve_queue(sink, sizeof CLEAR_LINE + lead + length)) return;
    append_queue(sink, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    append_queue(sink, stream->prefix, lead);
    append_queue(sink, at, length);
    sink->partial_line = true;
}

void lk__line_stream_end(lk__launch_stream *stream, lk_context *context)
{
    if (stream->length) finish_line(stream, stream->line, stream->length);
    lk__free(context, LK_MEMORY_OTHER, stream->line, stream->capacity);
    stream->line = NULL;
    stream->length = stream->capacity = 0;
    if (stream->fd >= 0) close(stream->fd);
    if (stream->file >= 0) close(stream->file);
    stream->fd = stream->file = -1;
}
