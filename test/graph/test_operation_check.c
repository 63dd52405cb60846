/* test_operation_check.c - lk_operation_check: correct operations pass; each promise that an operation can break is
 * found, with a sentence that says which. */
#include "check.h"
#include "own_operations.h"

static lk_context *context;

typedef struct findings {
    char text[4096];
    int  count;
} findings;

static void collect(void *user, const char *text, size_t bytes)
{
    findings *f = user;
    size_t    used = strlen(f->text);
    f->count++;
    CHECK(text[bytes - 1] == '\n');
    snprintf(f->text + used, sizeof f->text - used, "%.*s", (int)bytes, text);
}

enum { ROWS = 7, COLUMNS = 5 };

static lk_operand counted(lk_dtype type)
{
    return (lk_operand){.dtype = type, .rank = 2, .dims = {ROWS, COLUMNS}, .count_axis = 0, .count_unit = 1};
}

static lk_operand vector(lk_dtype type)
{
    return (lk_operand){.dtype = type, .rank = 1, .dims = {COLUMNS}, .count_axis = -1, .count_unit = 1};
}

static lk_status check_with(const lk_operation *o, lk_dtype type, findings *f)
{
    lk_operand inputs[] = {counted(type), o == &swish_gate ? counted(type) : vector(type), vector(type)};
    *f = (findings){0};
    size_t    before = lk_context_memory(context, LK_MEMORY_OTHER);
    lk_status status = lk_operation_check(context, o, inputs, collect, f);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == before, "%s leaves memory", o->name);
    return status;
}

static void correct_operations_pass(void)
{
    double              factor = 1.25;
    lk_operation        affine = affine_operation(&factor);
    const lk_operation *all[] = {&swish_gate, &affine, &moments, &centre};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int type = 0; type < 2; type++) {
            findings f;
            CHECK(check_with(all[i], type ? LK_F64 : LK_F32, &f) == LK_OK && f.count == 0, "%s: %s", all[i]->name,
                  f.text);
        }
    lk_operand missing[] = {counted(LK_F32), vector(LK_F32), {.rank = -1}};
    CHECK(lk_operation_check(context, &affine, missing, NULL, NULL) == LK_OK, "%s", lk_context_error(context));
}

static lk_status absolute_run(const lk_operation_call *call)
{
    for (int64_t i = 0; i < lk_operand_elements(&call->inputs[0]); i++) {
        double x = own_get(&call->inputs[0], i), s = x < 0 ? -1 : 1;
        if (call->backward)
            own_set(&call->input_gradients[0], i, s * own_get(&call->output_gradients[0], i));
        else
            own_set(&call->outputs[0], i, s * x);
    }
    return LK_OK;
}

/* The samples may be any axis, and have several rows each. */
static void samples_may_be_another_axis(void)
{
    lk_operand   x = {.dtype = LK_F32, .rank = 3, .dims = {2, 10, 3}, .count_axis = 1, .count_unit = 2};
    lk_operand   image = {.dtype = LK_F32, .rank = 4, .dims = {3, 2, 4, 5}, .count_axis = 0, .count_unit = 1};
    lk_operand   channels = {.dtype = LK_F32, .rank = 1, .dims = {2}, .count_axis = -1, .count_unit = 1};
    lk_operation o = centre;
    o.coupled = false, o.unread_inputs = 0, o.forward = o.backward = absolute_run, o.factors = "(d..) -> (d..)";
    CHECK(lk_operation_check(context, &o, &x, NULL, NULL) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk_operation_check(context, &channel_scale, (lk_operand[]){image, channels}, NULL, NULL) == LK_OK, "%s",
          lk_context_error(context));
}

/* The user's own data are used: away from 0 it is differentiable. */
static void given_data_are_used(void)
{
    float        data[ROWS * COLUMNS] = {0};
    lk_operand   x = counted(LK_F32);
    lk_operation o = centre;
    o.coupled = false, o.unread_inputs = 0, o.forward = o.backward = absolute_run, o.factors = "(d..) -> (d..)";
    x.data = data; /* at 0 the difference is 0, and backward says 1 */
    CHECK(lk_operation_check(context, &o, &x, NULL, NULL) == LK_EMISMATCH);
    for (int i = 0; i < ROWS * COLUMNS; i++) data[i] = i % 2 ? 1.5f : -2.5f;
    CHECK(lk_operation_check(context, &o, &x, NULL, NULL) == LK_OK, "%s", lk_context_error(context));
}

/* Finds `sentence`, in the message of the context too. */
static void expect(const lk_operation *o, const char *sentence)
{
    findings f;
    CHECK(check_with(o, LK_F32, &f) == LK_EMISMATCH && f.count >= 1, "%s: nothing is found", sentence);
    CHECK(strstr(f.text, sentence), "\"%s\", but found: %s", sentence, f.text);
    CHECK(strncmp(f.text, lk_context_error(context), strlen(lk_context_error(context))) == 0);
}

/* ---- operations that break one promise each; they copy otherwise ---- */

static lk_status copy(const lk_operation_call *call)
{
    const lk_operand *from = call->backward ? &call->output_gradients[0] : &call->inputs[0];
    const lk_operand *to = call->backward ? &call->input_gradients[0] : &call->outputs[0];
    memcpy(to->data, from->data, (size_t)lk_operand_elements(from) * lk_dtype_size(from->dtype));
    return LK_OK;
}

static lk_operation copies(void)
{
    lk_operation o = {.size = sizeof o, .name = "copies", .inputs = 1, .outputs = 1};
    o.shape = same_shape_as_input;
    o.forward = o.backward = copy;
    return o;
}

static lk_status writes_past_the_end(const lk_operation_call *call)
{
    copy(call);
    own_set(&call->outputs[0], lk_operand_elements(&call->outputs[0]), 1);
    return LK_OK;
}
static lk_status writes_before_the_beginning(const lk_operation_call *call)
{
    copy(call);
    own_set(&call->outputs[0], -1, 1);
    return LK_OK;
}
static lk_status writes_its_input(const lk_operation_call *call)
{
    copy(call);
    if (lk_operand_elements(&call->inputs[0])) own_set(&call->inputs[0], 0, 1e9);
    return LK_OK;
}
static lk_status omits_an_element(const lk_operation_call *call)
{
    for (int64_t i = 0; i < lk_operand_elements(&call->outputs[0]); i++)
        if (i != 3) own_set(&call->outputs[0], i, own_get(&call->inputs[0], i));
    return LK_OK;
}
static lk_status adds_to_its_output(const lk_operation_call *call)
{
    for (int64_t i = 0; i < lk_operand_elements(&call->outputs[0]); i++)
        own_set(&call->outputs[0], i, own_get(&call->outputs[0], i) + own_get(&call->inputs[0], i));
    return LK_OK;
}
static size_t    eight_bytes(const lk_operation_call *call) { return (void)call, 8; }
static lk_status overruns_its_workspace(const lk_operation_call *call)
{
    memset(call->workspace, 0, 9);
    return copy(call);
}
static lk_status reads_its_workspace(const lk_operation_call *call)
{
    copy(call);
    if (lk_operand_elements(&call->outputs[0])) own_set(&call->outputs[0], 0, *(float *)call->workspace);
    return LK_OK;
}
static lk_status uses_the_number_of_threads(const lk_operation_call *call)
{
    copy(call);
    if (lk_operand_elements(&call->outputs[0])) own_set(&call->outputs[0], 0, call->threads);
    return LK_OK;
}
static void writes_its_worker(void *argument, int64_t tile, int worker)
{
    const lk_operation_call *call = argument;
    own_set(&call->outputs[0], tile, worker);
}
static lk_status uses_the_worker(const lk_operation_call *call)
{
    lk_operation_parallel(call, lk_operand_elements(&call->outputs[0]), writes_its_worker, (void *)call);
    return LK_OK;
}
static void sums_in_order_of_arrival(void *argument, int64_t tile, int worker)
{
    const lk_operation_call *call = argument;
    double                  *sum = call->workspace;
    (void)worker;
    *sum = 0.5 * *sum + own_get(&call->inputs[0], tile);
    own_set(&call->outputs[0], tile, *sum);
}
static lk_status depends_on_the_order_of_tiles(const lk_operation_call *call)
{
    memset(call->workspace, 0, 8);
    lk_operation_parallel(call, lk_operand_elements(&call->outputs[0]), sums_in_order_of_arrival, (void *)call);
    return LK_OK;
}
static lk_status counts_its_calls(const lk_operation_call *call)
{
    static double calls;
    copy(call);
    if (lk_operand_elements(&call->outputs[0])) own_set(&call->outputs[0], 0, calls++);
    return LK_OK;
}
static lk_status fails(const lk_operation_call *call) { return lk_operation_fail(call, "no luck"); }
static lk_status fails_without_samples(const lk_operation_call *call)
{
    return call->inputs[0].dims[0] ? copy(call) : LK_EINVAL;
}
static lk_status wrong_gradient(const lk_operation_call *call)
{
    copy(call);
    for (int64_t i = 0; i < lk_operand_elements(&call->input_gradients[0]); i++)
        own_set(&call->input_gradients[0], i, 1.01 * own_get(&call->output_gradients[0], i));
    return LK_OK;
}
static lk_status mean_backward(const lk_operation_call *call)
{
    affine_backward(call);
    for (int64_t i = 0; i < COLUMNS && call->inputs[0].dims[0]; i++)
        own_set(&call->input_gradients[1], i, own_get(&call->input_gradients[1], i) / (double)call->inputs[0].dims[0]);
    return LK_OK;
}
static lk_status mean_of_squares(const lk_operation_call *call)
{
    moments_forward(call);
    if (call->inputs[0].dims[0]) *(double *)call->outputs[1].data /= (double)call->inputs[0].dims[0];
    return LK_OK;
}
static lk_status one_column_more_with_a_larger_batch(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    call->outputs[0].dims[1] += call->inputs[0].dims[0] > ROWS;
    return LK_OK;
}
static lk_status of_another_rank(const lk_operation_call *call)
{
    call->outputs[0] = call->inputs[0];
    call->outputs[0].rank = 0;
    return LK_OK;
}

static void each_broken_promise_of_forward_is_found(void)
{
    const struct {
        lk_operation_callback forward;
        size_t (*workspace)(const lk_operation_call *call);
        const char *sentence;
    } all[] = {
        {writes_past_the_end, NULL, "copies: forward writes past the end of output 0"},
        {writes_before_the_beginning, NULL, "forward writes before the beginning of output 0"},
        {writes_its_input, NULL, "forward writes to input 0, which it may only read"},
        {omits_an_element, NULL, "forward does not write element 3 of output 0"},
        {adds_to_its_output, NULL, "output 0 depends on the previous contents of the outputs or the workspace"},
        {overruns_its_workspace, eight_bytes, "forward writes past the end of its workspace"},
        {reads_its_workspace, eight_bytes,
         "element 0 of output 0 depends on the previous contents of the outputs or the workspace"},
        {uses_the_number_of_threads, NULL, "element 0 of output 0 changes with the number of threads"},
        {uses_the_worker, NULL, "changes with the number of threads"},
        {depends_on_the_order_of_tiles, eight_bytes, "or with the order in which tiles run"},
        {counts_its_calls, NULL, "differs between two identical runs"},
        {fails, NULL, "its forward failed: no luck"},
        {fails_without_samples, NULL, "its forward returned LK_EINVAL (in a batch of 0 samples)"},
        {centre_run, NULL, "a sample's rows of output 0 change with the other samples of the batch"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        lk_operation o = copies();
        o.forward = all[i].forward;
        o.workspace = all[i].workspace;
        expect(&o, all[i].sentence);
    }
}

static void each_broken_promise_of_backward_is_found(void)
{
    lk_operation o = copies();
    o.backward = wrong_gradient;
    expect(&o, "for element 0 of the gradient of input 0, but the finite difference of forward is");
    o.backward = fails;
    expect(&o, "its backward failed: no luck");
    o.backward = centre_run;
    expect(&o, "backward: a sample's rows of the gradient of input 0 change with the other samples");
    /* A gradient of a parameter that is a mean over samples instead of a sum. */
    double       factor = 1;
    lk_operation affine = affine_operation(&factor);
    affine.backward = mean_backward;
    expect(&affine, "backward: the gradient of input 1 is not a sum over samples");
}

static void wrong_shapes_and_sums_are_found(void)
{
    lk_operation o = copies();
    o.shape = one_column_more_with_a_larger_batch;
    expect(&o, "output 0 (7*, 5) and, with one sample more, (8*, 6)");
    o.shape = of_another_rank;
    expect(&o, "to 0, but that output has no such axis");
    lk_operation mean = moments;
    mean.forward = mean_of_squares;
    expect(&mean, "forward: output 1 is not a sum over samples");
}

/* ---- factors ---- */

static bool factors_wrong;

static void expect_factors(lk_operation o, const char *factors, const char *sentence)
{
    o.factors = factors;
    expect(&o, sentence);
}

static void wrong_factors_are_found(void)
{
    double       factor = 1.25;
    lk_operation affine = affine_operation(&factor);
    expect_factors(centre, "(n, c) -> (n, c)", "forward: output 0 of a part of the factor n differs from the whole");
    expect_factors(moments, "(n, c) -> (n), (), (n)",
                   "forward: output 0 is not the sum over the parts of the factor c");
    expect_factors(moments, "(n, c) -> (n):, (), (n)", "factors: there is no input");
    expect_factors(affine, "(rows, columns), (other), (columns) -> (rows, columns)",
                   "its shape rule rejects parts of factor columns");
    expect_factors(affine, "(rows, columns), (columns), (columns) -> (rows, other)",
                   "for a part of the factor columns, its shape rule sets the shape of output 0");
    expect_factors(centre, "(!n, c) -> (c, n)",
                   "factors: output 0 has size 7 along dimension 0, but its factors give 5");
    expect_factors(centre, "(!n, c) -> (n, c", "factors: expected a name");
}

/* x (N, C), w (C) → w x; where factors_wrong is set, the gradient of a column depends on another column. */
static lk_status scale_run(const lk_operation_call *call)
{
    int64_t rows = call->inputs[0].dims[0], columns = call->inputs[0].dims[1];
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0, w = own_get(&call->inputs[1], c);
        for (int64_t i = c; i < rows * columns; i += columns) {
            double x = own_get(&call->inputs[0], i);
            if (!call->backward) own_set(&call->outputs[0], i, x * w);
            if (!call->backward) continue;
            double dy = own_get(&call->output_gradients[0], i), first = own_get(&call->output_gradients[0], i - c);
            own_set(&call->input_gradients[0], i, w * dy + (factors_wrong ? first : 0));
            sum += x * dy;
        }
        if (call->backward) own_set(&call->input_gradients[1], c, sum);
    }
    return LK_OK;
}

static void factors_of_backward_are_checked(void)
{
    lk_operation o = {.size = sizeof o, .name = "scales", .inputs = 2, .outputs = 1};
    findings     f;
    o.shape = affine_shape, o.forward = o.backward = scale_run;
    o.factors = "(rows, columns), (columns) -> (rows, columns)";
    CHECK(check_with(&o, LK_F32, &f) == LK_OK, "%s", f.text);
    factors_wrong = true;
    expect(&o, "backward: the gradient of input 0 of a part of the factor columns differs from the whole");
    factors_wrong = false;
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 2;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    RUN(correct_operations_pass);
    RUN(samples_may_be_another_axis);
    RUN(given_data_are_used);
    RUN(each_broken_promise_of_forward_is_found);
    RUN(each_broken_promise_of_backward_is_found);
    RUN(wrong_factors_are_found);
    RUN(factors_of_backward_are_checked);
    RUN(wrong_shapes_and_sums_are_found);
    lk_context_free(context);
    return check_result();
}
