/* fuzz_hello.c - the handshake: any bytes are refused, or give a rank, an address and names that can be used. An input is
 * a byte that says which message it is and whether it is signed rightly before it is judged (else nothing would ever get
 * past the MAC), then the message. */
#include "comm/reduce.h"
#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/local.h"

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

static void check_card(const lk__rendezvous_card *card)
{
    struct sockaddr_storage address;
    char                    text[64];
    check_text(card->host, sizeof card->host);
    check_text(card->host_id, sizeof card->host_id);
    if (lk__address_give(&card->address, 0, &address) == 0) abort();
    lk__address_show(&address, text, sizeof text);
    check_text(text, sizeof text);
}

static void take(void *into, size_t room, const uint8_t *data, size_t size)
{
    memset(into, 0, room);
    memcpy(into, data, size < room ? size : room);
}

static void try_hello(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_challenge greeting = {.magic = "lknet01"};
    lk__rendezvous_request   hello;
    take(&hello, sizeof hello, data, size);
    if (sign && !lk__request_sign(&hello, &greeting, token)) abort();
    lk__rendezvous_trust belief = lk__request_verify(&hello, &greeting, token);
    if (!sign && belief == LK__TRUSTED) abort(); /* a MAC was guessed */
    if (belief != LK__TRUSTED) return;
    if (hello.purpose < LK__TO_JOIN || hello.purpose > LK__TO_SHARE) abort();
    if (hello.purpose == LK__TO_SHARE) hello.card.address = (lk__rendezvous_address){.family = 4}; /* it needs none */
    if (hello.rank < 0 || hello.rank >= hello.size || hello.size > LK__REDUCE_MOST || hello.stream < 0) abort();
    check_card(&hello.card);
}

static void try_answer(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_request hello = {.rank = 1, .size = 2};
    lk__rendezvous_reply   answer;
    take(&answer, sizeof answer, data, size);
    if (sign) lk__reply_sign(&answer, &hello, token);
    lk__rendezvous_trust belief = lk__reply_verify(&answer, &hello, token);
    if (!sign && belief == LK__TRUSTED) abort();
    if (belief != LK__FOREIGN) check_text(answer.text, sizeof answer.text);
    if (belief == LK__TRUSTED && *lk_status_name((lk_status)answer.status) != 'L') abort();
}

static void try_cards(const uint8_t *data, size_t size, int sign)
{
    lk__rendezvous_request hello = {.rank = 1, .size = 4};
    lk__rendezvous_card    cards[4];
    unsigned char          mac[LK__MAC] = {0};
    take(cards, sizeof cards, data, size);
    if (sign) lk__cards_sign(cards, 4, &hello, token, mac);
    bool good = lk__cards_verify(cards, 4, &hello, token, mac);
    if (!sign && good) abort();
    for (int i = 0; i < 4 && good; i++) check_card(&cards[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    int sign = data[0] & 1;
    switch (data[0] >> 1 & 3) {
    case 0: try_hello(data + 1, size - 1, sign); break;
    case 1: try_answer(data + 1, size - 1, sign); break;
    default: try_cards(data + 1, size - 1, sign);
    }
    return 0;
}
