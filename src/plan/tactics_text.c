/* tactics_text.c - prints how the states of a plan are split, in the form of tactics. */
#include "plan/tactics.h"

#include "graph/factor.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 512 };

/* The slowest factor of a dimension of several elements; -1: none. */
static int factor_of(const lk__factors *f, const lk__factor_dim *d)
{
    const lk__factor_product *product = &d->segment[0];
    if (d->segments == 0 || product->count == 0) return -1;
    int i = 0;
    while (i + 1 < product->count && f->factor[product->factor[i]].extent == 1) i++;
    return product->factor[i];
}

/* The name of the factor that a dimension of a state is in the first node that reads it; its number, where it has none
 * of its own. */
static void name_factor(const lk_graph *g, int value, int dim, char name[LK__FACTOR_NAME])
{
    snprintf(name, LK__FACTOR_NAME, "%d", dim);
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        lk__factors           f;
        char                  text[128];
        for (int k = 0; k < n->inputs; k++) {
            if (n->in[k] != value || lk__node_factors(g, n, &f, text)) continue;
            int factor = factor_of(&f, &f.in[k][dim]);
            if (factor < 0) continue;
            snprintf(name, LK__FACTOR_NAME, "%s", f.factor[factor].name);
            return;
        }
    }
}

/* "out@tensor", "out/3@tensor" in repetitions, "out*2@tensor" with copies; "": the state is whole. */
static void describe_state(const lk_plan *p, size_t state, char *text, size_t bytes)
{
    const lk__plan_splits *splits = &p->states[state].splits[LK__ARRAY_STORED];
    char                   factor[LK__FACTOR_NAME];
    text[0] = 0;
    for (int i = 0; i < splits->count; i++) {
        if (!(splits->split[i].axes & p->placed_axes)) continue;
        name_factor(p->graph, p->graph->states[state].value, splits->split[i].dim, factor);
        const lk__plan_cut *cut = &splits->split[i];
        char                outer[32] = "", copies[32] = "";
        if (cut->outer > 1) snprintf(outer, sizeof outer, "/%lld", (long long)cut->outer);
        if (lk__axes_factor(cut->axes) > 1) snprintf(copies, sizeof copies, "*%d", (int)lk__axes_factor(cut->axes));
        snprintf(text, bytes, "%s%s%s@%s", factor, outer, copies, lk_axis_name((lk_axis)lk__axes_plain(cut->axes)));
    }
}

/* The name with * for each part that is a number: layers that are alike are one line. */
static void make_pattern(const char *name, char pattern[LINE])
{
    size_t used = 0;
    for (const char *at = name; *at && used + 1 < LINE;) {
        size_t length = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (length > 0 && digits == length) {
            pattern[used++] = '*';
        } else {
            for (size_t i = 0; i < length && used + 1 < LINE; i++) pattern[used++] = at[i];
        }
        at += length;
        if (*at == '.' && used + 1 < LINE) pattern[used++] = *at++;
    }
    pattern[used] = 0;
}

/* Whether all states that the pattern matches are split in this way; *first: the first of those that have it as their
 * own. It may match others: layer.*.output.weight also matches layer.0.attention.output.weight. */
static bool all_alike(const lk_plan *p, const char *pattern, const char *how, size_t *first)
{
    bool found = false;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        char other[LINE], own[LINE];
        if (fnmatch(pattern, p->graph->states[i].name, 0) != 0) continue;
        make_pattern(p->graph->states[i].name, own);
        if (!found && strcmp(own, pattern) == 0) *first = i, found = true;
        describe_state(p, i, other, sizeof other);
        if (strcmp(how, other) != 0) return false;
    }
    return found;
}

void lk_plan_tactics(const lk_plan *p, lk_text_callback write, void *user)
{
    for (size_t i = 0; i < p->graph->states_count; i++) {
        const char *name = p->graph->states[i].name;
        char        how[LINE], pattern[LINE], line[2 * LINE + 4];
        size_t      first = i;
        describe_state(p, i, how, sizeof how);
        if (!how[0]) continue;
        make_pattern(name, pattern);
        bool alike = all_alike(p, pattern, how, &first);
        if (alike && first != i) continue;
        snprintf(line, sizeof line, "%s: %s\n", alike ? pattern : name, how);
        write(user, line, strlen(line));
    }
    char axes[LK__MESH_TEXT], rest[LINE];
    snprintf(rest, sizeof rest, "*: whole@%s\n", lk__mesh_list_axes(p->placed_axes, axes));
    if (p->placed_axes) write(user, rest, strlen(rest));
}
