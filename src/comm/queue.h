/* comm/queue.h - what a group can do with the memory of a device, and collectives that are queued on its streams, for
 * layers that need no other internals of a group.
 *
 * A blocking call (lockstep/comm.h) takes addresses of the host's memory, carries its number, kind, type and count to
 * the other ranks, and returns when this rank's part is done. A queued call takes addresses of the device's memory and
 * returns at once: the device runs it after the earlier work of its stream, without the host, and repeats it whenever a
 * recording is replayed. It is not compared with the calls of other ranks, so the caller must compare the whole
 * schedule before the first call: the ranks of a program do so when they create it (run/verify.c).
 *
 * The queued calls of a group run in the order of their streams, which must be the same on all its ranks. Blocking
 * calls of the same group are ordered only among themselves: they do not wait for queued calls. */
#ifndef LK__COMM_QUEUE_H
#define LK__COMM_QUEUE_H

#include "comm/operation.h"
#include "device/device.h"

/* What a transport can do with the memory of one device: the same on all ranks of a group, and in the groups that are
 * split from it. */
typedef struct lk__comm_abilities {
    bool reaches;   /* blocking calls take addresses in it: otherwise the caller copies to and from the host's memory */
    bool queues;    /* lk__comm_enqueue takes calls on its streams */
    bool records;   /* also between record_begin and record_end (device/recording.h): each run of the graph is a call */
    bool canonical; /* reductions add in the order of base/tree.h: equal inputs give the same bits on every transport */
} lk__comm_abilities;

lk__comm_abilities lk__comm_abilities_for(const lk_comm *comm, const lk__device *device);
/* Its `reaches`. */
bool lk__comm_reaches(const lk_comm *comm, const lk__device *device);

/* Where a queued call runs. */
typedef struct lk__comm_stream {
    lk__device        *device;
    lk__device_stream *stream;
    /* A word of the device's memory, or NULL. A call whose wait fails stores LK__HALTED_BY_GROUP, and a call that finds
     * that number there changes nothing, here or at a peer: kernels that write state read the word, too
     * (lk__kernel_call.halted), so that what follows a failure leaves the state as it is. */
    int32_t *halted;
} lk__comm_stream;

/* Queues a call. Either none of its buffers is in symmetric memory of the group, or those of all ranks are, each at the
 * same place in its part (of an all_gather in place, the receive buffer is; of a reduce_scatter, the send buffer). What
 * it reads and writes must stay until it has run. An error is the caller's, and nothing was queued. A call that fails
 * when it runs fails the group: lk_comm_status says so once the stream was waited for. */
lk_status lk__comm_enqueue(lk_comm *comm, const lk__comm_call *call, const lk__comm_stream *on);

/* Several groups have queued calls in one program, with one `halted` word, so the failure of one ends the calls of all.
 * Whether `comm` has failed and it is known which rank is the cause; does not wait. */
bool lk__comm_knows_failure(lk_comm *comm);
/* Fails `comm` as `failed` has failed, of which this rank is a member, too: with its status, text and cause. */
void lk__comm_fail_as(lk_comm *comm, lk_comm *failed);

/* After a failure, whose status and error it is: where this process has lost the device because another rank has died,
 * which under MPS ends the contexts of all, the group fails with that, and the error says so; otherwise status. It may
 * take two seconds until the death is known. */
lk_status lk__comm_explain(lk_comm *comm, lk_status status);

/* Symmetric memory of a device on which the group queues calls: `bytes` on every rank, zeroed, until lk_comm_release.
 * Queued calls with both buffers in it need no copies. Collective; accounted by the caller. */
lk_status lk__comm_alloc_device_at(lk_site site, lk_comm *comm, lk__device *device, size_t bytes, void **memory);
#define lk__comm_alloc_device(...) lk__comm_alloc_device_at(LK_HERE, __VA_ARGS__)

#endif
