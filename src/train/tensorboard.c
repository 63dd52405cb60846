/* tensorboard.c - event files: records of a length, its checksum, a message and its checksum, in TensorFlow's record
 * format. The messages (Event, Summary) are protocol buffers of four fields and a list of one, encoded here. */
#define _GNU_SOURCE
#include <lockstep/tensorboard.h>

#include "base/base.h"
#include "base/directories.h"
#include "base/json.h"
#include "train/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_TAG = 1024,
    MAX_MESSAGE = MAX_TAG + 64, /* other fields take at most 34 bytes */
    MAX_RECORD = MAX_MESSAGE + 16,
    STAGING = 65536
};
static const double FLUSH_INTERVAL = 5; /* seconds */

struct lk_tensorboard {
    lk_context   *context;
    int           fd;
    int           error; /* errno of the write that failed; 0: none has */
    double        written_at;
    size_t        used;
    char          path[PATH_MAX];
    unsigned char staging[STAGING];
};

/* ---- Protocol buffers: a key is number << 3 | wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four). ----
 */

typedef struct message {
    size_t        bytes;
    unsigned char data[MAX_MESSAGE];
} message;

static void put_fixed(unsigned char *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> 8 * i);
}

static void add_varint(message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7) m->data[m->bytes++] = (unsigned char)(value | 128);
    m->data[m->bytes++] = (unsigned char)value;
}

static void add_fixed(message *m, int number, uint64_t value, int bytes)
{
    add_varint(m, (uint64_t)(number << 3 | (bytes == 8 ? 1 : 5)));
    put_fixed(m->data + m->bytes, value, bytes);
    m->bytes += (size_t)bytes;
}

static void add_bytes(message *m, int number, const void *data, size_t bytes)
{
    add_varint(m, (uint64_t)(number << 3 | 2));
    add_varint(m, bytes);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void add_wall_time(message *m, double seconds) /* Event.wall_time */
{
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    add_fixed(m, 1, bits, 8);
}

/* ---- Records. ---- */

/* CRC-32C (RFC 3720, appendix B.4), rotated and offset, so that a checksum of data that contains checksums stays
 * useful. */
static uint32_t masked_checksum(const unsigned char *data, size_t bytes)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static lk_status report_write_error(lk_tensorboard *t)
{
    return lk__fail(t->context, LK_EIO, "%s: cannot write: %s", t->path, strerror(t->error));
}

lk_status lk_tensorboard_flush(lk_tensorboard *t)
{
    if (t->error) return report_write_error(t);
    for (size_t at = 0; at < t->used;) {
        ssize_t n = write(t->fd, t->staging + at, t->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            t->error = n < 0 ? errno : EIO;
            return report_write_error(t);
        }
        at += (size_t)n;
    }
    t->used = 0;
    t->written_at = lk__now();
    return LK_OK;
}

static lk_status add_record(lk_tensorboard *t, const message *m)
{
    if (STAGING - t->used < MAX_RECORD) {
        lk_status status = lk_tensorboard_flush(t);
        if (status < 0) return status;
    }
    unsigned char *out = t->staging + t->used;
    put_fixed(out, m->bytes, 8);
    put_fixed(out + 8, masked_checksum(out, 8), 4);
    memcpy(out + 12, m->data, m->bytes);
    put_fixed(out + 12 + m->bytes, masked_checksum(m->data, m->bytes), 4);
    t->used += m->bytes + 16;
    return LK_OK;
}

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

lk_status lk_tensorboard_add_scalar(lk_tensorboard *t, const char *tag, int64_t step, double value, double wall_time)
{
    if (t->error) return report_write_error(t);
    size_t length = tag ? strlen(tag) : 0;
    if (length < 1 || length > MAX_TAG || !lk__json_check_utf8(tag, length))
        return lk__fail(t->context, LK_EINVAL, "\"%.60s\": a tag must be 1 to %d bytes of UTF-8", tag ? tag : "",
                        MAX_TAG);

    message  point = {0}, summary = {0}, event = {0};
    float    narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    add_bytes(&point, 1, tag, length); /* Summary.Value.tag and simple_value */
    add_fixed(&point, 2, bits, 4);
    add_bytes(&summary, 1, point.data, point.bytes); /* Summary.value */
    add_wall_time(&event, wall_time == 0 ? wall_clock() : wall_time);
    add_varint(&event, 2 << 3); /* Event.step */
    add_varint(&event, (uint64_t)step);
    add_bytes(&event, 5, summary.data, summary.bytes); /* Event.summary */
    lk_status status = add_record(t, &event);
    if (status == LK_OK && lk__now() - t->written_at > FLUSH_INTERVAL) status = lk_tensorboard_flush(t);
    return status;
}

/* ---- The file. ---- */

/* Creates a file with a new name: a process may create several within a second. */
static lk_status create_file(lk_tensorboard *t, const char *directory, double now)
{
    char host[256] = "localhost";
    if (gethostname(host, sizeof host - 1) < 0) host[0] = 0;
    for (char *at = host; *at; at++)
        if (*at == '/') *at = '-';
    for (int attempt = 0; attempt < 1000; attempt++) {
        char suffix[16] = "";
        if (attempt) snprintf(suffix, sizeof suffix, ".%d", attempt);
        int length = snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%010lld.%s.%ld.lockstep%s", directory,
                              (long long)now, host, (long)getpid(), suffix);
        if (length < 0 || length >= (int)sizeof t->path)
            return lk__fail(t->context, LK_EINVAL, "%.200s…: the path is too long", directory);
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (t->fd >= 0) return LK_OK;
        if (errno != EEXIST) break;
    }
    return lk__fail(t->context, LK_EIO, "%s: cannot create: %s", t->path, strerror(errno));
}

lk_status lk_tensorboard_create(lk_context *context, const char *directory, lk_tensorboard **tensorboard)
{
    static const char version[] = "brain.Event:2";
    *tensorboard = NULL;
    lk_status status = lk__make_directories(context, directory);
    if (status < 0) return status;
    lk_tensorboard *t = lk__alloc(context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->context = context;
    t->fd = -1;
    double now = wall_clock();
    if ((status = create_file(t, directory, now)) < 0) goto fail;
    message first = {0};
    add_wall_time(&first, now);
    add_bytes(&first, 3, version, sizeof version - 1); /* Event.file_version */
    if ((status = add_record(t, &first)) < 0 || (status = lk_tensorboard_flush(t)) < 0) goto fail;
    *tensorboard = t;
    return LK_OK;
fail:
    lk_tensorboard_free(t);
    return status;
}

const char *lk_tensorboard_path(const lk_tensorboard *t) { return t->path; }

void lk_tensorboard_free(lk_tensorboard *t)
{
    if (!t) return;
    if (t->fd >= 0) {
        if (!t->error) lk_tensorboard_flush(t);
        close(t->fd);
    }
    lk__free(t->context, LK_MEMORY_OTHER, t, sizeof *t);
}
