/* test_tokenizer.c - tokenizers of bytes and characters, UTF-8, the files of a tokenizer, and files that are refused. */
#define _GNU_SOURCE
#include "data/text/encoder.h"
#include "data/text/utf8.h"
#include "test_data.h"

#include <sys/stat.h>

static lk_context *context;

/* Encodes in one call; `ids` is large enough. */
static size_t encode(const lk_tokenizer *t, const char *text, size_t bytes, int32_t *ids, size_t room)
{
    size_t count, invalid;
    CHECK_OK(context, lk_tokenizer_encode(t, text, bytes, ids, room, &count, &invalid));
    return count;
}

static void decode_gives_back(const lk_tokenizer *t, const char *text, size_t bytes)
{
    int32_t *ids = malloc((bytes + 1) * sizeof *ids);
    char    *back = malloc(bytes + 1);
    size_t   count = encode(t, text, bytes, ids, bytes + 1);
    CHECK(lk_tokenizer_decode(t, ids, count, NULL, 0) == bytes);
    CHECK(lk_tokenizer_decode(t, ids, count, back, bytes) == bytes && memcmp(back, text, bytes) == 0);
    free(ids), free(back);
}

static void a_byte_is_its_own_id(void)
{
    lk_tokenizer *t;
    int32_t       ids[256];
    char          text[256];
    size_t        count, invalid = 7, bytes;
    CHECK_OK(context, lk_tokenizer_open(context, "byte", &t));
    CHECK(strcmp(lk_tokenizer_kind(t), "byte") == 0 && lk_tokenizer_vocabulary(t) == 256 && lk_tokenizer_end(t) == -1);
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    CHECK_OK(context, lk_tokenizer_encode(t, text, 256, ids, 256, &count, &invalid));
    CHECK(count == 256 && invalid == 0);
    for (int i = 0; i < 256; i++) {
        CHECK(ids[i] == i);
        CHECK(lk_tokenizer_token(t, i, &bytes)[0] == (char)i && bytes == 1 && !lk_tokenizer_is_special(t, i));
    }
    decode_gives_back(t, text, 256);
    /* GPT-2's alphabet: visible bytes spell themselves, others from U+0100 on */
    CHECK(lk_tokenizer_find(t, "A") == 'A' && lk_tokenizer_find(t, "\xc4\xa0") == ' ' &&
          lk_tokenizer_find(t, "\xc4\x8a") == '\n');
    CHECK(lk_tokenizer_find(t, "\xc3\xa9") == 0xe9 && lk_tokenizer_find(t, "\xc5\x83") == 0xad);
    CHECK(lk_tokenizer_find(t, " ") == -1 && lk_tokenizer_find(t, "") == -1);
    CHECK(!lk_tokenizer_token(t, -1, NULL) && !lk_tokenizer_token(t, 256, &bytes) && bytes == 0);
    CHECK(!lk_tokenizer_is_special(t, -1) && !lk_tokenizer_is_special(t, 256));
    lk_tokenizer_free(t);
}

static void characters_are_sorted_by_code_point(void)
{
    static const char text[] = "b\xc3\xa9\xf0\x9f\x98\x80 a\n\xe4\xba\xba"
                               "ab\0"; /* b é 😀 space a \n 人 a b NUL */
    lk_tokenizer     *t;
    int32_t           ids[16];
    static const int  wanted[] = {4, 5, 7, 2, 3, 1, 6, 3, 4, 0};
    CHECK_OK(context, lk_tokenizer_from_text(context, text, sizeof text - 1, &t));
    CHECK(strcmp(lk_tokenizer_kind(t), "char") == 0 && lk_tokenizer_vocabulary(t) == 8 && lk_tokenizer_end(t) == -1);
    CHECK(encode(t, text, sizeof text - 1, ids, 16) == 10);
    for (int i = 0; i < 10; i++) CHECK(ids[i] == wanted[i]);
    decode_gives_back(t, text, sizeof text - 1);
    CHECK(lk_tokenizer_find(t, "\xe4\xba\xba") == 6 && lk_tokenizer_find(t, "x") == -1);

    size_t count, invalid;
    CHECK_FAILS(context, lk_tokenizer_encode(t, "ab\xc3\xa4", 4, ids, 16, &count, &invalid), LK_EINVAL,
                "the character \"\xc3\xa4\" (U+00E4) at byte 2 of the text is not in the tokenizer's "
                "vocabulary of 8 characters");
    CHECK_FAILS(context, lk_tokenizer_encode(t, "a\tb", 3, ids, 16, &count, NULL), LK_EINVAL, "\"\\t\" (U+0009)");
    CHECK(lk_tokenizer_encode(t, "", 0, NULL, 0, &count, NULL) == LK_OK && count == 0);
    lk_tokenizer_free(t);
    CHECK(lk_tokenizer_from_text(context, "", 0, &t) == LK_EINVAL && !t);
}

static void nothing_is_stored_past_the_room(void)
{
    lk_tokenizer *t;
    int32_t       ids[4] = {-1, -1, -1, -1};
    char          text[4] = "....";
    size_t        count;
    CHECK_OK(context, lk_tokenizer_open(context, "byte", &t));
    CHECK_OK(context, lk_tokenizer_encode(t, "abcdef", 6, NULL, 0, &count, NULL));
    CHECK(count == 6);
    CHECK_OK(context, lk_tokenizer_encode(t, "abcdef", 6, ids, 3, &count, NULL));
    CHECK(count == 6 && ids[2] == 'c' && ids[3] == -1);
    CHECK(lk_tokenizer_decode(t, (int32_t[]){'x', 999, 'y', -5, 'z'}, 5, text, 2) == 3);
    CHECK(memcmp(text, "xy..", 4) == 0);
    lk_tokenizer_free(t);
}

/* What Python 3.11 gives for bytes.decode("utf-8", errors="replace"): the number of U+FFFD, and the text with '?' for each. */
static void invalid_utf8_is_replaced_as_in_python(void)
{
    static const struct {
        const char *bytes;
        size_t      count, replaced;
        const char *text;
    } cases[] = {
        {"abc", 3, 0, "abc"},
        {"a\xff"
         "b",
         3, 1, "a?b"},
        {"\xc3", 1, 1, "?"},
        {"\xc3(", 2, 1, "?("},
        {"\xe2\x82", 2, 1, "?"},
        {"\xe2\x82"
         "a",
         3, 1, "?a"},
        {"\xe2(\xa1", 3, 2, "?(?"},
        {"\xf0\x9f\x98", 3, 1, "?"},
        {"\xf0\x9f\x98"
         "A",
         4, 1, "?A"},
        {"\xf0\x80\x80\x80", 4, 4, "????"}, /* overlong */
        {"\xed\xa0\x80", 3, 3, "???"},      /* a surrogate */
        {"\xf4\x90\x80\x80", 4, 4, "????"}, /* past U+10FFFF */
        {"\xc0\xaf", 2, 2, "??"},
        {"\x80\xbf", 2, 2, "??"},
        {"\xf1\x80\x80\xe1\x80\xc2z", 7, 3, "???z"}, /* Unicode 15, table 3-11 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char   out[32], wanted[32];
        size_t replaced, used = 0;
        for (const char *c = cases[i].text; *c; c++) {
            if (*c == '?')
                memcpy(wanted + used, "\xef\xbf\xbd", 3);
            else
                wanted[used] = *c;
            used += *c == '?' ? 3 : 1;
        }
        CHECK(lk__utf8_replace(cases[i].bytes, cases[i].count, NULL, &replaced) == used && replaced == cases[i].replaced);
        CHECK(lk__utf8_replace(cases[i].bytes, cases[i].count, out, &replaced) == used && memcmp(out, wanted, used) == 0);

        lk_tokenizer *t;
        int32_t       ids[32];
        size_t        count, invalid;
        CHECK_OK(context, lk_tokenizer_from_text(context, cases[i].bytes, cases[i].count, &t));
        CHECK_OK(context, lk_tokenizer_encode(t, cases[i].bytes, cases[i].count, ids, 32, &count, &invalid));
        CHECK(invalid == cases[i].replaced && count == strlen(cases[i].text));
        CHECK(lk_tokenizer_decode(t, ids, count, out, sizeof out) == used && memcmp(out, wanted, used) == 0);
        lk_tokenizer_free(t);
    }
}

/* The files of t give a tokenizer of the same kind, with the same ids, and hand the same files on. */
static void check_files(const lk_tokenizer *t, const char *text, size_t bytes)
{
    int                      count, count_read;
    const lk_tokenizer_file *files = lk_tokenizer_files(t, &count), *read;
    lk_tokenizer            *again;
    char                    *directory = strdup(scratch("tokenizer")), path[2048];
    mkdir(directory, 0777);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i].name);
        FILE *file = fopen(path, "wb");
        CHECK(file && fwrite(files[i].text, 1, files[i].bytes, file) == files[i].bytes && fclose(file) == 0);
        CHECK(files[i].text[files[i].bytes] == 0);
    }
    CHECK(count == 2 && strcmp(files[0].name, "tokenizer.json") == 0 &&
          strcmp(files[1].name, "tokenizer_config.json") == 0);
    for (int way = 0; way < 3; way++) {
        snprintf(path, sizeof path, "%s%s", directory, way == 1 ? "/tokenizer.json" : "");
        if (way < 2)
            CHECK_OK(context, lk_tokenizer_open(context, path, &again));
        else
            CHECK_OK(context, lk_tokenizer_from_json(context, "file", files[0].text, files[0].bytes, &again));
        CHECK(strcmp(lk_tokenizer_kind(t), lk_tokenizer_kind(again)) == 0 &&
              lk_tokenizer_vocabulary(t) == lk_tokenizer_vocabulary(again));
        int32_t *ids = malloc(2 * (bytes + 1) * sizeof *ids);
        size_t   n = encode(t, text, bytes, ids, bytes);
        CHECK(encode(again, text, bytes, ids + bytes, bytes) == n && memcmp(ids, ids + bytes, n * sizeof *ids) == 0);
        free(ids);
        read = lk_tokenizer_files(again, &count_read);
        CHECK(count_read == count);
        for (int i = 0; i < count && i < count_read; i++)
            CHECK(strcmp(read[i].name, files[i].name) == 0 && read[i].bytes == files[i].bytes &&
                  memcmp(read[i].text, files[i].text, files[i].bytes) == 0);
        lk_tokenizer_free(again);
    }
    free(directory);
}

static void files_give_the_same_tokenizer(void)
{
    static const char text[] = "He said: \"\\ \x01 \x7f \n\t\xc2\xa0\xe2\x80\xa8\xf0\x9f\x98\x80\"";
    lk_tokenizer     *t;
    CHECK_OK(context, lk_tokenizer_open(context, "byte", &t));
    check_files(t, text, sizeof text - 1);
    lk_tokenizer_free(t);
    CHECK_OK(context, lk_tokenizer_from_text(context, text, sizeof text, &t)); /* with the NUL */
    check_files(t, text, sizeof text);
    lk_tokenizer_free(t);
}

static void names_that_are_no_tokenizer_are_refused(void)
{
    lk_tokenizer *t;
    char         *directory = strdup(scratch("no-tokenizer"));
    mkdir(directory, 0777);
    CHECK_FAILS(context, lk_tokenizer_open(context, scratch("missing"), &t), LK_ENOENT, "there is no tokenizer \"",
                "/missing\": give byte, a tokenizer.json, or a directory that has one");
    CHECK(!t);
    CHECK_FAILS(context, lk_tokenizer_open(context, "char", &t), LK_ENOENT, "char needs the text");
    CHECK_FAILS(context, lk_tokenizer_open(context, directory, &t), LK_ENOENT, directory, "has no tokenizer.json");
    CHECK_FAILS(context, lk_tokenizer_open(context, "/dev/null", &t), LK_EFORMAT, "/dev/null is a device");
    free(directory);
}

int main(void)
{
    context = make_context();
    make_scratch();
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    RUN(a_byte_is_its_own_id);
    RUN(characters_are_sorted_by_code_point);
    RUN(nothing_is_stored_past_the_room);
    RUN(invalid_utf8_is_replaced_as_in_python);
    RUN(files_give_the_same_tokenizer);
    RUN(names_that_are_no_tokenizer_are_refused);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held);
    free_context(context);
    return 0;
}
