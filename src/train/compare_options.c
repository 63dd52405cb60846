/* compare_options.c - what must be equal on all ranks, in lines of text: the options (train/options.h), and settings
 * that are not options. Ranks with different numbers of steps would wait for each other, and ranks with different
 * learning rates would diverge: such a group does not start. */
#include "train/trainer.h"

#include "base/hash.h"
#include "graph/optimizer.h"
#include "train/options.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 2 * LK__VERIFY_LINE, RATES = 64 }; /* a difference behind LK__VERIFY_LINE bytes is found, and not shown */

static void describe_data(const char *what, const lk_dataset *d, char text[LINE])
{
    size_t used = (size_t)snprintf(text, LINE, "%s: ", what);
    if (!d) {
        snprintf(text + used, LINE - used, "none");
        return;
    }
    used += (size_t)snprintf(text + used, LINE - used, "%lld samples", (long long)lk_dataset_count(d));
    for (int i = 0; i < lk_dataset_fields(d) && used < LINE; i++) {
        const lk_field *f = lk_dataset_field(d, i);
        used += (size_t)snprintf(text + used, LINE - used, "; %.60s %s", f->name, lk_dtype_name(f->dtype));
        for (int k = 0; k < f->rank && used < LINE; k++)
            used += (size_t)snprintf(text + used, LINE - used, "%s%lld", k ? "x" : " ", (long long)f->dims[k]);
        if (f->classes && used < LINE) used += (size_t)snprintf(text + used, LINE - used, " of %d classes", f->classes);
    }
}

/* Rates of the caller's schedule at steps spread over the run, both ends included: ranks whose callbacks differ
 * would diverge. */
static void describe_callback(const lk_trainer_config *config, char text[LINE])
{
    int64_t  steps = lk__trainer_steps(config), count = steps < RATES ? steps : RATES;
    uint64_t hash = 17;
    double   first = 0, last = 0;
    for (int64_t i = 0; config->schedule_callback && i < count; i++) {
        last = lk__trainer_rate(
            config, count > 1 ? (int64_t)((double)i * (double)(steps - 1) / (double)(count - 1)) : 0, steps);
        if (i == 0) first = last;
        hash = lk__hash64(&last, sizeof last, hash);
    }
    snprintf(text, LINE, "schedule callback %d: first rate %.17g, last rate %.17g, %lld rates (%016llx)",
             config->schedule_callback != NULL, first, last, (long long)count, (unsigned long long)hash);
}

static void describe_batch(const lk_trainer_config *config, char text[LINE])
{
    const char *products = lk_matmul_precision_name(config->matmul_precision);
    snprintf(
        text, LINE,
        "batch %lld, seed %llu, dtype %s, policy %s, gradients in %s, matmul precision %s, accumulate %d, "
        "leaves %d, reproducible layout %d, synchronised batch norm %d, bucket bytes %zu, keep cores %d, whole batches "
        "%d",
        (long long)config->batch, (unsigned long long)config->seed, lk_dtype_name(config->dtype),
        lk_policy_name(config->policy), lk_dtype_name(config->gradient_dtype), products ? products : "?",
        config->accumulate > 1 ? config->accumulate : 1, config->leaves, config->reproducible_layout != 0,
        config->sync_batch_norm, config->bucket_bytes, config->keep_cores != 0, config->whole_batches != 0);
}

/* Before all others: what ranks of another mesh have differs in much else, too. */
static void describe_mesh(const lk_trainer_config *config, char text[LINE])
{
    lk__mesh_grid mesh = lk__trainer_mesh(config);
    char          axes[LK__MESH_TEXT];
    size_t        used = (size_t)snprintf(text, LINE, "mesh %s", lk__mesh_format(&mesh, axes));
    size_t        length = config->tactics ? strlen(config->tactics) : 0;
    if (length)
        used += (size_t)snprintf(text + used, LINE - used, ", tactics of %zu bytes (%016llx)", length,
                                 (unsigned long long)lk__hash64(config->tactics, length, 1));
    if (lk__mesh_extent(&mesh, LK_AXIS_PIPELINE) > 1)
        snprintf(text + used, LINE - used, ", pipeline schedule %d, stages %.200s", (int)config->pipeline_schedule,
                 config->stages ? config->stages : "by cost");
}

static void describe_optimizer(const lk_trainer_config *config, char text[LINE])
{
    char optimizer[LINE - sizeof "optimizer "];
    snprintf(text, LINE, "optimizer %s", lk__optimizer_text(&config->optimizer, optimizer, sizeof optimizer));
}

static void describe_schedule(const lk_trainer_config *config, char text[LINE])
{
    const lk_schedule *s = &config->schedule;
    snprintf(text, LINE, "schedule %d, total %lld, minimum %.17g", s->kind, (long long)s->total, s->minimum);
}

static void describe_transform(const lk_trainer_config *config, char text[LINE])
{
    const lk_transform *m = &config->transform;
    size_t              channels = m->channels > 0 && m->channels <= LK_MAX_CHANNELS ? (size_t)m->channels : 0;
    snprintf(text, LINE,
             "transform: %d channels of mean and deviation (%016llx), raw %d, ratio %.17g to %.17g, mixup fields %d",
             m->channels,
             (unsigned long long)lk__hash64(m->std, channels * sizeof *m->std,
                                            lk__hash64(m->mean, channels * sizeof *m->mean, 1)),
             m->raw, m->resized_ratio[0], m->resized_ratio[1], m->mixup_fields);
}

static void describe_training_data(const lk_trainer_config *config, char text[LINE])
{
    describe_data("training data", config->train, text);
}

static void describe_test_data(const lk_trainer_config *config, char text[LINE])
{
    describe_data("test data", config->test, text);
}

/* What is not an option by itself (LK__FIELD_COMPARED): before the options, and behind them what follows from some
 * of them. */
typedef void (*description)(const lk_trainer_config *config, char text[LINE]);
static const description first[] = {describe_mesh, describe_training_data, describe_test_data, describe_batch},
                         last[] = {describe_optimizer, describe_schedule, describe_transform, describe_callback};
enum { FIRST = sizeof first / sizeof *first, LAST = sizeof last / sizeof *last };

/* The last lines are the optimizer's groups. False: past them. */
static bool option_line(const lk_trainer_config *config, int index, char text[LINE])
{
    if (index < FIRST) {
        first[index](config, text);
        return true;
    }
    if (lk__train_options_print(config, index -= FIRST, text, LINE)) return true;
    for (int list = 0; lk__train_options_print(config, list, text, LINE); list++) index--;
    if (index < LAST) {
        last[index](config, text);
        return true;
    }
    if ((index -= LAST) >= config->optimizer.groups_count) return false;
    const lk_parameter_group *g = &config->optimizer.groups[index];
    snprintf(text, LINE, "group \"%.120s\": rate × %.17g, weight decay %.17g, frozen %d", g->match, g->lr_scale,
             g->weight_decay, g->frozen);
    return true;
}

lk_status lk__trainer_compare_options(lk_context *c, const lk_trainer_config *config)
{
    char     text[LINE];
    uint64_t whole = 11;
    int      different;
    if (!config->comm || lk_comm_size(config->comm) == 1) return LK_OK;
    for (int i = 0; option_line(config, i, text); i++) whole = lk__hash64(text, strlen(text), whole);
    lk_status status = lk__find_different(c, config->comm, whole, &different);
    if (status < 0 || different < 0) return status;
    for (int i = 0;; i++) { /* every rank gets the same results, and some line differs */
        if (!option_line(config, i, text)) snprintf(text, LINE, "(no more groups)");
        status = lk__find_different(c, config->comm, lk__hash64(text, strlen(text), 13), &different);
        if (status < 0) return status;
        if (different >= 0)
            return lk__report_difference(c, config->comm, text, different,
                                         "the ranks were started with different options; they first differ in");
    }
}
