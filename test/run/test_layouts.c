/* test_layouts.c - hand-written loops in every layout of their ranks, against one rank, in f64: a user's model with
 * names of its own, run section by section, with accumulated micro-batches, with gradients that the loop reads and
 * scales, on samples that the ranks do not divide; its losses, gradients and whole state.
 *
 * ctest: timeout 300, ranks 8 */
#include "support.h"

#include <lockstep.h>
#include <sys/mman.h>

enum {
    TOKENS = 8,
    WIDTH = 16,
    HEADS = 4,
    WORDS = 24, /* of the vocabulary */
    BATCH = 7,  /* most samples of a step */
    STEPS = 6,
    METRICS = 30,
    ELEMENTS = 1 << 14
};

typedef enum loop_kind {
    WHOLE_STEPS, /* lk_program_train */
    SECTIONS,    /* forward, backward, sync, gradients read and halved, update */
    ACCUMULATED, /* two backwards, the first without synchronisation */
    LOOP_KINDS
} loop_kind;

static const char *const loop_names[] = {"whole steps", "sections", "accumulated"};

typedef struct layout {
    const char   *axes, *backend;
    lk_state_mode state;
    int           shard_stage;
} layout;

typedef struct report {
    int64_t elements, gradients;
    double  losses[STEPS], metrics[METRICS], state[ELEMENTS], gradient[ELEMENTS];
} report;

typedef struct job {
    const layout *layout;
    loop_kind     loop;
    report       *out;
} job;

typedef struct rank_program {
    rig      rig;
    lk_comm *comm;
    lk_mesh *mesh;
    int      parts, part; /* of the batch */
    int32_t  tokens[BATCH * TOKENS], labels[BATCH * TOKENS];
    int64_t  ids[BATCH];
} rank_program;

/* One block of a decoder: an attention and a product, something element by element, a product; what is tied and what is
 * frozen. */
static lk_tensor decoder(lk_tensor tokens, lk_tensor labels)
{
    lk_tensor none = {0};
    lk_tensor table =
        lk_parameter(tokens.graph, "words", 2, ((int64_t[]){WORDS, WIDTH}), .init = LK_INIT_NORMAL, .a = 0.3);
    lk_tensor x = lk_f_embedding(tokens, table);
    lk_block_begin(x, "only");
    lk_tensor y = lk_linear(lk_layer_norm(x, "before", .frozen = true), "mix_in", 3 * WIDTH);
    y = lk_attention(y, none, none, .heads = HEADS, .causal = true);
    x = lk_add(x, lk_dropout(lk_linear(y, "mix_out", WIDTH), 0.2));
    y = lk_gelu(lk_linear(lk_layer_norm(x, "between"), "grow", 4 * WIDTH));
    x = lk_add(x, lk_linear(y, "shrink", WIDTH));
    lk_block_end(x);
    for (int i = 0; i < METRICS; i++) { /* each has two numbers in the report of a rank */
        char name[16];
        snprintf(name, sizeof name, "power%d", i + 1);
        lk_metric(lk_pow(lk_sigmoid(x), i + 1), name);
    }
    return lk_linear_cross_entropy(lk_rms_norm(x, "last"), table, labels);
}

static void join_rank(rank_program *p, const job *j)
{
    const layout  *l = j->layout;
    lk_mesh_config meshing = LK_MESH_CONFIG_INIT;
    lk_comm_config joining = LK_COMM_CONFIG_INIT;
    meshing.axes = l->axes;
    joining.backend = l->backend;
    joining.join_ms = 60000; /* the machine may be busy */
    if (l->axes) {
        REQUIRE(lk_comm_create(p->rig.context, &joining, &p->comm) == LK_OK, "%s", lk_context_error(p->rig.context));
        meshing.comm = p->comm;
    }
    REQUIRE(lk_mesh_create(p->rig.context, &meshing, &p->mesh) == LK_OK, "%s", lk_context_error(p->rig.context));
    p->parts = lk_mesh_extent(p->mesh, LK_AXIS_DATA | LK_AXIS_SHARD);
    p->part = lk_mesh_coordinate(p->mesh, LK_AXIS_DATA | LK_AXIS_SHARD, lk_mesh_rank(p->mesh));
}

static void create_rank(rank_program *p, const job *j)
{
    rig                *r = &p->rig;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    *r = rig_open(LK_F64, 1);
    join_rank(p, j);
    optimizer.kind = LK_ADAMW;
    optimizer.weight_decay = 0.1;
    optimizer.clip = 0.7;
    config.optimizer = &optimizer;
    config.mesh = p->mesh;
    config.parallel.state = j->layout->state;
    config.parallel.shard_stage = j->layout->shard_stage;
    config.parallel.micro_batches = j->loop == ACCUMULATED ? 2 : 1;
    int64_t   capacity = lk_mesh_capacity(p->mesh, &config.parallel, BATCH);
    lk_tensor tokens = lk_input(r->graph, "tokens", LK_I32, 2, ((int64_t[]){capacity, TOKENS}));
    lk_tensor labels = lk_input(r->graph, "labels", LK_I32, 2, ((int64_t[]){capacity, TOKENS}));
    config.loss = decoder(tokens, labels);
    REQUIRE(lk_plan_create(r->graph, &config, &r->plan) == LK_OK, "%s: %s", j->layout->axes,
            lk_context_error(r->context));
    lk_status made = lk_store_create_shared(r->plan, 3, p->comm, &r->store);
    REQUIRE(made == LK_OK, "%s: %s", j->layout->axes, lk_context_error(r->context));
    REQUIRE(lk_program_create(r->plan, r->store, p->comm, &r->program) == LK_OK, "%s: %s", j->layout->axes,
            lk_context_error(r->context));
    REQUIRE(lk_program_bind(r->program, "tokens", p->tokens) == LK_OK &&
            lk_program_bind(r->program, "labels", p->labels) == LK_OK);
}

/* Copies this rank's part of samples `first` … `last` of a step; returns how many these are. */
static int64_t copy_part(rank_program *p, int step, int64_t first, int64_t last)
{
    int64_t total = last - first, begin = first + total * p->part / p->parts;
    int64_t count = first + total * (p->part + 1) / p->parts - begin;
    for (int64_t i = 0; i < count; i++) {
        p->ids[i] = step * BATCH + begin + i;
        for (int64_t k = 0; k < TOKENS; k++) {
            p->tokens[i * TOKENS + k] = (int32_t)(number_bits(1, (uint64_t)(p->ids[i] * 100 + k)) % WORDS);
            p->labels[i * TOKENS + k] = (int32_t)(number_bits(1, (uint64_t)(p->ids[i] * 100 + k + 1)) % WORDS);
        }
    }
    return count;
}

static void run_section(rank_program *p, lk_section section)
{
    REQUIRE(lk_program_run(p->rig.program, section) == LK_OK, "%s", lk_context_error(p->rig.context));
}

static void run_backward(rank_program *p, int step, int64_t first, int64_t last)
{
    lk_step now = {.step = step,
                   .count = copy_part(p, step, first, last),
                   .total = last - first,
                   .rate = 0.01,
                   .sample_ids = p->ids};
    REQUIRE(lk_program_step(p->rig.program, &now) == LK_OK, "%s", lk_context_error(p->rig.context));
    run_section(p, LK_FORWARD);
    run_section(p, LK_BACKWARD);
}

/* All gradients, one after the other; a collective where some are split. */
static void read_gradients(rank_program *p, report *out)
{
    out->gradients = 0;
    for (size_t i = 0; i < lk_store_count(p->rig.store); i++) {
        lk_state      s = lk_store_at(p->rig.store, i);
        const double *gradient = s.buffer || s.frozen ? NULL : gradient_copy(p->rig.program, p->rig.store, s.name);
        for (int64_t k = 0; gradient && k < state_elements(&s); k++) out->gradient[out->gradients++] = gradient[k];
    }
}

static double train_step(rank_program *p, const job *j, int step, report *out)
{
    int64_t    total = step % 3 == 2 ? 1 : BATCH; /* one sample: all ranks but one have none */
    lk_metrics m;
    if (j->loop == WHOLE_STEPS) {
        lk_step now = {
            .step = step, .count = copy_part(p, step, 0, total), .total = total, .rate = 0.01, .sample_ids = p->ids};
        REQUIRE(lk_program_train(p->rig.program, &now) == LK_OK, "%s", lk_context_error(p->rig.context));
    } else if (j->loop == SECTIONS) {
        run_backward(p, step, 0, total);
        run_section(p, LK_SYNC);
        if (step == 1) read_gradients(p, out);
        REQUIRE(lk_program_gradient_scale(p->rig.program, "only.grow.weight", 0.5) == LK_OK, "%s",
                lk_context_error(p->rig.context));
        run_section(p, LK_UPDATE);
    } else {
        lk_program_no_sync(p->rig.program, true);
        run_backward(p, step, 0, total / 2);
        lk_program_no_sync(p->rig.program, false);
        run_backward(p, step, total / 2, total);
        run_section(p, LK_SYNC);
        run_section(p, LK_UPDATE);
    }
    lk_program_metrics(p->rig.program, &m);
    CHECK(m.named_count == METRICS, "%d metrics", m.named_count);
    for (int i = 0; i < METRICS; i++) out->metrics[i] = m.named[i].value;
    return m.loss;
}

static int train_rank(int rank, void *user)
{
    const job          *j = user;
    static rank_program p;
    static report       own;
    check_failures = 0; /* failures of the parent do not count here */
    create_rank(&p, j);
    for (int step = 1; step <= STEPS; step++) own.losses[step - 1] = train_step(&p, j, step, &own);
    for (size_t i = 0; i < lk_store_count(p.rig.store); i++) {
        lk_state s = lk_store_at(p.rig.store, i);
        for (int part = LK_STATE_VALUE; part < LK_STATE_PART_COUNT; part++) {
            if (part > LK_STATE_VALUE && !lk_store_moment_name(p.rig.store, i, part - LK_STATE_MOMENT_0)) break;
            const double *values = part_copy(p.rig.store, s.name, part);
            REQUIRE(own.elements + state_elements(&s) <= ELEMENTS);
            memcpy(own.state + own.elements, values, (size_t)state_elements(&s) * sizeof *values);
            own.elements += state_elements(&s);
        }
    }
    if (rank == 0) *j->out = own;
    CHECK(lk_program_verify(p.rig.program, STEPS) == LK_OK, "%s", lk_context_error(p.rig.context));
    lk_program_free(p.rig.program);
    lk_store_free(p.rig.store);
    lk_plan_free(p.rig.plan);
    lk_graph_free(p.rig.graph);
    lk_mesh_free(p.mesh);
    lk_comm_free(p.comm);
    lk_context_free(p.rig.context);
    return check_result();
}

static report *new_report(void)
{
    report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(r != MAP_FAILED);
    return r;
}

static void run_layout(const layout *l, loop_kind loop, report *out)
{
    job             j = {l, loop, out};
    lk_spawn_result result;
    int             ranks = 1;
    for (const char *at = l->axes; at && (at = strchr(at, '=')); at++) ranks *= atoi(at + 1);
    check_ranks_announced(ranks);
    memset(out, 0, sizeof *out);
    CHECK(lk_spawn(ranks, train_rank, &j, &result) == LK_OK, "%s on %s: %s", loop_names[loop], l->axes, result.text);
}

/* The largest difference, in units of the largest number. */
static double numbers_apart(const double *a, const double *b, int64_t count)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(a[i] - b[i]);
        most = fmax(most, fabs(b[i]));
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    return most > 0 ? worst / most : worst;
}

static bool is_host(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return !device || strcmp(device, "cpu") == 0;
}

static const layout layouts[] = {
    {"data=2", NULL, LK_STATE_REPLICATED, 0},           {"data=2", NULL, LK_STATE_SHARED, 0},
    {"data=4", "tcp", LK_STATE_REPLICATED, 0},          {"shard=2", NULL, LK_STATE_SHARED, 0},
    {"shard=2", NULL, LK_STATE_REPLICATED, 1},          {"shard=3", NULL, LK_STATE_REPLICATED, 2},
    {"shard=4", "tcp", LK_STATE_REPLICATED, 3},         {"data=2,shard=2", NULL, LK_STATE_REPLICATED, 1},
    {"data=2,shard=4", NULL, LK_STATE_REPLICATED, 3},   {"tensor=2", NULL, LK_STATE_REPLICATED, 0},
    {"tensor=4", "tcp", LK_STATE_REPLICATED, 0},        {"data=2,tensor=2", NULL, LK_STATE_REPLICATED, 0},
    {"shard=2,tensor=2", NULL, LK_STATE_REPLICATED, 1}, {"data=2,shard=2,tensor=2", NULL, LK_STATE_REPLICATED, 3},
};

static void every_layout_gives_the_results_of_one_rank(void)
{
    report *one = new_report(), *other = new_report();
    bool    slow = getenv("LK_TEST_SLOW") != NULL; /* the emulation: sections alone, which have the most calls */
    for (int loop = slow ? SECTIONS : 0; loop < (slow ? SECTIONS + 1 : LOOP_KINDS); loop++) {
        run_layout(&(layout){0}, loop, one);
        REQUIRE(one->elements > 0 && (one->gradients > 0) == (loop == SECTIONS));
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            const layout *l = &layouts[i];
            if (l->state == LK_STATE_SHARED && !is_host()) continue; /* shared in the host's memory */
            run_layout(l, loop, other);
            double losses = fmax(numbers_apart(other->losses, one->losses, STEPS),
                                 numbers_apart(other->metrics, one->metrics, METRICS));
            double state = numbers_apart(other->state, one->state, one->elements);
            double gradients = numbers_apart(other->gradient, one->gradient, one->gradients);
            CHECK(other->elements == one->elements && other->gradients == one->gradients);
            CHECK(losses < 1e-9 && state < 1e-9 && gradients < 1e-9,
                  "%s on %s %s: losses %.1e, state %.1e, gradients %.1e", loop_names[loop], l->axes,
                  l->backend ? l->backend : "", losses, state, gradients);
        }
    }
    munmap(one, sizeof *one);
    munmap(other, sizeof *other);
}

int main(void)
{
    RUN(every_layout_gives_the_results_of_one_rank);
    return check_result();
}
