/* test_hash.c - SHA-256: the standard's vectors, and every kind of instructions against the portable one. XXH64:
 * published values. */
#include "base/hash.h"
#include "base/sha256_blocks.h"
#include "base/xxh64.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

static void digest_of(const lk__sha256_kind *kind, const void *data, size_t bytes, size_t part, char hex[65])
{
    lk__sha256    sha;
    unsigned char raw[32];
    lk__sha256_init(&sha);
    sha.add = kind->add;
    for (size_t done = 0; done < bytes;) {
        size_t now = bytes - done < part ? bytes - done : part;
        lk__sha256_update(&sha, (const char *)data + done, now);
        done += now;
    }
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, hex);
}

/* FIPS 180-4's examples, and the digest of nothing. */
static void every_kind_gives_the_digests_of_the_standard(void)
{
    static const char *const vectors[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqr"
         "stu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    size_t million = 1000000;
    char  *a = malloc(million), hex[65];
    memset(a, 'a', million);
    const lk__sha256_kind *kind;
    for (int k = 0; (kind = lk__sha256_kind_at(k)); k++) {
        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
            digest_of(kind, vectors[i][0], strlen(vectors[i][0]), 1000, hex);
            CHECK(strcmp(hex, vectors[i][1]) == 0, "%s: \"%s\" is %s", kind->name, vectors[i][0], hex);
        }
        digest_of(kind, a, million, million, hex);
        CHECK(strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0") == 0,
              "%s: a million times a is %s", kind->name, hex);
    }
    free(a);
}

static void instructions_agree_with_portable_code_at_awkward_lengths(void)
{
    static const size_t lengths[] = {0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 3145739};
    static const size_t parts[] = {1, 3, 63, 64, 65, 1021, 65536, 4000000};
    unsigned char      *data = malloc(3145739 + 1);
    uint32_t            x = 12345;
    for (size_t i = 0; i < 3145739 + 1; i++) data[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    int last = 0;
    while (lk__sha256_kind_at(last + 1)) last++;
    const lk__sha256_kind *portable = lk__sha256_kind_at(last);
    CHECK(strcmp(portable->name, "portable") == 0, "the last kind is %s", portable->name);
    for (int k = 0; k < last; k++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
                char expected[65], hex[65];
                if (lengths[i] > 100000 && parts[j] < 63) continue;
                digest_of(portable, data + 1, lengths[i], lengths[i] + 1, expected); /* + 1: not aligned */
                digest_of(lk__sha256_kind_at(k), data + 1, lengths[i], parts[j], hex);
                CHECK(strcmp(hex, expected) == 0, "%s, %zu bytes by %zu: %s, not %s", lk__sha256_kind_at(k)->name,
                      lengths[i], parts[j], hex, expected);
            }
    free(data);
}

/* What a process sends to the next one that hashes the same file. */
static void state_and_bytes_continue_elsewhere(void)
{
    char          data[640], hex[65], expected[65];
    unsigned char raw[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    digest_of(lk__sha256_kind_at(0), data, sizeof data, sizeof data, expected);
    lk__sha256 first, second;
    lk__sha256_init(&first);
    lk__sha256_update(&first, data, 320);
    lk__sha256_init(&second);
    memcpy(second.state, first.state, sizeof first.state);
    second.bytes = first.bytes;
    lk__sha256_update(&second, data + 320, 320);
    lk__sha256_final(&second, raw);
    lk__sha256_hex(raw, hex);
    CHECK(strcmp(hex, expected) == 0, "%s, not %s", hex, expected);
}

static uint64_t xxh64_of(const void *data, size_t bytes, size_t part)
{
    lk__xxh64 hash;
    lk__xxh64_init(&hash);
    for (size_t done = 0; done < bytes; done += part)
        lk__xxh64_update(&hash, (const char *)data + done, bytes - done < part ? bytes - done : part);
    return lk__xxh64_final(&hash);
}

/* Values of the reference implementation: of texts, and of the bytes that its own self-test uses (seed 0). */
static void xxh64_gives_the_published_values(void)
{
    static const struct {
        const char *text;
        uint64_t    hash;
    } texts[] = {{"", 0xef46db3751d8e999},
                 {"a", 0xd24ec4f1a98c6e5b},
                 {"abc", 0x44bc2cf5ad770999},
                 {"xxhash", 0x32dd38952c4bc720},
                 {"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1}};
    static const struct {
        size_t   bytes;
        uint64_t hash;
    } sizes[] = {{1, 0x4fce394cc88952d8}, {14, 0xcffa8db881bc3a3d}, {101, 0x0eab543384f878ad}};
    unsigned char data[4099];
    uint32_t      x = 2654435761u;
    for (size_t i = 0; i < sizeof data; i++, x *= x) data[i] = (unsigned char)(x >> 24);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint64_t hash = xxh64_of(texts[i].text, strlen(texts[i].text), 1000);
        CHECK(hash == texts[i].hash, "\"%s\": %016llx", texts[i].text, (unsigned long long)hash);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t hash = xxh64_of(data, sizes[i].bytes, 1000);
        CHECK(hash == sizes[i].hash, "%zu bytes: %016llx", sizes[i].bytes, (unsigned long long)hash);
    }
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 31 + i / 256);
    for (size_t part = 1; part < 70; part++)
        CHECK(xxh64_of(data, sizeof data, part) == xxh64_of(data, sizeof data, sizeof data), "by %zu", part);
}

int main(void)
{
    RUN(every_kind_gives_the_digests_of_the_standard);
    RUN(instructions_agree_with_portable_code_at_awkward_lengths);
    RUN(state_and_bytes_continue_elsewhere);
    RUN(xxh64_gives_the_published_values);
    return check_result();
}
