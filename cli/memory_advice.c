/* memory_advice.c - what would make a run fit into the memory of the GPU, or of the host with all its ranks: the run is
 * planned again, which allocates nothing, with --recompute, with smaller micro-batches, with other axes, and with fewer
 * ranks. */
#include "memory_advice.h"

#include "command.h"
#include "host_memory.h"

#include <lockstep/launch.h>

#include <string.h>

typedef struct variant {
    int            accumulate; /* 0: as given */
    bool           recompute;
    int            ranks; /* 0: as given */
    const lk_mesh *mesh;  /* of as many ranks; NULL: as given */
} variant;

/* What a plan must fit into. */
typedef struct budget {
    size_t available, room; /* bytes; room: those that plans are compared with */
    bool   process;         /* of one rank (ulimit -v), not of all on the host */
} budget;

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

static size_t host_bytes(const setup *s, const lk_trainer_config *config, bool process)
{
    host_memory m = host_memory_plan(s->context, config);
    return process ? m.rank + m.common : m.host;
}

/* Bytes of the GPU's memory, of the host's with all ranks, or of one process; 0: there is no such plan. */
static size_t variant_bytes(setup *s, const budget *b, variant v)
{
    lk_trainer_config config = s->config;
    int64_t           blocks = s->transformer.config.recompute;
    bool              again = s->model_options.recompute;
    if (v.accumulate) config.accumulate = v.accumulate;
    if (v.recompute) s->transformer.config.recompute = -1, s->model_options.recompute = true;
    if (v.ranks) config.plan_world = v.ranks, config.mesh = NULL;
    if (v.mesh) config.mesh = v.mesh;
    size_t bytes = host_memory_used(s->context) ? host_bytes(s, &config, b->process) : device_bytes(s, &config);
    s->transformer.config.recompute = blocks;
    s->model_options.recompute = again;
    return bytes;
}

static bool can_recompute(const setup *s)
{
    if (s->transformer.used) return s->transformer.config.recompute == 0;
    return !s->model_options.recompute && strncmp(s->model_name, "resnet", 6) == 0;
}

/* Twice as many micro-batches until the plan fits, as long as each has a sample, or a leaf; those of the last that was
 * tried. */
static variant find_accumulation(setup *s, const budget *b, bool recompute, size_t *bytes)
{
    int     now = s->config.accumulate > 1 ? s->config.accumulate : 1;
    variant v = {.accumulate = now, .recompute = recompute};
    int64_t share = lk_trainer_share(&s->config);
    for (int k = recompute ? now : 2 * now; k <= share && (*bytes == 0 || *bytes > b->room); k *= 2) {
        size_t next = variant_bytes(s, b, (variant){.accumulate = k, .recompute = recompute});
        if (next == 0) break;
        *bytes = next;
        v.accumulate = k;
    }
    return v;
}

/* The most ranks of half as many, a quarter and so on that fit; 0: none do, or their number is not this command's to
 * choose. */
static int find_ranks(setup *s, const budget *b, size_t *bytes)
{
    for (int ranks = s->config.comm || !host_memory_used(s->context) ? 0 : s->config.plan_world / 2; ranks > 0;
         ranks /= 2)
        if ((*bytes = variant_bytes(s, b, (variant){.ranks = ranks})) > 0 && *bytes <= b->room) return ranks;
    return 0;
}

/* Plans the axes; true: they fit. */
static bool fits_mesh(setup *s, const budget *b, const char *axes, size_t *bytes)
{
    lk_mesh_config about = LK_MESH_CONFIG_INIT;
    lk_mesh       *mesh = NULL;
    about.axes = axes;
    about.rank = s->config.comm ? lk_comm_rank(s->config.comm) : 0;
    *bytes = 0;
    if (lk_mesh_create(s->context, &about, &mesh) >= 0) *bytes = variant_bytes(s, b, (variant){.mesh = mesh});
    lk_mesh_free(mesh);
    return *bytes > 0 && *bytes <= b->room;
}

/* As many ranks with the state split over some of them or all, then also with every large operation: the first axes
 * that fit, since more of them move more bytes. axes "": none do. */
static void find_mesh(setup *s, const budget *b, char axes[64], size_t *bytes)
{
    int ranks = s->config.comm ? lk_comm_size(s->config.comm) : s->config.plan_world;
    for (int tensor = 1; tensor <= ranks; tensor *= 2)
        for (int shard = tensor == 1 ? 2 : ranks / tensor; ranks % tensor == 0 && shard <= ranks / tensor; shard *= 2) {
            int data = ranks / tensor / shard, used = 0;
            if (data * shard * tensor != ranks) continue;
            if (data > 1) used += snprintf(axes + used, 64 - (size_t)used, "data=%d,", data);
            if (shard > 1) used += snprintf(axes + used, 64 - (size_t)used, "shard=%d,", shard);
            if (tensor > 1) used += snprintf(axes + used, 64 - (size_t)used, "tensor=%d,", tensor);
            axes[used - 1] = 0; /* the last comma */
            if (fits_mesh(s, b, axes, bytes)) return;
        }
    axes[0] = 0;
}

static bool advise(const char *name, const char *options, size_t bytes, const budget *b)
{
    char need[SIZE_TEXT], have[SIZE_TEXT];
    if (bytes == 0 || bytes > b->room) return false;
    print_note(name, "the run would fit with %s: the plan then needs %s%s, and %s is free", options,
               size_text(bytes, need), b->process ? " per rank" : "", size_text(b->available, have));
    return true;
}

static bool find_room(const setup *s, budget *b)
{
    lk_limits limits;
    size_t    total;
    *b = (budget){.process = false};
    if (host_memory_used(s->context)) {
        size_t process = lk_launch_rank_memory();
        lk_limits_read(&limits);
        b->process = process < SIZE_MAX && host_bytes(s, &s->config, true) > process;
        b->available = b->room = b->process ? process : limits.available;
        return b->available < SIZE_MAX;
    }
    lk_context_device_memory(s->context, &b->available, &total);
    b->room = b->available - b->available / 50; /* whole pages, and what libraries allocate when they are first used */
    return total > 0;
}

void memory_advise(setup *s, const char *name, lk_status status)
{
    budget room, *b = &room;
    size_t bytes = 0, recomputed = 0, accumulated = 0, both = 0;
    char   text[96], axes[64], need[SIZE_TEXT], have[SIZE_TEXT];
    /* an allocation of the host's memory that fails has another cause: a limit of the process */
    bool larger = status == LK_ETOOLARGE || (status == LK_ENOMEM && !host_memory_used(s->context));
    if (!larger || !find_room(s, b)) return;
    if (can_recompute(s)) recomputed = variant_bytes(s, b, (variant){.recompute = true});
    variant more = find_accumulation(s, b, false, &accumulated);
    bool    found = advise(name, "--recompute", recomputed, b);
    snprintf(text, sizeof text, "--accumulate %d", more.accumulate);
    found |= advise(name, text, accumulated, b);
    find_mesh(s, b, axes, &bytes);
    snprintf(text, sizeof text, "--mesh %s", axes);
    found |= axes[0] && advise(name, text, bytes, b);
    snprintf(text, sizeof text, "-n %d", find_ranks(s, b, &bytes));
    found |= strcmp(text, "-n 0") != 0 && advise(name, text, bytes, b);
    if (found) return;
    if (can_recompute(s)) more = find_accumulation(s, b, true, &both);
    snprintf(text, sizeof text, "--accumulate %d%s", more.accumulate, both ? " --recompute" : "");
    size_t least = both ? both : accumulated;
    if (advise(name, text, both, b)) return;
    if (least && least < variant_bytes(s, b, (variant){0}))
        print_note(name, "even %s needs %s, but only %s is free: use a smaller model or a %s with more memory", text,
                   size_text(least, need), size_text(b->available, have),
                   host_memory_used(s->context) ? "machine" : "GPU");
    else
        print_note(name, "only %s is free: use a smaller --batch or model", size_text(b->available, have));
}
