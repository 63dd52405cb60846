/* own_operation.c - an operation of one's own: x × swish(gate), the core of SwiGLU, in one pass over memory forward and
 * one backward. It is checked first, and then trained by the ranks of a launcher as any other operation.
 *
 *   own_operation                       one rank
 *   lockstep run -n 2 own_operation     two; LOCKSTEP_CHECK_OPERATIONS=1 checks it in every step, too */
#include <lockstep.h>
#include <math.h>
#include <stdio.h>

enum { TILE = 4096 }; /* elements: work is divided by the shape alone, so the number of threads changes no bits */

static lk_status swish_gate_shape(const lk_operation_call *call)
{
    const lk_operand *x = &call->inputs[0], *gate = &call->inputs[1];
    bool              same = x->rank == gate->rank && x->count_axis == gate->count_axis;
    for (int i = 0; same && i < x->rank; i++) same = x->dims[i] == gate->dims[i];
    if (!same) return lk_operation_fail(call, "x and gate must have the same shape");
    call->outputs[0] = *x; /* its type, its shape and its axis of samples */
    return LK_OK;
}

/* Elements begin … end - 1, in f32 or f64. */
#define SWISH_GATE(real, exp)                                                                          \
    do {                                                                                               \
        const real *x = call->inputs[0].data, *gate = call->inputs[1].data;                            \
        if (!call->backward) {                                                                         \
            real *y = call->outputs[0].data;                                                           \
            for (int64_t i = begin; i < end; i++) y[i] = x[i] * gate[i] / (1 + exp(-gate[i]));         \
            break;                                                                                     \
        }                                                                                              \
        const real *dy = call->output_gradients[0].data;                                               \
        real       *dx = call->input_gradients[0].data, *dgate = call->input_gradients[1].data;        \
        for (int64_t i = begin; i < end; i++) {                                                        \
            real s = 1 / (1 + exp(-gate[i]));                                                          \
            if (dx) dx[i] = dy[i] * gate[i] * s;                                                       \
            if (dgate) dgate[i] = dy[i] * x[i] * s * (1 + gate[i] * (1 - s));                          \
        }                                                                                              \
    } while (0)

static void swish_gate_tile(void *argument, int64_t tile, int worker)
{
    const lk_operation_call *call = argument;
    int64_t                  elements = lk_operand_elements(&call->inputs[0]);
    int64_t                  begin = tile * TILE, end = begin + TILE < elements ? begin + TILE : elements;
    (void)worker;
    if (call->inputs[0].dtype == LK_F32)
        SWISH_GATE(float, expf);
    else
        SWISH_GATE(double, exp);
}

static lk_status swish_gate_run(const lk_operation_call *call)
{
    int64_t elements = lk_operand_elements(&call->inputs[0]);
    lk_operation_parallel(call, (elements + TILE - 1) / TILE, swish_gate_tile, (void *)call);
    return LK_OK;
}

static const lk_operation swish_gate = {
    .size = sizeof(lk_operation),
    .name = "swish_gate",
    .inputs = 2,
    .outputs = 1,
    .shape = swish_gate_shape,
    .forward = swish_gate_run,
    .backward = swish_gate_run,
    .factors = "(d..), (d..) -> (d..)",
};

static lk_tensor model(lk_tensor x)                                       /* (N, 64) */
{
    lk_tensor both[] = {lk_linear(x, "up", 96), lk_linear(x, "gate", 96)}; /* (N, 96), (N, 96) */
    return lk_linear(lk_apply(&swish_gate, both, 2, NULL), "down", 10);    /* (N, 10) */
}

static void print(void *user, const char *text, size_t bytes) { fwrite(text, 1, bytes, user); }

static int on_event(void *user, const lk_event *event)
{
    if (event->kind == LK_EVENT_EVALUATED && lk_comm_rank(user) == 0)
        printf("test loss %.6f, accuracy %.2f %%\n", event->loss, 100 * event->metrics[0].value);
    return 0;
}

static lk_status run(lk_context *context, lk_comm **comm, lk_dataset **train, lk_dataset **test, lk_trainer **trainer)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_operand        rows = {.dtype = LK_F32, .rank = 2, .dims = {7, 33}, .count_axis = 0, .count_unit = 1};
    lk_status         status = lk_operation_check(context, &swish_gate, (lk_operand[]){rows, rows}, print, stderr);
    if (status >= 0) status = lk_comm_create(context, NULL, comm);
    if (status >= 0) status = lk_dataset_open(context, "synthetic:64", LK_SPLIT_TRAIN, NULL, train);
    if (status >= 0) status = lk_dataset_open(context, "synthetic:64", LK_SPLIT_TEST, NULL, test);
    if (status < 0) return status;
    config.model = model;
    config.train = *train;
    config.test = *test;
    config.comm = *comm;
    config.event = on_event;
    config.event_user = *comm;
    status = lk_trainer_create(context, &config, trainer);
    return status < 0 ? status : lk_trainer_run(*trainer);
}

int main(void)
{
    lk_context *context;
    lk_comm    *comm = NULL;
    lk_dataset *train = NULL, *test = NULL;
    lk_trainer *trainer = NULL;
    if (lk_context_create(NULL, &context) < 0) return 1;
    lk_status status = run(context, &comm, &train, &test, &trainer);
    if (status < 0) {
        fprintf(stderr, "own_operation: %s\n", lk_context_error(context));
        if (comm) lk_comm_abort(comm, lk_context_error(context)); /* so that no rank waits for this one */
    }
    lk_trainer_free(trainer);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0;
}
