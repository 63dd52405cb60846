/* test_shard_leaves.c - leaves of the batch where ranks along shard have slices of the state: the bits of one rank, and
 * of ranks that share their state, with every stage, number of ranks and order of axes; clipped, too; and the memory
 * that the plan says.
 *
 * ctest: timeout 300, ranks 4 */
#include "parallel.h"

#include <string.h>

enum { STEPS = SANITIZED ? 2 : 3 };

static job job_of(const char *mesh, int world, int stage)
{
    return (job){.model = "cnn",
                 .real = LK_F32,
                 .side = 16,
                 .steps = STEPS,
                 .batch = 24,
                 .odd = 5, /* some leaves have no sample */
                 .world = world,
                 .leaves = 8,
                 .mesh = mesh,
                 .stage = stage,
                 .state = LK_STATE_REPLICATED,
                 .optimizer = LK_ADAM};
}

static bool on_cpu(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return !device || strcmp(device, "cpu") == 0;
}

/* Elsewhere than on the CPU one setting of three: what differs there is how slices and leaves reach its memory. */
static bool omits(int stage, int layout) { return !on_cpu() && (stage + layout) % 3 != 0; }

static report *run_of(job *j)
{
    j->out = new_report();
    run_job(j);
    return j->out;
}

static void compare(job j, const report *whole, const char *what)
{
    report *r = run_of(&j);
    bool    alike = j.sync || strcmp(j.model, "cnn") == 0; /* else running statistics are each rank's */
    for (int i = 0; i < (alike ? j.world : 1); i++)
        CHECK(r->hashes[i] == whole->hashes[0], "%s stage %d, %s: rank %d has other bits than one rank",
              j.mesh ? j.mesh : "data", j.stage, what, i);
    CHECK(memcmp(r->losses, whole->losses, sizeof(double) * STEPS) == 0, "%s stage %d, %s: other losses", j.mesh,
          j.stage, what);
    free_report(r);
}

static const struct {
    const char *mesh;
    int         world;
} layouts[] = {{"shard=2", 2}, {"shard=3", 3}, {"shard=4", 4}, {"data=2,shard=2", 4}, {"shard=2,data=2", 4}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void every_stage_and_layout_has_the_bits_of_one_rank(void)
{
    job     one = job_of(NULL, 1, 0);
    report *whole = run_of(&one);
    for (int stage = 1; stage <= 3; stage++)
        for (int i = 0; i < LAYOUTS; i++)
            if (!omits(stage, i)) compare(job_of(layouts[i].mesh, layouts[i].world, stage), whole, "shm");
    for (int stage = 1; stage <= 3; stage += 2) {
        job j = job_of("shard=3", 3, stage);
        j.backend = "tcp";
        compare(j, whole, "tcp");
        j.bucket_bytes = 4096;
        compare(j, whole, "tcp, small units");
    }
    job shared = job_of("shard=2", 2, 0);
    shared.state = LK_STATE_SHARED;
    if (on_cpu()) compare(shared, whole, "shared state");
    free_report(whole);
}

/* Slices end within parts of the norm; of small units several of them within one. With `layout` it is added without
 * rounding: the same bits as well, of another sum. */
static void a_clipped_step_has_the_bits_of_one_rank(void)
{
    if (!on_cpu()) return; /* elsewhere a norm is added in another order */
    uint64_t hashes[2];
    for (int layout = 0; layout < 2; layout++) {
        job one = job_of(NULL, 1, 0);
        one.clip = 0.1;
        one.real = LK_F64; /* the last bit of the norm does not reach a factor in f32 */
        one.layout = layout;
        report *whole = run_of(&one);
        hashes[layout] = whole->hashes[0];
        for (int stage = 1; stage <= 3; stage++)
            for (int i = layout ? stage - 1 : 0; i < LAYOUTS; i += layout ? 3 : 1) {
                job j = one;
                j.mesh = layouts[i].mesh;
                j.world = layouts[i].world;
                j.stage = stage;
                j.bucket_bytes = i == 1 ? 4096 : 0;
                compare(j, whole, layout ? "clipped without rounding" : "clipped");
            }
        job shared = one;
        shared.world = 3;
        shared.state = LK_STATE_SHARED;
        compare(shared, whole, "clipped, shared state");
        free_report(whole);
    }
    CHECK(hashes[0] != hashes[1], "both norms are the same, so the comparison may detect nothing");
}

/* Batch norm over the samples of a leaf: leaves run one after the other, and stage 3 gathers for each. Of 8 leaves
 * three ranks have 2, 3 and 3: the first gathers once more, without samples. */
static void leaves_that_run_one_after_the_other_have_the_bits_of_one_rank(void)
{
    for (int kind = 0; kind < 2; kind++) {
        job one = job_of(NULL, 1, 0);
        one.model = kind ? "cnn" : "resnet20";
        one.one_by_one = kind;
        one.clip = on_cpu() ? 0.1 : 0;
        report *whole = run_of(&one);
        for (int stage = 1; stage <= 3; stage++)
            for (int i = 0; i < 4; i++) {
                job j = one;
                j.mesh = layouts[i].mesh;
                j.world = layouts[i].world;
                j.stage = stage;
                if (!omits(stage, i) && (kind || stage == 3 || on_cpu())) compare(j, whole, one.model);
            }
        free_report(whole);
    }
}

static void synchronised_batch_norm_has_the_bits_of_one_rank(void)
{
    job one = job_of(NULL, 1, 0);
    one.model = "resnet20";
    one.sync = true;
    report *whole = run_of(&one);
    for (int stage = on_cpu() ? 1 : 3; stage <= 3; stage++) {
        job j = one;
        j.mesh = layouts[stage].mesh;
        j.world = layouts[stage].world;
        j.stage = stage;
        compare(j, whole, "synchronised");
        j.one_by_one = true;
        compare(j, whole, "synchronised, one by one");
    }
    free_report(whole);
}

/* ---- memory ---- */

static int measure_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    size_t before = lk_context_memory(p.rig.context, LK_MEMORY_OTHER);
    for (int step = 1; step <= 2; step++) train_rank(&p, j, rank, step);
    CHECK(lk_context_memory(p.rig.context, LK_MEMORY_OTHER) == before, "%s stage %d: steps allocate", j->mesh,
          j->stage);
    dismiss_rank(&p);
    return check_result();
}

static void a_rank_has_what_the_plan_says(void)
{
    lk_spawn_result result;
    for (int stage = 1; stage <= 3; stage++)
        for (int i = 0; i < LAYOUTS; i += 3) {
            job j = job_of(layouts[i].mesh, layouts[i].world, stage);
            j.clip = 0.1;
            j.micro_batches = i ? 2 : 1;
            j.layout = stage == 2 && on_cpu();
            check_ranks_announced(j.world);
            CHECK(lk_spawn(j.world, measure_as, &j, &result) == LK_OK, "%s", result.text);
        }
}

/* ---- micro-batches ---- */

/* Each is a run of leaves, so that they change no bits; three ranks have 2, 3 and 3 leaves. */
static void micro_batches_have_the_bits_of_one_rank(void)
{
    for (int kind = 0; kind < (on_cpu() ? 2 : 1); kind++) {
        job one = job_of(NULL, 1, 0);
        one.model = kind ? "resnet20" : "cnn";
        one.clip = on_cpu() ? 0.1 : 0;
        report *whole = run_of(&one);
        for (int parts = 2; parts <= 8; parts += 3) {
            job j = one;
            j.micro_batches = parts;
            compare(j, whole, "micro-batches of one rank");
        }
        for (int i = 0; i < 4; i++) {
            job j = one;
            j.mesh = layouts[i].mesh;
            j.world = layouts[i].world;
            j.stage = i == 0 ? 2 : i == 3 ? 1 : 3;
            j.micro_batches = i == 1 ? 3 : 2;
            compare(j, whole, "micro-batches");
        }
        job shared = one;
        shared.world = shared.micro_batches = 3;
        shared.state = LK_STATE_SHARED;
        if (on_cpu()) compare(shared, whole, "micro-batches, shared state");
        free_report(whole);
    }
}

static void micro_batches_that_cannot_be_are_refused(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 4, ((int64_t[]){9, 3, 16, 16}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){9}));
    config.loss = lk_cross_entropy(lk_model_find("resnet20")(x, (lk_model_options){0}), y);
    config.optimizer = &optimizer;
    config.parallel = (lk_parallel){.world = 3, .leaves = 8, .micro_batches = 4};
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL);
    CHECK(strstr(lk_context_error(r.context), "so at most 3 micro-batches are possible"), "%s",
          lk_context_error(r.context));
    config.parallel.micro_batches = 2;
    config.sync_batch_norm = true;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(r.context), "sums over all leaves between its layers"), "%s",
          lk_context_error(r.context));
    lk_graph_free(r.graph);
    lk_context_free(r.context);
}

int main(void)
{
    RUN(every_stage_and_layout_has_the_bits_of_one_rank);
    RUN(a_clipped_step_has_the_bits_of_one_rank);
    RUN(leaves_that_run_one_after_the_other_have_the_bits_of_one_rank);
    RUN(synchronised_batch_norm_has_the_bits_of_one_rank);
    RUN(a_rank_has_what_the_plan_says);
    RUN(micro_batches_have_the_bits_of_one_rank);
    RUN(micro_batches_that_cannot_be_are_refused);
    return check_result();
}
