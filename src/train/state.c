/* state.c - state.json of a checkpoint: the progress of training, and the digests of all three files. Its own digest is computed
 * with zeros in place of the digest, so that other programs can verify it. */
#include "train/state.h"

#include "train/file.h"
#include "train/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_LIMIT = 65536, DIGITS = 64 };
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

static void compute_digest(const char *text, size_t length, char digest[DIGITS + 1])
{
    unsigned char raw[32];
    lk__sha256    sha;
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, text, length);
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, digest);
}

lk_status lk__state_write(lk_context *c, const char *path, void *staging, size_t staging_bytes, const lk_progress *p,
                          const char *dtype, const char *model, const char *optimizer)
{
    static const char end[] = "\"}}\n";
    char              text[1024], own[DIGITS + 1];
    lk__file          file;
    int               n =
        snprintf(text, sizeof text,
                 "{\"lockstep\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"position\":%" PRId64
                 ",\"seed\":\"%" PRIu64 "\",\"dtype\":\"%s\",\"sha256\":{\"model.safetensors\":\"%s\",\"optimizer."
                                        "safetensors\":\"%s\",\"state.json\":\"%0*d%s",
                 LK_VERSION_STRING, p->step, p->epoch, p->position, p->seed, dtype, model, optimizer, DIGITS, 0, end);
    compute_digest(text, (size_t)n, own);
    memcpy(text + (size_t)n - strlen(end) - DIGITS, own, DIGITS);
    lk_status status = lk__file_create(&file, c, path, staging, staging_bytes);
    if (status >= 0) lk__file_write(&file, text, (size_t)n);
    return status < 0 ? status : lk__file_commit(&file, NULL);
}

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
static lk_status check_own_digest(lk_context *c, const char *path, char *text, size_t length, const lk__json *sums)
{
    lk__json value;
    char     saved[DIGITS + 1], now[DIGITS + 1];
    if (!lk__json_get(sums, "state.json", &value))
        return lk__fail(
            c, LK_EFORMAT,
            "%s holds no digest of itself: an older version wrote it; it cannot be resumed, but the model.safetensors "
            "in the same directory can be loaded as weights",
            path);
    if (lk__json_string(&value, saved, sizeof saved) != DIGITS || value.length != DIGITS + 2)
        return lk__fail(c, LK_EFORMAT, "%s is damaged: its digest of itself is invalid", path);
    memset(text + (value.text + 1 - text), '0', DIGITS);
    compute_digest(text, length, now);
    if (strcmp(saved, now) == 0) return LK_OK;
    return lk__fail(c, LK_EFORMAT, "%s is damaged: its SHA-256 differs from the one saved with it", path);
}

static lk_status parse_state(lk_context *c, const char *path, char *text, size_t length, lk_progress *p,
                             char dtype[LK__STATE_DTYPE], char sha[2][65])
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
    dtype[0] = 0;
    if (good && lk__json_get(&root, "dtype", &value)) {
        size_t length_of = lk__json_string(&value, dtype, LK__STATE_DTYPE);
        good = length_of > 0 && length_of < LK__STATE_DTYPE;
    }
    if (!good) return lk__fail(c, LK_EFORMAT, "%s is not the state of a Lockstep checkpoint", path);
    return check_own_digest(c, path, text, length, &sums);
}

lk_status lk__state_read(lk_context *c, const char *path, int64_t step, lk_progress *p, char dtype[LK__STATE_DTYPE],
                         char sha[2][65])
{
    char     *text;
    size_t    length;
    lk_status status = lk__read_text(c, path, STATE_LIMIT, &text, &length);
    if (status < 0) return status;
    status = parse_state(c, path, text, length, p, dtype, sha);
    lk__text_free(c, text, length);
    if (status < 0) return status;
    if (p->step != step)
        return lk__fail(c, LK_EFORMAT, "%s is of step %" PRId64 ", but its directory is named for step %" PRId64, path,
                        p->step, step);
    return lk__progress_check(c, path, p) < 0 ? LK_EFORMAT : LK_OK;
}
