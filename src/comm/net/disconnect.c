/* disconnect.c - how a rank leaves a group: its last messages and data are confirmed by the peers' systems before the connections are
 * closed. A closed socket answers whatever its peer sends by a reset, which discards what is still to be sent again after a loss: after an
 * outage of the network, peers would find that this rank died, although it has finished. */
#include "comm/net/net.h"
#include "comm/socket.h"

#include <sys/socket.h>

enum {
    SILENT_MS = 5000, /* of peers that confirm nothing; a host that is cut off is detected before (lk__socket_probe) */
    LONGEST_PAUSE_MS = 20,
};

static void send_departure(lk__net *net)
{
    lk__net_message_header gone = {sizeof gone, LK__MESSAGE_GONE, 0};
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < net->size; i++) {
        if (i == net->rank || net->peers[i].fd < 0) continue;
        lk__net_send_state(net, i);
        lk__net_send_failure(net, i);
        lk__net_send_message(net, i, &gone, sizeof gone, NULL, 0);
    }
    pthread_mutex_unlock(&net->lock);
}

/* Bytes that peers have not confirmed. One that has left, died or is cut off needs none of them. */
static size_t count_unconfirmed(lk__net *net, int *peer)
{
    size_t bytes = 0;
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *p = &net->peers[i];
        if (i == net->rank || p->fd < 0 || lk__net_host_cut_off(net, i)) continue;
        if (p->out_bytes == 0 && !p->ended) {
            shutdown(p->fd, SHUT_WR);
            p->ended = true;
        }
        size_t left = p->out_bytes + lk__socket_unconfirmed(p->fd);
        /* Bulk data of a group that has failed is of no use. */
        if (net->transport->unconfirmed && lk__net_failure(net) == LK_OK) left += net->transport->unconfirmed(net, i);
        if (left > 0) *peer = i;
        bytes += left;
    }
    pthread_mutex_unlock(&net->lock);
    return bytes;
}

/* Messages are read meanwhile: peers must be able to send, and the end of a connection shows that its rank has left too. */
void lk__net_disconnect(lk__net *net)
{
    double now = lk__now(), end = now + (double)net->comm->timeout_ms / 1e3, moved = now;
    size_t before = SIZE_MAX, bytes;
    int    peer = 0, pause = 1;
    send_departure(net);
    while ((bytes = count_unconfirmed(net, &peer)) > 0) {
        now = lk__now();
        if (bytes < before) {
            before = bytes;
            moved = now;
        }
        if (now >= end || now - moved >= SILENT_MS / 1e3) {
            if (lk__net_failure(net) == LK_OK)
                lk__log(net->comm->context, LK_LOG_WARNING,
                        "rank %d of %d leaves, and rank %d has not confirmed its last messages for %.1f s", net->rank,
                        net->size, peer, now - moved);
            return;
        }
        (void)lk__net_poll(net, pause);
        if (pause < LONGEST_PAUSE_MS) pause *= 2;
    }
}
