/* inputs.c - the inputs of a program: one for each field of a batch, by the field's name; and the short form of a
 * loss. */
#include "train/trainer.h"

#include "data/transform.h"

#include <lockstep/nn.h>
#include <stdio.h>
#include <string.h>

lk_status lk_inputs_record(lk_graph *graph, const lk_loader_config *loader, int64_t capacity, lk_inputs *inputs)
{
    lk_loader_config own;
    lk_status        status = lk__loader_read(graph->context, loader, &own);
    *inputs = (lk_inputs){.graph = graph};
    if (status < 0) return status;
    lk_field field;
    for (int i = 0; lk_loader_field(&own, i, &field); i++) {
        lk_field *f = &inputs->fields[i];
        int64_t   dims[LK_MAX_RANK] = {capacity};
        *f = field;
        memcpy(dims + 1, f->dims, (size_t)f->rank * sizeof *dims);
        inputs->tensors[i] = lk_input(graph, f->name, f->dtype, f->rank + 1, dims);
        inputs->count++;
    }
    return lk_graph_status(graph);
}

static int find_field(const lk_inputs *inputs, const char *name)
{
    for (int i = 0; i < inputs->count; i++)
        if (strcmp(inputs->fields[i].name, name) == 0) return i;
    return -1;
}

bool lk_inputs_has(const lk_inputs *inputs, const char *name) { return find_field(inputs, name) >= 0; }

lk_tensor lk_inputs_find(const lk_inputs *inputs, const char *name)
{
    const char *names[LK_MAX_FIELDS];
    char        all[512] = "";
    size_t      used = 0;
    int         found = find_field(inputs, name);
    if (found >= 0) return inputs->tensors[found];
    for (int i = 0; i < inputs->count; i++) {
        names[i] = inputs->fields[i].name;
        if (used < sizeof all) used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *suggestion = lk__suggest(name, names, (size_t)inputs->count);
    lk_graph_fail(inputs->graph, "a sample has no field \"%s\"%s%s%s; its fields are %s", name,
                  suggestion ? " (did you mean " : "", suggestion ? suggestion : "", suggestion ? "?)" : "", all);
    return (lk_tensor){inputs->graph, -1};
}

lk_status lk_batch_bind(const lk_batch *batch, lk_program *program)
{
    lk_status status = LK_OK;
    for (int i = 0; i < batch->fields_count && status >= 0; i++)
        status = lk_program_bind(program, batch->about[i].name, batch->fields[i]);
    return status;
}

/* ---- the short form: a model of field 0, cross-entropy with the field "label" ---- */

/* Checks what the model returned: it must be (samples, classes), of this graph. */
static lk_status check_logits(const lk_inputs *inputs, lk_tensor logits, int classes)
{
    const lk_graph *graph = inputs->graph;
    lk_context     *c = graph->context;
    int             line = lk__empty_line(logits);
    char            shape[128], where[64] = "";
    if (line) snprintf(where, sizeof where, "; the first call on an empty tensor is on line %d", line);
    if (!logits.graph)
        return lk__fail(c, LK_EINVAL, "the model returned no tensor: it must return logits (N, %d)%s", classes, where);
    if (logits.graph != graph || logits.id < 0 || (size_t)logits.id >= graph->values_count)
        return lk__fail(c, LK_EINVAL, "the model returned a tensor that does not belong to the graph of its input");
    const lk__graph_value *v = &graph->values[logits.id];
    if (v->shape.rank == 2 && v->shape.dims[1] >= classes) return LK_OK;
    lk__shape_text(&v->shape, shape, sizeof shape);
    return lk__fail(
        c, LK_EMISMATCH,
        "%s:%d: the model returns %s; labels of %d classes need logits (N, classes) with at least %d classes",
        v->site.file ? v->site.file : "?", v->site.line, shape, classes, classes);
}

static lk_status record_short_form(const lk_trainer_config *config, const lk_inputs *inputs, lk_tensor *loss)
{
    lk_tensor x = inputs->tensors[0];
    lk_tensor logits = config->model ? config->model(x) : config->model_with(x, config->model_user);
    int       label = find_field(inputs, "label");
    if (lk_graph_status(inputs->graph) == LK_OK) {
        lk_status status = check_logits(inputs, logits, inputs->fields[label].classes);
        if (status < 0) return status;
    }
    if (lk__transform_mixes(&config->transform))
        *loss = lk_mixup_loss(logits, inputs->tensors[label], lk_inputs_find(inputs, "label_2"),
                              lk_inputs_find(inputs, "mix"), .label_smoothing = config->label_smoothing);
    else
        *loss = lk_cross_entropy(logits, inputs->tensors[label], .label_smoothing = config->label_smoothing);
    return LK_OK;
}

/* Whether the plan takes it apart, or refuses it with a better reason than that it has no weight. */
static bool is_sum_of_losses(lk_tensor loss)
{
    lk__graph_term    terms[LK_MAX_LOSSES];
    int               count, at;
    lk__graph_reasons reason = lk__graph_terms(loss.graph, loss.id, terms, &count, &at);
    return count > 0 || reason != LK__TERMS_KNOWN;
}

lk_status lk__trainer_record(const lk_trainer_config *config, const lk_inputs *inputs, lk_tensor *loss)
{
    if (!config->loss) return record_short_form(config, inputs, loss);
    *loss = config->loss(inputs, config->model_user);
    if (lk_graph_status(inputs->graph) < 0) return LK_OK;
    if (loss->graph == inputs->graph && !is_sum_of_losses(*loss) && lk__graph_lacks_weight(loss->graph, loss->id)) {
        const lk_site *site = &loss->graph->values[loss->id].site;
        return lk__fail(
            inputs->graph->context, LK_EINVAL,
            "%s:%d: the loss is summed or averaged over samples, so it would change with the number of ranks: return "
            "lk_loss of a value for each sample, a loss such as lk_cross_entropy, or a sum of these",
            site->file, site->line);
    }
    if (loss->graph == inputs->graph) return LK_OK;
    int  line = lk__empty_line(*loss);
    char where[64] = "";
    if (line) snprintf(where, sizeof where, "; the first call on an empty tensor is on line %d", line);
    return lk__fail(inputs->graph->context, LK_EINVAL,
                    "the loss function did not return a tensor of the same graph as its inputs%s", where);
}

lk_status lk__trainer_check_fields(lk_context *c, const lk_trainer_config *config)
{
    const lk_dataset *data = config->train ? config->train : config->test;
    const lk_field   *label = lk_dataset_find(data, "label");
    if (!config->loss && (!label || label->classes < 1 || label->rank != 0))
        return lk__fail(c, LK_EINVAL,
                        "the data set has no classes to learn: a trainer with `model` needs a field \"label\" with "
                        "class numbers; set `loss` for other fields");
    if (!config->train || !config->test) return LK_OK;
    for (int i = 0; i < lk_dataset_fields(config->train) || i < lk_dataset_fields(config->test); i++) {
        const lk_field *a = lk_dataset_field(config->train, i), *b = lk_dataset_field(config->test, i);
        if (a && b && strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
            memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0 && b->classes <= a->classes)
            continue;
        return lk__fail(c, LK_EMISMATCH,
                        "the test set differs from the training set in field %d (%s): it has a different name, type or "
                        "shape, or more classes",
                        i, a ? a->name : b->name);
    }
    return LK_OK;
}
