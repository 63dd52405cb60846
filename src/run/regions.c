/* regions.c - the device's memory of a program: all of its regions are allocated together, before anything runs. Sizes
 * come from the plan. Only gradients that other ranks of the host reach are elsewhere, in the group's shared memory. */
#include "run/program.h"

#include "comm/abort.h"
#include "comm/queue.h"
#include "run/shard.h"
#include "run/store.h"

enum { REGIONS = 9 };

static bool shares_gradients(const lk_program *p) { return p->batch && !p->group.staged; }

/* What collectives along shard read and write is where the other ranks of the host reach it. */
static bool shares_gathered(const lk_program *p) { return p->shard && !p->group.staged; }

static int list_regions(lk_program *p, lk__device_part parts[REGIONS])
{
    const lk_plan       *plan = p->plan;
    lk__plan_queue_bytes queue = lk__plan_queue(plan);
    int                  count = 0;
    parts[count++] = (lk__device_part){LK_MEMORY_ACTIVATIONS, plan->memory[LK_MEMORY_ACTIVATIONS], &p->memory.arena};
    parts[count++] = (lk__device_part){LK_MEMORY_WORKSPACE, plan->memory[LK_MEMORY_WORKSPACE], &p->memory.workspace};
    if (!shares_gradients(p))
        parts[count++] =
            (lk__device_part){LK_MEMORY_GRADIENTS, plan->memory[LK_MEMORY_GRADIENTS], &p->memory.gradients};
    if (!shares_gathered(p)) parts[count++] = (lk__device_part){LK_MEMORY_STAGING, plan->gathered, &p->memory.gathered};
    parts[count++] = (lk__device_part){LK_MEMORY_STAGING, p->memory.staged_bytes, &p->memory.staged};
    parts[count++] = (lk__device_part){LK_MEMORY_OTHER, p->memory.leaf_sums_bytes, &p->memory.leaf_sums};
    if (lk__plan_queues(plan)) {
        parts[count++] =
            (lk__device_part){LK_MEMORY_STAGING, (size_t)queue.device_staging * queue.input, &p->memory.device_staging};
        parts[count++] = (lk__device_part){LK_MEMORY_STAGING, queue.numbers, &p->memory.queue_numbers};
    }
    return count;
}

lk_status lk__regions_create(lk_program *p)
{
    lk__device_part parts[REGIONS];
    const lk_plan  *plan = p->plan;
    if (!lk__device_is_host(p->device))
        p->memory.staged_bytes =
            lk__plan_stage_inputs(plan, NULL) * (size_t)plan->slots + LK__STAGED_REPORT + lk__plan_sent_bytes(plan);
    if (plan->batch_leaves && plan->trains) p->memory.leaf_sums_bytes = lk__leaf_batch_sums_bytes(p);
    int count = list_regions(p, parts);
    return lk__device_alloc_parts(p->device, parts, count, &p->memory.block);
}

void lk__regions_free(lk_program *p)
{
    lk__device_part parts[REGIONS];
    int             count = list_regions(p, parts);
    lk__device_free_parts(p->device, parts, count, p->memory.block);
}

/* Of the device, where the group's calls are queued on it. */
static lk_status alloc_symmetric(lk_program *p, lk_comm *group, size_t bytes, void **memory)
{
    return p->group.queued ? lk__comm_alloc_device(group, p->device, bytes, memory)
                           : lk_comm_alloc(group, bytes, memory);
}

static lk_status share_gathered(lk_program *p)
{
    size_t bytes = p->plan->gathered;
    void  *memory;
    if (bytes == 0 || !shares_gathered(p)) return LK_OK;
    lk_status status = alloc_symmetric(p, p->shard, bytes, &memory);
    if (status < 0) return lk__fail_prefix(p->context, status, "gathered parameters in shared memory: ");
    p->memory.gathered = memory;
    lk__account(p->context, LK_MEMORY_STAGING, (ptrdiff_t)bytes);
    return LK_OK;
}

static void release_gathered(lk_program *p)
{
    if (!p->memory.gathered || !shares_gathered(p)) return;
    lk_comm_release(p->shard, p->memory.gathered);
    lk__account(p->context, LK_MEMORY_STAGING, -(ptrdiff_t)p->plan->gathered);
}

static lk_status share_gradients(lk_program *p)
{
    size_t bytes = p->plan->memory[LK_MEMORY_GRADIENTS];
    void  *memory;
    if (bytes == 0 || !shares_gradients(p)) return LK_OK;
    lk_status status = alloc_symmetric(p, p->batch, bytes, &memory);
    if (status < 0) return lk__fail_prefix(p->context, status, "gradients in shared memory: ");
    p->memory.gradients = memory;
    lk__account(p->context, LK_MEMORY_GRADIENTS, (ptrdiff_t)bytes);
    return LK_OK;
}

/* Gradients and parameters are in memory of all ranks that split the batch, or have the store: groups along one of
 * their axes reach them there, too. */
static lk_status adopt_memory(lk_program *p, lk_comm *group)
{
    lk_status status = LK_OK;
    if (!group || !p->plan->stage || p->group.staged) return LK_OK;
    if (p->memory.gradients) status = lk__comm_adopt(group, p->batch, p->memory.gradients);
    if (status >= 0 && p->store->sliced) status = lk__comm_adopt(group, p->store->group, p->store->sliced);
    return status;
}

lk_status lk__gradients_share(lk_program *p)
{
    lk_status status = share_gradients(p);
    if (status >= 0) status = share_gathered(p);
    if (status >= 0) status = lk__host_create(p);
    if (status >= 0) status = adopt_memory(p, p->shard);
    return status < 0 || !p->mesh ? status : adopt_memory(p, lk__mesh_find_group(p->mesh, LK_AXIS_DATA));
}

void lk__gradients_release(lk_program *p)
{
    release_gathered(p);
    lk__host_free(p);
    if (!p->memory.gradients || !shares_gradients(p)) return;
    lk_comm_release(p->batch, p->memory.gradients);
    lk__account(p->context, LK_MEMORY_GRADIENTS, -(ptrdiff_t)p->plan->memory[LK_MEMORY_GRADIENTS]);
}
