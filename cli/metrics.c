/* metrics.c - metrics as text and as JSON. An accuracy is a fraction, shown in percent. */
#include "metrics.h"

#include <string.h>

const char *metrics_text(const lk_named_metric *metrics, int count, const char *before, char text[METRICS_TEXT])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        bool   fraction = strcmp(metrics[i].name, "accuracy") == 0;
        size_t length = (size_t)snprintf(text + used, METRICS_TEXT - used, fraction ? "%s%s %.2f %%" : "%s%s %.4g",
                                         before, metrics[i].name, fraction ? 100 * metrics[i].value : metrics[i].value);
        if (length >= METRICS_TEXT - used) { /* no part of a metric */
            text[used] = 0;
            break;
        }
        used += length;
    }
    return text;
}

void metrics_json(json *j, const lk_named_metric *metrics, int count)
{
    for (int i = 0; i < count; i++) json_number(j, metrics[i].name, metrics[i].value);
}
