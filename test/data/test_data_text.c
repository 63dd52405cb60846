/* test_data_text.c - samples of language models against naive loops: windows and packed documents of token files in
 * every format, at any number of ranks and workers and after a seek; ids out of range and damaged files; files that are
 * larger than the memory.
 *
 * ctest: label threaded */
#define _GNU_SOURCE
#include "test_data.h"

#include <fcntl.h>
#include <time.h>

static lk_context *context;

enum { END = 5, VOCABULARY = 1000, LONGEST = 4096 };

/* ---- token files, written by hand ---- */

typedef enum format { PLAIN, LLM_C, OWN } format;

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> 8 * i);
}

/* llm.c's header: 256 words; ours has more in words 8 to 15. */
static size_t make_header(unsigned char *out, format f, int width, uint64_t count, uint32_t vocabulary, int end,
                          uint64_t text)
{
    memset(out, 0, 1024);
    put(out, width == 2 ? 20240520 : 20240801, 4);
    put(out + 4, width == 2 ? 1 : 7, 4);
    put(out + 8, count, 4);
    if (f == LLM_C) return 1024;
    memcpy(out + 32, "LKTK", 4);
    put(out + 36, 1, 4);
    put(out + 40, vocabulary, 4);
    put(out + 44, (uint32_t)(end + 1), 4);
    put(out + 48, count, 8);
    put(out + 56, text, 8);
    return 1024;
}

static void write_tokens(const char *path, format f, int width, const uint32_t *ids, size_t count)
{
    unsigned char *bytes = malloc(1024 + 4 * count);
    size_t         size = f == PLAIN ? 0 : make_header(bytes, f, width, count, VOCABULARY, END, 3 * count);
    for (size_t i = 0; i < count; i++, size += (size_t)width) put(bytes + size, ids[i], width);
    write_file(path, bytes, size);
    free(bytes);
}

/* Documents of 0 to 12 tokens below VOCABULARY. */
static void draw_tokens(uint32_t *ids, int64_t count, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = state >> 28 == 3 ? END : (state >> 8) % VOCABULARY;
    }
}

/* ---- the oracle: the fields of the window that starts at token `start` ---- */

typedef struct window {
    int32_t tokens[LONGEST], label[LONGEST], positions[LONGEST], first[LONGEST];
} window;

static void make_window(const uint32_t *ids, int64_t count, int64_t start, int64_t length, bool packed, window *w)
{
    for (int64_t j = 0; j < length; j++) {
        int64_t i = start + j;
        bool    input = i + 1 < count; /* has a next token */
        w->tokens[j] = input ? (int32_t)ids[i] : 0;
        w->label[j] = input && !(packed && ids[i] == END) ? (int32_t)ids[i + 1] : -100;
        int64_t first = j, padding = count - 1 - start; /* padding: from there on */
        while (input && first > 0 && ids[start + first - 1] != END) first--;
        w->first[j] = (int32_t)(input ? first : padding);
        w->positions[j] = (int32_t)j - w->first[j];
    }
}

static void compare_field(const char *name, int64_t index, const int32_t *got, const int32_t *wanted, int64_t length)
{
    for (int64_t j = 0; j < length; j++)
        if (got[j] != wanted[j]) {
            fprintf(stderr, "sample %lld, %s[%lld] is %d, not %d\n", (long long)index, name, (long long)j, got[j],
                    wanted[j]);
            exit(1);
        }
}

static lk_open_options options_of(int64_t length, int packing)
{
    lk_open_options o = LK_OPEN_OPTIONS_INIT;
    o.context = length;
    o.packing = packing;
    return o;
}

static lk_status open_file(const char *path, lk_split split, const lk_open_options *o, lk_dataset **d)
{
    char name[600];
    snprintf(name, sizeof name, "tokens:%s", path);
    return lk_dataset_open(context, name, split, o, d);
}

/* Every sample of a data set over these ids; `whole` windows start at every offset. */
static int  vocabulary; /* of the field "tokens" */
static void check_samples(const lk_dataset *d, const uint32_t *ids, int64_t count, int64_t length, bool packed,
                          bool whole)
{
    static window wanted, got;
    int64_t       samples = 0;
    if (whole)
        samples = count - length;
    else
        for (int64_t start = 0; start < count - 1; start += length) samples++;
    CHECK(lk_dataset_count(d) == samples && lk_dataset_fields(d) == (packed ? 4 : 2));
    static const char *const names[] = {"tokens", "label", "positions", "first"};
    for (int i = 0; i < lk_dataset_fields(d); i++) {
        const lk_field *f = lk_dataset_field(d, i);
        CHECK(strcmp(f->name, names[i]) == 0 && f->dtype == LK_I32 && f->rank == 1 && f->dims[0] == length);
        CHECK(f->classes == (i ? 0 : vocabulary));
    }
    for (int64_t i = 0; i < samples; i++) {
        memset(&got, 0x55, sizeof got);
        make_window(ids, count, whole ? i : i * length, length, packed, &wanted);
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){got.tokens, got.label, got.positions, got.first}));
        compare_field("tokens", i, got.tokens, wanted.tokens, length);
        compare_field("label", i, got.label, wanted.label, length);
        if (packed) compare_field("positions", i, got.positions, wanted.positions, length);
        if (packed) compare_field("first", i, got.first, wanted.first, length);
    }
}

static void samples_equal_naive_loops(void)
{
    static const int64_t lengths[] = {1, 2, 3, 7, 16, 64}, extras[] = {1, 2, 3, 29, 64, 65, 100, 129};
    static uint32_t      ids[LONGEST];
    for (int l = 0; l < 6; l++)
        for (int e = 0; e < 8; e++)
            for (int f = 0; f < 3; f++)
                for (int width = 2; width <= 4; width += 2)
                    for (int packing = -1; packing <= (f == OWN); packing += 2) { /* only our header has an end token */
                        int64_t         length = lengths[l], count = length + extras[e];
                        lk_open_options o = options_of(length, packing);
                        const char     *path = scratch(width == 2 ? "a.u16" : "a.u32");
                        lk_dataset     *d;
                        lk_text_info    info;
                        draw_tokens(ids, count, (uint32_t)(l * 8 + e));
                        write_tokens(path, (format)f, width, ids, (size_t)count);
                        CHECK_OK(context, open_file(path, LK_SPLIT_TRAIN, &o, &d));
                        vocabulary = f == OWN ? VOCABULARY : 0;
                        check_samples(d, ids, count, length, packing > 0, packing < 0);
                        CHECK(lk_dataset_text(d, &info) && info.tokens == count && info.longest == length &&
                              !info.tokenizer);
                        CHECK(info.vocabulary == (f == OWN ? VOCABULARY : 0) &&
                              info.bytes == (f == OWN ? 3 * count : 0));
                        CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0); /* mapped */
                        lk_dataset_free(d);
                        CHECK(open_file(path, LK_SPLIT_TEST, &o, &d) == LK_END && !d);
                    }
}

/* Of the validation set every token but the first is predicted exactly once. Packed documents:
 * test_data_evaluation.c. */
static void validation_predicts_every_token_once(void)
{
    static uint32_t ids[LONGEST];
    static int32_t  tokens[LONGEST], label[LONGEST], positions[LONGEST], first[LONGEST];
    vocabulary = VOCABULARY;
    for (int64_t count = 40; count < 75; count++)
        for (int packing = -1; packing <= 1; packing += 2) {
            lk_open_options o = options_of(8, packing);
            lk_dataset     *d;
            char            name[1200];
            int64_t         predicted = 0, expected = 0;
            draw_tokens(ids, count, (uint32_t)count);
            write_tokens(scratch("train.bin"), OWN, 2, ids, (size_t)count);
            write_tokens(scratch("validation.bin"), OWN, 2, ids + 20, (size_t)count - 20);
            snprintf(name, sizeof name, "tokens:%s,%s", scratch("train.bin"), scratch("validation.bin"));
            CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TEST, &o, &d));
            if (packing < 0) check_samples(d, ids + 20, count - 20, 8, false, false);
            for (int64_t i = 0; i < lk_dataset_count(d); i++) {
                CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, label, positions, first}));
                for (int j = 0; j < 8; j++) predicted += label[j] != -100;
            }
            for (int64_t i = 21; i < count; i++) expected += packing < 0 || (ids[i - 1] != END && ids[i] != END);
            CHECK(predicted == expected);
            lk_dataset_free(d);
            CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d));
            check_samples(d, ids, count, 8, packing > 0, packing < 0);
            lk_dataset_free(d);
            o.holdout = 0.3; /* and without a file of its own: the last part, as a program of nanoGPT takes it */
            int64_t kept = (int64_t)((double)count * 0.7);
            snprintf(name, sizeof name, "tokens:%s", scratch("train.bin"));
            CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d));
            check_samples(d, ids, kept, 8, packing > 0, packing < 0);
            lk_dataset_free(d);
            CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TEST, &o, &d));
            if (packing < 0) check_samples(d, ids + kept, count - kept, 8, false, false);
            lk_text_info info;
            CHECK(lk_dataset_text(d, &info) && info.tokens == count - kept && info.bytes == 3 * (count - kept));
            char wanted[600];
            snprintf(wanted, sizeof wanted, "%s: token %lld", scratch("train.bin"), (long long)kept + 8);
            CHECK(packing > 0 || strcmp(lk_dataset_sample_name(d, 1), wanted) == 0);
            lk_dataset_free(d);
            snprintf(name, sizeof name, "tokens:%s,%s", scratch("train.bin"), scratch("validation.bin"));
            CHECK_FAILS(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &o, &d), LK_EINVAL,
                        "has its own validation set");
        }
}

/* ---- batches ---- */

enum { BATCH = 10, STEPS = 40 };

/* The rows of `STEPS` batches from (epoch, position) on: with `parts` ranks each makes its share. */
static void collect(const lk_dataset *d, int parts, int workers, int64_t epoch, int64_t position, int64_t *indices,
                    int32_t *rows)
{
    int64_t row = lk_field_elements(lk_dataset_field(d, 0));
    int     fields = lk_dataset_fields(d);
    for (int part = 0; part < parts; part++) {
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        lk_loader       *loader;
        lk_batch         b;
        c.dataset = d, c.batch = BATCH, c.shuffle = true, c.seed = 3, c.workers = workers;
        c.parts = parts, c.first_part = part, c.last_part = part + 1;
        CHECK(lk_loader_bytes(&c) < 1 << 20); /* no list of all windows */
        CHECK_OK(context, lk_loader_create(context, &c, &loader));
        if (epoch || position) CHECK_OK(context, lk_loader_seek(loader, epoch, position));
        for (int step = 0; step < STEPS; step++) {
            lk_status status = lk_loader_next(loader, &b);
            if (status == LK_END) status = lk_loader_next(loader, &b);
            CHECK_OK(context, status);
            for (int64_t i = 0; i < b.count; i++) {
                int64_t at = step * BATCH + b.offset + i;
                indices[at] = b.indices[i];
                for (int k = 0; k < fields; k++)
                    memcpy(rows + (at * fields + k) * row, (const int32_t *)b.fields[k] + i * row,
                           (size_t)row * sizeof *rows);
            }
        }
        lk_loader_free(loader);
    }
}

/* Batches hold the oracle's windows, and neither ranks nor workers nor a resume change which. */
static void batches_do_not_depend_on_ranks_workers_and_resume(void)
{
    enum { COUNT = 70000, T = 12 };
    uint32_t *ids = malloc(COUNT * sizeof *ids);
    int64_t   wanted[STEPS * BATCH], got[STEPS * BATCH];
    int32_t  *rows = calloc(STEPS * BATCH * 4 * T, sizeof *rows), *again = calloc(STEPS * BATCH * 4 * T, sizeof *again);
    draw_tokens(ids, COUNT, 1);
    write_tokens(scratch("loader.bin"), OWN, 2, ids, COUNT);
    for (int packing = -1; packing <= 1; packing += 2) {
        lk_open_options o = options_of(T, packing);
        lk_dataset     *d;
        window          w;
        int             fields = packing > 0 ? 4 : 2;
        size_t          bytes = (size_t)(STEPS * BATCH * fields * T) * sizeof *rows;
        CHECK_OK(context, open_file(scratch("loader.bin"), LK_SPLIT_TRAIN, &o, &d));
        collect(d, 1, 0, 0, 0, wanted, rows);
        for (int64_t i = 0; i < STEPS * BATCH; i++) {
            const int32_t *r = rows + i * fields * T;
            make_window(ids, COUNT, wanted[i] * (packing > 0 ? T : 1), T, packing > 0, &w);
            compare_field("tokens", i, r, w.tokens, T);
            compare_field("label", i, r + T, w.label, T);
            if (packing > 0) compare_field("positions", i, r + 2 * T, w.positions, T);
            if (packing > 0) compare_field("first", i, r + 3 * T, w.first, T);
            for (int64_t k = 0; k < i; k++) CHECK(wanted[i] != wanted[k]); /* within an epoch */
        }
        for (int parts = 1; parts <= 3; parts++)
            for (int workers = 0; workers <= 3; workers += 3) {
                collect(d, parts, workers, 0, 0, got, again);
                CHECK(memcmp(got, wanted, sizeof got) == 0 && memcmp(again, rows, bytes) == 0);
                collect(d, parts, workers, 0, 13 * BATCH, got, again); /* the others follow the 13 batches */
                size_t skipped = 13 * BATCH;
                CHECK(memcmp(got, wanted + skipped, sizeof got - skipped * sizeof *got) == 0);
                CHECK(memcmp(again, rows + skipped * (size_t)(fields * T),
                             bytes - skipped * (size_t)(fields * T) * sizeof *rows) == 0);
            }
        /* Across the end of an epoch, which has an uneven batch, and in a later one. */
        int64_t end = lk_dataset_count(d);
        collect(d, 1, 0, 4, end - 7, wanted, rows);
        collect(d, 3, 2, 4, end - 7, got, again);
        CHECK(memcmp(got + BATCH, wanted + BATCH, sizeof got - BATCH * sizeof *got) == 0);
        lk_dataset_free(d);
    }
    free(ids), free(rows), free(again);
}

/* ---- mistakes ---- */

static void refuse_bytes(const void *bytes, size_t size, lk_open_options o, lk_status status, const char *a,
                         const char *b)
{
    lk_dataset *d;
    char        name[600];
    write_file(scratch("bad.bin"), bytes, size);
    CHECK_FAILS(context, open_file(scratch("bad.bin"), LK_SPLIT_TRAIN, &o, &d), status, "bad.bin", a, b);
    CHECK(!d);
    snprintf(name, sizeof name, "tokens:%s", scratch("bad.bin"));
    CHECK_FAILS(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, &o, &d), status, "bad.bin", a, b);
}

static void damaged_files_are_refused(void)
{
    unsigned char   bytes[2048] = {0};
    lk_open_options o = options_of(8, 0), wide = o, packed = options_of(8, 1);
    wide.token_bytes = 4;
    refuse_bytes("", 0, o, LK_EFORMAT, "is empty", "");
    refuse_bytes(bytes, 17, o, LK_EFORMAT, "17 bytes", "2-byte tokens");
    refuse_bytes(bytes, 1001, o, LK_EFORMAT, "1001 bytes", "--token-type");
    refuse_bytes(bytes, 1002, wide, LK_EFORMAT, "1002 bytes", "4-byte tokens");
    refuse_bytes(bytes, 16, o, LK_EFORMAT, "has 8 tokens", "a context of 8 needs at least 9");
    refuse_bytes("\x93NUMPY\1\0", 8, o, LK_EFORMAT, "NumPy", "tofile");
    refuse_bytes(bytes, 100, packed, LK_EINVAL, "end token", "--packing windows");
    make_header(bytes, LLM_C, 2, 500, 0, 0, 0);
    refuse_bytes(bytes, 1000, o, LK_EFORMAT, "truncated", "1024 bytes");
    refuse_bytes(bytes, 1024 + 999, o, LK_EFORMAT, "declares 500 tokens of 2 bytes", "999 bytes follow");
    refuse_bytes(bytes, 1024 + 1002, o, LK_EFORMAT, "declares 500 tokens of 2 bytes", "1002 bytes follow");
    put(bytes + 4, 2, 4);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "20240520 of version 2", "only version 1");
    put(bytes + 4, 7, 4), put(bytes, 20240801, 4), put(bytes + 4, 1, 4);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "20240801 of version 1", "only version 7");
    put(bytes, 20240522, 4);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "multiple-choice", "");
    make_header(bytes, OWN, 2, 500, VOCABULARY, END, 0);
    put(bytes + 36, 2, 4);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "format version 2", "version 1");
    put(bytes + 36, 1, 4), put(bytes + 48, UINT64_MAX, 8);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "damaged header", "data tokenize");
    put(bytes + 48, INT64_MAX, 8);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "declares 9223372036854775807 tokens", "");
    put(bytes + 48, 500, 8), put(bytes + 44, VOCABULARY + 1, 4);
    refuse_bytes(bytes, 1024 + 1000, o, LK_EFORMAT, "damaged header", "");
    lk_dataset *d;
    CHECK_FAILS(context, open_file(scratch("missing.bin"), LK_SPLIT_TRAIN, &o, &d), LK_ENOENT, "missing.bin",
                "No such file");
    CHECK_FAILS(context, open_file(scratch_directory, LK_SPLIT_TRAIN, &o, &d), LK_EFORMAT, "a directory, not a file");
    CHECK_FAILS(context, lk_dataset_open(context, "tokens:", LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "tokens:FILE");
    o.context = -1;
    CHECK_FAILS(context, open_file(scratch("bad.bin"), LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "a context of -1 tokens");
    o = options_of(8, 2);
    CHECK_FAILS(context, open_file(scratch("bad.bin"), LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "packing 2");
    o = options_of(8, 0), o.token_bytes = 3;
    CHECK_FAILS(context, open_file(scratch("bad.bin"), LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "a token size of 3 bytes");
}

/* Opening does not read the ids: one that is out of range is refused when its sample is read, wherever it is in the
 * window, with its number in the file and its value. */
static void ids_beyond_the_vocabulary_are_named(void)
{
    enum { COUNT = 64, T = 8, BAD = 37 };
    uint32_t        ids[COUNT];
    int32_t         tokens[T], label[T], positions[T], first[T];
    lk_open_options o = options_of(T, -1);
    lk_dataset     *d;
    draw_tokens(ids, COUNT, 9);
    ids[BAD] = VOCABULARY;
    write_tokens(scratch("bad.bin"), OWN, 2, ids, COUNT);
    CHECK_OK(context, open_file(scratch("bad.bin"), LK_SPLIT_TRAIN, &o, &d));
    for (int64_t i = 0; i < COUNT - T; i++) {
        lk_status status = lk_dataset_get(d, i, (void *[]){tokens, label});
        if (i <= BAD && BAD <= i + T)
            CHECK_FAILS(context, status, LK_EFORMAT, "bad.bin: token 37 is 1000", "vocabulary has 1000 tokens");
        else
            CHECK_OK(context, status);
    }
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    lk_loader       *loader;
    lk_batch         b;
    c.dataset = d, c.batch = 16;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    CHECK_OK(context, lk_loader_next(loader, &b));
    CHECK_FAILS(context, lk_loader_next(loader, &b), LK_EFORMAT, "position 16", "token 37 is 1000");
    lk_loader_free(loader);
    lk_dataset_free(d);
    /* Without a vocabulary only what is no id at all; the model checks the rest. */
    ids[BAD] = 0x80000000u;
    write_tokens(scratch("bad.u32"), PLAIN, 4, ids, COUNT);
    CHECK_OK(context, open_file(scratch("bad.u32"), LK_SPLIT_TRAIN, &o, &d));
    CHECK_OK(context, lk_dataset_get(d, 0, (void *[]){tokens, label}));
    CHECK_FAILS(context, lk_dataset_get(d, BAD - 3, (void *[]){tokens, label}), LK_EFORMAT, "token 37 is 2147483648");
    lk_dataset_free(d);
    (void)positions, (void)first;
}

static void a_tokenizer_of_another_vocabulary_is_refused(void)
{
    uint32_t        ids[64];
    lk_open_options o = options_of(8, 0);
    lk_dataset     *d;
    lk_text_info    info;
    draw_tokens(ids, 64, 2);
    write_tokens(scratch("a.bin"), OWN, 2, ids, 64);
    o.tokenizer = "byte";
    CHECK_FAILS(context, open_file(scratch("a.bin"), LK_SPLIT_TRAIN, &o, &d), LK_EMISMATCH, "vocabulary of 1000",
                "byte has one of 256");
    o.tokenizer = "char";
    CHECK_FAILS(context, open_file(scratch("a.bin"), LK_SPLIT_TRAIN, &o, &d), LK_EINVAL, "char is built from a text");
    for (int i = 0; i < 64; i++) ids[i] %= 256;
    write_tokens(scratch("a.bin"), PLAIN, 2, ids, 64);
    o.tokenizer = "byte";
    CHECK_OK(context, open_file(scratch("a.bin"), LK_SPLIT_TRAIN, &o, &d));
    CHECK(lk_dataset_text(d, &info) && info.vocabulary == 256 &&
          strcmp(lk_tokenizer_kind(info.tokenizer), "byte") == 0);
    lk_dataset_free(d);
    lk_dataset_synthetic_config config = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    CHECK_OK(context, lk_dataset_synthetic(context, &config, &d));
    CHECK(!lk_dataset_text(d, &info) && info.tokens == 0 && !info.tokenizer);
    lk_dataset_free(d);
}

/* ---- sizes ---- */

/* 10^10 tokens, of which hardly a page exists. Opening, its loader, and a window at the end take no memory for them. */
static void a_file_may_be_larger_than_the_memory(void)
{
    enum { T = 1024 };
    static int32_t       tokens[T], label[T];
    static unsigned char tail[8] = {1, 0, 2, 0, 3, 0, 4, 0};
    const off_t          size = (off_t)20 << 30;
    const char          *path = scratch("sparse.bin");
    lk_open_options      o = options_of(T, 0);
    lk_dataset          *d;
    lk_loader           *loader;
    lk_batch             b;
    int                  fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, size) != 0) {
        printf("  not run: the file system has no files of 20 GiB\n");
        if (fd >= 0) close(fd);
        return;
    }
    CHECK(pwrite(fd, tail, 8, size - 8) == 8);
    close(fd);
    lk_status status = open_file(path, LK_SPLIT_TRAIN, &o, &d);
    if (status == LK_EIO && strstr(lk_context_error(context), "Cannot allocate memory")) {
        printf("  not run: there is no address space for 20 GiB, as under the thread sanitizer\n");
        unlink(path);
        return;
    }
    CHECK_OK(context, status);
    int64_t count = lk_dataset_count(d);
    CHECK(count == (int64_t)size / 2 - T);
    CHECK_OK(context, lk_dataset_get(d, count - 1, (void *[]){tokens, label}));
    CHECK(tokens[T - 4] == 0 && tokens[T - 3] == 1 && tokens[T - 1] == 3 && label[T - 1] == 4 && label[T - 2] == 3);
    char wanted[600];
    snprintf(wanted, sizeof wanted, "%s: token %lld", path, (long long)count - 1);
    CHECK(strcmp(lk_dataset_sample_name(d, count - 1), wanted) == 0);
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 4, c.shuffle = true, c.workers = 2;
    CHECK(lk_loader_bytes(&c) < 1 << 20);
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == lk_loader_bytes(&c));
    int64_t largest = 0;
    for (int i = 0; i < 8; i++) {
        CHECK_OK(context, lk_loader_next(loader, &b));
        for (int64_t k = 0; k < b.count; k++) largest = b.indices[k] > largest ? b.indices[k] : largest;
    }
    CHECK(largest > INT32_MAX);
    CHECK_OK(context, lk_loader_seek(loader, 7, count - 2));
    CHECK_OK(context, lk_loader_next(loader, &b));
    CHECK(b.count == 2 && b.epoch == 7);
    lk_loader_free(loader);
    CHECK(lk_context_memory(context, LK_MEMORY_DATA) == 0);
    lk_dataset_free(d);
    unlink(path);
}

static lk_status attempt_open(lk_context *other)
{
    lk_open_options o = options_of(8, 1);
    lk_dataset     *d = NULL;
    char            name[600];
    snprintf(name, sizeof name, "tokens:%s", scratch("memory.bin"));
    lk_status status = lk_dataset_open(other, name, LK_SPLIT_TRAIN, &o, &d);
    lk_dataset_free(d);
    return status;
}

static void each_allocation_may_fail(void)
{
    uint32_t ids[64];
    draw_tokens(ids, 64, 2);
    write_tokens(scratch("memory.bin"), OWN, 2, ids, 64);
    CHECK(fail_each_allocation(attempt_open) >= 3);
}

int main(void)
{
    make_scratch();
    context = make_context();
    RUN(samples_equal_naive_loops);
    RUN(validation_predicts_every_token_once);
    RUN(batches_do_not_depend_on_ranks_workers_and_resume);
    RUN(damaged_files_are_refused);
    RUN(ids_beyond_the_vocabulary_are_named);
    RUN(a_tokenizer_of_another_vocabulary_is_refused);
    RUN(a_file_may_be_larger_than_the_memory);
    RUN(each_allocation_may_fail);
    free_context(context);
    return 0;
}
