/* print.c - the listing of a plan: sections, instructions, and where their results are stored. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

static const char *const section_names[LK_SECTION_COUNT] = {"forward", "backward", "sync", "update", "evaluate"};
static const char *const region_names[LK__REGION_COUNT] = {
    [LK__IN_INPUT] = "input",       [LK__IN_PARAMETERS] = "parameters", [LK__IN_BUFFERS] = "buffers",
    [LK__IN_MASTER] = "master",     [LK__IN_OPTIMIZER] = "optimizer",   [LK__IN_GRADIENTS] = "gradients",
    [LK__IN_ACTIVATIONS] = "arena", [LK__IN_COMMON] = "common",         [LK__IN_GATHERED] = "gathered",
    [LK__IN_HOST] = "host",
};

static void print_line(lk_text_callback write, void *user, const char *text)
{
    write(user, text, strlen(text));
    write(user, "\n", 1);
}

static void print_node(const lk__plan_list *list, int index, lk_text_callback write, void *user)
{
    const lk__graph_node *n = &list->graph->nodes[index];
    char                  text[1024], full[1200];
    lk__node_text(list->graph, n, text, sizeof text);
    int v = n->outputs > 0 ? n->out[0] : -1;
    if (v >= 0)
        snprintf(full, sizeof full, "  %-80s %s+%zu%s", text, region_names[list->places[v].region],
                 list->places[v].offset, list->graph->values[v].channels_last ? "  channels last" : "");
    else
        snprintf(full, sizeof full, "  %s", text);
    print_line(write, user, full);
}

void lk_plan_print(const lk_plan *p, lk_text_callback write, void *user)
{
    for (int section = 0; section < LK_SECTION_COUNT; section++) {
        const lk__plan_list *list = section == LK_EVALUATE ? &p->evaluate : &p->train;
        size_t               begin = section == LK_FORWARD || section == LK_EVALUATE ? 0 : list->end[section - 1];
        if (!list->graph) continue;
        print_line(write, user, section_names[section]);
        for (size_t i = begin; i < list->end[section]; i++) print_node(list, list->order[i], write, user);
    }
}
