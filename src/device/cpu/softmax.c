/* softmax.c - softmax and log-softmax along one axis, and their gradients. A row is read two or three times, after the
 * first time from the cache; exp bounds it. Along the last axis vectors run along the row, otherwise across VL
 * neighbouring rows. */
#include "device/cpu/columns.h"
#include "device/cpu/vmath.h"

typedef struct rows {
    const REAL *x, *y_saved;
    REAL       *y;
    int64_t     outer, n, inner; /* x is (outer, n, inner), n along the axis */
    int64_t     strips, tiles;   /* vectors across `inner`; tiles over outer × strips */
    bool        across;          /* `inner` of the whole is more than 1, of which this may be a part */
    bool        log;
} rows;

INLINE REAL row_max(const REAL *x, int64_t n)
{
    vec     best = splat(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) best = vmax(load(x + i), best);
    REAL most = lanes_max(best);
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

INLINE vec store_and_return(REAL *y, vec v, int64_t lanes)
{
    store_part(y, v, lanes);
    return v;
}

static void softmax_row(const rows *r, const REAL *x, REAL *y)
{
    REAL   most = row_max(x, r->n);
    double total = 0;
    if (r->log) {
        SUM_VECTORS(total, i, r->n, vexp(load_part(x + i, lanes) - most));
        REAL shift = (REAL)log(total);
        EACH_VECTOR(i, r->n, store_part(y + i, (load_part(x + i, lanes) - most) - shift, lanes););
    } else {
        SUM_VECTORS(total, i, r->n, store_and_return(y + i, vexp(load_part(x + i, lanes) - most), lanes));
        REAL factor = (REAL)(1 / total);
        EACH_VECTOR(i, r->n, store_part(y + i, load_part(y + i, lanes) * factor, lanes););
    }
}

/* VL adjacent rows at once; the axis has a stride of `inner`. */
static void softmax_strip(const rows *r, const REAL *x, REAL *y, int64_t lanes)
{
    vec  most = splat(-INFINITY);
    dvec total = {0};
    for (int64_t k = 0; k < r->n; k++) most = vmax(load_part(x + k * r->inner, lanes), most);
    for (int64_t k = 0; k < r->n; k++) {
        vec e = vexp(load_part(x + k * r->inner, lanes) - most);
        total = dadd(total, to_double(e));
        if (!r->log) store_part(y + k * r->inner, e, lanes);
    }
    vec by;
    for (int l = 0; l < VL; l++) by[l] = (REAL)(r->log ? log(dlane(total, l)) : 1 / dlane(total, l));
    for (int64_t k = 0; k < r->n; k++) {
        if (r->log)
            store_part(y + k * r->inner, (load_part(x + k * r->inner, lanes) - most) - by, lanes);
        else
            store_part(y + k * r->inner, load_part(y + k * r->inner, lanes) * by, lanes);
    }
}

static void grad_row(const rows *r, const REAL *dy, const REAL *y, REAL *dx)
{
    double total = 0;
    if (r->log) {
        SUM_VECTORS(total, i, r->n, load_part(dy + i, lanes));
        REAL sum = (REAL)total;
        EACH_VECTOR(i, r->n,
                    store_part(dx + i, load_part(dy + i, lanes) - vexp(load_part(y + i, lanes)) * sum, lanes););
    } else {
        SUM_VECTORS(total, i, r->n, load_part(dy + i, lanes) * load_part(y + i, lanes));
        REAL sum = (REAL)total;
        EACH_VECTOR(i, r->n, store_part(dx + i, (load_part(dy + i, lanes) - sum) * load_part(y + i, lanes), lanes););
    }
}

/* The loads have no branches, so that products are contracted with sums however many lanes there are (columns.h). */
static vec grad_strip_sum(const rows *r, const REAL *dy, const REAL *y, int64_t lanes)
{
    dvec total = {0};
    if (r->log)
        for (int64_t k = 0; k < r->n; k++) total = dadd(total, to_double(load_columns(dy + k * r->inner, lanes)));
    else
        for (int64_t k = 0; k < r->n; k++) {
            vec product = load_columns(dy + k * r->inner, lanes) * load_columns(y + k * r->inner, lanes);
            total = dadd(total, to_double(product));
        }
    return to_real(total);
}

static void grad_strip(const rows *r, const REAL *dy, const REAL *y, REAL *dx, int64_t lanes)
{
    vec sum = grad_strip_sum(r, dy, y, lanes);
    for (int64_t k = 0; k < r->n; k++) {
        vec d = load_columns(dy + k * r->inner, lanes), out = load_columns(y + k * r->inner, lanes);
        store_part(dx + k * r->inner, r->log ? d - vexp(out) * sum : (d - sum) * out, lanes);
    }
}

static void rows_tile(void *argument, int64_t tile, int worker)
{
    const rows *r = argument;
    int64_t     items = r->outer * r->strips, end = tile_begin(items, r->tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(items, r->tiles, tile); item < end; item++) {
        int64_t strip = item % r->strips, at = item / r->strips * r->n * r->inner + strip * VL;
        int64_t lanes = min64(VL, r->inner - strip * VL);
        if (!r->across) {
            at = item * r->n;
            if (r->y_saved)
                grad_row(r, r->x + at, r->y_saved + at, r->y + at);
            else
                softmax_row(r, r->x + at, r->y + at);
        } else if (r->y_saved) {
            grad_strip(r, r->x + at, r->y_saved + at, r->y + at, lanes);
        } else {
            softmax_strip(r, r->x + at, r->y + at, lanes);
        }
    }
}

static void run_softmax(const lk__kernel_call *call, bool log, bool grad)
{
    const lk__kernel_operand *x = &call->in[0];
    int                       axis = call->attrs->axis;
    rows                      r = {.x = x->data, .y = call->out[0].data, .log = log};
    r.y_saved = grad ? call->in[1].data : NULL;
    r.outer = dims_product(x, 0, axis);
    r.n = x->rank ? x->dims[axis] : 1;
    r.inner = dims_product(x, axis + 1, x->rank);
    r.across = r.inner > 1;
    for (int i = axis + 1; x->part && i < x->rank; i++) r.across |= x->part->whole[i] > 1;
    r.strips = tiles_of(r.inner, VL);
    if (r.n == 0) return;
    r.tiles = tile_count(r.outer * r.strips, r.n * min64(r.inner, VL), 0);
    lk__pool_run(call->pool, r.tiles, rows_tile, &r);
}

void KERNEL(softmax)(const lk__kernel_call *call) { run_softmax(call, false, false); }
void KERNEL(log_softmax)(const lk__kernel_call *call) { run_softmax(call, true, false); }
void KERNEL(softmax_grad)(const lk__kernel_call *call) { run_softmax(call, false, true); }
void KERNEL(log_softmax_grad)(const lk__kernel_call *call) { run_softmax(call, true, true); }
