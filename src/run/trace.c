/* trace.c - recording events, packing them into a block, and how much communication is hidden behind computation. */
#include "run/trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
    lk__trace_event       event; /* except its name */
    _Atomic(const char *) name;  /* stored last: NULL while the record is incomplete */
} record;

struct lk__trace {
    lk_context         *context;
    size_t              own_bytes;
    int64_t             capacity;
    atomic_int_fast64_t next;    /* the next free record; may exceed capacity */
    atomic_int_fast64_t refused; /* invalid events */
    const char         *tracks[LK__TRACE_TRACKS];
    record              records[];
};

lk_status lk__trace_create(lk_context *context, int64_t capacity, lk__trace **trace)
{
    *trace = NULL;
    if (capacity < 1 || capacity > INT64_MAX / (int64_t)sizeof(record) / 2)
        return lk__fail(context, LK_EINVAL, "the trace has an invalid capacity: %lld events", (long long)capacity);
    size_t     own_bytes = sizeof(lk__trace) + (size_t)capacity * sizeof(record);
    lk__trace *t = lk__alloc(context, LK_MEMORY_OTHER, own_bytes);
    if (!t) return LK_ENOMEM;
    t->context = context;
    t->own_bytes = own_bytes;
    t->capacity = capacity;
    *trace = t;
    return LK_OK;
}

void lk__trace_free(lk__trace *t)
{
    if (t) lk__free(t->context, LK_MEMORY_OTHER, t, t->own_bytes);
}

void lk__trace_name_track(lk__trace *t, int track, const char *name)
{
    if (t && track >= 0 && track < LK__TRACE_TRACKS) t->tracks[track] = name;
}

void lk__trace_add(lk__trace *t, const lk__trace_event *event)
{
    if (!t) return;
    if (!event->name || event->track < 0 || event->track >= LK__TRACE_TRACKS ||
        (unsigned)event->kind >= LK__TRACE_KIND_COUNT) {
        atomic_fetch_add_explicit(&t->refused, 1, memory_order_relaxed);
        return;
    }
    int64_t index = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
    if (index >= t->capacity) return; /* counted by next */
    t->records[index].event = *event;
    atomic_store_explicit(&t->records[index].name, event->name, memory_order_release);
}

int64_t lk__trace_count(const lk__trace *t)
{
    int64_t taken = atomic_load(&t->next);
    return taken < t->capacity ? taken : t->capacity;
}

int64_t lk__trace_dropped(const lk__trace *t)
{
    int64_t taken = atomic_load(&t->next);
    return atomic_load(&t->refused) + (taken > t->capacity ? taken - t->capacity : 0);
}

/* ---- Blocks. ---- */

static size_t item_bytes(int64_t length) { return sizeof(lk__trace_item) + lk__round_up((size_t)length, 8); }

static char *put_item(char *at, lk__trace_item item, const char *text)
{
    size_t bytes = item_bytes(item.length);
    memcpy(at, &item, sizeof item);
    memset(at + sizeof item, 0, bytes - sizeof item);
    memcpy(at + sizeof item, text, (size_t)item.length);
    return at + bytes;
}

size_t lk__trace_packed_bytes(const lk__trace *t)
{
    size_t bytes = sizeof(lk__trace_head);
    for (int i = 0; i < LK__TRACE_TRACKS; i++)
        if (t->tracks[i]) bytes += item_bytes((int64_t)strlen(t->tracks[i]));
    for (int64_t i = 0; i < lk__trace_count(t); i++) {
        const char *name = atomic_load_explicit(&t->records[i].name, memory_order_acquire);
        if (name) bytes += item_bytes((int64_t)strlen(name));
    }
    return bytes;
}

void lk__trace_pack(const lk__trace *t, void *block)
{
    lk__trace_head head = {LK__TRACE_MAGIC, lk__trace_packed_bytes(t), 0, 0, lk__trace_dropped(t)};
    char          *at = (char *)block + sizeof head;
    for (int i = 0; i < LK__TRACE_TRACKS; i++) {
        if (!t->tracks[i]) continue;
        head.tracks++;
        at = put_item(at, (lk__trace_item){.track = i, .length = (int64_t)strlen(t->tracks[i])}, t->tracks[i]);
    }
    for (int64_t i = 0; i < lk__trace_count(t); i++) {
        const lk__trace_event *e = &t->records[i].event;
        const char            *name = atomic_load_explicit(&t->records[i].name, memory_order_acquire);
        if (!name) continue;
        head.events++;
        at = put_item(at, (lk__trace_item){e->begin, e->end, e->bytes, e->kind, e->track, (int64_t)strlen(name)}, name);
    }
    memcpy(block, &head, sizeof head);
}

bool lk__trace_begin(const void *block, size_t bytes, lk__trace_head *head, lk__trace_walk *walk)
{
    *walk = (lk__trace_walk){0};
    if (bytes < sizeof *head) return false;
    memcpy(head, block, sizeof *head);
    if (head->magic != LK__TRACE_MAGIC || head->bytes != bytes || head->tracks < 0 || head->events < 0 ||
        (uint64_t)head->tracks > bytes || (uint64_t)head->events > bytes)
        return false;
    *walk =
        (lk__trace_walk){(const char *)block + sizeof *head, (const char *)block + bytes, head->tracks + head->events};
    return true;
}

bool lk__trace_next(lk__trace_walk *w, lk__trace_item *item, const char **text)
{
    if (w->left == 0 || (size_t)(w->end - w->at) < sizeof *item) return false;
    memcpy(item, w->at, sizeof *item);
    int64_t room = w->end - w->at - (int64_t)sizeof *item;
    if (item->length < 0 || item->length > room || (int64_t)lk__round_up((size_t)item->length, 8) > room ||
        (unsigned)item->kind >= LK__TRACE_KIND_COUNT || (unsigned)item->track >= LK__TRACE_TRACKS)
        return false;
    *text = w->at + sizeof *item;
    w->at += item_bytes(item->length);
    w->left--;
    return true;
}

/* ---- Overlap. ---- */

typedef struct span {
    double begin, end;
} span;

static int by_begin(const void *a, const void *b)
{
    double x = ((const span *)a)->begin, y = ((const span *)b)->begin;
    return (x > y) - (x < y);
}

/* Sorts spans and joins those that touch; returns how many are left. */
static int64_t join(span *spans, int64_t count)
{
    int64_t last = -1;
    qsort(spans, (size_t)count, sizeof *spans, by_begin);
    for (int64_t i = 0; i < count; i++) {
        if (last < 0 || spans[i].begin > spans[last].end)
            spans[++last] = spans[i];
        else if (spans[i].end > spans[last].end)
            spans[last].end = spans[i].end;
    }
    return last + 1;
}

static lk__trace_overlap overlap_of(span *collectives, int64_t collective_count, span *kernels, int64_t kernel_count)
{
    lk__trace_overlap sum = {0};
    collective_count = join(collectives, collective_count);
    kernel_count = join(kernels, kernel_count);
    for (int64_t c = 0, k = 0; c < collective_count; c++) {
        span s = collectives[c];
        sum.collective += s.end - s.begin;
        while (k < kernel_count && kernels[k].end <= s.begin) k++;
        for (int64_t i = k; i < kernel_count && kernels[i].begin < s.end; i++) {
            double begin = kernels[i].begin > s.begin ? kernels[i].begin : s.begin;
            sum.hidden += (kernels[i].end < s.end ? kernels[i].end : s.end) - begin;
        }
    }
    return sum;
}

lk_status lk__trace_measure(lk_context *context, const void *block, size_t bytes, lk__trace_overlap *overlap)
{
    lk__trace_head head;
    lk__trace_walk walk;
    lk__trace_item item;
    const char    *text;
    lk_status      status = LK_OK;
    *overlap = (lk__trace_overlap){0};
    if (!lk__trace_begin(block, bytes, &head, &walk)) return lk__fail(context, LK_EFORMAT, "a trace block is damaged");
    if (head.events == 0) return LK_OK;
    size_t  room = (size_t)head.events * sizeof(span);
    int64_t collectives = 0, kernels = 0;
    span   *spans = lk__alloc(context, LK_MEMORY_OTHER, room);
    if (!spans) return LK_ENOMEM;
    while (lk__trace_next(&walk, &item, &text)) { /* collectives from the front, kernels from the back */
        if (walk.left >= head.events || !(item.end > item.begin)) continue; /* NaN too */
        if (item.kind == LK__TRACE_COLLECTIVE) spans[collectives++] = (span){item.begin, item.end};
        if (item.kind == LK__TRACE_KERNEL) spans[head.events - ++kernels] = (span){item.begin, item.end};
    }
    if (walk.left)
        status = lk__fail(context, LK_EFORMAT, "a trace block is damaged");
    else
        *overlap = overlap_of(spans, collectives, spans + head.events - kernels, kernels);
    lk__free(context, LK_MEMORY_OTHER, spans, room);
    return status;
}
