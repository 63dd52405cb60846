/* model_so.c - a model of one's own for the command, as a shared object: a small residual network over images of any
 * size.
 *
 *   cc -O2 -shared -fPIC examples/model_so.c -o mine.so $(pkg-config --cflags lockstep)
 *   lockstep train --model ./mine.so --data cifar10 --epochs 5 --save runs/mine -n 2
 *   lockstep eval --model ./mine.so --data cifar10 --load runs/mine */
#include <lockstep/model.h>

static lk_tensor block(lk_tensor x, const char *name) /* (N, C, H, W) → the same */
{
    int64_t channels = lk_tensor_dim(x, 1);
    lk_block_begin(x, name);
    lk_tensor y = lk_gelu(lk_group_norm(lk_conv2d(x, "conv1", channels, 3, .padding = 1), "norm1", 4));
    y = lk_add(x, lk_conv2d(y, "conv2", channels, 3, .padding = 1));
    lk_block_end(x);
    return y;
}

static lk_tensor mine(lk_tensor x, lk_model_options options) /* (N, channels, H, W) → logits (N, classes) */
{
    if (lk_tensor_rank(x) != 4) {
        lk_graph_fail(x.graph, "this model takes images (N, channels, height, width), not a tensor with %d axes",
                      lk_tensor_rank(x));
        return x;
    }
    x = lk_conv2d(x, "stem", 16, 3, .padding = 1);
    x = lk_max_pool2d(block(x, "block1"), 2);
    x = lk_max_pool2d(block(x, "block2"), 2);
    return lk_linear(lk_global_avg_pool2d(x), "head", options.classes);
}

LK_EXPORT_MODEL(mine)
