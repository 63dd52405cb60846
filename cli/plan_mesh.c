/* plan_mesh.c - the bytes of each rank of a mesh, and what ranks send along which axes. */
#include "plan_mesh.h"

enum { MOST_PLANNED = 64, MOST_TRAFFIC = 32, MOST_STAGES = 64 };

const char *plan_axes_text(unsigned axes, char text[PLAN_AXES_TEXT])
{
    size_t used = 0;
    text[0] = 0;
    for (unsigned axis = 1; axis <= LK_AXES_ALL; axis <<= 1)
        if ((axes & axis) && used < PLAN_AXES_TEXT)
            used += (size_t)snprintf(text + used, PLAN_AXES_TEXT - used, "%s%s", used ? " and " : "",
                                     lk_axis_name((lk_axis)axis));
    return text;
}

static bool has_other_axes(const setup *s)
{
    return s->mesh && lk_mesh_extent(s->mesh, LK_AXIS_DATA) < lk_mesh_size(s->mesh);
}

/* All bytes of the plan of a rank; 0: there is none, and the plan of rank 0 says why. */
static size_t rank_bytes(const setup *s, int rank)
{
    lk_trainer_config config = s->config;
    lk_mesh_config    about = LK_MESH_CONFIG_INIT;
    lk_mesh          *mesh = NULL;
    lk_graph         *graph = NULL;
    lk_plan          *plan = NULL;
    size_t            memory[LK_MEMORY_COUNT], bytes = 0;
    about.axes = lk_mesh_text(s->mesh);
    about.rank = rank;
    if (lk_mesh_create(s->context, &about, &mesh) < 0) return 0;
    config.mesh = mesh;
    if (lk_trainer_plan(s->context, &config, &graph, &plan, memory) >= 0)
        for (int kind = 0; kind < LK_MEMORY_COUNT; kind++)
            if (kind != LK_MEMORY_OTHER) bytes += memory[kind];
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_mesh_free(mesh);
    return bytes;
}

/* Of many ranks, those that are first or last along every axis: parts of one axis differ at its ends. */
static bool is_planned(const setup *s, int rank)
{
    if (lk_mesh_size(s->mesh) <= MOST_PLANNED) return true;
    for (unsigned axis = 1; axis <= LK_AXES_ALL; axis <<= 1) {
        int place = lk_mesh_coordinate(s->mesh, axis, rank);
        if (place != 0 && place != lk_mesh_extent(s->mesh, axis) - 1) return false;
    }
    return true;
}

typedef struct run_of_ranks {
    int    first, last; /* of those that were planned */
    size_t bytes;
} run_of_ranks;

/* Ranks one after the other that have the same bytes; returns how many runs there are. */
static int list_runs(const setup *s, run_of_ranks runs[MOST_PLANNED])
{
    int count = 0;
    for (int rank = 0; rank < lk_mesh_size(s->mesh); rank++) {
        if (!is_planned(s, rank)) continue;
        size_t bytes = rank_bytes(s, rank);
        if (count > 0 && runs[count - 1].bytes == bytes)
            runs[count - 1].last = rank;
        else if (count < MOST_PLANNED)
            runs[count++] = (run_of_ranks){rank, rank, bytes};
    }
    return count;
}

void plan_mesh_print(const setup *s)
{
    run_of_ranks runs[MOST_PLANNED];
    if (!has_other_axes(s)) return;
    int count = list_runs(s, runs);
    printf("\nmesh %s, in which each rank has\n", lk_mesh_text(s->mesh));
    for (int i = 0; i < count; i++) {
        char who[64];
        snprintf(who, sizeof who,
                 count == 1                      ? "all ranks"
                 : runs[i].first == runs[i].last ? "rank %d"
                                                 : "ranks %d to %d",
                 runs[i].first, runs[i].last);
        printf("%-16s %15zu bytes  %10.2f MiB\n", who, runs[i].bytes, (double)runs[i].bytes / 1048576);
    }
}

void plan_mesh_json(const setup *s, const lk_plan *plan, json *j)
{
    lk_traffic all[MOST_TRAFFIC];
    int        count = lk_plan_traffic(plan, all, MOST_TRAFFIC);
    char       text[PLAN_AXES_TEXT];
    if (s->mesh) json_text(j, "mesh", lk_mesh_text(s->mesh));
    json_open(j, "traffic", '[');
    for (int i = 0; i < count && i < MOST_TRAFFIC; i++) {
        json_open(j, NULL, '{');
        json_text(j, "axes", plan_axes_text(all[i].axes, text));
        json_integer(j, "collectives", all[i].collectives);
        json_integer(j, "bytes", (int64_t)all[i].bytes);
        json_close(j, '}');
    }
    json_close(j, ']');
    if (!has_other_axes(s)) return;
    run_of_ranks runs[MOST_PLANNED];
    count = list_runs(s, runs);
    json_open(j, "rank_bytes", '[');
    for (int i = 0; i < count; i++) {
        json_open(j, NULL, '{');
        json_integer(j, "first", runs[i].first);
        json_integer(j, "last", runs[i].last);
        json_integer(j, "bytes", (int64_t)runs[i].bytes);
        json_close(j, '}');
    }
    json_close(j, ']');
}

void plan_mesh_stages_json(const lk_plan *plan, const lk_rates *rates, json *j)
{
    lk_stage stages[MOST_STAGES];
    int      count = lk_plan_stages(plan, rates, stages, MOST_STAGES);
    if (count == 0) return;
    json_open(j, "stages", '[');
    for (int i = 0; i < count && i < MOST_STAGES; i++) {
        json_open(j, NULL, '{');
        json_integer(j, "first_block", stages[i].first_block);
        json_integer(j, "last_block", stages[i].last_block);
        json_integer(j, "slots", stages[i].slots);
        json_number(j, "forward", stages[i].forward);
        json_number(j, "backward", stages[i].backward);
        json_number(j, "weights", stages[i].weights);
        json_close(j, '}');
    }
    json_close(j, ']');
}
