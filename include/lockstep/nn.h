/* nn.h - layers that create their own parameters, with PyTorch's names, layouts and initial distributions; and the
 * models of `lockstep train`. It uses only graph.h, so users can write their own layers in the same way. */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/graph.h>

LK_BEGIN_DECLS

/* A layer accepts the options whose comments name it, and `frozen`; any other option makes the call invalid. */
typedef struct lk_layer_options {
    int     reserved LK_ZERO;
    int64_t stride LK_ZERO, padding LK_ZERO, groups LK_ZERO; /* conv2d: 0 means 1, 0, 1 */
    bool    no_bias LK_ZERO;                                 /* conv2d, linear, norms except RMS norm */
    bool    frozen LK_ZERO;                                  /* no gradient and no update for the layer's parameters */
    /* conv2d, linear, embedding, for tied weights: use this parameter instead of a new one; name.weight becomes its
     * alias */
    lk_tensor weight LK_ZERO;
    double    epsilon LK_ZERO;  /* norms; 0 means PyTorch's default */
    double    momentum LK_ZERO; /* batch norm; 0 means 0.1 */
    /* conv2d, linear, embedding: initial weights are normal with this standard deviation; 0 means PyTorch's default */
    double std LK_ZERO;
} lk_layer_options;

/* (N, C, H, W) → (N, channels, …): name.weight (channels, C/groups, kernel, kernel), name.bias */
LK_API lk_tensor lk_conv2d_at(lk_site site, lk_tensor x, const char *name, int64_t channels, int64_t kernel,
                              lk_layer_options options);
#define lk_conv2d(x, name, channels, kernel, ...) \
    lk_conv2d_at(LK_HERE, x, name, channels, kernel, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
/* (…, I) → (…, features): name.weight (features, I), name.bias */
LK_API lk_tensor lk_linear_at(lk_site site, lk_tensor x, const char *name, int64_t features, lk_layer_options options);
#define lk_linear(x, name, features, ...) \
    lk_linear_at(LK_HERE, x, name, features, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
/* i32 ids (…) → (…, width): name.weight (vocabulary, width) */
LK_API lk_tensor lk_embedding_at(lk_site site, lk_tensor ids, const char *name, int64_t vocabulary, int64_t width,
                                 lk_layer_options options);
#define lk_embedding(ids, name, vocabulary, width, ...) \
    lk_embedding_at(LK_HERE, ids, name, vocabulary, width, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
/* Over the last axis: name.weight, name.bias (RMS norm: only weight) */
LK_API lk_tensor lk_layer_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options options);
LK_API lk_tensor lk_rms_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options options);
/* (N, C, …): name.weight (C), name.bias (C) */
LK_API lk_tensor lk_group_norm_at(lk_site site, lk_tensor x, const char *name, int64_t groups,
                                  lk_layer_options options);
#define lk_group_norm(x, name, groups, ...) \
    lk_group_norm_at(LK_HERE, x, name, groups, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
/* (N, C) or (N, C, H, W): weight, bias, running_mean, running_var, num_batches_tracked */
LK_API lk_tensor lk_batch_norm_at(lk_site site, lk_tensor x, const char *name, lk_layer_options options);
#define lk_layer_norm(x, name, ...) lk_layer_norm_at(LK_HERE, x, name, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
#define lk_rms_norm(x, name, ...) lk_rms_norm_at(LK_HERE, x, name, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))
#define lk_batch_norm(x, name, ...) lk_batch_norm_at(LK_HERE, x, name, LK_OPTIONS(lk_layer_options, ##__VA_ARGS__))

/* ---- the loss of mixup ---- */

typedef struct lk_mixup_options {
    int       reserved LK_ZERO;
    double    label_smoothing LK_ZERO; /* as lk_cross_entropy's */
    lk_tensor weight LK_ZERO;          /* (N): one per sample; missing: 1 */
} lk_mixup_options;
/* mix · cross-entropy with label + (1 - mix) · cross-entropy with label_2, for logits (N, classes) and the fields that
 * a loader with `mixup` appends. Records the metric "accuracy", with respect to label. */
LK_API lk_tensor lk_mixup_loss_at(lk_site site, lk_tensor logits, lk_tensor label, lk_tensor label_2, lk_tensor mix,
                                  lk_mixup_options options);
#define lk_mixup_loss(logits, label, label_2, mix, ...) \
    lk_mixup_loss_at(LK_HERE, logits, label, label_2, mix, LK_OPTIONS(lk_mixup_options, ##__VA_ARGS__))

/* ---- models: features in, logits (N, classes) out; integer features are cast to the graph's type ---- */

typedef struct lk_model_options {
    int     reserved LK_ZERO;
    int64_t classes LK_ZERO; /* 0 means 10 */
    int64_t hidden LK_ZERO;  /* mlp; 0 means 128 */
    /* resnet18: a 3×3 stem of stride 1 without max pool, for small images, instead of torchvision's 7×7 */
    bool cifar_stem LK_ZERO;
    bool recompute LK_ZERO; /* resnets: recompute each residual block in backward */
} lk_model_options;

/* fc1 (hidden), relu, fc2 (classes) */
LK_API lk_tensor lk_model_mlp(lk_tensor x, lk_model_options options);
/* SimpleCNN from the PyTorch tutorials: conv1 32, conv2 64, each 3×3 + relu + max pool 2; fc1 512; fc2. Images must be
 * at least 4 × 4. */
LK_API lk_tensor lk_model_cnn(lk_tensor x, lk_model_options options);
/* torchvision's resnet18, with its names and its 7×7 stride-2 stem with max pool (or cifar_stem). */
LK_API lk_tensor lk_model_resnet18(lk_tensor x, lk_model_options options);
/* ResNet-20 for small images (He et al. 2015, section 4.2): three basic blocks each with 16, 32 and 64 channels; 1×1
 * convolutions as projection shortcuts; names as in torchvision. */
LK_API lk_tensor lk_model_resnet20(lk_tensor x, lk_model_options options);

typedef lk_tensor (*lk_model_function)(lk_tensor x, lk_model_options options);
LK_API lk_model_function  lk_model_find(const char *name); /* "mlp", "cnn", "resnet18", "resnet20"; NULL if unknown */
LK_API const char *const *lk_model_names(void);            /* NULL at the end */

LK_END_DECLS
#endif
