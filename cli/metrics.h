/* metrics.h - prints the metrics of a step or an evaluation. */
#ifndef METRICS_H
#define METRICS_H

#include "json.h"

#include <lockstep.h>

enum { METRICS_TEXT = 512 };
/* ", accuracy 91.20 %, mae 0.0123": `before` and a metric, as many as fit; empty where there are none. */
const char *metrics_text(const lk_named_metric *metrics, int count, const char *before, char text[METRICS_TEXT]);
void        metrics_json(json *j, const lk_named_metric *metrics, int count); /* a number of each name */

#endif
