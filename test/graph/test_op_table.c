/* test_op_table.c - every operation has a descriptor in which every field is set; hashing, comparing and printing
 * attributes cover every field. */
#include "check.h"
#include "graph/op.h"

static bool is_mask(unsigned mask, int operands)
{
    return mask == LK__NO_OPERAND || (mask != 0 && mask >> (operands > 0 ? operands : 0) == 0);
}

static void check_operands(const char *op, const char *what, const lk__graph_operand *operands, int count, int most)
{
    for (int i = 0; i < most; i++) {
        const lk__graph_operand *o = &operands[i];
        bool                     set = o->name && *o->name && o->types && o->presence && o->layout;
        bool                     unset = !o->name && !o->types && !o->presence && !o->layout;
        CHECK(i < count ? set : unset, "%s: %s %d of %d", op, what, i, count);
        CHECK(i >= count || o->presence != LK__REPEATED || i == count - 1, "%s: only the last operand can repeat", op);
        for (int j = 0; j < i && i < count; j++)
            CHECK(strcmp(o->name, operands[j].name) != 0, "%s: two operands named %s", op, o->name);
    }
}

static void every_field_of_a_descriptor_is_set(void)
{
    for (int i = 0; i < LK__OP_COUNT; i++) {
        const char         *name = lk__op_name((lk__op)i);
        const lk__graph_op *d = lk__op_find((lk__op)i);
        CHECK(d->inputs != 0 && d->inputs <= LK__MAX_IN && d->outputs != 0 && d->outputs <= LK__MAX_OUT, "%s", name);
        check_operands(name, "input", d->in, d->inputs, LK__MAX_IN);
        check_operands(name, "output", d->out, d->outputs, LK__MAX_OUT);
        CHECK(d->attributes == LK__NO_ATTRIBUTES || (d->attributes && d->attributes >> LK__ATTR_COUNT == 0), "%s",
              name);
        CHECK(d->factors && d->shape && d->gradient && d->arithmetic && d->bytes, "%s", name);
        CHECK(is_mask(d->no_gradient, d->inputs) && is_mask(d->in_place, d->inputs), "%s", name);
        CHECK(d->leaves && d->runs && d->effect && d->evaluation && d->recompute && d->fuse[0].kind && d->loss, "%s",
              name);
    }
}

/* The attribute that a pattern sets, and the operand that it adds, are the operation's. */
static void check_fusion(const char *name, const lk__graph_op *d, const lk__graph_fusion *f)
{
    bool function = f->kind == LK__FUSION_FUNCTION || f->kind == LK__FUSION_KEPT || f->kind == LK__FUSION_GRADIENT;
    bool input = f->kind == LK__FUSION_SUM || f->kind == LK__FUSION_GRADIENT || f->kind == LK__FUSION_OPERAND;
    if (function) CHECK(d->attributes & LK__HAS(activation), "%s", name);
    if (f->kind == LK__FUSION_MAX_POOL) CHECK(d->attributes & LK__HAS(pool), "%s", name);
    if (input)
        CHECK(f->operand > 0 && f->operand < d->inputs && d->in[f->operand].presence == LK__OPTIONAL, "%s: input %d",
              name, f->operand);
    if (f->kind == LK__FUSION_KEPT)
        CHECK(f->operand > 0 && f->operand < d->outputs && d->out[f->operand].presence == LK__IF_READ, "%s: output %d",
              name, f->operand);
}

/* Fields of a descriptor that depend on each other. */
static void fields_of_a_descriptor_agree(void)
{
    for (int i = 0; i < LK__OP_COUNT; i++) {
        const char         *name = lk__op_name((lk__op)i);
        const lk__graph_op *d = lk__op_find((lk__op)i);
        if (d->effect == LK__EFFECT_IF_UPDATE) CHECK(d->attributes & LK__HAS(update), "%s", name);
        for (int j = 0; j < LK__FUSIONS; j++) check_fusion(name, d, &d->fuse[j]);
        CHECK((d->weigh != NULL) == (d->loss != LK__LOSS_NO), "%s", name);
        if (d->loss != LK__LOSS_NO)
            CHECK(d->outputs >= 2 && d->out[0].types == LK__TYPE_F64 && d->out[1].types == LK__TYPE_F64, "%s", name);
        for (int j = 0; j < d->inputs; j++)
            CHECK(d->in[j].types != LK__TYPE_GIVEN && d->in[j].types != LK__TYPE_PRODUCT, "%s: input %d", name, j);
        if (d->gradient == lk__gradient_stopped) CHECK(d->no_gradient == (1u << d->inputs) - 1, "%s", name);
        for (int j = 0; j < d->inputs; j++) CHECK(d->in[j].presence != LK__IF_READ, "%s: input %d", name, j);
        CHECK(d->out[0].presence != LK__IF_READ, "%s: the gradient is that of output 0", name);
        for (int j = 0; j < d->inputs; j++)
            if (d->in_place != LK__NO_OPERAND && d->in_place >> j & 1)
                CHECK(d->in[j].types == d->out[0].types && d->in[j].layout == d->out[0].layout, "%s: input %d", name,
                      j);
    }
}

/* An operation takes bf16 if, and only if, there are kernels for it. */
static void kernels_exist_for_the_types_that_a_descriptor_allows(void)
{
    lk_context *context;
    CHECK(lk_context_create(NULL, &context) == LK_OK);
    for (int i = 0; i < LK__OP_COUNT; i++) {
        const lk__graph_op *d = lk__op_find((lk__op)i);
        const char         *isa = lk_context_isa(context), *name = lk__op_name((lk__op)i);
        bool own = i == LK__OP_custom || i == LK__OP_custom_grad; /* callbacks of users are its kernels */
        bool runs = d->runs == LK__RUNS_KERNEL && !own, narrow = runs && !lk__op_is_wide((lk__op)i);
        CHECK(!runs || (lk__cpu_kernel(LK_F32, isa, (lk__op)i) && lk__cpu_kernel(LK_F64, isa, (lk__op)i)), "%s", name);
        if (runs) CHECK((lk__cpu_kernel(LK_BF16, isa, (lk__op)i) != NULL) == narrow, "%s in bf16", name);
    }
    lk_context_free(context);
}

/* Sets each byte of a record in turn: the records must differ, and the set must contain one field. */
static void attributes_hash_and_compare_every_field(void)
{
    static const lk__op_attrs none;
    lk__attr_set              seen = 0;
    CHECK(lk__attrs_set(&none) == 0 && lk__attrs_equal(&none, &none));
#define CHANGE(kind, field)                                                                         \
    do {                                                                                            \
        lk__op_attrs changed = none;                                                                \
        memset(&changed.field, 1, 1);                                                               \
        CHECK(lk__attrs_set(&changed) == LK__HAS(field), "%s", #field);                             \
        CHECK(!lk__attrs_equal(&none, &changed) && !lk__attrs_equal(&changed, &none), "%s", #field); \
        CHECK(lk__attrs_hash(&none, 1) != lk__attrs_hash(&changed, 1), "%s", #field);               \
        CHECK(strcmp(lk__attr_name(LK__ATTR_ID_##field), #field) == 0);                             \
        seen |= lk__attrs_set(&changed);                                                            \
    } while (0);
    LK__ATTR_LIST(CHANGE)
#undef CHANGE
    CHECK(seen == ((lk__attr_set)1 << LK__ATTR_COUNT) - 1);
}

static void attributes_print_what_differs(void)
{
    lk__op_attrs a = {.activation = LK__RELU, .pool = 2, .stride = 1, .padding = 1, .groups = 1}, b = {.scale = 0.1};
    char         text[256];
    lk__attrs_text(&a, lk__op_find(LK__OP_conv2d)->attributes, text, sizeof text);
    CHECK(strcmp(text, "+relu+max_pool 2, padding 1") == 0, "\"%s\"", text);
    lk__attrs_text(&b, lk__op_find(LK__OP_scale)->attributes, text, sizeof text);
    CHECK(strcmp(text, ", scale 0.1") == 0, "\"%s\"", text);
    b.scale = 0.1 + 1e-17 * 2;
    lk__attrs_text(&b, lk__op_find(LK__OP_scale)->attributes, text, sizeof text);
    CHECK(strtod(strstr(text, "scale ") + 6, NULL) == b.scale, "\"%s\"", text);
    for (size_t bytes = 1; bytes < 12; bytes++) { /* truncated at the end of the buffer */
        memset(text, 'x', sizeof text);
        lk__attrs_text(&a, lk__op_find(LK__OP_conv2d)->attributes, text, bytes);
        CHECK(strlen(text) == bytes - 1 && text[bytes] == 'x', "%zu", bytes);
    }
}

int main(void)
{
    RUN(every_field_of_a_descriptor_is_set);
    RUN(fields_of_a_descriptor_agree);
    RUN(kernels_exist_for_the_types_that_a_descriptor_allows);
    RUN(attributes_hash_and_compare_every_field);
    RUN(attributes_print_what_differs);
    return check_result();
}
