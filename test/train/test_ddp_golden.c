/* test_ddp_golden.c - two ranks compared with two processes of PyTorch's DistributedDataParallel, from the same weights
 * and batches in f64: SimpleCNN, and ResNet-20 with separate batch norm on each rank; and ResNet-20 with synchronised
 * batch norm compared with one process of PyTorch on the whole batch. The values come from golden/make_ddp.py and
 * make_training.py.
 *
 *   test_ddp_golden [FILE]     FILE: written by make_ddp.py, with any number of steps
 * ctest: timeout 300, ranks 2, label slow */
#include "parallel.h"

static const char *fresh;

typedef struct lesson {
    job    job;
    double evaluated;
} lesson;

/* Rank 0 also evaluates, with its own running statistics. */
static int train_and_evaluate(int rank, void *user)
{
    lesson *l = user;
    check_failures = 0;
    rank_program p = enrol_rank(&l->job, rank);
    for (int step = 1; step <= l->job.steps; step++) {
        double loss = train_rank(&p, &l->job, rank, step);
        if (rank == 0) l->job.out->losses[step - 1] = loss;
    }
    int rows = l->job.batch / l->job.world;
    fill_rows(p.images, LK_F64, p.labels, l->job.side, 0, rows, 9999);
    REQUIRE(lk_program_step(p.rig.program, &(lk_step){.step = 1, .count = rows}) == LK_OK &&
            lk_program_run(p.rig.program, LK_EVALUATE) == LK_OK);
    if (rank == 0) l->evaluated = rig_metrics(&p.rig).loss;
    dismiss_rank(&p);
    return check_result();
}

static lk__safetensors *open_values(lk_context *context, const char *name)
{
    lk__safetensors *file = NULL;
    if (!fresh) return golden_open(context, name);
    REQUIRE(lk__safetensors_open(context, fresh, &file) == LK_OK, "%s", lk_context_error(context));
    return file;
}

static void compare(const char *name, const char *model, int batch, bool sync)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    char              prefix[64];
    int64_t           steps;
    double            worst = 0, *evaluated = NULL;
    config.threads = 1;    /* lk_spawn forks */
    config.device = "cpu"; /* it only reads a file */
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    lk__safetensors *file = open_values(context, name);
    snprintf(prefix, sizeof prefix, "%s/", model);
    double *losses = golden(file, prefix, "losses", &steps);
    if (!sync) evaluated = golden(file, prefix, "evaluated", NULL);
    REQUIRE(steps > 0 && steps <= MOST_STEPS);
    lesson *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(l != MAP_FAILED);
    l->job = (job){.model = model,
                   .real = LK_F64,
                   .side = 32,
                   .steps = (int)steps,
                   .batch = batch,
                   .world = 2,
                   .sync = sync,
                   .optimizer = LK_ADAM,
                   .out = new_report()};
    lk_spawn_result result;
    CHECK(lk_spawn(2, train_and_evaluate, l, &result) == LK_OK, "%s", result.text);
    for (int i = 0; i < steps; i++) {
        double off = fabs(l->job.out->losses[i] - losses[i]) / losses[i];
        worst = off > worst ? off : worst;
        CHECK(off <= 1e-9, "%s step %d: loss %.17g, PyTorch %.17g", model, i + 1, l->job.out->losses[i], losses[i]);
    }
    if (evaluated)
        CHECK(fabs(l->evaluated - evaluated[0]) <= 1e-8 * evaluated[0], "%s evaluates to %.17g, PyTorch %.17g", model,
              l->evaluated, evaluated[0]);
    printf("     %s: %lld losses within %.1e\n", model, (long long)steps, worst);
    free_report(l->job.out);
    munmap(l, sizeof *l);
    free(losses);
    free(evaluated);
    lk__safetensors_close(file);
    lk_context_free(context);
}

static void simple_cnn_trains_as_under_ddp(void) { compare("ddp.safetensors", "cnn", 16, false); }
static void resnet20_trains_as_under_ddp(void) { compare("ddp.safetensors", "resnet20", 8, false); }
static void resnet20_with_sync_batch_norm_trains_as_one_process(void)
{
    compare("training.safetensors", "resnet20", 8, true);
}

int main(int argc, char **argv)
{
    fresh = argc > 1 ? argv[1] : NULL;
    RUN(simple_cnn_trains_as_under_ddp);
    RUN(resnet20_trains_as_under_ddp);
    if (!fresh) RUN(resnet20_with_sync_batch_norm_trains_as_one_process);
    return check_result();
}
