/* model_default.c - finds the config.json beside the weights. */
#include "model_default.h"

#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int model_default(const char *name, options *given)
{
    static const char *const weights[] = {"init", "init-partial", "load"};
    static char              path[4096]; /* options borrow their values */
    for (size_t i = 0; i < sizeof weights / sizeof *weights && !options_given(given, "model"); i++) {
        const char *directory = options_known(given, weights[i]) ? options_text(given, weights[i]) : NULL;
        if (!directory) continue;
        if (access(directory, F_OK) != 0) {
            print_error(name, "--%s %s: %s", weights[i], directory, strerror(errno));
            return EXIT_USER_ERROR;
        }
        if (snprintf(path, sizeof path, "%s/config.json", directory) < (int)sizeof path && access(path, R_OK) == 0)
            (void)options_set(given, "model", path, "the directory with the weights");
    }
    return 0;
}
