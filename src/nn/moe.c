/* moe.c - the layer lk_moe: a router, and experts that are gated feed-forward networks. Tokens are grouped by expert,
 * so that an expert's weights are read once for all of its tokens. */
#include <lockstep/moe.h>
#include <lockstep/nn.h>
#include <math.h>

static bool is_usable(lk_tensor x) { return x.graph && x.id >= 0 && lk_graph_status(x.graph) == LK_OK; }

static lk_tensor make_weight(lk_site site, lk_tensor x, const char *name, int rank, const int64_t *dims,
                             const lk_moe_options *o)
{
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_parameter_options p = {.frozen = o->frozen,
                              .init = o->std > 0 ? LK_INIT_NORMAL : LK_INIT_UNIFORM,
                              .a = o->std > 0 ? o->std : 1 / sqrt((double)dims[rank - 1])};
    lk_tensor            w = lk_parameter_at(site, x.graph, "weight", rank, dims, p);
    lk_block_end_at(site, x);
    return w;
}

static bool check_options(lk_site site, lk_tensor x, const char *name, const lk_moe_options *o)
{
    const char *file = site.file ? site.file : "?";
    double      tokens = 1;
    if (!is_usable(x)) return false;
    if (lk_tensor_rank(x) < 2) {
        lk_graph_fail(x.graph, "%s:%d: lk_moe \"%s\": x has %d axes; expected (tokens, width)", file, site.line, name,
                      lk_tensor_rank(x));
        return false;
    }
    for (int i = 0; i + 1 < lk_tensor_rank(x); i++) tokens *= (double)lk_tensor_dim(x, i);
    if (o->experts < 1 || o->experts > 65536 || o->k < 1 || o->k > o->experts) {
        lk_graph_fail(x.graph,
                      "%s:%d: lk_moe \"%s\": %lld experts per token out of %lld; expected 1 to 65536 experts, of which "
                      "each token uses at least one",
                      file, site.line, name, (long long)o->k, (long long)o->experts);
        return false;
    }
    if (o->hidden < 1 || !(o->capacity >= 0)) {
        lk_graph_fail(x.graph,
                      "%s:%d: lk_moe \"%s\": hidden is %lld and capacity is %g; expected hidden to be at least 1 and "
                      "capacity at least 0",
                      file, site.line, name, (long long)o->hidden, o->capacity);
        return false;
    }
    if (o->capacity > 0 && o->capacity * tokens * (double)o->k / (double)o->experts < 1) {
        lk_graph_fail(x.graph,
                      "%s:%d: lk_moe \"%s\": a capacity of %g gives an expert room for less than one of %.0f tokens: "
                      "every token would be dropped",
                      file, site.line, name, o->capacity, tokens);
        return false;
    }
    return true;
}

/* The chosen experts of each row, and their weights. */
static lk_tensor route(lk_site site, lk_tensor x, const lk_moe_options *o, lk_moe_result *result)
{
    int64_t   dims[] = {o->experts, lk_tensor_dim(x, -1)};
    lk_tensor logits = lk_f_linear_at(site, x, make_weight(site, x, "gate", 2, dims, o), (lk_tensor){0});
    /* Tokens of all ranks are grouped: along the tensor axis every rank has all of them. */
    result->probabilities = lk_place_at(site, lk_softmax_at(site, logits, -1), "tensor", LK_REPLICATED);
    lk_topk_result top = lk_topk_at(site, result->probabilities, o->k);
    result->index = lk_place_at(site, top.index, "tensor", LK_REPLICATED);
    top.values = lk_place_at(site, top.values, "tensor", LK_REPLICATED);
    if (o->plain_weights) return top.values;
    lk_reduce_options last = {.axes = (int[]){1}, .axes_count = 1, .keepdim = true};
    return lk_div_at(site, top.values, lk_sum_at(site, top.values, last));
}

static lk_tensor run_experts(lk_site site, lk_tensor rows, lk_groups groups, const lk_moe_options *o)
{
    static const char *const usual[] = {"w1", "w2", "w3"};
    const char *const       *names = o->names ? o->names : usual;
    int64_t                  width = lk_tensor_dim(rows, -1);
    int64_t                  in[] = {o->experts, o->hidden, width}, out[] = {o->experts, width, o->hidden};
    lk_block_begin_at(site, rows, "experts", (lk_block_options){0});
    lk_block_begin_at(site, rows, "*", (lk_block_options){0}); /* files hold the experts apart */
    lk_tensor gate = lk_grouped_linear_at(site, rows, make_weight(site, rows, names[0], 3, in, o), groups);
    lk_tensor up = lk_grouped_linear_at(site, rows, make_weight(site, rows, names[2], 3, in, o), groups);
    lk_tensor y =
        lk_grouped_linear_at(site, lk_swiglu_at(site, gate, up), make_weight(site, rows, names[1], 3, out, o), groups);
    lk_block_end_at(site, rows);
    lk_block_end_at(site, rows);
    return y;
}

lk_moe_result lk_moe_at(lk_site site, lk_tensor x, const char *name, lk_moe_options o)
{
    lk_tensor     none = {x.graph, x.graph ? -1 : x.id < 0 ? x.id : -site.line};
    lk_moe_result r = {none, none, none, none};
    if (o.k == 0) o.k = 2;
    if (o.hidden == 0 && is_usable(x) && lk_tensor_rank(x) > 0) o.hidden = 4 * lk_tensor_dim(x, -1);
    if (!check_options(site, x, name ? name : "", &o)) return r;
    int     rank = lk_tensor_rank(x);
    int64_t dims[LK_MAX_RANK], width = lk_tensor_dim(x, -1), tokens = 1;
    for (int i = 0; i < rank; i++) dims[i] = lk_tensor_dim(x, i);
    for (int i = 0; i + 1 < rank; i++) tokens *= dims[i];
    int64_t capacity = o.capacity > 0 ? (int64_t)(o.capacity * (double)tokens * (double)o.k / (double)o.experts) : 0;
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor rows = rank == 2 ? x : lk_reshape_at(site, x, 2, (int64_t[]){tokens, width});
    lk_tensor weight = route(site, rows, &o, &r);
    lk_groups groups = lk_group_rows_at(site, r.index, o.experts, capacity);
    r.counts = groups.counts;
    lk_tensor y = run_experts(site, lk_gather_rows_at(site, rows, groups, (lk_tensor){0}), groups, &o);
    y = lk_combine_rows_at(site, y, groups, weight);
    r.y = rank == 2 ? y : lk_reshape_at(site, y, rank, dims);
    lk_block_end_at(site, x);
    return r;
}
