/* comm/shm/job.h - one collective while it runs over shared memory, for the files of its algorithms. */
#ifndef LK__SHM_JOB_H
#define LK__SHM_JOB_H

#include "comm/shm/shm.h"

typedef struct lk__shm_job {
    lk__shm             *s;
    const lk__comm_call *o;
    size_t               size; /* of an element */
    size_t               most; /* elements of the largest part that any rank publishes */
    const void         **from; /* by rank: what it published for this rank */
    uint32_t             base; /* progress when it began */
} lk__shm_job;

/* Publishes this rank's arrival with its data, and waits for the arrivals of all other ranks. */
lk_status lk__shm_publish_and_await(lk__shm *s, const lk__comm_call *call, uint32_t number);
/* Elements [first, first + n) of what each rank i published for this one, which are at job->from[i]. */
void lk__shm_take_parts(const lk__shm_job *job, size_t first, size_t n);
/* All parts, in chunks through the staging buffers. */
lk_status lk__shm_run_staged(const lk__shm_job *job);

/* ---- all_to_allv.c ---- */
lk_status lk__shm_all_to_allv(lk__shm_job *job, uint32_t number);

#endif
