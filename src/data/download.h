/* data/download.h - atomic downloads of files, and the table of public data sets. */
#ifndef LK__DOWNLOAD_H
#define LK__DOWNLOAD_H

#include "base/base.h"
#include "data/curl.h"

#include <lockstep/data.h>

typedef struct lk__data_known_file {
    const char *name;
    int64_t     bytes;
    const char *sha256; /* hex */
} lk__data_known_file;

typedef struct lk__data_known_set {
    const char                *name;
    const char                *url; /* of the directory that holds the files */
    const lk__data_known_file *files;
    int                        file_count;
    const char                *package; /* of Debian, or NULL */
    /* If files is one .tar.gz: the members to extract. */
    const char        *member_directory;
    const char *const *members;
    int                member_count;
    int64_t            member_bytes; /* of each */
} lk__data_known_set;

typedef struct lk__data_retry {
    int attempts;   /* for each file */
    int backoff_ms; /* before the second attempt; twice that before the third, … */
    int connect_ms;
    int stall_s; /* an attempt fails after this time with almost no data */
    int lock_s;  /* so does waiting for another process's download after this time without progress */
} lk__data_retry;

typedef struct lk__data_download {
    lk_context               *context;
    const lk__data_curl      *curl;
    const lk__data_known_set *set; /* for messages */
    const char               *directory;
    lk__data_retry            retry;
    lk_data_progress          progress; /* may be NULL */
    void                     *user;
    int64_t                   done, total; /* bytes of finished files; of all */
} lk__data_download;

extern const lk__data_known_set lk__known_sets[];
extern const int                lk__known_set_count;

/* Waits while another process downloads into the directory, which hosts may share. LK_OK with fd -1, or with a file
 * that is not locked, where the file system has no locks. LK_ECANCELED; LK_ETIMEOUT. */
lk_status lk__download_lock(lk__data_download *download, int *fd);
void      lk__download_unlock(int fd);

/* Downloads url to directory/file->name through a .part file in the same directory, which it resumes. */
lk_status lk__download_file(lk__data_download *download, const lk__data_known_file *file, const char *url);

/* LK_OK if the file has that SHA-256; LK_EMISMATCH if not: hex gets the actual one. */
lk_status lk__sha256_check(lk_context *context, const char *path, const char *sha256, char hex[65]);

typedef struct lk__data_transfer {
    const char      *url; /* NULL: the set's own */
    lk__data_retry   retry;
    lk_data_progress progress;
    void            *user;
} lk__data_transfer;
/* lk_data_get for any set. */
lk_status lk__data_get(lk_context *context, const lk__data_known_set *set, const char *directory,
                       const lk__data_transfer *transfer);

/* Extracts set's members from a .tar.gz into directory/member_directory. Output paths come from set, never from the
 * archive, so nothing can be written elsewhere. */
lk_status lk__untar(lk_context *context, const char *archive, const lk__data_known_set *set, const char *directory);

#endif
