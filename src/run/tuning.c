/* tuning.c - the algorithms that a program's kernels use, where its device measures them: all ranks take rank 0's, so
 * they measure nothing and, on the same kind of GPU, compute with the same bits; and the list becomes part of the
 * plan's fingerprint, which ranks compare, and of checkpoints. */
#include "run/program.h"

#include "base/hash.h"

#include <string.h>

/* Those that run the same kernels: all ranks, or those of this stage of a pipeline; NULL: this one alone. */
static lk_comm *tuned_with(const lk_program *p)
{
    bool stages = lk__mesh_extent(&p->plan->mesh, LK__PLAN_STAGE_AXES) > 1;
    return stages ? lk__mesh_find_group(p->mesh, LK_AXES_ALL & ~(unsigned)LK__PLAN_STAGE_AXES) : p->comm;
}

static bool chooses(const lk_program *p) { return p->device->backend->kernels.choose_begin != NULL; }

/* ---- before kernels are prepared ---- */

/* Receives rank 0's list; it is the plan's then. */
static lk_status receive_list(lk_program *p, lk_comm *with)
{
    int64_t   length = 0;
    char     *text = NULL;
    lk_status status = lk_comm_broadcast(with, &length, 1, LK_I64, 0, NULL);
    if (status < 0) return status;
    if (length > 0 && !(text = lk__alloc(p->context, LK_MEMORY_OTHER, (size_t)length + 1))) return LK_ENOMEM;
    if (length > 0) status = lk_comm_broadcast(with, text, (size_t)length, LK_U8, 0, NULL);
    if (status >= 0) status = lk__plan_set_algorithms(p->plan, text, (size_t)length);
    lk__free(p->context, LK_MEMORY_OTHER, text, (size_t)length + 1);
    return status;
}

lk_status lk__tuning_begin(lk_program *p)
{
    lk_comm  *with = tuned_with(p);
    bool      follows = with && lk_comm_rank(with) > 0;
    lk_status status = LK_OK;
    if (follows && p->first_chooses) status = receive_list(p, with);
    if (with && !follows && chooses(p)) lk_comm_busy_begin(with, "choosing algorithms");
    if (status < 0 || !chooses(p)) return status;
    return p->device->backend->kernels.choose_begin(p->device, p->plan->algorithms,
                                                    follows ? "rank 0" : "the checkpoint", follows);
}

/* ---- afterwards ---- */

/* What the kernels took becomes the plan's list; *mismatch: they could not take all that they were given. */
static lk_status take_list(lk_program *p, bool *mismatch)
{
    const lk__device_backend *backend = p->device->backend;
    size_t                    bytes = backend->kernels.list_tuned(p->device, NULL, 0, mismatch) + 1;
    char                     *text = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!text) return LK_ENOMEM;
    (void)backend->kernels.list_tuned(p->device, text, bytes, mismatch);
    lk_status status = lk__plan_set_algorithms(p->plan, text, bytes - 1);
    lk__free(p->context, LK_MEMORY_OTHER, text, bytes);
    return status;
}

static lk_status send_list(lk_program *p, lk_comm *with)
{
    int64_t   length = p->plan->algorithms ? (int64_t)strlen(p->plan->algorithms) : 0;
    lk_status status = lk_comm_broadcast(with, &length, 1, LK_I64, 0, NULL);
    if (status < 0 || length == 0) return status;
    return lk_comm_broadcast(with, p->plan->algorithms, (size_t)length, LK_U8, 0, NULL);
}

lk_status lk__tuning_end(lk_program *p, lk_status status)
{
    uint64_t theirs = lk_plan_fingerprint(p->plan); /* of a rank above 0: with rank 0's list */
    lk_comm *with = tuned_with(p);
    bool     follows = with && lk_comm_rank(with) > 0, mismatch = !chooses(p);
    if (chooses(p) && with && !follows) lk_comm_busy_end(with);
    if (status < 0 || (chooses(p) && (status = take_list(p, &mismatch)) < 0)) return status;
    if (!with || !p->first_chooses) return LK_OK;
    if (!follows && (status = send_list(p, with)) < 0) return status;
    /* A rank with another GPU has said that it cannot take rank 0's list. */
    int      different;
    uint64_t mine = follows && mismatch ? theirs : lk_plan_fingerprint(p->plan);
    if ((status = lk__find_different(p->context, with, mine, &different)) < 0 || different < 0) return status;
    return lk__fail(p->context, LK_EMISMATCH,
                    "rank %d would use different algorithms than rank 0 on the same kind of GPU: start all ranks with "
                    "the same libraries and the same LOCKSTEP_CUDA_… settings",
                    different);
}
