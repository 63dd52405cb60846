/* optimizer.c - looks up properties of an optimizer in its descriptor: names, options and their ranges, attributes,
 * state. */
#include "graph/optimizer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(LK__OPTION_COUNT <= 32, "a set of options is a uint32_t");

#define DECLARE(constant, name) extern const lk__graph_optimizer lk__optimizer_##name;
LK_OPTIMIZER_LIST(DECLARE)
#undef DECLARE

const lk__graph_optimizer *lk__optimizer_find(lk_optimizer_kind kind)
{
    static const lk__graph_optimizer *const table[] = {
#define ENTRY(constant, name) [constant] = &lk__optimizer_##name,
        LK_OPTIMIZER_LIST(ENTRY)
#undef ENTRY
    };
    return (unsigned)kind < sizeof table / sizeof *table ? table[kind] : NULL;
}

const char *lk_optimizer_name(lk_optimizer_kind kind)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(kind);
    return optimizer ? optimizer->name : NULL;
}

bool lk_optimizer_parse(const char *name, lk_optimizer_kind *kind)
{
    for (int i = 0; lk_optimizer_name((lk_optimizer_kind)i); i++)
        if (strcmp(name, lk_optimizer_name((lk_optimizer_kind)i)) == 0) {
            *kind = (lk_optimizer_kind)i;
            return true;
        }
    return false;
}

/* ---- options ---- */

bool lk_optimizer_has(lk_optimizer_kind kind, const char *option)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(kind);
#define NUMBER(field, name, value, low, high, doc) \
    if (optimizer && strcmp(option, name) == 0) return optimizer->options & LK__OPTION(field);
#define PAIR(id, first, second, name, argument, a, b, low, high, doc) NUMBER(id, name, a, low, high, doc)
#define FLAG(field, name, doc) NUMBER(field, name, 0, 0, 1, doc)
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    return false;
}

void lk_optimizer_defaults(lk_optimizer_kind kind, lk_optimizer_config *o)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(kind);
    o->kind = kind;
#define NUMBER(field, name, value, low, high, doc) o->field = value;
#define PAIR(id, first, second, name, argument, a, b, low, high, doc) o->first = a, o->second = b;
#define FLAG(field, name, doc) o->field = false;
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    if (optimizer && optimizer->defaults) optimizer->defaults(o);
}

void lk__optimizer_attributes(const lk_optimizer_config *o, lk__op_attrs *a)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(o->kind);
#define NUMBER(field, name, value, low, high, doc) \
    if (optimizer->options & LK__OPTION(field)) a->field = o->field;
#define PAIR(id, first, second, name, argument, x, y, low, high, doc) \
    if (optimizer->options & LK__OPTION(id)) a->first = o->first, a->second = o->second;
#define FLAG(field, name, doc) NUMBER(field, name, 0, 0, 1, doc)
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    if (optimizer->attributes) optimizer->attributes(a);
}

typedef struct complaint {
    char  *text;
    size_t bytes;
} complaint;

static bool is_in_range(const complaint *why, const char *name, double value, double low, double high)
{
    if (value >= low && value <= high && isfinite(value)) return true; /* false for a NaN, too */
    int n = snprintf(why->text, why->bytes, "the optimizer's %s is out of range: it is %.10g; expected ", name, value);
    if (n >= 0 && (size_t)n < why->bytes)
        snprintf(why->text + n, why->bytes - (size_t)n,
                 isinf(high) ? "a finite number of at least %.10g" : "%.10g to %.10g", low, high);
    return false;
}

bool lk__optimizer_check(const lk_optimizer_config *o, char *text, size_t bytes)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(o->kind);
    const complaint            why = {text, bytes};
    if (!optimizer) {
        snprintf(text, bytes, "unknown optimizer %d", (int)o->kind);
        return false;
    }
    /* All of them, also those of other optimizers: a NaN is a mistake wherever it is, and so is nesterov without
     * momentum. */
    bool good = is_in_range(&why, "lr", o->lr, 0, INFINITY) &&
                is_in_range(&why, "weight decay", o->weight_decay, 0, INFINITY) &&
                is_in_range(&why, "clip", o->clip, 0, INFINITY);
#define NUMBER(field, name, value, low, high, doc) good = good && is_in_range(&why, name, o->field, low, high);
#define PAIR(id, first, second, name, argument, a, b, low, high, doc) \
    NUMBER(first, #first, a, low, high, doc) NUMBER(second, #second, b, low, high, doc)
#define FLAG(field, name, doc)
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    for (int kind = 0; good && (optimizer = lk__optimizer_find((lk_optimizer_kind)kind)); kind++) {
        const char *wrong = optimizer->check ? optimizer->check(o) : NULL;
        if (wrong) snprintf(text, bytes, "%s", wrong);
        good = !wrong;
    }
    return good;
}

/* ---- state ---- */

unsigned lk__optimizer_keeps(const lk_optimizer_config *o)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(o->kind);
    unsigned                   all = 0;
    if (optimizer->keeps) return optimizer->keeps(o);
    for (int i = 0; i < LK_MAX_MOMENTS; i++) all |= (unsigned)(optimizer->moments[i] != NULL) << i;
    return all;
}

/* ---- text ---- */

typedef struct writer {
    char  *text;
    size_t used, bytes;
} writer;

__attribute__((format(printf, 2, 3))) static void append(writer *w, const char *format, ...)
{
    if (w->used >= w->bytes) return;
    va_list arguments;
    va_start(arguments, format);
    w->used += (size_t)vsnprintf(w->text + w->used, w->bytes - w->used, format, arguments);
    va_end(arguments);
}

const char *lk__optimizer_text(const lk_optimizer_config *o, char *text, size_t bytes)
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(o->kind);
    writer                     w = {text, 0, bytes};
    append(&w, "%s, lr %.17g, weight decay %.17g (all: %d), clip %.17g", optimizer ? optimizer->name : "?", o->lr,
           o->weight_decay, o->decay_all, o->clip);
#define NUMBER(field, name, value, low, high, doc) \
    if (optimizer && (optimizer->options & LK__OPTION(field))) append(&w, ", " name " %.17g", (double)o->field);
#define PAIR(id, first, second, name, argument, a, b, low, high, doc) \
    if (optimizer && (optimizer->options & LK__OPTION(id))) append(&w, ", " name " %.17g %.17g", o->first, o->second);
#define FLAG(field, name, doc) NUMBER(field, name, 0, 0, 1, doc)
    LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)
#undef NUMBER
#undef PAIR
#undef FLAG
    return text;
}
