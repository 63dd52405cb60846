/* test_data_download.c - downloads of data sets from a small HTTP server on 127.0.0.1 that can also stall, close early,
 * send wrong data and return errors. Skipped (77) without libcurl. */
#define _GNU_SOURCE
#include "test_data.h"

#include "base/hash.h"
#include "data/download.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>

#if defined(__has_include)
#if __has_include(<curl/curl.h>)
#define CURL_DISABLE_DEPRECATION
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#define AGREES(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), "libcurl's " #theirs)
AGREES(LK__CURL_LOW_SPEED_LIMIT, CURLOPT_LOW_SPEED_LIMIT);
AGREES(LK__CURL_LOW_SPEED_TIME, CURLOPT_LOW_SPEED_TIME);
AGREES(LK__CURL_NOPROGRESS, CURLOPT_NOPROGRESS);
AGREES(LK__CURL_FAILONERROR, CURLOPT_FAILONERROR);
AGREES(LK__CURL_FOLLOWLOCATION, CURLOPT_FOLLOWLOCATION);
AGREES(LK__CURL_MAXREDIRS, CURLOPT_MAXREDIRS);
AGREES(LK__CURL_NOSIGNAL, CURLOPT_NOSIGNAL);
AGREES(LK__CURL_CONNECTTIMEOUT_MS, CURLOPT_CONNECTTIMEOUT_MS);
AGREES(LK__CURL_PROTOCOLS, CURLOPT_PROTOCOLS);
AGREES(LK__CURL_REDIR_PROTOCOLS, CURLOPT_REDIR_PROTOCOLS);
AGREES(LK__CURL_WRITEDATA, CURLOPT_WRITEDATA);
AGREES(LK__CURL_URL, CURLOPT_URL);
AGREES(LK__CURL_RANGE, CURLOPT_RANGE);
AGREES(LK__CURL_ERRORBUFFER, CURLOPT_ERRORBUFFER);
AGREES(LK__CURL_USERAGENT, CURLOPT_USERAGENT);
AGREES(LK__CURL_HEADERDATA, CURLOPT_HEADERDATA);
AGREES(LK__CURL_XFERINFODATA, CURLOPT_XFERINFODATA);
AGREES(LK__CURL_WRITEFUNCTION, CURLOPT_WRITEFUNCTION);
AGREES(LK__CURL_HEADERFUNCTION, CURLOPT_HEADERFUNCTION);
AGREES(LK__CURL_XFERINFOFUNCTION, CURLOPT_XFERINFOFUNCTION);
AGREES(LK__CURL_HTTP, CURLPROTO_HTTP);
AGREES(LK__CURL_HTTPS, CURLPROTO_HTTPS);
AGREES(LK__CURL_RESPONSE_CODE, CURLINFO_RESPONSE_CODE);
AGREES(LK__CURL_RETRY_AFTER, CURLINFO_RETRY_AFTER);
AGREES(LK__CURL_ERROR_SIZE, CURL_ERROR_SIZE);
AGREES(LK__CURL_NO_PROXY_NAME, CURLE_COULDNT_RESOLVE_PROXY);
AGREES(LK__CURL_NO_HOST_NAME, CURLE_COULDNT_RESOLVE_HOST);
AGREES(LK__CURL_NO_CONNECTION, CURLE_COULDNT_CONNECT);
AGREES(LK__CURL_HTTP2, CURLE_HTTP2);
AGREES(LK__CURL_PARTIAL, CURLE_PARTIAL_FILE);
AGREES(LK__CURL_HTTP_ERROR, CURLE_HTTP_RETURNED_ERROR);
AGREES(LK__CURL_WRITE_ERROR, CURLE_WRITE_ERROR);
AGREES(LK__CURL_TIMED_OUT, CURLE_OPERATION_TIMEDOUT);
AGREES(LK__CURL_TLS_ERROR, CURLE_SSL_CONNECT_ERROR);
AGREES(LK__CURL_ABORTED, CURLE_ABORTED_BY_CALLBACK);
AGREES(LK__CURL_NOTHING, CURLE_GOT_NOTHING);
AGREES(LK__CURL_SEND_ERROR, CURLE_SEND_ERROR);
AGREES(LK__CURL_RECEIVE_ERROR, CURLE_RECV_ERROR);
AGREES(LK__CURL_HTTP2_STREAM, CURLE_HTTP2_STREAM);
_Static_assert(CURL_GLOBAL_DEFAULT == 3 && sizeof(curl_off_t) == 8, "libcurl's types");
#endif
#endif

/* ---- The server. ---- */

enum { LARGE = 100003, SMALL = 70001, TINY = 5 };
static unsigned char  noise_bytes[LARGE + 16]; /* every file is a prefix of it */
static unsigned char *archive;                 /* of the unpacking tests */
static size_t         archive_bytes;
static int            port;
static atomic_int     requests;   /* since start_over */
static atomic_llong   last_range; /* start of the latest request's range; -1: the whole file */
static atomic_int     active;     /* connections */
static atomic_int     hold;       /* a stalled response ends when this is 0 */
static atomic_int     waited;     /* a download has reported progress before its first byte */

static void send_all(int fd, const void *data, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = send(fd, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += (size_t)n;
    }
}

static void send_response(int fd, const char *status, const char *headers)
{
    char text[512];
    int  n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nConnection: close\r\n%s\r\n", status, headers);
    send_all(fd, text, (size_t)n);
}

/* The path is /MODE/FILE. */
static void serve(int fd, char *request)
{
    char      mode[64] = "", name[128] = "", headers[256];
    char     *line = strcasestr(request, "\r\nrange: bytes=");
    long long start = line ? atoll(line + 15) : -1;
    int       number = atomic_fetch_add(&requests, 1);
    sscanf(request, "GET /%63[^/ ]/%127[^ ]", mode, name);
    atomic_store(&last_range, start);
    const unsigned char *bytes = noise_bytes;
    long long            size = strcmp(name, "large") == 0   ? LARGE
                                : strcmp(name, "small") == 0 ? SMALL
                                : strcmp(name, "tiny") == 0  ? TINY
                                                             : -1;
    if (strcmp(name, "archive.tar.gz") == 0) bytes = archive, size = (long long)archive_bytes;
    unsigned char other[LARGE];
    bool          first = number == 0, cut = false, stall = false, length = true;

    if (size < 0 || strcmp(mode, "missing") == 0) return send_response(fd, "404 Not Found", "Content-Length: 0\r\n");
    if (strcmp(mode, "forbidden") == 0) return send_response(fd, "403 Forbidden", "Content-Length: 0\r\n");
    if (strcmp(mode, "broken") == 0) return send_response(fd, "500 Oops", "Content-Length: 4\r\n\r\nbody");
    if (strcmp(mode, "busy") == 0 && first)
        return send_response(fd, "503 Busy", "Retry-After: 1\r\nContent-Length: 0\r\n");
    if (strcmp(mode, "silent") == 0 && first) return;
    if (strcmp(mode, "moved") == 0) {
        snprintf(headers, sizeof headers, "Location: /good/%s\r\nContent-Length: 5\r\n", name);
        send_response(fd, "302 Found", headers);
        return send_all(fd, "moved", 5);
    }
    if (strcmp(mode, "tofile") == 0)
        return send_response(fd, "302 Found", "Location: file:///etc/passwd\r\nContent-Length: 0\r\n");
    if (strcmp(mode, "wrong") == 0) {
        memcpy(other, bytes, (size_t)size);
        other[size / 2] ^= 1;
        bytes = other;
    }
    if (strcmp(mode, "cut") == 0) cut = number < 2;
    if (strcmp(mode, "nolength") == 0) cut = number < 2, length = false;
    if (strcmp(mode, "stall") == 0) stall = first;
    if (strcmp(mode, "norange") == 0) start = -1;
    if (strcmp(mode, "long") == 0) size += 3;
    if (strcmp(mode, "short") == 0) size -= 3;
    if (start >= size) return send_response(fd, "416 Range Not Satisfiable", "Content-Length: 0\r\n");
    long long from = start < 0 ? 0 : start;
    if (strcmp(mode, "badrange") == 0 && start > 0) from = start - 1;
    int n = 0;
    if (length) n += snprintf(headers, sizeof headers, "Content-Length: %lld\r\n", size - from);
    if (start >= 0)
        snprintf(headers + n, sizeof headers - (size_t)n, "Content-Range: bytes %lld-%lld/%lld\r\n", from, size - 1,
                 size);
    else
        headers[n] = 0;
    send_response(fd, start >= 0 ? "206 Partial Content" : "200 OK", headers);
    long long part = cut ? (size - from) / 3 : stall ? 300 : size - from;
    send_all(fd, bytes + from, (size_t)part);
    while (stall && atomic_load(&hold)) nanosleep(&(struct timespec){0, 10000000}, NULL);
}

static void *connection(void *argument)
{
    int    fd = (int)(intptr_t)argument;
    char   request[4096];
    size_t used = 0;
    while (used < sizeof request - 1) {
        ssize_t n = recv(fd, request + used, sizeof request - 1 - used, 0);
        if (n <= 0) break;
        used += (size_t)n;
        request[used] = 0;
        if (!strstr(request, "\r\n\r\n")) continue;
        serve(fd, request);
        break;
    }
    shutdown(fd, SHUT_RDWR);
    close(fd);
    atomic_fetch_sub(&active, 1);
    return NULL;
}

/* Waits until no connection is active. */
static void wait_for_connections(void)
{
    while (atomic_load(&active) > 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static int listen_on_any_port(int *chosen)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          length = sizeof address;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    *chosen = ntohs(address.sin_port);
    return fd;
}

static void *accept_all(void *argument)
{
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int       fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (fd < 0) return NULL;
        atomic_fetch_add(&active, 1);
        CHECK(pthread_create(&thread, NULL, connection, (void *)(intptr_t)fd) == 0);
        pthread_detach(thread);
    }
}

/* ---- The files. Sums by Python's hashlib over byte i = (i × 0x9E3779B97F4A7C15 mod 2^64) >> 56. ---- */

static const lk__data_known_file files[] = {
    {"large", LARGE, "6e38cf597ec12732eca97a5653a3b8d47710e5eb65eb7dd8c0fd9072cd82f5ba"},
    {"small", SMALL, "6b75845d0d60df2e4c0a5ff4a3c2926a2ac358caaf3e485fe65c87a3eac7f226"},
    {"tiny", TINY, "16b1bff42ae6a3b4cf47df4bb14a2659d0ff87c341821c539d89eacfcb3c21d0"},
};
static const lk__data_known_set all_three = {
    "three", "http://127.0.0.1:1/usual", files, 3, "dataset-three", NULL, NULL, 0, 0};
static const lk__data_known_set only_large = {"one", "http://127.0.0.1:1/usual", files, 1, NULL, NULL, NULL, 0, 0};
static const lk__data_retry     retry = {.attempts = 3, .backoff_ms = 1, .connect_ms = 2000, .stall_s = 1, .lock_s = 1};

static lk_context *context;
static char        directory[512];

static const char *url_of(const char *mode)
{
    static char url[256];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/%s", port, mode);
    return url;
}

/* A fresh directory, and the server's counters at 0. */
static void start_over(void)
{
    static int number;
    char       name[32];
    snprintf(name, sizeof name, "d%d", number++);
    snprintf(directory, sizeof directory, "%s/deep/er", scratch(name));
    atomic_store(&requests, 0);
    atomic_store(&last_range, -2);
}

static const char *in_directory(const char *name)
{
    static char paths[4][640];
    static int  next;
    char       *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static bool exists(const char *name) { return access(in_directory(name), F_OK) == 0; }

static void make_directory(void)
{
    char command[700];
    snprintf(command, sizeof command, "mkdir -p '%s'", directory);
    CHECK(system(command) == 0);
}

static void check_content(const char *name, size_t bytes)
{
    size_t         size;
    unsigned char *got = read_whole(in_directory(name), &size);
    CHECK(size == bytes && memcmp(got, noise_bytes, bytes) == 0);
    free(got);
}

static lk_status get(const lk__data_known_set *set, const char *mode)
{
    return lk__data_get(context, set, directory, &(lk__data_transfer){url_of(mode), retry, NULL, NULL});
}

typedef struct progress_log {
    int64_t last, total, stop_at;
    int     calls;
    bool    decreased;
} progress_log;

static int log_progress(void *user, int64_t done, int64_t total)
{
    progress_log *w = user;
    w->calls++;
    if (done < w->last) w->decreased = true;
    w->last = done;
    w->total = total;
    return w->stop_at && done >= w->stop_at;
}

static void files_are_downloaded_once(void)
{
    progress_log w = {0};
    start_over();
    CHECK_OK(context, lk__data_get(context, &all_three, directory,
                                   &(lk__data_transfer){url_of("good"), retry, log_progress, &w}));
    check_content("large", LARGE), check_content("small", SMALL), check_content("tiny", TINY);
    CHECK(!exists("large.part") && !exists("small.part") && !exists("tiny.part"));
    CHECK(w.calls > 0 && !w.decreased && w.last == LARGE + SMALL + TINY && w.total == w.last);
    CHECK(atomic_load(&requests) == 3);
    CHECK_OK(context, get(&all_three, "good/")); /* nothing to do */
    CHECK(atomic_load(&requests) == 3);
    CHECK(unlink(in_directory("small")) == 0);
    CHECK_OK(context, get(&all_three, "missing/../moved")); /* a redirection, and a path with ".." */
    check_content("small", SMALL);
}

static void a_partial_file_is_resumed(void)
{
    for (int64_t have = 1; have <= LARGE; have += LARGE / 2) { /* 1, the middle, all but one, then all of it */
        int64_t part = have == LARGE ? LARGE - 1 : have;
        start_over(), make_directory();
        write_file(in_directory("large.part"), noise_bytes, (size_t)part);
        CHECK_OK(context, get(&only_large, "good"));
        CHECK(atomic_load(&requests) == 1 && atomic_load(&last_range) == part);
        check_content("large", LARGE);
    }
    start_over(), make_directory();
    write_file(in_directory("large.part"), noise_bytes, LARGE); /* killed before the rename */
    CHECK_OK(context, get(&only_large, "good"));
    CHECK(atomic_load(&requests) == 0);
    check_content("large", LARGE);
    /* Servers that do not support ranges, or send another range. */
    static const char *const modes[] = {"norange", "badrange"};
    for (int m = 0; m < 2; m++) {
        start_over(), make_directory();
        write_file(in_directory("large.part"), noise_bytes, 5000);
        CHECK_OK(context, get(&only_large, modes[m]));
        check_content("large", LARGE);
    }
    /* A part of another file: detected by the sum, then downloaded from the beginning. Also a part that is too long. */
    start_over(), make_directory();
    write_file(in_directory("large.part"), noise_bytes + 7, 5000);
    CHECK_OK(context, get(&only_large, "good"));
    CHECK(atomic_load(&requests) == 2 && atomic_load(&last_range) == -1);
    check_content("large", LARGE);
    start_over(), make_directory();
    unsigned char *longer = calloc(1, LARGE + 10);
    write_file(in_directory("large.part"), longer, LARGE + 10);
    free(longer);
    CHECK_OK(context, get(&only_large, "good"));
    CHECK(atomic_load(&requests) == 1 && atomic_load(&last_range) == -1);
    check_content("large", LARGE);
}

static void truncated_stalled_and_busy_responses_are_retried(void)
{
    static const char *const modes[] = {"cut", "nolength", "stall", "silent", "busy"};
    static const int         wanted[] = {3, 3, 2, 2, 2};
    for (int m = 0; m < 5; m++) {
        start_over();
        atomic_store(&hold, 1);
        CHECK_OK(context, get(&only_large, modes[m]));
        atomic_store(&hold, 0);
        check_content("large", LARGE);
        CHECK(atomic_load(&requests) == wanted[m]);
        if (m < 3) CHECK(atomic_load(&last_range) > 0); /* resumed */
    }
}

static void http_errors_fail_with_advice(void)
{
    start_over();
    CHECK_FAILS(context, get(&all_three, "missing"), LK_EIO, "404", "/missing/large", "--url", "https_proxy", "by hand",
                directory, "package dataset-three", "tried 1 time");
    CHECK(atomic_load(&requests) == 1 && !exists("large") && !exists("large.part"));
    start_over();
    CHECK_FAILS(context, get(&only_large, "forbidden"), LK_EIO, "403", "tried 1 time");
    start_over();
    CHECK_FAILS(context, get(&only_large, "broken"), LK_EIO, "500", "tried 3 times");
    CHECK(atomic_load(&requests) == 3 && !exists("large"));
    start_over();
    CHECK_FAILS(context, get(&only_large, "tofile"), LK_EIO, "/tofile/large");
    CHECK(!exists("large"));
    start_over();
    CHECK_FAILS(context, get(&only_large, "short"), LK_EIO, "tried 3 times");
    CHECK(!exists("large"));
}

static void wrong_contents_are_never_renamed_to_the_file(void)
{
    start_over();
    CHECK_FAILS(context, get(&only_large, "wrong"), LK_EFORMAT, "/wrong/large", "SHA-256", files[0].sha256, "--url");
    CHECK(!exists("large") && !exists("large.part") && atomic_load(&requests) == 1);
    start_over();
    CHECK_FAILS(context, get(&only_large, "long"), LK_EFORMAT, "more than", "100003");
    CHECK(!exists("large") && !exists("large.part"));
    start_over(), make_directory(); /* a wrong file of the user stays unchanged */
    write_file(in_directory("large"), "mine", 4);
    CHECK_FAILS(context, get(&only_large, "good"), LK_EMISMATCH, "large already exists", "move it");
    CHECK(atomic_load(&requests) == 0);
    size_t size;
    char  *mine = (char *)read_whole(in_directory("large"), &size);
    CHECK(size == 4 && memcmp(mine, "mine", 4) == 0);
    free(mine);
}

static void unreachable_servers_fail_with_advice(void)
{
    int closed_port, fd = listen_on_any_port(&closed_port);
    close(fd);
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", closed_port);
    start_over();
    CHECK_FAILS(context, lk__data_get(context, &all_three, directory, &(lk__data_transfer){url, retry, NULL, NULL}),
                LK_EIO, url, "tried 3 times", "https_proxy", "--url", "large", directory,
                "install the package dataset-three");
    CHECK(!exists("large.part"));
    start_over();
    CHECK_FAILS(context,
                lk__data_get(context, &only_large, directory,
                             &(lk__data_transfer){"http://no-such-host.invalid", retry, NULL, NULL}),
                LK_EIO, "no-such-host.invalid", "--url");
    CHECK_FAILS(
        context,
        lk__data_get(context, &only_large, directory, &(lk__data_transfer){"ftp://127.0.0.1/x", retry, NULL, NULL}),
        LK_EIO, "ftp://127.0.0.1/x");
    CHECK_FAILS(context,
                lk__data_get(context, &only_large, directory, &(lk__data_transfer){"not a url", retry, NULL, NULL}),
                LK_EIO, "not a url");
}

static void the_user_can_stop_and_resume(void)
{
    progress_log w = {.stop_at = 200};
    start_over();
    atomic_store(&hold, 1); /* 300 bytes, then nothing */
    CHECK_FAILS(
        context,
        lk__data_get(context, &only_large, directory, &(lk__data_transfer){url_of("stall"), retry, log_progress, &w}),
        LK_ECANCELED, "large.part");
    atomic_store(&hold, 0);
    CHECK(!exists("large") && exists("large.part"));
    CHECK_OK(context, get(&only_large, "good"));
    CHECK(atomic_load(&last_range) == 300);
    check_content("large", LARGE);
}

static void concurrent_downloads_do_not_mix(void)
{
    start_over(), make_directory();
    int fd = open(in_directory("large.part"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_FAILS(context, get(&only_large, "good"), LK_EIO, "another process");
    CHECK(exists("large.part"));
    close(fd);
    CHECK_OK(context, get(&only_large, "good"));
}

static void *unlock_later(void *argument)
{
    int *fd = argument;
    while (!atomic_load(&waited)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    close(*fd);
    return NULL;
}

static int note_waiting(void *user, int64_t done, int64_t total)
{
    (void)user, (void)total;
    if (done == 0) atomic_store(&waited, 1);
    return 0;
}

/* Hosts share a directory: the second one waits for the first. */
static void another_download_into_the_directory_is_waited_for(void)
{
    pthread_t thread;
    start_over(), make_directory();
    int fd = open(in_directory(".download.lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_FAILS(context, get(&only_large, "good"), LK_ETIMEOUT, "without progress for 1 s");
    CHECK(!exists("large") && !exists("large.part"));
    CHECK(pthread_create(&thread, NULL, unlock_later, &fd) == 0);
    CHECK_OK(context, lk__data_get(context, &only_large, directory,
                                   &(lk__data_transfer){url_of("good"), retry, note_waiting, NULL}));
    pthread_join(thread, NULL);
    check_content("large", LARGE);
}

static void invalid_directories_are_refused(void)
{
    start_over();
    write_file(scratch("file"), "x", 1);
    snprintf(directory, sizeof directory, "%s", scratch("file/below"));
    CHECK_FAILS(context, get(&only_large, "good"), LK_EINVAL, "cannot create the directory");
    char *endless = malloc(3000);
    memset(endless, 'a', 2999);
    endless[2999] = 0;
    CHECK_FAILS(context, lk__data_get(context, &only_large, endless, &(lk__data_transfer){NULL, retry, NULL, NULL}),
                LK_EINVAL, "aaa");
    free(endless);
    CHECK_FAILS(context, lk_data_get(context, "cifar100", NULL, NULL, NULL, NULL), LK_EINVAL, "did you mean cifar10?");
    CHECK_FAILS(context, lk_data_get(context, NULL, NULL, NULL, NULL, NULL), LK_EINVAL, "mnist");
}

/* ---- Archives. ---- */

static const char *const members[] = {"one.bin", "two.bin"};
enum { MEMBER_BYTES = 70001 };

static void serve_archive(const char *path)
{
    wait_for_connections();
    free(archive);
    archive = read_whole(path, &archive_bytes);
}

/* A set for the current contents of `archive`. */
static lk__data_known_set archive_set(lk__data_known_file *file)
{
    static char   hex[65];
    lk__sha256    sha;
    unsigned char sum[32];
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, archive, archive_bytes);
    lk__sha256_final(&sha, sum);
    lk__sha256_hex(sum, hex);
    *file = (lk__data_known_file){"archive.tar.gz", (int64_t)archive_bytes, hex};
    return (lk__data_known_set){"packed", "http://127.0.0.1:1", file, 1, NULL, "folder", members, 2, MEMBER_BYTES};
}

static void tar_archives_are_unpacked(void)
{
    static const char *const formats[] = {"gnu", "ustar", "v7", "posix"};
    for (int f = 0; f < 4; f++) {
        char command[2048];
        start_over(), make_directory();
        snprintf(command, sizeof command,
                 "cd '%s' && mkdir -p in/folder/sub && echo text >in/folder/readme.html && ln -s /etc/passwd "
                 "in/folder/link && "
                 "cp in/folder/readme.html in/folder/sub/one.bin && echo %0130d >in/folder/%090d",
                 directory, 1, 2);
        CHECK(system(command) == 0);
        write_file(in_directory("in/folder/one.bin"), noise_bytes, MEMBER_BYTES);
        write_file(in_directory("in/folder/two.bin"), noise_bytes + 9, MEMBER_BYTES);
        snprintf(command, sizeof command, "cd '%s' && tar --format=%s -C in -czf packed.tar.gz %s", directory,
                 formats[f], f % 2 ? "./folder" : "folder");
        CHECK(system(command) == 0);
        serve_archive(in_directory("packed.tar.gz"));
        start_over();
        lk__data_known_file file;
        lk__data_known_set  set = archive_set(&file);
        progress_log        w = {0};
        CHECK_OK(context, get(&set, "good"));
        check_content("folder/one.bin", MEMBER_BYTES);
        CHECK(exists("folder/two.bin") && !exists("folder/readme.html") && !exists("folder/link") &&
              !exists("folder/sub"));
        CHECK(!exists("archive.tar.gz") && !exists("folder/one.bin.part"));
        CHECK_OK(context, lk__data_get(context, &set, directory,
                                       &(lk__data_transfer){url_of("good/archive.tar.gz"), retry, log_progress, &w}));
        CHECK(atomic_load(&requests) == 1 && w.last == (int64_t)archive_bytes); /* nothing to do */
        CHECK(unlink(in_directory("folder/two.bin")) == 0);
        CHECK_OK(context, lk__data_get(context, &set, directory,
                                       &(lk__data_transfer){url_of("good/archive.tar.gz"), retry, NULL, NULL}));
        CHECK(atomic_load(&requests) == 2 && exists("folder/two.bin"));
    }
}

static void put_header(unsigned char *block, const char *name, size_t bytes, char kind)
{
    unsigned sum = 0;
    memset(block, 0, 512);
    snprintf((char *)block, 100, "%s", name);
    snprintf((char *)block + 124, 12, "%011zo", bytes);
    block[156] = (unsigned char)kind;
    memcpy(block + 257, "ustar\00000", 8);
    memset(block + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
}

/* An archive of one malicious entry and, with `good`, the two valid ones. */
static void malicious_archive(const char *name, char kind, size_t bytes, size_t claimed, bool good)
{
    unsigned char *tar = calloc(1, 512 * 1024), *at = tar;
    put_header(at, name, claimed, kind);
    at += 512 + (bytes + 511) / 512 * 512;
    for (int i = 0; good && i < 2; i++) {
        char member[64];
        snprintf(member, sizeof member, "folder/%s", members[i]);
        put_header(at, member, MEMBER_BYTES, '0');
        memcpy(at + 512, noise_bytes, MEMBER_BYTES);
        at += 512 + (MEMBER_BYTES + 511) / 512 * 512;
    }
    write_gzip(scratch("evil.tar.gz"), tar, (size_t)(at - tar) + 1024);
    free(tar);
    serve_archive(scratch("evil.tar.gz"));
}

static void archives_cannot_write_elsewhere(void)
{
    static const char *const names[] = {
        "../escaped", "/tmp/lockstep-escaped", "folder/../../escaped", "folder/one.bin/../../escaped",
        "escaped",    "folder/one.bin"};
    static const char kinds[] = {'0', '0', '0', '0', '0', '2'}; /* the last a symbolic link */
    for (int i = 0; i < 6; i++) {
        lk__data_known_file file;
        malicious_archive(names[i], kinds[i], kinds[i] == '2' ? 0 : 1000, kinds[i] == '2' ? 0 : 1000, true);
        lk__data_known_set set = archive_set(&file);
        start_over();
        CHECK_OK(context, get(&set, "good"));
        check_content("folder/one.bin", MEMBER_BYTES);
        struct stat about;
        CHECK(lstat(in_directory("folder/one.bin"), &about) == 0 && S_ISREG(about.st_mode));
        CHECK(!exists("escaped") && !exists("../escaped") && access("/tmp/lockstep-escaped", F_OK) != 0);
    }
}

static void damaged_archives_are_refused(void)
{
    lk__data_known_file file;
    lk__data_known_set  set;
    malicious_archive("folder/one.bin", '0', 1000, 1000, false);
    start_over(), set = archive_set(&file);
    CHECK_FAILS(context, get(&set, "good"), LK_EFORMAT, "archive.tar.gz", "wrong size");
    malicious_archive("folder/one.bin", '0', 1000, MEMBER_BYTES, false);
    start_over(), set = archive_set(&file);
    CHECK_FAILS(context, get(&set, "good"), LK_EFORMAT, "a member is truncated");
    CHECK(!exists("folder/one.bin") && !exists("folder/one.bin.part"));
    malicious_archive("folder/other", '0', 1000, 1000, false);
    start_over(), set = archive_set(&file);
    CHECK_FAILS(context, get(&set, "good"), LK_EFORMAT, "does not contain folder/");
    unsigned char block[2048] = {0};
    put_header(block, "folder/one.bin", 3, '0');
    block[3] ^= 1;
    write_gzip(scratch("evil.tar.gz"), block, sizeof block);
    serve_archive(scratch("evil.tar.gz"));
    start_over(), set = archive_set(&file);
    CHECK_FAILS(context, get(&set, "good"), LK_EFORMAT, "checksum");
    put_header(block, "folder/one.bin", 3, '0');
    serve_archive(scratch("evil.tar.gz"));
    archive_bytes -= 9; /* of the gzip */
    start_over(), set = archive_set(&file);
    CHECK_FAILS(context, get(&set, "good"), LK_EFORMAT, "archive.tar.gz");
}

/* Detects mistakes in the table of public data sets. */
static void the_known_sets_are_well_formed(void)
{
    CHECK(lk__known_set_count == 3);
    for (int i = 0; i < 3; i++)
        for (int f = 0; f < lk__known_sets[i].file_count; f++) {
            const lk__data_known_file *file = &lk__known_sets[i].files[f];
            CHECK(file->bytes > 4000 && strlen(file->sha256) == 64 && strspn(file->sha256, "0123456789abcdef") == 64);
            CHECK(strncmp(lk__known_sets[i].url, "http", 4) == 0 &&
                  lk__known_sets[i].url[strlen(lk__known_sets[i].url) - 1] != '/');
        }
    CHECK(lk__known_sets[0].member_bytes == 10000 * 3073 && lk__known_sets[0].member_count == 6);
}

int main(void)
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "all_proxy",
                                          "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"};
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++) unsetenv(proxies[i]);
    for (uint64_t i = 0; i < sizeof noise_bytes; i++) noise_bytes[i] = (unsigned char)((i * 0x9E3779B97F4A7C15u) >> 56);
    make_scratch();
    context = make_context();
    lk__data_curl curl;
    if (lk__curl_load(context, &curl) < 0) {
        printf("skipped: %s\n", lk_context_error(context));
        return 77;
    }
    lk__curl_unload(&curl);
    int       listener = listen_on_any_port(&port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listener) == 0);
    RUN(the_known_sets_are_well_formed);
    RUN(files_are_downloaded_once);
    RUN(a_partial_file_is_resumed);
    RUN(truncated_stalled_and_busy_responses_are_retried);
    RUN(http_errors_fail_with_advice);
    RUN(wrong_contents_are_never_renamed_to_the_file);
    RUN(unreachable_servers_fail_with_advice);
    RUN(the_user_can_stop_and_resume);
    RUN(concurrent_downloads_do_not_mix);
    RUN(another_download_into_the_directory_is_waited_for);
    RUN(invalid_directories_are_refused);
    RUN(tar_archives_are_unpacked);
    RUN(archives_cannot_write_elsewhere);
    RUN(damaged_archives_are_refused);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
    wait_for_connections();
    free(archive);
    free_context(context);
    return 0;
}
