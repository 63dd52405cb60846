/* test_tokenizer_golden.c - words, normal forms, ids and decoded text against those of Hugging Face's `tokenizers`:
 * golden/make_tokenizers.py stored hashes of them, over 10,000 random strings, multilingual text and tinyshakespeare.
 * The same text in pieces gives the same ids. ctest: timeout 180 */
#define _GNU_SOURCE
#include "data/text/encoder.h"
#include "data/text/nfc.h"
#include "data/text/utf8.h"
#include "test_data.h"

enum { STRINGS = 10000, GROUP = 20, LONGEST_STRING = 24 * 16 };

static lk_context *context;
static char       *results; /* results.txt */

/* ---- texts: the strings of golden/make_tokenizers.py, drawn by the same formula ---- */

static uint64_t number_state;

static uint32_t number_below(uint64_t n)
{
    uint64_t z = number_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % n);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static size_t draw_piece(char *out)
{
    static const char  letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char  punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    static const char *pieces[] = {
        "'s",      "'T",        "'re",          "'VE",           "'m",      "'lL",     "'d",
        "'\u017f", "'x",        "'r",           "<|endoftext|>", "<|end|>", " <sep> ", "<sep>",
        "<|end",   "<|end|>  ", "\u212b\u212b", "\u00c5\u00c5",  "the",     " and",    "ing"};
    static const uint32_t spaces[] = {'\t',   '\n',   '\v',   '\f',   '\r',   ' ',    '\n',   '\n',
                                      '\r',   '\n',   0x85,   0xa0,   0x1680, 0x2000, 0x2005, 0x200a,
                                      0x2028, 0x2029, 0x202f, 0x205f, 0x3000, 0x200b, 0x180e, 0xfeff};
    static const uint32_t blocks[][2] = {
        {0xc0, 0x24f},    {0x300, 0x36f},     {0x370, 0x52f},     {0x590, 0x6ff},   {0x900, 0xdff},    {0xe00, 0xeff},
        {0x1100, 0x11ff}, {0x1e00, 0x1fff},   {0x2000, 0x22ff},   {0x3040, 0x30ff}, {0x4e00, 0x4eff},  {0xac00, 0xacff},
        {0xf900, 0xfaff}, {0x1d100, 0x1d1ff}, {0x1f300, 0x1f6ff}, {0x0, 0xd7ff},    {0xe000, 0x10ffff}};
    uint32_t kind = number_below(16), code;
    if (kind >= 8 && kind < 10) {
        const char *piece = pieces[number_below(COUNT(pieces))];
        memcpy(out, piece, strlen(piece));
        return strlen(piece);
    }
    if (kind < 4) {
        code = (uint32_t)letters[number_below(52)];
    } else if (kind < 5) {
        code = '0' + number_below(10);
    } else if (kind < 7) {
        code = ' ';
    } else if (kind < 8) {
        code = (uint32_t)punctuation[number_below(32)];
    } else if (kind < 11) {
        code = spaces[number_below(COUNT(spaces))];
    } else {
        const uint32_t *block = blocks[number_below(COUNT(blocks))];
        code = block[0] + number_below(block[1] - block[0] + 1);
    }
    return lk__utf8_encode(code, out);
}

static size_t draw_string(uint64_t seed, char out[LONGEST_STRING])
{
    size_t bytes = 0;
    number_state = seed * 0xd1342543de82ef95u;
    for (uint32_t pieces = number_below(24); pieces > 0; pieces--) bytes += draw_piece(out + bytes);
    return bytes;
}

typedef struct texts {
    const char *name;
    size_t      count;
    char      **text;
    size_t     *bytes;
} texts;

static void append_text(texts *t, const char *text, size_t bytes)
{
    t->text = realloc(t->text, (t->count + 1) * sizeof *t->text);
    t->bytes = realloc(t->bytes, (t->count + 1) * sizeof *t->bytes);
    t->text[t->count] =
        memcpy(malloc(bytes + 1), text, bytes); /* exactly as large, so that a sanitizer finds what reads past it */
    t->bytes[t->count++] = bytes;
}

static void free_texts(texts *t)
{
    for (size_t i = 0; i < t->count; i++) free(t->text[i]);
    free(t->text), free(t->bytes);
}

/* "strings", "multilingual", its "lines", or "shakespeare"; without that file, none. */
static texts make_texts(const char *name)
{
    texts  t = {.name = name};
    char   string[LONGEST_STRING], path[1024];
    size_t size, from = 0;
    if (strcmp(name, "strings") == 0) {
        for (uint64_t i = 0; i < STRINGS; i++) append_text(&t, string, draw_string(i, string));
        return t;
    }
    if (strcmp(name, "shakespeare") == 0)
        snprintf(path, sizeof path, "%s", shared("data/tinyshakespeare/input.txt"));
    else
        snprintf(path, sizeof path, "%s/test/golden/tokenizers/multilingual.txt", LK_SOURCE_DIR);
    if (access(path, F_OK) != 0) return t;
    unsigned char *bytes = read_whole(path, &size);
    for (size_t i = 0; i < size && strcmp(name, "lines") == 0; i++)
        if (bytes[i] == '\n') append_text(&t, (char *)bytes + from, i + 1 - from), from = i + 1;
    if (from == 0) append_text(&t, (char *)bytes, size);
    free(bytes);
    return t;
}

/* ---- hashes of lists of numbers, by groups of texts ---- */

static uint64_t group_hash;

static void hash_number(uint32_t n)
{
    for (int shift = 0; shift < 32; shift += 8) group_hash = (group_hash ^ (n >> shift & 255)) * 0x100000001b3u;
}

/* Compares the numbers that `list` gives for each text with those stored as TEXTS_WHAT; returns how many groups were
 * wrong. */
typedef size_t (*list_numbers)(const void *user, const char *text, size_t bytes, uint32_t *numbers);
static void compare(const texts *t, const char *what, list_numbers list, const void *user)
{
    char name[80];
    snprintf(name, sizeof name, "\n%s_%s ", t->name, what);
    char *stored = strstr(results, name);
    CHECK(stored);
    stored += strlen(name);
    CHECK(strtoul(stored, &stored, 10) == t->count);
    for (size_t first = 0; first < t->count; first += GROUP) {
        group_hash = 0xcbf29ce484222325u;
        for (size_t i = first; i < first + GROUP && i < t->count; i++) {
            uint32_t *numbers = malloc((4 * t->bytes[i] + 4) * sizeof *numbers);
            size_t    count = list(user, t->text[i], t->bytes[i], numbers);
            hash_number((uint32_t)count);
            for (size_t k = 0; k < count; k++) hash_number(numbers[k]);
            free(numbers);
        }
        if (strtoul(stored, &stored, 16) == (uint32_t)(group_hash ^ group_hash >> 32)) continue;
        fprintf(stderr, "%s: strings %zu to %zu differ\n", name + 1, first, first + GROUP - 1);
        exit(1);
    }
}

static size_t list_words(const void *rule, const char *text, size_t bytes, uint32_t *numbers)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    size_t               count = 0;
    while (at < end) {
        const unsigned char *next = lk__pretokenize(*(const lk__pretokenizer *)rule, at, end);
        CHECK(next > at && next <= end);
        numbers[count++] = (uint32_t)(next - at);
        at = next;
    }
    return count;
}

static size_t list_bytes(const char *text, size_t bytes, uint32_t *numbers)
{
    for (size_t i = 0; i < bytes; i++) numbers[i] = (unsigned char)text[i];
    return bytes;
}

static size_t list_normalized(const void *user, const char *text, size_t bytes, uint32_t *numbers)
{
    lk__nfc_scratch scratch = {0};
    (void)user;
    CHECK_OK(context, lk__nfc(context, &scratch, &text, &bytes));
    size_t count = list_bytes(text, bytes, numbers);
    lk__nfc_scratch_free(context, &scratch);
    return count;
}

static size_t list_ids(const void *tokenizer, const char *text, size_t bytes, uint32_t *numbers)
{
    size_t count, invalid;
    CHECK_OK(context, lk_tokenizer_encode(tokenizer, text, bytes, (int32_t *)numbers, 3 * bytes + 1, &count, &invalid));
    CHECK(invalid == 0 && count <= 3 * bytes + 1);
    return count;
}

static size_t list_text(const void *tokenizer, const char *text, size_t bytes, uint32_t *numbers)
{
    size_t   room = 4 * bytes + 4, ids_count = list_ids(tokenizer, text, bytes, numbers);
    int32_t *ids = memcpy(malloc((ids_count + 1) * sizeof *ids), numbers, ids_count * sizeof *ids);
    char    *back = malloc(room);
    size_t   count = lk_tokenizer_decode(tokenizer, ids, ids_count, back, room);
    CHECK(count <= room);
    count = list_bytes(back, count, numbers);
    free(ids), free(back);
    return count;
}

/* The ids of the text in pieces of about 100 bytes, cut where the encoder says. */
static size_t list_ids_in_pieces(const void *tokenizer, const char *text, size_t bytes, uint32_t *numbers)
{
    lk__text_encoder *encoder;
    size_t            count = 0, from = 0, want = 100;
    CHECK_OK(context, lk__text_encoder_create(tokenizer, bytes, &encoder));
    while (from < bytes) {
        size_t           piece = bytes - from;
        lk__text_encoded encoded;
        if (piece > want && (piece = lk__text_encoder_cut(tokenizer, text + from, want)) == 0) {
            want *= 2; /* more of the text is needed */
            continue;
        }
        lk__text_span span = {text + from, piece, from > 0};
        CHECK_OK(context, lk__text_encoder_encode(encoder, span, &encoded));
        memcpy(numbers + count, encoded.ids, encoded.count * sizeof *encoded.ids);
        count += encoded.count, from += piece, want = 100;
    }
    lk__text_encoder_free(encoder);
    return count;
}

/* ---- tests ---- */

static lk_tokenizer *open_golden(const char *name)
{
    static const char off[] = "\"add_prefix_space\":false", on[] = "\"add_prefix_space\":true ";
    bool              prefix = strcmp(name, "gpt2_prefix") == 0;
    char              path[1024];
    size_t            size;
    lk_tokenizer     *t;
    snprintf(path, sizeof path, "%s/test/golden/tokenizers/%s.json", LK_SOURCE_DIR, prefix ? "gpt2" : name);
    char *text = (char *)read_whole(path, &size), *setting;
    text[size] = 0;
    if (prefix) CHECK((setting = strstr(text, off)) && memcpy(setting, on, sizeof on - 1));
    CHECK_OK(context, lk_tokenizer_from_json(context, path, text, size, &t));
    free(text);
    return t;
}

static void compare_all(const char *kind)
{
    static const struct {
        const char      *name;
        lk__pretokenizer rule;
    } rules[] = {{"gpt2", LK__SPLIT_GPT2},          {"llama3", LK__SPLIT_LLAMA3}, {"qwen2", LK__SPLIT_QWEN2},
                 {"digits", LK__SPLIT_GPT2_DIGITS}, {"r50k", LK__SPLIT_GPT2},     {"cl100k", LK__SPLIT_LLAMA3}};
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "digits", "gpt2_prefix"};
    char                     what[64];
    texts                    t = make_texts(kind);
    for (size_t i = 0; i < COUNT(rules) && t.count; i++) {
        if (i >= 4 && strcmp(kind, "strings") != 0) break;
        snprintf(what, sizeof what, "splits_%s", rules[i].name);
        compare(&t, what, list_words, &rules[i].rule);
    }
    if (t.count) compare(&t, "nfc", list_normalized, NULL);
    for (size_t i = 0; i < COUNT(names) && t.count; i++) {
        lk_tokenizer *tokenizer = open_golden(names[i]);
        snprintf(what, sizeof what, "ids_%s", names[i]);
        compare(&t, what, list_ids, tokenizer);
        compare(&t, what, list_ids_in_pieces, tokenizer);
        snprintf(what, sizeof what, "text_%s", names[i]);
        /* in these there is an added token outside of ASCII, which `tokenizers` decodes as if its characters spelled
         * bytes */
        if (strcmp(kind, "strings") != 0 || strcmp(names[i], "qwen2") != 0) compare(&t, what, list_text, tokenizer);
        lk_tokenizer_free(tokenizer);
    }
    if (t.count == 0)
        printf("skipped: %s does not exist; set LOCKSTEP_SHARED\n", shared("data/tinyshakespeare/input.txt"));
    free_texts(&t);
}

static void random_strings_agree(void) { compare_all("strings"); }
static void multilingual_text_agrees(void) { compare_all("multilingual"); }
static void multilingual_lines_agree(void) { compare_all("lines"); }
static void tinyshakespeare_agrees(void) { compare_all("shakespeare"); }

int main(void)
{
    size_t size;
    char   path[1024];
    context = make_context();
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    snprintf(path, sizeof path, "%s/test/golden/tokenizers/results.txt", LK_SOURCE_DIR);
    unsigned char *text = read_whole(path, &size);
    results = malloc(size + 2);
    results[0] = '\n';
    memcpy(results + 1, text, size);
    results[size + 1] = 0;
    free(text);
    RUN(random_strings_agree);
    RUN(multilingual_text_agrees);
    RUN(multilingual_lines_agree);
    RUN(tinyshakespeare_agrees);
    free(results);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held);
    free_context(context);
    return 0;
}
