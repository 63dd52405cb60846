/* link_delay.c - a link between two network namespaces with a delay and a loss, in user space: a tun device in each,
 * and packets that are passed on when their time has come, or not at all. For net_namespaces.sh. Usage: link_delay
 * NETNS-A NETNS-B DELAY-MS LOST-PER-THOUSAND; the devices are called lktun. Ends with its standard input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKETS = 4096, PACKET = 2048 };

typedef struct packet {
    double due;
    int    to;
    int    bytes;
    char   data[PACKET];
} packet;

static packet queue[PACKETS]; /* in the order of their time, since the delay is always the same */
static int    first, count;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_tun(const char *netns)
{
    char         path[256];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/var/run/netns/%s", netns);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) return -1;
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    snprintf(request.ifr_name, sizeof request.ifr_name, "lktun");
    return fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 ? fd : -1;
}

static void take(int from, int to, double delay, unsigned lost)
{
    static uint64_t random = 88172645463325252u; /* xorshift: the same packets are lost every time */
    for (;;) {
        packet  scratch, *p = count < PACKETS ? &queue[(first + count) % PACKETS] : &scratch;
        ssize_t n = read(from, p->data, PACKET);
        if (n <= 0) return;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        if (p == &scratch || random % 1000 < lost) continue;
        p->due = now() + delay;
        p->to = to;
        p->bytes = (int)n;
        count++;
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) return 2;
    int    ends[2] = {open_tun(argv[1]), open_tun(argv[2])};
    double delay = atof(argv[3]) / 1e3;
    if (ends[0] < 0 || ends[1] < 0) {
        perror("link_delay");
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct pollfd   polls[3] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}, {0, POLLIN, 0}};
        double          wait = count ? queue[first].due - now() : 1;
        struct timespec limit = {.tv_nsec = wait > 0 && wait < 1 ? (long)(wait * 1e9) : wait > 0 ? 999999999 : 0};
        ppoll(polls, 3, &limit, NULL);
        if (polls[2].revents) return 0;
        for (int i = 0; i < 2; i++)
            if (polls[i].revents) take(ends[i], ends[1 - i], delay, (unsigned)atoi(argv[4]));
        while (count && queue[first].due <= now()) {
            (void)!write(queue[first].to, queue[first].data, (size_t)queue[first].bytes);
            first = (first + 1) % PACKETS;
            count--;
        }
    }
}
