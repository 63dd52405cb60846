/* test_data_tokenize.c - lk_data_tokenize writes what tokens: and llm.c read, in memory that does not depend on the
 * text, and leaves nothing after a failure; ids of large texts go to a temporary file. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "text_files.h"

#include "data/text/store.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

static lk_data_tokenize_config tokenize_config(const char *const *paths, int count, const char *tokenizer,
                                               const char *out)
{
    lk_data_tokenize_config c = LK_DATA_TOKENIZE_CONFIG_INIT;
    c.paths = paths, c.paths_count = count, c.tokenizer = tokenizer, c.out = out;
    return c;
}

/* The bytes of the file are those that llm.c's reader expects, and tokens:FILE gives what text: and jsonl: give. */
static void tokenized_texts_are_read_back(void)
{
    static const char text[] = "one text\n", lines[] = "{\"text\": \"two\"}\n{\"text\": \"th\\u0072ee\"}\n",
                      wanted[] = "one text\n\xfftwo\xffthree\xff";
    const char *paths[] = {place("a.txt"), place("b.jsonl")};
    write_byte_tokenizer(place("tokenizer.json"));
    write_file(paths[0], text, sizeof text - 1);
    write_gzip(place("b.jsonl.gz"), lines, sizeof lines - 1);
    write_file(paths[1], lines, sizeof lines - 1);
    for (int k = 0; k < 4; k++) {
        int                     width = k & 1 ? 4 : 2;
        lk_data_tokenize_result result;
        size_t                  size, n = sizeof wanted - 1;
        if (k & 2) paths[1] = place("b.jsonl.gz");
        lk_data_tokenize_config c = tokenize_config(paths, 2, place("tokenizer.json"), place("out.bin"));
        c.token_bytes = k & 1 ? 4 : 0;
        CHECK_OK(context, lk_data_tokenize(context, &c, &result));
        CHECK(result.tokens == (int64_t)n && result.documents == 3 && result.bytes == (int64_t)n - 3 &&
              result.token_bytes == width);
        unsigned char *bytes = read_whole(place("out.bin"), &size);
        CHECK(size == 1024 + n * (size_t)width);
        int32_t words[256];
        memcpy(words, bytes, sizeof words); /* this test runs on machines with the lowest byte first */
        CHECK(words[0] == (width == 2 ? 20240520 : 20240801) && words[1] == (width == 2 ? 1 : 7) &&
              words[2] == (int32_t)n);
        for (size_t i = 0; i < n; i++) {
            uint32_t id = bytes[1024 + i * (size_t)width] | (uint32_t)bytes[1025 + i * (size_t)width] << 8;
            CHECK(id == ((unsigned char)wanted[i] == 0xff ? TEXT_END : (unsigned char)wanted[i]));
        }
        free(bytes);
        lk_open_options o = options_of(NULL, 5);
        lk_dataset     *d;
        lk_text_info    info;
        int32_t         got[64];
        o.packing = 1; /* the header has the end token */
        CHECK_OK(context, open_as("tokens", place("out.bin"), LK_SPLIT_TRAIN, &o, &d));
        CHECK(lk_dataset_text(d, &info) && info.vocabulary == 257 && info.bytes == (int64_t)n - 3 &&
              info.tokens == (int64_t)n);
        list_tokens(d, false, got);
        for (size_t i = 0; i + 1 < n; i++)
            CHECK(got[i] == ((unsigned char)wanted[i] == 0xff ? TEXT_END : (unsigned char)wanted[i]));
        lk_dataset_free(d);
        o.tokenizer = place("tokenizer.json");
        CHECK_OK(context, open_as("tokens", place("out.bin"), LK_SPLIT_TRAIN, &o, &d));
        lk_dataset_free(d);
    }
    /* "char" keeps its vocabulary beside the tokens. */
    lk_data_tokenize_result result;
    lk_data_tokenize_config c = tokenize_config(paths, 1, "char", place("chars.bin"));
    lk_tokenizer           *tokenizer;
    CHECK_OK(context, lk_data_tokenize(context, &c, &result));
    CHECK(result.tokens == sizeof text - 1);
    CHECK_OK(context, lk_tokenizer_open(context, place("chars.bin.tokenizer.json"), &tokenizer));
    CHECK(strcmp(lk_tokenizer_kind(tokenizer), "char") == 0 && lk_tokenizer_vocabulary(tokenizer) == 7);
    lk_tokenizer_free(tokenizer);
}

static int stop_after_three(void *user, int64_t done, int64_t total)
{
    CHECK(done >= 0 && done <= total);
    return ++*(int *)user > 3;
}

/* Nothing is left of a file that could not be written, and an older one stays as it was. */
static void a_failed_write_leaves_nothing(void)
{
    static char             text[3 << 20];
    const char             *paths[] = {place("long.txt")}, *out = place("failed.bin");
    lk_data_tokenize_result result;
    lk_data_tokenize_config c = tokenize_config(paths, 1, "byte", out);
    char                    temporary[600];
    int                     calls = 0;
    memset(text, 'a', sizeof text);
    for (size_t i = 100; i < sizeof text; i += 100) text[i] = '\n';
    write_file(paths[0], text, sizeof text);
    write_file(out, "old", 3);
    snprintf(temporary, sizeof temporary, "%s.tmp.%d", out, (int)getpid());
    c.progress = stop_after_three, c.user = &calls;
    write_file(place("more.txt"), text, sizeof text);
    const char *both[] = {paths[0], place("more.txt")};
    c.paths = both, c.paths_count = 2;
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_ECANCELED, "failed.bin was not written");
    c.paths = paths, c.paths_count = 1;
    CHECK(access(temporary, F_OK) != 0);
    c.progress = NULL;
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 2 << 20; /* as a full disk: a write fails in the middle */
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    lk_status status = lk_data_tokenize(context, &c, &result);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_FAILS(context, status, LK_EIO, "failed.bin: cannot write");
    CHECK(access(temporary, F_OK) != 0 && errno == ENOENT);
    size_t         size;
    unsigned char *bytes = read_whole(out, &size);
    CHECK(size == 3 && memcmp(bytes, "old", 3) == 0);
    free(bytes);
    c.token_bytes = 3;
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EINVAL, "a token size of 3 bytes");
    c.token_bytes = 0, c.out = paths[0];
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EINVAL, "is one of the texts");
    c.out = scratch_directory;
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EINVAL, "is a directory");
    char below[4096];
    snprintf(below, sizeof below, "%s/out.bin", paths[0]);
    c.out = below;
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EINVAL, "cannot create the directory");
    c.out = place("no/such/out.bin"); /* its directory is created */
    CHECK(lk_data_tokenize(context, &c, &result) == LK_OK);
    CHECK(access(place("no/such/out.bin"), R_OK) == 0);
    c.out = out, c.tokenizer = place("missing.json");
    CHECK(lk_data_tokenize(context, &c, &result) < 0 && strstr(lk_context_error(context), "missing.json"));
    c.tokenizer = NULL;
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EINVAL, "a tokenizer is required");
    write_file(place("empty.txt"), "", 0);
    const char *empty[] = {place("empty.txt")};
    c.paths = empty, c.tokenizer = "byte";
    CHECK_FAILS(context, lk_data_tokenize(context, &c, &result), LK_EFORMAT, "empty.txt is empty");
}

/* Memory does not grow with the text: 48 MB of it need no more than 3 MB of it. */
static size_t  peak;
static int64_t live;
static void   *metered_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    live += (int64_t)bytes;
    if (live > (int64_t)peak) peak = (size_t)live;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void metered_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    live -= (int64_t)bytes;
    free(memory);
}

static void memory_does_not_depend_on_the_text(void)
{
    lk_context_config       config = LK_CONTEXT_CONFIG_INIT;
    lk_context             *metered;
    lk_data_tokenize_result result;
    const char             *many[16];
    size_t                  peaks[2];
    config.threads = 1;
    config.allocator = (lk_allocator){metered_alloc, metered_free, NULL};
    for (int i = 0; i < 16; i++) many[i] = place("long.txt");
    for (int k = 0; k < 2; k++) {
        CHECK(lk_context_create(&config, &metered) == LK_OK);
        lk_data_tokenize_config c = tokenize_config(many, k ? 16 : 1, "byte", place("out.bin"));
        peak = 0;
        CHECK_OK(metered, lk_data_tokenize(metered, &c, &result));
        CHECK(result.bytes == (k ? 16 : 1) * (INT64_C(3) << 20));
        peaks[k] = peak;
        lk_context_free(metered);
    }
    CHECK(peaks[1] < peaks[0] + 65536 && peaks[0] < 32 << 20);
}

/* ---- ids of texts that are opened without a file of tokens ---- */

static lk_status fill_store(lk__text_store *store, int64_t count)
{
    int32_t   ids[3000];
    lk_status status = LK_OK;
    for (int64_t at = 0, n; at < count && status >= 0; at += n) {
        n = (at * 7919 + 1) % 2999 + 1;
        if (n > count - at) n = count - at;
        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)((at + i) * 2654435761 % (store->width == 1 ? 251 : store->width == 2 ? 65521 : 1 << 30));
        status = lk__text_store_add(store, ids, (size_t)n);
    }
    return status;
}

/* Beyond a limit they are in a file without a name, which is mapped; where there can be none, they stay in memory. */
static void many_ids_go_to_a_file(void)
{
    enum { COUNT = 2000003 };
    char *before = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    for (int k = 0; k < 9; k++) {
        lk__text_store store = {.context = context, .width = 1 << k % 3, .limit = k < 3 ? 0 : 100000};
        lk__text_ids   ids;
        lk__map        map;
        setenv("TMPDIR", k < 6 ? scratch_directory : scratch("no-such-directory"), 1);
        lk__context_read_environment(context);
        CHECK_OK(context, fill_store(&store, COUNT));
        bool in_file = k >= 3 && k < 6;
        CHECK(store.in_file == in_file && (!in_file || lk_context_memory(context, LK_MEMORY_DATA) < 2 << 20));
        CHECK_OK(context, lk__text_store_finish(&store, &ids, &map));
        CHECK(map.mapped == in_file && ids.count == COUNT && ids.width == store.width);
        for (int64_t i = 0; i < COUNT; i++)
            CHECK(lk__text_id(&ids, i) == i * 2654435761 % (ids.width == 1 ? 251 : ids.width == 2 ? 65521 : 1 << 30));
        lk__map_close(&map);
        lk__text_store_free(&store);
        CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    }
    setenv("TMPDIR", scratch_directory, 1);
    lk__context_read_environment(context);
    lk__text_store full = {.context = context, .width = 2, .limit = 100000};
    struct rlimit  limit, unlimited;
    CHECK(getrlimit(RLIMIT_FSIZE, &unlimited) == 0);
    limit = unlimited;
    limit.rlim_cur = 2 << 20;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    lk_status status = fill_store(&full, COUNT);
    CHECK(setrlimit(RLIMIT_FSIZE, &unlimited) == 0);
    CHECK_FAILS(context, status, LK_EIO, "temporary file in", "data tokenize");
    lk__text_store_free(&full);
    before ? setenv("TMPDIR", before, 1) : unsetenv("TMPDIR");
    lk__context_read_environment(context);
    free(before);
}

int main(void)
{
    make_scratch();
    context = make_context();
    RUN(tokenized_texts_are_read_back);
    RUN(a_failed_write_leaves_nothing);
    RUN(memory_does_not_depend_on_the_text);
    RUN(many_ids_go_to_a_file);
    free_context(context);
    return 0;
}
