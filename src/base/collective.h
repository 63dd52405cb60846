/* base/collective.h - the table of collectives: one row each, which says who sends, who receives and where the parts
 * are. It is the only list of collectives: the checks and descriptions of calls, the transports, the programs that run
 * nodes of graphs, and `lockstep bench comm` all use it. */
#ifndef LK__COLLECTIVE_H
#define LK__COLLECTIVE_H

#include "base/axes.h"

#include <stdbool.h>
#include <stddef.h>

/* Which ranks send, or receive. */
typedef enum lk__collective_ranks { LK__RANKS_NONE, LK__RANKS_ALL, LK__RANKS_ROOT } lk__collective_ranks;

/* Where the two buffers may overlap: nowhere; where they are the same; where a rank sends its part of what it
 * receives; or the reverse. */
typedef enum lk__collective_place {
    LK__PLACE_APART,
    LK__PLACE_SAME,
    LK__PLACE_IN_RECV,
    LK__PLACE_IN_SEND
} lk__collective_place;

typedef struct lk__collective_facts {
    const char          *name;
    lk__collective_ranks senders, receivers; /* one of them LK__RANKS_ROOT: the call has a root */
    bool                 sends_parts;        /* one for each rank; else the same to all */
    bool                 receives_parts;     /* one of each rank, in their order; else one */
    bool                 reduces;            /* what the ranks sent is reduced to one part */
    bool                 counts;             /* each part has its own count and displacement */
    lk__collective_place in_place;
    /* For `lockstep bench comm`, of N ranks with buffers of S bytes in shared memory; NULL: it is not measured. */
    const char *traffic;
} lk__collective_facts;

/* X(ID, name, facts); not public, at the end: a split and an allocation gather a few bytes; the rest: comm/hosts.h. */
#define LK__COLLECTIVE_LIST(X)                                                                                         \
    X(BARRIER, "barrier", .senders = LK__RANKS_NONE)                                                                   \
    X(ALL_REDUCE, "all_reduce", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .reduces = true,                 \
      .in_place = LK__PLACE_SAME,                                                                                      \
      .traffic = "a rank reads S/N bytes from each of N buffers and writes S/N bytes to each: 2NS in all")             \
    X(REDUCE, "reduce", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ROOT, .reduces = true,                        \
      .in_place = LK__PLACE_SAME,                                                                                      \
      .traffic = "a rank reads S/N bytes from each of N buffers and writes S/N bytes to the root's: (N+1)S in all")    \
    X(BROADCAST, "broadcast", .senders = LK__RANKS_ROOT, .receivers = LK__RANKS_ALL, .in_place = LK__PLACE_SAME,       \
      .traffic = "every rank except the root reads and writes S bytes: 2(N-1)S in all")                                \
    X(ALL_GATHER, "all_gather", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .receives_parts = true,          \
      .in_place = LK__PLACE_IN_RECV,                                                                                   \
      .traffic = "a rank reads S/N bytes from each of N-1 buffers and writes them to its own: 2(N-1)S in all")         \
    X(REDUCE_SCATTER, "reduce_scatter", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .sends_parts = true,     \
      .reduces = true, .in_place = LK__PLACE_IN_SEND,                                                                  \
      .traffic = "a rank reads S/N bytes from each of N buffers and writes S/N bytes to its own: (N+1)S in all")       \
    X(GATHER, "gather", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ROOT, .receives_parts = true,                 \
      .in_place = LK__PLACE_IN_RECV)                                                                                   \
    X(SCATTER, "scatter", .senders = LK__RANKS_ROOT, .receivers = LK__RANKS_ALL, .sends_parts = true,                  \
      .in_place = LK__PLACE_IN_SEND)                                                                                   \
    X(ALL_TO_ALL, "all_to_all", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .sends_parts = true,             \
      .receives_parts = true, .in_place = LK__PLACE_SAME,                                                              \
      .traffic = "a rank reads S/N bytes from each of N buffers and writes S bytes to its own: 2NS in all")            \
    X(ALL_GATHERV, "all_gatherv", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .receives_parts = true,        \
      .counts = true, .in_place = LK__PLACE_IN_RECV)                                                                   \
    X(GATHERV, "gatherv", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ROOT, .receives_parts = true,               \
      .counts = true, .in_place = LK__PLACE_IN_RECV)                                                                   \
    X(ALL_TO_ALLV, "all_to_allv", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .sends_parts = true,           \
      .receives_parts = true, .counts = true, .in_place = LK__PLACE_APART)                                             \
    X(SEND, "send", .senders = LK__RANKS_ALL)                                                                          \
    X(RECV, "recv", .receivers = LK__RANKS_ALL)                                                                        \
    X(SPLIT, "split", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .receives_parts = true,                    \
      .in_place = LK__PLACE_IN_RECV)                                                                                   \
    X(ALLOC, "alloc", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .receives_parts = true,                    \
      .in_place = LK__PLACE_IN_RECV)                                                                                   \
    X(BARRIER_HOST, "barrier_host", .senders = LK__RANKS_NONE)                                                         \
    X(REDUCE_SCATTER_HOST, "reduce_scatter_host", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL,                \
      .reduces = true, .in_place = LK__PLACE_SAME)                                                                     \
    X(ALL_REDUCE_ACROSS, "all_reduce_across", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL, .reduces = true,   \
      .in_place = LK__PLACE_SAME)                                                                                      \
    X(ALL_GATHER_HOST, "all_gather_host", .senders = LK__RANKS_ALL, .receivers = LK__RANKS_ALL,                        \
      .receives_parts = true, .in_place = LK__PLACE_IN_RECV)

typedef enum lk__comm_kind {
#define LK__KIND_ENUM(id, name, ...) LK__##id,
    LK__COLLECTIVE_LIST(LK__KIND_ENUM)
#undef LK__KIND_ENUM
        LK__KIND_COUNT
} lk__comm_kind;

extern const lk__collective_facts lk__collectives[LK__KIND_COUNT];

static inline bool lk__collective_is_rooted(const lk__collective_facts *facts)
{
    return facts->senders == LK__RANKS_ROOT || facts->receivers == LK__RANKS_ROOT;
}

#endif
