/* factor_line.c - reads a line of factors: operands, their dimensions, and what follows them. */
#include "graph/factor_line.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- attributes by name ---- */

#define NUMBER_reduction(x) 0
#define NUMBER_order(x) 0
#define NUMBER_group(x) 0
#define NUMBER_unary(x) (int64_t)(x)
#define NUMBER_activation(x) (int64_t)(x)
#define NUMBER_pool(x) (x)
#define NUMBER_integer(x) (x)
#define NUMBER_count(x) (x)
#define NUMBER_flag(x) (x)
#define NUMBER_index(x) (x)
#define NUMBER_axes(x) 0
#define NUMBER_mask(x) (int64_t)(x)
#define NUMBER_mesh(x) (int64_t)(x)
#define NUMBER_summation(x) (x).parts
#define NUMBER_real(x) ((x) != 0)
#define NUMBER_factor(x) ((x) != 0)
#define NUMBER_ignored(x) (x)
#define NUMBER_stream(x) 0
#define NUMBER_transfer(x) 0
#define NUMBER_custom(x) (x)

int64_t lk__factor_line_attribute(const lk__op_attrs *a, int id)
{
    switch (id) {
#define ATTR_NUMBER(kind, name) \
    case LK__ATTR_ID_##name: return NUMBER_##kind(a->name);
        LK__ATTR_LIST(ATTR_NUMBER)
#undef ATTR_NUMBER
    default: return 0;
    }
}

void lk__factor_line_set(lk__op_attrs *a, int id, int64_t value)
{
    if (id == LK__ATTR_ID_heads) a->heads = value;
    if (id == LK__ATTR_ID_kv_heads) a->kv_heads = value;
    if (id == LK__ATTR_ID_groups) a->groups = value;
    if (id == LK__ATTR_ID_rows) a->rows = value;
}

static int find_attribute(const char *name)
{
    int id = 0;
    while (id < LK__ATTR_COUNT && strcmp(lk__attr_name(id), name) != 0) id++;
    return id < LK__ATTR_COUNT ? id : -1;
}

static bool is_flag_set(const lk__factor_line *s, const char *name)
{
    int id = find_attribute(name);
    return id >= 0 && lk__factor_line_attribute(s->query->attrs, id) != 0;
}

/* ---- names ---- */

static void skip_blanks(lk__factor_line *s)
{
    while (*s->at == ' ') s->at++;
}

static bool take(lk__factor_line *s, const char *token)
{
    skip_blanks(s);
    size_t length = strlen(token);
    if (strncmp(s->at, token, length) != 0) return false;
    s->at += length;
    return true;
}

static bool take_name(lk__factor_line *s, char name[LK__FACTOR_NAME])
{
    int length = 0;
    skip_blanks(s);
    while (isalnum((unsigned char)*s->at) || *s->at == '_') {
        if (length < LK__FACTOR_NAME - 1) name[length++] = *s->at;
        s->at++;
    }
    name[length] = 0;
    return length > 0;
}

/* What stands before a name. */
typedef struct name_marks {
    bool coupled, selected;
} name_marks;

static int find_factor(lk__factor_line *s, const char *name, name_marks marks)
{
    lk__factors *f = s->f;
    int          i = 0;
    while (i < f->count && strcmp(f->factor[i].name, name) != 0) i++;
    if (i == f->count) {
        if (f->count == LK__FACTORS) return -1;
        f->factor[f->count].extent = -1;
        snprintf(f->factor[f->count++].name, LK__FACTOR_NAME, "%s", name);
    }
    f->factor[i].coupled |= marks.coupled;
    f->factor[i].selected |= marks.selected;
    return i;
}

static int find_group(lk__factor_line *s, const char *name, bool coupled)
{
    int i = 0;
    while (i < s->groups_count && strcmp(s->groups[i].name, name) != 0) i++;
    if (i == LK__FACTOR_LINE_GROUPS) return -1;
    if (i == s->groups_count) {
        s->groups[s->groups_count].length = -1;
        snprintf(s->groups[s->groups_count++].name, LK__FACTOR_NAME, "%s", name);
    }
    s->groups[i].coupled |= coupled;
    return i;
}

/* ---- operands ---- */

/* #a */
static const char *read_listed(lk__factor_line *s, lk__factor_line_item *i)
{
    char name[LK__FACTOR_NAME];
    if (!take_name(s, name)) return LK__FACTOR_LINE_REFUSE(s, "expected a name at \"%.20s\"", s->at);
    i->kind = LK__FACTOR_LINE_NONE;
    i->dim = (lk__factor_dim){.listed = 1 + find_factor(s, name, (name_marks){0})};
    return i->dim.listed ? NULL : LK__FACTOR_LINE_REFUSE(s, "too many factors");
}

/* a, !a, ?a, a*b, a|b, a.., a*.., _, #a */
static const char *read_item(lk__factor_line *s, lk__factor_line_item *i)
{
    char name[LK__FACTOR_NAME];
    if (take(s, "#")) return read_listed(s, i);
    i->kind = LK__FACTOR_LINE_DIM;
    i->dim.segments = 1;
    for (;;) {
        name_marks marks = {.coupled = take(s, "!")};
        if (!s->positional) marks.selected = take(s, "?");
        if (!take_name(s, name)) return LK__FACTOR_LINE_REFUSE(s, "expected a name at \"%.20s\"", s->at);
        if (strcmp(name, "_") == 0) {
            i->kind = LK__FACTOR_LINE_NONE;
            i->dim.segments = 0;
            return NULL;
        }
        bool merged = take(s, "*..");
        if (merged || take(s, "..")) {
            i->kind = merged ? LK__FACTOR_LINE_MERGED : LK__FACTOR_LINE_GROUP;
            i->group = find_group(s, name, marks.coupled);
            return i->group < 0 ? LK__FACTOR_LINE_REFUSE(s, "more than %d lists of dimensions", LK__FACTOR_LINE_GROUPS)
                                : NULL;
        }
        lk__factor_product *p = &i->dim.segment[i->dim.segments - 1];
        if (p->count == LK__FACTOR_PRODUCT || (p->factor[p->count++] = find_factor(s, name, marks)) < 0)
            return LK__FACTOR_LINE_REFUSE(s, "too many factors");
        if (take(s, "*")) continue;
        if (!take(s, "|")) return NULL;
        if (i->dim.segments == LK__FACTOR_SEGMENTS) return LK__FACTOR_LINE_REFUSE(s, "too many segments");
        i->dim.segments++;
    }
}

/* Blanks in an operand's name are underscores in a line. */
static bool same_name(const char *a, const char *b)
{
    while (*a && (*a == *b || (*a == ' ' && *b == '_'))) a++, b++;
    return !*a && !*b;
}

/* How many operands one side may have: of a user's operation, as many as were given. */
static int count_operands(const lk__factor_line *s, bool output)
{
    if (s->positional) return output ? s->query->outputs : s->query->inputs;
    return output ? s->op->outputs : s->op->inputs;
}

/* By its name, or by its number. */
static int find_operand(const lk__graph_operand *operands, int count, const char *name)
{
    if (isdigit((unsigned char)*name)) return strtol(name, NULL, 10) < count ? (int)strtol(name, NULL, 10) : -1;
    for (int i = 0; i < count; i++)
        if (same_name(operands[i].name, name)) return i;
    return -1;
}

/* x,w: what an output depends on. */
static const char *read_dependencies(lk__factor_line *s, const lk__factor_line_operand *o)
{
    char     name[LK__FACTOR_NAME];
    unsigned inputs = 0;
    do {
        int input = take_name(s, name) ? find_operand(s->op->in, count_operands(s, false), name) : -1;
        if (input < 0) return LK__FACTOR_LINE_REFUSE(s, "there is no input %s", name);
        inputs |= 1u << input;
    } while (s->at[0] == ',' && isalnum((unsigned char)s->at[1]) && take(s, ","));
    s->f->depends[o->index] = inputs;
    return NULL;
}

/* x(a, b)@flag, after its name; an output's :x,w too. */
static const char *read_dims(lk__factor_line *s, lk__factor_line_operand *o)
{
    char name[LK__FACTOR_NAME];
    if (!take(s, "(")) return LK__FACTOR_LINE_REFUSE(s, "expected \"(\" at \"%.20s\"", s->at);
    while (!take(s, ")")) {
        const char *wrong = o->count == LK__FACTOR_LINE_ITEMS ? LK__FACTOR_LINE_REFUSE(s, "too many dimensions")
                                                              : read_item(s, &o->items[o->count]);
        if (wrong) return wrong;
        o->count++;
        (void)take(s, ",");
    }
    if (!s->positional && take(s, "@") && take_name(s, name)) o->swapped = is_flag_set(s, name);
    return o->output && take(s, ":") ? read_dependencies(s, o) : NULL;
}

static bool is_present(const lk__factor_line *s, bool output, int i)
{
    const lk__factor_query *q = s->query;
    return output ? i < q->outputs && q->out[i].dims : i < q->inputs && q->in[i].dims;
}

/* The operand that begins here, by its name or its place; -1: there is none, -2: it is unknown. */
static int take_operand(lk__factor_line *s, bool output, int place, bool *all)
{
    const lk__graph_operand *known = output ? s->op->out : s->op->in;
    char                     name[LK__FACTOR_NAME];
    *all = take(s, "*");
    skip_blanks(s);
    if (*all) return 0;
    if (*s->at == '(') return s->positional && place < count_operands(s, output) ? place : -2;
    if (!take_name(s, name)) return -1;
    int index = s->positional ? -1 : find_operand(known, count_operands(s, output), name);
    return index < 0 ? -2 : index;
}

/* The operands of one side; a repeated one, and *, stand for all of them. */
static const char *read_operands(lk__factor_line *s, bool output)
{
    const lk__graph_operand *known = output ? s->op->out : s->op->in;
    int                      count = count_operands(s, output);
    for (int place = 0;; place++) {
        bool                    added = take(s, "+"), applied = take(s, "^"), all;
        lk__factor_line_operand first = {.output = output, .applied = applied};
        if ((added || applied) && s->positional)
            return LK__FACTOR_LINE_REFUSE(s, "only built-in operations can use + and ^");
        first.index = take_operand(s, output, place, &all);
        if (first.index == -1)
            return added || applied ? LK__FACTOR_LINE_REFUSE(s, "expected an operand at \"%.20s\"", s->at) : NULL;
        if (first.index < 0) return LK__FACTOR_LINE_REFUSE(s, "no such operand before \"%.20s\"", s->at);
        const char *wrong = read_dims(s, &first);
        if (wrong) return wrong;
        (void)take(s, ",");
        bool repeated = !s->positional && !output && known[first.index].presence == LK__REPEATED;
        int  last = repeated ? s->query->inputs - 1 : all ? count - 1 : first.index;
        if (added) s->f->added |= 1u << first.index;
        for (int i = first.index; i <= last && s->count < LK__FACTOR_LINE_OPERANDS; i++) {
            s->operands[s->count] = first;
            s->operands[s->count].index = i;
            s->operands[s->count++].present = is_present(s, output, i);
        }
    }
}

/* ---- what follows the operands ---- */

static bool take_attribute(lk__factor_line *s, int *id)
{
    char name[LK__FACTOR_NAME];
    *id = take_name(s, name) ? find_attribute(name) : -1;
    return *id >= 0;
}

/* a=heads, a*b=heads: the factors must be those of an operand. */
static const char *read_extent(lk__factor_line *s, const char *name)
{
    lk__factors *f = s->f;
    if (f->extents == (int)(sizeof f->extent / sizeof *f->extent)) return LK__FACTOR_LINE_REFUSE(s, "too many extents");
    lk__factor_product *p = &f->extent[f->extents].product;
    char                more[LK__FACTOR_NAME];
    *p = (lk__factor_product){.count = 1, .factor = {find_factor(s, name, (name_marks){0})}};
    while (take(s, "*") && take_name(s, more) && p->count < LK__FACTOR_PRODUCT)
        p->factor[p->count++] = find_factor(s, more, (name_marks){0});
    if (!take(s, "=") || !take_attribute(s, &f->extent[f->extents].attribute))
        return LK__FACTOR_LINE_REFUSE(s, "expected an attribute at \"%.20s\"", s->at);
    f->extents++;
    return NULL;
}

/* a!flag: coupled where the attribute is set. */
static void couple_where(lk__factor_line *s, const char *name, int id)
{
    if (lk__factor_line_attribute(s->query->attrs, id) != 0) (void)find_factor(s, name, (name_marks){.coupled = true});
}

static const char *read_rule(lk__factor_line *s)
{
    const lk__op_attrs *a = s->query->attrs;
    char                name[LK__FACTOR_NAME];
    int                 id;
    if (take(s, "!axis")) {
        s->coupled_axis = a->axis;
    } else if (take(s, "-axis")) {
        s->without = a->axis;
    } else if (take(s, "^")) {
        if (!take_attribute(s, &id)) return LK__FACTOR_LINE_REFUSE(s, "expected an attribute at \"%.20s\"", s->at);
        s->applied |= lk__factor_line_attribute(a, id) != 0;
    } else if (take(s, "-mask")) {
        s->missing = a->mask;
        if (a->mean) s->mean = true;
    } else if (take_name(s, name)) {
        s->axes |= strcmp(name, "axes") == 0;
        s->reshape |= strcmp(name, "reshape") == 0;
        if (s->axes || s->reshape) return NULL;
        if (take(s, "..#")) {
            int group = find_group(s, name, false);
            if (group < 0 || !take_attribute(s, &id))
                return LK__FACTOR_LINE_REFUSE(s, "expected an attribute at \"%.20s\"", s->at);
            s->groups[group].length = (int)lk__factor_line_attribute(a, id);
        } else if (take(s, "!")) {
            if (!take_attribute(s, &id)) return LK__FACTOR_LINE_REFUSE(s, "expected an attribute at \"%.20s\"", s->at);
            couple_where(s, name, id);
        } else {
            return read_extent(s, name);
        }
    }
    return NULL;
}

const char *lk__factor_line_read(lk__factor_line *s)
{
    const char *wrong = read_operands(s, false);
    if (!wrong && !take(s, "->")) wrong = LK__FACTOR_LINE_REFUSE(s, "expected \"->\" at \"%.20s\"", s->at);
    if (!wrong) wrong = read_operands(s, true);
    while (!wrong && !s->positional && take(s, ";")) wrong = read_rule(s);
    skip_blanks(s);
    if (!wrong && *s->at && *s->at != '\n') wrong = LK__FACTOR_LINE_REFUSE(s, "cannot parse \"%.20s\"", s->at);
    return wrong;
}
