/* fuzz_rendezvous.c - the rendezvous of one host, over its sockets: anything sent to rank 0, in any pieces, is dropped
 * or becomes a joined rank; anything sent to a rank is refused or is a valid reply. An input is a byte with the
 * receiving side and whether the message is signed correctly first (else nothing would ever pass the MAC), a byte with
 * the size of the pieces, then the message. */
#define _GNU_SOURCE
#include "comm/rendezvous/acceptor.h"
#include "comm/socket.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIGN = 1, ANSWER = 2, PASS = 4, PASS_TWICE = 8, SIZE = 4 };
static const char token[] = "0123456789abcdef";

static lk__rendezvous_listener listener = {.fd = -1};
static socklen_t               name_bytes = sizeof listener.bound;
static lk__rendezvous_server   server;

static void no_log(void *user, lk_log_level level, const char *text) { (void)user, (void)level, (void)text; }

static void open_server(void)
{
    static const struct sockaddr_un anywhere = {.sun_family = AF_UNIX};
    lk_context_config               config = LK_CONTEXT_CONFIG_INIT;
    lk_context                     *context;
    if (listener.fd >= 0) return;
    config.threads = 1;
    config.log = no_log;
    if (lk_context_create(&config, &context) < 0) abort();
    /* Bound to its family only, it gets a free abstract name. */
    listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener.fd, (const struct sockaddr *)&anywhere, sizeof anywhere.sun_family) != 0 ||
        listen(listener.fd, 8) != 0 || getsockname(listener.fd, (struct sockaddr *)&listener.bound, &name_bytes) != 0 ||
        lk__server_open(&server, context, &listener, token, LK__TO_SHARE, SIZE) < 0)
        abort();
}

static void serve(void)
{
    int n = lk__acceptor_watch(&server.acceptor, server.polls);
    if (poll(server.polls, (nfds_t)n, 0) > 0) lk__acceptor_serve(&server.acceptor, server.polls);
}

static void check_text(const char *text, size_t room)
{
    if (memchr(text, 0, room) == NULL) abort();
    for (; *text; text++)
        if ((unsigned char)*text < ' ') abort();
}

/* Sends it in pieces; rank 0 serves after each. */
static void send_in_pieces(int fd, const void *message, size_t bytes, size_t piece)
{
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        if (send(fd, (const char *)message + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return; /* it was dropped */
        serve();
    }
}

static void try_request(const uint8_t *data, size_t size, int flags, size_t piece)
{
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.rank = 0};
    int                      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), joined = 0;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&listener.bound, name_bytes) != 0) abort();
    serve();
    if (recv(fd, &challenge, sizeof challenge, MSG_DONTWAIT) != sizeof challenge) abort();
    if (!lk__challenge_valid(&challenge)) abort();
    size_t first = size < sizeof request ? size : sizeof request;
    memcpy(&request, data, first);
    if (flags & SIGN) {
        first = sizeof request;
        if (!lk__request_sign(&request, &challenge, token)) abort();
    }
    send_in_pieces(fd, &request, first, piece);
    for (int i = 0; i < SIZE; i++) {
        lk__rendezvous_pending *connection = lk__server_peer(&server, i);
        if (!connection) continue;
        joined++;
        if (!(flags & SIGN) || i < 1 || connection->request.size != SIZE || connection->request.purpose != LK__TO_SHARE)
            abort();
        check_text(connection->request.endpoint.host, sizeof connection->request.endpoint.host);
    }
    bool good = flags & SIGN && lk__request_verify(&request, &challenge, token) == LK__TRUSTED && request.rank > 0 &&
                request.size == SIZE && request.purpose == LK__TO_SHARE;
    if (joined != good) abort(); /* no other rank has joined */
    if (size > first) send_in_pieces(fd, data + first, size - first, piece);
    close(fd);
    serve();
    for (int i = 0; i < server.acceptor.most; i++)
        if (server.acceptor.pending[i].fd >= 0) abort(); /* a closed connection is no longer pending */
}

static void try_reply(const uint8_t *data, size_t size, int flags)
{
    int                    pair[2], passed, null = -1;
    lk__rendezvous_request request = {.rank = 1, .size = SIZE};
    lk__rendezvous_reply   reply = {.status = 0}, received;
    size_t                 first = size < sizeof reply ? size : sizeof reply;
    memcpy(&reply, data, first);
    if (flags & SIGN) lk__reply_sign(&reply, &request, token), first = sizeof reply;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort(); /* a descriptor was leaked */
    if (flags & (PASS | PASS_TWICE)) null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    size_t begun = first < 8 ? first : 8;
    if (begun) (void)lk__send_passed(pair[0], &reply, begun, flags & PASS ? null : -1);
    if (first > begun)
        (void)lk__send_passed(pair[0], (char *)&reply + begun, first - begun, flags & PASS_TWICE ? null : -1);
    close(pair[0]);
    bool whole = lk__read_passed(pair[1], &received, sizeof received, &passed, lk__now() + 10);
    if (whole != (first == sizeof reply)) abort();
    if (whole && memcmp(&received, &reply, sizeof received) != 0) abort();
    if (whole && (passed >= 0) != (null >= 0)) abort();
    if (passed >= 0) close(passed);
    if (null >= 0) close(null);
    close(pair[1]);
    if (!whole) return;
    lk__rendezvous_trust trust = lk__reply_verify(&received, &request, token);
    if (trust == LK__FOREIGN) return;
    check_text(received.text, sizeof received.text);
    lk_status status = lk__reply_check(server.acceptor.context, &received, trust, &request, "a socket");
    if ((trust == LK__TRUSTED && received.status == LK_OK) != (status == LK_OK)) abort();
    if (!(flags & SIGN) && status == LK_OK) abort(); /* a MAC was guessed */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    open_server();
    if (data[0] & ANSWER)
        try_reply(data + 2, size - 2, data[0]);
    else
        try_request(data + 2, size - 2, data[0], 16 + 4 * (size_t)data[1]);
    return 0;
}
