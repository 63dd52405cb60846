/* comm_ranks.h - shared by the tests of groups: ranks as threads, each with a context and a comm; numbers of every
 * type; and the naive oracle, which knows the order of a reduction but nothing of its implementation. */
#ifndef COMM_RANKS_H
#define COMM_RANKS_H

#include "check.h"

#include <dirent.h>
#include <lockstep/comm.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define SHARED __attribute__((unused)) static

typedef struct rank_test {
    lk_context *context;
    lk_comm    *comm;
    int         rank, size;
    void       *user;
    void (*function)(struct rank_test *t);
    lk_comm_config config;
    char           log[8192]; /* the latest line */
} rank_test;

static void keep_log(void *user, lk_log_level level, const char *text)
{
    (void)level;
    snprintf(((rank_test *)user)->log, sizeof((rank_test *)user)->log, "%s", text);
}

static void *rank_main(void *argument)
{
    rank_test        *t = argument;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.log = keep_log;
    config.log_user = t;
    REQUIRE(lk_context_create(&config, &t->context) == LK_OK);
    size_t before = lk_context_memory(t->context, LK_MEMORY_OTHER);
    REQUIRE(lk_comm_create(t->context, &t->config, &t->comm) == LK_OK, "rank %d of %d: %s", t->rank, t->size,
            lk_context_error(t->context));
    CHECK(lk_comm_rank(t->comm) == t->rank && lk_comm_size(t->comm) == t->size);
    t->function(t);
    lk_comm_free(t->comm);
    CHECK(lk_context_memory(t->context, LK_MEMORY_OTHER) == before, "rank %d: %zu bytes are not freed", t->rank,
          lk_context_memory(t->context, LK_MEMORY_OTHER) - before);
    lk_context_free(t->context);
    return NULL;
}

/* Runs function on `size` ranks that are threads of this process. config may be NULL. */
SHARED void run_ranks(int size, const lk_comm_config *config, void (*function)(rank_test *t), void *user)
{
    static atomic_int jobs;
    rank_test        *ranks = calloc((size_t)size, sizeof *ranks);
    pthread_t        *threads = calloc((size_t)size, sizeof *threads);
    char              job[64];
    check_ranks_announced(size);
    snprintf(job, sizeof job, "test-%ld-%d", (long)getpid(), atomic_fetch_add(&jobs, 1));
    setenv("LOCKSTEP_JOB", job, 1);
    for (int i = 0; i < size; i++) {
        ranks[i] =
            (rank_test){.rank = i, .size = size, .user = user, .function = function, .config = LK_COMM_CONFIG_INIT};
        if (config) ranks[i].config = *config;
        ranks[i].config.rank = i;
        ranks[i].config.world = size;
        ranks[i].config.join_ms = 60000; /* the machine may be busy; these tests do not test joining */
        REQUIRE(pthread_create(&threads[i], NULL, rank_main, &ranks[i]) == 0);
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
    free(threads);
    free(ranks);
}

/* ---- leaks ---- */

SHARED int open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int  count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- numbers ---- */

SHARED uint64_t number_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xD1342543DE82EF95u + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Rounds to `bits` of significand, with steps of at least 2^least, ties to even; by arithmetic only. */
SHARED double round_to(double x, int bits, int least, double largest)
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    int    step = exponent - bits > least ? exponent - bits : least;
    double rounded = ldexp(nearbyint(ldexp(x, -step)), step);
    return fabs(rounded) > largest ? copysign(INFINITY, x) : rounded;
}
SHARED double to_f16(double x) { return round_to(x, 11, -24, 65504); }
SHARED double to_bf16(double x) { return round_to(x, 8, -133, 0x1.FEp127); }

SHARED uint16_t encode_f16(double x)
{
    int      exponent;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double   a = fabs(x);
    if (isnan(x)) return 0x7e00;
    if (isinf(x)) return sign | 0x7c00;
    if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)ldexp(a, 24));
    double m = frexp(a, &exponent); /* a = m 2^e, m in [0.5, 1) */
    return (uint16_t)(sign | (exponent + 14) << 10 | ((uint16_t)ldexp(m, 11) & 0x3ff));
}
SHARED double decode_f16(uint16_t h)
{
    int    e = h >> 10 & 31, m = h & 0x3ff;
    double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -a : a;
}
SHARED uint16_t encode_bf16(double x)
{
    float    f = (float)x; /* exact: x was rounded */
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}
SHARED double decode_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &bits, 4);
    return f;
}

/* One element, exactly; integers as 64 bits, sign extended. */
typedef struct element {
    double   real;
    uint64_t whole;
} element;

SHARED bool is_real(lk_dtype type) { return type <= LK_F16; }

SHARED element load(const void *data, lk_dtype type, size_t i)
{
    const char *at = (const char *)data + i * lk_dtype_size(type);
    float       f;
    double      d;
    uint16_t    h;
    int32_t     w;
    int64_t     l;
    switch (type) {
    case LK_F32: memcpy(&f, at, 4); return (element){f, 0};
    case LK_F64: memcpy(&d, at, 8); return (element){d, 0};
    case LK_BF16: memcpy(&h, at, 2); return (element){decode_bf16(h), 0};
    case LK_F16: memcpy(&h, at, 2); return (element){decode_f16(h), 0};
    case LK_I8: return (element){0, (uint64_t)(int64_t)(int8_t)*at};
    case LK_U8: return (element){0, (uint8_t)*at};
    case LK_I32: memcpy(&w, at, 4); return (element){0, (uint64_t)(int64_t)w};
    default: memcpy(&l, at, 8); return (element){0, (uint64_t)l};
    }
}

SHARED void save(void *data, lk_dtype type, size_t i, element e)
{
    char    *at = (char *)data + i * lk_dtype_size(type);
    float    f = (float)e.real;
    uint16_t h = type == LK_BF16 ? encode_bf16(e.real) : encode_f16(e.real);
    switch (type) {
    case LK_F32: memcpy(at, &f, 4); break;
    case LK_F64: memcpy(at, &e.real, 8); break;
    case LK_BF16:
    case LK_F16: memcpy(at, &h, 2); break;
    default: memcpy(at, &e.whole, lk_dtype_size(type)); /* the low bytes: little endian */
    }
}

/* What rank `rank` has at index i. Products stay finite, sums depend on their order. */
SHARED element value_of(uint64_t seed, int rank, size_t i, lk_dtype type, lk_reduce_op op)
{
    uint64_t bits = number_bits(seed + (uint64_t)rank * 7919, i);
    double   x = op == LK_PROD ? (0.75 + (double)(bits & 0xffff) / 0x20000) * (bits >> 40 & 1 ? -1 : 1)
                               : ldexp((double)(bits & 0xffffff) / 0xffffff - 0.5, (int)(bits >> 32 & 7) - 2);
    if (type == LK_F32) x = (float)x;
    if (type == LK_BF16) x = to_bf16(x);
    if (type == LK_F16) x = to_f16(x);
    return (element){x, bits};
}

SHARED void fill(void *data, uint64_t seed, int rank, size_t count, lk_dtype type, lk_reduce_op op)
{
    for (size_t i = 0; i < count; i++) save(data, type, i, value_of(seed, rank, i, type, op));
}

/* ---- the oracle ---- */

SHARED element extend(element e, lk_dtype type)
{
    char bytes[8];
    save(bytes, type, 0, e);
    return load(bytes, type, 0);
}

static element combine(element a, element b, lk_dtype type, lk_reduce_op op)
{
    element e = {0, 0};
    if (is_real(type)) {
        double exact = op == LK_PROD  ? a.real * b.real
                       : op == LK_MIN ? fmin(a.real, b.real)
                       : op == LK_MAX ? fmax(a.real, b.real)
                                      : a.real + b.real;
        e.real =
            type == LK_F64 ? exact : (float)exact; /* a sum or product of two floats rounds the same through double */
        return e;
    }
    int64_t x = (int64_t)a.whole, y = (int64_t)b.whole;
    e.whole = op == LK_PROD  ? a.whole * b.whole
              : op == LK_MIN ? (uint64_t)(x < y ? x : y)
              : op == LK_MAX ? (uint64_t)(x > y ? x : y)
                             : a.whole + b.whole;
    return op == LK_AVG ? e : extend(e, type);
}

/* The pairwise tree over n ranks' values: the left subtree has the largest power of two below n. */
static element tree(const element *values, int n, lk_dtype type, lk_reduce_op op)
{
    if (n == 1) return values[0];
    int left = 1;
    while (left * 2 < n) left *= 2;
    return combine(tree(values, left, type, op), tree(values + left, n - left, type, op), type, op);
}

SHARED element oracle(const element *values, int n, lk_dtype type, lk_reduce_op op)
{
    element e = tree(values, n, type, op);
    if (op == LK_AVG) {
        e.real = type == LK_F64 ? e.real / n : (float)e.real / (float)n;
        e.whole = (uint64_t)((int64_t)e.whole / n);
    }
    if (type == LK_BF16) e.real = to_bf16(e.real);
    if (type == LK_F16) e.real = to_f16(e.real);
    return extend(e, type);
}

/* The reduction of all ranks' values at index i. */
SHARED element reduced(uint64_t seed, int ranks, size_t i, lk_dtype type, lk_reduce_op op)
{
    element values[64];
    for (int r = 0; r < ranks; r++) values[r] = extend(value_of(seed, r, i, type, op), type);
    return oracle(values, ranks, type, op);
}

SHARED bool same_element(element a, element b, lk_dtype type)
{
    return is_real(type) ? (a.real == b.real && signbit(a.real) == signbit(b.real)) || (isnan(a.real) && isnan(b.real))
                         : a.whole == b.whole;
}

#endif
