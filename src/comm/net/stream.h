/* comm/net/stream.h - one TCP connection for bulk data between two ranks, used by all groups that contain both.
 *
 * A part of a flight is sent as data frames and a final frame. Each frame has the group and the id of the part, so that
 * parts of several groups may follow each other in any order. Data is read directly into the buffer of the receive that
 * awaits it. */
#ifndef LK__NET_STREAM_H
#define LK__NET_STREAM_H

#include "comm/net/net.h"

typedef enum lk__net_frame_kind {
    LK__FRAME_DATA = 1,
    LK__FRAME_END,    /* the part is complete */
    LK__FRAME_CANCEL, /* the sender's group failed: the part is invalid */
} lk__net_frame_kind;

/* All fields are little-endian. */
typedef struct lk__net_frame {
    uint64_t group, id, total; /* total: bytes of the part */
    uint32_t bytes, kind;      /* bytes: of data that follows */
} lk__net_frame;

/* A part of a flight: what one stream moves in one direction. */
typedef struct lk__net_stream_item {
    lk__net                    *net;
    lk__net_transfer_state     *flight; /* NULL: a part that was received before its receive was posted */
    struct lk__net_stream_item *next;
    char                       *data;
    size_t                      bytes, done;
    uint64_t                    id, group;
    bool                        sends, complete;
    int                         peer, stream; /* peer: its rank in the group */
} lk__net_stream_item;

struct lk__net_transfer_state {
    atomic_int              left;  /* items that are not complete */
    int                     count; /* items */
    int                     room;
    lk__net_transfer_state *next; /* among the spare ones */
    lk__net_stream_item     items[];
};

typedef struct lk__net_stream_queue {
    lk__net_stream_item *first, **last;
    atomic_int           count; /* may be read without the lock */
} lk__net_stream_queue;

typedef struct lk__net_stream {
    lk__net_handler      handler;
    lk__net_connections *connections;
    int                  fd, rank;           /* rank: of the connection */
    atomic_bool          readable, writable; /* as far as is known */
    atomic_bool          broken;
    /* Guards the rest, and `done` and `complete` of queued items. The connections' lock may be taken inside, not the
     * other way round. */
    pthread_mutex_t      lock;
    lk__net_stream_queue sending, posted, early; /* posted: awaited receives; early: parts that none awaited */
    /* The frame that is being sent: a header, data and, for the last one of a part, a trailer. */
    lk__net_frame out, trailer;
    size_t        out_at;          /* bytes of the three that are sent */
    bool sends_frame, last, fills; /* fills: the part was cancelled halfway, so the rest of the frame is zeros */
    /* The frame that is being received. */
    lk__net_frame        in;
    size_t               have, left; /* bytes of the header; of data that is still to come */
    lk__net_stream_item *coming;     /* gets them; NULL: they are dropped */
    bool                 stalled;    /* nothing awaits it yet */
    char                *unread;     /* bytes that were read too far; used before the socket's */
    size_t               unread_at, unread_bytes, unread_room;
} lk__net_stream;

lk_status lk__net_stream_open(lk__net_stream *stream, lk__net_connections *connections, int rank, int fd);
void      lk__net_stream_close(lk__net_stream *stream);
void      lk__net_stream_enqueue(lk__net_stream *stream, lk__net_stream_item *item);
/* Removes an item that is not complete; what was sent or received of it is completed and dropped later. */
void lk__net_stream_cancel(lk__net_stream *stream, lk__net_stream_item *item);
/* frees early parts of a group that is being freed */
void lk__net_stream_forget(lk__net_stream *stream, uint64_t group);
/* Sends and receives once, whichever groups the bytes belong to. True: bytes moved. net: of the caller, which needs no
 * notice. */
bool lk__net_stream_advance(lk__net_stream *stream, const lk__net *net);

#endif
