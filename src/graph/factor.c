/* factor.c - the factors of an operation at given shapes: which line applies, and the extents of its factors. */
#include "graph/factor_line.h"

#include <stdio.h>
#include <string.h>

static const lk__factor_shape *shape_of(const lk__factor_line *s, const lk__factor_line_operand *o)
{
    return o->output ? &s->query->out[o->index] : &s->query->in[o->index];
}

static lk__factor_dim *dims_of(const lk__factor_line *s, const lk__factor_line_operand *o)
{
    return o->output ? s->f->out[o->index] : s->f->in[o->index];
}

/* ---- lists of dimensions ---- */

/* Dimensions of an operand that belong to lists whose length is not known; *unknown: how many such lists, *group: the
 * last of them. */
static int dims_left(const lk__factor_line *s, const lk__factor_line_operand *o, int *unknown, int *group)
{
    int left = shape_of(s, o)->rank;
    *unknown = 0;
    for (int i = 0; i < o->count; i++) {
        const lk__factor_line_item *item = &o->items[i];
        if (item->kind == LK__FACTOR_LINE_GROUP && s->groups[item->group].length < 0) {
            (*unknown)++;
            *group = item->group;
        } else {
            left -= item->kind == LK__FACTOR_LINE_GROUP ? s->groups[item->group].length : 1;
        }
    }
    return left;
}

/* The longest list that an operand has, where it has one alone; a list that no operand has alone is empty, but for the
 * last. */
static const char *find_lengths(lk__factor_line *s)
{
    for (int round = 0; round < LK__FACTOR_LINE_GROUPS; round++) {
        int longest[LK__FACTOR_LINE_GROUPS], unknown, group = 0, open = -1;
        for (int g = 0; g < s->groups_count; g++) longest[g] = -1;
        for (int i = 0; i < s->count; i++) {
            const lk__factor_line_operand *o = &s->operands[i];
            int                            left = o->present ? dims_left(s, o, &unknown, &group) : 0;
            if (o->present && unknown == 1 && left > longest[group]) longest[group] = left;
        }
        bool found = false;
        for (int g = 0; g < s->groups_count; g++) {
            if (s->groups[g].length < 0 && longest[g] >= 0) s->groups[g].length = longest[g], found = true;
            if (s->groups[g].length < 0 && open < 0) open = g;
        }
        if (open < 0) return NULL;
        if (!found) s->groups[open].length = 0;
    }
    return LK__FACTOR_LINE_REFUSE(s, "the operands' numbers of axes do not match");
}

static const char *make_group_factors(lk__factor_line *s)
{
    lk__factors *f = s->f;
    for (int g = 0; g < s->groups_count; g++) {
        lk__factor_line_group *group = &s->groups[g];
        group->first = f->count;
        for (int i = 0; i < group->length; i++) {
            if (f->count == LK__FACTORS) return LK__FACTOR_LINE_REFUSE(s, "too many factors");
            lk__factor *factor = &f->factor[f->count++];
            *factor = (lk__factor){.extent = -1, .coupled = group->coupled || (g == 0 && i == s->coupled_axis)};
            snprintf(factor->name, sizeof factor->name, group->length == 1 ? "%.12s" : "%.12s%d", group->name, i);
        }
    }
    return NULL;
}

/* ---- dimensions of operands ---- */

static lk__factor_dim simple_dim(int factor)
{
    return (lk__factor_dim){.segments = 1, .segment = {{.count = 1, .factor = {factor}}}};
}

/* The dimensions of a list that an operand has: `have` of them, aligned at the end, unless what is missing is known. */
static const char *bind_group(lk__factor_line *s, const lk__factor_line_operand *o, const lk__factor_line_group *g,
                              int have, int at)
{
    lk__factor_dim         *dims = dims_of(s, o);
    const lk__factor_shape *shape = shape_of(s, o);
    uint32_t                missing = 0;
    int                     skipped = 0;
    if (g == s->groups && have < g->length) missing = s->without >= 0 ? 1u << s->without : s->missing;
    for (int i = 0; i < g->length; i++) skipped += missing >> i & 1;
    if (!missing) skipped = g->length - have;
    if (have < 0 || g->length - skipped != have)
        return LK__FACTOR_LINE_REFUSE(s, "the operands' numbers of axes do not match");
    for (int i = missing ? 0 : skipped; i < g->length; i++) {
        if (missing >> i & 1) continue;
        lk__factor *f = &s->f->factor[g->first + i];
        if (g != s->groups || i != s->without) dims[at] = simple_dim(g->first + i);
        if (shape->dims[at] > f->extent || f->extent == 1) f->extent = shape->dims[at];
        at++;
    }
    return NULL;
}

static lk__factor_dim merged_dim(const lk__factor_line_group *g)
{
    lk__factor_dim dim = {.segments = 1};
    for (int i = 0; i < g->length; i++) dim.segment[0].factor[dim.segment[0].count++] = g->first + i;
    return dim;
}

static const char *bind_operand(lk__factor_line *s, const lk__factor_line_operand *o)
{
    lk__factor_dim *dims = dims_of(s, o);
    int             rank = shape_of(s, o)->rank, at = 0, fixed = 0;
    if (o->count == 1 && o->items[0].kind == LK__FACTOR_LINE_MERGED && s->groups[o->items[0].group].length == rank)
        return bind_group(s, o, &s->groups[o->items[0].group], rank, 0); /* not merged: one statistic of each row */
    for (int i = 0; i < o->count; i++) fixed += o->items[i].kind != LK__FACTOR_LINE_GROUP;
    for (int i = 0; i < o->count; i++) {
        const lk__factor_line_item *item = &o->items[i];
        if (item->kind == LK__FACTOR_LINE_GROUP) {
            const lk__factor_line_group *g = &s->groups[item->group];
            int                          have = rank - fixed;
            for (int k = 0; k < o->count; k++)
                if (k != i && o->items[k].kind == LK__FACTOR_LINE_GROUP) have -= s->groups[o->items[k].group].length;
            const char *wrong = bind_group(s, o, g, have, at);
            if (wrong) return wrong;
            at += have;
        } else {
            if (at >= rank) return LK__FACTOR_LINE_REFUSE(s, "the operands' numbers of axes do not match");
            if (item->kind == LK__FACTOR_LINE_DIM || item->kind == LK__FACTOR_LINE_NONE) dims[at] = item->dim;
            if (item->kind == LK__FACTOR_LINE_MERGED) dims[at] = merged_dim(&s->groups[item->group]);
            at++;
        }
    }
    if (at != rank) return LK__FACTOR_LINE_REFUSE(s, "the operands' numbers of axes do not match");
    if (o->swapped && rank >= 2) {
        lk__factor_dim last = dims[rank - 1];
        dims[rank - 1] = dims[rank - 2];
        dims[rank - 2] = last;
    }
    return NULL;
}

/* ---- extents ---- */

/* The product of the known extents; *unknown: the one that is not, -1: all are, -2: several. */
static int64_t known_product(const lk__factors *f, const lk__factor_product *p, int *unknown)
{
    int64_t product = 1;
    for (int i = 0; i < p->count; i++) {
        const lk__factor *factor = &f->factor[p->factor[i]];
        if (factor->extent >= 0)
            product *= factor->extent;
        else
            *unknown = *unknown == -1 ? p->factor[i] : *unknown == p->factor[i] ? *unknown : -2;
    }
    return product;
}

/* Finds the one extent of a dimension that is not known. Whether something was found. */
static bool solve_dim(lk__factors *f, const lk__factor_dim *dim, int64_t extent)
{
    int64_t each = 0;
    int     unknown = -1;
    for (int i = 0; i < dim->segments; i++) each += known_product(f, &dim->segment[i], &unknown);
    if (unknown < 0 || each <= 0 || extent % each) return false;
    f->factor[unknown].extent = extent / each;
    return true;
}

static int64_t dim_extent(const lk__factors *f, const lk__factor_dim *dim)
{
    int64_t extent = 0;
    int     unknown = -1;
    for (int i = 0; i < dim->segments; i++) extent += known_product(f, &dim->segment[i], &unknown);
    return unknown == -1 ? extent : -1;
}

static void find_extents(lk__factor_line *s)
{
    lk__factors *f = s->f;
    for (bool found = true; found;) {
        found = false;
        for (int i = 0; i < f->extents; i++) {
            lk__factor_dim dim = {.segments = 1, .segment = {f->extent[i].product}};
            found |= solve_dim(f, &dim, lk__factor_line_attribute(s->query->attrs, f->extent[i].attribute));
        }
        for (int i = 0; i < s->count; i++) {
            const lk__factor_line_operand *o = &s->operands[i];
            for (int k = 0; o->present && k < shape_of(s, o)->rank; k++)
                found |= solve_dim(f, &dims_of(s, o)[k], shape_of(s, o)->dims[k]);
        }
    }
}

/* A dimension of extent 1 is broadcast where its factor has more. */
static const char *check_extents(lk__factor_line *s)
{
    for (int i = 0; i < s->count; i++) {
        const lk__factor_line_operand *o = &s->operands[i];
        for (int k = 0; o->present && k < shape_of(s, o)->rank; k++) {
            lk__factor_dim *dim = &dims_of(s, o)[k];
            int64_t         extent = dim->segments ? dim_extent(s->f, dim) : shape_of(s, o)->dims[k];
            if (extent == shape_of(s, o)->dims[k]) continue;
            if (shape_of(s, o)->dims[k] == 1 && dim->segments == 1)
                *dim = (lk__factor_dim){0};
            else
                return LK__FACTOR_LINE_REFUSE(s, "%s %d has size %lld along dimension %d, but its factors give %lld",
                                              o->output ? "output" : "input", o->index,
                                              (long long)shape_of(s, o)->dims[k], k, (long long)extent);
        }
    }
    return NULL;
}

/* ---- views ---- */

static int add_factor(lk__factors *f, int64_t extent)
{
    if (f->count == LK__FACTORS) return -1;
    f->factor[f->count] = (lk__factor){.extent = extent};
    snprintf(f->factor[f->count].name, LK__FACTOR_NAME, "part%d", f->count);
    return f->count++;
}

static bool append_factor(lk__factor_dim *dim, int factor)
{
    lk__factor_product *p = &dim->segment[0];
    dim->segments = 1;
    if (p->count == LK__FACTOR_PRODUCT) return false;
    p->factor[p->count++] = factor;
    return true;
}

/* The factors of input 0, in the order of the attribute. */
static const char *permute_dims(lk__factor_line *s)
{
    const lk__factor_shape *x = &s->query->in[0];
    for (int i = 0; i < x->rank; i++) {
        int factor = add_factor(s->f, x->dims[i]);
        if (factor < 0) return LK__FACTOR_LINE_REFUSE(s, "too many factors");
        s->f->in[0][i] = simple_dim(factor);
    }
    for (int i = 0; i < x->rank; i++) s->f->out[0][i] = s->f->in[0][s->query->attrs->axes[i]];
    return NULL;
}

/* The factors that both shapes are made of, the slowest first; from where they do not divide each other, dimensions are
 * of no factor. */
static const char *divide_dims(lk__factor_line *s)
{
    const lk__factor_shape *x = &s->query->in[0], *y = &s->query->out[0];
    lk__factor_dim         *from = s->f->in[0], *to = s->f->out[0];
    int64_t                 a = 1, b = 1; /* what is left of the dimensions i and k */
    int                     i = -1, k = -1;
    memset(from, 0, sizeof s->f->in[0]);
    memset(to, 0, sizeof s->f->out[0]);
    for (;;) {
        while (a == 1 && i + 1 < x->rank) a = x->dims[++i];
        while (b == 1 && k + 1 < y->rank) b = y->dims[++k];
        int64_t part = a < b ? a : b;
        if (part <= 1) return NULL;
        if (a % part || b % part) { /* the rest of these two dimensions, too */
            from[i] = to[k] = (lk__factor_dim){0};
            return NULL;
        }
        int factor = add_factor(s->f, part);
        if (factor < 0 || !append_factor(&from[i], factor) || !append_factor(&to[k], factor))
            return LK__FACTOR_LINE_REFUSE(s, "too many factors");
        a /= part;
        b /= part;
    }
}

/* ---- what is summed ---- */

bool lk__factor_in_dim(const lk__factor_dim *dim, int factor)
{
    for (int i = 0; i < dim->segments; i++)
        for (int k = 0; k < dim->segment[i].count; k++)
            if (dim->segment[i].factor[k] == factor) return true;
    return false;
}

bool lk__factor_in(const lk__factor_dim dims[LK_MAX_RANK], int factor)
{
    for (int i = 0; i < LK_MAX_RANK; i++)
        if (lk__factor_in_dim(&dims[i], factor)) return true;
    return false;
}

bool lk__factor_is_summed(const lk__factors *f, int inputs, int k, int factor)
{
    if (lk__factor_in(f->out[k], factor)) return false;
    for (int i = 0; i < inputs; i++)
        if (f->depends[k] >> i & 1 && lk__factor_in(f->in[i], factor)) return true;
    return false;
}

/* What is applied to a sum cannot be applied to its summands: an activation, a pool, an operand marked so, a division
 * by the extent. */
static void couple_sums(lk__factor_line *s)
{
    bool applied = s->applied;
    for (int i = 0; i < s->count; i++) applied |= s->operands[i].present && s->operands[i].applied;
    for (int i = 0; i < s->f->count; i++) {
        bool everywhere = lk__factor_in(s->f->in[0], i) && lk__factor_in(s->f->out[0], i);
        if (applied && lk__factor_is_summed(s->f, s->query->inputs, 0, i)) s->f->factor[i].coupled = true;
        if (s->mean && !everywhere) s->f->factor[i].coupled = true;
    }
}

/* ---- a line ---- */

/* Whether the line, which was read, has every operand that is present. */
static bool has_operands(const lk__factor_line *s)
{
    const lk__factor_query *q = s->query;
    int                     present = 0, found = 0;
    for (int i = 0; i < q->inputs; i++) present += q->in[i].dims != NULL;
    for (int i = 0; i < q->outputs; i++) present += q->out[i].dims != NULL;
    for (int i = 0; i < s->count; i++) found += s->operands[i].present;
    return present == found;
}

static const char *bind_operands(lk__factor_line *s)
{
    const char *wrong = find_lengths(s);
    if (!wrong) wrong = make_group_factors(s);
    for (int i = 0; i < s->count && !wrong; i++)
        if (s->operands[i].present) wrong = bind_operand(s, &s->operands[i]);
    if (wrong) return wrong;
    find_extents(s);
    return check_extents(s);
}

const char *lk__factors_solve(const char *line, const lk__factor_query *query, lk__factors *f, char text[static 128])
{
    lk__factor_line s = {.query = query, .op = lk__op_find(query->op), .f = f, .text = text};
    s.positional = query->op == LK__OP_custom;
    memset(f, 0, sizeof *f);
    if (strcmp(line, "-") == 0) return NULL;
    for (s.at = line;; s.at++) {
        s.count = s.groups_count = 0;
        s.axes = s.reshape = s.applied = s.mean = false;
        s.missing = 0;
        s.without = s.coupled_axis = -1;
        memset(f, 0, sizeof *f);
        memset(s.operands, 0, sizeof s.operands);
        memset(s.groups, 0, sizeof s.groups);
        for (int k = 0; k < LK__MAX_OUT; k++) f->depends[k] = ~0u;
        const char *wrong = lk__factor_line_read(&s);
        if (wrong) return wrong;
        if (has_operands(&s)) break;
        if (*s.at != '\n') return LK__FACTOR_LINE_REFUSE(&s, "an operand of the call is not listed");
    }
    const char *wrong = s.reshape ? divide_dims(&s) : s.axes ? permute_dims(&s) : bind_operands(&s);
    if (!wrong) couple_sums(&s);
    return wrong;
}

const char *lk__factors_find(const lk__factor_query *query, lk__factors *f, char text[static 128])
{
    return lk__factors_solve(lk__op_find(query->op)->factors, query, f, text);
}

void lk__factors_attributes(const lk__factors *f, const int64_t *extents, lk__op_attrs *attrs)
{
    for (int i = 0; i < f->extents; i++) {
        int64_t extent = 1;
        for (int k = 0; k < f->extent[i].product.count; k++) extent *= extents[f->extent[i].product.factor[k]];
        lk__factor_line_set(attrs, f->extent[i].attribute, extent);
    }
}
