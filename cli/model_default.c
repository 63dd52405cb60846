/* model_default.c - finds the config.json beside the weights. */
#include "model_default.h"

#include <stdio.h>
#include <unistd.h>

void model_default(options *given)
{
    static const char *const weights[] = {"init", "init-partial", "load"};
    static char              path[4096]; /* options borrow their values */
    for (size_t i = 0; i < sizeof weights / sizeof *weights && !options_given(given, "model"); i++) {
        const char *directory = options_known(given, weights[i]) ? options_text(given, weights[i]) : NULL;
        if (!directory || snprintf(path, sizeof path, "%s/config.json", directory) >= (int)sizeof path) continue;
        if (access(path, R_OK) == 0) (void)options_set(given, "model", path, "the directory with the weights");
    }
}
