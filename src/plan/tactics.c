/* tactics.c - tactics, by which a user specifies how states are split: lines of "PATTERN: FACTOR@AXIS". The first line
 * whose pattern matches a state's name decides. A line does not affect states that other lines name; the placements of
 * other values are derived once all lines have been read. */
#include "plan/tactics.h"

#include "graph/factor.h"
#include "plan/divisor.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 256, MOST_REPETITIONS = 4 };

typedef struct tactic {
    int      line;
    char     pattern[NAME], factor[NAME];
    long     outer, copies; /* out/3: in each of 3 repetitions; out*2: each part is on 2 ranks; 0: not said */
    unsigned axis;
} tactic;

static const char whole[] = "whole"; /* instead of a factor: every rank has all of it */

/* ---- text ---- */

static void copy_trimmed(const char *from, const char *end, char out[NAME])
{
    while (from < end && isspace((unsigned char)*from)) from++;
    while (end > from && isspace((unsigned char)end[-1])) end--;
    size_t length = end - from < NAME ? (size_t)(end - from) : NAME - 1;
    memcpy(out, from, length);
    out[length] = 0;
}

static const char *last_before(const char *from, const char *end, char c)
{
    while (end > from && *--end != c) {}
    return from < end || (end == from && *end == c) ? end : NULL;
}

static unsigned find_axis(const char *name)
{
    for (unsigned axis = 1; lk_axis_name((lk_axis)axis); axis *= 2)
        if (strcmp(lk_axis_name((lk_axis)axis), name) == 0) return axis;
    return 0;
}

/* Cuts "/3" or "*2" off; false: it is not followed by a number of 1 or more. */
static bool take_number(char *factor, char sign, long *number)
{
    char *at = strrchr(factor, sign), *end = NULL;
    *number = 0;
    if (!at) return true;
    *number = isdigit((unsigned char)at[1]) ? strtol(at + 1, &end, 10) : 0;
    *at = 0;
    return *number > 0 && !*end && factor[0];
}

static lk_status read_tactic(lk_context *c, const char *from, const char *end, tactic *t)
{
    const char *at = last_before(from, end, '@'), *colon = at ? last_before(from, at, ':') : NULL;
    char        axis[NAME] = "", shown[LK__SHOWN], placed[LK__MESH_TEXT];
    if (colon) copy_trimmed(from, colon, t->pattern), copy_trimmed(colon + 1, at, t->factor);
    if (at) copy_trimmed(at + 1, end, axis);
    bool numbers = colon && take_number(t->factor, '*', &t->copies) && take_number(t->factor, '/', &t->outer);
    if (!numbers || !t->pattern[0] || !t->factor[0] || !axis[0])
        return lk__fail(c, LK_EINVAL,
                        "tactics, line %d: expected PATTERN: FACTOR@AXIS, as in blocks.*.mlp.up.weight: out@tensor",
                        t->line);
    t->axis = find_axis(axis);
    if (!t->axis)
        return lk__fail(c, LK_EINVAL, "tactics, line %d: there is no axis %s", t->line, lk__shown(axis, shown));
    if (!(t->axis & LK__PLAN_PLACED_AXES))
        return lk__fail(c, LK_EUNSUPPORTED, "tactics, line %d: states can be placed along the %s axis, not along %s",
                        t->line, lk__mesh_list_axes(LK__PLAN_PLACED_AXES, placed), axis);
    return LK_OK;
}

/* Calls visit with each tactic of the text. */
typedef lk_status (*tactic_callback)(const tactic *tactic, void *user);

static lk_status read_tactics(lk_context *c, const char *text, tactic_callback visit, void *user)
{
    lk_status status = LK_OK;
    tactic    t = {0};
    for (const char *from = text; from && *from && status >= 0;) {
        const char *newline = strchr(from, '\n'), *end = newline ? newline : from + strlen(from);
        const char *comment = memchr(from, '#', (size_t)(end - from)), *stop = comment ? comment : end;
        char        rest[NAME];
        t.line++;
        copy_trimmed(from, stop, rest);
        if (rest[0]) status = read_tactic(c, from, stop, &t);
        if (rest[0] && status >= 0 && visit) status = visit(&t, user);
        from = newline ? newline + 1 : NULL;
    }
    return status;
}

lk_status lk__tactics_check(lk_context *c, const char *text) { return read_tactics(c, text, NULL, NULL); }

/* ---- what a factor of a state is ---- */

/* The dimension of the state's value that the name means in one of its readers; -1: none has such a factor. */
static int dim_in_node(const lk_graph *g, const lk__graph_node *n, int value, const char *name, char *known)
{
    lk__factors f;
    char        text[128];
    if (n->dead || lk__node_factors(g, n, &f, text)) return -1;
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] != value) continue;
        for (int d = 0; d < g->values[value].shape.rank; d++)
            for (int k = 0; k < f.count; k++) {
                if (!lk__factor_in_dim(&f.in[i][d], k)) continue;
                if (strcmp(f.factor[k].name, name) == 0) return d;
                if (known && !strstr(known, f.factor[k].name) && strlen(known) + LK__FACTOR_NAME + 3 < NAME) {
                    if (known[0]) strcat(known, ", ");
                    strcat(known, f.factor[k].name);
                }
            }
    }
    return -1;
}

/* In the graph as it was recorded, too: a node that has all classes of a loss may be divided now. */
static int find_dim(const lk__placement_finder *f, size_t state, const char *name, char known[NAME])
{
    const lk_graph *graphs[] = {f->plan->graph, f->g};
    char           *end;
    long            number = strtol(name, &end, 10);
    int             rank = f->g->values[f->g->states[state].value].shape.rank;
    known[0] = 0;
    if (isdigit((unsigned char)name[0]) && !*end) return number < rank ? (int)number : -1;
    for (size_t k = 0; k < sizeof graphs / sizeof *graphs; k++)
        for (size_t i = 0; i < graphs[k]->nodes_count; i++) {
            int dim = dim_in_node(graphs[k], &graphs[k]->nodes[i], graphs[k]->states[state].value, name, known);
            if (dim >= 0) return dim;
        }
    return -1;
}

/* ---- placing ---- */

typedef struct placing {
    lk__placement_finder *f;
    unsigned              axis;
    bool                 *decided; /* by state */
} placing;

static bool matches(const lk_graph *g, size_t state, const char *pattern)
{
    const lk__graph_state *s = &g->states[state];
    bool                   found = fnmatch(pattern, s->name, 0) == 0;
    for (size_t i = 0; i < s->aliases_count && !found; i++) found = fnmatch(pattern, s->aliases[i], 0) == 0;
    return found;
}

/* Keeps the placement if it lets fewer readers need the whole than *best does. */
static lk_status try_place(lk__placement_finder *f, int value, const lk__placement_value *place,
                           lk__placement_value *best, int *least)
{
    lk_status status = lk__placement_try_value(f, value, place);
    if (status < 0) return status;
    if (best->kind != LK__PLACE_SPLIT || f->blocked < *least) *best = *place, *least = f->blocked;
    lk__placement_undo(f);
    return LK_OK;
}

static bool divides_segments(const lk__placement_value *place, int extent)
{
    for (int i = 0; i < LK__CUT_SEGMENTS; i++)
        if (place->segment[i] % extent) return false;
    return true;
}

/* In as many repetitions as let the fewest readers need the whole: 3 for queries, keys and values side by side; or, of
 * unequal widths, as the nodes have them that read such. */
static lk_status try_repetitions(lk__placement_finder *f, int value, int dim, lk__placement_value *best)
{
    int64_t   extent = f->g->values[value].shape.dims[dim];
    int       least = 0;
    lk_status status = LK_OK;
    for (int64_t outer = 1; outer <= MOST_REPETITIONS && status >= 0; outer++) {
        lk__placement_value place = {.kind = LK__PLACE_SPLIT, .dim = dim, .outer = outer};
        if (extent % (outer * f->extent) == 0) status = try_place(f, value, &place, best, &least);
    }
    for (size_t i = 0; i < f->nodes && least > 0 && status >= 0; i++) {
        lk__placement_value place = {.kind = LK__PLACE_SPLIT, .dim = dim, .outer = 1};
        if (lk__placement_find_segments(&f->factors[i], extent, place.segment) && divides_segments(&place, f->extent))
            status = try_place(f, value, &place, best, &least);
    }
    return status;
}

/* As the line says, with repetitions or copies; stays replicated where the extent does not divide it so. */
static void place_as_said(const lk__placement_finder *f, const tactic *t, int64_t extent, int dim,
                          lk__placement_value *place)
{
    int64_t outer = t->outer ? t->outer : 1, copies = t->copies > 1 ? t->copies : 1;
    if (copies >= f->extent || f->extent % copies || outer > extent || extent % (outer * (f->extent / copies))) return;
    *place = (lk__placement_value){
        .kind = LK__PLACE_SPLIT, .dim = dim, .outer = outer, .copies = copies > 1 ? (int)copies : 0};
}

static lk_status split_state(placing *p, size_t state, const tactic *t)
{
    lk__placement_finder *f = p->f;
    lk_context           *c = f->g->context;
    int                   value = f->g->states[state].value;
    const char           *name = f->g->states[state].name;
    char                  known[NAME];
    int                   dim = find_dim(f, state, t->factor, known);
    lk__placement_value   place = {0};
    if (dim < 0)
        return lk__fail(c, LK_EINVAL, "tactics, line %d: \"%s\" has no factor %s; it has %s", t->line, name, t->factor,
                        known[0] ? known : "none");
    int64_t   extent = f->g->values[value].shape.dims[dim];
    bool      said = t->outer || t->copies;
    lk_status status = said ? LK_OK : try_repetitions(f, value, dim, &place);
    if (said) place_as_said(f, t, extent, dim, &place);
    if (status < 0) return status;
    if (place.kind != LK__PLACE_SPLIT)
        return lk__fail(c, LK_EINVAL,
                        "tactics, line %d: %s of \"%s\" is %lld, which %s=%d does not divide; the nearest extent that "
                        "works is %lld",
                        t->line, t->factor, name, (long long)extent, lk_axis_name((lk_axis)p->axis), f->extent,
                        (long long)lk__nearest_divisor(extent, f->extent));
    lk__placement_hold_state(f, state, &place);
    return LK_OK;
}

static lk_status place_tactic(const tactic *t, void *user)
{
    placing        *p = user;
    const lk_graph *recorded = p->f->plan->graph; /* with the names of tied states */
    bool            any = false;
    lk_status       status = LK_OK;
    for (size_t i = 0; i < recorded->states_count && status >= 0; i++) {
        if (!matches(recorded, i, t->pattern)) continue;
        any = true;
        if (p->decided[i]) continue;
        p->decided[i] = true;
        if (strcmp(t->factor, whole) == 0)
            lk__placement_hold_state(p->f, i, &(lk__placement_value){0});
        else
            status = split_state(p, i, t);
    }
    if (any || status < 0) return status;
    return lk__fail(p->f->g->context, LK_EINVAL, "tactics, line %d: no parameter or buffer matches %s", t->line,
                    t->pattern);
}

lk_status lk__tactics_place(lk__placement_finder *f, const char *text, unsigned axis)
{
    lk_context *c = f->g->context;
    size_t      states = f->g->states_count;
    placing     p = {f, axis, states ? lk__alloc(c, LK_MEMORY_OTHER, states * sizeof(bool)) : NULL};
    if (states && !p.decided) return LK_ENOMEM;
    lk_status status = read_tactics(c, text, place_tactic, &p);
    lk__free(c, LK_MEMORY_OTHER, p.decided, states * sizeof(bool));
    return status;
}
