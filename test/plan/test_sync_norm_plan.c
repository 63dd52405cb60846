/* test_sync_norm_plan.c - whole models with synchronised batch norm at one rank against the same with plain batch norm:
 * losses, gradients and running statistics; what is recomputed and what is kept; how many sums over ranks there are.
 *
 * ctest: timeout 240 */
#include "support.h"

enum { BATCH = 6, SIDE = 12, PIXELS = 3 * SIDE * SIDE, STEPS = 5, NORMS = 21 };

typedef struct setting {
    bool sync, recompute, no_fusion, frozen; /* frozen: all but the last layer */
    int  counts[STEPS];
} setting;

typedef struct trained {
    rig    rig;
    double losses[STEPS];
    double images[BATCH * PIXELS];
    int    labels[BATCH];
} trained;

typedef struct text {
    char  *data;
    size_t used;
} text;

static void append(void *user, const char *data, size_t bytes)
{
    text *to = user;
    to->data = realloc(to->data, to->used + bytes + 1);
    REQUIRE(to->data);
    memcpy(to->data + to->used, data, bytes);
    to->data[to->used += bytes] = 0;
}

static int occurrences(const char *in, const char *of, const char *end)
{
    int count = 0;
    for (const char *at = in; (at = strstr(at, of)) && (!end || at < end); at++) count++;
    return count;
}

/* How often an operation is in the training sections. */
static int planned(const lk_plan *plan, const char *operation)
{
    text all = {0};
    lk_plan_print(plan, append, &all);
    int count = occurrences(all.data, operation, strstr(all.data, "\nevaluate"));
    free(all.data);
    return count;
}

static void train(trained *t, setting s)
{
    t->rig = rig_open(LK_F64, 2);
    lk_tensor          x = lk_input(t->rig.graph, "x", LK_F64, 4, ((int64_t[]){BATCH, 3, SIDE, SIDE}));
    lk_tensor          y = lk_input(t->rig.graph, "y", LK_I32, 1, ((int64_t[]){BATCH}));
    lk_parameter_group groups[] = {
        {.match = "layer*", .frozen = true}, {.match = "conv1*", .frozen = true}, {.match = "bn1*", .frozen = true}};
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    optimizer.kind = LK_SGD;
    optimizer.momentum = 0.9;
    optimizer.groups = groups;
    optimizer.groups_count = s.frozen ? 3 : 0;
    config.loss = lk_cross_entropy(lk_model_resnet20(x, (lk_model_options){.recompute = s.recompute}), y);
    config.optimizer = &optimizer;
    config.no_fusion = s.no_fusion;
    config.sync_batch_norm = s.sync;
    rig_plan(&t->rig, &config, 5);
    REQUIRE(lk_program_bind(t->rig.program, "x", t->images) == LK_OK &&
            lk_program_bind(t->rig.program, "y", t->labels) == LK_OK);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BATCH * PIXELS; i++) t->images[i] = 2 * number(10 + (uint64_t)step, (uint64_t)i) - 1;
        for (int i = 0; i < BATCH; i++) t->labels[i] = (int)(number_bits(20 + (uint64_t)step, (uint64_t)i) % 10);
        REQUIRE(lk_program_train(t->rig.program, &(lk_step){.step = step + 1, .count = s.counts[step], .rate = 0.01}) ==
                LK_OK);
        t->losses[step] = rig_metrics(&t->rig).loss;
    }
}

/* The largest difference of a state or gradient, against its largest element. */
static double distance(const double *a, const double *b, int64_t n)
{
    double worst = 0, largest = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(a[i]));
        worst = isfinite(b[i]) ? fmax(worst, fabs(a[i] - b[i])) : INFINITY;
    }
    return worst / largest;
}

static void compare(const trained *a, const trained *b, double tolerance)
{
    for (int i = 0; i < STEPS; i++)
        CHECK(fabs(a->losses[i] - b->losses[i]) <= tolerance * fabs(a->losses[i]), "step %d: %.17g and %.17g", i + 1,
              a->losses[i], b->losses[i]);
    for (size_t i = 0; i < lk_store_count(a->rig.store); i++) {
        lk_state    s = lk_store_at(a->rig.store, i);
        int64_t     n = state_elements(&s);
        const void *x = state_copy(a->rig.store, s.name), *y = state_copy(b->rig.store, s.name);
        if (s.dtype == LK_I64) {
            CHECK(*(const int64_t *)x == *(const int64_t *)y, "%s", s.name);
            continue;
        }
        double off = distance(x, y, n);
        CHECK(off <= tolerance, "%s differs by %g", s.name, off);
        const double *da = gradient_copy(a->rig.program, a->rig.store, s.name),
                     *db = gradient_copy(b->rig.program, b->rig.store, s.name);
        CHECK(!da == !db, "%s", s.name);
        off = da && db ? distance(da, db, n) : 0;
        CHECK(off <= 10 * tolerance, "the gradient of %s differs by %g", s.name, off);
    }
}

static void one_rank_trains_resnet20_like_plain_batch_norm(void)
{
    static trained plain, synced;
    for (int no_fusion = 0; no_fusion < 2; no_fusion++) {
        setting s = {.no_fusion = no_fusion, .counts = {6, 6, 6, 6, 6}};
        train(&plain, s);
        s.sync = true;
        train(&synced, s);
        compare(&plain, &synced, 1e-12);
        CHECK(planned(plain.rig.plan, " all_reduce ") == 0 && planned(plain.rig.plan, "batch_norm_apply") == 0);
        CHECK(planned(synced.rig.plan, " all_reduce ") == 2 * NORMS, "%d", planned(synced.rig.plan, " all_reduce "));
        CHECK(planned(synced.rig.plan, "batch_norm_apply+relu") == (no_fusion ? 0 : 10));
        CHECK(planned(synced.rig.plan, " batch_norm,") == 0 && planned(synced.rig.plan, " batch_norm+") == 0 &&
              planned(synced.rig.plan, "batch_norm_grad,") == 0 && planned(synced.rig.plan, "batch_norm_grad+") == 0);
        CHECK(lk_plan_fingerprint(plain.rig.plan) != lk_plan_fingerprint(synced.rig.plan));
        rig_close(&plain.rig);
        rig_close(&synced.rig);
    }
}

static void uneven_and_empty_batches_too(void)
{
    static trained plain, synced;
    setting        s = {.counts = {6, 1, 0, 5, 2}};
    train(&plain, s);
    s.sync = true;
    train(&synced, s);
    compare(&plain, &synced, 1e-10); /* a batch of one or two leaves 9 rows to the last norms: steep */
    rig_close(&plain.rig);
    rig_close(&synced.rig);
}

static void recomputation_keeps_the_sums_and_changes_no_bit(void)
{
    static trained kept, again;
    setting        s = {.sync = true, .counts = {6, 6, 3, 6, 6}};
    train(&kept, s);
    s.recompute = true;
    train(&again, s);
    CHECK(memcmp(kept.losses, again.losses, sizeof kept.losses) == 0);
    CHECK(lk_store_hash(kept.rig.store) == lk_store_hash(again.rig.store));
    CHECK(planned(again.rig.plan, " all_reduce ") == 2 * NORMS, "%d", planned(again.rig.plan, " all_reduce "));
    CHECK(planned(again.rig.plan, "batch_norm_apply") > NORMS); /* it is recomputed at all */
    CHECK(lk_plan_memory(again.rig.plan, LK_MEMORY_ACTIVATIONS) <
          lk_plan_memory(kept.rig.plan, LK_MEMORY_ACTIVATIONS) * 3 / 4);
    rig_close(&kept.rig);
    rig_close(&again.rig);
}

static void frozen_norms_add_no_sums_to_backward(void)
{
    static trained plain, synced;
    setting        s = {.frozen = true, .counts = {6, 6, 6, 6, 6}};
    train(&plain, s);
    s.sync = true;
    train(&synced, s);
    compare(&plain, &synced, 1e-12);
    CHECK(planned(synced.rig.plan, " all_reduce ") == NORMS, "%d", planned(synced.rig.plan, " all_reduce "));
    rig_close(&plain.rig);
    rig_close(&synced.rig);
}

/* A norm whose result nothing reads still updates its running statistics, as plain batch norm does. */
static void an_unread_norm_updates_its_running_statistics(void)
{
    double running[2][3], x[5 * 3], y[5 * 3] = {0};
    for (int i = 0; i < 5 * 3; i++) x[i] = number(1, (uint64_t)i);
    for (int sync = 0; sync < 2; sync++) {
        rig                 r = rig_open(LK_F64, 1);
        lk_tensor           input = lk_input(r.graph, "x", LK_F64, 2, ((int64_t[]){5, 3}));
        lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
        lk_plan_config      config = LK_PLAN_CONFIG_INIT;
        lk_batch_norm(input, "unread", .no_bias = true);
        config.loss = lk_mse(lk_linear(input, "read", 3), lk_input(r.graph, "y", LK_F64, 2, ((int64_t[]){5, 3})));
        config.optimizer = &optimizer;
        config.sync_batch_norm = sync;
        rig_plan(&r, &config, 5);
        REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "y", y) == LK_OK);
        REQUIRE(lk_program_train(r.program, &(lk_step){.step = 1, .count = 5, .rate = 0.1}) == LK_OK);
        memcpy(running[sync], state_copy(r.store, "unread.running_mean"), sizeof running[sync]);
        rig_close(&r);
    }
    for (int c = 0; c < 3; c++) {
        double want = 0;
        for (int i = 0; i < 5; i++) want += 0.1 * x[i * 3 + c] / 5;
        CHECK(fabs(running[0][c] - want) < 1e-14 && fabs(running[1][c] - want) < 1e-14, "%g, %g, not %g", running[0][c],
              running[1][c], want);
    }
}

static void a_model_without_batch_norm_is_refused(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_tensor           input = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){5, 3}));
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_plan            *plan = NULL;
    config.loss = lk_mse(lk_linear(input, "fc", 3), lk_input(r.graph, "y", LK_F32, 2, ((int64_t[]){5, 3})));
    config.optimizer = &optimizer;
    config.sync_batch_norm = true;
    lk_status status = lk_plan_create(r.graph, &config, &plan);
    CHECK(status == LK_EINVAL && !plan && strstr(lk_context_error(r.context), "the model has no batch norm"), "%s: %s",
          lk_status_name(status), lk_context_error(r.context));
    rig_close(&r);
}

int main(void)
{
    RUN(one_rank_trains_resnet20_like_plain_batch_norm);
    RUN(uneven_and_empty_batches_too);
    RUN(recomputation_keeps_the_sums_and_changes_no_bit);
    RUN(frozen_norms_add_no_sums_to_backward);
    RUN(an_unread_norm_updates_its_running_statistics);
    RUN(a_model_without_batch_norm_is_refused);
    return check_result();
}
