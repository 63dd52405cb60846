/* where.c - a or b by a condition of any type, with broadcasting. Bound by memory. */
#include "base/dtype.h"
#include "device/cpu/broadcast.h"

typedef struct selection {
    broadcast     walk;
    broadcast_row row; /* for the condition's type */
    const void   *condition;
    const REAL   *a, *b;
    REAL         *y;
} selection;

static void fill_row(REAL *y, REAL value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = value;
}

/* y may be a or b: each element is read before it is written, and no other element is read. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* One inner row. Each case is a separate loop, which compilers vectorise. NaN is not 0. */
#define ROW(name, type, LOAD)                                                                      \
    static void name(const void *data, const int64_t at[BROADCAST_MOST], int64_t begin, int64_t n) \
    {                                                                                              \
        const selection *s = data;                                                                 \
        const int        last = s->walk.rank - 1;                                                  \
        const type      *c = (const type *)s->condition + at[0];                                   \
        const REAL      *a = s->a + at[1], *b = s->b + at[2];                                      \
        REAL            *y = s->y + begin;                                                         \
        const bool       many_a = s->walk.step[1][last], many_b = s->walk.step[2][last];           \
        if (!s->walk.step[0][last]) { /* one condition for the row */                              \
            const bool  first = LOAD(*c) != 0;                                                        \
            const REAL *from = first ? a : b;                                                      \
            if (first ? many_a : many_b)                                                           \
                memmove(y, from, (size_t)n * sizeof *y);                                           \
            else                                                                                   \
                fill_row(y, *from, n);                                                             \
        } else if (many_a && many_b) {                                                             \
            INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = LOAD(c[i]) != 0 ? a[i] : b[i];            \
        } else if (many_a) {                                                                       \
            const REAL one = *b;                                                                   \
            INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = LOAD(c[i]) != 0 ? a[i] : one;             \
        } else if (many_b) {                                                                       \
            const REAL one = *a;                                                                   \
            INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = LOAD(c[i]) != 0 ? one : b[i];             \
        } else {                                                                                   \
            const REAL yes = *a, no = *b;                                                          \
            INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = LOAD(c[i]) != 0 ? yes : no;               \
        }                                                                                          \
    }
#define DEFINE_ROW(id, name, bytes, kind, sums, memory, number, load, ...) ROW(name##_row, memory, load)
LK__DTYPE_LIST(DEFINE_ROW)

static broadcast_row row_for(lk_dtype condition)
{
    static const broadcast_row rows[LK_DTYPE_COUNT] = {
#define TYPE_ROW(id, name, ...) [LK_##id] = name##_row,
        LK__DTYPE_LIST(TYPE_ROW)};
    return rows[condition];
}

static void selection_tile(void *argument, int64_t tile, int worker)
{
    const selection *s = argument;
    (void)worker;
    broadcast_walk(&s->walk, tile, s->row, s);
}

void KERNEL(where)(const lk__kernel_call *call)
{
    selection s = {.walk = broadcast_merge(call, 3), .row = row_for(call->in[0].dtype), .condition = call->in[0].data};
    s.a = call->in[1].data;
    s.b = call->in[2].data;
    s.y = call->out[0].data;
    lk__pool_run(call->pool, s.walk.tiles, selection_tile, &s);
}
