/* tar.c - extracts known members from a .tar.gz (POSIX.1-1988 ustar, and older formats). Other members are skipped. */
#define _GNU_SOURCE
#include "base/directories.h"
#include "data/download.h"
#include "data/path.h"
#include "data/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 512, CHUNK = 65536 };
enum { NAME = 0, SIZE = 124, SUM = 148, KIND = 156, PREFIX = 345 }; /* offsets of fields in a header */

typedef struct unpacker {
    lk_context               *context;
    const lk__data_known_set *set;
    const char               *directory;
    lk__data_stream           stream;
    unsigned char            *chunk; /* CHUNK bytes */
} unpacker;

/* Parses an octal field; false if it is not one. */
static bool parse_octal(const unsigned char *field, int width, uint64_t *value)
{
    int i = 0;
    *value = 0;
    while (i < width && field[i] == ' ') i++;
    if (i == width || field[i] < '0' || field[i] > '7') return false;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++) *value = *value * 8 + (uint64_t)(field[i] - '0');
    return i == width || field[i] == 0 || field[i] == ' ';
}

static lk_status report_damaged(unpacker *u, const char *what)
{
    return lk__fail(u->context, LK_EFORMAT, "%s is truncated or damaged: %s", u->stream.name, what);
}

static lk_status read_exactly(unpacker *u, void *out, size_t bytes)
{
    size_t    got = 0;
    lk_status status = lk__stream_read(&u->stream, out, bytes, &got);
    if (status < 0) return status;
    return got == bytes ? LK_OK : report_damaged(u, "a member is truncated");
}

/* Reads `bytes` and the padding to a whole block, and writes them to fd unless it is -1. */
static lk_status copy_member(unpacker *u, uint64_t bytes, int fd, const char *path)
{
    uint64_t padded = (bytes + BLOCK - 1) / BLOCK * BLOCK;
    for (uint64_t at = 0; at < padded;) {
        size_t    n = padded - at < CHUNK ? (size_t)(padded - at) : CHUNK;
        lk_status status = read_exactly(u, u->chunk, n);
        if (status < 0) return status;
        size_t keep = at >= bytes ? 0 : bytes - at < n ? (size_t)(bytes - at) : n;
        for (size_t written = 0; fd >= 0 && written < keep;) {
            ssize_t w = write(fd, u->chunk + written, keep - written);
            if (w < 0 && errno == EINTR) continue;
            if (w < 0) return lk__fail(u->context, LK_EIO, "cannot write %s: %s", path, strerror(errno));
            written += (size_t)w;
        }
        at += n;
    }
    return LK_OK;
}

/* The index of the header's member in the set, or -1. */
static int find_member(const unpacker *u, const unsigned char *header)
{
    char path[LK__PATH];
    if (header[KIND] != '0' && header[KIND] != 0) return -1; /* not a plain file */
    bool ustar = memcmp(header + 257, "ustar", 6) == 0;
    if (ustar && header[PREFIX])
        lk__path(path, "%.155s/%.100s", (const char *)header + PREFIX, (const char *)header + NAME);
    else
        lk__path(path, "%.100s", (const char *)header + NAME);
    const char *name = strncmp(path, "./", 2) == 0 ? path + 2 : path;
    size_t      folder = strlen(u->set->member_directory);
    if (strncmp(name, u->set->member_directory, folder) != 0 || name[folder] != '/') return -1;
    for (int i = 0; i < u->set->member_count; i++)
        if (strcmp(name + folder + 1, u->set->members[i]) == 0) return i;
    return -1;
}

static lk_status extract_member(unpacker *u, int member, uint64_t bytes)
{
    char path[LK__PATH], part[LK__PATH];
    if ((int64_t)bytes != u->set->member_bytes) return report_damaged(u, "a member has the wrong size");
    if (!lk__path(path, "%s/%s/%s", u->directory, u->set->member_directory, u->set->members[member]) ||
        !lk__path(part, "%s.part", path))
        return lk__fail(u->context, LK_EINVAL, "the directory name %s is too long", u->directory);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return lk__fail(u->context, LK_EIO, "cannot write %s: %s", part, strerror(errno));
    lk_status status = copy_member(u, bytes, fd, part);
    if (status == LK_OK && fsync(fd) != 0)
        status = lk__fail(u->context, LK_EIO, "cannot write %s: %s", part, strerror(errno));
    close(fd);
    if (status == LK_OK && rename(part, path) != 0)
        status = lk__fail(u->context, LK_EIO, "cannot create %s: %s", path, strerror(errno));
    if (status < 0) unlink(part);
    return status;
}

/* Reads one header and its data; LK_END at the end of the archive. */
static lk_status read_entry(unpacker *u, unsigned *extracted)
{
    unsigned char header[BLOCK];
    uint64_t      sum, bytes, actual = 0;
    lk_status     status = read_exactly(u, header, sizeof header);
    if (status < 0) return status;
    if (header[0] == 0) return LK_END; /* a block of zeros */
    for (int i = 0; i < BLOCK; i++) actual += i >= SUM && i < SUM + 8 ? ' ' : header[i];
    if (!parse_octal(header + SUM, 8, &sum) || sum != actual) return report_damaged(u, "header checksum mismatch");
    if (!parse_octal(header + SIZE, 12, &bytes)) return report_damaged(u, "a header's size is not a number");
    int member = find_member(u, header);
    if (member < 0) return copy_member(u, bytes, -1, NULL);
    *extracted |= 1u << member;
    return extract_member(u, member, bytes);
}

lk_status lk__untar(lk_context *context, const char *archive, const lk__data_known_set *set, const char *directory)
{
    unpacker  u = {.context = context, .set = set, .directory = directory};
    unsigned  extracted = 0; /* a bit for each member */
    char      folder[LK__PATH];
    lk_status status = lk__stream_open(context, archive, &u.stream);
    if (status < 0) goto fail;
    u.chunk = lk__alloc(context, LK_MEMORY_DATA, CHUNK);
    if (!u.chunk) {
        status = LK_ENOMEM;
        goto fail;
    }
    if (!lk__path(folder, "%s/%s", directory, set->member_directory)) {
        status = lk__fail(context, LK_EINVAL, "the directory name %s is too long", directory);
        goto fail;
    }
    if ((status = lk__make_directories(context, folder)) < 0) goto fail;
    while ((status = read_entry(&u, &extracted)) == LK_OK) continue;
    if (status < 0) goto fail;
    status = LK_OK;
    for (int i = 0; i < set->member_count; i++)
        if (!(extracted >> i & 1))
            status = lk__fail(context, LK_EFORMAT, "%s does not contain %s/%s", archive, set->member_directory,
                              set->members[i]);
fail:
    lk__free(context, LK_MEMORY_DATA, u.chunk, CHUNK);
    lk__stream_close(&u.stream);
    return status;
}
