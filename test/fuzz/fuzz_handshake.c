/* fuzz_handshake.c - the handshake: any bytes are refused, or give a valid rank, address and names. An input is a byte
 * with the kind of message and whether it is signed correctly before it is verified (else nothing would ever pass the
 * MAC), then the message. */
#include "base/reduce.h"
#include "comm/rendezvous/handshake.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char token[] = "0123456789abcdef";

static void check_text(const char *text, size_t room)
{
    if (memchr(text, 0, room) == NULL) abort();
    for (; *text; text++)
        if ((unsigned char)*text < ' ') abort();
}

static void check_endpoint(const lk__rendezvous_endpoint *endpoint)
{
    struct sockaddr_storage address;
    char                    text[64];
    check_text(endpoint->host, sizeof endpoint->host);
    check_text(endpoint->host_id, sizeof endpoint->host_id);
    if (lk__address_to_socket(&endpoint->address, 0, &address) == 0) abort();
    lk__address_show(&address, text, sizeof text);
    check_text(text, sizeof text);
}

static void copy_input(void *into, size_t room, const uint8_t *data, size_t size)
{
    memset(into, 0, room);
    memcpy(into, data, size < room ? size : room);
}

static void try_request(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_challenge challenge = {.magic = "lknet03"};
    lk__rendezvous_request   request;
    copy_input(&request, sizeof request, data, size);
    if (sign && !lk__request_sign(&request, &challenge, token)) abort();
    lk__rendezvous_trust trust = lk__request_verify(&request, &challenge, token);
    if (!sign && trust == LK__TRUSTED) abort(); /* a MAC was guessed */
    if (trust != LK__TRUSTED) return;
    if (request.purpose < LK__TO_JOIN || request.purpose > LK__TO_SHARE) abort();
    if (request.purpose == LK__TO_SHARE)
        request.endpoint.address = (lk__rendezvous_address){.family = 4}; /* it needs none */
    if (request.rank < 0 || request.rank >= request.size || request.size > LK__REDUCE_MOST || request.stream < 0)
        abort();
    check_endpoint(&request.endpoint);
}

static void try_reply(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_request request = {.rank = 1, .size = 2};
    lk__rendezvous_reply   reply;
    copy_input(&reply, sizeof reply, data, size);
    if (sign) lk__reply_sign(&reply, &request, token);
    lk__rendezvous_trust trust = lk__reply_verify(&reply, &request, token);
    if (!sign && trust == LK__TRUSTED) abort();
    if (trust != LK__FOREIGN) check_text(reply.text, sizeof reply.text);
    if (trust == LK__TRUSTED && *lk_status_name((lk_status)reply.status) != 'L') abort();
}

static void try_endpoints(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_request  request = {.rank = 1, .size = 4};
    lk__rendezvous_endpoint endpoints[4];
    unsigned char           mac[LK__MAC] = {0};
    copy_input(endpoints, sizeof endpoints, data, size);
    if (sign) lk__endpoints_sign(endpoints, 4, &request, token, mac);
    bool good = lk__endpoints_verify(endpoints, 4, &request, token, mac);
    if (!sign && good) abort();
    for (int i = 0; i < 4 && good; i++) check_endpoint(&endpoints[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    int sign = data[0] & 1;
    switch (data[0] >> 1 & 3) {
    case 0: try_request(data + 1, size - 1, sign); break;
    case 1: try_reply(data + 1, size - 1, sign); break;
    default: try_endpoints(data + 1, size - 1, sign);
    }
    return 0;
}
