/* token.c - reads and checks the job's token. A file is checked as ssh checks a private key: one that another user
 * owns, or that others can read or write, is refused. */
#define _GNU_SOURCE
#include "comm/rendezvous/token.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

lk_status lk__token_check(lk_context *context, const char *from, const char *token)
{
    size_t length = strlen(token);
    if (length >= LK__TOKEN_LEAST && length < LK__TOKEN_ROOM) return LK_OK;
    return lk__fail(
        context, LK_EINVAL,
        "%s holds a token of %zu characters: expected %d to %d characters, such as the output of openssl rand -hex 16",
        from, length, LK__TOKEN_LEAST, LK__TOKEN_ROOM - 1);
}

static lk_status check_permissions(lk_context *context, const char *path, const struct stat *about)
{
    if (!S_ISREG(about->st_mode))
        return lk__fail(context, LK_EINVAL, "LOCKSTEP_TOKEN_FILE %s is not a regular file", path);
    if (about->st_uid != geteuid())
        return lk__fail(
            context, LK_EINVAL,
            "LOCKSTEP_TOKEN_FILE %s belongs to user %u, but this process runs as user %u: use a file of your own", path,
            (unsigned)about->st_uid, (unsigned)geteuid());
    if (about->st_mode & 077)
        return lk__fail(
            context, LK_EINVAL,
            "LOCKSTEP_TOKEN_FILE %s can be read or written by others (its mode is %03o): run chmod 600 on it", path,
            (unsigned)about->st_mode & 0777);
    return LK_OK;
}

lk_status lk__token_read(lk_context *context, const char *path, char token[LK__TOKEN_ROOM])
{
    struct stat about;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t     n = -1;
    if (fd < 0 || fstat(fd, &about) != 0) {
        int why = errno;
        if (fd >= 0) close(fd);
        return lk__fail(context, why == ENOENT ? LK_ENOENT : LK_EIO, "cannot read LOCKSTEP_TOKEN_FILE %s: %s", path,
                        strerror(why));
    }
    lk_status status = check_permissions(context, path, &about);
    if (status >= 0) n = read(fd, token, LK__TOKEN_ROOM);
    close(fd);
    if (status < 0) return status;
    while (n > 0 && isspace((unsigned char)token[n - 1])) n--;
    if (n < LK__TOKEN_LEAST || n >= LK__TOKEN_ROOM || memchr(token, 0, (size_t)n) || memchr(token, '\n', (size_t)n))
        return lk__fail(context, LK_EINVAL,
                        "LOCKSTEP_TOKEN_FILE %s does not hold one line of %d to %d characters, such as the output of "
                        "openssl rand -hex 16",
                        path, LK__TOKEN_LEAST, LK__TOKEN_ROOM - 1);
    token[n] = 0;
    return LK_OK;
}
