/* conv_sum.c - convolutions whose sum over channels consists of parts (attrs.sum), or whose result is of a narrow type
 * and is added to results of other ranks: each part is a separate convolution over copies of its channels, by the
 * kernel for REALs with the algorithm for its shape; the parts are added in the pairwise tree. Bias, function and pool
 * follow the sum, which is rounded once. A few images are processed at a time, so that the copies and sums stay
 * small. */
#include "device/cpu/conv.h"

#include "device/cpu/lanes.h"
#include "device/sum_parts.h"

enum { IMAGES = 8 }; /* at a time */

typedef struct summed {
    const lk__kernel_call *call;
    bool                   input; /* the gradient of x: it adds over the output channels */
    conv                   v;
    lk__sum_parts          parts;
    int64_t                channels;  /* of the operand that is added over: x, or dy */
    int64_t                from;      /* its pixels of an image */
    int64_t                taps, row; /* elements of a channel of w, and of what is contiguous: all its channels */
    int64_t                size;      /* elements of an image's sums */
    int64_t                images;
    /* of the workspace */
    REAL    *copy, *weights, *sums, *strips;
    uint8_t *index;
    /* the current images and part */
    int64_t first, count;
    int     part;
} summed;

static int64_t part_begin(const summed *s, int part) { return s->parts.begin[0][part]; }
static int64_t part_channels(const summed *s, int part) { return part_begin(s, part + 1) - part_begin(s, part); }

static bool is_wide(const lk__kernel_operand *y) { return NARROW && lk_dtype_size(y->dtype) == sizeof(REAL); }

static summed describe_sum(const lk__kernel_call *call, bool input)
{
    const lk__kernel_operand *x = input ? &call->out[0] : &call->in[0], *w = &call->in[1];
    lk__op_attrs              one = {0};
    summed                    s = {.call = call, .input = input, .v = conv_of_parts(call->attrs, x, w)};
    const conv               *v = &s.v;
    s.parts = lk__operand_sum_parts(v->groups == 1 ? call->attrs : &one, &call->in[0], 1);
    s.channels = input ? v->o : v->c;
    s.from = input ? v->yh * v->yw : v->h * v->w;
    s.taps = v->kh * v->kw;
    s.row = v->cg * s.taps;
    s.size = input ? v->h * v->w * v->c : v->oh * v->ow * v->o;
    s.images = min64(v->n, IMAGES);
    return s;
}

bool conv_has_parts(const lk__kernel_call *call)
{
    if (is_wide(&call->out[0])) return true;
    return call->attrs->sum.parts > 1 && call->attrs->groups <= 1 &&
           lk__operand_sum_parts(call->attrs, &call->in[0], 1).count > 1;
}

static int64_t most_channels(const summed *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->parts.count; i++) most = max64(most, part_channels(s, i));
    return most;
}

/* Pixels of y in a row, all of each pool window, with their channels. */
static int64_t strip_size(const summed *s) { return s->input ? 0 : s->v.yw * s->v.pool * s->v.pool * s->v.o; }

/* Sets the addresses; returns the bytes in front of the kernel's own workspace. */
static size_t lay_out(summed *s, char *at, int threads)
{
    int64_t copied = s->images * s->from * most_channels(s);
    size_t  begin = (size_t)at, depth = (size_t)lk__tree_depth(s->parts.count);
    s->copy = (REAL *)at;
    at += space_of(copied);
    s->index = (uint8_t *)at;
    at += lk__round_up((size_t)copied, LK__ALIGN);
    s->weights = (REAL *)at;
    at += space_of(s->v.o * s->row);
    s->sums = (REAL *)at;
    at += depth * space_of(s->images * s->size);
    s->strips = (REAL *)at;
    at += (size_t)threads * space_of(strip_size(s));
    return (size_t)at - begin;
}

/* ---- a part ---- */

/* The weights of a part are behind those of the parts before it. */
static REAL *part_weights(const summed *s, int part)
{
    return s->weights + (s->parts.count == 1 ? 0 : part_begin(s, part) * (s->input ? s->row : s->v.o * s->taps));
}

static void copy_weights(void *argument, int64_t part, int worker)
{
    const summed  *s = argument;
    const ELEMENT *w = s->call->in[1].data;
    REAL          *to = part_weights(s, (int)part);
    int64_t        begin = part_begin(s, (int)part), channels = part_channels(s, (int)part);
    (void)worker;
    if (s->parts.count == 1)
        copy_wide(to, w, s->v.o * s->row);
    else if (s->input)
        copy_wide(to, w + begin * s->row, channels * s->row);
    else
        for (int64_t o = 0; o < s->v.o; o++)
            copy_wide(to + o * channels * s->taps, w + o * s->row + begin * s->taps, channels * s->taps);
}

/* The channels of the part, of one image. */
static void copy_channels(void *argument, int64_t image, int worker)
{
    const summed *s = argument;
    int64_t       begin = part_begin(s, s->part), channels = part_channels(s, s->part), to = image * s->from * channels;
    int64_t       at = (s->first + image) * s->from * s->channels + begin;
    const ELEMENT *x = (const ELEMENT *)s->call->in[0].data + at;
    const uint8_t *index = s->input ? optional_in(s->call, 2) : NULL;
    (void)worker;
    for (int64_t i = 0; i < s->from; i++) copy_wide(s->copy + to + i * channels, x + i * s->channels, channels);
    for (int64_t i = 0; index && i < s->from; i++)
        memcpy(s->index + to + i * channels, index + at + i * s->channels, (size_t)channels);
}

/* The convolution of a part of `images` images, by the kernel for REALs. */
typedef struct part_call {
    lk__kernel_call call;
    lk__op_attrs    attrs;
    lk__op_part     place; /* of the weights */
} part_call;

static void make_part_call(const summed *s, int part, int64_t images, REAL *y, part_call *p)
{
    const lk__kernel_call *whole = s->call;
    int                    summed_dim = s->input ? 0 : 1;
    p->attrs = *whole->attrs;
    p->attrs.sum = (lk__op_summation){0};
    if (!s->input) p->attrs.activation = 0, p->attrs.pool = 0;
    p->call = (lk__kernel_call){.attrs = &p->attrs, .pool = whole->pool, .step = whole->step, .outputs = 1};
    p->call.inputs = s->input && optional_in(whole, 2) ? 3 : 2;
    for (int i = 0; i < p->call.inputs; i++) p->call.in[i] = whole->in[i];
    p->call.out[0] = whole->out[0];
    p->call.in[0].dtype = p->call.in[1].dtype = p->call.out[0].dtype = REAL_DTYPE;
    p->call.in[0].data = s->copy;
    p->call.in[1].data = part_weights(s, part);
    if (p->call.inputs == 3) p->call.in[2].data = s->index, p->call.in[2].part = NULL;
    p->call.out[0].data = y;
    for (int i = 0; i < p->call.inputs; i++)
        if (i != 1) p->call.in[i].dims[0] = images;
    p->call.out[0].dims[0] = images;
    if (!s->input) p->call.out[0].dims[2] = s->v.oh, p->call.out[0].dims[3] = s->v.ow, p->call.out[0].part = NULL;
    if (s->v.groups > 1) return; /* one part, of all channels */
    int64_t channels = part_channels(s, part);
    p->call.in[0].dims[1] = p->call.in[2].dims[1] = p->call.in[1].dims[summed_dim] = channels;
    p->call.in[0].part = NULL;
    if (!whole->in[1].part) return;
    p->place = *whole->in[1].part;
    p->place.whole[summed_dim] = channels;
    p->place.first[summed_dim] = 0;
    p->call.in[1].part = &p->place;
}

static const lk__kernel_entry *real_kernel(bool input)
{
    return lk__cpu_kernel(REAL_DTYPE, QUOTE(LK_ISA), input ? LK__OP_conv2d_grad_input : LK__OP_conv2d);
}

size_t conv_parts_workspace(const lk__kernel_call *call, bool input, int threads)
{
    summed    s = describe_sum(call, input);
    size_t    most = 0, own = lay_out(&s, (char *)LK__ALIGN, threads);
    part_call p;
    for (int i = 0; i < s.parts.count; i++) {
        make_part_call(&s, i, s.images, s.sums, &p);
        size_t bytes = real_kernel(input)->workspace(&p.call, threads);
        most = bytes > most ? bytes : most;
    }
    return own + most;
}

/* ---- the sum ---- */

typedef struct addition {
    REAL       *to;
    const REAL *more;
    int64_t     n, tiles;
} addition;

static void add_tile(void *argument, int64_t tile, int worker)
{
    const addition *a = argument;
    int64_t         begin = tile_begin(a->n, a->tiles, tile), n = tile_begin(a->n, a->tiles, tile + 1) - begin;
    REAL           *to = a->to + begin;
    const REAL     *more = a->more + begin;
    (void)worker;
    EACH_VECTOR(i, n, store_part(to + i, load_part(to + i, lanes) + load_part(more + i, lanes), lanes););
}

/* A row of y: its pixels window by window, then bias, function or pool. */
static void finish_row(const summed *s, int64_t image, int64_t row, REAL *strip)
{
    const conv    *v = &s->v;
    const ELEMENT *bias = optional_in(s->call, 2);
    const REAL    *from = s->sums + image * s->size;
    uint8_t       *index = optional_out(s->call, 1);
    int64_t        pixels = v->yw * v->pool * v->pool, at = ((s->first + image) * v->yh + row) * v->yw * v->o;
    REAL          *to = strip;
    for (int64_t q = 0; q < v->yw * v->pool; q += v->pool)
        for (int64_t i = row * v->pool; i < (row + 1) * v->pool; i++)
            for (int64_t j = q; j < q + v->pool; j++, to += v->o)
                memcpy(to, from + (i * v->ow + j) * v->o, (size_t)v->o * sizeof *to);
    for (int64_t i = 0; bias && i < pixels; i++)
        for (int64_t c = 0; c < v->o; c++) strip[i * v->o + c] += load_one(bias + c);
    if (is_wide(&s->call->out[0])) {
        memcpy((REAL *)s->call->out[0].data + at, strip, (size_t)(pixels * v->o) * sizeof *strip);
        return;
    }
    ELEMENT *y = (ELEMENT *)s->call->out[0].data + at;
    if (v->pool > 1) {
        pool_windows(strip, v->yw, v->pool, v->o, v->relu, y, index ? index + at : NULL, v->o);
        return;
    }
    if (v->relu) relu_in_place(strip, pixels * v->o);
    if (activates(v->activation)) activate(strip, pixels * v->o, v->activation);
    copy_narrow(y, strip, pixels * v->o);
}

static void finish_tile(void *argument, int64_t tile, int worker)
{
    const summed *s = argument;
    const conv   *v = &s->v;
    if (!s->input) {
        finish_row(s, tile / v->yh, tile % v->yh,
                   (REAL *)((char *)s->strips + (size_t)worker * space_of(strip_size(s))));
        return;
    }
    int64_t     at = (s->first + tile) * s->size;
    const REAL *from = s->sums + tile * s->size;
    if (is_wide(&s->call->out[0]))
        memcpy((REAL *)s->call->out[0].data + at, from, (size_t)s->size * sizeof *from);
    else
        copy_narrow((ELEMENT *)s->call->out[0].data + at, from, s->size);
}

static void run_images(summed *s, void *workspace)
{
    lk__pool *pool = s->call->pool;
    size_t    apart = space_of(s->images * s->size);
    int       depth = 0;
    for (s->part = 0; s->part < s->parts.count; s->part++) {
        part_call p;
        make_part_call(s, s->part, s->count, (REAL *)((char *)s->sums + (size_t)depth++ * apart), &p);
        p.call.workspace = workspace;
        lk__pool_run(pool, s->count, copy_channels, s);
        real_kernel(s->input)->run(&p.call);
        for (int merges = lk__tree_merges(s->part, s->parts.count); merges > 0; merges--, depth--) {
            REAL    *more = (REAL *)((char *)s->sums + (size_t)(depth - 1) * apart);
            addition a = {.to = (REAL *)((char *)more - apart), .more = more, .n = s->count * s->size};
            a.tiles = tile_count(a.n, 1, 0);
            lk__pool_run(pool, a.tiles, add_tile, &a);
        }
    }
    lk__pool_run(pool, s->input ? s->count : s->count * s->v.yh, finish_tile, s);
}

void conv_run_parts(const lk__kernel_call *call, bool input)
{
    summed s = describe_sum(call, input);
    size_t own = lay_out(&s, call->workspace, lk__pool_workers(call->pool));
    if (s.v.n <= 0 || s.size <= 0) return;
    lk__pool_run(call->pool, s.parts.count, copy_weights, &s);
    for (; s.first < s.v.n; s.first += s.count) {
        s.count = min64(s.images, s.v.n - s.first);
        run_images(&s, (char *)call->workspace + own);
    }
}
