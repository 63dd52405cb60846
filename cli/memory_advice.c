/* memory_advice.c - what would make a run fit into a device's memory: the run is planned again, which allocates nothing, with --recompute
 * and with smaller micro-batches. */
#include "memory_advice.h"

#include "command.h"

#include <string.h>

typedef struct variant {
    int  accumulate; /* 0: as given */
    bool recompute;
} variant;

/* Bytes of the device's memory; 0: there is no such plan. Loaders and checkpoints are in the host's. */
static size_t variant_bytes(setup *s, variant v)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER,  LK_MEMORY_GRADIENTS,
                                      LK_MEMORY_OPTIMIZER,  LK_MEMORY_BUFFERS, LK_MEMORY_ACTIVATIONS,
                                      LK_MEMORY_WORKSPACE,  LK_MEMORY_STAGING};
    lk_trainer_config      config = s->config;
    lk_graph              *graph = NULL;
    lk_plan               *plan = NULL;
    size_t                 memory[LK_MEMORY_COUNT], bytes = 0;
    int64_t                blocks = s->transformer.config.recompute;
    bool                   again = s->model_options.recompute;
    if (v.accumulate) config.accumulate = v.accumulate;
    if (v.recompute) s->transformer.config.recompute = -1, s->model_options.recompute = true;
    if (lk_trainer_plan(s->context, &config, &graph, &plan, memory) >= 0)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) bytes += memory[kinds[i]];
    s->transformer.config.recompute = blocks;
    s->model_options.recompute = again;
    lk_plan_free(plan);
    lk_graph_free(graph);
    return bytes;
}

static bool can_recompute(const setup *s)
{
    if (s->transformer.used) return s->transformer.config.recompute == 0;
    return !s->model_options.recompute && strncmp(s->model_name, "resnet", 6) == 0;
}

/* Twice as many micro-batches until the plan fits, as long as each has a sample; those of the last that was tried. */
static variant find_accumulation(setup *s, bool recompute, size_t room, size_t *bytes)
{
    int     now = s->config.accumulate > 1 ? s->config.accumulate : 1;
    variant v = {now, recompute};
    int64_t share = lk_trainer_share(&s->config);
    for (int k = recompute ? now : 2 * now; k <= share && (*bytes == 0 || *bytes > room); k *= 2) {
        size_t next = variant_bytes(s, (variant){k, recompute});
        if (next == 0) break;
        *bytes = next;
        v.accumulate = k;
    }
    return v;
}

void memory_advise(setup *s, const char *name)
{
    size_t       available, total, recomputed = 0, accumulated = 0, both = 0;
    const double mib = 1048576.0;
    lk_context_device_memory(s->context, &available, &total);
    if (total == 0) return;
    const size_t room =
        available - available / 50; /* whole pages, and what libraries allocate when they are first used */
    if (can_recompute(s)) recomputed = variant_bytes(s, (variant){0, true});
    variant more = find_accumulation(s, false, room, &accumulated);
    bool    recompute_fits = recomputed > 0 && recomputed <= room, more_fits = accumulated > 0 && accumulated <= room;
    if (recompute_fits)
        print_note(name, "--recompute would fit: the plan then needs %.1f MiB, and %.1f MiB are free",
                   (double)recomputed / mib, (double)available / mib);
    if (more_fits)
        print_note(name, "--accumulate %d would fit: the plan then needs %.1f MiB, and %.1f MiB are free",
                   more.accumulate, (double)accumulated / mib, (double)available / mib);
    if (recompute_fits || more_fits) return;
    if (can_recompute(s)) more = find_accumulation(s, true, room, &both);
    if (both > 0 && both <= room) {
        print_note(name, "--accumulate %d --recompute would fit: the plan then needs %.1f MiB, and %.1f MiB are free",
                   more.accumulate, (double)both / mib, (double)available / mib);
        return;
    }
    size_t least = both ? both : accumulated;
    if (least)
        print_note(name,
                   "even --accumulate %d%s needs %.1f MiB, and %.1f MiB are free: a smaller model, or a GPU with more "
                   "memory, is needed",
                   more.accumulate, both ? " --recompute" : "", (double)least / mib, (double)available / mib);
    else
        print_note(name, "%.1f MiB are free: a smaller --batch or model needs less", (double)available / mib);
}
