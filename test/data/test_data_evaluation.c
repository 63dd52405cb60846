/* test_data_evaluation.c - the windows of an evaluation of a language model, against what is expected of every single
 * token: each token of a document but its first is a label once, with the context that its stride gives it and nothing
 * of other documents; and data sets that are read whole, whatever was held out of them. */
#define _GNU_SOURCE
#include "text_files.h"

enum { LONGEST = 1024, END_ID = 999, T = 8 };

/* ---- every label of a data set whose tokens are all different, so that a token tells where it is ---- */

typedef struct expected {
    int documents, lengths[64]; /* document i has the tokens starts[i] … starts[i] + lengths[i] - 1 */
    int starts[64];
} expected;

static int find_document(const expected *e, int32_t token)
{
    for (int i = 0; i < e->documents; i++)
        if (token >= e->starts[i] && token < e->starts[i] + e->lengths[i]) return i;
    return -1;
}

/* The tokens before a label that its window has: the first window has T labels, every other one its last `stride`. */
static int expected_context(int index, int stride)
{
    int window = index <= T ? 0 : (index - T + stride - 1) / stride;
    return index - window * stride;
}

static void check_labels(const lk_dataset *d, const expected *e, int stride)
{
    int32_t tokens[T], label[T], positions[T], first[T] = {0};
    int     times[LONGEST] = {0}, scored = 0;
    bool    packed = lk_dataset_fields(d) == 4;
    for (int64_t i = 0; i < lk_dataset_count(d); i++) {
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, label, positions, first}));
        for (int j = 0; j < T; j++) {
            if (packed) CHECK(positions[j] == j - first[j]);
            if (label[j] == -100) continue;
            int document = find_document(e, label[j]), index = label[j] - e->starts[document];
            CHECK(document >= 0 && index > 0 && j - first[j] + 1 == expected_context(index, stride));
            for (int k = first[j]; k <= j; k++) CHECK(tokens[k] == label[j] - (j - k) - 1);
            times[label[j]]++;
        }
    }
    for (int i = 0; i < e->documents; i++)
        for (int k = 0; k < e->lengths[i]; k++) {
            CHECK(times[e->starts[i] + k] == (k > 0));
            scored += k > 0;
        }
    lk_text_info info;
    CHECK(lk_dataset_text(d, &info) && info.scored == scored);
}

/* ---- token files ---- */

/* llm.c's header with our words: the vocabulary and the end token. */
static void write_ids(const char *path, const uint32_t *ids, size_t count)
{
    static unsigned char bytes[1024 + 2 * LONGEST];
    const uint32_t       words[][2] = {{0, 20240520}, {1, 1},           {2, (uint32_t)count}, {8, 0x4b544b4c},
                                       {9, 1},        {10, END_ID + 1}, {11, END_ID + 1},     {12, (uint32_t)count}};
    memset(bytes, 0, 1024);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int k = 0; k < 4; k++) bytes[4 * words[i][0] + (unsigned)k] = (unsigned char)(words[i][1] >> 8 * k);
    for (size_t i = 0; i < count; i++)
        bytes[1024 + 2 * i] = (unsigned char)ids[i], bytes[1025 + 2 * i] = (unsigned char)(ids[i] >> 8);
    write_file(path, bytes, 1024 + 2 * count);
}

/* Documents of awkward lengths: empty, one token, around one and two windows. */
static size_t draw_documents(uint32_t *ids, expected *e, uint32_t seed)
{
    static const int lengths[] = {1, 2, T - 1, T, T + 1, T + 2, 2 * T, 2 * T + 1, 3 * T + 5, 0, 3};
    size_t           count = 0;
    int              token = 10;
    uint32_t         state = seed;
    *e = (expected){0};
    for (int i = 0; i < 12; i++) {
        state = state * 1664525u + 1013904223u;
        int length = lengths[(state >> 16) % 11];
        if (length) e->starts[e->documents] = token, e->lengths[e->documents++] = length;
        for (int k = 0; k < length; k++) ids[count++] = (uint32_t)token++;
        ids[count++] = END_ID;
    }
    return count;
}

static void every_token_of_a_document_is_predicted_once(void)
{
    uint32_t        ids[LONGEST];
    expected        e;
    lk_dataset     *d;
    lk_open_options o = options_of(NULL, T);
    for (uint32_t seed = 1; seed < 20; seed++) {
        size_t count = draw_documents(ids, &e, seed);
        write_ids(place("documents.bin"), ids, count);
        o.packing = 1;
        for (int stride = 0; stride <= T; stride++) {
            o.stride = stride;
            CHECK_OK(context, open_as("tokens", place("documents.bin"), LK_SPLIT_ALL, &o, &d));
            check_labels(d, &e, stride ? stride : T);
            lk_dataset_free(d);
        }
        /* In windows the file is one document, also where another part is for training. */
        for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)i;
        write_ids(place("one.bin"), ids, count);
        o.packing = 0;
        for (int stride = 1; stride <= T; stride++) {
            e = (expected){.documents = 1, .lengths = {(int)count}};
            o.stride = stride, o.holdout = 0;
            CHECK_OK(context, open_as("tokens", place("one.bin"), LK_SPLIT_ALL, &o, &d));
            check_labels(d, &e, stride);
            lk_dataset_free(d);
            o.holdout = 0.25;
            int kept = (int)((double)count * 0.75);
            e.lengths[0] = kept;
            CHECK_OK(context, open_as("tokens", place("one.bin"), LK_SPLIT_TRAIN, &o, &d));
            check_labels(d, &e, stride);
            lk_dataset_free(d);
            e.lengths[0] = (int)count - kept, e.starts[0] = kept;
            CHECK_OK(context, open_as("tokens", place("one.bin"), LK_SPLIT_TEST, &o, &d));
            check_labels(d, &e, stride);
            lk_dataset_free(d);
        }
    }
    o.stride = T + 1;
    CHECK_FAILS(context, open_as("tokens", place("one.bin"), LK_SPLIT_ALL, &o, &d), LK_EINVAL, "stride of 9",
                "1 to the context of 8");
    ids[0] = 3, ids[1] = END_ID, ids[2] = 4;
    write_ids(place("short.bin"), ids, 3);
    o.stride = 0, o.packing = 1, o.holdout = 0;
    CHECK_FAILS(context, open_as("tokens", place("short.bin"), LK_SPLIT_ALL, &o, &d), LK_EFORMAT,
                "no document of two tokens");
}

/* ---- texts ---- */

/* Files of a directory and lines of JSONL, with an end token between them and without: each byte is different. */
static void files_and_lines_are_documents(void)
{
    expected        e = {.documents = 3, .lengths = {20, 3, 9}, .starts = {40, 60, 97}};
    char            text[64], json[300] = "";
    lk_dataset     *d;
    lk_text_info    info;
    lk_open_options o = options_of("byte", T);
    write_byte_tokenizer(place("tokenizer.json"));
    mkdir(place("folder"), 0700);
    for (int i = 0; i < 3; i++) {
        char name[32];
        int  n = e.lengths[i];
        for (int k = 0; k < n; k++) text[k] = (char)(e.starts[i] + k);
        snprintf(name, sizeof name, "folder/%d.txt", i);
        write_file(place(name), text, (size_t)n);
        snprintf(json + strlen(json), sizeof json - strlen(json), "{\"text\": \"%.*s\"}\n%s", n, text,
                 i ? "" : "{\"text\": \"\"}\n{\"text\": \"z\"}\n");
    }
    write_file(place("lines.jsonl"), json, strlen(json));
    for (int kind = 0; kind < 2; kind++)
        for (int end = 0; end < 2; end++)
            for (int stride = 1; stride <= T; stride++) {
                o.tokenizer = end ? place("tokenizer.json") : "byte";
                o.stride = stride;
                CHECK_OK(context, open_as(kind ? "jsonl" : "text", place(kind ? "lines.jsonl" : "folder"), LK_SPLIT_ALL,
                                          &o, &d));
                check_labels(d, &e, stride);
                CHECK(lk_dataset_text(d, &info) && info.scored == 29 && info.scored_bytes == 29);
                lk_dataset_free(d);
            }
    /* What is held out begins at a token of all, so that training must know where documents end. */
    o.tokenizer = "byte", o.holdout = 0.5;
    CHECK_FAILS(context, open_as("text", place("folder"), LK_SPLIT_TEST, &o, &d), LK_EINVAL, "need an end token",
                "--packing windows");
    o.tokenizer =
        place("tokenizer.json"); /* 35 tokens with ends, of which the last 18 begin within the first document */
    e.lengths[0] = 3, e.starts[0] = 57, o.stride = T;
    CHECK_OK(context, open_as("text", place("folder"), LK_SPLIT_TEST, &o, &d));
    check_labels(d, &e, T);
    lk_dataset_free(d);
}

/* What a template puts around a text is part of the document; the end token between documents is not. */
static void templates_belong_to_documents(void)
{
    static const char brackets[] =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[\"}},{\"Sequence\":{\"id\":\"A\"}},"
        "{\"SpecialToken\":{\"id\":\"]\"}}],\"special_tokens\":{\"[\":{\"ids\":[91]},\"]\":{\"ids\":[93]}}}";
    static const char text[] = "{\"text\": \"abc\"}\n{\"text\": \"[de\"}\n{\"text\": \"fghijklmno\"}\n";
    lk_open_options   o = options_of(place("brackets.json"), T);
    lk_dataset       *d;
    lk_text_info      info;
    char              got[64] = "";
    write_template_tokenizer(place("brackets.json"), brackets);
    write_file(place("brackets.jsonl"), text, sizeof text - 1);
    CHECK_OK(context, open_as("jsonl", place("brackets.jsonl"), LK_SPLIT_ALL, &o, &d));
    for (int64_t i = 0; i < lk_dataset_count(d); i++) {
        int32_t tokens[T], label[T], positions[T], first[T];
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, label, positions, first}));
        for (int j = 0; j < T; j++)
            if (label[j] != -100) got[strlen(got)] = (char)label[j];
    }
    CHECK(strcmp(got, "abc]de]fghijklmno]") == 0);
    CHECK(lk_dataset_text(d, &info) && info.scored == 18);
    lk_dataset_free(d);
}

/* Bytes of the tokens that are predicted: a document's first has as many as its character; ids of a file are counted by
 * the tokenizer. */
static void bytes_are_those_of_predicted_tokens(void)
{
    static const char text[] = "\u00e4bc \u20ac and \u00fcber";
    uint32_t          ids[] = {7, 8, 9, 10, 11};
    lk_dataset       *d;
    lk_text_info      info;
    lk_open_options   o = options_of("char", T);
    write_file(place("accents.txt"), text, sizeof text - 1);
    CHECK_OK(context, open_as("text", place("accents.txt"), LK_SPLIT_ALL, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.scored == 13 && info.scored_bytes == (int64_t)sizeof text - 1 - 2);
    lk_dataset_free(d);
    unsigned char plain[10] = {0};
    for (int i = 0; i < 5; i++) plain[2 * i] = (unsigned char)ids[i];
    write_file(place("plain.u16"), plain, sizeof plain);
    o.tokenizer = "byte";
    CHECK_OK(context, open_as("tokens", place("plain.u16"), LK_SPLIT_ALL, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.tokens == 5 && info.bytes == 5 && info.scored == 4 &&
          info.scored_bytes == 4);
    lk_dataset_free(d);
}

/* ---- whole data sets ---- */

/* All samples of two data sets one after the other. */
static void check_parts(const lk_dataset *all, const lk_dataset *a, const lk_dataset *b)
{
    char   wanted[256], got[256];
    void  *fields[LK_MAX_FIELDS] = {got}, *of_part[LK_MAX_FIELDS] = {wanted};
    size_t bytes = lk_field_bytes(lk_dataset_field(all, 0));
    CHECK(bytes <= sizeof got && lk_dataset_count(all) == lk_dataset_count(a) + lk_dataset_count(b));
    for (int64_t i = 0; i < lk_dataset_count(all); i++) {
        int64_t           inside = i < lk_dataset_count(a) ? i : i - lk_dataset_count(a);
        const lk_dataset *part = i < lk_dataset_count(a) ? a : b;
        char              name[600];
        CHECK_OK(context, lk_dataset_get(all, i, fields));
        CHECK_OK(context, lk_dataset_get(part, inside, of_part));
        CHECK(memcmp(got, wanted, bytes) == 0);
        snprintf(name, sizeof name, "%s", lk_dataset_sample_name(all, i));
        CHECK(strcmp(name, lk_dataset_sample_name(part, inside)) == 0);
    }
}

static void all_samples_are_both_parts(void)
{
    char            name[1200];
    lk_dataset     *all, *train, *test;
    lk_open_options o = options_of("char", 4);
    lk_text_info    info;
    write_file(place("a.txt"), "abcdefghij", 10);
    write_file(place("b.txt"), "jihgfed", 7);
    snprintf(name, sizeof name, "text:%s,%s", place("a.txt"), place("b.txt"));
    o.stride = 3;
    const char *const names[] = {name, "synthetic:5,count=40,classes=3"};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(context, lk_dataset_open(context, names[i], LK_SPLIT_ALL, &o, &all));
        CHECK_OK(context, lk_dataset_open(context, names[i], LK_SPLIT_TRAIN, &o, &train));
        CHECK_OK(context, lk_dataset_open(context, names[i], LK_SPLIT_TEST, &o, &test));
        check_parts(all, train, test);
        CHECK(i ||
              (lk_dataset_text(all, &info) && info.scored == 9 + 6 && info.scored_bytes == 15 && info.tokens == 17));
        lk_dataset_free(all), lk_dataset_free(train), lk_dataset_free(test);
        CHECK_OK(context, lk_dataset_probe(context, names[i], LK_SPLIT_ALL, &o, &all));
        CHECK(lk_dataset_count(all) == (i ? 50 : 5));
        lk_dataset_free(all);
    }
}

/* What would be held out is part of all samples, in the order of the file. */
static void nothing_is_held_out_of_all_samples(void)
{
    char            text[2000] = "x,label\n";
    lk_dataset     *d;
    lk_text_info    info;
    lk_open_options o = options_of("byte", 16);
    o.holdout = 0.5;
    for (int i = 0; i < 60; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "%d.5,%d\n", i, i % 2);
    write_file(place("rows.csv"), text, strlen(text));
    CHECK_OK(context, open_as("csv", place("rows.csv"), LK_SPLIT_ALL, &o, &d));
    CHECK(lk_dataset_count(d) == 60);
    for (int i = 0; i < 60; i++) {
        float   x;
        int32_t label;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){&x, &label}));
        CHECK(x == (float)i + 0.5f && label == i % 2);
    }
    lk_dataset_free(d);
    CHECK_OK(context, open_as("text", place("rows.csv"), LK_SPLIT_ALL, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.scored == (int64_t)strlen(text) - 1);
    lk_dataset_free(d);
}

static lk_status attempt_all(lk_context *other)
{
    static const char *const kinds[] = {"jsonl:%s", "text:%s,%s"};
    lk_open_options          o = options_of("byte", 4);
    lk_status                status = LK_OK;
    for (int i = 0; i < 2 && status == LK_OK; i++) {
        char        name[1200];
        lk_dataset *d = NULL;
        snprintf(name, sizeof name, kinds[i], place(i ? "a.txt" : "lines.jsonl"), place("b.txt"));
        status = lk_dataset_open(other, name, LK_SPLIT_ALL, &o, &d);
        lk_dataset_free(d);
    }
    return status;
}

static void each_allocation_may_fail(void) { CHECK(fail_each_allocation(attempt_all) >= 10); }

int main(void)
{
    make_scratch();
    context = make_context();
    RUN(every_token_of_a_document_is_predicted_once);
    RUN(files_and_lines_are_documents);
    RUN(templates_belong_to_documents);
    RUN(bytes_are_those_of_predicted_tokens);
    RUN(all_samples_are_both_parts);
    RUN(nothing_is_held_out_of_all_samples);
    RUN(each_allocation_may_fail);
    free_context(context);
    return 0;
}
