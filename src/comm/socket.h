/* comm/socket.h - waiting on, reading and writing sockets until a point in time (lk__now), which no signal moves. */
#ifndef LK__SOCKET_H
#define LK__SOCKET_H

#include "base/base.h"

#include <poll.h>

/* As poll; goes on after a signal. */
int lk__poll_until(struct pollfd *polls, nfds_t count, double end);

/* All of it. False: closed, failed or late, as errno says. */
bool lk__read_whole(int fd, void *into, size_t bytes, double end);
bool lk__write_whole(int fd, const void *from, size_t bytes, double end);
/* And the descriptor that came along, the caller's then even on failure; -1: none. */
bool lk__read_passed(int fd, void *into, size_t bytes, int *passed, double end);
/* At once or not at all: who cannot take a few bytes does not read. passed -1: none. */
bool lk__send_passed(int fd, const void *from, size_t bytes, int passed);

/* Has the kernel find out that the other host of a TCP connection is cut off, within some 4 s: by what is not acknowledged, and by
 * probes where nothing is said. A process that is merely stopped does not matter: its kernel answers. */
void lk__socket_probe(int fd);

/* Whether a Unix socket's other end is of this user, or root's. pid 0: not to be known. */
bool lk__own_peer(int fd, long *pid);

/* An error of the system in words; with what to do where descriptors ran out. */
typedef struct lk__comm_reason {
    char text[128];
} lk__comm_reason;
lk__comm_reason lk__comm_reason_of(int error);

#endif
