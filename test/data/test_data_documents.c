/* test_data_documents.c - texts, folders of texts and JSONL as data sets: the tokens of documents, their order and
 * their ends, escapes and line ends, classification, mistakes with their line. */
#define _GNU_SOURCE
#include "text_files.h"

#include "data/text/corpus_encode.h"

static char log_text[4096];

static void keep_log(void *user, lk_log_level level, const char *text)
{
    (void)user, (void)level;
    snprintf(log_text, sizeof log_text, "%s", text);
}

static lk_status open_text(const char *kind, const char *text, size_t bytes, lk_split split, const lk_open_options *o,
                           lk_dataset **d)
{
    write_file(place("data"), text, bytes);
    return open_as(kind, place("data"), split, o, d);
}

/* ---- texts ---- */

static const char shakespeare[] =
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";

/* The last tenth is the validation set; characters are numbered in the order of their codes over the whole text. */
static void characters_are_tokens(void)
{
    static const char text[] =
        "zebra äb€\U0001F600\n\n zebra ab€ \xef\xbb\xbf again, again and again to the end \r\n of all";
    uint32_t codes[256], sorted[256];
    int      n = 0, distinct = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p;) { /* well-formed UTF-8 */
        int      more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
        uint32_t code = more ? *p & (0x3f >> more) : *p;
        for (p++; more-- > 0; p++) code = code << 6 | (*p & 0x3f);
        codes[n++] = code;
    }
    for (uint32_t code = 0; code < 0x110000; code++)
        for (int i = 0; i < n; i++)
            if (codes[i] == code) {
                sorted[distinct++] = code;
                break;
            }
    lk_open_options o = options_of("char", 5);
    lk_dataset     *d;
    lk_text_info    info;
    int32_t         got[256];
    int64_t         kept = (int64_t)(n * 0.9);
    for (int split = 0; split < 2; split++) {
        CHECK_OK(context, open_text("text", text, sizeof text - 1, split ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_text(d, &info) && info.vocabulary == distinct && info.tokens == (split ? n - kept : kept));
        CHECK(strcmp(lk_tokenizer_kind(info.tokenizer), "char") == 0 && lk_dataset_fields(d) == 2);
        int64_t first = split ? kept : 0, bytes = 0;
        list_tokens(d, !split, got);
        for (int64_t i = 0; i < info.tokens - 1; i++) CHECK(sorted[got[i]] == codes[first + i]);
        for (int64_t i = 0; i < info.tokens; i++) {
            uint32_t code = codes[first + i];
            bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        }
        CHECK(info.bytes == bytes);
        lk_dataset_free(d);
    }
    /* A character of the validation file alone is in the vocabulary of both sets. */
    char name[1200];
    write_file(place("a.txt"), "abcabcabcabc", 12);
    write_file(place("b.txt"), "abxabxabx", 9);
    snprintf(name, sizeof name, "text:%s,%s", place("a.txt"), place("b.txt"));
    for (int split = 0; split < 2; split++) {
        CHECK_OK(context, lk_dataset_open(context, name, split ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_text(d, &info) && info.vocabulary == 4 && info.tokens == (split ? 9 : 12));
        list_tokens(d, !split, got);
        CHECK(got[0] == 0 && got[1] == 1 && got[2] == (split ? 3 : 2));
        lk_dataset_free(d);
    }
}

/* Bytes are tokens, of a mapped file and of a gzip file alike: BOM and CRLF stay. */
static void bytes_are_tokens(void)
{
    static const char text[] = "\xef\xbb\xbf"
                               "one\r\ntwo\r\n\xff\xfe three\0four and the rest of the line";
    lk_open_options   o = options_of("byte", 4);
    lk_dataset       *d;
    lk_text_info      info;
    int32_t           got[256];
    o.holdout = 0.2;
    for (int gzip = 0; gzip < 2; gzip++)
        for (int split = 0; split < 2; split++) {
            int64_t all = sizeof text - 1, kept = (int64_t)((double)all * 0.8);
            (gzip ? write_gzip : write_file)(place("bytes"), text, (size_t)all);
            o.tokenizer = gzip ? NULL : "byte"; /* the same */
            CHECK_OK(context, open_as("text", place("bytes"), split ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, &o, &d));
            CHECK(lk_dataset_text(d, &info) && info.tokens == (split ? all - kept : kept) && info.bytes == info.tokens);
            CHECK(lk_context_memory(context, LK_MEMORY_DATA) == (gzip ? (size_t)info.tokens : 0));
            list_tokens(d, !split, got);
            for (int64_t i = 0; i < info.tokens - 1; i++) CHECK(got[i] == (unsigned char)text[(split ? kept : 0) + i]);
            lk_dataset_free(d);
        }
    o.holdout = -1; /* nothing, though a tenth is the default */
    CHECK_OK(context, open_as("text", place("bytes"), LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == (int64_t)sizeof text - 1);
    lk_dataset_free(d);
    CHECK(open_as("text", place("bytes"), LK_SPLIT_TEST, &o, &d) == LK_END);
}

/* What is not UTF-8 becomes U+FFFD, which is said once. */
static void invalid_utf8_is_replaced_and_said(void)
{
    static const char text[] = "a\xff"
                               "b\xc3(\xe2\x82 and more text, all of it valid";
    static const char wanted[] = "a\xef\xbf\xbd"
                                 "b\xef\xbf\xbd(\xef\xbf\xbd and more text, all of it valid";
    lk_open_options   o = options_of(place("tokenizer.json"), 4);
    lk_dataset       *d;
    lk_text_info      info;
    int32_t           got[256];
    write_byte_tokenizer(place("tokenizer.json"));
    log_text[0] = 0;
    CHECK_OK(context, open_text("text", text, sizeof text - 1, LK_SPLIT_TRAIN, &o, &d));
    CHECK(strstr(log_text, "data: 3 invalid UTF-8 sequences were each replaced with U+FFFD"));
    CHECK(lk_dataset_text(d, &info));
    list_tokens(d, true, got);
    for (int64_t i = 0; i + 1 < info.tokens; i++) CHECK(got[i] == (unsigned char)wanted[i]);
    lk_dataset_free(d);
    log_text[0] = 0;
    CHECK_OK(context, open_text("text", text, sizeof text - 1, LK_SPLIT_TEST, &o, &d));
    CHECK(log_text[0] == 0);
    lk_dataset_free(d);
}

/* Files of a directory are documents, in the order of their paths; hidden and empty ones are none. */
static void files_of_a_directory_are_documents(void)
{
    char            root[512];
    int32_t         got[256], wanted[256];
    int             n = 0;
    lk_dataset     *d;
    lk_text_info    info;
    lk_open_options o = options_of(place("tokenizer.json"), 7);
    snprintf(root, sizeof root, "%s", place("folder"));
    write_byte_tokenizer(place("tokenizer.json"));
    mkdir(root, 0700), mkdir(place("folder/sub"), 0700);
    write_file(place("folder/b.txt"), "second", 6);
    write_file(place("folder/a.md"), "first", 5);
    write_file(place("folder/empty"), "", 0);
    write_file(place("folder/.hidden"), "no", 2);
    write_file(place("folder/sub/c.txt"), "third file", 10);
    write_file(place("folder/d.jsonl"), "{\"text\": \"x\"}\n{\"text\": \"yz\"}\n", 29);
    static const char *const documents[] = {"first", "second", "x", "yz", "third file"};
    for (int i = 0; i < 5; i++) {
        for (const char *p = documents[i]; *p; p++) wanted[n++] = *p;
        wanted[n++] = TEXT_END;
    }
    o.holdout = 1e-9; /* all of it */
    CHECK_OK(context, open_as("text", root, LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == n - 1 && lk_dataset_fields(d) == 4 && info.vocabulary == 257);
    list_tokens(d, false, got);
    for (int i = 0; i < n - 2; i++) CHECK(got[i] == wanted[i]);
    CHECK(strstr(lk_dataset_sample_name(d, 0), "folder/a.md: token 0"));
    CHECK(strstr(lk_dataset_sample_name(d, 1), "folder/b.txt: token 1"));
    CHECK(strstr(lk_dataset_sample_name(d, 3), "folder/sub/c.txt: token 3"));
    lk_dataset_free(d);
    o.packing = -1; /* in windows, the end tokens are still there */
    CHECK_OK(context, open_as("text", root, LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_fields(d) == 2 && lk_dataset_count(d) == n - 1 - 7);
    list_tokens(d, true, got);
    for (int i = 0; i < n - 2; i++) CHECK(got[i] == wanted[i]);
    lk_dataset_free(d);
    write_file(place("folder/z.png"), "\x89PNG\r\n\x1a\n\0\0", 10);
    CHECK_FAILS(context, open_as("text", root, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT, "folder/z.png contains a NUL byte");
    o.tokenizer = "byte", o.packing = 0;
    CHECK_FAILS(context, open_as("text", root, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL,
                "end token, which byte does not have", "--packing windows");
}

/* A single text has no end token in windows, and one when it is packed. It is a text whatever its name is. */
static void a_single_text_is_in_windows(void)
{
    lk_open_options o = options_of(place("tokenizer.json"), 16);
    lk_dataset     *d;
    lk_text_info    info;
    write_byte_tokenizer(place("tokenizer.json"));
    for (int packing = -1; packing <= 1; packing++) {
        int64_t all = (int64_t)sizeof shakespeare - 1 + (packing > 0);
        o.packing = packing;
        CHECK_OK(context, open_text("text", shakespeare, sizeof shakespeare - 1, LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_text(d, &info) && info.tokens == (int64_t)((double)all * 0.9));
        CHECK(lk_dataset_fields(d) == (packing > 0 ? 4 : 2));
        lk_dataset_free(d);
    }
    o.packing = 0;
    write_file(place("named.jsonl"), shakespeare, sizeof shakespeare - 1);
    CHECK_OK(context, open_as("text", place("named.jsonl"), LK_SPLIT_TRAIN, &o, &d));
    lk_dataset_free(d);
}

/* ---- JSONL ---- */

static void jsonl_is_decoded(void)
{
    static const char text[] =
        "\xef\xbb\xbf{\"id\": 1, \"text\": \"a\\\"b\\\\\\/\\b\\f\\n\\r\\t\"}\r\n"
        "\n  \t\r\n"
        "{\"text\": \"\\u00e4\\u20AC\\ud83d\\ude00 \xc3\xa4\", \"deep\": {\"text\": [\"no\", {}]}}\n"
        "{\"te\\u0078t\": \"key\"}\n"
        "{\"text\": \"\\u0000\"}\n"
        "{\"text\": \"\"}\n"
        "{\"text\": \"last, without an end of its line\"}";
    static const char wanted[] = "a\"b\\/\b\f\n\r\t\xff"
                                 "ä€\U0001F600 ä\xff"
                                 "key\xff"
                                 "\0\xff"
                                 "\xff"
                                 "last, without an end of its line\xff";
    lk_open_options   o = options_of(place("tokenizer.json"), 3);
    lk_dataset       *d;
    lk_text_info      info;
    int32_t           got[256];
    o.holdout = 1e-9;
    write_byte_tokenizer(place("tokenizer.json"));
    for (int gzip = 0; gzip < 2; gzip++) {
        (gzip ? write_gzip : write_file)(place("a.jsonl"), text, sizeof text - 1);
        CHECK_OK(context, open_as("jsonl", place("a.jsonl"), LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_text(d, &info) && info.tokens == sizeof wanted - 2 && lk_dataset_fields(d) == 4);
        list_tokens(d, false, got);
        for (int64_t i = 0; i + 1 < info.tokens; i++)
            CHECK(got[i] == ((unsigned char)wanted[i] == 0xff ? TEXT_END : (unsigned char)wanted[i]));
        lk_dataset_free(d);
    }
    /* Another field; lines longer than the buffer; a probe knows the same. */
    size_t size = 0, room = 3 << 20;
    char  *big = malloc(room), name[600];
    for (int line = 0; line < 5; line++) {
        size += (size_t)sprintf(big + size, "{\"body\": \"");
        for (int i = 0; i < 300000 + line; i++) big[size++] = (char)('a' + (i + line) % 26);
        size += (size_t)sprintf(big + size, "\"}\n");
    }
    o.text_field = "body", o.packing = -1;
    write_file(place("big.jsonl"), big, size);
    snprintf(name, sizeof name, "jsonl:%s", place("big.jsonl"));
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == 5 * 300000 + 10 + 5 - 1);
    lk_dataset_free(d);
    CHECK_OK(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == 5 * 300000 + 10 + 5 - 1 &&
          lk_context_memory(context, LK_MEMORY_DATA) == 0);
    int32_t row[3];
    CHECK_FAILS(context, lk_dataset_get(d, 0, (void *[]){row, row}), LK_EINVAL, "probed, not opened");
    lk_dataset_free(d);
    free(big);
}

static void mistakes_in_texts_are_named(void)
{
    static const struct {
        const char *text, *words[2];
    } cases[] = {
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", {"line 2, byte 13", "expected ',' or '}'"}},
        {"{\"text\": \"a\"}\n\n\n[\"text\"]\n", {"line 4 is not a JSON object", ""}},
        {"{\"text\": \"a\"}\n{\"txt\": \"b\", \"id\": 7}\n",
         {"line 2 has no field 'text'", "it has 'txt', 'id'; choose the field with --text-field"}},
        {"{\"text\": \"a\"}\n{}\n", {"line 2 has no field 'text'", "it is empty"}},
        {"{\"text\": \"a\"}\n{\"text\": null}\n", {"line 2: the field 'text' is null", ""}},
        {"{\"text\": \"a\"}\n{\"text\": 5}\n", {"line 2: the field 'text' is not a string", ""}},
        {"{\"text\": \"a\xff\"}\n", {"line 1, byte 12", "not UTF-8"}},
        {"{\"text\": \"\\ud800\"}\n", {"line 1, byte 11", "surrogate"}},
        {"{\"text\": \"a\"} x\n", {"line 1", "trailing characters after the value"}},
        {"\n \n", {"is empty", ""}},
        {"{\"text\": \"\"}\n", {"is empty", ""}},
    };
    lk_open_options o = options_of(place("tokenizer.json"), 3);
    lk_dataset     *d;
    write_byte_tokenizer(place("tokenizer.json"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_FAILS(context, open_text("jsonl", cases[i].text, strlen(cases[i].text), LK_SPLIT_TRAIN, &o, &d),
                    LK_EFORMAT, "data", cases[i].words[0], cases[i].words[1]);
    CHECK_FAILS(context, open_text("text", "", 0, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT, "data is empty");
    CHECK_FAILS(context, open_text("text", "abcd", 4, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT,
                "has 4 tokens, 3 of them for training", "a context of 3 needs at least 4", "--context");
    CHECK_FAILS(context, open_text("text", "abcdefg", 7, LK_SPLIT_TEST, &o, &d), LK_EFORMAT, "1 of them for validation",
                "at least 2");
    CHECK_FAILS(context, open_as("text", place("nowhere"), LK_SPLIT_TRAIN, &o, &d), LK_ENOENT, "nowhere");
    CHECK_FAILS(context, lk_dataset_open(context, "text:", LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "text:FILE");
    CHECK_FAILS(context, open_as("jsonl", scratch_directory, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "is a directory",
                "text:");
    CHECK_FAILS(context, lk_dataset_open(context, "jsonl", LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "jsonl:FILE");
    mkdir(place("nothing"), 0700);
    CHECK_FAILS(context, open_as("text", place("nothing"), LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT,
                "the directory has no files");
    o.tokenizer = NULL;
    CHECK_FAILS(context, open_text("jsonl", "{\"text\": \"abcdefgh\"}", 20, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL,
                "needs a tokenizer", "char");
    o.tokenizer = "byte";
    CHECK_FAILS(context, open_text("text", "", 0, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT, "data is empty");
    CHECK_FAILS(context, open_text("jsonl", "{\"text\": \"abcdefgh\"}", 20, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL,
                "end token");
    o.tokenizer = "char";
    CHECK_FAILS(context, open_text("text", "", 0, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT, "data is empty");
}

/* ---- classification ---- */

static const char reviews[] =
    "{\"text\": \"bad film\", \"mood\": \"sad\"}\n{\"text\": \"good\", \"mood\": \"happy\"}\n"
    "{\"mood\": \"angry\", \"text\": \"what a terrible thing\"}\n\n{\"text\": \"so good\", \"mood\": \"happy\"}\n";

static void texts_with_labels_are_classified(void)
{
    static const char *const texts[] = {"bad film", "good", "what a terrible thing", "so good"}, *const names[] = {
                                                                                                     "angry", "happy",
                                                                                                     "sad"};
    static const int32_t labels[] = {2, 1, 0, 1}, lines[] = {1, 2, 3, 5};
    enum { T = 10 };
    char            name[1200], wanted[600];
    int32_t         tokens[T], length, label;
    lk_open_options o = options_of("byte", T);
    lk_dataset     *d;
    lk_text_info    info;
    o.label = "mood";
    write_file(place("train.jsonl"), reviews, sizeof reviews - 1);
    snprintf(name, sizeof name, "jsonl:%s,%s", place("train.jsonl"), place("train.jsonl"));
    log_text[0] = 0;
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TEST, &o, &d));
    CHECK(strstr(log_text, "1 of 4 texts are longer than the context of 10 tokens"));
    CHECK(lk_dataset_count(d) == 4 && lk_dataset_fields(d) == 3 && lk_dataset_text(d, &info));
    CHECK(info.longest == 21 && info.tokens == 8 + 4 + 10 + 7 && info.vocabulary == 256 && info.tokenizer);
    static const char *const fields[] = {"tokens", "length", "label"};
    for (int i = 0; i < 3; i++) {
        const lk_field *f = lk_dataset_field(d, i);
        CHECK(strcmp(f->name, fields[i]) == 0 && f->dtype == LK_I32 && f->rank == (i == 0));
        CHECK(f->classes == (i == 2 ? 3 : i == 1 ? 0 : 256));
    }
    for (int i = 0; i < 3; i++) CHECK(strcmp(lk_field_class_name(lk_dataset_field(d, 2), i), names[i]) == 0);
    for (int i = 0; i < 4; i++) {
        int n = (int)strlen(texts[i]) < T ? (int)strlen(texts[i]) : T;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, &length, &label}));
        CHECK(length == n && label == labels[i]);
        for (int j = 0; j < T; j++) CHECK(tokens[j] == (j < n ? texts[i][j] : 0));
        snprintf(wanted, sizeof wanted, "train.jsonl: line %d", lines[i]);
        CHECK(strstr(lk_dataset_sample_name(d, i), wanted));
    }
    lk_dataset_free(d);
    /* Numbers are classes by themselves; words among them make all of them names. */
    static const char *const numbered[] = {
        "{\"text\": \"a\", \"mood\": 3}\n{\"text\": \"b\", \"mood\": 0}\n{\"text\": \"c\", \"mood\": 3}\n",
        "{\"text\": \"a\", \"mood\": 3}\n{\"text\": \"b\", \"mood\": \"0\"}\n{\"text\": \"c\", \"mood\": 3}\n",
        "{\"text\": \"a\", \"mood\": true}\n{\"text\": \"b\", \"mood\": false}\n{\"text\": \"c\", \"mood\": true}\n"};
    for (int k = 0; k < 3; k++) {
        write_file(place("train.jsonl"), numbered[k], strlen(numbered[k]));
        CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_find(d, "label")->classes == (k ? 2 : 4) && !lk_dataset_find(d, "label")->class_names == !k);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, &length, &label}));
            CHECK(label == (i == 1 ? 0 : k ? 1 : 3) && length == 1 && tokens[0] == 'a' + i);
        }
        lk_dataset_free(d);
    }
}

/* About a tenth by default; every text is in one of the two sets, with all classes in both. */
static void a_part_of_the_texts_is_held_out(void)
{
    enum { N = 500 };
    char           *text = malloc(N * 64), seen[N] = {0};
    size_t          size = 0;
    lk_open_options o = options_of("char", 8);
    lk_dataset     *d;
    int64_t         counts[2];
    for (int i = 0; i < N; i++)
        size += (size_t)sprintf(text + size, "{\"text\": \"%05d\", \"label\": \"%c\"}\n", i, 'a' + i % 5);
    o.label = "label";
    for (int split = 0; split < 2; split++) {
        CHECK_OK(context, open_text("jsonl", text, size, split ? LK_SPLIT_TEST : LK_SPLIT_TRAIN, &o, &d));
        counts[split] = lk_dataset_count(d);
        CHECK(lk_dataset_find(d, "label")->classes == 5);
        for (int64_t i = 0; i < lk_dataset_count(d); i++) {
            int32_t tokens[8], length, label;
            CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, &length, &label}));
            int number = 0;
            for (int j = 0; j < 5; j++) number = number * 10 + tokens[j]; /* digits are the first ten characters */
            CHECK(length == 5 && label == number % 5 && number < N && !seen[number]++);
        }
        lk_dataset_free(d);
    }
    CHECK(counts[0] + counts[1] == N && counts[1] > N / 20 && counts[1] < N / 5);
    free(text);
}

static const char brackets[] =
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[\"}},{\"Sequence\":{\"id\":\"A\"}},"
    "{\"SpecialToken\":{\"id\":\"]\"}}],\"special_tokens\":{\"[\":{\"ids\":[91]},\"]\":{\"ids\":[93]}}}";

/* Compares the tokens of a data set, of which `\xff` stands for the end token. */
static void check_tokens(const char *kind, const char *text, const char *wanted, const lk_open_options *o)
{
    lk_dataset  *d;
    lk_text_info info;
    int32_t      got[256];
    CHECK_OK(context, open_text(kind, text, strlen(text), LK_SPLIT_TRAIN, o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == (int64_t)strlen(wanted));
    list_tokens(d, strcmp(kind, "text") == 0, got);
    for (int64_t i = 0; i + 1 < info.tokens; i++)
        CHECK(got[i] == ((unsigned char)wanted[i] == 0xff ? TEXT_END : (unsigned char)wanted[i]));
    lk_dataset_free(d);
}

/* What the tokenizer's template puts around a text is around each document, of a long one at its ends alone. */
static void templates_stand_around_documents(void)
{
    lk_open_options o = options_of(place("template.json"), 4);
    lk_dataset     *d;
    int32_t         tokens[4], length, label;
    static char     text[400], wanted[402];
    o.holdout = -1;
    write_template_tokenizer(place("template.json"), brackets);
    check_tokens("jsonl", "{\"text\": \"abc\"}\n{\"text\": \"[de\"}\n", "[abc]\xff[de]\xff", &o);
    memset(text, 'a', 200);
    snprintf(wanted, sizeof wanted, "[%s]", text);
    check_tokens("text", text, wanted, &o);
    o.label = "label"; /* a text that is too long keeps both ends */
    static const char labelled[] = "{\"text\": \"abcdef\", \"label\": 1}\n{\"text\": \"[a\", \"label\": 0}\n";
    CHECK_OK(context, open_text("jsonl", labelled, sizeof labelled - 1, LK_SPLIT_TRAIN, &o, &d));
    CHECK_OK(context, lk_dataset_get(d, 0, (void *const[]){tokens, &length, &label}));
    CHECK(length == 4 && memcmp(tokens, (int32_t[]){91, 'a', 'b', 93}, sizeof tokens) == 0);
    CHECK_OK(context, lk_dataset_get(d, 1, (void *const[]){tokens, &length, &label}));
    CHECK(length == 3 && memcmp(tokens, (int32_t[]){91, 'a', 93}, 3 * sizeof *tokens) == 0);
    lk_dataset_free(d);
    o.context = 2;
    CHECK_FAILS(context, open_text("jsonl", labelled, sizeof labelled - 1, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL,
                "a context of 2 tokens is too short: the tokenizer adds 2 to each text");
}

/* One token may both begin and end documents: two of them stand between two documents, and the second is the first
 * token of one. */
static void the_end_token_may_begin_documents(void)
{
    static const char both[] =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"e\"}},{\"Sequence\":"
        "{\"id\":\"A\"}}],\"special_tokens\":{\"e\":{\"ids\":[256]}}}";
    static const char    text[] = "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n{\"text\": \"ef\"}\n";
    static const int32_t E = TEXT_END, N = -100;
    const int32_t        tokens[] = {E, 'a', 'b', E, E, 'c', 'd', E}, labels[] = {'a', 'b', E, N, 'c', 'd', E, N},
                  positions[] = {0, 1, 2, 3, 0, 1, 2, 3}, first[] = {0, 0, 0, 0, 4, 4, 4, 4},
                  scored[] = {'a', 'b', 'c', 'd', 'e', 'f', N, N};
    lk_open_options o = options_of(place("both.json"), 8);
    lk_dataset     *d;
    lk_text_info    info;
    int32_t         got[4][8];
    void *const     fields[] = {got[0], got[1], got[2], got[3]};
    o.holdout = -1;
    write_template_tokenizer(place("both.json"), both);
    CHECK_OK(context, open_text("jsonl", text, sizeof text - 1, LK_SPLIT_TRAIN, &o, &d));
    CHECK_OK(context, lk_dataset_get(d, 0, fields));
    CHECK(memcmp(got[0], tokens, sizeof tokens) == 0 && memcmp(got[1], labels, sizeof labels) == 0);
    CHECK(memcmp(got[2], positions, sizeof positions) == 0 && memcmp(got[3], first, sizeof first) == 0);
    lk_dataset_free(d);
    o.stride = 8;
    CHECK_OK(context, open_text("jsonl", text, sizeof text - 1, LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.scored == 6);
    CHECK_OK(context, lk_dataset_get(d, 0, fields));
    CHECK(memcmp(got[1], scored, sizeof scored) == 0);
    lk_dataset_free(d);
}

/* An array of objects is read as their lines are. */
static void arrays_of_json_are_documents(void)
{
    lk_open_options o = options_of(place("tokenizer.json"), 4);
    lk_dataset     *d;
    o.holdout = -1;
    write_byte_tokenizer(place("tokenizer.json"));
    check_tokens("jsonl", "\xef\xbb\xbf \n[{\"text\": \"ab\"},\n  {\"more\": [1], \"text\": \"c\\n\"}\n]\n",
                 "ab\xff"
                 "c\n\xff",
                 &o);
    static const char *const wrong[][2] = {
        {"[{\"text\": \"ab\"}, {\"body\": \"c\"}]", "element 2 has no field 'text': it has 'body'"},
        {"[{\"text\": \"ab\"}, 3]", "element 2 is not a JSON object: each element must be one"},
        {"[{\"text\": \"ab\"}", "byte 16: "},
        {"[{\"text\": null}]", "element 1: the field 'text' is null"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_FAILS(context, open_text("jsonl", wrong[i][0], strlen(wrong[i][0]), LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT,
                    wrong[i][1]);
}

static void mistakes_in_labels_are_named(void)
{
    static const struct {
        const char *text, *words[2];
    } cases[] = {
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\"}\n",
         {"line 2 has no field 'mood'", "it has 'text'; choose the field with --label"}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": null}\n",
         {"line 2: the field 'mood' is null", ""}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": [1]}\n",
         {"line 2: the field 'mood' is not a class", ""}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": 0.5}\n",
         {"line 2: the field 'mood' is not a class", "an integer of at least 0"}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": -1}\n",
         {"line 2: the field 'mood' is not a class", ""}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": \"\"}\n",
         {"line 2: the class in 'mood' is empty", ""}},
        {"{\"text\": \"a\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": \"x\"}\n",
         {"only the class 'x'", "at least two"}},
        {"{\"text\": \"\", \"mood\": \"x\"}\n{\"text\": \"b\", \"mood\": \"y\"}\n", {"line 1: the text is empty", ""}},
        {"\n", {"is empty", ""}},
    };
    lk_open_options o = options_of("byte", 8);
    lk_dataset     *d;
    char            name[1200];
    o.label = "mood";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_FAILS(context, open_text("jsonl", cases[i].text, strlen(cases[i].text), LK_SPLIT_TRAIN, &o, &d),
                    LK_EFORMAT, "data", cases[i].words[0], cases[i].words[1]);
    write_file(place("a.jsonl"), reviews, sizeof reviews - 1);
    static const char other[] = "\n{\"text\": \"a\", \"mood\": \"calm\"}";
    write_file(place("b.jsonl"), other, sizeof other - 1);
    snprintf(name, sizeof name, "jsonl:%s,%s", place("a.jsonl"), place("b.jsonl"));
    CHECK_FAILS(context, lk_dataset_open(context, name, LK_SPLIT_TEST, &o, &d), LK_EFORMAT, "b.jsonl: line 2",
                "'calm' is not a class of the training data");
    o.regression = true;
    CHECK_FAILS(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "labels are classes");
}

/* ---- pieces ---- */

/* A corpus in pieces of any size gives all its bytes, and UTF-8 is never cut. */
static void pieces_join_to_the_text(void)
{
    static char              text[20000];
    size_t                   size = 0;
    uint32_t                 state = 5;
    static const char *const parts[] = {"word",       " ",  "\n", "\r\n", "ä",    "。", "\u3000",
                                        "\U0001F600", "'s", "12", ".",    "\n\n", "\t", "x y z"};
    while (size < sizeof text - 8) {
        state = state * 1664525u + 1013904223u;
        const char *part = parts[(state >> 16) % (sizeof parts / sizeof *parts)];
        memcpy(text + size, part, strlen(part));
        size += strlen(part);
    }
    for (size_t piece = 1; piece < 400; piece = piece * 2 + 1) {
        lk__text_file   file = {.path = "memory", .bytes = text, .size = size};
        lk__text_corpus c = {.context = context, .files = &file, .count = 1, .piece = piece};
        lk__text_piece  p;
        size_t          at = 0, count = 0;
        lk_status       status;
        bool            ended = false;
        lk__text_begin(&c);
        while ((status = lk__text_next(&c, &p)) == LK_OK) {
            CHECK(!ended && p.bytes > 0 && at + p.bytes <= size && memcmp(p.text, text + at, p.bytes) == 0);
            CHECK(at == 0 || ((unsigned char)text[at] & 0xc0) != 0x80);
            at += p.bytes, count++;
            ended = p.ends;
        }
        CHECK(status == LK_END && at == size && ended && count > size / piece / 64);
        lk__text_end(&c);
    }
}

typedef struct joined {
    int32_t *ids;
    size_t   count, room;
    int      pieces;
} joined;

static lk_status join_ids(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    joined *j = user;
    (void)piece;
    CHECK(j->count + count <= j->room);
    memcpy(j->ids + j->count, ids, count * sizeof *ids);
    j->count += count;
    j->pieces++;
    return LK_OK;
}

/* The tokens of a text in pieces are those of the whole text. */
static void pieces_have_the_tokens_of_the_text(void)
{
    static const char *const names[] = {"gpt2", "llama3", "qwen2"};
    size_t                   size;
    char                    *text = (char *)read_whole(LK_SOURCE_DIR "/test/golden/tokenizers/multilingual.txt", &size);
    int32_t                 *wanted = malloc((size + 1) * sizeof *wanted);
    joined                   got = {.ids = malloc((size + 1) * sizeof *wanted), .room = size + 1};
    for (int k = 0; k < 3; k++) {
        char          path[512];
        lk_tokenizer *tokenizer;
        size_t        count;
        snprintf(path, sizeof path, "%s/test/golden/tokenizers/%s.json", LK_SOURCE_DIR, names[k]);
        CHECK_OK(context, lk_tokenizer_open(context, path, &tokenizer));
        CHECK_OK(context, lk_tokenizer_encode(tokenizer, text, size, wanted, size + 1, &count, NULL));
        for (size_t piece = 100; piece < size / 2; piece = piece * 3 + 1) {
            lk__text_file   file = {.path = "memory", .bytes = text, .size = size};
            lk__text_corpus c = {.context = context, .files = &file, .count = 1, .piece = piece};
            lk__text_totals totals;
            got.count = 0, got.pieces = 0;
            CHECK_OK(context, lk__text_encode(&c, &(lk__text_encoding){tokenizer, false, -1, join_ids, &got}, &totals));
            CHECK(got.count == count && memcmp(got.ids, wanted, count * sizeof *wanted) == 0);
            CHECK(got.pieces > 1 && totals.documents == 1 && totals.bytes == (int64_t)size);
        }
        lk_tokenizer_free(tokenizer);
    }
    free(text), free(wanted), free(got.ids);
}

/* ---- memory ---- */

static lk_status attempt_all(lk_context *other)
{
    char            name[600];
    lk_dataset     *d = NULL;
    lk_open_options o = options_of("char", 4);
    snprintf(name, sizeof name, "jsonl:%s", place("memory.jsonl"));
    o.packing = -1;
    lk_status status = lk_dataset_open(other, name, LK_SPLIT_TRAIN, &o, &d);
    lk_dataset_free(d);
    if (status < 0) return status;
    o.label = "mood", d = NULL;
    status = lk_dataset_open(other, name, LK_SPLIT_TRAIN, &o, &d);
    lk_dataset_free(d);
    return status;
}

static void each_allocation_may_fail(void)
{
    write_file(place("memory.jsonl"), reviews, sizeof reviews - 1);
    CHECK(fail_each_allocation(attempt_all) >= 10);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    make_scratch();
    config.threads = 1;
    config.log = keep_log;
    CHECK(lk_context_create(&config, &context) == LK_OK);
    RUN(characters_are_tokens);
    RUN(bytes_are_tokens);
    RUN(invalid_utf8_is_replaced_and_said);
    RUN(files_of_a_directory_are_documents);
    RUN(a_single_text_is_in_windows);
    RUN(jsonl_is_decoded);
    RUN(mistakes_in_texts_are_named);
    RUN(texts_with_labels_are_classified);
    RUN(a_part_of_the_texts_is_held_out);
    RUN(templates_stand_around_documents);
    RUN(the_end_token_may_begin_documents);
    RUN(arrays_of_json_are_documents);
    RUN(mistakes_in_labels_are_named);
    RUN(pieces_join_to_the_text);
    RUN(pieces_have_the_tokens_of_the_text);
    RUN(each_allocation_may_fail);
    free_context(context);
    return 0;
}
