/* tracing.c - traces a range of steps on every rank; rank 0 writes one file with all clocks converted to its own. */
#include "train/trainer.h"

#include <stdio.h>
#include <unistd.h>

enum { WARM_UP = 5, EXCHANGES = 16, TAG = 77 };

lk_status lk__trainer_trace_open(lk_trainer *t)
{
    const lk_trainer_config *config = &t->config;
    int64_t                  left = t->steps - t->progress.step;
    if (!config->trace) return LK_OK;
    t->trace_first = t->progress.step + (left > config->trace_steps + WARM_UP ? WARM_UP : 0);
    return lk__trace_create(t->context, lk__program_trace_events(t->program) * config->trace_steps, &t->trace);
}

lk_status lk__trainer_trace_step(lk_trainer *t)
{
    int64_t at = t->progress.step - t->trace_first;
    if (!t->trace || (at != 0 && at != t->config.trace_steps)) return LK_OK;
    return lk__program_trace(t->program, at == 0 ? t->trace : NULL);
}

/* Seconds from this rank's clock to rank 0's, by the exchange with the shortest round trip. */
static lk_status measure_clock_offset(lk_trainer *t, int peer, double *offset)
{
    lk_comm  *comm = t->config.comm;
    lk_status status = LK_OK;
    double    best = 1e9, theirs = 0;
    *offset = 0;
    for (int i = 0; i < EXCHANGES && status >= 0; i++) {
        double sent = lk__now();
        if (t->rank == 0) {
            status = lk_comm_recv(comm, &theirs, 1, LK_F64, peer, TAG, NULL);
            double mine = lk__now();
            if (status >= 0) status = lk_comm_send(comm, &mine, 1, LK_F64, peer, TAG, NULL);
        } else {
            status = lk_comm_send(comm, &sent, 1, LK_F64, 0, TAG, NULL);
            if (status >= 0) status = lk_comm_recv(comm, &theirs, 1, LK_F64, 0, TAG, NULL);
            double took = lk__now() - sent;
            if (took < best) best = took, *offset = theirs - (sent + took / 2);
        }
    }
    return status;
}

typedef struct block {
    int64_t bytes;
    double  offset;
    char    label[48];
} block;

static lk_status write_parts(lk_trainer *t, const block *blocks, const char *all)
{
    size_t          bytes = (size_t)t->world * sizeof(lk__trace_part);
    lk__trace_part *parts = lk__alloc(t->context, LK_MEMORY_OTHER, bytes);
    if (!parts) return LK_ENOMEM;
    for (int i = 0; i < t->world; all += blocks[i++].bytes)
        parts[i] = (lk__trace_part){i, blocks[i].label, blocks[i].offset, all, (size_t)blocks[i].bytes};
    lk_status status = lk__trace_write(t->context, t->config.trace, parts, t->world);
    lk__free(t->context, LK_MEMORY_OTHER, parts, bytes);
    return status;
}

/* Sends all blocks to rank 0, which stores them one after the other. */
static lk_status gather_events(lk_trainer *t, block *blocks, const char *mine, char **all, size_t *total)
{
    lk_status status = LK_OK;
    *total = 0;
    for (int i = 0; i < t->world; i++) *total += (size_t)blocks[i].bytes;
    if (t->rank != 0) return lk_comm_send(t->config.comm, mine, (size_t)blocks[t->rank].bytes, LK_U8, 0, TAG, NULL);
    char *at = *all = lk__alloc(t->context, LK_MEMORY_OTHER, *total);
    if (!at) return LK_ENOMEM;
    for (size_t i = 0; i < (size_t)blocks[0].bytes; i++) at[i] = mine[i];
    for (int i = 1; i < t->world && status >= 0; i++) {
        at += blocks[i - 1].bytes;
        status = lk_comm_recv(t->config.comm, at, (size_t)blocks[i].bytes, LK_U8, i, TAG, NULL);
    }
    return status;
}

lk_status lk__trainer_trace_write(lk_trainer *t)
{
    if (!t->trace) return LK_OK;
    (void)lk__program_trace(t->program, NULL);
    size_t    mine_bytes = lk__trace_packed_bytes(t->trace), table = (size_t)t->world * sizeof(block), total = 0;
    char     *mine = lk__alloc(t->context, LK_MEMORY_OTHER, mine_bytes), *all = NULL, host[24] = "?";
    block    *blocks = lk__alloc(t->context, LK_MEMORY_OTHER, table), own = {.bytes = (int64_t)mine_bytes};
    lk_status status = mine && blocks ? LK_OK : LK_ENOMEM;
    if (status < 0) goto done;
    lk__trace_pack(t->trace, mine);
    (void)gethostname(host, sizeof host - 1);
    snprintf(own.label, sizeof own.label, "rank %d, %s", t->rank, host);
    for (int peer = 1; peer < t->world && status >= 0; peer++)
        if (t->rank == 0 || t->rank == peer) {
            double offset;
            status = measure_clock_offset(t, peer, &offset);
            if (t->rank == peer) own.offset = offset;
        }
    blocks[t->rank] = own;
    if (status >= 0 && t->world > 1) status = lk_comm_all_gather(t->config.comm, &own, blocks, sizeof own, LK_U8, NULL);
    if (status >= 0 && t->world > 1) status = gather_events(t, blocks, mine, &all, &total);
    if (status >= 0 && t->rank == 0) status = write_parts(t, blocks, all ? all : mine);
    status = lk__trainer_share_status(t, 0, status);
done:
    lk__free(t->context, LK_MEMORY_OTHER, all, total);
    lk__free(t->context, LK_MEMORY_OTHER, mine, mine_bytes);
    lk__free(t->context, LK_MEMORY_OTHER, blocks, table);
    return status;
}
