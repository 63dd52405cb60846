/* parallel.c - a model of one's own whose layers are cut over ranks: the mesh is an argument, lk_place says which value
 * is split over the tensor axis, and what else is split, and what the ranks exchange, follows from that. Every mesh
 * gives the same losses.
 *
 *   parallel [AXES]     such as tensor=2 or data=2,tensor=2; default: data=2,tensor=2 */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEATURES = 16, WIDE = 64, CLASSES = 4, BATCH = 32, STEPS = 60 }; /* the batch of all ranks */

typedef struct job {
    const char *axes;
    lk_context *context;
    lk_comm    *comm;
    lk_mesh    *mesh;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    float       x[BATCH * FEATURES]; /* this rank's part of the batch */
    int32_t     y[BATCH];
} job;

#define TRY(call)                       \
    do {                                \
        lk_status tried = (call);       \
        if (tried < 0) return tried;    \
    } while (0)

/* Two branches that are multiplied, each WIDE wide: a rank computes its part of the width, with its part of the weights
 * of all three layers, and the product with "out" is a sum over the ranks. On a mesh without the tensor axis lk_place
 * does nothing. */
static lk_tensor gated(lk_tensor x) /* (N, FEATURES) → (N, CLASSES) */
{
    lk_tensor gate = lk_sigmoid(lk_linear(x, "gate", WIDE)), value = lk_tanh(lk_linear(x, "value", WIDE));
    lk_tensor h = lk_place(lk_mul(gate, value), "tensor", 1); /* (N, WIDE), split along dimension 1 */
    return lk_linear(h, "out", CLASSES);
}

static lk_status setup(job *j)
{
    lk_mesh_config meshing = LK_MESH_CONFIG_INIT;
    TRY(lk_comm_create(j->context, NULL, &j->comm)); /* lk_spawn has set rank and size */
    meshing.axes = j->axes;
    meshing.comm = j->comm;
    TRY(lk_mesh_create(j->context, &meshing, &j->mesh));

    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      planning = LK_PLAN_CONFIG_INIT;
    adam.lr = 0.01;
    planning.optimizer = &adam;
    planning.mesh = j->mesh;
    int64_t rows = lk_mesh_capacity(j->mesh, &planning.parallel, BATCH);
    TRY(lk_graph_create(j->context, LK_F32, &j->graph));
    lk_tensor x = lk_input(j->graph, "x", LK_F32, 2, ((int64_t[]){rows, FEATURES}));
    lk_tensor y = lk_input(j->graph, "y", LK_I32, 1, &rows);
    planning.loss = lk_cross_entropy(gated(x), y);
    TRY(lk_plan_create(j->graph, &planning, &j->plan));
    TRY(lk_store_create_shared(j->plan, 0, j->comm, &j->store)); /* right for every mesh */
    TRY(lk_program_create(j->plan, j->store, j->comm, &j->program));
    TRY(lk_program_bind(j->program, "x", j->x));
    return lk_program_bind(j->program, "y", j->y);
}

/* Sample `i`: noise around the corner of its class. */
static void make_sample(int64_t i, float *x, int32_t *y)
{
    uint64_t bits = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    *y = (int32_t)(bits >> 60) % CLASSES;
    for (int k = 0; k < FEATURES; k++) {
        bits = (bits ^ bits >> 29) * 0xBF58476D1CE4E5B9u + 1;
        x[k] = (float)(bits >> 40) * 0x1p-23f - 1.0f + (k % CLASSES == *y ? 0.7f : 0.0f);
    }
}

/* The rows of the global batch are divided over the axes that split batches; ranks along tensor have the same rows. */
static lk_status train_step(job *j, int64_t step, double *loss)
{
    int        parts = lk_mesh_extent(j->mesh, LK_AXES_BATCH);
    int        part = lk_mesh_coordinate(j->mesh, LK_AXES_BATCH, lk_mesh_rank(j->mesh));
    int64_t    first = (int64_t)BATCH * part / parts, count = (int64_t)BATCH * (part + 1) / parts - first;
    lk_metrics m;
    lk_step    now = {.step = step, .count = count, .total = BATCH, .rate = LK_RATE_OF_OPTIMIZER};
    for (int64_t i = 0; i < count; i++) make_sample(step * BATCH + first + i, j->x + i * FEATURES, &j->y[i]);
    TRY(lk_program_train(j->program, &now));
    lk_program_metrics(j->program, &m); /* of all ranks */
    *loss = m.loss;
    return LK_OK;
}

static lk_status run(job *j, double *loss)
{
    TRY(setup(j));
    int rank = lk_mesh_rank(j->mesh);
    if (rank == 0)
        printf("%s: each rank has %zu bytes of parameters\n", lk_mesh_text(j->mesh),
               lk_plan_memory(j->plan, LK_MEMORY_PARAMETERS));
    for (int64_t step = 1; step <= STEPS; step++) {
        TRY(train_step(j, step, loss));
        if (rank == 0 && step % 20 == 0) printf("step %lld: loss %.4f\n", (long long)step, *loss);
    }
    return LK_OK;
}

/* The main function of each rank; returns its exit status. */
static int rank_main(int rank, void *user)
{
    job   *j = user; /* this process's own copy */
    double loss = 0;
    if (lk_context_create(NULL, &j->context) < 0) return 1;
    lk_status status = run(j, &loss);
    if (status < 0) {
        fprintf(stderr, "parallel: rank %d: %s\n", rank, lk_context_error(j->context));
        if (j->comm) lk_comm_abort(j->comm, lk_context_error(j->context)); /* so that no rank waits for this one */
    }
    lk_program_free(j->program);
    lk_store_free(j->store);
    lk_plan_free(j->plan);
    lk_graph_free(j->graph);
    lk_mesh_free(j->mesh);
    lk_comm_free(j->comm);
    lk_context_free(j->context);
    return status < 0 || loss > 1;
}

/* The number of ranks of a mesh, without any of them. 0: the text is not a mesh, and why was printed. */
static int ranks_of(const char *axes)
{
    lk_mesh_config meshing = LK_MESH_CONFIG_INIT;
    lk_context    *context;
    lk_mesh       *mesh = NULL;
    if (lk_context_create(NULL, &context) < 0) return 0;
    meshing.axes = axes;
    int ranks = lk_mesh_create(context, &meshing, &mesh) < 0 ? 0 : lk_mesh_size(mesh);
    if (ranks == 0) fprintf(stderr, "parallel: %s\n", lk_context_error(context));
    lk_mesh_free(mesh);
    lk_context_free(context);
    return ranks;
}

int main(int argc, char **argv)
{
    static job      j;
    lk_spawn_result result;
    j.axes = argc > 1 ? argv[1] : "data=2,tensor=2";
    int ranks = ranks_of(j.axes);
    if (ranks == 0) return 2;
    if (lk_spawn(ranks, rank_main, &j, &result) == LK_OK) return 0;
    fprintf(stderr, "parallel: %s\n", result.text);
    return 1;
}
