/* handshake.c - builds and verifies the messages of a handshake. The functions take and return bytes, so that a fuzzer
 * can call them. */
#define _GNU_SOURCE
#include "comm/rendezvous/handshake.h"

#include "base/entropy.h"
#include "base/environment.h"
#include "base/hash.h"
#include "base/reduce.h"
#include "comm/process.h"
#include "comm/rendezvous/local.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(sizeof(lk__rendezvous_address) == 20 && sizeof(lk__rendezvous_endpoint) == 208 &&
                   sizeof(lk__rendezvous_request) == 296 && sizeof(lk__rendezvous_reply) == 600,
               "no padding");

static const char magic[8] = "lknet03";

enum { LABEL = 16, PART_MOST = 1024 };

/* The MAC covers a label, so that one kind of message is not accepted as another; a nonce; the message. */
static void compute_mac(const char *token, const char *label, const unsigned char *nonce, const void *message,
                        size_t bytes, unsigned char mac[LK__MAC])
{
    unsigned char all[LABEL + LK__NONCE + PART_MOST] = {0};
    memcpy(all, label, strlen(label));
    memcpy(all + LABEL, nonce, LK__NONCE);
    memcpy(all + LABEL + LK__NONCE, message, bytes);
    lk__hmac(token, all, LABEL + LK__NONCE + bytes, mac);
}

static void make_printable(char *text, size_t room)
{
    text[room - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

bool lk__challenge_make(lk__rendezvous_challenge *g)
{
    memcpy(g->magic, magic, sizeof magic);
    return lk__entropy(g->nonce, sizeof g->nonce);
}

bool lk__challenge_valid(const lk__rendezvous_challenge *g) { return memcmp(g->magic, magic, sizeof magic) == 0; }

bool lk__request_sign(lk__rendezvous_request *h, const lk__rendezvous_challenge *g, const char *token)
{
    memcpy(h->magic, magic, sizeof magic);
    if (!lk__entropy(h->nonce, sizeof h->nonce)) return false;
    compute_mac(token, "hello", g->nonce, h, offsetof(lk__rendezvous_request, mac), h->mac);
    return true;
}

static bool check_endpoint(lk__rendezvous_endpoint *c)
{
    make_printable(c->host, sizeof c->host);
    make_printable(c->host_id, sizeof c->host_id);
    return c->pid > 0;
}

static bool is_address_valid(const lk__rendezvous_address *a) { return a->family == 4 || a->family == 6; }

lk__rendezvous_trust lk__request_verify(lk__rendezvous_request *h, const lk__rendezvous_challenge *g, const char *token)
{
    unsigned char mac[LK__MAC];
    if (memcmp(h->magic, magic, sizeof magic) != 0) return LK__FOREIGN;
    compute_mac(token, "hello", g->nonce, h, offsetof(lk__rendezvous_request, mac), mac);
    if (!lk__hmac_same(mac, h->mac)) return LK__WRONG_TOKEN;
    if (h->purpose < LK__TO_JOIN || h->purpose > LK__TO_SHARE) return LK__FOREIGN;
    if (h->purpose != LK__TO_SHARE && !is_address_valid(&h->endpoint.address)) return LK__FOREIGN;
    if (h->size < 2 || h->size > LK__REDUCE_MOST || h->rank < 0 || h->rank >= h->size || h->stream < 0)
        return LK__FOREIGN;
    return check_endpoint(&h->endpoint) ? LK__TRUSTED : LK__FOREIGN;
}

void lk__reply_sign(lk__rendezvous_reply *a, const lk__rendezvous_request *h, const char *token)
{
    memcpy(a->magic, magic, sizeof magic);
    compute_mac(token, "answer", h->nonce, a, offsetof(lk__rendezvous_reply, mac), a->mac);
}

lk__rendezvous_trust lk__reply_verify(lk__rendezvous_reply *a, const lk__rendezvous_request *h, const char *token)
{
    unsigned char mac[LK__MAC];
    if (memcmp(a->magic, magic, sizeof magic) != 0) return LK__FOREIGN;
    compute_mac(token, "answer", h->nonce, a, offsetof(lk__rendezvous_reply, mac), mac);
    make_printable(a->text, sizeof a->text);
    if (!lk__hmac_same(mac, a->mac)) return LK__WRONG_TOKEN;
    return a->status <= 0 && lk__status_exists(a->status) ? LK__TRUSTED : LK__FOREIGN;
}

void lk__endpoints_sign(const lk__rendezvous_endpoint *endpoints, int count, const lk__rendezvous_request *h,
                        const char *token, unsigned char mac[LK__MAC])
{
    unsigned char digest[LK__MAC];
    lk__hmac(token, endpoints, (size_t)count * sizeof *endpoints, digest);
    compute_mac(token, "cards", h->nonce, digest, sizeof digest, mac);
}

bool lk__endpoints_verify(lk__rendezvous_endpoint *endpoints, int count, const lk__rendezvous_request *h,
                          const char *token, const unsigned char mac[LK__MAC])
{
    unsigned char right[LK__MAC];
    lk__endpoints_sign(endpoints, count, h, token, right);
    if (!lk__hmac_same(right, mac)) return false;
    for (int i = 0; i < count; i++)
        if (!check_endpoint(&endpoints[i]) || !is_address_valid(&endpoints[i].address)) return false;
    return true;
}

void lk__token_derive(const char *token, const void *secret, size_t bytes, char derived[LK__NET_TOKEN])
{
    unsigned char nonce[LK__NONCE] = {0}, mac[LK__MAC];
    compute_mac(token, "group", nonce, secret, bytes, mac);
    lk__sha256_hex(mac, derived);
}

/* ---- this process ---- */

/* Shared memory is passed over a Unix socket, which belongs to a network namespace, and ranks check each other's
 * processes: so ranks count as on one host when boot id, both namespaces and user are the same. LOCKSTEP_HOST_ID
 * separates them further. */
void lk__endpoint_make(const lk_context *context, lk__rendezvous_endpoint *endpoint)
{
    char        boot[40] = "?";
    const char *given = lk__environment(context, LK__ENV_LOCKSTEP_HOST_ID);
    FILE       *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->pid = getpid();
    lk__comm_device_make(context, &endpoint->device);
    if (gethostname(endpoint->host, sizeof endpoint->host - 1) != 0 || !endpoint->host[0])
        snprintf(endpoint->host, 2, "?");
    if (file) {
        if (fscanf(file, "%39s", boot) != 1) snprintf(boot, sizeof boot, "?");
        fclose(file);
    }
    snprintf(endpoint->host_id, sizeof endpoint->host_id, "%s:%llu:%llu:%u%s%.20s", boot,
             (unsigned long long)lk__process_namespace("net"), (unsigned long long)lk__process_namespace("pid"),
             (unsigned)geteuid(), given ? ":" : "", given ? given : "");
}

/* ---- addresses ---- */

bool lk__address_from_socket(lk__rendezvous_address *a, const struct sockaddr_storage *from)
{
    memset(a, 0, sizeof *a);
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        a->family = 4;
        a->port = ntohs(in->sin_port);
        memcpy(a->bytes, &in->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
        a->family = 6;
        a->port = ntohs(in->sin6_port);
        memcpy(a->bytes, &in->sin6_addr, 16);
    }
    return a->family != 0;
}

socklen_t lk__address_to_socket(const lk__rendezvous_address *a, uint32_t scope, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    if (a->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)to;
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, a->bytes, 4);
        return sizeof *in;
    }
    if (a->family == 6) {
        struct sockaddr_in6 *in = (struct sockaddr_in6 *)to;
        in->sin6_family = AF_INET6;
        in->sin6_port = htons(a->port);
        memcpy(&in->sin6_addr, a->bytes, 16);
        if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) in->sin6_scope_id = scope;
        return sizeof *in;
    }
    return 0;
}

void lk__address_show(const struct sockaddr_storage *address, char *out, size_t bytes)
{
    char text[INET6_ADDRSTRLEN] = "?";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        snprintf(out, bytes, "%s:%d", text, ntohs(in->sin_port));
    } else if (address->ss_family == AF_UNIX) { /* abstract: its name begins with a NUL */
        snprintf(out, bytes, "the Unix socket @%.*s", LK__UNIX_NAME,
                 ((const struct sockaddr_un *)address)->sun_path + 1);
    } else {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
        snprintf(out, bytes, "[%s]:%d", text, ntohs(in->sin6_port));
    }
}
