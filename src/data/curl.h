/* data/curl.h - the part of libcurl that downloads need, loaded at run time. The constants below belong to libcurl's
 * ABI, which has been stable since ABI version 4 (2006); a test compares them with curl.h if that is installed. */
#ifndef LK__CURL_H
#define LK__CURL_H

#include "base/base.h"

/* Options of easy_setopt. */
enum {
    LK__CURL_LOW_SPEED_LIMIT = 19,
    LK__CURL_LOW_SPEED_TIME = 20,
    LK__CURL_NOPROGRESS = 43,
    LK__CURL_FAILONERROR = 45,
    LK__CURL_FOLLOWLOCATION = 52,
    LK__CURL_MAXREDIRS = 68,
    LK__CURL_NOSIGNAL = 99,
    LK__CURL_CONNECTTIMEOUT_MS = 156,
    LK__CURL_PROTOCOLS = 181,
    LK__CURL_REDIR_PROTOCOLS = 182,
    LK__CURL_WRITEDATA = 10001,
    LK__CURL_URL = 10002,
    LK__CURL_RANGE = 10007,
    LK__CURL_ERRORBUFFER = 10010,
    LK__CURL_USERAGENT = 10018,
    LK__CURL_HEADERDATA = 10029,
    LK__CURL_XFERINFODATA = 10057,
    LK__CURL_WRITEFUNCTION = 20011,
    LK__CURL_HEADERFUNCTION = 20079,
    LK__CURL_XFERINFOFUNCTION = 20219,
};

enum { LK__CURL_HTTP = 1, LK__CURL_HTTPS = 2 };                                       /* protocols */
enum { LK__CURL_RESPONSE_CODE = 0x200000 + 2, LK__CURL_RETRY_AFTER = 0x600000 + 57 }; /* easy_getinfo: long, int64_t */
enum { LK__CURL_ERROR_SIZE = 256 };

/* Results of easy_perform. */
enum {
    LK__CURL_OK = 0,
    LK__CURL_NO_PROXY_NAME = 5,
    LK__CURL_NO_HOST_NAME = 6,
    LK__CURL_NO_CONNECTION = 7,
    LK__CURL_HTTP2 = 16,
    LK__CURL_PARTIAL = 18,
    LK__CURL_HTTP_ERROR = 22,
    LK__CURL_WRITE_ERROR = 23,
    LK__CURL_TIMED_OUT = 28,
    LK__CURL_TLS_ERROR = 35,
    LK__CURL_ABORTED = 42,
    LK__CURL_NOTHING = 52,
    LK__CURL_SEND_ERROR = 55,
    LK__CURL_RECEIVE_ERROR = 56,
    LK__CURL_HTTP2_STREAM = 92,
};

typedef struct lk__data_curl {
    void *module;
    int (*global_init)(long flags);
    void (*global_cleanup)(void);
    void *(*easy_init)(void);
    void (*easy_cleanup)(void *handle);
    int (*easy_setopt)(void *handle, int option, ...);
    int (*easy_perform)(void *handle);
    int (*easy_getinfo)(void *handle, int info, ...);
    const char *(*easy_strerror)(int error);
} lk__data_curl;

/* LK_EUNSUPPORTED if there is no libcurl: the message names the package to install. */
lk_status lk__curl_load(lk_context *context, lk__data_curl *curl);
void      lk__curl_unload(lk__data_curl *curl); /* no effect if it was not loaded */

#endif
