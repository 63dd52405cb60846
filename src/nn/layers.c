/* layers.c - layers that create their own parameters. Initial distributions are PyTorch's defaults (nn.Linear,
 * nn.Conv2d: uniform within ±1/sqrt(fan_in), also for the bias; nn.Embedding: standard normal). */
#include <lockstep/nn.h>
#include <math.h>

static bool is_usable(lk_tensor x) { return x.graph && x.id >= 0 && lk_graph_status(x.graph) == LK_OK; }
/* As the recording calls do: an invalid tensor of the graph or, without a graph, one that holds the line of the first
 * call. */
static lk_tensor invalid_tensor(lk_site site, lk_tensor x)
{
    return x.graph ? (lk_tensor){x.graph, -1} : (lk_tensor){NULL, x.id < 0 ? x.id : -site.line};
}

/* The options of lk_layer_options that not every layer has, as bits. */
enum { STRIDE = 1, PADDING = 2, GROUPS = 4, NO_BIAS = 8, WEIGHT = 16, EPSILON = 32, MOMENTUM = 64, STD = 128 };

/* Whether x can be used, and the layer has all options that are set: another one would be ignored. */
static bool check_call(lk_site site, lk_tensor x, const char *layer, const char *name, lk_layer_options o, unsigned has)
{
    const struct {
        const char *name;
        bool        set;
    } given[] = {{"stride", o.stride != 0},     {"padding", o.padding != 0}, {"groups", o.groups != 0},
                 {"no_bias", o.no_bias},        {"weight", o.weight.graph},  {"epsilon", o.epsilon != 0},
                 {"momentum", o.momentum != 0}, {"std", o.std != 0}};
    if (!is_usable(x)) return false;
    for (unsigned i = 0; i < sizeof given / sizeof *given; i++) {
        if (!given[i].set || has >> i & 1) continue;
        lk_graph_fail(x.graph, "%s:%d: %s \"%s\" has no option %s", site.file ? site.file : "?", site.line, layer,
                      name ? name : "", given[i].name);
        return false;
    }
    return true;
}

static lk_tensor make_weight(lk_site site, lk_tensor x, int rank, const int64_t *dims, double fan_in,
                             lk_layer_options o)
{
    if (o.weight.graph) {
        lk_tie_at(site, o.weight, "weight");
        return o.weight;
    }
    lk_parameter_options p = {.frozen = o.frozen,
                              .init = o.std > 0 ? LK_INIT_NORMAL : LK_INIT_UNIFORM,
                              .a = o.std > 0 ? o.std : 1 / sqrt(fan_in)};
    return lk_parameter_at(site, x.graph, "weight", rank, dims, p);
}

static lk_tensor make_bias(lk_site site, lk_tensor x, int64_t features, double fan_in, lk_layer_options o)
{
    if (o.no_bias) return (lk_tensor){0};
    lk_parameter_options p = {.frozen = o.frozen, .no_decay = true, .init = LK_INIT_UNIFORM, .a = 1 / sqrt(fan_in)};
    return lk_parameter_at(site, x.graph, "bias", 1, &features, p);
}

static lk_tensor make_constant(lk_site site, lk_tensor x, const char *name, int64_t size, double value,
                               lk_layer_options o)
{
    lk_parameter_options p = {.frozen = o.frozen, .no_decay = true, .init = LK_INIT_CONSTANT, .a = value};
    return lk_parameter_at(site, x.graph, name, 1, &size, p);
}

lk_tensor lk_conv2d_at(lk_site site, lk_tensor x, const char *name, int64_t channels, int64_t kernel,
                       lk_layer_options o)
{
    if (!check_call(site, x, "lk_conv2d", name, o, STRIDE | PADDING | GROUPS | NO_BIAS | WEIGHT | STD))
        return invalid_tensor(site, x);
    int64_t groups = o.groups > 0 ? o.groups : 1, inputs = lk_tensor_dim(x, 1) / groups;
    double  fan_in = (double)(inputs * kernel * kernel);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_weight(site, x, 4, (int64_t[]){channels, inputs, kernel, kernel}, fan_in, o);
    lk_tensor b = make_bias(site, x, channels, fan_in, o);
    lk_tensor y = lk_f_conv2d_at(site, x, w, b,
                                 (lk_window_options){.stride = o.stride, .padding = o.padding, .groups = o.groups});
    lk_block_end_at(site, x);
    return y;
}

lk_tensor lk_linear_at(lk_site site, lk_tensor x, const char *name, int64_t features, lk_layer_options o)
{
    if (!check_call(site, x, "lk_linear", name, o, NO_BIAS | WEIGHT | STD)) return invalid_tensor(site, x);
    int64_t inputs = lk_tensor_dim(x, -1);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_weight(site, x, 2, (int64_t[]){features, inputs}, (double)inputs, o);
    lk_tensor b = make_bias(site, x, features, (double)inputs, o);
    lk_tensor y = lk_f_linear_at(site, x, w, b);
    lk_block_end_at(site, x);
    return y;
}

lk_tensor lk_embedding_at(lk_site site, lk_tensor ids, const char *name, int64_t vocabulary, int64_t width,
                          lk_layer_options o)
{
    if (!check_call(site, ids, "lk_embedding", name, o, WEIGHT | STD)) return invalid_tensor(site, ids);
    if (!(o.std > 0)) o.std = 1;
    lk_block_begin_at(site, ids, name, (lk_block_options){0});
    lk_tensor table = make_weight(site, ids, 2, (int64_t[]){vocabulary, width}, 1, o);
    lk_tensor y = lk_f_embedding_at(site, ids, table);
    lk_block_end_at(site, ids);
    return y;
}

lk_tensor lk_layer_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options o)
{
    if (!check_call(site, x, "lk_layer_norm", name, o, NO_BIAS | EPSILON)) return invalid_tensor(site, x);
    int64_t width = lk_tensor_dim(x, -1);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_constant(site, x, "weight", width, 1, o);
    lk_tensor b = o.no_bias ? (lk_tensor){0} : make_constant(site, x, "bias", width, 0, o);
    lk_tensor y = lk_f_layer_norm_at(site, x, w, b, (lk_norm_options){.epsilon = o.epsilon});
    lk_block_end_at(site, x);
    return y;
}

lk_tensor lk_rms_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options o)
{
    if (!check_call(site, x, "lk_rms_norm", name, o, EPSILON)) return invalid_tensor(site, x);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_constant(site, x, "weight", lk_tensor_dim(x, -1), 1, o);
    lk_tensor y = lk_f_rms_norm_at(site, x, w, (lk_norm_options){.epsilon = o.epsilon});
    lk_block_end_at(site, x);
    return y;
}

lk_tensor lk_group_norm_at(lk_site site, lk_tensor x, const char *name, int64_t groups, lk_layer_options o)
{
    if (!check_call(site, x, "lk_group_norm", name, o, NO_BIAS | EPSILON)) return invalid_tensor(site, x);
    int64_t channels = lk_tensor_dim(x, 1);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_constant(site, x, "weight", channels, 1, o);
    lk_tensor b = o.no_bias ? (lk_tensor){0} : make_constant(site, x, "bias", channels, 0, o);
    lk_tensor y = lk_f_group_norm_at(site, x, groups, w, b, (lk_norm_options){.epsilon = o.epsilon});
    lk_block_end_at(site, x);
    return y;
}

lk_tensor lk_batch_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options o)
{
    if (!check_call(site, x, "lk_batch_norm", name, o, NO_BIAS | EPSILON | MOMENTUM)) return invalid_tensor(site, x);
    int64_t  channels = lk_tensor_dim(x, 1);
    lk_dtype real = lk_graph_dtype(x.graph);
    lk_block_begin_at(site, x, name, (lk_block_options){0});
    lk_tensor w = make_constant(site, x, "weight", channels, 1, o);
    lk_tensor b = o.no_bias ? (lk_tensor){0} : make_constant(site, x, "bias", channels, 0, o);
    lk_tensor mean = lk_buffer_at(site, x.graph, "running_mean", real, 1, &channels, 0, (lk_buffer_options){0});
    lk_tensor var = lk_buffer_at(site, x.graph, "running_var", real, 1, &channels, 1, (lk_buffer_options){0});
    lk_tensor tracked = lk_buffer_at(site, x.graph, "num_batches_tracked", LK_I64, 0, NULL, 0, (lk_buffer_options){0});
    lk_tensor y = lk_f_batch_norm_at(site, x, w, b, mean, var, tracked,
                                     (lk_norm_options){.epsilon = o.epsilon, .momentum = o.momentum});
    lk_block_end_at(site, x);
    return y;
}
