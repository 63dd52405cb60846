/* pin.c - threads of a rank run on the cores that `lockstep run` assigned to it. The launcher does not restrict the
 * process itself: other libraries take the affinity of a process for the number of cores that they may use (PyTorch's
 * DataLoader warns about its workers), and processes that a rank starts may use cores that are idle. */
#define _GNU_SOURCE
#include "base/pin.h"

#include "base/environment.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

static bool parse_cores(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (*text) {
        char *end;
        long  first = strtol(text, &end, 10), last = first;
        if (end == text || first < 0) return false;
        text = end;
        if (*text == '-') {
            last = strtol(text + 1, &end, 10);
            if (end == text + 1) return false;
            text = end;
        }
        if (last < first || last >= CPU_SETSIZE || (*text && *text != ',')) return false;
        for (long cpu = first; cpu <= last; cpu++) CPU_SET((int)cpu, set);
        text += *text == ',';
    }
    return CPU_COUNT(set) > 0;
}

void lk__pin_to_assigned(void)
{
    const char *text = lk__environment_text(NULL, LK__ENV_LOCKSTEP_CORES);
    cpu_set_t   assigned, allowed, both;
    if (!text || !parse_cores(text, &assigned)) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_AND(&both, &assigned, &allowed);
    if (!CPU_EQUAL(&both, &assigned) || CPU_EQUAL(&assigned, &allowed)) return;
    (void)sched_setaffinity(0, sizeof assigned, &assigned); /* it is slower without, and no less right */
}
