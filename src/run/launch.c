/* launch.c - launch groups: kernels that the device runs in one launch, as the plan found them (plan/launch_group.c),
 * with the calls of the program. A launch for each of hundreds of small parameters, or for each kernel of a small
 * model, would take longer than their arithmetic. */
#include "plan/launch_group.h"
#include "run/program.h"

struct lk__run_launch {
    lk__plan_group_calls calls;
    size_t               last; /* its last instruction */
};

typedef struct finder {
    const lk__run_list *list;
    size_t              last;
} finder;

static const lk__kernel_call *find_call(void *user, int node)
{
    finder *f = user;
    size_t  i = 0;
    while (f->list->instructions[i].action != LK__DO_KERNEL || f->list->instructions[i].node != node) i++;
    f->last = i;
    return &f->list->instructions[i].call;
}

static lk_status gather_list(lk_program *p, lk__run_list *list)
{
    const lk__plan_list *planned = list->planned;
    size_t               count = planned->launches_count;
    lk_status            status = LK_OK;
    if (count == 0) return LK_OK;
    list->launches = lk__alloc(p->context, LK_MEMORY_OTHER, count * sizeof *list->launches);
    if (!list->launches) return LK_ENOMEM;
    for (size_t i = 0; i < count && status >= 0; i++) {
        finder f = {.list = list};
        status = lk__plan_group_gather(planned, &planned->launches[i], find_call, &f, &list->launches[i].calls);
        list->launches[i].last = f.last;
    }
    return status;
}

lk_status lk__launch_create(lk_program *p)
{
    lk_status status = p->plan->trains ? gather_list(p, &p->slots[0].train) : LK_OK;
    return status < 0 ? status : gather_list(p, &p->evaluate);
}

static void free_launches(lk_context *c, lk__run_list *list)
{
    size_t count = list->launches ? list->planned->launches_count : 0;
    for (size_t i = 0; i < count; i++) lk__plan_group_free(c, &list->launches[i].calls);
    lk__free(c, LK_MEMORY_OTHER, list->launches, count * sizeof *list->launches);
}

void lk__launch_free(lk_program *p)
{
    if (p->slots && p->plan->slots) free_launches(p->context, &p->slots[0].train);
    free_launches(p->context, &p->evaluate);
}

/* The group of an instruction that the device runs at the current shapes, all of it before instruction `limit`; NULL:
 * none. */
static const lk__run_launch *find_group(lk_program *p, const lk__run_list *list, size_t at, size_t limit)
{
    int number = list->instructions[at].launch;
    if (number < 0 || !list->launches || list->launches[number].last >= limit) return NULL;
    const lk__device_group *group = &list->launches[number].calls.group;
    return p->device->backend->kernels.group_kernels[group->kind].supports(p->device, group) ? &list->launches[number]
                                                                                             : NULL;
}

lk_status lk__launch_group(lk_program *p, const lk__run_list *list, size_t at, size_t limit, size_t *end,
                           bool *launched)
{
    const lk__run_launch *launch = find_group(p, list, at, limit);
    *launched = launch != NULL;
    if (!launch) return LK_OK;
    *end = launch->last + 1;
    return p->device->backend->kernels.group_kernels[launch->calls.group.kind].run(p->device, &launch->calls.group);
}

lk_status lk__launch_end_step(lk_program *p, const lk__run_list *list, size_t at, const lk__device_numbers *numbers,
                              lk__device_result *results, bool *done)
{
    const lk__run_launch *launch = find_group(p, list, at, list->count);
    *done = launch != NULL;
    if (!launch) return LK_OK;
    return p->device->backend->recording.end_step(p->device, numbers, &launch->calls.group, results, done);
}
