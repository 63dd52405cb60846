/* download.c - downloads one file over HTTP to NAME.part, resumes partial downloads, retries with backoff, and renames
 * the file only if its SHA-256 is correct. */
#define _GNU_SOURCE
#include "data/download.h"

#include "base/hash.h"
#include "data/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STALL_RATE = 128 }; /* bytes per second below which a transfer counts as stalled */

typedef struct transfer {
    lk__data_download         *download;
    const lk__data_known_file *file;
    const char                *url;
    char                       path[LK__PATH], part[LK__PATH];
    void                      *handle; /* of curl */
    int                        fd;
    int64_t                    offset; /* bytes of the part */
    /* of one attempt */
    bool    begun;       /* the response was checked */
    int64_t range_start; /* of the response, or -1 */
    int     write_error; /* errno */
    bool    too_long, canceled;
    int     result;   /* of curl */
    long    response; /* of HTTP, 0 without one */
    int64_t retry_after_s;
    char    error[LK__CURL_ERROR_SIZE];
} transfer;

lk_status lk__sha256_check(lk_context *context, const char *path, const char *sha256, char hex[65])
{
    lk__sha256    sha;
    unsigned char buffer[16384], sum[32];
    ssize_t       n;
    hex[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return lk__fail(context, errno == ENOENT ? LK_ENOENT : LK_EIO, "cannot read %s: %s", path, strerror(errno));
    lk__sha256_init(&sha);
    while ((n = read(fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0) lk__sha256_update(&sha, buffer, (size_t)n);
    int error = errno;
    close(fd);
    if (n < 0) return lk__fail(context, LK_EIO, "cannot read %s: %s", path, strerror(error));
    lk__sha256_final(&sha, sum);
    lk__sha256_hex(sum, hex);
    return strcasecmp(hex, sha256) == 0 ? LK_OK : LK_EMISMATCH;
}

static bool report_progress(transfer *t)
{
    lk__data_download *d = t->download;
    if (d->progress && d->progress(d->user, d->done + t->offset, d->total) != 0) t->canceled = true;
    return !t->canceled;
}

static int on_progress(void *user, int64_t total, int64_t now, int64_t upload_total, int64_t upload_now)
{
    (void)total, (void)now, (void)upload_total, (void)upload_now;
    return report_progress(user) ? 0 : 1;
}

/* Content-Range: bytes FIRST-LAST/ALL. Also called for the headers of redirections; those of the last response
 * count. */
static size_t on_header(char *line, size_t one, size_t bytes, void *user)
{
    static const char key[] = "content-range: bytes ";
    transfer         *t = user;
    (void)one;
    if (bytes > 5 && strncasecmp(line, "http/", 5) == 0) t->range_start = -1;
    if (bytes > sizeof key && strncasecmp(line, key, sizeof key - 1) == 0) {
        t->range_start = 0;
        for (size_t i = sizeof key - 1;
             i < bytes && line[i] >= '0' && line[i] <= '9' && t->range_start < INT64_MAX / 20; i++)
            t->range_start = t->range_start * 10 + (line[i] - '0');
    }
    return bytes;
}

/* Before the first byte is written: a server may ignore the range and send the whole file, or send another range. */
static bool check_response(transfer *t)
{
    t->begun = true;
    t->download->curl->easy_getinfo(t->handle, LK__CURL_RESPONSE_CODE, &t->response);
    if (t->response == 206 && t->range_start == t->offset) return true;
    if (t->response == 206) return false;
    if (ftruncate(t->fd, 0) != 0) {
        t->write_error = errno;
        return false;
    }
    t->offset = 0;
    return true;
}

static size_t on_data(char *data, size_t one, size_t bytes, void *user)
{
    transfer *t = user;
    (void)one;
    if (!t->begun && !check_response(t)) return 0;
    if ((int64_t)bytes > t->file->bytes - t->offset) {
        t->too_long = true;
        return 0;
    }
    for (size_t written = 0; written < bytes;) {
        ssize_t n = pwrite(t->fd, data + written, bytes - written, t->offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            t->write_error = errno;
            return 0;
        }
        written += (size_t)n;
        t->offset += n;
    }
    return bytes;
}

/* Sends one request for the missing bytes. */
static lk_status send_request(transfer *t)
{
    const lk__data_curl *c = t->download->curl;
    char                 range[32];
    t->begun = t->too_long = false;
    t->range_start = -1;
    t->write_error = 0;
    t->response = 0;
    t->retry_after_s = 0;
    t->error[0] = 0;
    t->handle = c->easy_init();
    if (!t->handle) return lk__fail(t->download->context, LK_ENOMEM, "libcurl is out of memory");
    c->easy_setopt(t->handle, LK__CURL_URL, t->url);
    c->easy_setopt(t->handle, LK__CURL_USERAGENT, "lockstep/" LK_VERSION_STRING);
    c->easy_setopt(t->handle, LK__CURL_NOSIGNAL, 1L);
    c->easy_setopt(t->handle, LK__CURL_FAILONERROR, 1L);
    c->easy_setopt(t->handle, LK__CURL_FOLLOWLOCATION, 1L);
    c->easy_setopt(t->handle, LK__CURL_MAXREDIRS, 5L);
    c->easy_setopt(t->handle, LK__CURL_PROTOCOLS, (long)(LK__CURL_HTTP | LK__CURL_HTTPS));
    c->easy_setopt(t->handle, LK__CURL_REDIR_PROTOCOLS, (long)(LK__CURL_HTTP | LK__CURL_HTTPS));
    c->easy_setopt(t->handle, LK__CURL_CONNECTTIMEOUT_MS, (long)t->download->retry.connect_ms);
    c->easy_setopt(t->handle, LK__CURL_LOW_SPEED_LIMIT, (long)STALL_RATE);
    c->easy_setopt(t->handle, LK__CURL_LOW_SPEED_TIME, (long)t->download->retry.stall_s);
    c->easy_setopt(t->handle, LK__CURL_ERRORBUFFER, t->error);
    c->easy_setopt(t->handle, LK__CURL_WRITEFUNCTION, on_data);
    c->easy_setopt(t->handle, LK__CURL_WRITEDATA, t);
    c->easy_setopt(t->handle, LK__CURL_HEADERFUNCTION, on_header);
    c->easy_setopt(t->handle, LK__CURL_HEADERDATA, t);
    c->easy_setopt(t->handle, LK__CURL_NOPROGRESS, 0L);
    c->easy_setopt(t->handle, LK__CURL_XFERINFOFUNCTION, on_progress);
    c->easy_setopt(t->handle, LK__CURL_XFERINFODATA, t);
    snprintf(range, sizeof range, "%lld-", (long long)t->offset);
    if (t->offset > 0) c->easy_setopt(t->handle, LK__CURL_RANGE, range);
    t->result = c->easy_perform(t->handle);
    c->easy_getinfo(t->handle, LK__CURL_RESPONSE_CODE, &t->response);
    if (c->easy_getinfo(t->handle, LK__CURL_RETRY_AFTER, &t->retry_after_s) != 0) t->retry_after_s = 0;
    if (!t->error[0]) snprintf(t->error, sizeof t->error, "%s", c->easy_strerror(t->result));
    c->easy_cleanup(t->handle);
    t->handle = NULL;
    return LK_OK;
}

/* The server does not have the requested range, or sent another one: the part may be of another file. */
static bool wrong_range(const transfer *t)
{
    return t->response == 416 ||
           (t->result == LK__CURL_WRITE_ERROR && t->response == 206 && !t->write_error && !t->too_long);
}

static bool is_retryable(const transfer *t)
{
    switch (t->result) {
    case LK__CURL_OK: /* closed early, without a Content-Length */
    case LK__CURL_NO_PROXY_NAME:
    case LK__CURL_NO_HOST_NAME:
    case LK__CURL_NO_CONNECTION:
    case LK__CURL_HTTP2:
    case LK__CURL_PARTIAL:
    case LK__CURL_TIMED_OUT:
    case LK__CURL_TLS_ERROR:
    case LK__CURL_NOTHING:
    case LK__CURL_SEND_ERROR:
    case LK__CURL_RECEIVE_ERROR:
    case LK__CURL_HTTP2_STREAM: return true;
    case LK__CURL_HTTP_ERROR: return t->response >= 500 || t->response == 408 || t->response == 429 || wrong_range(t);
    default: return wrong_range(t);
    }
}

/* Sleeps in short intervals, so that the user can stop it. */
static void wait_before_retry(transfer *t, int number)
{
    int64_t ms = (int64_t)t->download->retry.backoff_ms << (number - 1);
    if (t->retry_after_s > 0 && t->retry_after_s * 1000 > ms)
        ms = t->retry_after_s < 60 ? t->retry_after_s * 1000 : 60000;
    for (; ms > 0 && report_progress(t); ms -= 100) {
        int64_t interval = ms < 100 ? ms : 100;
        nanosleep(&(struct timespec){0, (long)(interval * 1000000)}, NULL);
    }
}

static lk_status report_failure(transfer *t, int tries)
{
    lk__data_download *d = t->download;
    char               package[128] = "", what[LK__CURL_ERROR_SIZE + 64];
    if (t->write_error)
        return lk__fail(d->context, LK_EIO,
                        "cannot write %s: %s. The partial file is kept; run the same command again to resume", t->part,
                        strerror(t->write_error));
    if (t->too_long) {
        unlink(t->part);
        return lk__fail(d->context, LK_EFORMAT, "%s sent more than the %lld bytes of %s: it is a different file",
                        t->url, (long long)t->file->bytes, t->file->name);
    }
    if (d->set->package) snprintf(package, sizeof package, ", or install the package %s", d->set->package);
    if (t->response >= 400)
        snprintf(what, sizeof what, "the server returned %ld%s", t->response, t->response == 404 ? " (not found)" : "");
    else if (t->result == LK__CURL_OK)
        snprintf(what, sizeof what, "the transfer ended after %lld of %lld bytes", (long long)t->offset,
                 (long long)t->file->bytes);
    else
        snprintf(what, sizeof what, "%s", t->error);
    return lk__fail(
        d->context, LK_EIO,
        "cannot get %s: %s (tried %d time%s). If that server is not reachable, set https_proxy=http://HOST:PORT for a "
        "proxy, give the URL of a mirror with --url, %scopy %s into %s by hand%s",
        t->url, what, tries, tries == 1 ? "" : "s", d->set->package ? "" : "or ", t->file->name, d->directory, package);
}

/* Sends requests until the part has its full length. */
static lk_status fetch_part(transfer *t)
{
    for (int tries = 1; t->offset < t->file->bytes; tries++) {
        lk_status status = send_request(t);
        if (status < 0) return status;
        if (t->offset == t->file->bytes && t->result == LK__CURL_OK) break;
        if (!t->canceled) {
            if (wrong_range(t)) {
                if (ftruncate(t->fd, 0) != 0) t->write_error = errno;
                t->offset = 0;
            }
            if (!is_retryable(t) || t->write_error || tries >= t->download->retry.attempts)
                return report_failure(t, tries);
            lk__log(t->download->context, LK_LOG_WARNING, "%s: %s; trying again", t->url, t->error);
            wait_before_retry(t, tries);
        }
        if (t->canceled)
            return lk__fail(t->download->context, LK_ECANCELED,
                            "stopped; the partial file %s is kept; run the same command again to resume", t->part);
    }
    return LK_OK;
}

/* Opens the part and locks it against other processes that download the same file. */
static lk_status open_part(transfer *t)
{
    lk_context *context = t->download->context;
    struct stat about, named;
    t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0) return lk__fail(context, LK_EIO, "cannot write %s: %s", t->part, strerror(errno));
    if (flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { /* not where there are no locks */
        close(t->fd);
        t->fd = -1;
        return lk__fail(context, LK_EIO, "another process is downloading %s: wait for it, or use another directory",
                        t->part);
    }
    /* The other process may have finished and renamed the file between open and flock. */
    if (fstat(t->fd, &about) != 0 || stat(t->part, &named) != 0 || about.st_ino != named.st_ino) {
        close(t->fd);
        t->fd = -1;
        return lk__fail(context, LK_EIO, "another process has just downloaded %s: run the same command again", t->part);
    }
    t->offset = about.st_size;
    if (t->offset > t->file->bytes) {
        if (ftruncate(t->fd, 0) != 0) return lk__fail(context, LK_EIO, "cannot write %s: %s", t->part, strerror(errno));
        t->offset = 0;
    }
    return LK_OK;
}

/* Checks an existing file: LK_OK it is correct, LK_ENOENT there is none, else a failure. It is never overwritten. */
static lk_status check_existing(transfer *t)
{
    char      hex[65];
    lk_status status =
        lk__path_exists(t->path) ? lk__sha256_check(t->download->context, t->path, t->file->sha256, hex) : LK_ENOENT;
    if (status != LK_EMISMATCH) return status;
    return lk__fail(t->download->context, LK_EMISMATCH,
                    "%s already exists, but its SHA-256 is %s, not %s: move it, or use another directory", t->path, hex,
                    t->file->sha256);
}

static lk_status rename_part(transfer *t)
{
    if (fsync(t->fd) != 0)
        return lk__fail(t->download->context, LK_EIO, "cannot write %s: %s", t->part, strerror(errno));
    if (rename(t->part, t->path) != 0)
        return lk__fail(t->download->context, LK_EIO, "cannot create %s: %s", t->path, strerror(errno));
    return LK_OK;
}

lk_status lk__download_file(lk__data_download *d, const lk__data_known_file *file, const char *url)
{
    transfer t = {.download = d, .file = file, .url = url, .fd = -1};
    char     hex[65];
    if (!lk__path(t.path, "%s/%s", d->directory, file->name) || !lk__path(t.part, "%s.part", t.path))
        return lk__fail(d->context, LK_EINVAL, "the directory name %s is too long", d->directory);
    lk_status status = check_existing(&t);
    if (status != LK_ENOENT) goto fail;
    if ((status = open_part(&t)) < 0) goto fail;
    bool resumed = t.offset > 0;
    for (;;) {
        if ((status = fetch_part(&t)) < 0) goto fail;
        status = lk__sha256_check(d->context, t.part, file->sha256, hex);
        if (status != LK_EMISMATCH) break;
        t.offset = 0;
        if (!resumed || ftruncate(t.fd, 0) != 0) break;
        resumed = false; /* the old part may have been of another file: start again from the beginning */
    }
    if (status == LK_OK) status = rename_part(&t);
    if (status == LK_EMISMATCH) {
        unlink(t.part);
        status = lk__fail(
            d->context, LK_EFORMAT,
            "the file at %s is not %s: its SHA-256 is %s, not %s. It was removed; try another mirror with --url", url,
            file->name, hex, file->sha256);
    }
fail:
    if (t.fd >= 0) {
        if (status < 0 && t.offset == 0) unlink(t.part); /* while it is locked; it is empty */
        close(t.fd);
    }
    if (status == LK_OK) {
        d->done += file->bytes;
        t.offset = 0;
        if (!report_progress(&t)) status = lk__fail(d->context, LK_ECANCELED, "stopped; downloaded files are kept");
    }
    return status;
}
