/* linear_cross_entropy.c - the cross-entropy of a linear layer's outputs, and its gradients, without the matrix of all
 * logits: rows are processed in chunks whose logits fit the workspace, and each chunk's gradients are computed while
 * its probabilities are there. Bound by three products. */
#include "device/cpu/gemm_block.h"

#include "device/cpu/entropy.h"

typedef struct chunked {
    const ELEMENT *x, *w;
    const int32_t *labels;
    char          *dx; /* ELEMENTs, or REALs where the operands were rounded for the products alone */
    bool           dx_wide;
    REAL          *dw;
    int64_t        rows, classes, width, ignore, most; /* most: rows of a chunk */
    double         smoothing;
    REAL          *logits;        /* (most, classes): logits, then probabilities, then their gradients */
    ELEMENT       *narrow;        /* the gradients as ELEMENTs; the same memory where that is REAL */
    double (*partial)[3];         /* by tile: sum, weight, correct */
    char    *workspace;           /* of the products */
    int64_t  first, count, tiles; /* the current chunk */
    int64_t *invalid;
} chunked;

enum { LOGITS = 22 << 20, FEWEST = 64, MOST = 4096 }; /* elements of a chunk's logits; its rows: a multiple of FEWEST */

static int64_t chunk_rows(int64_t classes)
{
    return max64(FEWEST, min64(MOST, LOGITS / max64(1, classes) / FEWEST * FEWEST));
}

static gemm logits_product(const chunked *c, int64_t rows)
{
    return (gemm){.m = rows,
                  .n = c->classes,
                  .k = c->width,
                  .batch = 1,
                  .alone = true,
                  .a = c->x + c->first * c->width,
                  .a_row = c->width,
                  .a_k = 1,
                  .b = c->w,
                  .b_k = 1,
                  .b_column = c->width,
                  .b_transposed = true,
                  .c = c->logits,
                  .c_row = c->classes,
                  .c_column = 1,
                  .c_wide = true};
}

static gemm input_product(const chunked *c, int64_t rows)
{
    return (gemm){.m = rows,
                  .n = c->width,
                  .k = c->classes,
                  .batch = 1,
                  .alone = true,
                  .a = c->narrow,
                  .a_row = c->classes,
                  .a_k = 1,
                  .b = c->w,
                  .b_k = c->width,
                  .b_column = 1,
                  .c = c->dx + (size_t)(c->first * c->width) * (c->dx_wide ? sizeof(REAL) : sizeof(ELEMENT)),
                  .c_row = c->width,
                  .c_column = 1,
                  .c_wide = c->dx_wide};
}

static gemm weight_product(const chunked *c, int64_t rows)
{
    return (gemm){.m = c->classes,
                  .n = c->width,
                  .k = rows,
                  .batch = 1,
                  .alone = true,
                  .a = c->narrow,
                  .a_row = 1,
                  .a_k = c->classes,
                  .b = c->x + c->first * c->width,
                  .b_k = c->width,
                  .b_column = 1,
                  .c = c->dw,
                  .c_row = c->width,
                  .c_column = 1,
                  .c_wide = true,
                  .add = c->first > 0};
}

static chunked describe_call(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    chunked c = {.x = x->data, .w = w->data, .labels = call->in[2].data, .dx = output(call, 3), .dw = output(call, 4)};
    c.dx_wide = c.dx && lk_dtype_size(call->out[3].dtype) == sizeof(REAL);
    c.rows = x->dims[0];
    c.width = x->dims[1];
    c.classes = w->dims[0];
    c.ignore = call->attrs->ignore_index;
    c.smoothing = call->attrs->label_smoothing;
    c.most = chunk_rows(lk__whole_extent(w, 0)); /* of all classes, whatever part of them this is */
    return c;
}

static int64_t tiles_in(const chunked *c, int64_t rows) { return tile_count(rows, c->classes, 0); }

static size_t logits_space(const chunked *c) { return space_of(min64(c->most, c->rows) * c->classes); }
static size_t narrow_space(const chunked *c)
{
    return NARROW ? lk__round_up((size_t)(min64(c->most, c->rows) * c->classes) * sizeof(ELEMENT), LK__ALIGN) : 0;
}
static size_t partial_space(const chunked *c)
{
    return lk__round_up((size_t)tiles_in(c, min64(c->most, c->rows)) * sizeof(double[3]), LK__ALIGN);
}

size_t KERNEL(linear_cross_entropy_workspace)(const lk__kernel_call *call, int threads)
{
    chunked c = describe_call(call);
    int64_t rows = min64(c.most, c.rows);
    gemm    products[] = {logits_product(&c, rows), input_product(&c, rows), weight_product(&c, rows)};
    size_t  most = 0;
    for (int i = 0; i < 3; i++)
        most = gemm_workspace(&products[i], threads) > most ? gemm_workspace(&products[i], threads) : most;
    return logits_space(&c) + narrow_space(&c) + partial_space(&c) + most;
}

/* The gradient of a row's logits, from its probabilities. */
static void differentiate_row(const chunked *c, REAL *probs, int64_t label, ELEMENT *to)
{
    REAL even = (REAL)(c->smoothing / (double)c->classes);
    probs[label] -= (REAL)(1 - c->smoothing);
    if (c->smoothing != 0)
        EACH_VECTOR(i, c->classes, store_part(probs + i, load_part(probs + i, lanes) - even, lanes););
    if (NARROW) copy_narrow(to, probs, c->classes);
}

static void chunk_tile(void *argument, int64_t tile, int worker)
{
    const chunked *c = argument;
    double         sums[3] = {0};
    bool           grads = c->dx || c->dw;
    int64_t        end = tile_begin(c->count, c->tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(c->count, c->tiles, tile); row < end; row++) {
        REAL    *x = c->logits + row * c->classes;
        ELEMENT *to = c->narrow + row * c->classes;
        int64_t  label = c->labels[c->first + row];
        bool     correct;
        if (label == c->ignore || label < 0 || label >= c->classes) {
            if (grads) memset(to, 0, (size_t)c->classes * sizeof *to);
            if (label == c->ignore) continue;
            sums[0] = (double)NAN;
            keep_first(c->invalid, c->first + row);
            continue;
        }
        sums[0] += row_loss(x, c->classes, label, c->smoothing, grads ? x : NULL, &correct);
        sums[1] += 1;
        sums[2] += correct;
        if (grads) differentiate_row(c, x, label, to);
    }
    memcpy(c->partial[tile], sums, sizeof sums);
}

static void run_product(const chunked *c, gemm g, lk__pool *pool) { gemm_run(&g, pool, c->workspace); }

void KERNEL(linear_cross_entropy)(const lk__kernel_call *call)
{
    chunked c = describe_call(call);
    double  total[3] = {0};
    int64_t invalid = INT64_MAX;
    char   *at = call->workspace;
    c.logits = (REAL *)at;
    c.narrow = NARROW ? (ELEMENT *)(at + logits_space(&c)) : (ELEMENT *)(void *)c.logits;
    c.partial = (double(*)[3])(at + logits_space(&c) + narrow_space(&c));
    c.workspace = (char *)c.partial + partial_space(&c);
    c.invalid = &invalid;
    if (c.dw && c.rows == 0) memset(c.dw, 0, (size_t)(c.classes * c.width) * sizeof *c.dw);
    for (; c.first < c.rows; c.first += c.count) {
        c.count = min64(even_part(c.rows, c.most, FEWEST), c.rows - c.first);
        c.tiles = tiles_in(&c, c.count);
        run_product(&c, logits_product(&c, c.count), call->pool);
        lk__pool_run(call->pool, c.tiles, chunk_tile, &c);
        for (int64_t tile = 0; tile < c.tiles; tile++)
            for (int k = 0; k < 3; k++) total[k] += c.partial[tile][k];
        if (c.dx) run_product(&c, input_product(&c, c.count), call->pool);
        if (c.dw) run_product(&c, weight_product(&c, c.count), call->pool);
    }
    for (int k = 0; k < 3; k++)
        if (output(call, k)) *(double *)output(call, k) = total[k];
    report_invalid(call, LK__OP_linear_cross_entropy, c.labels, invalid, c.classes);
}
