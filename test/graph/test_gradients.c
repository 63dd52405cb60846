/* test_gradients.c - every operation's gradient against finite differences in f64, at awkward shapes; the same
 * gradients with and without fusion, and bit for bit the same inside a block that is recomputed. Batch norm is also
 * tested synchronised.
 *
 * ctest: timeout 300 */
#include "gradient_cases.h"

static lk_context *context; /* of all cases */

typedef struct run {
    rig  rig;
    cell cell;
} run;

static run start(const gradient_case *k, int variant, bool sync, bool no_fusion, bool recompute)
{
    run r = {.rig = rig_open_in(context, LK_F64)};
    r.cell = (cell){.graph = r.rig.graph, .real = LK_F64, .variant = variant};
    lk_tensor anywhere = {r.rig.graph, -1};
    if (recompute) lk_block_begin(anywhere, "block", .recompute = true);
    lk_tensor y = k->build(&r.cell);
    if (recompute) lk_block_end(anywhere);
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    config.loss = k->loss ? y : weighted_sum(&r.cell, y);
    config.optimizer = &optimizer;
    config.no_fusion = no_fusion;
    config.sync_batch_norm = sync;
    rig_plan(&r.rig, &config, 1);
    cell_fill(&r.cell, &r.rig, 100);
    REQUIRE(lk_program_step(r.rig.program, &(lk_step){.step = 1, .seed = 7}) == LK_OK);
    return r;
}

static void stop(run *r)
{
    rig_close(&r->rig);
    cell_close(&r->cell);
}

static double forward(run *r)
{
    REQUIRE(lk_program_run(r->rig.program, LK_FORWARD) == LK_OK, "%s", lk_context_error(r->rig.context));
    return rig_metrics(&r->rig).sum;
}

static double backward(run *r)
{
    double loss = forward(r);
    REQUIRE(lk_program_run(r->rig.program, LK_BACKWARD) == LK_OK);
    return loss;
}

/* The derivative of the loss along x + t · direction, by central differences. Smooth: of fourth order, so that the step
 * can be large and rounding stays far below the tolerance. Piecewise: a step so small that it rarely meets a kink. */
static double slope(run *r, bool kinks, const lk_state *s, const double *direction)
{
    static const double offsets[] = {1, -1, 2, -2}, weights[] = {8.0 / 12, -8.0 / 12, -1.0 / 12, 1.0 / 12};
    double              h = kinks ? 1e-6 : 1e-3, total = 0;
    int64_t             n = state_elements(s);
    double             *keep = state_copy(r->rig.store, s->name), *x = copy_room(state_bytes(s));
    for (int k = 0; k < (kinks ? 2 : 4); k++) {
        for (int64_t i = 0; i < n; i++) x[i] = keep[i] + offsets[k] * h * direction[i];
        write_state(r->rig.store, s, x);
        total += (kinks ? offsets[k] / 2 : weights[k]) * forward(r);
    }
    write_state(r->rig.store, s, keep);
    return total / h;
}

/* Of a parameter; fewer where the device is slow: emulated, or under a checking tool. */
static int64_t elements_tried(void) { return getenv("LK_TEST_SLOW") ? 3 : 24; }

/* Along single elements (all, or some of many) and along a random direction, which detects any wrong element. */
static void check_parameter(run *r, const gradient_case *k, int variant, const lk_state *s)
{
    int64_t       n = state_elements(s);
    const double *gradient = gradient_copy(r->rig.program, r->rig.store, s->name);
    double       *own = malloc((size_t)n * sizeof *own);
    double       *direction = calloc((size_t)n, sizeof *direction), scale = 1e-2;
    REQUIRE(gradient, "%s#%d: %s has no gradient", k->name, variant, s->name);
    memcpy(own, gradient, (size_t)n * sizeof *own);
    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs(own[i]));
    double  tolerance = (k->kinks ? 1e-6 : 1e-8) * scale;
    int64_t tried = elements_tried(), stride = n <= tried ? 1 : n / tried | 1;
    for (int64_t i = 0; i < n; i += stride) {
        direction[i] = 1;
        double fd = slope(r, k->kinks, s, direction);
        direction[i] = 0;
        CHECK(fabs(fd - own[i]) <= tolerance, "%s#%d: %s[%lld]: gradient %.12g, differences %.12g", k->name, variant,
              s->name, (long long)i, own[i], fd);
    }
    double expected = 0;
    for (int64_t i = 0; i < n; i++) {
        direction[i] = 2 * number(55, (uint64_t)i) - 1;
        expected += direction[i] * own[i];
    }
    double fd = slope(r, k->kinks, s, direction);
    CHECK(fabs(fd - expected) <= tolerance * sqrt((double)n),
          "%s#%d: %s along a direction: gradient %.12g, differences %.12g", k->name, variant, s->name, expected, fd);
    free(own);
    free(direction);
}

/* The other plan of the same case gives the same loss and gradients, within a relative tolerance (0: the same bits). */
static void check_same(run *r, const gradient_case *k, int variant, bool sync, bool no_fusion, bool recompute,
                       double tolerance)
{
    run         other = start(k, variant, sync, no_fusion, recompute);
    double      loss = backward(r), again = backward(&other);
    const char *how = recompute ? "recomputed" : no_fusion ? "without fusion" : "not synchronised";
    CHECK(fabs(loss - again) <= tolerance * (1 + fabs(loss)), "%s#%d: loss %.17g, %s %.17g", k->name, variant, loss,
          how, again);
    for (size_t i = 0; i < lk_store_count(r->rig.store); i++) {
        lk_state      s = lk_store_at(r->rig.store, i);
        const double *a = gradient_copy(r->rig.program, r->rig.store, s.name);
        const double *b = gradient_copy(other.rig.program, other.rig.store, lk_store_at(other.rig.store, i).name);
        CHECK(!a == !b);
        int64_t n = a && b ? state_elements(&s) : 0;
        double  scale = 1e-2, worst = 0;
        for (int64_t j = 0; j < n; j++) {
            scale = fmax(scale, fabs(a[j]));
            worst = fmax(worst, fabs(a[j] - b[j]));
            if (isnan(a[j]) || isnan(b[j])) worst = INFINITY;
        }
        CHECK(worst <= tolerance * scale, "%s#%d: %s: gradients differ by %g %s", k->name, variant, s.name, worst, how);
    }
    stop(&other);
}

static void check_case(const gradient_case *k, int variant, bool sync)
{
    run r = start(k, variant, sync, false, false);
    backward(&r);
    for (size_t i = 0; i < lk_store_count(r.rig.store); i++) {
        lk_state s = lk_store_at(r.rig.store, i);
        if (s.buffer || s.frozen) {
            CHECK(!gradient_copy(r.rig.program, r.rig.store, s.name), "%s#%d: %s", k->name, variant, s.name);
            continue;
        }
        check_parameter(&r, k, variant, &s);
        backward(&r);
    }
    check_same(&r, k, variant, sync, true, false, 1e-12);
    /* Synchronised statistics are relative to the running mean, which the forward runs above have changed. */
    check_same(&r, k, variant, sync, false, true, sync ? 1e-12 : 0);
    if (sync) check_same(&r, k, variant, false, false, false, 1e-12);
    stop(&r);
}

/* test_gradients [NAME [VARIANT]]: one case. LK_TEST_SHARE divides the variants. */
int main(int argc, char **argv)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) != 0) continue;
        int before = check_failures, ran = 0;
        for (int v = 0; v < cases[i].variants; v++) {
            if (argc > 2 ? atoi(argv[2]) != v : !is_in_share()) continue;
            for (int sync = 0; sync <= cases[i].sync; sync++) check_case(&cases[i], v, sync);
            ran++;
        }
        printf("%s %s: %d variants\n", check_failures == before ? "ok  " : "FAIL", cases[i].name, ran);
        fflush(stdout);
    }
    lk_context_free(context);
    return check_result();
}
