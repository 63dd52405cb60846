/* fuzz_meet.c - the meeting of one host, over its sockets: whatever comes to rank 0, in whatever pieces, is dropped or is
 * a rank with a seat; whatever comes back to a rank is refused or is an answer. An input is a byte that says which side
 * hears it and whether it is signed rightly first (else nothing would ever get past the MAC), a byte that says how it is
 * cut, then what is said. */
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

static void begin(void)
{
    static const struct sockaddr_un anywhere = {.sun_family = AF_UNIX};
    lk_context_config               config = LK_CONTEXT_CONFIG_INIT;
    lk_context                     *context;
    if (listener.fd >= 0) return;
    config.threads = 1;
    config.log = no_log;
    if (lk_context_create(&config, &context) < 0) abort();
    /* Bound to its family alone it gets an abstract name that is free. */
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

/* All of it in pieces, and rank 0 looks after each. */
static void say(int fd, const void *words, size_t bytes, size_t piece)
{
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        if (send(fd, (const char *)words + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return; /* it was dropped */
        serve();
    }
}

static void visit(const uint8_t *data, size_t size, int flags, size_t piece)
{
    lk__rendezvous_challenge greeting;
    lk__rendezvous_request   hello = {.rank = 0};
    int                      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), seated = 0;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&listener.bound, name_bytes) != 0) abort();
    serve();
    if (recv(fd, &greeting, sizeof greeting, MSG_DONTWAIT) != sizeof greeting) abort();
    if (!lk__challenge_valid(&greeting)) abort();
    size_t first = size < sizeof hello ? size : sizeof hello;
    memcpy(&hello, data, first);
    if (flags & SIGN) {
        first = sizeof hello;
        if (!lk__request_sign(&hello, &greeting, token)) abort();
    }
    say(fd, &hello, first, piece);
    for (int i = 0; i < SIZE; i++) {
        lk__rendezvous_pending *v = lk__server_peer(&server, i);
        if (!v) continue;
        seated++;
        if (!(flags & SIGN) || i < 1 || v->hello.size != SIZE || v->hello.purpose != LK__TO_SHARE) abort();
        check_text(v->hello.card.host, sizeof v->hello.card.host);
    }
    bool good = flags & SIGN && lk__request_verify(&hello, &greeting, token) == LK__TRUSTED && hello.rank > 0 &&
                hello.size == SIZE && hello.purpose == LK__TO_SHARE;
    if (seated != good) abort(); /* nobody else is there */
    if (size > first) say(fd, data + first, size - first, piece);
    close(fd);
    serve();
    for (int i = 0; i < server.acceptor.most; i++)
        if (server.acceptor.pending[i].fd >= 0) abort(); /* whoever leaves is no longer there */
}

static void hear(const uint8_t *data, size_t size, int flags)
{
    int                    pair[2], passed, null = -1;
    lk__rendezvous_request hello = {.rank = 1, .size = SIZE};
    lk__rendezvous_reply   answer = {.status = 0}, heard;
    size_t                 first = size < sizeof answer ? size : sizeof answer;
    memcpy(&answer, data, first);
    if (flags & SIGN) lk__reply_sign(&answer, &hello, token), first = sizeof answer;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort(); /* a descriptor was lost */
    if (flags & (PASS | PASS_TWICE)) null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    size_t begun = first < 8 ? first : 8;
    if (begun) (void)lk__send_passed(pair[0], &answer, begun, flags & PASS ? null : -1);
    if (first > begun)
        (void)lk__send_passed(pair[0], (char *)&answer + begun, first - begun, flags & PASS_TWICE ? null : -1);
    close(pair[0]);
    bool whole = lk__read_passed(pair[1], &heard, sizeof heard, &passed, lk__now() + 10);
    if (whole != (first == sizeof answer)) abort();
    if (whole && memcmp(&heard, &answer, sizeof heard) != 0) abort();
    if (whole && (passed >= 0) != (null >= 0)) abort();
    if (passed >= 0) close(passed);
    if (null >= 0) close(null);
    close(pair[1]);
    if (!whole) return;
    lk__rendezvous_trust belief = lk__reply_verify(&heard, &hello, token);
    if (belief == LK__FOREIGN) return;
    check_text(heard.text, sizeof heard.text);
    lk_status status = lk__reply_check(server.acceptor.context, &heard, belief, &hello, "a socket");
    if ((belief == LK__TRUSTED && heard.status == LK_OK) != (status == LK_OK)) abort();
    if (!(flags & SIGN) && status == LK_OK) abort(); /* a MAC was guessed */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    begin();
    if (data[0] & ANSWER)
        hear(data + 2, size - 2, data[0]);
    else
        visit(data + 2, size - 2, data[0], 16 + 4 * (size_t)data[1]);
    return 0;
}
