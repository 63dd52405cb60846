/* socket.c - waits on sockets. A signal neither ends nor restarts a wait: the remaining time is computed each time, and
 * no read or write blocks. */
#define _GNU_SOURCE
#include "comm/socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int lk__poll_until(struct pollfd *polls, nfds_t count, double end)
{
    for (;;) {
        double left = end - lk__now(), slice = left < 1000 ? left : 1000; /* poll counts milliseconds in an int */
        int    ready = poll(polls, count, slice > 0 ? (int)(slice * 1000) + 1 : 0);
        if (ready > 0 || (ready < 0 && errno != EINTR)) return ready;
        if (left <= 0) return 0;
    }
}

static bool wait_ready(int fd, short events, double end)
{
    struct pollfd one = {.fd = fd, .events = events};
    int           ready = lk__poll_until(&one, 1, end);
    if (ready == 0) errno = ETIMEDOUT;
    return ready > 0;
}

static void receive_descriptor(struct msghdr *message, int *passed)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) return;
    if (*passed >= 0) close(*passed); /* only one is expected */
    memcpy(passed, CMSG_DATA(c), sizeof *passed);
}

bool lk__read_passed(int fd, void *into, size_t bytes, int *passed, double end)
{
    if (passed) *passed = -1;
    for (size_t have = 0; have < bytes;) {
        union {
            struct cmsghdr header;
            char           space[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec  part = {(char *)into + have, bytes - have};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (passed) {
            message.msg_control = control.space;
            message.msg_controllen = CMSG_LEN(sizeof(int)); /* no room for a second one, which would leak */
        }
        if (!wait_ready(fd, POLLIN, end)) return false;
        ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) return false;
        if (passed) receive_descriptor(&message, passed);
        have += (size_t)n;
    }
    return true;
}

bool lk__read_whole(int fd, void *into, size_t bytes, double end)
{
    return lk__read_passed(fd, into, bytes, NULL, end);
}

bool lk__write_whole(int fd, const void *from, size_t bytes, double end)
{
    for (size_t done = 0; done < bytes;) {
        if (!wait_ready(fd, POLLOUT, end)) return false;
        ssize_t n = send(fd, (const char *)from + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

bool lk__send_passed(int fd, const void *from, size_t bytes, int passed)
{
    union {
        struct cmsghdr header;
        char           space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct iovec  part = {(void *)from, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

void lk__socket_probe(int fd, bool on)
{
    enum { CUT_OFF_MS = 3500 };
    int seconds = 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(unsigned){on ? CUT_OFF_MS : 0}, sizeof(unsigned));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){on}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

size_t lk__socket_unconfirmed(int fd)
{
    struct tcp_info info;
    socklen_t       length = sizeof info;
    int             bytes;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state == TCP_CLOSE) return 0;
    return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

bool lk__error_is_cut_off(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
           error == EHOSTDOWN;
}

bool lk__peer_is_own_user(int fd, long *pid)
{
    struct ucred peer = {0};
    socklen_t    length = sizeof peer;
    bool         known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
    *pid = known ? (long)peer.pid : 0;
    return known && (peer.uid == geteuid() || peer.uid == 0);
}

lk__comm_reason lk__comm_reason_of(int error)
{
    lk__comm_reason reason;
    struct rlimit   limit;
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(reason.text, sizeof reason.text, "%s: no file descriptors left (limit %llu): raise it with ulimit -n",
                 strerror(error), (unsigned long long)limit.rlim_cur);
    else
        snprintf(reason.text, sizeof reason.text, "%s", strerror(error));
    return reason;
}
