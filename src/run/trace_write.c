/* trace_write.c - traces of all ranks as one file in the trace event format, which Chrome and Perfetto open. Numbers
 * are written from integers, so that the locale does not affect the decimal point. */
#define _GNU_SOURCE
#include "run/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STAGING = 65536 };

typedef struct output {
    lk_context *context;
    const char *path;
    int         fd;
    lk_status   status; /* the first failure; later writes do nothing */
    size_t      used;
    char       *staging;
    double      origin;
    const char *separator; /* before the next event */
} output;

static void flush(output *o)
{
    for (size_t at = 0; o->status == LK_OK && at < o->used;) {
        ssize_t n = write(o->fd, o->staging + at, o->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            o->status =
                lk__fail(o->context, LK_EIO, "%s: cannot write the trace: %s", o->path, strerror(n < 0 ? errno : EIO));
        else
            at += (size_t)n;
    }
    o->used = 0;
}

static void put(output *o, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        if (o->used == STAGING) flush(o);
        size_t n = bytes - at < STAGING - o->used ? bytes - at : STAGING - o->used;
        memcpy(o->staging + o->used, text + at, n);
        o->used += n;
        at += n;
    }
}

static void print(output *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print(output *o, const char *format, ...)
{
    char    text[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length > 0) put(o, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

/* Bytes of the UTF-8 sequence at text, 0 when it is none (RFC 3629). */
static size_t utf8_length(const unsigned char *text, size_t left)
{
    unsigned first = text[0], second = left > 1 ? text[1] : 0;
    size_t   bytes = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (bytes > left) return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F))
        return 0; /* overlong, a surrogate, past U+10FFFF */
    return bytes;
}

static void put_string(output *o, const char *text, size_t bytes)
{
    put(o, "\"", 1);
    for (size_t at = 0; at < bytes;) {
        unsigned char c = (unsigned char)text[at];
        size_t        n = utf8_length((const unsigned char *)text + at, bytes - at);
        if (c == '"' || c == '\\')
            print(o, "\\%c", c);
        else if (c < 0x20)
            print(o, "\\u%04x", c);
        else if (n == 0)
            put(o, "\\ufffd", 6);
        else
            put(o, text + at, n);
        at += n ? n : 1;
    }
    put(o, "\"", 1);
}

/* A number of thousandths, such as nanoseconds in a field of microseconds. */
static void put_thousandths(output *o, double thousandths)
{
    long long n = isfinite(thousandths) && fabs(thousandths) < 9e18 ? llround(thousandths) : 0;
    print(o, "%s%lld.%03lld", n < 0 ? "-" : "", llabs(n) / 1000, llabs(n) % 1000);
}

static void put_percent(output *o, lk__trace_overlap overlap)
{
    if (overlap.collective > 0)
        put_thousandths(o, 1e5 * overlap.hidden / overlap.collective);
    else
        put(o, "null", 4);
}

static void begin_event(output *o)
{
    put(o, o->separator, strlen(o->separator));
    o->separator = ",\n";
}

static void put_name(output *o, const char *kind, int rank, int track, const char *name, size_t bytes)
{
    begin_event(o);
    print(o, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", kind, rank, track);
    put_string(o, name, bytes);
    put(o, "}}", 2);
}

/* A number that a viewer draws as a curve. */
static void put_counter(output *o, const lk__trace_part *part, const lk__trace_item *item, const char *text)
{
    begin_event(o);
    put(o, "{\"ph\":\"C\",\"name\":", 17);
    put_string(o, text, (size_t)item->length);
    print(o, ",\"pid\":%d,\"ts\":", part->rank);
    put_thousandths(o, 1e9 * (item->begin + part->offset - o->origin));
    print(o, ",\"args\":{\"value\":");
    put_thousandths(o, (double)item->bytes);
    put(o, "}}", 2);
}

static void put_event(output *o, const lk__trace_part *part, const lk__trace_item *item, const char *text)
{
    static const char *const kinds[LK__TRACE_KIND_COUNT] = {"step", "kernel", "collective", "wait", "data",
                                                            "save", "run",    "copy",       ""};
    if (item->kind == LK__TRACE_COUNTER) {
        put_counter(o, part, item, text);
        return;
    }
    begin_event(o);
    put(o, "{\"ph\":\"X\",\"name\":", 17);
    put_string(o, text, (size_t)item->length);
    print(o, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":", kinds[item->kind], part->rank, item->track);
    put_thousandths(o, 1e9 * (item->begin + part->offset - o->origin));
    print(o, ",\"dur\":");
    put_thousandths(o, item->end > item->begin ? 1e9 * (item->end - item->begin) : 0);
    if (item->bytes) print(o, ",\"args\":{\"bytes\":%lld}", (long long)item->bytes);
    put(o, "}", 1);
}

static void put_part(output *o, const lk__trace_part *part)
{
    lk__trace_head head;
    lk__trace_walk walk;
    lk__trace_item item;
    const char    *text;
    char           label[32];
    snprintf(label, sizeof label, "rank %d", part->rank);
    const char *shown = part->label ? part->label : label;
    put_name(o, "process_name", part->rank, 0, shown, strlen(shown));
    begin_event(o);
    print(o, "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"tid\":0,\"args\":{\"sort_index\":%d}}",
          part->rank, part->rank);
    lk__trace_begin(part->block, part->bytes, &head, &walk); /* checked before */
    while (o->status == LK_OK && lk__trace_next(&walk, &item, &text)) {
        if (walk.left >= head.events)
            put_name(o, "thread_name", part->rank, item.track, text, (size_t)item.length);
        else
            put_event(o, part, &item, text);
    }
}

/* The earliest event of all parts by the common clock; 0 when there is none. */
static double earliest(const lk__trace_part *parts, int count)
{
    double first = INFINITY;
    for (int i = 0; i < count; i++) {
        lk__trace_head head;
        lk__trace_walk walk;
        lk__trace_item item;
        const char    *text;
        lk__trace_begin(parts[i].block, parts[i].bytes, &head, &walk);
        while (lk__trace_next(&walk, &item, &text))
            if (walk.left < head.events) first = fmin(first, item.begin + parts[i].offset);
    }
    return isfinite(first) ? first : 0;
}

lk_status lk__trace_write(lk_context *context, const char *path, const lk__trace_part *parts, int count)
{
    output            o = {.context = context, .path = path, .fd = -1, .separator = "\n"};
    size_t            room = (size_t)(count > 0 ? count : 1) * sizeof(lk__trace_overlap);
    lk__trace_overlap all = {0}, *each = lk__alloc(context, LK_MEMORY_OTHER, room);
    int64_t           dropped = 0;
    lk_status         status = LK_ENOMEM;
    o.staging = lk__alloc(context, LK_MEMORY_OTHER, STAGING);
    if (!each || !o.staging) goto end;
    for (int i = 0; i < count; i++) { /* also checks the blocks */
        lk__trace_head head;
        lk__trace_walk walk;
        if ((status = lk__trace_measure(context, parts[i].block, parts[i].bytes, &each[i])) < 0) {
            status = lk__fail_prefix(context, status, "rank %d: ", parts[i].rank);
            goto end;
        }
        all.collective += each[i].collective, all.hidden += each[i].hidden;
        lk__trace_begin(parts[i].block, parts[i].bytes, &head, &walk);
        dropped += head.dropped;
    }
    o.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    if (o.fd < 0) {
        status = lk__fail(context, LK_EIO, "%s: cannot write the trace: %s", path, strerror(errno));
        goto end;
    }
    o.origin = earliest(parts, count);
    print(&o, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int i = 0; i < count; i++) put_part(&o, &parts[i]);
    print(&o,
          "\n],\"otherData\":{\"producer\":\"lockstep %s\",\"ranks\":%d,\"dropped_events\":%lld,\"overlap_percent\":",
          LK_VERSION_STRING, count, (long long)dropped);
    put_percent(&o, all);
    print(&o, ",\"overlap_percent_by_rank\":{");
    for (int i = 0; i < count; i++) {
        print(&o, "%s\"%d\":", i ? "," : "", parts[i].rank);
        put_percent(&o, each[i]);
    }
    print(&o, "}}}\n");
    flush(&o);
    if (close(o.fd) < 0 && o.status == LK_OK)
        o.status = lk__fail(context, LK_EIO, "%s: cannot write the trace: %s", path, strerror(errno));
    status = o.status;
end:
    lk__free(context, LK_MEMORY_OTHER, o.staging, STAGING);
    lk__free(context, LK_MEMORY_OTHER, each, room);
    return status;
}
