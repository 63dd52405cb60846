/* state.c - state.json of a checkpoint: the progress of training, who wrote it, the record of the run, and the digests
 * of all three files and of the chunks of the two large ones. Its own digest is computed with zeros in place of the
 * digest, so that other programs can verify it. */
#define _GNU_SOURCE
#include "train/state.h"

#include "base/json.h"
#include "train/json_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK_TEXT = 16 + 3, /* bytes of a chunk's digest, with quotes and comma */
    STATE_LIMIT = LK__STATE_RECORD + LK__STATE_ALGORITHMS + LK__STATE_CHUNKS * CHUNK_TEXT + 65536,
    DIGITS = 64,
    DIGESTS = (LK__LISTED_FILES + 3) * (LK__LISTED_NAME + DIGITS + 16) /* bytes of all digests, at most */
};
static const int64_t MAX_NUMBER = (int64_t)1 << 53; /* the largest integer that every JSON reader represents exactly */

static bool is_consistent(const lk_progress *p)
{
    return p->step >= 0 && p->step <= MAX_NUMBER && p->epoch >= 0 && p->epoch <= p->step && p->position >= 0 &&
           p->position <= MAX_NUMBER && (p->step > 0 || p->position == 0);
}

lk_status lk__progress_check(lk_context *c, const char *what, const lk_progress *p)
{
    if (is_consistent(p)) return LK_OK;
    return lk__fail(
        c, LK_EINVAL,
        "%s: step %" PRId64 ", epoch %" PRId64 ", position %" PRId64
        ": inconsistent progress (each must be 0 to 2^53, the epoch at most the step, and the position 0 at "
        "step 0)",
        what, p->step, p->epoch, p->position);
}

static void finish_digest(lk__sha256 *sha, char digest[DIGITS + 1])
{
    unsigned char raw[32];
    lk__sha256_final(sha, raw);
    lk__sha256_hex(raw, digest);
}

/* ---- writing ---- */

/* At most `most` bytes of text as a string. */
static size_t quote_name(const char *text, size_t most, char *out, size_t size)
{
    lk__json_writer t = {out, size, 0};
    char            part[256];
    snprintf(part, sizeof part, "%.*s", (int)most, text);
    lk__json_put_string(&t, part);
    return t.used;
}

void lk__state_writer(char out[LK__STATE_WRITER])
{
    enum { NAME = 64 }; /* an escaped byte has up to 6, so both names fit */
    char          host[256] = "", buffer[4096], number[32];
    struct passwd entry, *found = NULL;
    const char   *user =
        getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found ? found->pw_name : number;
    snprintf(number, sizeof number, "%lu", (unsigned long)geteuid());
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "unknown");
    size_t used = (size_t)snprintf(out, LK__STATE_WRITER, "\"host\":");
    used += quote_name(host, NAME, out + used, LK__STATE_WRITER - used);
    used += (size_t)snprintf(out + used, LK__STATE_WRITER - used, ",\"user\":");
    (void)quote_name(user, NAME, out + used, LK__STATE_WRITER - used);
}

size_t lk__state_algorithms(const char *lines, char *out, size_t size)
{
    lk__json_writer t = {out, size, 0};
    char            line[1024];
    lk__json_put(&t, ",\"algorithms\":[");
    for (const char *at = lines; *at;) {
        size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        if (at != lines) lk__json_put(&t, ",");
        lk__json_put_string(&t, line);
        at += length + (at[length] == '\n');
    }
    lk__json_put(&t, "]");
    return t.used;
}

static void format_date(char out[32])
{
    time_t    now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) out[0] = 0;
}

/* Receives the text: adds it to a digest, or writes it to a file. The same code does both, so they agree. */
typedef struct sink {
    lk__sha256 *sha;
    lk__file   *file;
} sink;

static void put(const sink *s, const char *text, size_t bytes)
{
    if (s->sha) lk__sha256_update(s->sha, text, bytes);
    if (s->file) lk__file_write(s->file, text, bytes); /* commit reports the failure */
}

static void format_chunk(uint64_t digest, char out[17]) { snprintf(out, 17, "%016" PRIx64, digest); }

/* The digest over those of the chunks: of their texts, one behind the other. */
static void hash_chunks(const uint64_t *const chunks[2], const size_t counts[2], char digest[DIGITS + 1])
{
    lk__sha256 sha;
    char       text[17];
    lk__sha256_init(&sha);
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < counts[i]; j++) {
            format_chunk(chunks[i][j], text);
            lk__sha256_update(&sha, text, 16);
        }
    finish_digest(&sha, digest);
}

static void put_chunks(const sink *s, const lk__state_content *content, const char *digest)
{
    char text[256], one[17];
    int  n = snprintf(text, sizeof text, ",\"chunks\":{\"bytes\":%" PRIu64, content->chunk_bytes);
    put(s, text, (size_t)n);
    for (int i = 0; i < 2; i++) {
        n = snprintf(text, sizeof text, ",\"%s\":[", i ? "optimizer.safetensors" : "model.safetensors");
        put(s, text, (size_t)n);
        for (size_t j = 0; j < content->chunks_count[i]; j++) {
            format_chunk(content->chunks[i][j], one);
            n = snprintf(text, sizeof text, "%s\"%s\"", j ? "," : "", one);
            put(s, text, (size_t)n);
        }
        put(s, "]", 1);
    }
    n = snprintf(text, sizeof text, ",\"digest\":\"%s\"}", digest);
    put(s, text, (size_t)n);
}

lk_status lk__state_write(lk_context *c, const char *path, void *staging, size_t staging_bytes,
                          const lk__state_content *content)
{
    static const char  end[] = "\"}}\n";
    const lk_progress *p = content->progress;
    char               head[LK__STATE_WRITER + 512], tail[DIGESTS], own[DIGITS + 1], chunks[DIGITS + 1], date[32];
    lk__file           file;
    lk__sha256         sha;
    if (content->chunks_count[0] + content->chunks_count[1] > LK__STATE_CHUNKS)
        return lk__fail(c, LK_EINVAL, "%s: %zu chunks exceed the maximum for a checkpoint, %d", path,
                        content->chunks_count[0] + content->chunks_count[1], LK__STATE_CHUNKS);
    format_date(date);
    int h = snprintf(head, sizeof head,
                     "{\"lockstep\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"position\":%" PRId64
                     ",\"seed\":\"%" PRIu64 "\",\"dtype\":\"%s\"%s%s%s,\"parameters\":%" PRId64
                     ",\"written\":{%s,\"date\":\"%s\"}%s",
                     LK_VERSION_STRING, p->step, p->epoch, p->position, p->seed, content->dtype,
                     content->isa[0] ? ",\"isa\":\"" : "", content->isa, content->isa[0] ? "\"" : "",
                     content->parameters, content->writer, date, content->record ? ",\"record\":" : "");
    int t = snprintf(tail, sizeof tail,
                     ",\"sha256\":{\"model.safetensors\":\"%s\",\"optimizer.safetensors\":\"%s\",%.*s\"state.json\":"
                     "\"%0*d%s",
                     content->model, content->optimizer, (int)content->files_bytes,
                     content->files ? content->files : "", DIGITS, 0, end);
    hash_chunks(content->chunks, content->chunks_count, chunks);
    lk__sha256_init(&sha);
    sink to = {.sha = &sha};
    for (int pass = 0; pass < 2; pass++) { /* the digest of the text, then the text with it */
        put(&to, head, (size_t)h);
        if (content->record) put(&to, content->record, content->record_bytes);
        if (content->algorithms) put(&to, content->algorithms, content->algorithms_bytes);
        put_chunks(&to, content, chunks);
        put(&to, tail, (size_t)t);
        if (pass) break;
        finish_digest(&sha, own);
        memcpy(tail + (size_t)t - strlen(end) - DIGITS, own, DIGITS);
        lk_status status = lk__file_create(&file, c, path, staging, staging_bytes);
        if (status < 0) return status;
        to = (sink){.file = &file};
    }
    return lk__file_commit(&file, NULL);
}

/* ---- reading ---- */

/* A 64-bit number as text: digits only. */
static bool parse_seed(const lk__json *value, uint64_t *seed)
{
    char   text[32];
    size_t length = lk__json_string(value, text, sizeof text);
    if (length == 0 || length >= sizeof text || strspn(text, "0123456789") != length) return false;
    errno = 0;
    *seed = strtoull(text, NULL, 10);
    return errno == 0;
}

/* Verifies the text's own digest; overwrites it with zeros. */
static lk_status check_own_digest(lk__state *state, const char *path, const lk__json *sums)
{
    lk_context *c = state->context;
    lk__json    value;
    char        now[DIGITS + 1];
    lk__sha256  sha;
    if (!lk__json_get(sums, "state.json", &value))
        return lk__fail(c, LK_EFORMAT,
                        "%s has no digest of its own, because it was written by an older version: it cannot be "
                        "resumed, but the model.safetensors in the same directory can be loaded as weights",
                        path);
    if (lk__json_string(&value, state->sha[2], sizeof state->sha[2]) != DIGITS || value.length != DIGITS + 2)
        return lk__fail(c, LK_EFORMAT, "%s is damaged: its own digest is invalid", path);
    memset(state->text + (value.text + 1 - state->text), '0', DIGITS);
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, state->text, state->length);
    finish_digest(&sha, now);
    if (strcmp(state->sha[2], now) == 0) return LK_OK;
    return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 differs from the one saved with it", path);
}

static const char *const own_files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

bool lk__state_file_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t            length = strlen(name);
    for (size_t i = 0; i < sizeof own_files / sizeof *own_files; i++)
        if (strcmp(name, own_files[i]) == 0) return false;
    /* the last three are names of directories, temporaries and renamed files in a checkpoint directory */
    return length > 0 && length < LK__LISTED_NAME && strspn(name, letters) == length && name[0] != '.' &&
           strncmp(name, "step-", 5) != 0 && !strstr(name, ".tmp.") && !strstr(name, ".old.");
}

/* The digests of the caller's files. False: one is not valid, or there are too many. */
static bool read_files(const lk__json *sums, lk__state_file files[LK__LISTED_FILES], size_t *count)
{
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(sums);
    *count = 0;
    while (lk__json_next(&walk, &key, &value)) {
        bool own = false;
        for (size_t i = 0; i < sizeof own_files / sizeof *own_files; i++) own |= lk__json_equals(&key, own_files[i]);
        if (own) continue;
        if (*count == LK__LISTED_FILES) return false;
        lk__state_file *file = &files[(*count)++];
        size_t          length = lk__json_string(&key, file->name, sizeof file->name);
        if (length >= sizeof file->name || strlen(file->name) != length || !lk__state_file_name(file->name) ||
            lk__json_string(&value, file->sha, sizeof file->sha) != DIGITS)
            return false;
    }
    return true;
}

/* The last occurrence of `what` in a text. */
static const char *find_last(const char *text, size_t length, const char *what)
{
    const char *found = NULL, *next = text, *end = text + length;
    while ((next = memmem(next, (size_t)(end - next), what, strlen(what)))) found = next++;
    return found;
}

/* lk__state_write puts the digests last; a string of the record cannot look like their key, since its quotes are
 * escaped. */
size_t lk__state_list(int directory, lk__file_name names[LK__LISTED_FILES])
{
    static const char key[] = ",\"sha256\":{", end[] = "}\n";
    lk__state_file    files[LK__LISTED_FILES];
    lk__json          sums;
    lk__json_error    error;
    struct stat       info;
    char              tail[DIGESTS];
    size_t            count = 0;
    int               fd = openat(directory, own_files[2], O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return 0;
    bool    regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    off_t   first = regular && info.st_size > (off_t)sizeof tail ? info.st_size - (off_t)sizeof tail : 0;
    ssize_t length = regular ? pread(fd, tail, sizeof tail, first) : -1;
    close(fd);
    const char *at = length > 0 ? find_last(tail, (size_t)length, key) : NULL;
    if (!at || memcmp(tail + length - 2, end, 2) != 0) return 0;
    at += sizeof key - 2; /* at the brace, which is closed by the last but one */
    if (!lk__json_parse(at, (size_t)(tail + length - 2 - at), &sums, &error) || !read_files(&sums, files, &count))
        return 0;
    for (size_t i = 0; i < count; i++) memcpy(names[i], files[i].name, sizeof names[i]);
    return count;
}

/* Digests of chunks, which states of older versions have not. False: they are not as lk__state_write writes them. */
static bool read_chunks(lk__state *state, lk_status *status)
{
    lk__json chunks, list, value;
    int64_t  bytes;
    char     text[17], digest[DIGITS + 1], expected[DIGITS + 1];
    if (!lk__json_get(&state->root, "chunks", &chunks)) return true;
    if (!lk__json_get(&chunks, "bytes", &value) || !lk__json_integer(&value, &bytes) || bytes < 1) return false;
    state->chunk_bytes = (uint64_t)bytes;
    for (int i = 0; i < 2; i++) {
        if (!lk__json_get(&chunks, own_files[i], &list) || !(state->chunks_count[i] = lk__json_count(&list)))
            return false;
        state->chunks[i] =
            lk__alloc(state->context, LK_MEMORY_OTHER, state->chunks_count[i] * sizeof *state->chunks[i]);
        if (!state->chunks[i]) {
            *status = LK_ENOMEM;
            return true;
        }
        lk__json_walk walk = lk__json_begin(&list);
        for (size_t j = 0; lk__json_next(&walk, NULL, &value); j++) {
            if (lk__json_string(&value, text, sizeof text) != 16 || strspn(text, "0123456789abcdef") != 16)
                return false;
            state->chunks[i][j] = strtoull(text, NULL, 16);
        }
    }
    hash_chunks((const uint64_t *const *)state->chunks, state->chunks_count, expected);
    return lk__json_get(&chunks, "digest", &value) && lk__json_string(&value, digest, sizeof digest) == DIGITS &&
           strcmp(digest, expected) == 0;
}

static lk_status parse_state(lk__state *state, const char *path)
{
    lk_status      chunks = LK_OK;
    lk_progress   *p = &state->progress;
    lk__json       value, sums, *root = &state->root;
    lk__json_error error;
    bool good = lk__json_parse(state->text, state->length, root, &error) && lk__json_get(root, "step", &value) &&
                lk__json_integer(&value, &p->step) && lk__json_get(root, "epoch", &value) &&
                lk__json_integer(&value, &p->epoch) && lk__json_get(root, "position", &value) &&
                lk__json_integer(&value, &p->position) && lk__json_get(root, "seed", &value) &&
                parse_seed(&value, &p->seed) && lk__json_get(root, "sha256", &sums);
    for (int i = 0; i < 2 && good; i++)
        good = lk__json_get(&sums, own_files[i], &value) && lk__json_string(&value, state->sha[i], 65) == DIGITS;
    if (good && lk__json_get(root, "dtype", &value)) {
        size_t length = lk__json_string(&value, state->dtype, sizeof state->dtype);
        good = length > 0 && length < sizeof state->dtype;
    }
    if (good && lk__json_get(root, "isa", &value)) {
        size_t length = lk__json_string(&value, state->isa, sizeof state->isa);
        good = length > 0 && length < sizeof state->isa;
    }
    good = good && read_files(&sums, state->files, &state->files_count) && read_chunks(state, &chunks);
    if (chunks < 0) return chunks;
    if (!good) return lk__fail(state->context, LK_EFORMAT, "%s is not the state of a Lockstep checkpoint", path);
    return check_own_digest(state, path, &sums);
}

lk_status lk__state_open(lk_context *c, const char *path, int64_t step, lk__state *state)
{
    *state = (lk__state){.context = c};
    lk_status status = lk__read_text(c, path, STATE_LIMIT, &state->text, &state->length);
    if (status < 0) return status;
    lk_progress *p = &state->progress;
    status = parse_state(state, path);
    if (status >= 0 && step >= 0 && p->step != step)
        status = lk__fail(c, LK_EFORMAT, "%s is for step %" PRId64 ", but its directory is named for step %" PRId64,
                          path, p->step, step);
    if (status >= 0 && lk__progress_check(c, path, p) < 0) status = LK_EFORMAT;
    if (status < 0) lk__state_close(state);
    return status;
}

lk_status lk__state_get_algorithms(const lk__state *state, char **lines, size_t *length)
{
    lk__json list, line;
    size_t   used = 0;
    *lines = NULL;
    *length = 0;
    if (!lk__json_get(&state->root, "algorithms", &list) || lk__json_count(&list) == 0) return LK_OK;
    const size_t most = list.length; /* quotes and commas are left out */
    char        *out = lk__alloc(state->context, LK_MEMORY_OTHER, most + 1);
    if (!out) return LK_ENOMEM;
    lk__json_walk walk = lk__json_begin(&list);
    while (lk__json_next(&walk, NULL, &line)) {
        size_t bytes = lk__json_string(&line, out + used, most - used);
        if (bytes >= most - used || strlen(out + used) != bytes) {
            lk__text_free(state->context, out, most);
            return lk__fail(state->context, LK_EFORMAT, "a checkpoint's list of algorithms is not a list of strings");
        }
        used += bytes;
        out[used++] = '\n';
    }
    out[used] = 0;
    *lines = out;
    *length = most;
    return LK_OK;
}

void lk__state_close(lk__state *state)
{
    lk__text_free(state->context, state->text, state->length);
    for (int i = 0; i < 2; i++) {
        lk__free(state->context, LK_MEMORY_OTHER, state->chunks[i], state->chunks_count[i] * sizeof *state->chunks[i]);
        state->chunks[i] = NULL;
    }
    state->text = NULL;
}
