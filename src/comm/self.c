/* self.c - a group of one rank: every collective is a copy. */
#include "comm/comm.h"
#include "comm/transports.h"

#include <string.h>

static lk_status collective(lk_comm *c, const lk__comm_call *o)
{
    (void)c;
    size_t      size = lk_dtype_size(o->type), count = o->recv_counts ? o->recv_counts[0] : o->count;
    const char *from = o->send;
    char       *to = o->recv;
    if (o->send_counts && o->recv_counts) {
        if (o->send_counts[0] != o->recv_counts[0])
            return lk__fail(c->context, LK_EMISMATCH,
                            "%s:%d: all_to_allv: rank 0 sends %zu elements to itself but expects %zu", o->site.file,
                            o->site.line, o->send_counts[0], o->recv_counts[0]);
        from = from ? from + o->send_displacements[0] * size : NULL;
    }
    if (o->recv_displacements && to) to += o->recv_displacements[0] * size;
    if (from && to && from != to && count) memmove(to, from, count * size);
    return LK_OK;
}

/* There is no other rank; collective.c has refused the call already. */
static void transfer(lk_comm *c, lk_work *first)
{
    lk__work_finish(first, lk__fail(c->context, LK_EINVAL, "a group of one rank has no other rank to send to"));
}

typedef struct piece {
    struct piece *next;
    size_t        bytes;
    _Alignas(LK__ALIGN) char memory[];
} piece;

static lk_status allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    (void)secret;
    piece *p = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *p + bytes);
    if (!p) return LK_ENOMEM;
    *p = (piece){.next = c->state, .bytes = bytes};
    c->state = p;
    *memory = p->memory;
    return LK_OK;
}

static void release(lk_comm *c, void *memory)
{
    for (piece **at = (piece **)&c->state; *at; at = &(*at)->next) {
        piece *p = *at;
        if (p->memory != memory) continue;
        *at = p->next;
        lk__free(c->context, LK_MEMORY_OTHER, p, sizeof *p + p->bytes);
        return;
    }
}

static lk_status failure(lk_comm *c) { return atomic_load(&c->failed); }
static void      raise_failure(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    lk__comm_record_failure(c, status, text, cause);
}
static void     busy(lk_comm *c, const char *what) { (void)c, (void)what; }
static void     wake_waits(lk_comm *c) { (void)c; }
static uint64_t sent(const lk_comm *c) { return (void)c, 0; }

static void free_state(lk_comm *c)
{
    for (piece *p; (p = c->state);) release(c, p->memory);
}

static lk_status create(lk_comm *c, const struct lk__rendezvous_identity *identity)
{
    (void)identity;
    c->state = NULL;
    return LK_OK;
}

const lk__comm_backend lk__backend_self = {
    .name = "self",
    .text = "a single rank",
    .scope = LK__SCOPE_RANK,
    .alone = true,
    .progresses = true,
    .collective = collective,
    .transfer = transfer,
    .allocate = allocate,
    .release = release,
    .failure = failure,
    .raise = raise_failure,
    .busy = busy,
    .wake = wake_waits,
    .sent = sent,
    .free = free_state,
    .create = create,
    .abilities = lk__comm_abilities_on_host,
};
