/* loss.c - the losses of --loss. With a field "weight" each sample counts with its weight. */
#include "loss.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"cross_entropy", "mse", "l1", "bce"};

const char *loss_name(loss_kind kind) { return names[kind]; }

static int64_t count_outputs(loss_kind kind, const lk_field *label, const lk_field *target)
{
    if (kind == LOSS_CROSS_ENTROPY) return label->classes;
    return target ? lk_field_elements(target) : 1; /* bce of two classes */
}

int loss_choose(const char *command_name, const char *given, const loss_data *from, loss_kind *kind, int64_t *outputs)
{
    const char     *data = from->name;
    const lk_field *label = from->label, *target = from->target;
    bool            classes = label && label->rank == 0 && label->classes > 0;
    *kind = classes ? LOSS_CROSS_ENTROPY : LOSS_MSE;
    for (int i = 0; i < 4; i++)
        if (strcmp(given, names[i]) == 0) *kind = (loss_kind)i;
    const char *needs = *kind == LOSS_CROSS_ENTROPY && !classes ? "class labels (a field \"label\")"
                        : *kind == LOSS_BCE && !target && !(classes && label->classes == 2)
                            ? "targets from 0 to 1 (a field \"target\"), or labels of two classes"
                        : (*kind == LOSS_MSE || *kind == LOSS_L1) && !target ? "numbers to predict (a field \"target\")"
                                                                             : NULL;
    if (!label && !target && strcmp(given, "auto") == 0) {
        print_error(command_name, "the data set (%s) has no labels: expected a field \"label\" or \"target\"", data);
        return EXIT_USER_ERROR;
    }
    if (needs && label && label->rank > 0) {
        print_error(command_name,
                    "%s has %lld whole numbers as the label of each sample: use --loss bce to predict which of them "
                    "are 1, or --loss mse or l1 to predict the numbers",
                    data, (long long)lk_field_elements(label));
        return EXIT_USER_ERROR;
    }
    if (*kind == LOSS_CROSS_ENTROPY && !classes && target) {
        print_error(command_name,
                    "--loss cross_entropy needs one class number per sample, counted from 0; the labels of %s are not "
                    "integers, or each sample has several: use --loss mse or l1 to predict numbers",
                    data);
        return EXIT_USER_ERROR;
    }
    if (needs) {
        print_error(command_name, "--loss %s needs %s; the data set (%s) has none", names[*kind], needs, data);
        return EXIT_USER_ERROR;
    }
    if (target && target->dtype != LK_F32) {
        print_error(command_name, "--loss %s: the field \"target\" is %s; expected f32", names[*kind],
                    lk_dtype_name(target->dtype));
        return EXIT_USER_ERROR;
    }
    *outputs = count_outputs(*kind, label, target);
    return 0;
}

/* The first target of the data set that is not from 0 to 1. false: there is none. */
static bool find_invalid_target(const lk_dataset *d, const lk_field *target, float *values, double *invalid)
{
    int64_t elements = lk_field_elements(target);
    void   *fields[LK_MAX_FIELDS] = {0};
    for (int i = 0; i < lk_dataset_fields(d); i++)
        if (lk_dataset_field(d, i) == target) fields[i] = values;
    for (int64_t i = 0; i < lk_dataset_count(d) && lk_dataset_get(d, i, fields) == LK_OK; i++)
        for (int64_t k = 0; k < elements; k++)
            if (!(values[k] >= 0 && values[k] <= 1)) {
                *invalid = values[k];
                return true;
            }
    return false;
}

/* bce of other targets has no lower bound: training would diverge. */
static int check_targets(const char *command_name, const char *data, const lk_dataset *d)
{
    double          invalid = 0;
    const lk_field *target = lk_dataset_find(d, "target");
    float          *values = target ? calloc(1, lk_field_bytes(target)) : NULL;
    bool            found = values && find_invalid_target(d, target, values, &invalid);
    free(values);
    if (!found) return 0;
    print_error(command_name,
                "--loss bce needs targets from 0 to 1; %s has %g: use --loss mse or l1 to predict other numbers", data,
                invalid);
    return EXIT_USER_ERROR;
}

int loss_check_fields(const char *command_name, loss_kind kind, const char *data, const lk_dataset *d, bool read)
{
    const lk_field *weight = d ? lk_dataset_find(d, "weight") : NULL;
    if (weight && (weight->dtype != LK_F32 || weight->rank != 0)) {
        print_error(command_name,
                    "the field \"weight\" of %s is %s with %lld numbers for each sample; expected one floating-point "
                    "number per sample",
                    data, lk_dtype_name(weight->dtype), (long long)lk_field_elements(weight));
        return EXIT_USER_ERROR;
    }
    return d && read && kind == LOSS_BCE ? check_targets(command_name, data, d) : 0;
}

/* (N, outputs) as y is: the target, or the label of two classes as a number. */
static lk_tensor target_like(lk_tensor y, const lk_inputs *inputs)
{
    bool      target = lk_inputs_has(inputs, "target");
    lk_tensor t = lk_inputs_find(inputs, target ? "target" : "label");
    if (!target) t = lk_cast(t, lk_graph_dtype(inputs->graph));
    return lk_reshape(t, 2, ((int64_t[]){-1, lk_tensor_dim(y, -1)}));
}

/* The mean over samples of their means over outputs, weighted. */
static lk_tensor mean_loss(lk_tensor each, lk_tensor weight)
{
    lk_tensor samples = lk_mean(each, .axes = (int[]){1}, .axes_count = 1);
    return lk_loss(lk_mul(samples, weight), .weight = weight);
}

static lk_tensor record_regression(loss_kind kind, lk_tensor y, lk_tensor target, const lk_inputs *inputs)
{
    lk_tensor difference = lk_sub(y, target);
    lk_tensor magnitude = lk_add(lk_relu(difference), lk_relu(lk_scale(difference, -1)));
    lk_metric(magnitude, "mae");
    if (!lk_inputs_has(inputs, "weight")) return kind == LOSS_MSE ? lk_mse(y, target) : lk_l1(y, target);
    lk_tensor weight = lk_inputs_find(inputs, "weight");
    return mean_loss(kind == LOSS_MSE ? lk_mul(difference, difference) : magnitude, weight);
}

static lk_tensor record_bce(lk_tensor y, lk_tensor target, const lk_inputs *inputs)
{
    lk_tensor predicted = lk_clamp(lk_scale(lk_stop_gradient(y), 1e30), 0, 1); /* 1 above 0, else 0 */
    lk_metric(lk_equal(predicted, target), "accuracy");
    if (!lk_inputs_has(inputs, "weight")) return lk_bce_with_logits(y, target);
    return lk_bce_with_logits(y, target, .weight = lk_inputs_find(inputs, "weight"));
}

/* The output must be (N, outputs): a model of the user's own may return anything. */
static bool check_output(loss_kind kind, lk_tensor y, const lk_inputs *inputs, int64_t outputs)
{
    const char *what = kind == LOSS_CROSS_ENTROPY ? "classes" : "numbers to predict";
    if (lk_graph_status(inputs->graph) < 0) return false;
    if (y.graph != inputs->graph) {
        lk_graph_fail(inputs->graph, "the model must return a tensor computed from its input");
        return false;
    }
    if (lk_tensor_rank(y) != 2) {
        lk_graph_fail(inputs->graph,
                      "the model returns a tensor with %d axes; expected (N, %lld), since the data has %lld %s",
                      lk_tensor_rank(y), (long long)outputs, (long long)outputs, what);
        return false;
    }
    int64_t has = lk_tensor_dim(y, -1);
    if (kind == LOSS_CROSS_ENTROPY ? has >= outputs : has == outputs) return true;
    lk_graph_fail(inputs->graph, "the model returns (N, %lld), but the data has %lld %s: expected (N, %lld)",
                  (long long)has, (long long)outputs, what, (long long)outputs);
    return false;
}

lk_tensor loss_record(loss_kind kind, lk_tensor y, const lk_inputs *inputs, int64_t outputs, double label_smoothing)
{
    if (!check_output(kind, y, inputs, outputs)) return y;
    if (kind == LOSS_CROSS_ENTROPY) {
        lk_tensor label = lk_inputs_find(inputs, "label");
        lk_tensor weight = lk_inputs_has(inputs, "weight") ? lk_inputs_find(inputs, "weight") : (lk_tensor){0};
        if (lk_inputs_has(inputs, "mix"))
            return lk_mixup_loss(y, label, lk_inputs_find(inputs, "label_2"), lk_inputs_find(inputs, "mix"),
                                 .label_smoothing = label_smoothing, .weight = weight);
        return lk_cross_entropy(y, label, .label_smoothing = label_smoothing, .weight = weight);
    }
    if (lk_inputs_has(inputs, "mix")) {
        lk_graph_fail(inputs->graph, "--mixup needs --loss cross_entropy; %s has no labels to mix", names[kind]);
        return y;
    }
    lk_tensor target = target_like(y, inputs);
    return kind == LOSS_BCE ? record_bce(y, target, inputs) : record_regression(kind, y, target, inputs);
}

lk_tensor loss_prediction(loss_kind kind, lk_tensor y)
{
    return kind == LOSS_CROSS_ENTROPY ? lk_softmax(y, -1) : kind == LOSS_BCE ? lk_sigmoid(y) : y;
}
