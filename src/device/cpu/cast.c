/* cast.c - conversion between types. The operands' types are known at run time alone, so every table has the same kernel. bf16 is
 * made from f32: a wider number is rounded to f32 first, as in PyTorch. Bound by memory. */
#include "device/cpu/lanes.h"

typedef struct cast {
    const void *x;
    void       *y;
    lk_dtype    from, to;
    int64_t     n, tiles;
} cast;

#define SAME(x) (x)
/* X(constant, type in memory, as a number) */
#define SOURCES(X)                                                                                            \
    X(LK_BF16, lk__bf16, lk__from_bf16)                                                                       \
    X(LK_F32, float, SAME) X(LK_F64, double, SAME) X(LK_I32, int32_t, SAME) X(LK_I64, int64_t, SAME) X(LK_U8, uint8_t, SAME)

#define CONVERT(constant, type, number)                                                   \
    case constant: {                                                                      \
        const type *x = (const type *)c->x + begin;                                       \
        for (int64_t i = 0; i < n; i++) y[i] = TO(number(x[i]));                          \
        break;                                                                            \
    }
/* One function for each type that is written, with a loop for each type that is read. */
#define WRITER(name, type)                                                                \
    static void name(const cast *c, int64_t begin, int64_t n)                             \
    {                                                                                     \
        type *restrict y = (type *)c->y + begin;                                          \
        switch (c->from) {                                                                \
            SOURCES(CONVERT)                                                              \
        default: break;                                                                   \
        }                                                                                 \
    }
#define TO(x) lk__to_bf16((float)(x))
WRITER(write_bf16, lk__bf16)
#undef TO
#define TO(x) (float)(x)
WRITER(write_f32, float)
#undef TO
#define TO(x) (double)(x)
WRITER(write_f64, double)
#undef TO

static void cast_tile(void *argument, int64_t tile, int worker)
{
    const cast *c = argument;
    int64_t     begin = tile_begin(c->n, c->tiles, tile), n = tile_begin(c->n, c->tiles, tile + 1) - begin;
    size_t      bytes = lk_dtype_size(c->from);
    (void)worker;
    if (c->from == c->to) /* a NaN keeps its bits */
        memcpy((char *)c->y + (size_t)begin * bytes, (const char *)c->x + (size_t)begin * bytes, (size_t)n * bytes);
    else if (c->to == LK_BF16)
        write_bf16(c, begin, n);
    else if (c->to == LK_F32)
        write_f32(c, begin, n);
    else
        write_f64(c, begin, n);
}

void KERNEL(cast)(const lk__kernel_call *call)
{
    cast c = {.x = call->in[0].data, .y = call->out[0].data, .from = call->in[0].dtype, .to = call->out[0].dtype};
    c.n = lk__operand_elements(&call->out[0]);
    c.tiles = tile_count(c.n, 1, 0);
    lk__pool_run(call->pool, c.tiles, cast_tile, &c);
}
