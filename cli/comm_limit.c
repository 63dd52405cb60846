/* comm_limit.c - moves the bytes of a collective in the pattern that symmetric memory needs, and times it.
 *
 * No algorithm on memory that all ranks map moves fewer bytes: whatever a collective combines or passes on is read
 * once, and every byte of a result is written once. A rank reads and writes blocks that are still in its own cache when
 * it writes to them, and the pattern has no waits and no arithmetic, so what bounds it is how fast these processes, all
 * at once, get lines from memory and from each other's caches. */
#define _GNU_SOURCE
#include "comm_limit.h"

#include "clock.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* in headers since glibc 2.37 */
#endif

enum {
    BLOCK = 2048, /* bytes read of every buffer before they are written */
    LINE = 64,
    HUGE_PAGE = 2 << 20,
    AHEAD = 1024, /* bytes of every buffer that are fetched ahead, to be written */
    MOST_RANKS = 256,
    TRIES = 7 /* of which the fastest counts */
};

/* How they are moved; the fastest counts. */
typedef enum way { COPIES, LINES, LINES_AHEAD, BLOCKS, BLOCKS_PAST_CACHES } way;

/* A range of one rank's buffer. */
typedef struct range {
    char  *at;
    size_t bytes;
} range;

/* What this rank moves: blocks of all that it reads, then the same blocks of all that it writes. */
typedef struct pattern {
    range *reads, *writes; /* by rank; 0 bytes: nothing of that one */
    int    ranks;
    int    times; /* in a row, to be timed */
    size_t longest;
} pattern;

/* ---- memory that all ranks map ---- */

/* At a multiple of their size, where huge pages can be mapped as such. */
static char *map_aligned(int fd, size_t bytes)
{
    char *room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (start > room) munmap(room, (size_t)(start - room));
    if (room + HUGE_PAGE > start) munmap(start + bytes, (size_t)(room + HUGE_PAGE - start));
    char *mapped = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) munmap(start, bytes);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* The pages of this rank's part, huge ones where the system gives them, as those of symmetric memory are; by this rank,
 * so that they are on its memory node. */
static bool take_pages(int fd, char *memory, size_t first, size_t bytes)
{
    for (size_t at = first; at + HUGE_PAGE <= first + bytes && first % HUGE_PAGE == 0; at += HUGE_PAGE)
        if (fallocate(fd, 0, (off_t)at, 1) != 0 || madvise(memory + at, HUGE_PAGE, MADV_COLLAPSE) != 0) break;
    return posix_fallocate(fd, (off_t)first, (off_t)bytes) == 0;
}

/* Like symmetric memory it has no name: the others open it through rank 0's descriptor. NULL: a rank could not. */
static char *map_shared(lk_comm *comm, size_t each, lk_status *status)
{
    int64_t shared[2] = {getpid(), -1};
    int     fd = -1, rank = lk_comm_rank(comm);
    size_t  bytes = each * (size_t)lk_comm_size(comm);
    char   *memory = NULL;
    if (rank == 0) {
        fd = memfd_create("lockstep-bench", MFD_CLOEXEC);
        if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) shared[1] = fd;
    }
    *status = lk_comm_broadcast(comm, shared, 2, LK_I64, 0, NULL);
    if (*status < 0) goto end;
    if (rank != 0 && shared[1] >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)shared[0], (long long)shared[1]);
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (fd >= 0) memory = map_aligned(fd, bytes);
    /* Also: rank 0 keeps its descriptor until all have opened it, and nobody uses pages that do not exist. */
    int64_t ready = memory && take_pages(fd, memory, each * (size_t)rank, each);
    *status = lk_comm_all_reduce(comm, &ready, &ready, 1, LK_I64, LK_MIN, NULL);
    if ((*status < 0 || !ready) && memory) {
        munmap(memory, bytes);
        memory = NULL;
    }
end:
    if (fd >= 0) close(fd);
    return memory;
}

/* ---- which bytes ---- */

/* Whole cache lines for each rank. */
static range slice_of(char *buffer, size_t bytes, int rank, int ranks)
{
    size_t lines = (bytes + 63) / 64, first = lines * (size_t)rank / (size_t)ranks * 64,
           end = lines * (size_t)(rank + 1) / (size_t)ranks * 64;
    if (end > bytes) end = bytes;
    return (range){buffer + (first < end ? first : end), end - (first < end ? first : end)};
}

/* In place, what a rank receives would replace what others have yet to read. */
bool comm_limit_needs_two(const lk_collective *c) { return c->sends_parts && c->receives_parts; }

/* Every rank has a buffer, or two where results cannot be in place, `stride` bytes apart. */
typedef struct buffers {
    char  *memory;
    size_t stride, each; /* bytes from one to the next, and of a rank */
    size_t bytes;        /* used of a buffer */
    int    rank;         /* this one */
} buffers;

static char *buffer_of(const buffers *b, int rank) { return b->memory + b->each * (size_t)rank; }

/* What this rank, which reduces a slice of all buffers, reads of that of rank i and writes to it. */
static void choose_reduced(const lk_collective *c, const buffers *b, int i, pattern *p)
{
    char  *theirs = buffer_of(b, i);
    size_t bytes = b->bytes;
    int    rank = b->rank;
    bool   writes = c->root_receives ? i == 0 : !c->sends_parts || i == rank;
    p->reads[i] = p->writes[i] = slice_of(theirs, bytes, rank, p->ranks);
    if (!writes) p->writes[i].bytes = 0;
}

/* What this rank reads of the buffer of rank i, and where it writes it in its own: the first, or the second where it is
 * not in place. */
static void choose_moved(const lk_collective *c, const buffers *b, int i, pattern *p)
{
    char  *theirs = buffer_of(b, i), *mine = buffer_of(b, b->rank), *second = mine + b->stride;
    size_t bytes = b->bytes;
    int    rank = b->rank;
    bool   receives = !c->root_receives || rank == 0, sends = !c->root_sends || i == 0;
    bool   two = comm_limit_needs_two(c), in_place = !two && i == rank;
    p->reads[i] = p->writes[i] = (range){mine, 0};
    if (!receives || !sends || in_place) return;
    p->reads[i] = c->sends_parts      ? slice_of(theirs, bytes, rank, p->ranks)
                  : c->receives_parts ? slice_of(theirs, bytes, i, p->ranks)
                                      : (range){theirs, bytes};
    p->writes[i] = c->receives_parts ? slice_of(two ? second : mine, bytes, i, p->ranks)
                   : c->sends_parts  ? slice_of(mine, bytes, rank, p->ranks)
                                     : (range){mine, bytes};
}

static void choose_ranges(const lk_collective *c, const buffers *b, pattern *p)
{
    p->longest = 0;
    for (int i = 0; i < p->ranks; i++) {
        if (c->reduces)
            choose_reduced(c, b, i, p);
        else
            choose_moved(c, b, i, p);
        if (p->reads[i].bytes > p->longest) p->longest = p->reads[i].bytes;
        if (p->writes[i].bytes > p->longest) p->longest = p->writes[i].bytes;
    }
}

/* ---- moving them ---- */

typedef uint64_t words __attribute__((vector_size(16), may_alias));

/* Eight independent sums: memory bounds it, not an operation's latency. What is not a whole line is left out. */
static uint64_t read_bytes(const char *at, size_t bytes)
{
    const words *w = (const words *)at;
    words        s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    for (size_t i = 0; i + 8 <= bytes / sizeof *w; i += 8) {
        s0 ^= w[i];
        s1 ^= w[i + 1];
        s2 ^= w[i + 2];
        s3 ^= w[i + 3];
        s4 ^= w[i + 4];
        s5 ^= w[i + 5];
        s6 ^= w[i + 6];
        s7 ^= w[i + 7];
    }
    s0 ^= s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7;
    return s0[0] ^ s0[1];
}

/* Where the machine has stores that bypass its caches, they may be the faster ones. */
static void write_bytes(char *to, const char *from, size_t bytes, bool bypass)
{
#if defined(__x86_64__)
    size_t i = 0;
    for (; bypass && i + 16 <= bytes; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
    to += i;
    from += i;
    bytes -= i;
#else
    (void)bypass;
#endif
    if (bytes) memcpy(to, from, bytes);
}

static size_t piece(const range *r, size_t at)
{
    return at >= r->bytes ? 0 : r->bytes - at < BLOCK ? r->bytes - at : BLOCK;
}

static void move_blocks(const pattern *p, const char *block, size_t first, bool bypass)
{
    for (size_t at = first; at < p->longest; at += BLOCK) {
        uint64_t sum = 0;
        for (int i = 0; i < p->ranks; i++) sum ^= read_bytes(p->reads[i].at + at, piece(&p->reads[i], at));
        __asm__ volatile("" : : "r"(sum)); /* so that the reads are not left out */
        for (int i = 0; i < p->ranks; i++) write_bytes(p->writes[i].at + at, block, piece(&p->writes[i], at), bypass);
    }
}

static inline void fetch_to_write(const char *at)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*at)); /* every x86-64 since 2008; compilers use it only if told so */
#else
    __builtin_prefetch(at, 1, 3);
#endif
}

#define INLINE static inline __attribute__((always_inline))

/* With vectors of the type T, of the instruction set TARGET. The compiler unrolls it for the usual numbers of
 * buffers. */
#define DEFINE_MOVE(T, TARGET)                                                                                  \
    TARGET INLINE void move_line_##T(range *const *ranges, int from, int to, size_t at)                         \
    {                                                                                                           \
        T sum[LINE / sizeof(T)] = {{0}};                                                                        \
        for (int i = 0; i < from; i++)                                                                          \
            for (size_t k = 0; k < LINE / sizeof(T); k++) sum[k] ^= ((const T *)(ranges[0][i].at + at))[k];     \
        for (int i = 0; i < to; i++)                                                                            \
            for (size_t k = 0; k < LINE / sizeof(T); k++) ((T *)(ranges[1][i].at + at))[k] = sum[k];            \
    }                                                                                                           \
    TARGET INLINE void move_common_##T(range *const *ranges, int from, int to, size_t common, bool ahead)       \
    {                                                                                                           \
        size_t at = 0;                                                                                          \
        for (; ahead && at + AHEAD < common; at += LINE) {                                                      \
            for (int i = 0; i < from; i++) fetch_to_write(ranges[0][i].at + at + AHEAD);                        \
            move_line_##T(ranges, from, to, at);                                                                \
        }                                                                                                       \
        for (; at < common; at += LINE) move_line_##T(ranges, from, to, at);                                    \
    }                                                                                                           \
    TARGET static void move_##T(range *const *ranges, int from, int to, size_t common, bool ahead)              \
    {                                                                                                           \
        if (from == 2 && to == 2) move_common_##T(ranges, 2, 2, common, ahead);                                 \
        else if (from == 4 && to == 4) move_common_##T(ranges, 4, 4, common, ahead);                            \
        else if (from == 8 && to == 8) move_common_##T(ranges, 8, 8, common, ahead);                            \
        else if (from == 16 && to == 16) move_common_##T(ranges, 16, 16, common, ahead);                        \
        else if (from == 2 && to == 1) move_common_##T(ranges, 2, 1, common, ahead);                            \
        else if (from == 4 && to == 1) move_common_##T(ranges, 4, 1, common, ahead);                            \
        else if (from == 8 && to == 1) move_common_##T(ranges, 8, 1, common, ahead);                            \
        else if (from == 16 && to == 1) move_common_##T(ranges, 16, 1, common, ahead);                          \
        else move_common_##T(ranges, from, to, common, ahead);                                                  \
    }

DEFINE_MOVE(words, )
#if defined(__x86_64__)
typedef uint64_t words_32 __attribute__((vector_size(32), may_alias));
typedef uint64_t words_64 __attribute__((vector_size(64), may_alias));
DEFINE_MOVE(words_32, __attribute__((target("avx2"))))
DEFINE_MOVE(words_64, __attribute__((target("avx512f"))))
#endif

/* A line of every buffer at a time, as far as all ranges go that are not empty. Returns how far. */
static size_t move_lines(const pattern *p, bool ahead)
{
    range  reads[MOST_RANKS], writes[MOST_RANKS], *ranges[] = {reads, writes};
    int    from = 0, to = 0;
    size_t common = p->longest / LINE * LINE;
    for (int i = 0; i < p->ranks; i++) {
        if (p->reads[i].bytes) reads[from++] = p->reads[i];
        if (p->writes[i].bytes) writes[to++] = p->writes[i];
        if (p->reads[i].bytes && p->reads[i].bytes < common) common = p->reads[i].bytes / LINE * LINE;
        if (p->writes[i].bytes && p->writes[i].bytes < common) common = p->writes[i].bytes / LINE * LINE;
    }
    void (*move)(range *const *, int, int, size_t, bool) = move_words;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        move = move_words_64;
    else if (__builtin_cpu_supports("avx2"))
        move = move_words_32;
#endif
    move(ranges, from, to, common, ahead);
    return common;
}

/* Where every range that is read has one of the same length to be written to. */
static void move_copies(const pattern *p)
{
    for (int i = 0; i < p->ranks; i++)
        if (p->writes[i].bytes && p->writes[i].at != p->reads[i].at)
            memcpy(p->writes[i].at, p->reads[i].at, p->writes[i].bytes);
}

static void move_all(const pattern *p, const char *block, way how)
{
    size_t moved = how == LINES || how == LINES_AHEAD ? move_lines(p, how == LINES_AHEAD) : 0;
    if (how == COPIES)
        move_copies(p);
    else
        move_blocks(p, block, moved, how == BLOCKS_PAST_CACHES);
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* All ranks move at once, several times in a row, from the start of the first one to the end of the last one. */
static lk_status time_moves(lk_comm *comm, const pattern *p, const char *block, way how, double *best)
{
    int       times = p->times;
    lk_status status = LK_OK;
    for (int try = 0; try < TRIES && status >= 0; try++) {
        status = lk_comm_barrier(comm, NULL);
        double span[2] = {-now()}; /* one clock for all processes of a host */
        for (int i = 0; i < times; i++) move_all(p, block, how);
        span[1] = now();
        if (status >= 0) status = lk_comm_all_reduce(comm, span, span, 2, LK_F64, LK_MAX, NULL);
        double seconds = (span[0] + span[1]) / times;
        if (status >= 0 && try > 0 && !(seconds >= *best)) *best = seconds; /* the first one fills the caches */
    }
    return status;
}

lk_status comm_limit_measure(lk_comm *comm, const lk_collective *collective, size_t bytes, double *seconds)
{
    int       ranks = lk_comm_size(comm), times = bytes < 65536 ? 200 : bytes < 8 << 20 ? 20 : 4;
    size_t    unit = bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, stride = (bytes + unit - 1) / unit * unit;
    size_t    each = comm_limit_needs_two(collective) ? 2 * stride : stride;
    lk_status status = LK_OK;
    *seconds = NAN;
    if (lk_comm_local_size(comm) != ranks || ranks > MOST_RANKS) return LK_OK;
    char *memory = map_shared(comm, each, &status);
    if (!memory) return status;
    pattern p = {.ranks = ranks, .times = times};
    p.reads = calloc((size_t)ranks, sizeof *p.reads);
    p.writes = calloc((size_t)ranks, sizeof *p.writes);
    char *block = aligned_alloc(64, BLOCK);
    if (p.reads && p.writes && block) {
        memset(block, 0, BLOCK);
        buffers b = {memory, stride, each, bytes, lk_comm_rank(comm)};
        choose_ranges(collective, &b, &p);
        for (way how = collective->reduces ? LINES : COPIES; how <= BLOCKS_PAST_CACHES && status >= 0; how++)
            status = time_moves(comm, &p, block, how, seconds);
    } else {
        status = LK_ENOMEM;
    }
    free(p.reads);
    free(p.writes);
    free(block);
    munmap(memory, each * (size_t)ranks);
    return status;
}
