/* test_large.c - tensors of more than 2^31 elements: what a plan states for them, kernels at offsets beyond 2^31, over
 * memory of which few pages are touched, and shapes that are too large for any memory.
 *
 * ctest: timeout 240 */
#define _GNU_SOURCE
#include "support.h"

#include <sys/mman.h>

enum { ALIGNMENT = 64 };

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* ---- plans ---- */

static size_t largest_request;

static void *refuse_large(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (bytes > largest_request) largest_request = bytes;
    return bytes > (size_t)1 << 30 ? NULL : aligned_alloc(alignment, aligned(bytes));
}

static void free_small(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static rig open_refusing(void)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    config.allocator = (lk_allocator){refuse_large, free_small, NULL};
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    rig r = rig_open_in(context, LK_F32);
    r.borrowed = false;
    return r;
}

static void state_beyond_16_gib_is_counted_to_the_byte(void)
{
    enum { IN = 65537, OUT = 70001 }; /* 4 587 655 537 weights */
    rig                 r = open_refusing();
    int64_t             n = 3;
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){n, IN}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, &n);
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_cross_entropy(lk_linear(x, "fc", OUT), y);
    config.optimizer = &optimizer;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    uint64_t state = aligned((uint64_t)IN * OUT * 4) + aligned(OUT * 4);
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_PARAMETERS) == state, "%zu", lk_plan_memory(r.plan, LK_MEMORY_PARAMETERS));
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_GRADIENTS) == state, "%zu", lk_plan_memory(r.plan, LK_MEMORY_GRADIENTS));
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_OPTIMIZER) == 2 * state, "%zu", lk_plan_memory(r.plan, LK_MEMORY_OPTIMIZER));
    largest_request = 0;
    CHECK(lk_store_create(r.plan, 1, &r.store) == LK_ENOMEM && !r.store && *lk_context_error(r.context));
    CHECK(largest_request >= state, "%zu bytes were asked for", largest_request);
    rig_close(&r);
}

/* Two values of 2^32 elements each that are alive at the same time, and one that replaces another. */
static void activations_beyond_32_gib_do_not_overlap(void)
{
    const int64_t  dims[] = {64, 64, 1024, 1024};
    const uint64_t each = (uint64_t)64 * 64 * 1024 * 1024 * 4;
    for (int alive = 1; alive <= 2; alive++) {
        rig            r = open_refusing();
        lk_tensor      x = lk_input(r.graph, "x", LK_F32, 4, dims), a = lk_tanh(lk_relu(x)), b = lk_sigmoid(x);
        lk_tensor      y = lk_sum(alive == 1 ? a : lk_mul(a, b));
        lk_plan_config config = LK_PLAN_CONFIG_INIT;
        config.outputs = &y;
        config.outputs_count = 1;
        REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
        uint64_t stated = lk_plan_memory(r.plan, LK_MEMORY_ACTIVATIONS);
        CHECK(stated >= (uint64_t)alive * each && stated < (uint64_t)alive * each + (1 << 20), "%d alive: %llu bytes",
              alive, (unsigned long long)stated);
        rig_close(&r);
    }
}

/* ---- kernels ---- */

static void *map_sparse(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        printf("skipped: no address space of %zu bytes (a limit?)\n", bytes);
        exit(check_failures ? 1 : SKIPPED);
    }
    return memory;
}

/* Runs the plan of output y on one batch of `count` samples and copies it. */
static void evaluate(rig *r, lk_tensor y, int64_t count, const char *const *names, void *const *inputs,
                     int inputs_count, void *result, size_t bytes)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.outputs = &y;
    config.outputs_count = 1;
    REQUIRE(lk_graph_status(r->graph) == LK_OK, "%s", lk_graph_error(r->graph));
    rig_plan(r, &config, 1);
    for (int i = 0; i < inputs_count; i++) REQUIRE(lk_program_bind(r->program, names[i], inputs[i]) == LK_OK);
    REQUIRE(lk_program_step(r->program, &(lk_step){.step = 1, .count = count}) == LK_OK);
    REQUIRE(lk_program_run(r->program, LK_EVALUATE) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_program_output_read(r->program, 0, result, bytes) == LK_OK, "%s", lk_context_error(r->context));
}

/* The last columns of rows of 2^30 + 3 elements: of the third row they are beyond 2^31. */
static void a_slice_reads_beyond_two_billion_elements(void)
{
    const int64_t rows = 3, columns = ((int64_t)1 << 30) + 3, last = 5;
    const size_t  bytes = (size_t)(rows * columns) * sizeof(float);
    float        *x = map_sparse(bytes), result[3 * 5];
    rig           r = rig_open(LK_F32, 2);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < last; k++) x[i * columns + columns - last + k] = (float)(10 * i + k + 1);
    lk_tensor in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){rows, columns}));
    evaluate(&r, lk_scale(lk_slice(in, 1, columns - last, last), 2), rows, (const char *const[]){"x"}, (void *[]){x}, 1,
             result, sizeof result);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < last; k++)
            CHECK(result[i * last + k] == (float)(2 * (10 * i + k + 1)), "row %d, column %d: %g", (int)i, (int)k,
                  (double)result[i * last + k]);
    rig_close(&r);
    munmap(x, bytes);
}

/* A table of 5 000 011 rows of 997: its last rows begin beyond 2^32 elements. */
static void an_embedding_reads_beyond_four_billion_elements(void)
{
    enum { ROWS = 5000011, COLUMNS = 997, IDS = 4 };
    const size_t  bytes = (size_t)ROWS * COLUMNS * sizeof(float);
    const int32_t ids[IDS] = {ROWS - 1, 0, 2153944, ROWS - 2}; /* 2153944 × 997 is the last start below 2^31 */
    float        *table = map_sparse(bytes), result[IDS * COLUMNS];
    rig           r = rig_open(LK_F32, 2);
    for (int i = 0; i < IDS; i++)
        for (int k = 0; k < COLUMNS; k++) table[(size_t)ids[i] * COLUMNS + (size_t)k] = (float)(i * COLUMNS + k);
    lk_tensor in = lk_input(r.graph, "ids", LK_I32, 1, ((int64_t[]){IDS}));
    lk_tensor from = lk_input(r.graph, "table", LK_F32, 2, ((int64_t[]){ROWS, COLUMNS}), .fixed = true);
    evaluate(&r, lk_f_embedding(in, from), IDS, (const char *const[]){"ids", "table"}, (void *[]){(void *)ids, table},
             2, result, sizeof result);
    for (int i = 0; i < IDS * COLUMNS; i++)
        if (result[i] != (float)i) {
            CHECK(false, "element %d is %g", i, (double)result[i]);
            break;
        }
    rig_close(&r);
    munmap(table, bytes);
}

/* Reads all 2^31 + 7 elements; all but the last are on the page of zeros. */
static void a_sum_includes_what_is_beyond_two_billion_elements(void)
{
    const int64_t columns = ((int64_t)1 << 31) + 7;
    const size_t  bytes = (size_t)columns * sizeof(float);
    float        *x = map_sparse(bytes), result = 0;
    rig           r = rig_open(LK_F32, 2);
    x[0] = 1;
    x[columns - 1] = 2;
    x[((int64_t)1 << 31) - 1] = 4;
    lk_tensor in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){1, columns}));
    evaluate(&r, lk_scale(lk_sum(in, .axes = ((int[]){1}), .axes_count = 1), 1), 1, (const char *const[]){"x"},
             (void *[]){x}, 1, &result, sizeof result);
    CHECK(result == 7, "%g", (double)result);
    rig_close(&r);
    munmap(x, bytes);
}

/* ---- shapes that are too large ---- */

#define TOO_LARGE(call, expected)                                                                                  \
    do {                                                                                                           \
        rig       r = open_refusing();                                                                             \
        lk_tensor row = lk_parameter(r.graph, "row", 2, ((int64_t[]){1, (int64_t)1 << 40})),                       \
                  column = lk_parameter(r.graph, "column", 2, ((int64_t[]){(int64_t)1 << 40, 1})),                 \
                  image = lk_input(r.graph, "image", LK_F32, 4, ((int64_t[]){4, 3, 8, 8})),                        \
                  ids = lk_input(r.graph, "ids", LK_I32, 1, ((int64_t[]){(int64_t)1 << 40}), .fixed = true);       \
        (void)row, (void)column, (void)image, (void)ids;                                                           \
        REQUIRE(lk_graph_status(r.graph) == LK_OK, "%s", lk_graph_error(r.graph));                                 \
        (void)(call);                                                                                              \
        CHECK(lk_graph_status(r.graph) == LK_EINVAL && strstr(lk_graph_error(r.graph), "test_large.c:") &&         \
                  strstr(lk_graph_error(r.graph), expected),                                                       \
              "line %d: \"%s\"", __LINE__, lk_graph_error(r.graph));                                               \
        rig_close(&r);                                                                                             \
    } while (0)

static void shapes_that_no_memory_holds_are_refused(void)
{
    const int64_t half = (int64_t)1 << 32, huge = INT64_MAX / 2;
    const char   *most = "more than 2^44 elements";
    TOO_LARGE(lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){half, half})), most);
    TOO_LARGE(lk_parameter(r.graph, "w", 3, ((int64_t[]){3, huge, 3})), most);
    TOO_LARGE(lk_parameter(r.graph, "w", 1, ((int64_t[]){((int64_t)1 << 44) + 1})), most);
    TOO_LARGE(lk_constant(r.graph, LK_U8, 2, ((int64_t[]){half, half}), "a"), most);
    TOO_LARGE(lk_add(row, column), most);
    TOO_LARGE(lk_matmul(column, row), most);
    TOO_LARGE(lk_where(row, column, column), most);
    TOO_LARGE(lk_f_embedding(ids, lk_parameter(r.graph, "table", 2, ((int64_t[]){3, 17}))), most);
    TOO_LARGE(lk_concat(((lk_tensor[]){row, row, row, row, row, row, row, row}), 8, 0).id < 0
                  ? row
                  : lk_matmul(column, lk_concat(((lk_tensor[]){row, row}), 2, 1)),
              most);
    TOO_LARGE(lk_conv2d(image, "conv", 8, 3, .padding = huge), "padding");
    TOO_LARGE(lk_conv2d(image, "conv", 8, 3, .padding = (int64_t)1 << 30), most);
    TOO_LARGE(lk_conv2d(image, "conv", huge, 3), most);
    TOO_LARGE(lk_reshape(row, 4, ((int64_t[]){half, half, half, half})), "the 1099511627776 elements");
    TOO_LARGE(lk_reshape(row, 3, ((int64_t[]){(int64_t)1 << 40, (int64_t)1 << 24, 2})), "the 1099511627776 elements");
    TOO_LARGE(lk_slice(row, 1, huge, huge), "has no range [");
    TOO_LARGE(lk_slice(row, 1, INT64_MAX, INT64_MAX), "has no range [");
}

int main(void)
{
    RUN(state_beyond_16_gib_is_counted_to_the_byte);
    RUN(activations_beyond_32_gib_do_not_overlap);
    RUN(shapes_that_no_memory_holds_are_refused);
    RUN(a_slice_reads_beyond_two_billion_elements);
    RUN(an_embedding_reads_beyond_four_billion_elements);
    RUN(a_sum_includes_what_is_beyond_two_billion_elements);
    return check_result();
}
