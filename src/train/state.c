/* state.c - state.json of a checkpoint: where training stands, and the digests of the files beside it and of itself. Its own is
 * taken with zeros in its place, so that the file is one and anybody can check it. */
#include "train/state.h"

#include "train/file.h"
#include "train/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_LIMIT = 65536, DIGITS = 64 };
static const int64_t MOST = (int64_t)1 << 53; /* what every reader of JSON has exactly */

static bool is_possible(const lk_progress *p)
{
    return p->step >= 0 && p->step <= MOST && p->epoch >= 0 && p->epoch <= p->step && p->position >= 0 &&
           p->position <= MOST && (p->step > 0 || p->position == 0);
}

lk_status lk__progress_check(lk_context *c, const char *what, const lk_progress *p)
{
    if (is_possible(p)) return LK_OK;
    return lk__fail(c, LK_EINVAL,
                    "%s: step %" PRId64 ", epoch %" PRId64 ", position %" PRId64
                    ": no run stands there (each is 0 to 2^53, the epoch at most the step, and before step 1 nothing "
                    "was used)",
                    what, p->step, p->epoch, p->position);
}

static void digest_of(const char *text, size_t length, char digest[DIGITS + 1])
{
    unsigned char raw[32];
    lk__sha256    sha;
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, text, length);
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, digest);
}

lk_status lk__state_write(lk_context *c, const char *path, void *staging, size_t staging_bytes, const lk_progress *p,
                          const char *model, const char *optimizer)
{
    static const char end[] = "\"}}\n";
    char              text[1024], own[DIGITS + 1];
    lk__file          file;
    int               n = snprintf(
                      text, sizeof text,
                      "{\"lockstep\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"position\":%" PRId64 ",\"seed\":\"%" PRIu64
                      "\",\"sha256\":{\"model.safetensors\":\"%s\",\"optimizer.safetensors\":\"%s\",\"state.json\":\"%0*d%s",
                      LK_VERSION_STRING, p->step, p->epoch, p->position, p->seed, model, optimizer, DIGITS, 0, end);
    digest_of(text, (size_t)n, own);
    memcpy(text + (size_t)n - strlen(end) - DIGITS, own, DIGITS);
    lk_status status = lk__file_create(&file, c, path, staging, staging_bytes);
    if (status >= 0) lk__file_write(&file, text, (size_t)n);
    return status < 0 ? status : lk__file_commit(&file, NULL);
}

/* A number of 64 bits as text: digits and nothing else. */
static bool parse_seed(const lk__json *value, uint64_t *seed)
{
    char   text[32];
    size_t length = lk__json_string(value, text, sizeof text);
    if (length == 0 || length >= sizeof text || strspn(text, "0123456789") != length) return false;
    errno = 0;
    *seed = strtoull(text, NULL, 10);
    return errno == 0;
}

/* The digest that the text has of itself is taken out of it. */
static lk_status check_own(lk_context *c, const char *path, char *text, size_t length, const lk__json *sums)
{
    lk__json value;
    char     saved[DIGITS + 1], now[DIGITS + 1];
    if (!lk__json_get(sums, "state.json", &value))
        return lk__fail(
            c, LK_EFORMAT,
            "%s holds no digest of itself, as versions before this one wrote it; nothing resumes from it, but "
            "the model.safetensors beside it loads as weights",
            path);
    if (lk__json_string(&value, saved, sizeof saved) != DIGITS || value.length != DIGITS + 2)
        return lk__fail(c, LK_EFORMAT, "%s is damaged: its digest of itself is none", path);
    memset(text + (value.text + 1 - text), '0', DIGITS);
    digest_of(text, length, now);
    if (strcmp(saved, now) == 0) return LK_OK;
    return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 is not the one that was saved with it", path);
}

static lk_status parse(lk_context *c, const char *path, char *text, size_t length, lk_progress *p, char sha[2][65])
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    lk__json                 root, value, sums;
    lk__json_error           error;
    bool good = lk__json_parse(text, length, &root, &error) && lk__json_get(&root, "step", &value) &&
                lk__json_integer(&value, &p->step) && lk__json_get(&root, "epoch", &value) &&
                lk__json_integer(&value, &p->epoch) && lk__json_get(&root, "position", &value) &&
                lk__json_integer(&value, &p->position) && lk__json_get(&root, "seed", &value) &&
                parse_seed(&value, &p->seed) && lk__json_get(&root, "sha256", &sums);
    for (int i = 0; i < 2 && good; i++)
        good = lk__json_get(&sums, files[i], &value) && lk__json_string(&value, sha[i], 65) == DIGITS;
    if (!good) return lk__fail(c, LK_EFORMAT, "%s is not the state of a Lockstep checkpoint", path);
    return check_own(c, path, text, length, &sums);
}

lk_status lk__state_read(lk_context *c, const char *path, int64_t step, lk_progress *p, char sha[2][65])
{
    char     *text;
    size_t    length;
    lk_status status = lk__read_text(c, path, STATE_LIMIT, &text, &length);
    if (status < 0) return status;
    status = parse(c, path, text, length, p, sha);
    lk__text_free(c, text, length);
    if (status < 0) return status;
    if (p->step != step)
        return lk__fail(c, LK_EFORMAT, "%s is of step %" PRId64 ", and its directory is named for step %" PRId64, path,
                        p->step, step);
    return lk__progress_check(c, path, p) < 0 ? LK_EFORMAT : LK_OK;
}
