/* cast.c - conversion between types. The operands' types are known only at run time, so every table has the same
 * kernel. Conversions to narrower types start from f32: a wider number is rounded to f32 first, as in PyTorch. Bound by
 * memory. */
#include "base/dtype.h"
#include "device/cpu/lanes.h"

typedef struct cast {
    const void *x;
    void       *y;
    lk_dtype    from, to;
    int64_t     n, tiles;
} cast;

#define CONVERT(id, name, bytes, kind, sums, memory, number, load, ...)                   \
    case LK_##id: {                                                                       \
        const memory *x = (const memory *)c->x + begin;                                   \
        for (int64_t i = 0; i < n; i++) y[i] = (TYPE)load(x[i]);                          \
        break;                                                                            \
    }
/* With a loop for each type that is read. */
#define DEFINE_WRITE(name)                                                                \
    static void name(const cast *c, int64_t begin, int64_t n, TYPE *restrict y)           \
    {                                                                                     \
        switch (c->from) {                                                                \
            LK__DTYPE_LIST(CONVERT)                                                       \
        case LK_DTYPE_COUNT: break;                                                       \
        }                                                                                 \
    }
#define TYPE float
DEFINE_WRITE(write_f32)
#undef TYPE
#define TYPE double
DEFINE_WRITE(write_f64)
#undef TYPE

/* From f32 to each type. */
#define DEFINE_ROUND(id, name, bytes, kind, sums, memory, number, load, store, ...)       \
    static void round_##name(const float *restrict x, int64_t n, void *out)               \
    {                                                                                     \
        memory *restrict y = out;                                                         \
        for (int64_t i = 0; i < n; i++) y[i] = store((number)x[i]);                       \
    }
LK__DTYPE_LIST(DEFINE_ROUND)

static void (*const round_to[LK_DTYPE_COUNT])(const float *x, int64_t n, void *out) = {
#define ROUND_ROW(id, name, ...) [LK_##id] = round_##name,
    LK__DTYPE_LIST(ROUND_ROW)};

/* The same in vectors, where an instruction rounds them. */
static void round_numbers(lk_dtype to, const float *x, int64_t n, void *out)
{
#if LK_REAL_BITS == 32 && CONVERTS_BF16
    if (to == LK_BF16) {
        lk__bf16 *y = out;
        EACH_VECTOR(i, n, store_part_bf16(y + i, load_part_real(x + i, lanes), lanes););
        return;
    }
#endif
    round_to[to](x, n, out);
}

static void write_narrow(const cast *c, int64_t begin, int64_t n, char *y)
{
    float   wide[1024];
    int64_t size = (int64_t)lk_dtype_size(c->to);
    if (c->from == LK_F32) {
        round_numbers(c->to, (const float *)c->x + begin, n, y);
        return;
    }
    for (int64_t at = 0, some; at < n; at += some) {
        some = min64(n - at, 1024);
        write_f32(c, begin + at, some, wide);
        round_numbers(c->to, wide, some, y + at * size);
    }
}

static void cast_tile(void *argument, int64_t tile, int worker)
{
    const cast *c = argument;
    int64_t     begin = tile_begin(c->n, c->tiles, tile), n = tile_begin(c->n, c->tiles, tile + 1) - begin;
    size_t      size = lk_dtype_size(c->to);
    char       *y = (char *)c->y + (size_t)begin * size;
    (void)worker;
    if (c->from == c->to) /* a NaN keeps its bits */
        memcpy(y, (const char *)c->x + (size_t)begin * size, (size_t)n * size);
    else if (c->to == LK_F32)
        write_f32(c, begin, n, (float *)(void *)y);
    else if (c->to == LK_F64)
        write_f64(c, begin, n, (double *)(void *)y);
    else
        write_narrow(c, begin, n, y);
}

void KERNEL(cast)(const lk__kernel_call *call)
{
    cast c = {.x = call->in[0].data, .y = call->out[0].data, .from = call->in[0].dtype, .to = call->out[0].dtype};
    c.n = lk__operand_elements(&call->out[0]);
    c.tiles = tile_count(c.n, 1, 0);
    lk__pool_run(call->pool, c.tiles, cast_tile, &c);
}
