/* text_metrics.c - perplexity, bits per byte, tokens per second, and model FLOP utilisation: the operations that the
 * model needs (6 for each parameter and token, and 12 · layers · width · length for attention) over those that the
 * machine can do: multiply-adds of all threads of the CPU, or large products of the GPU. */
#include "text_metrics.h"

#include <math.h>

/* A CPU that other programs used meanwhile seems slower than it is: it is measured again when a step exceeds it. */
enum { MEASUREMENTS = 3 };

static double measure_peak(const setup *s, int world)
{
    lk_device_speed speed;
    lk_dtype        type = lk_policy_dtype(s->config.policy, s->config.dtype);
    lk_status       status = lk_device_measure(s->context, type, &speed);
    if (status == LK_EUNSUPPORTED) return world * lk_context_peak(s->context, type);
    return status < 0 ? 0 : world * speed.flops;
}

void text_metrics_measure(text_metrics *m, const setup *s, int world)
{
    m->world = world;
    m->measured++;
    m->peak = fmax(m->peak, measure_peak(s, world));
}

double text_metrics_utilisation(text_metrics *m, const setup *s, double tokens_per_s)
{
    double flops = tokens_per_s * lk_transformer_flops(&s->transformer.config, s->transformer.length);
    while (m->peak > 0 && flops > m->peak && m->measured < MEASUREMENTS) text_metrics_measure(m, s, m->world);
    return m->peak > 0 && flops <= m->peak ? flops / m->peak : (double)NAN;
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
    if (t->config.kind != LK_TRANSFORMER_ENCODER) {
        /* where another loss is added to it, a metric */
        const lk_named_metric *entropy = lk_metrics_find(e.metrics, e.metrics_count, "cross_entropy");
        count += text_metrics_of_loss(e.kind == LK_EVENT_STEP ? s->train : s->test, entropy ? entropy->value : e.loss,
                                      m->all + count);
    }
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
