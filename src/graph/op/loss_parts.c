/* loss_parts.c - losses whose classes are divided over ranks: no rank has all logits of a row. The ranks exchange
 * statistics of each row (class_statistics), with which each rank computes the loss and its gradients from its own
 * part.
 *
 * A product and its loss in one node (linear_cross_entropy) never have the logits of all rows, either: rows are
 * processed in blocks, whose statistics are exchanged one after the other, so that each logit is computed once. A block
 * has some rows of each sample, and of each part of a sample that a rank has where the ranks divide the sequence.
 *
 * Where any number of ranks must give the same bits (attrs.rows is set, and attrs.sum has the parts of the classes),
 * neither blocks nor statistics depend on the ranks. */
#include "graph/op/loss_parts.h"

/* ---- a loss of logits ---- */

static lk__op_attrs loss_attributes(const lk__graph_node *n)
{
    return (lk__op_attrs){.ignore_index = n->attrs.ignore_index, .label_smoothing = n->attrs.label_smoothing};
}

/* Of what adds over classes. */
static lk__op_attrs summed_attributes(const lk__graph_node *n)
{
    lk__op_attrs attrs = loss_attributes(n);
    attrs.sum = n->attrs.sum;
    return attrs;
}

static int emit_statistics(lk_graph *g, const lk__graph_node *n, int logits, int labels, int64_t parts)
{
    lk__op_attrs           attrs = summed_attributes(n);
    const lk__graph_shape *x = &g->values[logits].shape;
    lk__graph_shape        s = {.dtype = LK_F64, .rank = x->rank + 1, .count_unit = x->count_unit};
    s.count_axis = x->count_axis < 0 ? -1 : x->count_axis + 1;
    s.dims[0] = attrs.sum.parts > 1 ? attrs.sum.parts : parts;
    for (int i = 0; i + 1 < x->rank; i++) s.dims[i + 1] = x->dims[i];
    s.dims[x->rank] = LK__CLASS_STATISTICS;
    int node = lk__emit_shaped(g, n->site, LK__OP_class_statistics, &attrs, (int[]){logits, labels}, 2, &s, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

int lk__divide_cross_entropy(lk_graph *g, const lk__graph_node *n, int64_t parts)
{
    int in[] = {n->in[0], n->in[1], n->inputs > 2 ? n->in[2] : -1, emit_statistics(g, n, n->in[0], n->in[1], parts)};
    if (in[3] < 0) return -1;
    return lk__emit_update(g, n->site, n->op, &n->attrs, in, 4, n->out, n->outputs);
}

/* ---- rows in blocks ---- */

/* (rows) as (groups, blocks, each): a group has rows of one sample, and of one rank's part of it. */
typedef struct row_blocks {
    int64_t groups, unit; /* unit: groups of a sample */
    int64_t blocks, each;
} row_blocks;

/* Logits of a block are as many as the kernel that has all classes takes at once; each block is some ten nodes. */
enum { MOST_BLOCKS = 32 };

/* Rows of a sample that stay together: parts, as many as ranks may have, that divide the sample. */
static int64_t sample_parts(int64_t sample)
{
    int64_t parts = LK__SUM_PARTS;
    while (sample % parts) parts /= 2;
    return parts;
}

/* As few as are small enough, or as many as there can be, of what divides a group's rows. */
static row_blocks divide_rows(const lk__graph_node *n, const lk__graph_shape *x, int64_t classes, int64_t parts)
{
    bool       fixed = n->attrs.rows > 0;
    int64_t    rows = x->dims[0], sample = x->count_axis == 0 ? x->count_unit : rows;
    int64_t    together = fixed ? n->attrs.rows : rows; /* of which the blocks are */
    row_blocks b = {.unit = sample % parts == 0 ? parts : 1, .blocks = 1};
    if (fixed) b.unit = sample_parts(sample);
    int64_t each = sample > 0 ? sample / b.unit : 1; /* rows of a group */
    for (int64_t k = 2; k <= MOST_BLOCKS && together / b.blocks * classes > LK__LOSS_BLOCK; k++)
        if (each % k == 0) b.blocks = k;
    b.groups = rows / each;
    b.each = each / b.blocks;
    return b;
}

static int emit_view(lk_graph *g, lk_site site, int x, const lk__graph_shape *shape)
{
    int node = x < 0 ? -1 : lk__emit_shaped(g, site, LK__OP_reshape, NULL, &x, 1, shape, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

/* Rows (groups · blocks · each, …) of the value as (groups, blocks, each, …); of `blocks` of them. */
static lk__graph_shape grouped_shape(const row_blocks *b, const lk__graph_shape *rows, int64_t blocks)
{
    lk__graph_shape s = {.dtype = rows->dtype, .rank = rows->rank + 2, .count_axis = -1, .count_unit = 1};
    s.dims[0] = b->groups;
    s.dims[1] = blocks;
    s.dims[2] = b->each;
    for (int i = 1; i < rows->rank; i++) s.dims[i + 2] = rows->dims[i];
    if (rows->count_axis == 0) s.count_axis = 0, s.count_unit = b->unit;
    return s;
}

/* The rows of a block. */
static lk__graph_shape block_shape(const row_blocks *b, const lk__graph_shape *rows)
{
    lk__graph_shape s = *rows;
    s.dims[0] = b->groups * b->each;
    if (s.count_axis == 0) s.count_unit = b->unit * b->each;
    return s;
}

static int emit_block(lk_graph *g, lk_site site, const row_blocks *b, int grouped, int64_t block,
                      const lk__graph_shape *rows)
{
    lk__op_attrs    attrs = {.axis = 1, .start = block, .length = 1};
    lk__graph_shape shape = block_shape(b, rows);
    return emit_view(g, site, grouped < 0 ? -1 : lk__emit1(g, site, LK__OP_slice, &attrs, &grouped, 1), &shape);
}

/* ---- a product and its loss ---- */

/* What the blocks make: for outputs sum, weight, correct and dweight the sum so far, for dx each block's. */
enum { SUMS = 3, DX = 3, DW = 4, OUTPUTS = 5 };
typedef struct divided {
    lk_graph             *g;
    const lk__graph_node *n;
    row_blocks            rows;
    int64_t               parts;
    int                   x, labels; /* grouped; of one block: as they are */
    int                   made[OUTPUTS];
    int                   dx[MOST_BLOCKS];
} divided;

static int output_of(const lk__graph_node *n, int k) { return k < n->outputs ? n->out[k] : -1; }

static bool add_to(divided *d, int k, int value)
{
    int pair[] = {d->made[k], value};
    d->made[k] = pair[0] < 0 || value < 0 ? value : lk__emit1(d->g, d->n->site, LK__OP_add, NULL, pair, 2);
    return d->made[k] >= 0;
}

static bool append_gradients(divided *d, int64_t block, int x, int labels, int probabilities)
{
    lk_graph    *g = d->g;
    lk_site      site = d->n->site;
    lk__op_attrs attrs = loss_attributes(d->n);
    int          dw = output_of(d->n, DW), w = d->n->in[1];
    if (output_of(d->n, DX) < 0 && dw < 0) return true;
    int dy = lk__emit1(g, site, LK__OP_cross_entropy_grad, &attrs, (int[]){probabilities, labels}, 2);
    if (dy >= 0) dy = lk__emit_cast(g, site, dy, g->values[x].shape.dtype);
    if (dy < 0) return false;
    if (dw >= 0) {
        lk__graph_shape shape = g->values[dw].shape;
        int             in[] = {x, dy, d->made[DW]}, inputs = in[2] < 0 ? 2 : 3; /* added to those of blocks before */
        int             node = lk__emit_shaped(g, site, LK__OP_linear_grad_weight, NULL, in, inputs, &shape, 1);
        if (node < 0) return false;
        d->made[DW] = g->nodes[node].out[0];
    }
    if (output_of(d->n, DX) < 0) return true;
    lk__graph_shape shape = g->values[x].shape;
    lk__op_attrs    sums = {.sum = d->n->attrs.sum};
    int             node = lk__emit_shaped(g, site, LK__OP_linear_grad_input, &sums, (int[]){dy, w}, 2, &shape, 1);
    d->dx[block] = node < 0 ? -1 : g->nodes[node].out[0];
    return node >= 0;
}

static bool append_block(divided *d, int64_t block)
{
    lk_graph             *g = d->g;
    const lk__graph_node *n = d->n;
    bool                  whole = d->rows.blocks == 1, gradients = output_of(n, DX) >= 0 || output_of(n, DW) >= 0;
    lk__op_attrs          attrs = summed_attributes(n);
    lk__graph_shape       rows = g->values[n->in[0]].shape, label_rows = g->values[n->in[2]].shape;
    int                   x = whole ? d->x : emit_block(g, n->site, &d->rows, d->x, block, &rows);
    int                   labels = whole ? d->labels : emit_block(g, n->site, &d->rows, d->labels, block, &label_rows);
    if (x < 0 || labels < 0) return false;
    int logits = lk__emit1(g, n->site, LK__OP_linear, NULL, (int[]){x, n->in[1]}, 2);
    if (logits >= 0) logits = lk__emit_cast(g, n->site, logits, lk__wide_type(g->values[logits].shape.dtype));
    /* Of whole rows the loss makes the same records itself. */
    bool alone = d->parts == 1 || (n->attrs.rows > 0 && n->attrs.sum.parts <= 1);
    int  statistics = logits < 0 || alone ? -1 : emit_statistics(g, n, logits, labels, d->parts);
    if (logits < 0 || (statistics < 0 && !alone)) return false;
    int in[] = {logits, labels, -1, statistics}, wanted = gradients ? LK__ALL_OUTPUTS : (1 << SUMS) - 1;
    int loss = lk__emit(g, n->site, LK__OP_cross_entropy, &attrs, in, alone ? 2 : 4, wanted);
    if (loss < 0) return false;
    int probabilities = g->nodes[loss].out[SUMS], sums[SUMS];
    for (int k = 0; k < SUMS; k++) sums[k] = g->nodes[loss].out[k];
    for (int k = 0; k < SUMS; k++)
        if (!add_to(d, k, sums[k])) return false;
    return append_gradients(d, block, x, labels, probabilities);
}

/* dx of all rows from those of the blocks; several at a time, since a node has LK_OPERATION_INPUTS at most. */
static bool join_dx(divided *d)
{
    lk_graph       *g = d->g;
    lk_site         site = d->n->site;
    lk__graph_shape rows = g->values[d->n->in[0]].shape, one = grouped_shape(&d->rows, &rows, 1);
    int             count = (int)d->rows.blocks;
    for (int i = 0; i < count; i++)
        if ((d->dx[i] = emit_view(g, site, d->dx[i], &one)) < 0) return false;
    while (count > 1) {
        int joined = 0;
        for (int first = 0; first < count; first += LK_OPERATION_INPUTS) {
            int each = count - first < LK_OPERATION_INPUTS ? count - first : LK_OPERATION_INPUTS, y = d->dx[first];
            if (each > 1) y = lk__emit1(g, site, LK__OP_concat, &(lk__op_attrs){.axis = 1}, d->dx + first, each);
            if (y < 0) return false;
            d->dx[joined++] = y;
        }
        count = joined;
    }
    d->made[DX] = emit_view(g, site, d->dx[0], &rows);
    return d->made[DX] >= 0;
}

/* The node's outputs instead of the values that were made for them; the last node that makes one. */
static int give_outputs(divided *d)
{
    int last = -1;
    for (int k = 0; k < OUTPUTS; k++) {
        int out = output_of(d->n, k), node = out < 0 ? -1 : d->g->values[d->made[k]].node;
        for (int i = 0; out >= 0 && i < d->g->nodes[node].outputs; i++)
            if (d->g->nodes[node].out[i] == d->made[k]) d->g->nodes[node].out[i] = out;
        if (node > last) last = node;
    }
    return last;
}

int lk__divide_linear_cross_entropy(lk_graph *g, const lk__graph_node *n, int64_t parts)
{
    lk__graph_shape rows = g->values[n->in[0]].shape, label_rows = g->values[n->in[2]].shape;
    divided         d = {.g = g, .n = n, .parts = parts, .x = n->in[0], .labels = n->in[2]};
    d.rows = divide_rows(n, &rows, g->values[n->in[1]].shape.dims[0], parts);
    for (int k = 0; k < OUTPUTS; k++) d.made[k] = -1;
    if (d.rows.blocks > 1) {
        lk__graph_shape x = grouped_shape(&d.rows, &rows, d.rows.blocks);
        lk__graph_shape labels = grouped_shape(&d.rows, &label_rows, d.rows.blocks);
        d.x = emit_view(g, n->site, d.x, &x);
        d.labels = emit_view(g, n->site, d.labels, &labels);
        if (d.x < 0 || d.labels < 0) return -1;
    }
    for (int64_t block = 0; block < d.rows.blocks; block++)
        if (!append_block(&d, block)) return -1;
    if (output_of(n, DX) >= 0) {
        d.made[DX] = d.dx[0];
        if (d.rows.blocks > 1 && !join_dx(&d)) return -1;
    }
    return give_outputs(&d);
}
