/* store_shared.c - a store that the ranks of a host share: its memory, writes by all ranks, and its state after a rank
 * has failed during an update. */
#include "run/store.h"

#include "base/hash.h"
#include "comm/abort.h"

#include <stdio.h>
#include <string.h>

/* ---- memory ---- */

/* All of it, by the context of every rank. */
static void account_shared(const lk_store *s, ptrdiff_t sign)
{
    for (int i = 0; i < LK__STORE_KINDS; i++)
        if (lk__store_holder(s, lk__store_kind(i)) != LK_HELD_BY_RANK)
            lk__account(s->context, lk__store_kind(i), sign * (ptrdiff_t)s->plan->memory[lk__store_kind(i)]);
}

/* One block for all: every rank allocates a part of it, and the parts follow each other. */
lk_status lk__store_alloc_shared(lk_store *s)
{
    lk_status status = lk__store_alloc_nodes(s);
    if (status < 0) return lk__fail_prefix(s->context, status, "state in shared memory: ");
    account_shared(s, 1);
    return LK_OK;
}

void lk__store_free_shared(lk_store *s)
{
    if (!s->symmetric) return;
    lk_comm_release(s->comm, s->symmetric);
    account_shared(s, -1);
}

/* ---- failures ---- */

lk_status lk__store_check(const lk_store *s)
{
    return s->failure < 0 ? lk__fail(s->context, s->failure, "%s", s->failure_text) : LK_OK;
}

lk_status lk__store_invalidate(lk_store *s, lk_status status)
{
    if (status >= 0 || s->failure < 0) return status;
    s->failure = status;
    snprintf(s->failure_text, sizeof s->failure_text,
             "the state may be partly updated, because a rank failed while the state was changing; resume from a "
             "checkpoint. %s",
             lk_context_error(s->context));
    return status;
}

/* ---- writes by all ranks ---- */

lk_status lk__store_write_begin(lk_store *s)
{
    lk_status status = lk__store_check(s);
    return status < 0 || !s->group || s->alone ? status : lk_comm_barrier(s->group, NULL);
}

lk_status lk__store_write_end(lk_store *s, lk_status status)
{
    int64_t worst = status;
    if (!s->group || s->alone) return status;
    lk_status shared = lk__store_invalidate(s, lk_comm_all_reduce(s->group, &worst, &worst, 1, LK_I64, LK_MIN, NULL));
    if (shared < 0 || status < 0 || worst >= 0) return shared < 0 ? shared : status;
    return lk__fail(s->context, (lk_status)worst, "another rank could not load the state that the ranks share: %s",
                    lk_status_text((lk_status)worst));
}

lk_status lk__store_write_shared(lk_store *s, size_t index, lk_state_part part, size_t first, const void *data,
                                 size_t bytes)
{
    const uint64_t where[] = {index, (uint64_t)part, first, bytes};
    uint64_t       mine = lk__hash64(data, bytes, lk__hash64(where, sizeof where, 11)), range[2] = {mine, ~mine};
    lk_status      status = lk__store_check(s);
    /* The least of the hashes and of their complements: the same on all ranks if these are. */
    if (status >= 0) status = lk_comm_all_reduce(s->group, range, range, 2, LK_I64, LK_MIN, NULL);
    if (status < 0) return status;
    if (range[0] != mine || range[1] != ~mine)
        return lk__fail(s->context, LK_EMISMATCH,
                        "ranks that share \"%s\" write different values to it: all must write the same values",
                        s->plan->graph->states[index].name);
    status = lk__store_write_bytes(s, index, part, first, data, bytes);
    lk_status end = lk__store_invalidate(s, lk_comm_barrier(s->group, NULL)); /* the rank that writes may have died */
    return status < 0 ? status : end;
}
