/* transports.c - the table of transports, and the choice of one. */
#include "comm/transports.h"

#include <lockstep/transport.h>
#include <string.h>

static const lk__comm_backend *const transports[] = {
#define ENTRY(name) &lk__backend_##name,
    LK__TRANSPORT_LIST(ENTRY)
#undef ENTRY
};
enum { COUNT = sizeof transports / sizeof *transports };

const lk__comm_backend *lk__transport_at(size_t i) { return i < COUNT ? transports[i] : NULL; }

const lk__comm_backend *lk__transport_find(const char *name)
{
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(transports[i]->name, name) == 0) return transports[i];
    return NULL;
}

const lk__comm_backend *lk__transport_of_network(lk_context *context, const struct lk__rendezvous_identity *identity)
{
    const lk__comm_backend *best = NULL;
    for (size_t i = 0; i < COUNT; i++) {
        const lk__comm_backend *b = transports[i];
        if (b->preference <= 0 || (best && b->preference < best->preference)) continue;
        if (!b->available || b->available(context, identity)) best = b;
    }
    return best;
}

bool lk__transport_makes_token(lk_context *context, const lk__comm_backend *b,
                               const struct lk__rendezvous_identity *identity)
{
    if (b && b->over_network) b = lk__transport_of_network(context, identity);
    return b && b->makes_token;
}

lk_status lk_transport_at(int index, lk_transport *out)
{
    const lk__comm_backend *b = index < 0 ? NULL : lk__transport_at((size_t)index);
    if (!b) return LK_END;
    lk_transport made = {.size = out->size,
                         .name = b->name,
                         .text = b->text,
                         .one_rank = b->scope == LK__SCOPE_RANK,
                         .shares_memory = b->hosts != NULL};
    memcpy(out, &made, out->size < sizeof made ? out->size : sizeof made);
    return LK_OK;
}
