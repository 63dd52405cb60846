/* test_store.c - state, gradients and outputs are read and written by copies: by name and slice, with sizes that are checked. */
#include "support.h"

#include <lockstep/checkpoint.h>
#include <unistd.h>

enum { ROWS = 3, IN = 5, OUT = 4 };

static const float x[ROWS * IN] = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 2, 3, -4, 5, 6}, y[ROWS * OUT] = {1, 2};

/* y = W x + b with Adam's two moments; the weight has a second name, and `fixed` is frozen. */
static rig open_net(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_tensor           in = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){ROWS, IN}));
    lk_tensor           target = lk_input(r.graph, "y", LK_F32, 2, ((int64_t[]){ROWS, OUT}));
    lk_tensor           w = lk_parameter(r.graph, "w", 2, ((int64_t[]){OUT, IN}));
    lk_tensor           fixed = lk_parameter(r.graph, "fixed", 1, ((int64_t[]){OUT}), .frozen = true);
    lk_tensor           norm = lk_batch_norm(in, "bn");
    lk_tie(w, "second");
    lk_tensor out = lk_add(lk_linear(norm, "fc", OUT, .weight = w), fixed);
    config.loss = lk_mse(out, target);
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
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 18, 3, buffer, 12), LK_EINVAL, "from element 18");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, -1, 3, buffer, 12), LK_EINVAL, "element -1");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 1, INT64_MAX, buffer, 12), LK_EINVAL, "which has 20");
    CHECK_ERROR(&r, lk_store_read(r.store, "w", LK_STATE_VALUE, 1, -1, buffer, 12), LK_EINVAL, "-1 elements");
    CHECK_ERROR(&r, lk_store_write(r.store, "w", LK_STATE_VALUE, 0, 20, buffer, 79), LK_EINVAL, "80 bytes, not 79");
    CHECK_ERROR(&r, lk_store_write(r.store, "fixed", LK_STATE_MOMENT_0, 0, 4, buffer, 16), LK_EINVAL, "0 moments");
    CHECK_ERROR(&r, lk_store_write(r.store, "w", LK_STATE_PART_COUNT, 0, 4, buffer, 16), LK_EINVAL, "part 3");
    CHECK_ERROR(&r, lk_store_read(r.store, "bn.running_mean", LK_STATE_MOMENT_1, 0, 4, buffer, 16), LK_EINVAL, "part 2");
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
                "48 bytes at a count of 3, not 44");
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = 2}) == LK_OK);
    CHECK(lk_program_output_read(r.program, 0, all, sizeof all) == LK_OK); /* still the run's 3 */
    REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK);
    REQUIRE(lk_program_output_read(r.program, 0, two, sizeof two) == LK_OK);
    CHECK(memcmp(all, two, sizeof two) == 0);
    REQUIRE(lk_program_run(r.program, LK_FORWARD) == LK_OK);
    CHECK_ERROR(&r, lk_program_output_read(r.program, 0, two, sizeof two), LK_EINVAL, "before the next run");
    rig_close(&r);
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
    RUN(a_large_state_survives_a_file_in_every_type);
    return check_result();
}
