/* disconnect.c - how a rank leaves a group: its last messages and data are confirmed by the peers' systems before the
 * connections are closed. A closed socket answers whatever its peer sends by a reset, which discards what is still to
 * be sent again after a loss: after an outage of the network, peers would find that this rank died, although it has
 * finished. */
#include "comm/net/net.h"
#include "comm/socket.h"

#include <sys/socket.h>

enum {
    SILENT_MS = 5000, /* of peers that confirm nothing; a host that is cut off is detected before (lk__socket_probe) */
    LONGEST_PAUSE_MS = 20,
};

void lk__net_send_departure(lk__net *net)
{
    lk__net_message_header gone = lk__net_head(net, LK__MESSAGE_GONE, sizeof gone);
    for (int i = 0; i < net->size; i++) {
        if (i == net->rank || net->peers[i].connection->fd < 0) continue;
        lk__net_send_state(net, i);
        lk__net_send_failure(net, i);
        lk__net_send_message(net, i, &gone, sizeof gone, NULL, 0);
    }
}

/* If one rank of a host is cut off, so are its others, though their connections may not have detected it yet. */
static bool is_cut_off(const lk__net_connections *cs, int rank)
{
    for (int i = 0; i < cs->size; i++)
        if (atomic_load(&cs->all[i].cut_off) && cs->all[i].host == cs->all[rank].host) return true;
    return false;
}

/* Bytes that peers have not confirmed. One that has left, died or is cut off needs none of them. */
static size_t count_unconfirmed(lk__net_connections *cs, bool failed, int *peer)
{
    size_t bytes = 0;
    pthread_mutex_lock(&cs->lock);
    for (int i = 0; i < cs->size; i++) {
        lk__net_connection *c = &cs->all[i];
        if (i == cs->rank || c->fd < 0 || is_cut_off(cs, i)) continue;
        if (c->out_bytes == 0 && !c->ended) {
            shutdown(c->fd, SHUT_WR);
            c->ended = true;
        }
        size_t left = c->out_bytes + lk__socket_unconfirmed(c->fd);
        if (cs->transport->unconfirmed && !failed) left += cs->transport->unconfirmed(cs, i);
        if (left > 0) *peer = i;
        bytes += left;
    }
    pthread_mutex_unlock(&cs->lock);
    return bytes;
}

/* Messages are read meanwhile: peers must be able to send, and the end of a connection shows that its rank has left
 * too. */
void lk__net_disconnect(lk__net_connections *cs, double seconds, bool failed)
{
    double now = lk__now(), end = now + seconds, moved = now;
    size_t before = SIZE_MAX, bytes;
    int    peer = 0, pause = 1;
    while ((bytes = count_unconfirmed(cs, failed, &peer)) > 0) {
        now = lk__now();
        if (bytes < before) {
            before = bytes;
            moved = now;
        }
        if (now >= end || now - moved >= SILENT_MS / 1e3) {
            if (!failed)
                lk__log(cs->context, LK_LOG_WARNING,
                        "rank %d of %d is leaving, but rank %d has acknowledged none of its remaining messages for "
                        "%.1f s",
                        cs->rank, cs->size, peer, now - moved);
            return;
        }
        (void)lk__connections_poll(cs, pause);
        if (pause < LONGEST_PAUSE_MS) pause *= 2;
    }
}
