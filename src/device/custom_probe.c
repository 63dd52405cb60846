/* custom_probe.c - runs a callback of a user's operation on copies of its operands, with guard bytes around them, under
 * different circumstances that must not change its results. */
#include "device/custom.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    GUARD = 4096, /* bytes before and after each operand */
    GUARD_BYTE = 0xC3,
    OPERANDS = 2 * (LK_OPERATION_INPUTS + LK_OPERATION_OUTPUTS) + 1, /* and the workspace */
    WORKERS = 3,                                                     /* that a reversed run simulates */
};

typedef enum role { INPUT, OUTPUT, OUTPUT_GRADIENT, INPUT_GRADIENT, WORKSPACE } role;

typedef struct copied {
    role              role;
    int               index;
    bool              written; /* by the callback */
    const lk_operand *from;    /* the caller's; NULL: the workspace */
    size_t            bytes;
    char             *memory; /* guard, data, guard */
    char             *result; /* of the first run; NULL unless written */
} copied;

typedef struct probe {
    const lk__kernel_custom *custom;
    const lk_operation_call *call;
    lk__custom_operands      operands; /* the copies */
    copied                   all[OPERANDS];
    int                      count;
    char                    *finding;
} probe;

/* How a run differs from the first. */
typedef struct circumstances {
    int       fill;     /* the byte in outputs and workspace before it */
    int       reversed; /* see lk_operation_run */
    lk__pool *pool;
} circumstances;

__attribute__((format(printf, 2, 3))) static lk_status report(probe *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->finding, LK__CUSTOM_FINDING, format, arguments);
    va_end(arguments);
    return LK_EMISMATCH;
}

static const char *callback_name(const probe *p) { return p->call->backward ? "backward" : "forward"; }

static const char *copied_name(const copied *c, char text[48])
{
    static const char *const names[] = {"input", "output", "the gradient of output", "the gradient of input"};
    if (c->role == WORKSPACE)
        snprintf(text, 48, "its workspace");
    else
        snprintf(text, 48, "%s %d", names[c->role], c->index);
    return text;
}

static char *data_of(const copied *c) { return c->memory + GUARD; }

static lk_status add_copy(probe *p, role role, int index, const lk_operand *from, size_t bytes, bool written)
{
    copied *c = &p->all[p->count++];
    *c = (copied){.role = role, .index = index, .written = written, .from = from, .bytes = bytes};
    c->memory = lk__alloc(p->custom->context, LK_MEMORY_OTHER, bytes + 2 * GUARD);
    if (!c->memory) return LK_ENOMEM;
    if (written && bytes && role != WORKSPACE && !(c->result = lk__alloc(p->custom->context, LK_MEMORY_OTHER, bytes)))
        return LK_ENOMEM;
    memset(c->memory, GUARD_BYTE, GUARD);
    memset(c->memory + GUARD + bytes, GUARD_BYTE, GUARD);
    return LK_OK;
}

static lk_status add_copies(probe *p, role role, const lk_operand *from, lk_operand *to, int count, bool written)
{
    lk_status status = LK_OK;
    for (int i = 0; from && i < count && status >= 0; i++) {
        to[i] = from[i];
        if (!from[i].data) continue;
        size_t bytes = (size_t)lk_operand_elements(&from[i]) * lk_dtype_size(from[i].dtype);
        if ((status = add_copy(p, role, i, &from[i], bytes, written)) < 0) break;
        to[i].data = data_of(&p->all[p->count - 1]);
    }
    return status;
}

static lk_status make_copies(probe *p)
{
    const lk_operation_call *call = p->call;
    lk__custom_operands     *o = &p->operands;
    lk_operation_call        shapes;
    lk__custom_operands      recorded;
    lk_status                status = add_copies(p, INPUT, call->inputs, o->inputs, call->inputs_count, false);
    if (status >= 0) status = add_copies(p, OUTPUT, call->outputs, o->outputs, call->outputs_count, !call->backward);
    if (status >= 0)
        status =
            add_copies(p, OUTPUT_GRADIENT, call->output_gradients, o->output_gradients, call->outputs_count, false);
    if (status >= 0)
        status = add_copies(p, INPUT_GRADIENT, call->input_gradients, o->input_gradients, call->inputs_count, true);
    if (status < 0) return status;
    shapes = lk__custom_call(p->custom, call->backward, &recorded);
    size_t bytes = lk__custom_workspace(p->custom, &shapes, WORKERS);
    size_t most = lk__custom_workspace(p->custom, &shapes, lk_context_threads(p->custom->context));
    return add_copy(p, WORKSPACE, 0, NULL, bytes > most ? bytes : most, true);
}

static void free_copies(probe *p)
{
    for (int i = 0; i < p->count; i++) {
        lk__free(p->custom->context, LK_MEMORY_OTHER, p->all[i].memory, p->all[i].bytes + 2 * GUARD);
        lk__free(p->custom->context, LK_MEMORY_OTHER, p->all[i].result, p->all[i].bytes);
    }
}

/* What is in an operand before a run: not the same in the workspace, so that a copy of that is not taken for an element
 * that was omitted. */
static int fill_of(const copied *c, int fill) { return c->role == WORKSPACE ? fill ^ 0x3C : fill; }

static bool is_filled(const char *memory, size_t bytes, int byte)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)memory[i] != byte) return false;
    return true;
}

/* The guard bytes are as they were; with fewer threads, the part of the workspace that was not asked for counts too. */
static lk_status check_guards(probe *p, size_t workspace, int fill)
{
    for (int i = 0; i < p->count; i++) {
        const copied *c = &p->all[i];
        char          name[48];
        bool unused = c->role != WORKSPACE || is_filled(data_of(c) + workspace, c->bytes - workspace, fill_of(c, fill));
        if (!is_filled(c->memory, GUARD, GUARD_BYTE))
            return report(p, "%s writes before the beginning of %s", callback_name(p), copied_name(c, name));
        if (!unused || !is_filled(data_of(c) + c->bytes, GUARD, GUARD_BYTE))
            return report(p, "%s writes past the end of %s%s", callback_name(p), copied_name(c, name),
                          c->role == WORKSPACE ? ", whose size is what the workspace callback returned" : "");
    }
    return LK_OK;
}

static lk_status check_inputs(probe *p)
{
    for (int i = 0; i < p->count; i++) {
        const copied *c = &p->all[i];
        char          name[48];
        if (c->written || !c->bytes || memcmp(data_of(c), c->from->data, c->bytes) == 0) continue;
        return report(p, "%s writes to %s, which it may only read", callback_name(p), copied_name(c, name));
    }
    return LK_OK;
}

static lk_status run_once(probe *p, circumstances how)
{
    struct lk_operation_run run = {.pool = how.pool, .reversed = how.reversed};
    lk_operation_call       call = *p->call, shapes;
    lk__custom_operands     recorded;
    int                     threads = how.reversed ? how.reversed : how.pool ? lk__pool_threads(how.pool) : 1;
    for (int i = 0; i < p->count; i++) {
        copied *c = &p->all[i];
        if (c->written)
            memset(data_of(c), fill_of(c, how.fill), c->bytes);
        else if (c->bytes)
            memcpy(data_of(c), c->from->data, c->bytes);
    }
    call.inputs = p->operands.inputs;
    call.outputs = p->operands.outputs;
    call.output_gradients = call.backward ? p->operands.output_gradients : NULL;
    call.input_gradients = call.backward ? p->operands.input_gradients : NULL;
    call.threads = threads;
    call.run = &run;
    shapes = lk__custom_call(p->custom, call.backward, &recorded);
    size_t workspace = lk__custom_workspace(p->custom, &shapes, threads);
    call.workspace = workspace ? data_of(&p->all[p->count - 1]) : NULL;
    lk_status status = (call.backward ? p->custom->operation.backward : p->custom->operation.forward)(&call);
    lk_status guards = check_guards(p, workspace, how.fill);
    if (guards < 0) return guards;
    if (status < 0) {
        report(p, "its %s %s%s", callback_name(p), run.message[0] ? "failed: " : "returned ",
               run.message[0] ? run.message : lk_status_name(status));
        return status;
    }
    return check_inputs(p);
}

static void keep_results(probe *p)
{
    for (int i = 0; i < p->count; i++)
        if (p->all[i].result) memcpy(p->all[i].result, data_of(&p->all[i]), p->all[i].bytes);
}

/* The first element that differs from the first run's; -1: none. */
static int64_t find_difference(const copied *c)
{
    size_t size = c->from ? lk_dtype_size(c->from->dtype) : 1;
    for (size_t at = 0; c->result && at < c->bytes; at += size)
        if (memcmp(data_of(c) + at, c->result + at, size) != 0) return (int64_t)(at / size);
    return -1;
}

/* why: how this run's circumstances differ from the first's. */
static lk_status compare_results(probe *p, circumstances how, int first_fill, const char *why)
{
    for (int i = 0; i < p->count; i++) {
        const copied *c = &p->all[i];
        int64_t       element = find_difference(c);
        char          name[48];
        if (element < 0) continue;
        size_t size = lk_dtype_size(c->from->dtype), at = (size_t)element * size;
        if (how.fill != first_fill && is_filled(data_of(c) + at, size, how.fill) &&
            is_filled(c->result + at, size, first_fill))
            return report(p, "%s does not write element %lld of %s", callback_name(p), (long long)element,
                          copied_name(c, name));
        return report(p, "%s: element %lld of %s %s", callback_name(p), (long long)element, copied_name(c, name), why);
    }
    return LK_OK;
}

static lk_status run_all(probe *p, lk__pool *pool)
{
    enum { FILL = 0xA5, OTHER_FILL = 0x5A };
    const struct {
        circumstances how;
        const char   *why;
    } runs[] = {
        {{FILL, 0, NULL}, "differs between two identical runs"},
        {{OTHER_FILL, 0, NULL}, "depends on the previous contents of the outputs or the workspace"},
        {{FILL, WORKERS, NULL}, "changes with the number of threads, or with the order in which tiles run"},
        {{FILL, 0, pool}, "changes with the number of threads"},
    };
    lk_status status = run_once(p, runs[0].how);
    if (status < 0) return status;
    keep_results(p);
    for (size_t i = 0; i < sizeof runs / sizeof *runs && status >= 0; i++) {
        status = run_once(p, runs[i].how);
        if (status >= 0) status = compare_results(p, runs[i].how, FILL, runs[i].why);
    }
    return status;
}

lk_status lk__custom_probe(const lk__kernel_custom *custom, const lk_operation_call *call, lk__pool *pool,
                           char finding[LK__CUSTOM_FINDING])
{
    probe     p = {.custom = custom, .call = call, .finding = finding};
    lk_status status = make_copies(&p);
    if (status >= 0)
        status = run_all(&p, pool);
    else
        snprintf(finding, LK__CUSTOM_FINDING, "out of memory: cannot run the check");
    for (int i = 0; i < p.count && status >= 0; i++)
        if (p.all[i].result) memcpy(p.all[i].from->data, p.all[i].result, p.all[i].bytes);
    free_copies(&p);
    return status;
}
