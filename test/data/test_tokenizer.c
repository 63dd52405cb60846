/* test_tokenizer.c - tokenizers of bytes and characters, UTF-8, the files of a tokenizer, and files that are refused.
 * ctest: label threaded */
#define _GNU_SOURCE
#include "data/text/encoder.h"
#include "data/text/utf8.h"
#include "test_data.h"

#include <pthread.h>
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

/* What Python 3.11 gives for bytes.decode("utf-8", errors="replace"): the number of U+FFFD, and the text with '?' for
 * each. */
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
        CHECK(lk__utf8_replace(cases[i].bytes, cases[i].count, NULL, &replaced) == used &&
              replaced == cases[i].replaced);
        CHECK(lk__utf8_replace(cases[i].bytes, cases[i].count, out, &replaced) == used &&
              memcmp(out, wanted, used) == 0);

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
    CHECK_FAILS(context, lk_tokenizer_open(context, scratch("missing"), &t), LK_ENOENT, "unknown tokenizer \"",
                "/missing\": use byte, a tokenizer.json, or a directory that has one");
    CHECK(!t);
    CHECK_FAILS(context, lk_tokenizer_open(context, "char", &t), LK_ENOENT, "char is built from a text");
    CHECK_FAILS(context, lk_tokenizer_open(context, directory, &t), LK_ENOENT, directory, "has no tokenizer.json");
    CHECK_FAILS(context, lk_tokenizer_open(context, "/dev/null", &t), LK_EFORMAT, "/dev/null is a device");
    free(directory);
}

/* ---- files that are refused ---- */

/* A small tokenizer.json of BPE; the parts that are NULL are as they should be. */
typedef struct json_parts {
    const char *head, *added, *normalizer, *pre_tokenizer, *post_processor, *decoder, *settings, *vocab, *merges;
} json_parts;

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define VOCABULARY "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\u0120\":5,\"\u0120a\":6}"

static const char *part(const char *given, const char *usual) { return given ? given : usual; }

static lk_status read_parts(const json_parts *p, lk_tokenizer **t)
{
    char *text;
    int   bytes =
        asprintf(&text,
                 "{%s\"truncation\":null,\"padding\":null,\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
                 "\"post_processor\":%s,\"decoder\":%s,"
                 "\"model\":{%s\"vocab\":%s,\"merges\":%s}}",
                 part(p->head, "\"version\":\"1.0\","), part(p->added, "[]"), part(p->normalizer, "null"),
                 part(p->pre_tokenizer, BYTE_LEVEL), part(p->post_processor, "null"),
                 part(p->decoder, "{\"type\":\"ByteLevel\"}"), part(p->settings, "\"type\":\"BPE\",\"dropout\":null,"),
                 part(p->vocab, VOCABULARY), part(p->merges, "[\"a b\",[\"ab\",\"c\"],[\"\u0120\",\"a\"]]"));
    CHECK(bytes > 0);
    char *exact = memcpy(malloc((size_t)bytes), text, (size_t)bytes); /* without a NUL behind it */
    *t = (lk_tokenizer *)1;
    lk_status status = lk_tokenizer_from_json(context, "t.json", exact, (size_t)bytes, t);
    CHECK((status == LK_OK) == (*t != NULL));
    free(text), free(exact);
    return status;
}

#define REFUSES(message, ...)                                                                          \
    do {                                                                                               \
        lk_tokenizer *refused_;                                                                        \
        CHECK_FAILS(context, read_parts(&(json_parts){__VA_ARGS__}, &refused_), LK_EFORMAT, "t.json: " message); \
    } while (0)

static void encodes(const json_parts *parts, const char *text, int count, const int32_t *wanted)
{
    lk_tokenizer *t;
    int32_t       ids[32];
    CHECK_OK(context, read_parts(parts, &t));
    CHECK(encode(t, text, strlen(text), ids, 32) == (size_t)count);
    CHECK(count == 0 || memcmp(ids, wanted, (size_t)count * sizeof *ids) == 0);
    lk_tokenizer_free(t);
}
#define ENCODES(text, list, ...) \
    encodes(&(json_parts){__VA_ARGS__}, text, (int)(sizeof((int32_t[])list) / 4), (int32_t[])list)
#define IDS(...) {__VA_ARGS__}

#define TEMPLATE(first)                                                                                      \
    "{\"type\":\"TemplateProcessing\",\"single\":[" first "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"       \
    "\"special_tokens\":{\"x\":{\"id\":\"x\",\"ids\":[99]},\"abc\":{\"id\":\"abc\",\"ids\":[4],\"tokens\":[\"abc\"]}}}"

/* The token before a text, which encoding does not add. */
static void begins(int32_t wanted, const char *post_processor)
{
    lk_tokenizer *t;
    CHECK_OK(context, read_parts(&(json_parts){.post_processor = post_processor}, &t));
    CHECK(lk_tokenizer_begin(t) == wanted);
    lk_tokenizer_free(t);
    encodes(&(json_parts){.post_processor = post_processor}, "abc", 1, (int32_t[]){4});
}

static void templates_give_what_stands_around_a_text(void)
{
    lk_tokenizer *t;
    int           before, after;
    CHECK_OK(
        context,
        read_parts(&(json_parts){.post_processor =
                                     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"b\"}},"
                                     "{\"SpecialToken\":{\"id\":\"two\"}},{\"Sequence\":{\"id\":\"A\"}},"
                                     "{\"SpecialToken\":{\"id\":\"b\"}}],\"special_tokens\":{\"b\":{\"ids\":[1]},"
                                     "\"two\":{\"ids\":[2,4]}}}"},
                   &t));
    const int32_t *prefix = lk_tokenizer_prefix(t, &before), *suffix = lk_tokenizer_suffix(t, &after);
    CHECK(before == 3 && prefix[0] == 1 && prefix[1] == 2 && prefix[2] == 4 && after == 1 && suffix[0] == 1);
    CHECK(lk_tokenizer_begin(t) == 1);
    lk_tokenizer_free(t);
}

static void parts_of_a_file_are_accepted(void)
{
    ENCODES("abc ab", IDS(4, 5, 3), 0);
    ENCODES("abc ab", IDS(4, 5, 3), .settings = ""); /* old files have no type */
    ENCODES("abc ab", IDS(4, 5, 3),
            .settings = "\"type\":\"BPE\",\"dropout\":0.0,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":"
                        "\"\",\"fuse_unk\":true,");
    ENCODES("abc", IDS(5, 4),
            .pre_tokenizer = "{\"type\":\"ByteLevel\",\"trim_offsets\":true}"); /* add_prefix_space is the default */
    ENCODES("aabc", IDS(0, 4), .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "]}");
    ENCODES(
        "abc", IDS(4),
        .normalizer =
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Sequence\",\"normalizers\":[]}]}");
    ENCODES("abc", IDS(4),
            .post_processor =
                "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\"}]}");
    begins(4, "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(
                  "{\"SpecialToken\":{\"id\":\"abc\"}},") "]}");
    begins(-1, TEMPLATE(""));
    templates_give_what_stands_around_a_text();
    begins(-1, "{\"type\":\"TemplateProcessing\",\"single\":3,\"special_tokens\":[]}");
    ENCODES("abc", IDS(4), .head = "");
    ENCODES("abc", IDS(0, 1, 2), .merges = "[]");
    /* the last of equal merges counts: "b c" comes first now */
    ENCODES("abc", IDS(0, 3), .vocab = "{\"a\":0,\"b\":1,\"c\":2,\"bc\":3,\"ab\":4}",
            .merges = "[\"a b\",\"b c\",\"a b\"]");
    /* ids with gaps, and added tokens: of the model, behind it, special or not */
    ENCODES("a<x>b<y> a", IDS(0, 3, 1, 4, 9, 0),
            .added = "[{\"id\":3,\"content\":\"<x>\",\"special\":true},{\"id\":4,\"content\":\"<y>\"}]",
            .vocab = "{\"a\":0,\"b\":1,\"<x>\":3,\"\u0120\":9}", .merges = "[]");
}

static void parts_of_a_file_that_are_not_supported_are_named(void)
{
    REFUSES("version is \"2.0\", which is not supported", .head = "\"version\":\"2.0\",");
    REFUSES("normalizer is {\"type\":\"NFKC\"}, which is not supported: expected NFC or none",
            .normalizer = "{\"type\":\"NFKC\"}");
    REFUSES("normalizer is {\"type\":\"Lowercase\"}",
            .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}");
    REFUSES("normalizer is {\"type\":\"Sequence\"}", .normalizer = "{\"type\":\"Sequence\"}");
    REFUSES("pre_tokenizer is {\"type\":\"Metaspace\"",
            .pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}");
    REFUSES("a missing pre_tokenizer", .pre_tokenizer = "null");
    REFUSES("pre_tokenizer is {\"type\":\"Digits\"",
            .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}," BYTE_LEVEL "]}");
    REFUSES("pre_tokenizer.pattern.Regex is \"\\\\p{L}+\"",
            .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                             "\"\\\\p{L}+\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}");
    REFUSES("pre_tokenizer is {\"type\":\"Split\"",
            .pre_tokenizer =
                "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\",\"invert\":false}");
    REFUSES(
        "pre_tokenizer is {\"type\":\"Split\"",
        .pre_tokenizer =
            "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\s\\\\S]\"},\"behavior\":\"Removed\",\"invert\":false}");
    REFUSES("pre_tokenizer.use_regex is 1, which is not supported: it must be true or false",
            .pre_tokenizer = "{\"type\":\"ByteLevel\",\"use_regex\":1}");
    REFUSES("pre_tokenizer is {\"type\":\"Sequence\"",
            .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}");
    REFUSES("pre_tokenizer is {\"type\":\"ByteLevel\",\"add_prefix_space\":true}, which is not supported: after Digits",
            .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":"
                             "true},{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]}");
    REFUSES("pre_tokenizer is {\"type\":\"Sequence\",\"pretokenizers\":[]}",
            .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[]}");
    REFUSES("the post_processor template uses token 99, which is not in the vocabulary",
            .post_processor = TEMPLATE("{\"SpecialToken\":{\"id\":\"x\"}},"));
    REFUSES("post_processor is {\"type\":\"TemplateProcessing\"",
            .post_processor = TEMPLATE("{\"SpecialToken\":{\"id\":\"absent\"}},"));
    REFUSES("post_processor is {\"type\":\"TemplateProcessing\"",
            .post_processor = TEMPLATE("{\"Sequence\":{\"id\":\"A\"}},"));
    REFUSES("post_processor is {\"type\":\"BertProcessing\"}", .post_processor = "{\"type\":\"BertProcessing\"}");
    REFUSES("decoder is {\"type\":\"WordPiece\"}, which is not supported: expected ByteLevel",
            .decoder = "{\"type\":\"WordPiece\"}");
    REFUSES("there is no decoder", .decoder = "null");
    REFUSES("model.type is \"Unigram\", which is not supported", .settings = "\"type\":\"Unigram\",");
    REFUSES("model.type is \"WordLevel\", which is not supported: expected BPE with ByteLevel",
            .settings = "\"type\":\"WordLevel\",");
    REFUSES("model.type is \"WordPiece\"", .settings = "\"type\":\"WordPiece\",");
    REFUSES("model.dropout is 0.1", .settings = "\"dropout\":0.1,");
    REFUSES("model.continuing_subword_prefix is \"##\"", .settings = "\"continuing_subword_prefix\":\"##\",");
    REFUSES("model.end_of_word_suffix is \"</w>\"", .settings = "\"end_of_word_suffix\":\"</w>\",");
    REFUSES("model.byte_fallback is true", .settings = "\"byte_fallback\":true,");
    REFUSES("model.ignore_merges is \"yes\"", .settings = "\"ignore_merges\":\"yes\",");
    REFUSES("model.unk_token is \"a\", which is not supported: expected null, unless",
            .settings = "\"unk_token\":\"a\",");
    REFUSES("added_tokens is {\"id\":7,\"content\":\"x\",\"single_word\":true}",
            .added = "[{\"id\":7,\"content\":\"x\",\"single_word\":true}]");
}

static void hostile_files_are_refused(void)
{
    lk_tokenizer *t;
    char          deep[300];
    REFUSES("invalid JSON: expected a key in quotes at byte 1", .head = "]");
    CHECK_FAILS(context, lk_tokenizer_from_json(context, "t.json", "", 0, &t), LK_EFORMAT, "t.json: invalid JSON");
    CHECK_FAILS(context, lk_tokenizer_from_json(context, "t.json", "[]", 2, &t), LK_EFORMAT,
                "t.json: not a Hugging Face tokenizer.json");
    CHECK_FAILS(context, lk_tokenizer_from_json(context, "t.json", "{\"model\":3}", 11, &t), LK_EFORMAT, "t.json: ");
    memset(deep, '[', sizeof deep);
    deep[299] = 0;
    REFUSES("invalid JSON: nested too deeply", .normalizer = deep);
    REFUSES("model.vocab is empty", .vocab = "{}");
    REFUSES("model.vocab is missing, or is not an object", .vocab = "[]");
    REFUSES("model.vocab: token \"b\" has the id 4000000000, which is out of range for 2 tokens",
            .vocab = "{\"a\":0,\"b\":4000000000}");
    REFUSES("model.vocab: token \"b\" has the id 65538, which is out of range", .vocab = "{\"a\":0,\"b\":65538}");
    REFUSES("model.vocab: token \"a\" has the id -1", .vocab = "{\"a\":-1}");
    REFUSES("an id in model.vocab is 1.5", .vocab = "{\"a\":1.5}");
    REFUSES("an id in model.vocab is 99999999999999999999", .vocab = "{\"a\":99999999999999999999}");
    REFUSES("model.vocab: token \"a\" is listed twice", .vocab = "{\"a\":0,\"a\":1}");
    REFUSES("model.vocab: token \"b\" has the id 0, which another token already has", .vocab = "{\"a\":0,\"b\":0}");
    REFUSES("model.merges, 0: a merge is \"a x\", which is not supported: the merged token is not in model.vocab",
            .merges = "[\"a x\"]");
    REFUSES("model.merges, 1: a merge is \"b c\"", .merges = "[\"a b\",\"b c\"]");
    REFUSES("model.merges, 0: a merge is [\"xx\",\"a\"], which is not supported: one of its tokens",
            .vocab = "{\"a\":0,\"xxa\":1}", .merges = "[[\"xx\",\"a\"]]");
    REFUSES("model.merges, 0: a merge is \"ab\", which is not supported: it must be two tokens", .merges = "[\"ab\"]");
    REFUSES("model.merges, 0: a merge is \"a b c\"", .merges = "[\"a b c\"]");
    REFUSES("model.merges, 0: a merge is [\"a\",\"b\",\"c\"]", .merges = "[[\"a\",\"b\",\"c\"]]");
    REFUSES("model.merges, 0: a merge is [\"a\"]", .merges = "[[\"a\"]]");
    REFUSES("model.merges, 0: a token of a merge is 1", .merges = "[[1,2]]");
    REFUSES("model.merges, 0: a merge is 7", .merges = "[7]");
    REFUSES("model.merges is missing, or is not a list", .merges = "{}");
    REFUSES("added_tokens is 1, which is not supported: it must be a list", .added = "1");
    REFUSES("added_tokens is 1, which is not supported: each token needs a \"content\"", .added = "[1]");
    REFUSES("added_tokens is {\"content\":\"x\"}, which is not supported: each token needs an integer \"id\"",
            .added = "[{\"content\":\"x\"}]");
    REFUSES("added_tokens is {\"id\":7,\"content\":\"\"}", .added = "[{\"id\":7,\"content\":\"\"}]");
    REFUSES("added_tokens: \"x\" has the id 9; expected 7", .added = "[{\"id\":9,\"content\":\"x\"}]");
    REFUSES("added_tokens: \"a\" has the id 7; expected 0", .added = "[{\"id\":7,\"content\":\"a\"}]");
    /* merges that lead back to a token that was merged: each still makes the word shorter */
    ENCODES("aaaaaaaa", IDS(1, 1, 1, 1), .vocab = "{\"a\":0,\"aa\":1,\"\":2}",
            .merges = "[[\"\",\"aa\"],[\"a\",\"a\"],[\"aa\",\"\"],[\"\",\"\"]]");
}

static void a_byte_outside_of_the_vocabulary_is_named(void)
{
    lk_tokenizer *t;
    size_t        count;
    int32_t       ids[8];
    CHECK_OK(context, read_parts(&(json_parts){0}, &t));
    CHECK_FAILS(context, lk_tokenizer_encode(t, "abcz", 4, ids, 8, &count, NULL), LK_EINVAL,
                "the byte 0x7a of the text is not in the tokenizer's vocabulary");
    lk_tokenizer_free(t);
}

/* ---- the files beside, and the end token ---- */

static void the_end_token_is_that_of_the_config(void)
{
    static const struct {
        const char *config;
        int32_t     end;
    } cases[] = {{NULL, 7},
                 {"{\"eos_token\":\"<e>\"}", 8},
                 {"{\"eos_token\":{\"content\":\"<e>\",\"lstrip\":false}}", 8},
                 {"{\"eos_token\":null}", 7},
                 {"{\"eos_token\":\"<none>\"}", 7}};
    json_parts parts = {
        .added = "[{\"id\":7,\"content\":\"</s>\",\"special\":true},{\"id\":8,\"content\":\"<e>\",\"special\":true}]"};
    lk_tokenizer *t;
    int           count;
    char         *directory = strdup(scratch("end-token")), *json = strdup(scratch("end-token/tokenizer.json")),
         *config = strdup(scratch("end-token/tokenizer_config.json")),
         *map = strdup(scratch("end-token/special_tokens_map.json"));
    mkdir(directory, 0777);
    CHECK_OK(context, read_parts(&parts, &t));
    const lk_tokenizer_file *files = lk_tokenizer_files(t, &count);
    CHECK(count == 2 && strstr(files[1].text, "\"eos_token\": \"</s>\""));
    CHECK(lk_tokenizer_is_special(t, 7) && !lk_tokenizer_is_special(t, 6));
    write_file(json, files[0].text, files[0].bytes);
    lk_tokenizer_free(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].config) write_file(config, cases[i].config, strlen(cases[i].config));
        if (i == 4) write_file(map, "{}", 2);
        CHECK_OK(context, lk_tokenizer_open(context, directory, &t));
        CHECK(lk_tokenizer_end(t) == cases[i].end);
        files = lk_tokenizer_files(t, &count);
        CHECK(count == (i == 4 ? 3 : 2) && (i == 0 || strcmp(files[1].text, cases[i].config) == 0));
        CHECK(i < 4 || (strcmp(files[2].name, "special_tokens_map.json") == 0 && strcmp(files[2].text, "{}") == 0));
        lk_tokenizer_free(t);
    }
    write_file(config, "{,}", 3);
    CHECK_FAILS(context, lk_tokenizer_open(context, directory, &t), LK_EFORMAT, "tokenizer_config.json: invalid JSON");
    CHECK(!t);
    free(directory), free(json), free(config), free(map);
}

/* ---- memory, and long words ---- */

static lk_status use_a_tokenizer(lk_context *other)
{
    static const char text[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<x>\"}],\"normalizer\":{\"type\":\"NFC\"},\"pre_"
        "tokenizer\":" BYTE_LEVEL ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"ignore_merges\":true,\"vocab\":{"
        "\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3},"
        "\"merges\":[\"a b\"]}}";
    lk_tokenizer *t = NULL, *characters = NULL;
    int32_t       ids[128];
    char          word[100];
    size_t        count;
    memset(word, 'a', sizeof word);
    lk_status status = lk_tokenizer_from_json(other, "t.json", text, sizeof text - 1, &t);
    if (status >= 0) status = lk_tokenizer_encode(t, "ab a<x>b", 8, ids, 128, &count, NULL);
    if (status >= 0) status = lk_tokenizer_encode(t, word, sizeof word, ids, 128, &count, NULL);
    if (status >= 0) status = lk_tokenizer_from_text(other, "ab", 2, &characters);
    if (status >= 0) status = lk_tokenizer_encode(characters, "ab", 2, ids, 8, &count, NULL);
    lk_tokenizer_free(t);
    lk_tokenizer_free(characters);
    return status;
}

static void every_allocation_may_fail(void) { CHECK(fail_each_allocation(use_a_tokenizer) > 20); }

/* One word of any length takes n log n, not n^2: this would take hours. And long words give what short ones do. */
static void long_words_are_merged_as_short_ones(void)
{
    enum { LENGTH = 3000000 };
    lk_tokenizer *t;
    char         *text = malloc(LENGTH);
    int32_t      *ids = malloc(LENGTH * sizeof *ids);
    size_t        count;
    CHECK_OK(context, read_parts(&(json_parts){0}, &t));
    for (size_t i = 0; i < LENGTH; i++) text[i] = "abc"[i % 3];
    CHECK_OK(context, lk_tokenizer_encode(t, text, LENGTH, ids, LENGTH, &count, NULL));
    CHECK(count == LENGTH / 3);
    for (size_t i = 0; i < count; i++) CHECK(ids[i] == 4);
    for (size_t length = 40; length < 60; length++) { /* around the length from which a heap is used */
        size_t wanted = length / 3 + (length % 3 == 1 ? 1 : length % 3 == 2 ? 1 : 0);
        CHECK_OK(context, lk_tokenizer_encode(t, text, length, ids, LENGTH, &count, NULL));
        CHECK(count == wanted && ids[0] == 4 && ids[count - 1] == (length % 3 == 0 ? 4 : length % 3 == 1 ? 0 : 3));
    }
    lk_tokenizer_free(t);
    free(text), free(ids);
}

/* ---- threads ---- */

enum { THREADS = 4, TEXT = 20000 };
typedef struct encoding {
    const lk_tokenizer *tokenizer;
    const char         *text;
    int32_t            *ids;
    size_t              count;
} encoding;

static void *encode_in_thread(void *user)
{
    encoding *e = user;
    size_t    count;
    for (int i = 0; i < 20; i++) { /* mistakes of one thread are not messages of another */
        if (lk_tokenizer_encode(e->tokenizer, e->text, TEXT, e->ids, TEXT, &e->count, NULL) < 0) abort();
        if (lk_tokenizer_encode(e->tokenizer, "z", 1, e->ids, 0, &count, NULL) != LK_EINVAL) abort();
    }
    return NULL;
}

static void threads_share_a_tokenizer(void)
{
    lk_tokenizer *t;
    pthread_t     threads[THREADS];
    encoding      each[THREADS];
    char         *text = malloc(TEXT);
    for (size_t i = 0; i < TEXT; i++) text[i] = "abc a"[i * i % 7 % 5];
    CHECK_OK(context, read_parts(&(json_parts){.settings = "\"ignore_merges\":true,"}, &t));
    for (int i = 0; i < THREADS; i++) {
        each[i] = (encoding){.tokenizer = t, .text = text, .ids = malloc(TEXT * sizeof(int32_t))};
        CHECK(pthread_create(&threads[i], NULL, encode_in_thread, &each[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(each[i].count == each[0].count && each[0].count > 0 && each[0].count < TEXT);
        CHECK(memcmp(each[i].ids, each[0].ids, each[0].count * sizeof(int32_t)) == 0);
    }
    for (int i = 0; i < THREADS; i++) free(each[i].ids);
    free(text);
    lk_tokenizer_free(t);
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
    RUN(parts_of_a_file_are_accepted);
    RUN(parts_of_a_file_that_are_not_supported_are_named);
    RUN(hostile_files_are_refused);
    RUN(a_byte_outside_of_the_vocabulary_is_named);
    RUN(the_end_token_is_that_of_the_config);
    RUN(every_allocation_may_fail);
    RUN(long_words_are_merged_as_short_ones);
    RUN(threads_share_a_tokenizer);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held);
    free_context(context);
    return 0;
}
