/* models.c - the models of `lockstep train`, written as users write theirs. */
#include <lockstep/nn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t classes(lk_model_options o) { return o.classes > 0 ? o.classes : 10; }

/* Whether x is a batch of images of at least `least` by `least` pixels; else fails the graph with a message about the
 * data. */
static bool check_images(lk_tensor x, const char *model, int64_t least)
{
    if (!x.graph || x.id < 0 || lk_graph_status(x.graph) != LK_OK) return false;
    int     rank = lk_tensor_rank(x);
    int64_t height = lk_tensor_dim(x, -2), width = lk_tensor_dim(x, -1);
    if (rank == 4 && height >= least && width >= least) return true;
    if (rank == 4)
        lk_graph_fail(x.graph, "%s needs images of at least %lld by %lld pixels; those of the data have %lld by %lld",
                      model, (long long)least, (long long)least, (long long)height, (long long)width);
    else if (rank == 2)
        lk_graph_fail(x.graph, "%s needs images (channels, height, width); the data has %lld features", model,
                      (long long)width);
    else
        lk_graph_fail(x.graph, "%s needs images (channels, height, width); the data's samples have %d axes", model,
                      rank - 1);
    return false;
}

/* Features and pixels that the data set has as integers. */
static lk_tensor as_floats(lk_tensor x)
{
    if (!x.graph || lk_graph_status(x.graph) < 0) return x;
    lk_dtype type = lk_tensor_dtype(x);
    return type == LK_U8 || type == LK_I32 || type == LK_I64 ? lk_cast(x, lk_graph_dtype(x.graph)) : x;
}

lk_tensor lk_model_mlp(lk_tensor x, lk_model_options o)
{
    x = as_floats(x);
    if (lk_tensor_rank(x) != 2) x = lk_flatten(x);
    x = lk_relu(lk_linear(x, "fc1", o.hidden > 0 ? o.hidden : 128));
    return lk_linear(x, "fc2", classes(o));
}

lk_tensor lk_model_cnn(lk_tensor x, lk_model_options o)
{
    if (!check_images(x, "cnn", 4)) return (lk_tensor){x.graph, -1};
    x = lk_max_pool2d(lk_relu(lk_conv2d(as_floats(x), "conv1", 32, 3, .padding = 1)), 2);
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv2", 64, 3, .padding = 1)), 2);
    x = lk_relu(lk_linear(lk_flatten(x), "fc1", 512));
    return lk_linear(x, "fc2", classes(o));
}

/* torchvision's initialisation of residual networks: normal, standard deviation sqrt(2 / fan_out). */
static double fan_out_std(int64_t channels, int64_t kernel) { return sqrt(2.0 / (double)(channels * kernel * kernel)); }

static lk_tensor conv(lk_tensor x, const char *name, int64_t channels, int64_t kernel, int64_t stride)
{
    return lk_conv2d(x, name, channels, kernel, .stride = stride, .padding = kernel / 2, .no_bias = true,
                     .std = fan_out_std(channels, kernel));
}

/* conv-bn-relu-conv-bn plus the input, or its projection where the shape changes; then relu. */
static lk_tensor basic_block(lk_tensor x, const char *name, int64_t channels, int64_t stride, bool recompute)
{
    lk_tensor shortcut = x;
    lk_block_begin(x, name, .recompute = recompute);
    lk_tensor y = lk_relu(lk_batch_norm(conv(x, "conv1", channels, 3, stride), "bn1"));
    y = lk_batch_norm(conv(y, "conv2", channels, 3, 1), "bn2");
    if (stride != 1 || lk_tensor_dim(x, 1) != channels) {
        lk_block_begin(x, "downsample");
        shortcut = lk_batch_norm(conv(x, "0", channels, 1, stride), "1");
        lk_block_end(x);
    }
    y = lk_relu(lk_add(y, shortcut));
    lk_block_end(x);
    return y;
}

static lk_tensor stage(lk_tensor x, const char *name, int64_t channels, int blocks, int64_t stride, bool recompute)
{
    lk_block_begin(x, name);
    for (int i = 0; i < blocks; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        x = basic_block(x, number, channels, i == 0 ? stride : 1, recompute);
    }
    lk_block_end(x);
    return x;
}

lk_tensor lk_model_resnet18(lk_tensor x, lk_model_options o)
{
    if (!check_images(x, "resnet18", 1)) return (lk_tensor){x.graph, -1};
    x = as_floats(x);
    if (o.cifar_stem) {
        x = lk_relu(lk_batch_norm(conv(x, "conv1", 64, 3, 1), "bn1"));
    } else {
        x = lk_relu(lk_batch_norm(conv(x, "conv1", 64, 7, 2), "bn1"));
        x = lk_max_pool2d(x, 3, .stride = 2, .padding = 1);
    }
    x = stage(x, "layer1", 64, 2, 1, o.recompute);
    x = stage(x, "layer2", 128, 2, 2, o.recompute);
    x = stage(x, "layer3", 256, 2, 2, o.recompute);
    x = stage(x, "layer4", 512, 2, 2, o.recompute);
    return lk_linear(lk_global_avg_pool2d(x), "fc", classes(o));
}

lk_tensor lk_model_resnet20(lk_tensor x, lk_model_options o)
{
    if (!check_images(x, "resnet20", 1)) return (lk_tensor){x.graph, -1};
    x = as_floats(x);
    x = lk_relu(lk_batch_norm(conv(x, "conv1", 16, 3, 1), "bn1"));
    x = stage(x, "layer1", 16, 3, 1, o.recompute);
    x = stage(x, "layer2", 32, 3, 2, o.recompute);
    x = stage(x, "layer3", 64, 3, 2, o.recompute);
    return lk_linear(lk_global_avg_pool2d(x), "fc", classes(o));
}

static const char *const       names[] = {"mlp", "cnn", "resnet18", "resnet20", NULL};
static const lk_model_function functions[] = {lk_model_mlp, lk_model_cnn, lk_model_resnet18, lk_model_resnet20};

const char *const *lk_model_names(void) { return names; }

lk_model_function lk_model_find(const char *name)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return functions[i];
    return NULL;
}
