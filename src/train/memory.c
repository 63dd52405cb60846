/* memory.c - computes the memory of a trainer by kind, and checks that the ranks of a host have it before any of it is
 * allocated. */
#include "comm/memory_nodes.h"
#include "train/record.h"
#include "train/trainer.h"

/* Every rank has the tables of a save and the chunks that it writes; rank 0 also what it writes alone. */
static size_t save_bytes(const lk_trainer_config *config, const lk_plan *plan, const lk__writers *writers)
{
    bool first = !config->comm || lk_comm_rank(config->comm) == 0;
    int  ranks = lk__plan_ranks(plan);
    if (!config->save) return 0;
    return lk__saver_bytes(plan, LK__CHUNK, ranks) +
           lk__saver_background_bytes(plan, LK__CHUNK, writers->count, writers->turn) +
           (first ? lk__record_write(config, 0, NULL, 0) + lk__saver_files_bytes(config->files, config->files_count)
                  : 0);
}

void lk__trainer_memory(const lk_trainer_config *config, lk_plan *plan, const lk__trainer_sets *sets,
                        const lk__writers *writers, size_t memory[LK_MEMORY_COUNT])
{
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) memory[kind] = lk_plan_memory(plan, (lk_memory)kind);
    lk__trainer_data_bytes(plan, sets, memory);
    memory[LK_MEMORY_CHECKPOINT] = save_bytes(config, plan, writers);
}

/* What a rank adds to its host's memory: what ranks share counts once. A GPU's memory says itself when it is not
 * enough. */
static size_t host_bytes(const lk_trainer *t, const size_t memory[LK_MEMORY_COUNT])
{
    size_t available, total, bytes = 0;
    bool   first = lk__plan_own(t->plan) == 0;
    lk_context_device_memory(t->context, &available, &total);
    if (total > 0) return memory[LK_MEMORY_LOADER] + memory[LK_MEMORY_CHECKPOINT];
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) {
        lk_holder holder = lk_plan_holder(t->plan, (lk_memory)kind);
        size_t    nodes = holder == LK_HELD_BY_NODE && t->config.comm ? (size_t)lk__comm_nodes(t->config.comm) : 1;
        if (holder == LK_HELD_BY_RANK || first) bytes += nodes * memory[kind];
    }
    return bytes;
}

lk_status lk__trainer_check_memory(lk_trainer *t, const size_t memory[LK_MEMORY_COUNT])
{
    size_t bytes = host_bytes(t, memory);
    return t->world > 1 ? lk_comm_check_memory(t->config.comm, bytes)
                        : lk_context_check_memory(t->context, NULL, bytes);
}
