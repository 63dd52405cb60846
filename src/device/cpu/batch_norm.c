/* batch_norm.c - batch norm over all but the channels, which are last in memory for images and for (N, C). The
 * statistics: blocks that fit the cache give a mean and a sum of squares about it, and blocks are merged in order in
 * double (Chan, Golub and LeVeque 1979). Bound by memory: x is read from it twice, once for the statistics. */
#include "device/cpu/activate.h"
#include "device/cpu/columns.h"

typedef struct batch {
    const ELEMENT *x, *dy, *out; /* out: y, of which relu's gradient needs the sign */
    const ELEMENT *residual;     /* added before the activation; NULL: nothing is */
    const REAL    *w, *b, *mean, *rstd;
    ELEMENT       *y;
    int64_t        rows, channels, tiles;
    int64_t first, all; /* where these channels are in the whole, and its channels: they decide the order of sums */
    bool    relu;
    lk__op_unary activation;
    double      *partial;                /* (tiles, 2, channels) */
    double      *scratch;                /* (threads, 3, channels), then coefficients */
    REAL        *factor, *shift, *slope; /* (channels): y = x factor + shift; dx = dy factor + x slope + shift */
} batch;

/* A channel's weight or bias, or a constant where there is none. (The address is chosen once: a choice per channel
 * would compile to masked loads from NULL.) */
static const REAL one = 1, zero = 0;
#define WEIGHT(s, c) ((double)((s)->w ? (s)->w : &one)[(s)->w ? (c) : 0])
#define BIAS(s, c) ((double)((s)->b ? (s)->b : &zero)[(s)->b ? (c) : 0])

/* y = x factor + shift is (x - mean) factor + bias. fma: a loop over channels may be vectors and a rest, of which
 * compilers would contract one alone. */
static inline void set_affine(const batch *s, int64_t c, double factor, double mean)
{
    s->factor[c] = (REAL)factor;
    s->shift[c] = (REAL)fma(-mean, factor, BIAS(s, c));
}

static void set_extents(batch *s, const lk__kernel_operand *x, int64_t most)
{
    s->channels = x->dims[1];
    s->rows = x->dims[0] * dims_product(x, 2, x->rank);
    s->first = x->part ? x->part->first[1] : 0;
    s->all = x->part ? x->part->whole[1] : s->channels;
    s->tiles = tile_count(s->rows, s->all, most);
}

/* partial, scratch of three rows per worker, three rows of coefficients. */
static size_t workspace_bytes(const lk__kernel_operand *x, int threads)
{
    batch s;
    set_extents(&s, x, PARTS);
    return (size_t)((max64(s.tiles, 1) * 2 + threads * 3 + 3) * s.channels) * sizeof(double);
}

static void place_workspace(batch *s, void *memory, int threads)
{
    s->partial = memory;
    s->scratch = s->partial + max64(s->tiles, 1) * 2 * s->channels;
    s->factor = (REAL *)(s->scratch + threads * 3 * s->channels);
    s->shift = s->factor + s->channels;
    s->slope = s->shift + s->channels;
}

INLINE void value_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const batch *s = data;
    (void)second;
    *first = load_columns(s->x + row * s->channels + column, lanes);
}

INLINE void deviation_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const batch *s = data;
    vec          d = load_columns(s->x + row * s->channels + column, lanes) - load_columns(s->mean + column, lanes);
    (void)second;
    *first = d * d;
}

/* Merges (more, mean, squares) into (count, total_mean, total_squares), channel by channel. */
static void merge(int64_t channels, int64_t count, double *total_mean, double *total_squares, int64_t more,
                  const double *mean, const double *squares)
{
    double part = (double)more / (double)(count + more), both = (double)count * part;
    for (int64_t c = 0; c < channels; c++) {
        double delta = mean[c] - total_mean[c];
        total_mean[c] += delta * part;
        total_squares[c] += squares[c] + delta * delta * both;
    }
}

static int64_t block_rows(const batch *s) { return max64(1, GRAIN / max64(s->all, 1)); }

static void statistics_tile(void *argument, int64_t tile, int worker)
{
    const batch *s = argument;
    int64_t      channels = s->channels, first = tile_begin(s->rows, s->tiles, tile), stop;
    int64_t      end = tile_begin(s->rows, s->tiles, tile + 1), block = block_rows(s);
    double      *total = s->partial + tile * 2 * channels, *mean = s->scratch + worker * 3 * channels;
    double      *squares = mean + channels;
    REAL        *centre = (REAL *)(squares + channels);
    batch        about = *s;
    about.mean = centre;
    memset(total, 0, (size_t)(2 * channels) * sizeof *total);
    for (int64_t begin = first; begin < end; begin = stop) {
        stop = min64(end, begin + block);
        memset(mean, 0, (size_t)(2 * channels) * sizeof *mean);
        sum_columns_of(value_term, s, begin, stop, channels, s->first, s->all, mean, NULL);
        for (int64_t c = 0; c < channels; c++) centre[c] = (REAL)(mean[c] /= (double)(stop - begin));
        sum_columns_of(deviation_term, &about, begin, stop, channels, s->first, s->all, squares, NULL);
        merge(channels, begin - first, total, total + channels, stop - begin, mean, squares);
    }
}

/* y = x factor + shift, then relu. */
static void apply_tile(void *argument, int64_t tile, int worker)
{
    const batch s = *(const batch *)argument;
    int64_t     channels = s.channels, end = tile_begin(s.rows, s.tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(s.rows, s.tiles, tile); row < end; row++) {
        const ELEMENT *x = s.x + row * channels;
        ELEMENT       *y = s.y + row * channels;
        EACH_VECTOR(c, channels, {
            vec v = load_columns(x + c, lanes) * load_columns(s.factor + c, lanes) + load_columns(s.shift + c, lanes);
            if (s.relu) v = choose(v <= 0, splat(0), v);
            store_part(y + c, v, lanes);
        });
    }
}

/* y = x factor + shift + residual, then relu. */
static void apply_residual_tile(void *argument, int64_t tile, int worker)
{
    const batch s = *(const batch *)argument;
    int64_t     channels = s.channels, end = tile_begin(s.rows, s.tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(s.rows, s.tiles, tile); row < end; row++) {
        int64_t at = row * channels;
        EACH_VECTOR(c, channels, {
            vec v = load_columns(s.x + at + c, lanes) * load_columns(s.factor + c, lanes) +
                    load_columns(s.shift + c, lanes);
            v = v + load_columns(s.residual + at + c, lanes);
            if (s.relu) v = choose(v <= 0, splat(0), v);
            store_part(s.y + at + c, v, lanes);
        });
    }
}

/* The same, then a function other than relu. */
static void apply_function_tile(void *argument, int64_t tile, int worker)
{
    const batch s = *(const batch *)argument;
    int64_t     channels = s.channels, end = tile_begin(s.rows, s.tiles, tile + 1);
    REAL        part[VL];
    (void)worker;
    for (int64_t row = tile_begin(s.rows, s.tiles, tile); row < end; row++) {
        int64_t at = row * channels;
        EACH_VECTOR(c, channels, {
            vec v = load_columns(s.x + at + c, lanes) * load_columns(s.factor + c, lanes) +
                    load_columns(s.shift + c, lanes);
            if (s.residual) v = v + load_columns(s.residual + at + c, lanes);
            store_real(part, v);
            activate(part, lanes, s.activation);
            store_part(s.y + at + c, load_part(part, lanes), lanes);
        });
    }
}

static void apply_affine(const lk__kernel_call *call, batch *s)
{
    s->activation = call->attrs->activation;
    lk__pool_run(call->pool, s->tiles,
                 activates(s->activation) ? apply_function_tile
                 : s->residual            ? apply_residual_tile
                                          : apply_tile,
                 s);
}

/* The running statistics move towards those of this batch; their variance is the unbiased one. */
static void update_running(const lk__kernel_call *call, const double *mean, const double *squares, double rows,
                           int64_t channels)
{
    REAL    *running_mean = input(call, 3), *running_var = input(call, 4);
    int64_t *batches = input(call, 5);
    double   momentum = call->attrs->momentum, divisor = fmax(rows - 1, 1);
    for (int64_t c = 0; running_mean && c < channels; c++)
        running_mean[c] = (REAL)((1 - momentum) * (double)running_mean[c] + momentum * mean[c]);
    for (int64_t c = 0; running_var && c < channels; c++)
        running_var[c] = (REAL)((1 - momentum) * (double)running_var[c] + momentum * (squares[c] / divisor));
    if (batches) *batches += 1;
}

/* s->partial[0 … 2C-1]: the mean and the sum of squares about it, of one row at least. */
static void compute_statistics(const lk__kernel_call *call, batch *s)
{
    double *mean = s->partial, *squares = mean + s->channels;
    lk__pool_run(call->pool, s->tiles, statistics_tile, s);
    for (int64_t tile = 1, rows = tile_begin(s->rows, s->tiles, 1); tile < s->tiles; tile++) {
        int64_t more = tile_begin(s->rows, s->tiles, tile + 1) - rows;
        double *part = s->partial + tile * 2 * s->channels;
        merge(s->channels, rows, mean, squares, more, part, part + s->channels);
        rows += more;
    }
}

/* y, mean, rstd and the running statistics, from the statistics of a batch of n rows that includes x's rows. A batch
 * without rows changes nothing. */
static void normalise(const lk__kernel_call *call, batch *s, const double *mean, const double *squares, double n)
{
    REAL *mean_out = call->out[1].data, *rstd_out = call->out[2].data;
    if (n == 0) {
        memset(mean_out, 0, (size_t)s->channels * sizeof *mean_out);
        memset(rstd_out, 0, (size_t)s->channels * sizeof *rstd_out);
        return;
    }
    for (int64_t c = 0; c < s->channels; c++) {
        double rstd = 1 / sqrt(squares[c] / n + call->attrs->epsilon);
        mean_out[c] = (REAL)mean[c];
        rstd_out[c] = (REAL)rstd;
        set_affine(s, c, rstd * WEIGHT(s, c), mean[c]);
    }
    if (call->attrs->update && call->step->updates_buffers) update_running(call, mean, squares, n, s->channels);
    s->tiles = tile_count(s->rows, s->channels, 0);
    apply_affine(call, s);
}

size_t KERNEL(batch_norm_workspace)(const lk__kernel_call *call, int threads)
{
    return workspace_bytes(&call->in[0], threads);
}

void KERNEL(batch_norm)(const lk__kernel_call *call)
{
    batch s = {.x = call->in[0].data, .w = input(call, 1), .b = input(call, 2), .y = call->out[0].data};
    s.relu = call->attrs->activation == LK__RELU;
    s.residual = input(call, 6);
    set_extents(&s, &call->in[0], PARTS);
    place_workspace(&s, call->workspace, lk__pool_workers(call->pool));
    if (s.rows > 0) compute_statistics(call, &s);
    normalise(call, &s, s.partial, s.partial + s.channels, (double)s.rows);
}

/* Statistics that can be added over ranks: the number of rows, then each channel's sum and sum of squares about a
 * centre that all ranks share. Subtracting the square of the mean from the squares loses digits where the mean is many
 * deviations from the centre, so the centre is the running mean, in double. It is passed on as a copy, because the
 * first leaf updates the running mean before other leaves and recomputed blocks use it. */
size_t KERNEL(batch_norm_stats_workspace)(const lk__kernel_call *call, int threads)
{
    return workspace_bytes(&call->in[0], threads);
}

void KERNEL(batch_norm_stats)(const lk__kernel_call *call)
{
    batch       s = {.x = call->in[0].data};
    const REAL *running_mean = input(call, 1);
    double     *stats = call->out[0].data, *centre = call->out[1].data;
    set_extents(&s, &call->in[0], PARTS);
    place_workspace(&s, call->workspace, lk__pool_workers(call->pool));
    memset(stats, 0, (size_t)(3 * s.channels) * sizeof *stats);
    for (int64_t c = 0; c < s.channels; c++) centre[c] = running_mean ? (double)running_mean[c] : 0;
    if (s.rows == 0) return;
    compute_statistics(call, &s);
    double n = (double)s.rows, *sums = stats + s.channels, *squares = sums + s.channels;
    for (int64_t c = 0; c < s.channels; c++) {
        stats[c] = n;
        double offset = s.partial[c] - centre[c];
        sums[c] = n * offset;
        squares[c] = s.partial[s.channels + c] + n * offset * offset;
    }
}

size_t KERNEL(batch_norm_apply_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return (size_t)(4 * call->in[0].dims[1]) * sizeof(double);
}

void KERNEL(batch_norm_apply)(const lk__kernel_call *call)
{
    batch         s = {.x = call->in[0].data, .w = input(call, 1), .b = input(call, 2), .y = call->out[0].data};
    const double *stats = call->in[6].data, *centre = call->in[7].data, n = stats[0];
    s.relu = call->attrs->activation == LK__RELU;
    set_extents(&s, &call->in[0], 0);
    double       *mean = call->workspace, *squares = mean + s.channels;
    const double *sums = stats + s.channels, *about = sums + s.channels;
    s.factor = (REAL *)(squares + s.channels);
    s.shift = s.factor + s.channels;
    for (int64_t c = 0; c < s.channels && n > 0; c++) {
        double offset = sums[c] / n;
        mean[c] = centre[c] + offset;
        squares[c] = fmax(about[c] - sums[c] * offset, 0); /* rounding may make it negative */
    }
    normalise(call, &s, mean, squares, n);
}

size_t KERNEL(batch_norm_eval_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return (size_t)(2 * call->in[0].dims[1]) * sizeof(REAL);
}

void KERNEL(batch_norm_eval)(const lk__kernel_call *call)
{
    batch       s = {.x = call->in[0].data, .w = input(call, 1), .b = input(call, 2), .y = call->out[0].data};
    const REAL *mean = call->in[3].data, *variance = call->in[4].data;
    s.relu = call->attrs->activation == LK__RELU;
    s.residual = input(call, 5);
    set_extents(&s, &call->in[0], 0);
    s.factor = call->workspace;
    s.shift = s.factor + s.channels;
    for (int64_t c = 0; c < s.channels; c++)
        set_affine(&s, c, WEIGHT(&s, c) / sqrt((double)variance[c] + call->attrs->epsilon), (double)mean[c]);
    apply_affine(call, &s);
}

INLINE vec relu_gradient(const batch *s, int64_t at, int64_t lanes)
{
    vec d = load_columns(s->dy + at, lanes);
    return s->out ? choose(load_columns(s->out + at, lanes) <= 0, splat(0), d) : d;
}

/* g (x - mean) and g: dw / rstd and db. */
INLINE void gradient_terms(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const batch *s = data;
    int64_t      at = row * s->channels + column;
    vec          g = relu_gradient(s, at, lanes);
    *first = g * (load_columns(s->x + at, lanes) - load_columns(s->mean + column, lanes));
    *second = g;
}

static void gradient_sums_tile(void *argument, int64_t tile, int worker)
{
    const batch *s = argument;
    int64_t      end = tile_begin(s->rows, s->tiles, tile + 1), block = block_rows(s), stop;
    double      *total = s->partial + tile * 2 * s->channels;
    (void)worker;
    memset(total, 0, (size_t)(2 * s->channels) * sizeof *total);
    for (int64_t begin = tile_begin(s->rows, s->tiles, tile); begin < end; begin = stop) {
        stop = min64(end, begin + block);
        sum_columns_of(gradient_terms, s, begin, stop, s->channels, s->first, s->all, total, total + s->channels);
    }
}

/* dx = g factor + x slope + shift. */
static void gradient_tile(void *argument, int64_t tile, int worker)
{
    const batch s = *(const batch *)argument;
    int64_t     end = tile_begin(s.rows, s.tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(s.rows, s.tiles, tile); row < end; row++) {
        int64_t at = row * s.channels;
        EACH_VECTOR(c, s.channels, {
            vec g = relu_gradient(&s, at + c, lanes), x = load_columns(s.x + at + c, lanes);
            vec rest = x * load_columns(s.slope + c, lanes) + load_columns(s.shift + c, lanes);
            store_part(s.y + at + c, g * load_columns(s.factor + c, lanes) + rest, lanes);
        });
    }
}

/* dx = g factor, where the statistics are constants. */
static void scale_tile(void *argument, int64_t tile, int worker)
{
    const batch s = *(const batch *)argument;
    int64_t     end = tile_begin(s.rows, s.tiles, tile + 1);
    (void)worker;
    for (int64_t row = tile_begin(s.rows, s.tiles, tile); row < end; row++) {
        int64_t at = row * s.channels;
        EACH_VECTOR(c, s.channels, {
            vec g = relu_gradient(&s, at + c, lanes) * load_columns(s.factor + c, lanes);
            store_part(s.y + at + c, g, lanes);
        });
    }
}

/* s->partial[0 … 2C-1]: the sums of g (x - mean) and of g over the rows. */
static void gradient_sums(const lk__kernel_call *call, batch *s)
{
    memset(s->partial, 0, (size_t)(2 * s->channels) * sizeof *s->partial); /* for a batch without rows */
    lk__pool_run(call->pool, s->tiles, gradient_sums_tile, s);
    add_parts(call->pool, s->partial, s->tiles, 2 * s->channels);
}

static void gradient_weights(const lk__kernel_call *call, const batch *s)
{
    REAL *dw = output(call, 1), *db = output(call, 2);
    for (int64_t c = 0; dw && c < s->channels; c++) dw[c] = (REAL)(s->partial[c] * (double)s->rstd[c]);
    for (int64_t c = 0; db && c < s->channels; c++) db[c] = (REAL)s->partial[s->channels + c];
}

/* dx from both sums over the batch's n rows; sums are NULL where the statistics are constants. */
static void gradient_input(const lk__kernel_call *call, batch *s, const double *sums, double n)
{
    for (int64_t c = 0; c < s->channels; c++) {
        double rstd = (double)s->rstd[c], factor = rstd * WEIGHT(s, c);
        s->factor[c] = (REAL)factor;
        if (!sums) continue;
        double slope = -factor * rstd * rstd * sums[c] / n;
        s->slope[c] = (REAL)slope;
        s->shift[c] = (REAL)fma(-slope, (double)s->mean[c], -factor * sums[s->channels + c] / n);
    }
    s->tiles = tile_count(s->rows, s->channels, 0);
    if (call->out[0].data) lk__pool_run(call->pool, s->tiles, sums ? gradient_tile : scale_tile, s);
}

size_t KERNEL(batch_norm_grad_workspace)(const lk__kernel_call *call, int threads)
{
    return workspace_bytes(&call->in[1], threads);
}

void KERNEL(batch_norm_grad)(const lk__kernel_call *call)
{
    batch s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .mean = call->in[3].data};
    s.rstd = call->in[4].data;
    s.out = call->attrs->activation == LK__RELU ? input(call, 5) : NULL;
    s.y = call->out[0].data;
    set_extents(&s, &call->in[1], PARTS);
    place_workspace(&s, call->workspace, lk__pool_workers(call->pool));
    gradient_sums(call, &s);
    gradient_weights(call, &s);
    gradient_input(call, &s, s.partial, (double)max64(s.rows, 1));
}

size_t KERNEL(batch_norm_grad_stats_workspace)(const lk__kernel_call *call, int threads)
{
    return workspace_bytes(&call->in[1], threads);
}

void KERNEL(batch_norm_grad_stats)(const lk__kernel_call *call)
{
    batch s = {.dy = call->in[0].data, .x = call->in[1].data, .mean = call->in[2].data, .rstd = call->in[3].data};
    s.out = call->attrs->activation == LK__RELU ? input(call, 4) : NULL;
    set_extents(&s, &call->in[1], PARTS);
    place_workspace(&s, call->workspace, lk__pool_workers(call->pool));
    gradient_sums(call, &s);
    gradient_weights(call, &s);
    memcpy(call->out[0].data, s.partial, (size_t)(2 * s.channels) * sizeof *s.partial);
}

size_t KERNEL(batch_norm_grad_apply_workspace)(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return (size_t)(3 * call->in[1].dims[1]) * sizeof(REAL);
}

void KERNEL(batch_norm_grad_apply)(const lk__kernel_call *call)
{
    batch         s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .mean = call->in[3].data};
    const double *sums = call->in[6].data, *stats = call->in[7].data;
    s.rstd = call->in[4].data;
    s.out = call->attrs->activation == LK__RELU ? input(call, 5) : NULL;
    s.y = call->out[0].data;
    set_extents(&s, &call->in[1], 0);
    s.factor = call->workspace;
    s.shift = s.factor + s.channels;
    s.slope = s.shift + s.channels;
    gradient_input(call, &s, sums, fmax(stats[0], 1));
}

size_t KERNEL(batch_norm_eval_grad_workspace)(const lk__kernel_call *call, int threads)
{
    return workspace_bytes(&call->in[1], threads) + (size_t)call->in[1].dims[1] * sizeof(REAL);
}

void KERNEL(batch_norm_eval_grad)(const lk__kernel_call *call)
{
    batch       s = {.dy = call->in[0].data, .x = call->in[1].data, .w = input(call, 2), .mean = call->in[3].data};
    const REAL *variance = call->in[4].data;
    s.y = call->out[0].data;
    set_extents(&s, &call->in[1], PARTS);
    place_workspace(&s, call->workspace, lk__pool_workers(call->pool));
    REAL *rstd = s.slope + s.channels;
    for (int64_t c = 0; c < s.channels; c++) rstd[c] = (REAL)(1 / sqrt((double)variance[c] + call->attrs->epsilon));
    s.rstd = rstd;
    if (output(call, 1) || output(call, 2)) gradient_sums(call, &s);
    gradient_weights(call, &s);
    gradient_input(call, &s, NULL, 0);
}
