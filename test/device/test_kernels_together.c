/* test_kernels_together.c - nodes that a device runs in one launch (device/launch_group.h), against the CPU's kernels
 * of f64 one by one: a norm with the products that read it, attention with what makes its operands, both gradients of a
 * layer with relu's, cross-entropy with its gradient. Results that the nodes leave for others are compared, too.
 *
 * ctest: label threaded */
#include "base/base.h"
#include "base/bf16.h"
#include "check.h"

#include "kernel_device.h"

#include <math.h>

typedef enum kind { REAL, WIDE, F64, I32 } kind; /* of elements, of sums, of numbers, of ids */

typedef struct value {
    kind               kind;
    lk__kernel_operand shape; /* data: the host's, doubles or ids */
    void              *device;
    bool               written;
} value;

typedef struct node {
    lk__op       op;
    lk__op_attrs attrs;
    int          in[LK__MAX_IN], out[LK__MAX_OUT], inputs, outputs; /* numbers of values; -1: absent */
} node;

enum { VALUES = 32, NODES = 8 };
static struct sequence {
    value            value[VALUES];
    node             node[NODES];
    int              values, nodes;
    lk_dtype         type;
    lk__device_group group; /* without calls */
} s;
static lk_context *context;
static uint64_t    random_state = 88172645463325252u;

static double uniform(double low, double high)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (high - low) * ((double)(random_state >> 11) / 9007199254740992.0);
}

/* ---- a sequence of nodes ---- */

static void begin_sequence(lk_dtype type, lk__device_group_kind kind)
{
    s.values = s.nodes = 0;
    s.type = type;
    s.group = (lk__device_group){.kind = kind};
    for (int i = 0; i < LK__GROUP_ROLES; i++) s.group.role[i] = -1;
}

/* The node that is added next has this role. */
static void set_role(int role) { s.group.role[role] = s.nodes; }

static lk_dtype type_on_device(kind k)
{
    return k == I32 ? LK_I32 : k == F64 ? LK_F64 : k == WIDE && s.type == LK_BF16 ? LK_F32 : s.type;
}

/* Values that every type holds, in sixteenths. */
static int new_value(kind k, int rank, int64_t a, int64_t b, int64_t c)
{
    value *v = &s.value[s.values];
    *v = (value){.kind = k, .shape = {.dtype = k == I32 ? LK_I32 : LK_F64, .rank = rank, .dims = {a, b, c}}};
    int64_t n = lk__operand_elements(&v->shape);
    v->shape.data = calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n && k != I32; i++) ((double *)v->shape.data)[i] = round(uniform(-16, 16)) / 16;
    return s.values++;
}

static int32_t *ids_of(int v) { return s.value[v].shape.data; }

/* Operands end with -2. */
#define NODE(op, attributes, inputs, outputs) \
    add_node(LK__OP_##op, attributes, (int[]){inputs, -2}, (int[]){outputs, -2})
#define LIST(...) __VA_ARGS__
static void add_node(lk__op op, lk__op_attrs attrs, const int *in, const int *out)
{
    node *n = &s.node[s.nodes++];
    *n = (node){.op = op, .attrs = attrs};
    while (in[n->inputs] != -2) n->in[n->inputs] = in[n->inputs], n->inputs++;
    while (out[n->outputs] != -2) {
        int v = n->out[n->outputs] = out[n->outputs];
        if (v >= 0) s.value[v].written = true;
        n->outputs++;
    }
}

static lk__kernel_call call_of(const node *n, bool on_device)
{
    lk__kernel_call call = {.attrs = &n->attrs, .inputs = n->inputs, .outputs = n->outputs};
    for (int k = 0; k < n->inputs + n->outputs; k++) {
        int                 v = k < n->inputs ? n->in[k] : n->out[k - n->inputs];
        lk__kernel_operand *o = k < n->inputs ? &call.in[k] : &call.out[k - n->inputs];
        if (v < 0) continue;
        *o = s.value[v].shape;
        if (on_device) o->data = s.value[v].device, o->dtype = type_on_device(s.value[v].kind);
    }
    return call;
}

/* ---- running ---- */

static void write_device(value *v)
{
    int64_t  n = lk__operand_elements(&v->shape);
    lk_dtype type = type_on_device(v->kind);
    size_t   bytes = (size_t)n * lk_dtype_size(type) + KERNEL_GUARD;
    char    *memory = calloc(1, bytes);
    for (int64_t i = 0; i < n; i++) {
        double x = v->kind == I32 ? ((int32_t *)v->shape.data)[i] : ((double *)v->shape.data)[i];
        switch (type) {
        case LK_I32: ((int32_t *)(void *)memory)[i] = (int32_t)x; break;
        case LK_F32: ((float *)(void *)memory)[i] = (float)x; break;
        case LK_BF16: ((lk__bf16 *)(void *)memory)[i] = lk__to_bf16((float)x); break;
        default: ((double *)(void *)memory)[i] = x;
        }
    }
    memset(memory + bytes - KERNEL_GUARD, 0xA5, KERNEL_GUARD);
    require_device(lk__device_alloc(kernel_device, LK_MEMORY_OTHER, bytes, (char **)&v->device), "memory");
    require_device(lk__device_write(kernel_device, kernel_stream, v->device, memory, bytes), "a copy");
    free(memory);
}

/* The largest difference from the CPU's, in proportion to the largest number. */
static double compare_device(value *v, bool *past)
{
    int64_t  n = lk__operand_elements(&v->shape);
    lk_dtype type = type_on_device(v->kind);
    size_t   bytes = (size_t)n * lk_dtype_size(type) + KERNEL_GUARD;
    char    *memory = calloc(1, bytes);
    double   worst = 0, largest = 1e-3;
    require_device(lk__device_read(kernel_device, kernel_stream, memory, v->device, bytes), "a copy");
    for (int64_t i = 0; i < n; i++) {
        double want = v->kind == I32 ? ((int32_t *)v->shape.data)[i] : ((double *)v->shape.data)[i], got;
        switch (type) {
        case LK_I32: got = ((int32_t *)(void *)memory)[i]; break;
        case LK_F32: got = (double)((float *)(void *)memory)[i]; break;
        case LK_BF16: got = (double)lk__from_bf16(((lk__bf16 *)(void *)memory)[i]); break;
        default: got = ((double *)(void *)memory)[i];
        }
        worst = fabs(got - want) <= worst ? worst : fabs(got - want); /* NaN is kept */
        largest = fmax(largest, fabs(want));
    }
    for (int i = 0; i < KERNEL_GUARD; i++) *past |= (unsigned char)memory[bytes - KERNEL_GUARD + (size_t)i] != 0xA5;
    lk__device_free(kernel_device, LK_MEMORY_OTHER, v->device, bytes);
    free(memory);
    return worst / largest;
}

static void *run_node_on_cpu(const node *n)
{
    const lk__kernel_entry *entry = lk__cpu_kernel(LK_F64, lk_context_isa(context), n->op);
    lk__kernel_call         call = call_of(n, false);
    lk__kernel_invalid_id   invalid = {.found = false};
    call.pool = lk__context_pool(context);
    call.invalid = &invalid;
    call.workspace =
        aligned_alloc(LK__ALIGN, lk__round_up((entry->workspace ? entry->workspace(&call, 1) : 0) + 1, LK__ALIGN));
    entry->run(&call);
    free(call.workspace);
    return NULL;
}

/* Runs all nodes as one group. The tolerance is that of the type. */
static void run_sequence(const char *name)
{
    lk__kernel_call        calls[NODES];
    const lk__kernel_call *all[NODES];
    lk__op                 ops[NODES];
    lk__device_kernel      kernels[NODES];
    char                  *workspaces[NODES];
    size_t                 bytes[NODES];
    for (int i = 0; i < s.values; i++) write_device(&s.value[i]);
    for (int i = 0; i < s.nodes; i++) {
        calls[i] = call_of(&s.node[i], true);
        lk__kernel_call shapes = shapes_of(&calls[i]);
        kernels[i] = kernel_device->backend->kernels.find(kernel_device, s.node[i].op, s.type, &shapes);
        bytes[i] = (kernels[i].workspace ? kernels[i].workspace(&shapes, 1) : 0) + KERNEL_GUARD;
        require_device(lk__device_alloc(kernel_device, LK_MEMORY_OTHER, bytes[i], &workspaces[i]), "memory");
        calls[i].workspace = workspaces[i];
        calls[i].device = kernel_device;
        calls[i].stream = kernel_stream;
        ops[i] = s.node[i].op;
        all[i] = &calls[i];
    }
    const lk__device_group_kernel *kernel = &kernel_device->backend->kernels.group_kernels[s.group.kind];
    s.group.count = s.nodes;
    s.group.ops = ops;
    s.group.calls = all;
    bool supported = kernel->supports(kernel_device, &s.group);
    CHECK(supported, "%s: the device does not run the nodes in one launch", name);
    if (supported) require_device(kernel->run(kernel_device, &s.group), name);
    for (int i = 0; i < s.nodes; i++) run_node_on_cpu(&s.node[i]);
    for (int i = 0; i < s.values; i++) {
        bool   past = false;
        double error = compare_device(&s.value[i], &past);
        double most = !s.value[i].written ? 0 : s.type == LK_BF16 ? 0x1p-5 : 2e-5;
        CHECK(error <= most, "%s %s: value %d is %.1e from the CPU's", name, lk_dtype_name(s.type), i, error);
        CHECK(!past, "%s: something was written behind value %d", name, i);
        free(s.value[i].shape.data);
    }
    for (int i = 0; i < s.nodes; i++) lk__device_free(kernel_device, LK_MEMORY_OTHER, workspaces[i], bytes[i]);
}

#define EACH_TYPE(type) \
    for (lk_dtype type = LK_F32; type != LK_DTYPE_COUNT; type = type == LK_F32 ? LK_BF16 : LK_DTYPE_COUNT)

/* ---- generation ---- */

static void norm_and_products(lk_dtype type, bool rms, int64_t rows, int64_t width, int products, int64_t n, bool gated)
{
    char         name[96];
    lk__op_attrs norm = {.axis = 1, .epsilon = 1e-5}, none = {0};
    begin_sequence(type, LK__GROUP_OF_NORM);
    int x = new_value(REAL, 3, rows, 1, width), w = new_value(WIDE, 1, width, 1, 1),
        b = new_value(WIDE, 1, width, 1, 1);
    int residual = new_value(REAL, 3, rows, 1, width), y = new_value(REAL, 3, rows, 1, width);
    int mean = new_value(WIDE, 2, rows, 1, 1), rstd = new_value(WIDE, 2, rows, 1, 1),
        sum = new_value(REAL, 3, rows, 1, width);
    set_role(LK__ROLE_NORM);
    if (rms)
        NODE(rms_norm, norm, LIST(x, w, residual), LIST(y, rstd, sum));
    else
        NODE(layer_norm, norm, LIST(x, w, b, residual), LIST(y, mean, rstd, sum));
    int c[3];
    for (int i = 0; i < products; i++) {
        int64_t      columns = gated || i == 0 ? n : n / 2 + 8 * i;
        lk__op_attrs attrs = {.transposed = !rms};
        int          weight = rms ? new_value(REAL, 2, columns, width, 1) : new_value(REAL, 2, width, columns, 1);
        int          bias = i == 1 && !gated ? new_value(REAL, 1, columns, 1, 1) : -1;
        c[i] = new_value(REAL, 3, rows, 1, columns);
        set_role(i == 0 ? LK__ROLE_PRODUCT : LK__ROLE_LAST_PRODUCT);
        if (i == 0) set_role(LK__ROLE_LAST_PRODUCT);
        NODE(linear, attrs, LIST(y, weight, bias), LIST(c[i]));
    }
    if (gated) {
        int gate = new_value(REAL, 3, rows, 1, n);
        set_role(LK__ROLE_GATE);
        NODE(swiglu, none, LIST(c[0], c[1]), LIST(gate));
    }
    snprintf(name, sizeof name, "%s and %d products of %lld rows, %lld to %lld%s", rms ? "rms_norm" : "layer_norm",
             products, (long long)rows, (long long)width, (long long)n, gated ? ", gated" : "");
    run_sequence(name);
}

static void a_norm_runs_with_its_products(void)
{
    EACH_TYPE(type)
    for (int64_t rows = 1; rows <= 8; rows = rows < 3 ? rows + 1 : rows + 2) {
        norm_and_products(type, true, rows, 256, 3, 256, false);
        norm_and_products(type, true, rows, 328, 2, 600, true);
        norm_and_products(type, true, rows, 1000, 1, 48, false);
        norm_and_products(type, false, rows, 200, 1, 600, false);
        norm_and_products(type, false, rows, 768, 1, 1600, false);
    }
}

/* Queries and keys are rotated, or all three are slices of one product's rows. */
static void attention_step(lk_dtype type, int64_t batch, int64_t keys, int64_t heads, int64_t groups, int64_t d,
                           bool rotates)
{
    char         name[96];
    int64_t      width = heads * d, narrow = groups * d, all = width + 2 * narrow;
    lk__op_attrs attention = {.heads = heads, .kv_heads = groups, .scale = 1 / sqrt((double)d)}, none = {0};
    begin_sequence(type, LK__GROUP_OF_ATTENTION);
    int q = new_value(REAL, 3, batch, 1, width), k = new_value(REAL, 3, batch, 1, narrow),
        v = new_value(REAL, 3, batch, 1, narrow);
    int k_cache = new_value(REAL, 3, batch, keys, narrow), v_cache = new_value(REAL, 3, batch, keys, narrow);
    int rows = new_value(I32, 2, batch, 1, 1), first = new_value(I32, 2, batch, 1, 1),
        last = new_value(I32, 2, batch, 1, 1);
    int y = new_value(REAL, 3, batch, 1, width);
    for (int64_t i = 0; i < batch; i++) {
        ids_of(rows)[i] = i == 3 ? -1 : (int32_t)uniform(0, (double)keys);
        ids_of(last)[i] = i == 3 ? -1 : ids_of(rows)[i];
        ids_of(first)[i] = (int32_t)uniform(0, ids_of(rows)[i] / 2.0);
    }
    if (rotates) {
        lk__op_attrs turn = {.heads = heads}, turn_keys = {.heads = groups};
        int          x = new_value(REAL, 3, batch, 1, width), z = new_value(REAL, 3, batch, 1, narrow);
        int          table = new_value(WIDE, 2, keys, d, 1), positions = new_value(I32, 2, batch, 1, 1);
        for (int64_t i = 0; i < batch; i++) ids_of(positions)[i] = ids_of(rows)[i] < 0 ? 0 : ids_of(rows)[i];
        set_role(LK__ROLE_QUERY);
        NODE(rope, turn, LIST(x, table, positions), LIST(q));
        set_role(LK__ROLE_KEY);
        NODE(rope, turn_keys, LIST(z, table, positions), LIST(k));
    } else {
        int x = new_value(REAL, 3, batch, 1, all);
        set_role(LK__ROLE_QUERY);
        NODE(slice, ((lk__op_attrs){.axis = 2, .start = 0, .length = width}), LIST(x), LIST(q));
        set_role(LK__ROLE_KEY);
        NODE(slice, ((lk__op_attrs){.axis = 2, .start = width, .length = narrow}), LIST(x), LIST(k));
        set_role(LK__ROLE_VALUE);
        NODE(slice, ((lk__op_attrs){.axis = 2, .start = width + narrow, .length = narrow}), LIST(x), LIST(v));
    }
    set_role(LK__ROLE_KEY_WRITE);
    NODE(cache_write, none, LIST(k_cache, k, rows), LIST(k_cache));
    set_role(LK__ROLE_VALUE_WRITE);
    NODE(cache_write, none, LIST(v_cache, v, rows), LIST(v_cache));
    set_role(LK__ROLE_ATTENTION);
    NODE(attention, attention, LIST(q, k_cache, v_cache, first, last), LIST(y));
    snprintf(name, sizeof name, "attention of %lld queries to %lld keys, %lld heads, %lld groups of %lld",
             (long long)batch, (long long)keys, (long long)heads, (long long)groups, (long long)d);
    run_sequence(name);
}

static void attention_runs_with_what_makes_its_operands(void)
{
    EACH_TYPE(type)
    {
        attention_step(type, 1, 64, 4, 2, 64, true);
        attention_step(type, 4, 300, 8, 2, 64, true);
        attention_step(type, 5, 512, 3, 3, 24, false);
        attention_step(type, 4, 1100, 8, 2, 32, true);
        attention_step(type, 2, 700, 8, 1, 64, false);
        attention_step(type, 4, 40, 2, 2, 128, true);
    }
}

/* ---- training ---- */

static void layer_gradients(lk_dtype type, int64_t rows, int64_t inputs, int64_t outputs, bool transposed, bool bias,
                            int relu) /* relu: 0 none, 1 in place, 2 apart */
{
    char         name[96];
    lk__op_attrs attrs = {.transposed = transposed}, unary = {.unary = LK__RELU};
    begin_sequence(type, LK__GROUP_OF_GRADIENTS);
    int x = new_value(REAL, 2, rows, inputs, 1), dy = new_value(REAL, 2, rows, outputs, 1);
    int w = transposed ? new_value(REAL, 2, inputs, outputs, 1) : new_value(REAL, 2, outputs, inputs, 1);
    int dw = transposed ? new_value(WIDE, 2, inputs, outputs, 1) : new_value(WIDE, 2, outputs, inputs, 1);
    int db = bias ? new_value(WIDE, 1, outputs, 1, 1) : -1, dx = new_value(REAL, 2, rows, inputs, 1);
    int after = relu == 2 ? new_value(REAL, 2, rows, inputs, 1) : dx;
    set_role(LK__ROLE_WEIGHT);
    NODE(linear_grad_weight, attrs, LIST(x, dy), LIST(dw, db));
    set_role(LK__ROLE_INPUT);
    NODE(linear_grad_input, attrs, LIST(dy, w), LIST(dx));
    if (relu) set_role(LK__ROLE_RELU);
    if (relu) NODE(unary_grad, unary, LIST(dx, x), LIST(after)); /* x as relu's result: half of it is not above 0 */
    snprintf(name, sizeof name, "gradients of %lld rows, %lld to %lld%s%s, relu %d", (long long)rows, (long long)inputs,
             (long long)outputs, transposed ? ", transposed" : "", bias ? ", bias" : "", relu);
    run_sequence(name);
}

static void both_gradients_of_a_layer_run_with_relus(void)
{
    EACH_TYPE(type)
    for (int i = 0; i < 12; i++) {
        static const int64_t sizes[][3] = {{32, 128, 10}, {33, 17, 35}, {9, 64, 128}, {200, 40, 16}};
        const int64_t       *size = sizes[i % 4];
        layer_gradients(type, size[0], size[1], size[2], i / 4 % 2, i % 2, i / 4);
    }
}

static void entropy_and_gradient(int64_t rows, int64_t classes, double smoothing, bool weighted, int where)
{
    char         name[96];
    lk__op_attrs attrs = {.label_smoothing = smoothing, .ignore_index = 2};
    begin_sequence(LK_F32, LK__GROUP_OF_ENTROPY);
    int logits = new_value(REAL, 2, rows, classes, 1), labels = new_value(I32, 1, rows, 1, 1);
    int weight = weighted ? new_value(REAL, 1, rows, 1, 1) : -1, sum = new_value(F64, 0, 1, 1, 1);
    int total = new_value(F64, 0, 1, 1, 1), correct = new_value(F64, 0, 1, 1, 1);
    int probs = new_value(REAL, 2, rows, classes, 1), apart = new_value(REAL, 2, rows, classes, 1);
    for (int64_t i = 0; i < rows; i++) ids_of(labels)[i] = (int32_t)uniform(0, (double)classes);
    set_role(LK__ROLE_LOSS);
    NODE(cross_entropy, attrs, LIST(logits, labels, weight), LIST(sum, total, correct, probs));
    set_role(LK__ROLE_GRADIENT);
    NODE(cross_entropy_grad, attrs, LIST(probs, labels, weight),
         LIST(where == 0   ? probs
              : where == 1 ? logits
                           : apart));
    snprintf(name, sizeof name, "cross-entropy of %lld rows of %lld, %g smooth%s, gradient %d", (long long)rows,
             (long long)classes, smoothing, weighted ? ", weighted" : "", where);
    run_sequence(name);
}

static void cross_entropy_runs_with_its_gradient(void)
{
    for (int i = 0; i < 12; i++) {
        static const int64_t sizes[][2] = {{1, 1}, {32, 10}, {64, 10}, {256, 32}, {100, 80}, {3, 1000}};
        entropy_and_gradient(sizes[i % 6][0], sizes[i % 6][1], i % 3 == 2 ? 0.1 : 0, i % 2, i % 3);
    }
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    open_kernel_device(context);
    if (!kernel_device || !kernel_device->backend->kernels.group_kernels) {
        printf("skipped: LOCKSTEP_DEVICE names no device that has launch groups\n");
        close_kernel_device();
        lk_context_free(context);
        return 0;
    }
    kernel_device->by_heuristic = false; /* set by LOCKSTEP_CUDA_MEASURE=0; nothing here is measured */
    RUN(a_norm_runs_with_its_products);
    RUN(attention_runs_with_what_makes_its_operands);
    RUN(both_gradients_of_a_layer_run_with_relus);
    RUN(cross_entropy_runs_with_its_gradient);
    list_kernels_ran(__BASE_FILE__);
    close_kernel_device();
    lk_context_free(context);
    return check_result();
}
