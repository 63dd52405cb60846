/* transport.h - the transports between ranks, for programs that list or choose one. */
#ifndef LOCKSTEP_TRANSPORT_H
#define LOCKSTEP_TRANSPORT_H

#include <lockstep/base.h>
#include <stddef.h>

LK_BEGIN_DECLS

typedef struct lk_transport {
    size_t      size LK_ZERO;     /* sizeof this struct; set by LK_TRANSPORT_INIT */
    const char *name LK_ZERO;     /* for lk_comm_config.backend */
    const char *text LK_ZERO;     /* a one-line description */
    int         one_rank LK_ZERO; /* supports only groups of one rank */
    int         shares_memory LK_ZERO; /* ranks of a host can share one copy of their state (LK_STATE_SHARED) */
} lk_transport;
#define LK_TRANSPORT_INIT {.size = sizeof(lk_transport)}

/* Returns the transport at `index`, from 0; LK_END: there are no more. */
LK_API lk_status lk_transport_at(int index, lk_transport *transport);

LK_END_DECLS
#endif
