/* mixup.c - the loss of mixed samples. Labels become rows of probabilities, which mix as the samples did. */
#include <lockstep/nn.h>
#include <stdlib.h>

static lk_tensor as_column(lk_site site, lk_tensor x) { return lk_reshape_at(site, x, 2, (int64_t[]){-1, 1}); }

/* 0, 1, … classes-1 */
static lk_tensor class_numbers(lk_site site, lk_graph *graph, int64_t classes)
{
    int32_t *numbers = malloc((size_t)classes * sizeof *numbers);
    if (!numbers) {
        lk_graph_fail(graph, "mixup: out of memory: cannot allocate %lld class numbers", (long long)classes);
        return (lk_tensor){graph, -1};
    }
    for (int64_t i = 0; i < classes; i++) numbers[i] = (int32_t)i;
    lk_tensor constant = lk_constant_at(site, graph, LK_I32, 1, &classes, numbers);
    free(numbers);
    return constant;
}

/* A number of the graph's type. */
static lk_tensor single_number(lk_site site, lk_graph *graph, double value)
{
    float       narrow = (float)value;
    const void *data = lk_graph_dtype(graph) == LK_F64 ? (const void *)&value : &narrow;
    return lk_constant_at(site, graph, lk_graph_dtype(graph), 0, NULL, data);
}

lk_tensor lk_mixup_loss_at(lk_site site, lk_tensor logits, lk_tensor label, lk_tensor label_2, lk_tensor mix,
                           lk_mixup_options options)
{
    lk_graph *g = logits.graph;
    if (!g || lk_graph_status(g) < 0) return logits;
    int64_t   classes = lk_tensor_dim(logits, -1);
    lk_tensor numbers = class_numbers(site, g, classes), first = as_column(site, mix);
    lk_tensor rest = lk_sub_at(site, single_number(site, g, 1), first);
    lk_tensor p = lk_add_at(site, lk_mul_at(site, lk_equal_at(site, as_column(site, label), numbers), first),
                            lk_mul_at(site, lk_equal_at(site, as_column(site, label_2), numbers), rest));
    if (options.label_smoothing > 0)
        p = lk_add_at(site, lk_scale_at(site, p, 1 - options.label_smoothing),
                      single_number(site, g, options.label_smoothing / (double)classes));
    lk_tensor each = lk_sum_at(site, lk_mul_at(site, p, lk_log_softmax_at(site, logits, -1)),
                               (lk_reduce_options){.axes = (int[]){1}, .axes_count = 1}); /* (N) */
    each = lk_scale_at(site, each, -1);
    lk_metric_at(
        site, lk_equal_at(site, lk_argmax_at(site, lk_stop_gradient_at(site, logits), -1, (lk_axis_options){0}), label),
        "accuracy", (lk_total_options){0});
    if (!options.weight.graph) return lk_loss_at(site, each, (lk_total_options){0});
    return lk_loss_at(site, lk_mul_at(site, each, options.weight), (lk_total_options){.weight = options.weight});
}
