/* op.c - names of operations; hashing, comparing and printing attributes, field by field of their schema. */
#include "base/op.h"

#include "base/collective.h"
#include "base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lk__op_name(lk__op op)
{
    static const char *const names[] = {
#define OP_NAME(name, types) #name,
        LK__OP_LIST(OP_NAME)
#undef OP_NAME
    };
    return (unsigned)op < LK__OP_COUNT ? names[op] : "?";
}

bool lk__op_is_wide(lk__op op)
{
    enum { ANY, WIDE };
    static const unsigned char types[] = {
#define OP_TYPES(name, types) types,
        LK__OP_LIST(OP_TYPES)
#undef OP_TYPES
    };
    return types[op] == WIDE;
}

const char *lk__attr_name(int id)
{
    static const char *const names[] = {
#define ATTR_NAME(kind, name) #name,
        LK__ATTR_LIST(ATTR_NAME)
#undef ATTR_NAME
    };
    return (unsigned)id < LK__ATTR_COUNT ? names[id] : "?";
}

const char *lk__unary_name(lk__op_unary unary)
{
    static const char *const names[] = {
#define UNARY_NAME(constant, name, saves, fused, recorded) #name,
        LK__UNARY_LIST(UNARY_NAME)
#undef UNARY_NAME
    };
    return (unsigned)unary < sizeof names / sizeof *names ? names[unary] : "?";
}

_Static_assert(LK__ATTR_COUNT < LK__ATTR_SET_BITS, "the last bit of a set of attributes is LK__NO_ATTRIBUTES");

/* Fields one by one: the padding between them is undefined. */
uint64_t lk__attrs_hash(const lk__op_attrs *a, uint64_t hash)
{
#define ATTR_HASH(kind, name) hash = lk__hash64(&a->name, sizeof a->name, hash);
    LK__ATTR_LIST(ATTR_HASH)
#undef ATTR_HASH
    return hash;
}

/* Bit by bit: two zeros of different signs are different attributes. */
static bool same_bits(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

bool lk__attrs_equal(const lk__op_attrs *a, const lk__op_attrs *b)
{
#define ATTR_EQUAL(kind, name) \
    if (!same_bits(&a->name, &b->name, sizeof a->name)) return false;
    LK__ATTR_LIST(ATTR_EQUAL)
#undef ATTR_EQUAL
    return true;
}

lk__attr_set lk__attrs_set(const lk__op_attrs *a)
{
    static const lk__op_attrs none;
    lk__attr_set              set = 0;
#define ATTR_SET(kind, name) \
    if (!same_bits(&a->name, &none.name, sizeof a->name)) set |= LK__HAS(name);
    LK__ATTR_LIST(ATTR_SET)
#undef ATTR_SET
    return set;
}

typedef struct output {
    char  *text;
    size_t used, bytes;
} output;

__attribute__((format(printf, 2, 3))) static void print(output *o, const char *format, ...)
{
    if (o->used >= o->bytes) return;
    va_list arguments;
    va_start(arguments, format);
    o->used += (size_t)vsnprintf(o->text + o->used, o->bytes - o->used, format, arguments);
    va_end(arguments);
}

static void print_axes(output *o, const char *name, const int axes[LK_MAX_RANK])
{
    int rank = LK_MAX_RANK; /* axes past a permutation's last are 0 */
    while (rank > 1 && axes[rank - 1] == 0) rank--;
    print(o, ", %s", name);
    for (int i = 0; i < rank; i++) print(o, "%s%d", i ? "," : " ", axes[i]);
}

/* The shortest form that reads back as the same number, or all of its digits. */
static void print_real(output *o, const char *name, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%g", value);
    if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    print(o, ", %s %s", name, text);
}

static void print_summation(output *o, const char *name, const lk__op_summation *sum)
{
    if (sum->parts <= 1) return;
    print(o, ", %s in %lld parts", name, (long long)sum->parts);
    if (sum->unit > 1) print(o, " of %lld", (long long)sum->unit);
    for (int i = 0; i < LK__SUM_SEGMENTS && sum->segment[i]; i++)
        print(o, "%s%lld", i ? "|" : " of ", (long long)sum->segment[i]);
}

static const char *reduction_name(lk_reduce_op reduction)
{
    static const char *const names[] = {"sum", "avg", "min", "max", "prod"};
    return (unsigned)reduction < sizeof names / sizeof *names ? names[reduction] : "?";
}

void lk__attrs_text(const lk__op_attrs *a, lk__attr_set has, char *text, size_t bytes)
{
    output o = {text, 0, bytes};
    char   axes[64];
    if (bytes) text[0] = 0;
#define PRINT_reduction(name) print(&o, " %s", reduction_name(a->name))
#define PRINT_order(name) print(&o, " over %s", a->name == LK__ORDER_LEAVES ? "leaves" : "ranks")
#define PRINT_group(name) \
    if (!a->mesh) print(&o, ", group data%s", a->name == LK__GROUP_DATA_BY_HOST ? " by host" : "")
#define PRINT_mesh(name) \
    if (a->name)         \
    print(&o, ", along %s%s", lk__axes_text(a->name, axes, sizeof axes), a->group ? ", once on every host" : "")
#define PRINT_transfer(name) print(&o, ", stage %d, number %d", a->name.stage, a->name.number)
#define PRINT_summation(name) print_summation(&o, #name, &a->name)
#define PRINT_unary(name) print(&o, " %s", lk__unary_name(a->name))
#define PRINT_activation(name) \
    if (a->name) print(&o, "+%s", lk__unary_name(a->name))
#define PRINT_pool(name) \
    if (a->name > 1) print(&o, "+max_pool %lld", (long long)a->name)
#define PRINT_integer(name) \
    if (a->name) print(&o, ", %s %lld", #name, (long long)a->name)
#define PRINT_count(name) \
    if (a->name > 1) print(&o, ", %s %lld", #name, (long long)a->name)
#define PRINT_flag(name) \
    if (a->name) print(&o, ", %s", #name)
#define PRINT_index(name) print(&o, ", %s %d", #name, a->name)
#define PRINT_axes(name) print_axes(&o, #name, a->name)
#define PRINT_mask(name) print(&o, ", %s 0x%x", #name, a->name)
#define PRINT_real(name) \
    if (a->name != 0) print_real(&o, #name, a->name)
#define PRINT_factor(name) \
    if (a->name != 1) print_real(&o, #name, a->name)
#define PRINT_ignored(name) \
    if (a->name != -100) print(&o, ", %s %lld", #name, (long long)a->name)
#define PRINT_custom(name) (void)0
#define PRINT_stream(name) print(&o, ", %s %llu", #name, (unsigned long long)a->name)
#define ATTR_PRINT(kind, name) \
    if (has & LK__HAS(name)) { \
        PRINT_##kind(name);    \
    }
    LK__ATTR_LIST(ATTR_PRINT)
#undef ATTR_PRINT
}
