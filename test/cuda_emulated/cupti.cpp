/* cupti.cpp - stands in for libcupti where LK_CUDA_EMULATED_CUPTI is 1: reports the emulation's kernels, copies and
 * fills in CUPTI's records, in buffers of the size that the caller gives, out of order as CUPTI may. Its clock is not
 * the host's. */
#include "emulated_internal.h"

#include <mutex>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vector>

namespace {

/* CUPTI's records, 12.0 and later: fields at their offsets, others 0. */
struct record {
    uint64_t                   words[27];
    template <typename T> void set(size_t offset, T value) { memcpy((char *)words + offset, &value, sizeof value); }
};
enum { KERNEL_BYTES = 216, COPY_BYTES = 96, FILL_BYTES = 88 };

typedef void (*give_buffer)(uint8_t **buffer, size_t *bytes, size_t *most);
typedef void (*take_buffer)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);

std::mutex          lock;
std::vector<record> records;
bool                enabled[16];
give_buffer         give;
take_buffer         take;
const uint64_t      AHEAD = 1700000000ull * 1000000000ull; /* of its clock, in nanoseconds */

uint64_t stamp(double seconds) { return AHEAD + (uint64_t)(seconds * 1e9); }

size_t record_bytes(uint32_t kind) { return kind == 10 ? KERNEL_BYTES : kind == 1 ? COPY_BYTES : FILL_BYTES; }

int get_version(uint32_t *version)
{
    *version = 130001;
    return 0;
}
int get_timestamp(uint64_t *time)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *time = stamp((double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    return 0;
}
int get_result_string(int, const char **text)
{
    *text = "CUPTI_ERROR_EMULATED";
    return 0;
}
int register_callbacks(give_buffer giver, take_buffer taker)
{
    give = giver;
    take = taker;
    return 0;
}
int enable(int kind)
{
    const char *fails = getenv("LK_CUDA_EMULATED_CUPTI");
    enabled[kind] = !(fails && strcmp(fails, "refuse") == 0);
    return enabled[kind] ? 0 : 1;
}
int disable(int kind)
{
    enabled[kind] = false;
    return 0;
}
int flush_all(uint32_t)
{
    std::vector<record> all;
    {
        std::lock_guard<std::mutex> g(lock);
        all.swap(records);
    }
    for (size_t i = all.size(); i > 0;) { /* the latest first */
        uint8_t *buffer = NULL;
        size_t   bytes = 0, most = 0, used = 0;
        give(&buffer, &bytes, &most);
        if (!buffer) return 1;
        while (i > 0) {
            size_t size = record_bytes((uint32_t)all[i - 1].words[0]);
            if (used + size > bytes) break;
            memcpy(buffer + used, all[--i].words, size);
            used += size;
        }
        take(NULL, 0, buffer, bytes, used);
    }
    return 0;
}
int get_next_record(uint8_t *buffer, size_t valid, void **at)
{
    uint8_t *next = *at ? (uint8_t *)*at + record_bytes(*(uint32_t *)*at) : buffer;
    if (next >= buffer + valid) return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    *at = next;
    return 0;
}
int get_dropped(void *, uint32_t, size_t *dropped)
{
    *dropped = 0;
    return 0;
}

} // namespace

bool lk__emulated_reports(int kind) { return enabled[kind]; }

void lk__emulated_report(const lk__emulated_work &work, double begin, double end, uint32_t graph)
{
    record r = {};
    r.set(0, (uint32_t)work.kind);
    if (work.kind ==
        10) { /* in a graph they start before the one before them ends, as with programmatic dependent launch */
        r.set(16, stamp(graph ? begin - 5e-6 : begin));
        r.set(24, stamp(end));
        r.set(92, graph);
        r.set(104, work.name);
        r.set(144, (uint64_t)graph);
    } else {
        r.set(4, (uint8_t)work.direction);
        r.set(8, (uint64_t)work.bytes);
        r.set(16, stamp(begin));
        r.set(24, stamp(end));
        r.set(44, graph);
        r.set(64, (uint64_t)graph);
    }
    std::lock_guard<std::mutex> g(lock);
    records.push_back(r);
}

void *lk__emulated_cupti(const char *name)
{
    static const struct {
        const char *name;
        void       *function;
    } all[] = {{"cuptiGetVersion", (void *)get_version},
               {"cuptiGetTimestamp", (void *)get_timestamp},
               {"cuptiGetResultString", (void *)get_result_string},
               {"cuptiActivityRegisterCallbacks", (void *)register_callbacks},
               {"cuptiActivityEnable", (void *)enable},
               {"cuptiActivityDisable", (void *)disable},
               {"cuptiActivityFlushAll", (void *)flush_all},
               {"cuptiActivityGetNextRecord", (void *)get_next_record},
               {"cuptiActivityGetNumDroppedRecords", (void *)get_dropped}};
    const char *given = getenv("LK_CUDA_EMULATED_CUPTI");
    if (!given || !*given || strcmp(given, "0") == 0) return NULL;
    for (const auto &one : all)
        if (strcmp(one.name, name) == 0) return one.function;
    return NULL;
}
