/* test_config.c - config structs of other versions of the headers: a smaller one gets the defaults of what it lacks, a
 * larger one is accepted as long as it sets nothing that is unknown, and one without a size is refused. */
#include "check.h"

#include "base/config.h"

#include <lockstep.h>

typedef struct config { /* as a version of it might be: the last field is new */
    size_t size;
    int    a;
    double b;
    int    added[4];
} config;

static lk_context *context;

static lk_status read_as(config *own, const void *given)
{
    *own = (config){sizeof *own, 7, 1.5, {3, 3, 3, 3}}; /* the defaults */
    return lk__config_read(context, "lk_some_config", given, own, sizeof *own);
}

static void smaller_configs_get_the_defaults_of_the_rest(void)
{
    config given = {offsetof(config, added), 1, 2.5, {9, 9, 9, 9}}, own;
    CHECK(read_as(&own, &given) == LK_OK);
    CHECK(own.size == sizeof own && own.a == 1 && own.b == 2.5 && own.added[0] == 3 && own.added[3] == 3);
    given.size = offsetof(config, b);
    CHECK(read_as(&own, &given) == LK_OK && own.a == 1 && own.b == 1.5 && own.added[0] == 3);
    given.size = sizeof(size_t);
    CHECK(read_as(&own, &given) == LK_OK && own.a == 7);
    CHECK(read_as(&own, NULL) == LK_OK && own.a == 7);
}

static void larger_configs_must_set_nothing_unknown(void)
{
    struct {
        config known;
        char   more[40];
    } given = {.known = {sizeof given, 1, 2.5, {1, 2, 3, 4}}};
    config own;
    CHECK(read_as(&own, &given) == LK_OK && own.size == sizeof own && own.added[3] == 4);
    given.more[39] = 1;
    CHECK(read_as(&own, &given) == LK_EUNSUPPORTED &&
              strstr(lk_context_error(context), "lk_some_config sets a field at byte") &&
              strstr(lk_context_error(context), "newer headers"),
          "%s", lk_context_error(context));
}

static void configs_without_a_size_are_refused(void)
{
    config given = {0}, own;
    CHECK(read_as(&own, &given) == LK_EINVAL &&
              strstr(lk_context_error(context), "initialise it with LK_SOME_CONFIG_INIT"),
          "%s", lk_context_error(context));
    given.size = 4;
    CHECK(read_as(&own, &given) == LK_EINVAL);
    given.size = (size_t)-1;
    CHECK(read_as(&own, &given) == LK_EINVAL);
}

/* Every config of the public headers: without a size, of half the size, and larger with and without something in the
 * additional bytes. `call` creates and frees. */
#define EACH(type, INIT, set, call)                                                                              \
    do {                                                                                                         \
        struct {                                                                                                 \
            type known;                                                                                          \
            char more[64];                                                                                       \
        } larger = {.known = INIT};                                                                              \
        type *config = &larger.known;                                                                            \
        set;                                                                                                     \
        CHECK((call) >= 0, #type ": %s", lk_context_error(context));                                             \
        larger.known.size = sizeof larger;                                                                       \
        CHECK((call) >= 0, #type ", larger: %s", lk_context_error(context));                                     \
        larger.more[63] = 1;                                                                                     \
        CHECK((call) == LK_EUNSUPPORTED, #type " sets something unknown");                                       \
        larger.known.size = 0;                                                                                   \
        CHECK((call) == LK_EINVAL, #type " without a size");                                                     \
    } while (0)

static lk_status try_context(const lk_context_config *config)
{
    lk_context *made;
    lk_status   status = lk_context_create(config, &made);
    lk_context_free(made);
    return status;
}

static lk_status try_comm(const lk_comm_config *config)
{
    lk_comm  *made;
    lk_status status = lk_comm_create(context, config, &made);
    lk_comm_free(made);
    return status;
}

static lk_status try_sampler(const lk_sampler_config *config)
{
    lk_sampler *made;
    lk_status   status = lk_sampler_create(context, config, &made);
    lk_sampler_free(made);
    return status;
}

static lk_status free_dataset(lk_status status, lk_dataset *made)
{
    lk_dataset_free(made);
    return status;
}

static lk_status try_synthetic(const lk_dataset_synthetic_config *config)
{
    lk_dataset *made = NULL;
    lk_status   status = lk_dataset_synthetic(context, config, &made);
    return free_dataset(status, made);
}

static lk_status try_open(const lk_open_options *config)
{
    lk_dataset *made = NULL;
    lk_status   status = lk_dataset_open(context, "synthetic:4,count=8", LK_SPLIT_TRAIN, config, &made);
    return free_dataset(status, made);
}

static lk_status try_tokenize(const lk_data_tokenize_config *config)
{
    lk_data_tokenize_result result;
    lk_status               status = lk_data_tokenize(context, config, &result);
    return status == LK_ENOENT ? LK_OK : status; /* there is no such text: the config was read */
}

static lk_status try_arrays(const lk_dataset_arrays_config *config)
{
    lk_dataset *made = NULL;
    lk_status   status = lk_dataset_from_arrays(context, config, &made);
    return free_dataset(status, made);
}

static lk_status try_callbacks(const lk_dataset_callbacks_config *config)
{
    lk_dataset *made = NULL;
    lk_status   status = lk_dataset_from_callbacks(context, config, &made);
    return free_dataset(status, made);
}

static lk_status get_nothing(void *user, int64_t index, void *const *fields)
{
    (void)user, (void)index, (void)fields;
    return LK_OK;
}

static lk_status try_loader(const lk_loader_config *config)
{
    lk_loader *made = NULL;
    lk_status  status = lk_loader_create(context, config, &made);
    lk_loader_free(made);
    CHECK((lk_loader_bytes(config) > 0) == (status >= 0));
    return status;
}

static lk_tensor model(lk_tensor x) { return lk_linear(x, "fc", 10); }

static lk_status try_trainer(const lk_trainer_config *config)
{
    lk_trainer *made = NULL;
    lk_status   status = lk_trainer_create(context, config, &made);
    lk_trainer_free(made);
    return status;
}

static lk_status try_plan(const lk_plan_config *given)
{
    lk_graph *graph;
    lk_plan  *made;
    REQUIRE(lk_graph_create(context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){4, 3}));
    *(lk_tensor *)&given->loss = lk_sum(lk_linear(x, "fc", 2));
    lk_status status = lk_plan_create(graph, given, &made);
    lk_plan_free(made);
    lk_graph_free(graph);
    return status;
}

static lk_status try_optimizer(const lk_optimizer_config *optimizer)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.optimizer = optimizer;
    return try_plan(&config);
}

static lk_status shape_of_input(const lk_operation_call *call) { return call->outputs[0] = call->inputs[0], LK_OK; }
static lk_status run_nothing(const lk_operation_call *call) { return (void)call, LK_OK; }

static lk_status try_operation(const lk_operation *operation)
{
    lk_graph *graph;
    REQUIRE(lk_graph_create(context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){4, 3}));
    lk_apply(operation, &x, 1, NULL);
    lk_status status = lk_graph_status(graph);
    if (status == LK_EINVAL && strstr(lk_graph_error(graph), "newer headers"))
        status = LK_EUNSUPPORTED; /* the graph's own */
    lk_graph_free(graph);
    return status;
}

static lk_status try_launch(const lk_launch_config *config)
{
    int       code = 1;
    lk_status status = lk_launch(context, config, &code);
    CHECK(status < 0 || code == 0);
    return status;
}

static void every_config_can_be_of_another_version(void)
{
    static float                numbers[8];
    static const lk_field       field = {.name = "x", .dtype = LK_F32};
    static const void          *data[] = {numbers};
    static const char          *program[] = {"true", NULL}, *paths[] = {"no-such-text"};
    lk_dataset                 *dataset;
    lk_dataset_synthetic_config made = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    made.count = 64;
    REQUIRE(lk_dataset_synthetic(context, &made, &dataset) == LK_OK);
    EACH(lk_context_config, LK_CONTEXT_CONFIG_INIT, config->threads = 1, try_context(config));
    EACH(lk_comm_config, LK_COMM_CONFIG_INIT, (config->backend = "self", config->rank = 0, config->world = 1),
         try_comm(config));
    EACH(lk_sampler_config, LK_SAMPLER_CONFIG_INIT, config->count = 5, try_sampler(config));
    EACH(lk_dataset_synthetic_config, LK_DATASET_SYNTHETIC_CONFIG_INIT, config->count = 4, try_synthetic(config));
    EACH(lk_open_options, LK_OPEN_OPTIONS_INIT, (void)config, try_open(config));
    EACH(lk_data_tokenize_config, LK_DATA_TOKENIZE_CONFIG_INIT,
         (config->paths = paths, config->paths_count = 1, config->tokenizer = "byte", config->out = "none"),
         try_tokenize(config));
    EACH(lk_dataset_arrays_config, LK_DATASET_ARRAYS_CONFIG_INIT,
         (config->count = 8, config->fields = &field, config->fields_count = 1, config->data = data),
         try_arrays(config));
    EACH(lk_dataset_callbacks_config, LK_DATASET_CALLBACKS_CONFIG_INIT,
         (config->count = 8, config->fields = &field, config->fields_count = 1, config->get = get_nothing),
         try_callbacks(config));
    EACH(lk_loader_config, LK_LOADER_CONFIG_INIT, config->dataset = dataset, try_loader(config));
    EACH(lk_trainer_config, LK_TRAINER_CONFIG_INIT, (config->train = dataset, config->model = model),
         try_trainer(config));
    EACH(lk_plan_config, LK_PLAN_CONFIG_INIT, (void)config, try_plan(config));
    EACH(lk_optimizer_config, LK_OPTIMIZER_CONFIG_INIT, (void)config, try_optimizer(config));
    EACH(lk_operation, LK_OPERATION_INIT,
         (config->name = "none", config->inputs = config->outputs = 1, config->shape = shape_of_input,
          config->forward = run_nothing),
         try_operation(config));
    EACH(lk_launch_config, LK_LAUNCH_CONFIG_INIT, (config->program = program, config->plain = true),
         try_launch(config));
    lk_dataset_free(dataset);
}

/* With the size of the first fields alone, the others are as …_INIT has them. */
static void fields_behind_the_size_have_their_defaults(void)
{
    lk_comm_config comm = {.size = offsetof(lk_comm_config, port), .rank = 0, .world = 1};
    CHECK(try_comm(&comm) == LK_OK, "%s", lk_context_error(context)); /* timeout_ms 0 would be refused */
    lk_optimizer_config sgd = {
        .size = offsetof(lk_optimizer_config, momentum), .kind = LK_SGD, .lr = 0.5, .momentum = -1};
    CHECK(try_optimizer(&sgd) == LK_OK, "%s", lk_context_error(context));
    lk_context_config settings = {.size = offsetof(lk_context_config, isa), .threads = 1, .isa = "none"};
    CHECK(try_context(&settings) == LK_OK);
}

static void lk_context_create_says_why_it_failed(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1000;
    CHECK(try_context(&config) == LK_EINVAL &&
              strstr(lk_context_error(NULL), "the number of threads is 1000: expected 1 to"),
          "%s", lk_context_error(NULL));
    config.threads = 1;
    config.isa = "sse9";
    CHECK(try_context(&config) == LK_EUNSUPPORTED && strstr(lk_context_error(NULL), "\"sse9\""), "%s",
          lk_context_error(NULL));
    config.isa = NULL;
    config.device = "abacus";
    CHECK(try_context(&config) == LK_EUNSUPPORTED &&
              strstr(lk_context_error(NULL), "device \"abacus\": unknown device"),
          "%s", lk_context_error(NULL));
    config.size = 0;
    CHECK(try_context(&config) == LK_EINVAL && strstr(lk_context_error(NULL), "LK_CONTEXT_CONFIG_INIT"), "%s",
          lk_context_error(NULL));
    setenv("LOCKSTEP_THREADS", "many", 1);
    CHECK(try_context(NULL) == LK_EINVAL && strstr(lk_context_error(NULL), "LOCKSTEP_THREADS"), "%s",
          lk_context_error(NULL));
    unsetenv("LOCKSTEP_THREADS");
}

int main(void)
{
    REQUIRE(lk_context_create(NULL, &context) == LK_OK, "%s", lk_context_error(NULL));
    RUN(smaller_configs_get_the_defaults_of_the_rest);
    RUN(larger_configs_must_set_nothing_unknown);
    RUN(configs_without_a_size_are_refused);
    RUN(lk_context_create_says_why_it_failed);
    lk_context_free(context);
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1; /* lk_launch needs a process with one thread */
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    RUN(every_config_can_be_of_another_version);
    RUN(fields_behind_the_size_have_their_defaults);
    lk_context_free(context);
    return check_result();
}
