/* rope.c - rotary position embedding (Su et al. 2021), which pairs the elements of a head's two halves, as Hugging
 * Face's rotate_half does. Bound by memory. */
#include "device/cpu/lanes.h"

typedef struct rotation {
    const ELEMENT *x;
    ELEMENT       *y;
    const REAL    *table;
    const int32_t *positions;
    int64_t        tokens, t, heads, half, limit, tiles;
    REAL           sign;
    int64_t       *invalid;
} rotation;

static void rotate_head(const ELEMENT *x, ELEMENT *y, const REAL *cosine, const REAL *sine, REAL sign, int64_t half)
{
    EACH_VECTOR(i, half, {
        vec a = load_part(x + i, lanes), b = load_part(x + half + i, lanes);
        vec c = load_part(cosine + i, lanes), s = load_part(sine + i, lanes) * sign;
        store_part(y + i, a * c - b * s, lanes);
        store_part(y + half + i, b * c + a * s, lanes);
    });
}

static void rope_tile(void *argument, int64_t tile, int worker)
{
    const rotation *r = argument;
    int64_t         end = tile_begin(r->tokens, r->tiles, tile + 1), row = 2 * r->half * r->heads;
    (void)worker;
    for (int64_t token = tile_begin(r->tokens, r->tiles, tile); token < end; token++) {
        int64_t position = r->positions ? r->positions[token] : token % r->t;
        if (position < 0 || position >= r->limit) {
            keep_first(r->invalid, token);
            position = 0;
        }
        const REAL *cosine = r->table + position * 2 * r->half;
        for (int64_t h = 0; h < r->heads; h++)
            rotate_head(r->x + token * row + h * 2 * r->half, r->y + token * row + h * 2 * r->half, cosine,
                        cosine + r->half, r->sign, r->half);
    }
}

void KERNEL(rope)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int64_t                   invalid = INT64_MAX;
    rotation r = {.x = x->data, .y = call->out[0].data, .table = call->in[1].data, .positions = input(call, 2)};
    r.tokens = x->dims[0] * x->dims[1];
    r.t = x->dims[1];
    r.heads = call->attrs->heads;
    r.half = x->dims[2] / r.heads / 2;
    r.limit = call->in[1].dims[0];
    r.sign = call->attrs->inverse ? -1 : 1;
    r.invalid = &invalid;
    r.tiles = tile_count(r.tokens, x->dims[2], 0);
    lk__pool_run(call->pool, r.tiles, rope_tile, &r);
    report_invalid(call, LK__OP_rope, r.positions, invalid, r.limit);
}
