/* memory_advice.c - what would make a run fit into the memory of the GPU, or of the host with all its ranks: the run is
 * planned again, which allocates nothing, with --recompute, with smaller micro-batches, and with fewer ranks. */
#include "memory_advice.h"

#include "command.h"
#include "host_memory.h"

#include <string.h>

typedef struct variant {
    int  accumulate; /* 0: as given */
    bool recompute;
    int  ranks; /* 0: as given */
} variant;

static size_t device_bytes(const setup *s, const lk_trainer_config *config)
{
    static const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER,  LK_MEMORY_GRADIENTS,
                                      LK_MEMORY_OPTIMIZER,  LK_MEMORY_BUFFERS, LK_MEMORY_ACTIVATIONS,
                                      LK_MEMORY_WORKSPACE,  LK_MEMORY_STAGING};
    lk_graph              *graph = NULL;
    lk_plan               *plan = NULL;
    size_t                 memory[LK_MEMORY_COUNT], bytes = 0;
    if (lk_trainer_plan(s->context, config, &graph, &plan, memory) >= 0)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) bytes += memory[kinds[i]];
    lk_plan_free(plan);
    lk_graph_free(graph);
    return bytes;
}

/* Bytes of the GPU's memory, or of the host's with all ranks; 0: there is no such plan. */
static size_t variant_bytes(setup *s, variant v)
{
    lk_trainer_config config = s->config;
    int64_t           blocks = s->transformer.config.recompute;
    bool              again = s->model_options.recompute;
    if (v.accumulate) config.accumulate = v.accumulate;
    if (v.recompute) s->transformer.config.recompute = -1, s->model_options.recompute = true;
    if (v.ranks) config.plan_world = v.ranks, config.mesh = NULL;
    size_t bytes = host_memory_used(s->context) ? host_memory_plan(s->context, &config).host : device_bytes(s, &config);
    s->transformer.config.recompute = blocks;
    s->model_options.recompute = again;
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
    variant v = {.accumulate = now, .recompute = recompute};
    int64_t share = s->config.leaves ? 0 : lk_trainer_share(&s->config);
    for (int k = recompute ? now : 2 * now; k <= share && (*bytes == 0 || *bytes > room); k *= 2) {
        size_t next = variant_bytes(s, (variant){.accumulate = k, .recompute = recompute});
        if (next == 0) break;
        *bytes = next;
        v.accumulate = k;
    }
    return v;
}

/* The most ranks of half as many, a quarter and so on that fit; 0: none do, or their number is not this command's to
 * choose. */
static int find_ranks(setup *s, size_t room, size_t *bytes)
{
    for (int ranks = s->config.comm || !host_memory_used(s->context) ? 0 : s->config.plan_world / 2; ranks > 0;
         ranks /= 2)
        if ((*bytes = variant_bytes(s, (variant){.ranks = ranks})) > 0 && *bytes <= room) return ranks;
    return 0;
}

static bool advise(const char *name, const char *options, size_t bytes, size_t room, size_t available)
{
    char need[SIZE_TEXT], have[SIZE_TEXT];
    if (bytes == 0 || bytes > room) return false;
    print_note(name, "%s would fit: the plan then needs %s, and %s are free", options, size_text(bytes, need),
               size_text(available, have));
    return true;
}

static bool find_room(const setup *s, size_t *available, size_t *room)
{
    lk_limits limits;
    size_t    total;
    if (host_memory_used(s->context)) {
        lk_limits_read(&limits);
        *available = *room = limits.available;
        return limits.available < SIZE_MAX;
    }
    lk_context_device_memory(s->context, available, &total);
    *room = *available - *available / 50; /* whole pages, and what libraries allocate when they are first used */
    return total > 0;
}

void memory_advise(setup *s, const char *name, lk_status status)
{
    size_t available, room, bytes = 0, recomputed = 0, accumulated = 0, both = 0;
    char   text[64], need[SIZE_TEXT], have[SIZE_TEXT];
    /* an allocation of the host's memory that fails has another cause: a limit of the process */
    bool larger = status == LK_ETOOLARGE || (status == LK_ENOMEM && !host_memory_used(s->context));
    if (!larger || !find_room(s, &available, &room)) return;
    if (can_recompute(s)) recomputed = variant_bytes(s, (variant){.recompute = true});
    variant more = find_accumulation(s, false, room, &accumulated);
    bool    found = advise(name, "--recompute", recomputed, room, available);
    snprintf(text, sizeof text, "--accumulate %d", more.accumulate);
    found |= advise(name, text, accumulated, room, available);
    snprintf(text, sizeof text, "-n %d", find_ranks(s, room, &bytes));
    found |= strcmp(text, "-n 0") != 0 && advise(name, text, bytes, room, available);
    if (found) return;
    if (can_recompute(s)) more = find_accumulation(s, true, room, &both);
    snprintf(text, sizeof text, "--accumulate %d%s", more.accumulate, both ? " --recompute" : "");
    size_t least = both ? both : accumulated;
    if (advise(name, text, both, room, available)) return;
    if (least && least < variant_bytes(s, (variant){0}))
        print_note(name, "even %s needs %s, but %s are free: use a smaller model or a %s with more memory", text,
                   size_text(least, need), size_text(available, have),
                   host_memory_used(s->context) ? "machine" : "GPU");
    else
        print_note(name, "%s are free: use a smaller --batch or model", size_text(available, have));
}
