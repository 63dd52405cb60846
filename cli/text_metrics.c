/* text_metrics.c - perplexity, bits per byte, tokens per second, and model FLOP utilisation: the operations that the model needs (6 for
 * each parameter and token, and 12 · layers · width · length for attention) over those that large products reach on this machine: the CPU with this
 * rank's threads, or the GPU. */
#include "text_metrics.h"

#include "clock.h"

#include <math.h>
#include <stdlib.h>

enum { SIDE = 512, RUNS = 4 };

/* A program that multiplies two square matrices, one of them a parameter. */
static lk_status make_product(const setup *s, lk_graph **graph, lk_plan **plan, lk_store **store, lk_program **program)
{
    int64_t        dims[] = {SIDE, SIDE};
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_status      status = lk_graph_create(s->context, s->config.dtype, graph);
    if (status < 0) return status;
    lk_tensor x = lk_input(*graph, "x", s->config.dtype, 2, dims);
    lk_tensor y = lk_f_linear(x, lk_parameter(*graph, "w", 2, dims, .init = LK_INIT_NORMAL, .a = 1), (lk_tensor){0});
    config.outputs = &y;
    config.outputs_count = 1;
    config.policy = s->config.policy;
    if ((status = lk_plan_create(*graph, &config, plan)) < 0) return status;
    if ((status = lk_store_create(*plan, 1, store)) < 0) return status;
    return lk_program_create(*plan, *store, NULL, program);
}

/* The CPU's: a product runs too short for the host's clock on a GPU, which measures by its own. */
static double processor_peak(const setup *s)
{
    lk_graph   *graph = NULL;
    lk_plan    *plan = NULL;
    lk_store   *store = NULL;
    lk_program *program = NULL;
    double      best = 0;
    void       *x = calloc((size_t)SIDE * SIDE, lk_dtype_size(s->config.dtype));
    lk_step     step = {.step = 1, .count = SIDE};
    lk_status   status = x ? make_product(s, &graph, &plan, &store, &program) : LK_ENOMEM;
    if (status >= 0) status = lk_program_bind(program, "x", x);
    if (status >= 0) status = lk_program_step(program, &step);
    for (int i = 0; i < RUNS && status >= 0; i++) {
        double start = now();
        status = lk_program_run(program, LK_EVALUATE);
        double rate = 2.0 * SIDE * SIDE * SIDE / (now() - start);
        if (i > 0 && status >= 0 && rate > best) best = rate;
    }
    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    free(x);
    return best;
}

double text_metrics_peak(const setup *s, int world)
{
    lk_device_speed speed;
    lk_dtype        type = s->config.policy == LK_POLICY_BF16 ? LK_BF16 : s->config.dtype;
    lk_status       status = lk_device_measure(s->context, type, &speed);
    if (status == LK_EUNSUPPORTED) return world * processor_peak(s);
    return status < 0 ? 0 : world * speed.flops;
}

static void add_metric(lk_named_metric *all, int *count, const char *name, double value)
{
    all[(*count)++] = (lk_named_metric){.name = name, .sum = value, .weight = 1, .value = value};
}

int text_metrics_of_loss(const lk_dataset *data, double loss, lk_named_metric *out)
{
    double bytes = transformer_token_bytes(data);
    int    count = 0;
    add_metric(out, &count, "perplexity", exp(loss));
    if (bytes > 0) add_metric(out, &count, "bits_per_byte", loss / log(2) / bytes);
    return count;
}

lk_event text_metrics_add(text_metrics *m, const setup *s, const lk_event *event)
{
    lk_event           e = *event;
    const transformer *t = &s->transformer;
    int                count = 0;
    if (t->used && e.kind == LK_EVENT_RESUMED) m->tokens = e.samples * t->length;
    if (!t->used || (e.kind != LK_EVENT_STEP && e.kind != LK_EVENT_EVALUATED)) return e;
    for (; count < e.metrics_count; count++) m->all[count] = e.metrics[count];
    if (t->config.kind != LK_TRANSFORMER_ENCODER)
        count += text_metrics_of_loss(e.kind == LK_EVENT_STEP ? s->train : s->test, e.loss, m->all + count);
    if (e.kind == LK_EVENT_STEP) {
        double tokens = (double)(e.samples * t->length), rate = e.seconds > 0 ? tokens / e.seconds : 0;
        m->tokens += e.samples * t->length;
        add_metric(m->all, &count, "tokens_per_s", rate);
        add_metric(m->all, &count, "tokens", (double)m->tokens);
        if (m->peak > 0)
            add_metric(m->all, &count, "mfu", rate * lk_transformer_flops(&t->config, t->length) / m->peak);
    }
    e.metrics = m->all;
    e.metrics_count = count;
    return e;
}
