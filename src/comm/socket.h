/* comm/socket.h - waiting on, reading and writing sockets until a deadline (lk__now), which signals do not change. */
#ifndef LK__SOCKET_H
#define LK__SOCKET_H

#include "base/base.h"

#include <poll.h>

/* Like poll; continues after a signal. */
int lk__poll_until(struct pollfd *polls, nfds_t count, double end);

/* All `bytes`. False: closed, failed or late, with errno set. */
bool lk__read_whole(int fd, void *into, size_t bytes, double end);
bool lk__write_whole(int fd, const void *from, size_t bytes, double end);
/* The same, with a passed descriptor, which the caller owns even on failure; -1: none. */
bool lk__read_passed(int fd, void *into, size_t bytes, int *passed, double end);
/* Without waiting: fails unless the socket takes all of it at once. passed -1: none. */
bool lk__send_passed(int fd, const void *from, size_t bytes, int passed);

/* Has the kernel detect within about 4 s that the other host of a TCP connection is cut off: by unacknowledged data,
 * and by keepalive probes on an idle connection. Only for connections of small messages: Linux also ends a connection
 * whose peer does not read for that long once its buffers are full, as a stopped process does. */
void lk__socket_probe(int fd, bool on);
/* Bytes sent over a TCP connection, and its end, that the other host's system has not confirmed; 0 also once the
 * connection has failed. */
size_t lk__socket_unconfirmed(int fd);
/* Whether a connection's error says that the other host does not answer. */
bool lk__error_is_cut_off(int error);

/* Whether a Unix socket's peer is a process of this user or of root. pid 0: unknown. */
bool lk__peer_is_own_user(int fd, long *pid);

/* The text of a system error; if descriptors ran out, it also says what to do. */
typedef struct lk__comm_reason {
    char text[128];
} lk__comm_reason;
lk__comm_reason lk__comm_reason_of(int error);

#endif
