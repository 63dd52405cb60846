/* test_tensorboard.c - event files, read by an independent decoder. `test_tensorboard DIR` only writes the file that
 * tensorboard_opens.sh opens with TensorBoard. */
#define _GNU_SOURCE
#include "test_data.h"

#include <lockstep/tensorboard.h>

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

static lk_context *context;

/* ---- a decoder ---- */

static uint32_t crc32c(const unsigned char *data, size_t bytes) /* by table, unlike in the library */
{
    uint32_t table[256], crc = ~0u;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++) table[i] = table[i] % 2 ? table[i] / 2 ^ 0x82F63B78u : table[i] / 2;
    }
    while (bytes--) crc = table[(crc ^ *data++) & 255] ^ crc >> 8;
    return ~crc;
}

typedef struct reader {
    const unsigned char *at, *end;
} reader;

static uint64_t read_fixed(reader *r, int bytes)
{
    uint64_t value = 0;
    CHECK(r->end - r->at >= bytes);
    for (int i = 0; i < bytes; i++) value += (uint64_t)r->at[i] << 8 * i;
    r->at += bytes;
    return value;
}

static uint64_t read_varint(reader *r)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint64_t byte = read_fixed(r, 1);
        value |= (byte & 127) << shift;
        if (byte < 128) return value;
    }
    CHECK(!"a varint of more than ten bytes");
    return 0;
}

static reader read_bytes(reader *r)
{
    uint64_t bytes = read_varint(r);
    CHECK(bytes <= (uint64_t)(r->end - r->at));
    reader inside = {r->at, r->at + bytes};
    r->at += bytes;
    return inside;
}

/* The checksum is stored rotated right by 15 bits, plus a constant. */
static void check_checksum(reader *r, const unsigned char *of, size_t bytes)
{
    uint32_t stored = (uint32_t)read_fixed(r, 4) - 0xa282ead8u;
    CHECK((stored << 15 | stored >> 17) == crc32c(of, bytes));
}

typedef struct point {
    char    tag[1100], version[32];
    double  wall_time;
    int64_t step;
    float   value;
    bool    has_value;
} point;

static bool read_event(reader *file, point *p)
{
    if (file->at == file->end) return false;
    *p = (point){0};
    const unsigned char *head = file->at;
    uint64_t             bytes = read_fixed(file, 8);
    check_checksum(file, head, 8);
    CHECK(bytes <= (uint64_t)(file->end - file->at));
    reader event = {file->at, file->at + bytes};
    file->at += bytes;
    check_checksum(file, event.at, bytes);
    while (event.at < event.end) {
        uint64_t key = read_varint(&event);
        if (key == 9) { /* 1, eight bytes */
            uint64_t bits = read_fixed(&event, 8);
            memcpy(&p->wall_time, &bits, 8);
        } else if (key == 16) { /* 2, varint */
            p->step = (int64_t)read_varint(&event);
        } else if (key == 26) { /* 3, string */
            reader text = read_bytes(&event);
            memcpy(p->version, text.at, (size_t)(text.end - text.at));
        } else {
            CHECK(key == 42); /* 5, message: a summary of one value */
            reader summary = read_bytes(&event);
            CHECK(read_varint(&summary) == 10);
            reader value = read_bytes(&summary);
            CHECK(summary.at == summary.end && read_varint(&value) == 10);
            reader tag = read_bytes(&value);
            memcpy(p->tag, tag.at, (size_t)(tag.end - tag.at));
            CHECK(read_varint(&value) == 21); /* 2, four bytes */
            uint32_t bits = (uint32_t)read_fixed(&value, 4);
            memcpy(&p->value, &bits, 4);
            CHECK(value.at == value.end);
            p->has_value = true;
        }
    }
    return true;
}

static reader read_file(const char *path)
{
    FILE          *file = fopen(path, "rb");
    unsigned char *data = malloc(1 << 22);
    CHECK(file && data);
    size_t bytes = fread(data, 1, 1 << 22, file);
    CHECK(bytes < 1 << 22);
    fclose(file);
    return (reader){data, data + bytes};
}

/* ---- the tests ---- */

/* Whole seconds of the clock that the writer reads: time() may read a coarser one, which lags it by a tick. */
static double seconds_now(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
    return (double)now.tv_sec;
}

static void the_decoder_computes_crc32c(void) { CHECK(crc32c((const unsigned char *)"123456789", 9) == 0xE3069283u); }

static void points_are_read_back_unchanged(void)
{
    enum { POINTS = 5000 }; /* several times the staging buffer */
    lk_tensorboard *t;
    char            tag[64], long_tag[1025];
    memset(long_tag, 'x', 1024);
    long_tag[1024] = 0;
    double begin = seconds_now();
    CHECK_OK(context, lk_tensorboard_create(context, scratch("a/b/c"), &t));
    char path[512];
    snprintf(path, sizeof path, "%s", lk_tensorboard_path(t));
    long long at;
    char      expected[512];
    CHECK(strncmp(path, scratch("a/b/c/events.out.tfevents."), strlen(scratch("a/b/c/events.out.tfevents."))) == 0);
    CHECK(sscanf(strstr(path, "tfevents.") + 9, "%10lld.", &at) == 1 && (double)at >= begin &&
          (double)at <= seconds_now());
    snprintf(expected, sizeof expected, ".%ld.lockstep", (long)getpid());
    CHECK(strstr(path, expected) && strlen(strstr(path, expected)) == strlen(expected));

    uint64_t before = lk_context_allocations(context);
    for (int i = 0; i < POINTS; i++) {
        snprintf(tag, sizeof tag, "loss/%d", i % 7);
        CHECK_OK(context, lk_tensorboard_add_scalar(t, tag, (int64_t)i * i * 1000, sin(i), 1e9 + i / 8.0));
    }
    CHECK_OK(context, lk_tensorboard_add_scalar(t, "Genauigkeit äöü", -1, (double)NAN, 5));
    CHECK_OK(context, lk_tensorboard_add_scalar(t, long_tag, INT64_MAX, (double)INFINITY, 0));
    CHECK(lk_context_allocations(context) == before);
    CHECK_OK(context, lk_tensorboard_flush(t));

    reader file = read_file(path), start = file;
    point  p;
    CHECK(read_event(&file, &p) && !strcmp(p.version, "brain.Event:2") && !p.has_value);
    CHECK(p.wall_time >= begin && p.wall_time <= seconds_now() + 1);
    for (int i = 0; i < POINTS; i++) {
        snprintf(tag, sizeof tag, "loss/%d", i % 7);
        CHECK(read_event(&file, &p) && p.has_value && !strcmp(p.tag, tag) && p.step == (int64_t)i * i * 1000);
        CHECK(p.value == (float)sin(i) && p.wall_time == 1e9 + i / 8.0);
    }
    CHECK(read_event(&file, &p) && !strcmp(p.tag, "Genauigkeit äöü") && p.step == -1 && isnan(p.value));
    CHECK(read_event(&file, &p) && !strcmp(p.tag, long_tag) && p.step == INT64_MAX && isinf(p.value));
    CHECK(p.wall_time >= begin && p.wall_time <= seconds_now() + 1);
    CHECK(!read_event(&file, &p));
    free((void *)start.at);

    CHECK_OK(context, lk_tensorboard_add_scalar(t, "late", 1, 2, 3));
    lk_tensorboard_free(t); /* flushes */
    file = start = read_file(path);
    int events = 0;
    while (read_event(&file, &p)) events++;
    CHECK(events == POINTS + 4 && !strcmp(p.tag, "late"));
    free((void *)start.at);
}

static void a_second_file_gets_another_name(void)
{
    lk_tensorboard *a, *b;
    CHECK_OK(context, lk_tensorboard_create(context, scratch("two"), &a));
    CHECK_OK(context, lk_tensorboard_create(context, scratch("two"), &b));
    CHECK(strcmp(lk_tensorboard_path(a), lk_tensorboard_path(b)) != 0);
    CHECK(access(lk_tensorboard_path(a), R_OK) == 0 && access(lk_tensorboard_path(b), R_OK) == 0);
    lk_tensorboard_free(a), lk_tensorboard_free(b);
}

static void invalid_arguments_are_refused_with_a_reason(void)
{
    lk_tensorboard *t;
    char            tag[1026];
    memset(tag, 'x', 1025);
    tag[1025] = 0;
    write_file(scratch("file"), "x", 1);
    CHECK_FAILS(context, lk_tensorboard_create(context, scratch("file"), &t), LK_EINVAL, "/file",
                "a file with that name exists");
    CHECK(!t);
    CHECK_OK(context, lk_tensorboard_create(context, scratch("tags"), &t));
    CHECK_FAILS(context, lk_tensorboard_add_scalar(t, "", 1, 1, 1), LK_EINVAL, "1 to 1024");
    CHECK_FAILS(context, lk_tensorboard_add_scalar(t, NULL, 1, 1, 1), LK_EINVAL, "tag");
    CHECK_FAILS(context, lk_tensorboard_add_scalar(t, tag, 1, 1, 1), LK_EINVAL, "1 to 1024");
    CHECK_FAILS(context, lk_tensorboard_add_scalar(t, "a\xff", 1, 1, 1), LK_EINVAL, "UTF-8");
    lk_tensorboard_free(t);
    lk_tensorboard_free(NULL);
}

static lk_status attempt(lk_context *failing)
{
    lk_tensorboard *t;
    lk_status       status = lk_tensorboard_create(failing, scratch("failing"), &t);
    CHECK((status == LK_OK) == (t != NULL));
    lk_tensorboard_free(t);
    return status;
}

static void any_allocation_can_fail(void) { CHECK(fail_each_allocation(attempt) >= 1); }

/* In its own process, limited to files of 10,000 bytes. */
static void a_full_disk_is_reported_by_every_later_call(void)
{
    pid_t child = fork();
    if (child == 0) {
        lk_tensorboard *t;
        lk_status       status = LK_OK;
        int             i = 0;
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){10000, 10000}) == 0);
        CHECK_OK(context, lk_tensorboard_create(context, scratch("full"), &t));
        while (status == LK_OK && i < 100000) status = lk_tensorboard_add_scalar(t, "loss", i++, 1, 1);
        CHECK_FAILS(context, status, LK_EIO, "events.out.tfevents", "File too large");
        CHECK_FAILS(context, lk_tensorboard_add_scalar(t, "loss", i, 1, 1), LK_EIO, "File too large");
        CHECK_FAILS(context, lk_tensorboard_flush(t), LK_EIO, "File too large");
        lk_tensorboard_free(t);
        lk_context_free(context);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static int write_sample(const char *directory)
{
    lk_tensorboard *t;
    CHECK_OK(context, lk_tensorboard_create(context, directory, &t));
    for (int i = 0; i < 3000; i++) {
        CHECK_OK(context, lk_tensorboard_add_scalar(t, "loss/train", i, 1.0 / (1 + i), 1.7e9 + i));
        if (i % 100 == 0) CHECK_OK(context, lk_tensorboard_add_scalar(t, "accuracy/test", i, i / 3000.0, 1.7e9 + i));
    }
    lk_tensorboard_free(t);
    lk_context_free(context);
    return 0;
}

int main(int words, char **arguments)
{
    context = make_context();
    if (words > 1) return write_sample(arguments[1]);
    make_scratch();
    RUN(the_decoder_computes_crc32c);
    RUN(points_are_read_back_unchanged);
    RUN(a_second_file_gets_another_name);
    RUN(invalid_arguments_are_refused_with_a_reason);
    RUN(any_allocation_can_fail);
    RUN(a_full_disk_is_reported_by_every_later_call);
    free_context(context);
    return 0;
}
