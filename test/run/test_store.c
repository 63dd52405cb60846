/* test_store.c - state, gradients and outputs are read and written by copies: by name and slice, with sizes that are
 * checked. */
#include "support.h"
#include "train/checkpoint.h"

#include <unistd.h>

enum { ROWS = 3, IN = 5, OUT = 4 };

static const float x[ROWS * IN] = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 2, 3, -4, 5, 6}, y[ROWS * OUT] = {1, 2};

/* y = W (norm(x) + cache) + b + fixed, with Adam's two moments: the weight has a second name, `fixed` is frozen, and
 * `cache` is never saved. */
static lk_tensor record_net(lk_graph *g, int64_t rows, lk_tensor *out)
{
    lk_tensor in = lk_input(g, "x", LK_F32, 2, ((int64_t[]){rows, IN}));
    lk_tensor target = lk_input(g, "y", LK_F32, 2, ((int64_t[]){rows, OUT}));
    lk_tensor w = lk_parameter(g, "w", 2, ((int64_t[]){OUT, IN}), .init = LK_INIT_UNIFORM, .a = 1);
    lk_tensor fixed = lk_parameter(g, "fixed", 1, ((int64_t[]){OUT}), .frozen = true);
    lk_tensor cache = lk_buffer(g, "cache", LK_F32, 1, ((int64_t[]){IN}), 0, .not_saved = true);
    lk_tie(w, "second");
    *out = lk_add(lk_linear(lk_add(lk_batch_norm(in, "bn"), cache), "fc", OUT, .weight = w), fixed);
    return lk_mse(*out, target);
}

static rig open_net(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           out;
    config.loss = record_net(r.graph, ROWS, &out);
    config.outputs = &out;
    config.outputs_count = 1;
    config.optimizer = &adam;
    rig_plan(&r, &config, 3);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "y", y) == LK_OK);
    return r;
}

static void train(rig *r, int step)
{
    REQUIRE(lk_program_train(r->program, &(lk_step){.step = step, .count = ROWS, .rate = 0.1}) == LK_OK, "%s",
            lk_context_error(r->context));
}

#define CHECK_ERROR(r, call, code, words)                                                                   \
    do {                                                                                                    \
        lk_status status_ = (call);                                                                         \
        CHECK(status_ == (code) && strstr(lk_context_error((r)->context), words), "%s: %s",                 \
              lk_status_name(status_), lk_context_error((r)->context));                                     \
    } while (0)

static void a_slice_is_that_part_of_the_whole(void)
{
    rig   r = open_net();
    float whole[OUT * IN], part[7], moments[2][OUT * IN];
    train(&r, 1);
    train(&r, 2);
    REQUIRE(lk_store_read(r.store, "w", LK_STATE_VALUE, 0, OUT * IN, whole, sizeof whole) == LK_OK);
    for (int first = 0; first + 7 <= OUT * IN; first++) {
        REQUIRE(lk_store_read(r.store, "second", LK_STATE_VALUE, first, 7, part, sizeof part) == LK_OK);
        CHECK(memcmp(part, whole + first, sizeof part) == 0, "from element %d on", first);
    }
    for (int m = 0; m < 2; m++) {
        bool moved = false;
        REQUIRE(lk_store_read(r.store, "w", (lk_state_part)(LK_STATE_MOMENT_0 + m), 0, OUT * IN, moments[m],
                              sizeof moments[m]) == LK_OK);
        for (int i = 0; i < OUT * IN; i++) moved |= moments[m][i] != 0;
        CHECK(moved);
    }
    CHECK(memcmp(moments[0], moments[1], sizeof moments[0]) != 0);
    /* The layout of lk_state's pointers, where there are some. */
    lk_state s;
    REQUIRE(lk_store_find(r.store, "w", &s));
    if (s.data)
        CHECK(memcmp(s.data, whole, sizeof whole) == 0 && memcmp(s.moment[1], moments[1], sizeof moments[1]) == 0);
    CHECK(lk_store_read(r.store, "w", LK_STATE_VALUE, OUT * IN, 0, NULL, 0) == LK_OK); /* nothing, at the end */
    rig_close(&r);
}

static void a_written_slice_changes_those_elements_alone(void)
{
    rig            r = open_net();
    float          before[OUT * IN], after[OUT * IN], part[] = {7, 8, 9};
    const uint64_t hash = lk_store_hash(r.store);
    int64_t        count = 12;
    REQUIRE(lk_store_read(r.store, "w", LK_STATE_VALUE, 0, OUT * IN, before, sizeof before) == LK_OK);
    REQUIRE(lk_store_write(r.store, "second", LK_STATE_VALUE, 4, 3, part, sizeof part) == LK_OK);
    REQUIRE(lk_store_read(r.store, "w", LK_STATE_VALUE, 0, OUT * IN, after, sizeof after) == LK_OK);
    for (int i = 0; i < OUT * IN; i++) CHECK(after[i] == (i >= 4 && i < 7 ? part[i - 4] : before[i]), "element %d", i);
    CHECK(lk_store_hash(r.store) != hash);
    REQUIRE(lk_store_write(r.store, "w", LK_STATE_VALUE, 4, 3, before + 4, 3 * sizeof *before) == LK_OK);
    CHECK(lk_store_hash(r.store) == hash);
    REQUIRE(lk_store_write(r.store, "w", LK_STATE_MOMENT_1, 0, 3, part, sizeof part) == LK_OK); /* not hashed */
    CHECK(lk_store_hash(r.store) == hash && ((float *)part_copy(r.store, "w", LK_STATE_MOMENT_1))[2] == 9);
    CHECK(((float *)part_copy(r.store, "w", LK_STATE_MOMENT_0))[2] == 0);
    REQUIRE(lk_store_write(r.store, "bn.num_batches_tracked", LK_STATE_VALUE, 0, 1, &count, sizeof count) == LK_OK);
    train(&r, 1);
    CHECK(*(int64_t *)state_copy(r.store, "bn.num_batches_tracked") == 13);
    rig_close(&r);
}

static void slices_and_sizes_that_do_not_exist_are_refused(void)
{
    rig   r = open_net();
    float buffer[OUT * IN];
    CHECK_ERROR(&r, lk_store_read(r.store, "v", LK_STATE_VALUE, 0, 1, buffer, 4), LK_ENOENT, "\"v\"");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 0, 21, buffer, 84), LK_EINVAL, "which has 20");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 18, 3, buffer, 12), LK_EINVAL,
                "starting at element 18");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, -1, 3, buffer, 12), LK_EINVAL, "element -1");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 1, INT64_MAX, buffer, 12), LK_EINVAL, "which has 20");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 1, -1, buffer, 12), LK_EINVAL, "-1 elements");
    CHECK_ERROR(&r, lk_store_write(r.store, "w", LK_STATE_VALUE, 0, 20, buffer, 79), LK_EINVAL, "80 bytes, not 79");
    CHECK_ERROR(&r, lk_store_write(r.store, "fixed", LK_STATE_MOMENT_0, 0, 4, buffer, 16), LK_EINVAL, "0 moments");
    CHECK_ERROR(&r, lk_store_write(r.store, "w", LK_STATE_PART_COUNT, 0, 4, buffer, 16), LK_EINVAL, "part 5");
    CHECK_ERROR(&r, lk_store_read(r.store, "bn.running_mean", LK_STATE_MOMENT_1, 0, 4, buffer, 16), LK_EINVAL,
                "part 2");
    rig_close(&r);
}

static void outputs_are_read_at_the_count_and_before_the_next_run(void)
{
    rig   r = open_net();
    float all[ROWS * OUT], two[2 * OUT];
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = ROWS}) == LK_OK);
    CHECK_ERROR(&r, lk_program_output_read(r.program, 0, all, sizeof all), LK_EINVAL, "run LK_EVALUATE");
    REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    REQUIRE(lk_program_output_read(r.program, 0, all, sizeof all) == LK_OK, "%s", lk_context_error(r.context));
    const float *direct = lk_program_output(r.program, 0);
    if (direct) CHECK(memcmp(direct, all, sizeof all) == 0);
    CHECK_ERROR(&r, lk_program_output_read(r.program, 1, all, sizeof all), LK_ENOENT, "no output 1");
    CHECK_ERROR(&r, lk_program_output_read(r.program, -1, all, sizeof all), LK_ENOENT, "no output -1");
    CHECK_ERROR(&r, lk_program_output_read(r.program, 0, all, sizeof all - 4), LK_EINVAL,
                "48 bytes for 3 samples, not 44");
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = 2}) == LK_OK);
    CHECK(lk_program_output_read(r.program, 0, all, sizeof all) == LK_OK); /* still the run's 3 */
    REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    REQUIRE(lk_program_output_read(r.program, 0, two, sizeof two) == LK_OK);
    CHECK(memcmp(all, two, sizeof two) == 0);
    REQUIRE(lk_program_run(r.program, LK_FORWARD) == LK_OK);
    CHECK_ERROR(&r, lk_program_output_read(r.program, 0, two, sizeof two), LK_EINVAL, "before the next run");
    rig_close(&r);
}

/* ---- several programs ---- */

static void bind_rows(rig *r, lk_program *program)
{
    REQUIRE(lk_program_bind(program, "x", x) == LK_OK && lk_program_bind(program, "y", y) == LK_OK, "%s",
            lk_context_error(r->context));
}

/* A plan of the same model for other numbers of samples, or without an optimizer, and its program over r's store. */
static lk_program *second_program(rig *r, int64_t rows, bool trains, lk_graph **graph, lk_plan **plan)
{
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_program         *program;
    lk_tensor           out;
    REQUIRE(lk_graph_create(r->context, LK_F32, graph) == LK_OK);
    config.loss = record_net(*graph, rows, &out);
    config.optimizer = trains ? &adam : NULL;
    REQUIRE(lk_plan_create(*graph, &config, plan) == LK_OK &&
                lk_program_create(*plan, r->store, NULL, &program) == LK_OK,
            "%s", lk_context_error(r->context));
    bind_rows(r, program);
    return program;
}

static void programs_of_one_store_take_turns(void)
{
    rig         r = open_net(), same = open_net();
    lk_graph   *graphs[2];
    lk_plan    *plans[2];
    lk_program *small = second_program(&r, 2, true, &graphs[0], &plans[0]),
               *only_evaluates = second_program(&r, ROWS, false, &graphs[1], &plans[1]);
    for (int step = 1; step <= 6; step++) {
        int        count = step % 2 ? ROWS : 2;
        lk_step    s = {.step = step, .count = count, .rate = 0.1}, whole = {.step = step, .count = ROWS};
        lk_metrics a, b;
        REQUIRE(lk_program_train(step % 2 ? r.program : small, &s) == LK_OK, "%s", lk_context_error(r.context));
        REQUIRE(lk_program_train(same.program, &s) == LK_OK);
        CHECK(lk_store_hash(r.store) == lk_store_hash(same.store), "step %d", step);
        REQUIRE(lk_program_step(only_evaluates, &whole) == LK_OK &&
                lk_program_run(only_evaluates, LK_EVALUATE) == LK_OK);
        REQUIRE(lk_program_step(same.program, &whole) == LK_OK && lk_program_run(same.program, LK_EVALUATE) == LK_OK);
        lk_program_metrics(only_evaluates, &a);
        lk_program_metrics(same.program, &b);
        CHECK(a.loss == b.loss && a.loss > 0, "step %d: %.9g, %.9g", step, a.loss, b.loss);
    }
    lk_program_free(small);
    lk_program_free(only_evaluates);
    for (int i = 0; i < 2; i++) lk_plan_free(plans[i]), lk_graph_free(graphs[i]);
    rig_close(&r);
    rig_close(&same);
}

/* ---- files ---- */

static void a_buffer_that_is_not_saved_is_in_no_file(void)
{
    char  path[] = "/tmp/lockstep-store-XXXXXX";
    float cache[IN] = {1, 2, 3, 4, 5};
    close(mkstemp(path));
    rig      r = open_net(), plain = rig_open(LK_F32, 1);
    lk_state s;
    REQUIRE(lk_store_find(r.store, "cache", &s) && s.not_saved && s.buffer);
    REQUIRE(lk_store_find(r.store, "bn.running_mean", &s) && !s.not_saved);
    uint64_t hash = lk_store_hash(r.store);
    REQUIRE(lk_store_write(r.store, "cache", LK_STATE_VALUE, 0, IN, cache, sizeof cache) == LK_OK);
    CHECK(lk_store_hash(r.store) == hash);
    REQUIRE(lk_weights_save(r.store, path) == LK_OK, "%s", lk_context_error(r.context));
    lk__safetensors *file;
    REQUIRE(lk__safetensors_open(r.context, path, &file) == LK_OK);
    CHECK(!lk__safetensors_find(file, "cache") && lk__safetensors_find(file, "w") &&
          lk__safetensors_count(file) == lk_store_count(r.store) + 1); /* without it, with two more names of w */
    lk__safetensors_close(file);
    train(&r, 1);
    REQUIRE(lk_weights_load(r.store, path) == LK_OK, "%s", lk_context_error(r.context)); /* it need not be there … */
    CHECK(lk_store_hash(r.store) == hash && memcmp(state_copy(r.store, "cache"), cache, sizeof cache) == 0);
    /* … and must not be. */
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = lk_sum(lk_mul(lk_parameter(plain.graph, "w", 1, ((int64_t[]){IN})),
                                lk_buffer(plain.graph, "cache", LK_F32, 1, ((int64_t[]){IN}), 1)));
    rig_plan(&plain, &config, 1);
    REQUIRE(lk_weights_save(plain.store, path) == LK_OK);
    rig other = rig_open(LK_F32, 1);
    config.loss = lk_sum(lk_mul(lk_parameter(other.graph, "w", 1, ((int64_t[]){IN})),
                                lk_buffer(other.graph, "cache", LK_F32, 1, ((int64_t[]){IN}), 1, .not_saved = true)));
    rig_plan(&other, &config, 1);
    CHECK_ERROR(&other, lk_weights_load(other.store, path), LK_EMISMATCH, "never saves");
    rig_close(&other);
    rig_close(&plain);
    rig_close(&r);
    unlink(path);
}

/* What is saved is a copy: later changes of the store do not reach the file, although it is long in the making. */
static void a_background_save_holds_the_state_of_its_beginning(void)
{
    static const lk_policy policies[] = {LK_POLICY_RECORDED, LK_POLICY_BF16};
    enum { ROWS_OF_W = 2000, COLUMNS = 1000, ALL = ROWS_OF_W * COLUMNS };
    static const char *const names[] = {"fc.weight", "fc.bias"};
    for (int k = 0; k < 2; k++) {
        char                directory[] = "/tmp/lockstep-store-XXXXXX", command[64];
        rig                 r = rig_open(LK_F32, 1);
        lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
        lk_plan_config      config = LK_PLAN_CONFIG_INIT;
        lk__train_saver     saver;
        lk_progress         progress = {.step = 3}, done;
        double              seconds;
        lk_tensor           in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){1, COLUMNS}));
        sgd.kind = LK_SGD;
        config.loss = lk_sum(lk_linear(in, "fc", ROWS_OF_W));
        config.optimizer = &sgd;
        config.policy = policies[k];
        rig_plan(&r, &config, 1);
        REQUIRE(mkdtemp(directory));
        const uint64_t hash = lk_store_hash(r.store);
        REQUIRE(lk__saver_init(&saver, r.store) == LK_OK && lk__saver_background(&saver) == LK_OK);
        CHECK(lk_context_memory(r.context, LK_MEMORY_CHECKPOINT) ==
              lk__saver_bytes(r.plan, LK__CHUNK, 1) + lk__saver_background_bytes(r.plan, LK__CHUNK, 1, 0));
        REQUIRE(lk__saver_begin(&saver, directory, &progress, 1) == LK_OK);
        for (int i = 0; i < 2; i++) {
            lk_state s;
            REQUIRE(lk_store_find(r.store, names[i], &s));
            write_state(r.store, &s, copy_room(state_bytes(&s))); /* zeros */
        }
        CHECK(lk_store_hash(r.store) != hash);
        REQUIRE(lk__saver_finish(&saver, &done, &seconds) == LK_OK && done.step == 3, "%s",
                lk_context_error(r.context));
        REQUIRE(lk_checkpoint_load(r.store, directory, &done) == LK_OK, "%s", lk_context_error(r.context));
        CHECK(lk_store_hash(r.store) == hash, "policy %s", lk_policy_name(policies[k]));
        lk__saver_free(&saver);
        rig_close(&r);
        snprintf(command, sizeof command, "rm -rf %s", directory);
        CHECK(system(command) == 0);
    }
}

/* Longer than every staging buffer, and of a size that no chunk divides. */
static void a_large_state_survives_a_file_in_every_type(void)
{
    static const lk_dtype types[] = {LK_F32, LK_F64};
    char                  path[] = "/tmp/lockstep-store-XXXXXX";
    enum { LARGE = 300007 };
    close(mkstemp(path));
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++) {
            rig            a = rig_open(types[from], 1), b = rig_open(types[to], 1);
            lk_plan_config config = LK_PLAN_CONFIG_INIT;
            for (int i = 0; i < 2; i++) {
                lk_tensor sum = lk_sum(
                    lk_parameter((i ? b : a).graph, "w", 1, ((int64_t[]){LARGE}), .init = LK_INIT_UNIFORM, .a = 1));
                config.loss = sum;
                rig_plan(i ? &b : &a, &config, (uint64_t)i);
            }
            REQUIRE(lk_weights_save(a.store, path) == LK_OK && lk_weights_load(b.store, path) == LK_OK, "%s %s",
                    lk_context_error(a.context), lk_context_error(b.context));
            const void *saved = state_copy(a.store, "w"), *loaded = state_copy(b.store, "w");
            int64_t     wrong = 0;
            for (int64_t i = 0; i < LARGE; i++) {
                double value = real_at(saved, types[from], i);
                wrong += real_at(loaded, types[to], i) != (to == 0 ? (double)(float)value : value);
            }
            CHECK(wrong == 0, "%s to %s: %lld elements", lk_dtype_name(types[from]), lk_dtype_name(types[to]),
                  (long long)wrong);
            rig_close(&a);
            rig_close(&b);
        }
    unlink(path);
}

int main(void)
{
    RUN(a_slice_is_that_part_of_the_whole);
    RUN(a_written_slice_changes_those_elements_alone);
    RUN(slices_and_sizes_that_do_not_exist_are_refused);
    RUN(outputs_are_read_at_the_count_and_before_the_next_run);
    RUN(programs_of_one_store_take_turns);
    RUN(a_buffer_that_is_not_saved_is_in_no_file);
    RUN(a_background_save_holds_the_state_of_its_beginning);
    RUN(a_large_state_survives_a_file_in_every_type);
    return check_result();
}
