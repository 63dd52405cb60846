/* test_cache.c - cache_write in programs: a buffer that keeps rows from run to run and is shared by programs of other
 * widths; attention over it against a naive loop in double over the whole sequence; its type under the policy bf16;
 * what is refused. */
#include "support.h"

enum { SAMPLES = 3, ROOM = 37, HEADS = 4, KV_HEADS = 2, WIDTH = 6, TOKENS = 30, WINDOW = 9 };
enum { Q_WIDTH = HEADS * WIDTH, KV_WIDTH = KV_HEADS * WIDTH };

/* q, k and v of a chunk are inputs; keys and values are kept, and read by attention. */
static lk_tensor record_chunk(lk_graph *g, int64_t width)
{
    int64_t   ids[] = {SAMPLES, width}, q_dims[] = {SAMPLES, width, Q_WIDTH}, kv_dims[] = {SAMPLES, width, KV_WIDTH};
    int64_t   cache[] = {SAMPLES, ROOM, KV_WIDTH};
    lk_dtype  real = lk_graph_dtype(g);
    lk_tensor rows = lk_input(g, "rows", LK_I32, 2, ids), first = lk_input(g, "first", LK_I32, 2, ids),
              last = lk_input(g, "last", LK_I32, 2, ids);
    lk_tensor q = lk_input(g, "q", real, 3, q_dims), k = lk_input(g, "k", real, 3, kv_dims),
              v = lk_input(g, "v", real, 3, kv_dims);
    lk_tensor keys = lk_cache_write(lk_buffer(g, "key", real, 3, cache, 0, .not_saved = true), k, rows);
    lk_tensor values = lk_cache_write(lk_buffer(g, "value", real, 3, cache, 0, .not_saved = true), v, rows);
    return lk_attention(q, keys, values, .heads = HEADS, .kv_heads = KV_HEADS, .first = first, .last = last);
}

static double drawn(uint64_t which, int64_t sample, int64_t token, int64_t i)
{
    return 2 * number(which, (uint64_t)((sample * 1000 + token) * 1000 + i)) - 1;
}

/* Attention of one query to the tokens up to its own, the latest WINDOW of them, in double. */
static void naive_attention(int64_t sample, int64_t token, int64_t head, double *out)
{
    double  p[TOKENS], most = -INFINITY, total = 0;
    int64_t from = token - WINDOW + 1 > 0 ? token - WINDOW + 1 : 0, group = head / (HEADS / KV_HEADS) * WIDTH;
    for (int64_t j = from; j <= token; j++) {
        p[j] = 0;
        for (int64_t i = 0; i < WIDTH; i++)
            p[j] += drawn(1, sample, token, head * WIDTH + i) * drawn(2, sample, j, group + i);
        p[j] /= sqrt(WIDTH);
        most = fmax(most, p[j]);
    }
    for (int64_t j = from; j <= token; j++) total += p[j] = exp(p[j] - most);
    for (int64_t i = 0; i < WIDTH; i++) {
        out[i] = 0;
        for (int64_t j = from; j <= token; j++) out[i] += p[j] / total * drawn(3, sample, j, group + i);
    }
}

typedef struct chunk {
    rig      r;
    int64_t  width;
    int32_t *rows, *first, *last;
    void    *q, *k, *v, *y;
} chunk;

static chunk open_chunk(chunk *owner, lk_dtype real, lk_policy policy, int64_t width)
{
    chunk          c = {.width = width};
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    size_t         ids = (size_t)(SAMPLES * width) * sizeof(int32_t), size = (size_t)(SAMPLES * width) * sizeof(double);
    if (owner) {
        c.r.context = owner->r.context;
        REQUIRE(lk_graph_create(c.r.context, real, &c.r.graph) == LK_OK);
    } else {
        c.r = rig_open(real, 2);
    }
    lk_tensor y = record_chunk(c.r.graph, width);
    config.outputs = &y;
    config.outputs_count = 1;
    config.policy = policy;
    REQUIRE(lk_plan_create(c.r.graph, &config, &c.r.plan) == LK_OK, "%s", lk_context_error(c.r.context));
    if (!owner) REQUIRE(lk_store_create(c.r.plan, 1, &c.r.store) == LK_OK);
    REQUIRE(lk_program_create(c.r.plan, owner ? owner->r.store : c.r.store, NULL, &c.r.program) == LK_OK, "%s",
            lk_context_error(c.r.context));
    c.rows = malloc(ids), c.first = malloc(ids), c.last = malloc(ids);
    c.q = malloc(size * Q_WIDTH), c.y = malloc(size * Q_WIDTH), c.k = malloc(size * KV_WIDTH),
    c.v = malloc(size * KV_WIDTH);
    const char *names[] = {"rows", "first", "last", "q", "k", "v"};
    void       *data[] = {c.rows, c.first, c.last, c.q, c.k, c.v};
    for (int i = 0; i < 6; i++) REQUIRE(lk_program_bind(c.r.program, names[i], data[i]) == LK_OK);
    return c;
}

static void close_chunk(chunk *c, bool owner)
{
    void *all[] = {c->rows, c->first, c->last, c->q, c->k, c->v, c->y};
    for (int i = 0; i < 7; i++) free(all[i]);
    if (owner) {
        rig_close(&c->r);
        return;
    }
    lk_program_free(c->r.program);
    lk_plan_free(c->r.plan);
    lk_graph_free(c->r.graph);
}

/* Tokens from[n] … from[n] + width - 1 of each sample, those past its `length` being unused; compares with the naive
 * loop. */
static void run_chunk(chunk *c, int64_t count, const int64_t *from, const int64_t *length, double tolerance)
{
    lk_dtype real = lk_graph_dtype(c->r.graph);
    for (int64_t n = 0; n < count; n++)
        for (int64_t t = 0; t < c->width; t++) {
            int64_t at = n * c->width + t, token = from[n] + t;
            bool    used = token < length[n];
            c->rows[at] = c->last[at] = used ? (int32_t)token : -1;
            c->first[at] = token - WINDOW + 1 > 0 ? (int32_t)(token - WINDOW + 1) : 0;
            for (int64_t i = 0; i < Q_WIDTH; i++)
                set_real(c->q, real, at * Q_WIDTH + i, used ? drawn(1, n, token, i) : NAN);
            for (int64_t i = 0; i < KV_WIDTH; i++) {
                set_real(c->k, real, at * KV_WIDTH + i, used ? drawn(2, n, token, i) : NAN);
                set_real(c->v, real, at * KV_WIDTH + i, used ? drawn(3, n, token, i) : NAN);
            }
        }
    size_t bytes = (size_t)(count * c->width * Q_WIDTH) * lk_dtype_size(real);
    REQUIRE(lk_program_step(c->r.program, &(lk_step){.step = 1, .count = count}) == LK_OK);
    REQUIRE(lk_program_run(c->r.program, LK_EVALUATE) == LK_OK, "%s", lk_context_error(c->r.context));
    REQUIRE(lk_program_output_read(c->r.program, 0, c->y, bytes) == LK_OK);
    for (int64_t n = 0; n < count; n++)
        for (int64_t t = 0; t < c->width && from[n] + t < length[n]; t++)
            for (int64_t h = 0; h < HEADS; h++) {
                double want[WIDTH];
                naive_attention(n, from[n] + t, h, want);
                for (int64_t i = 0; i < WIDTH; i++) {
                    double got = real_at(c->y, real, ((n * c->width + t) * HEADS + h) * WIDTH + i);
                    if (fabs(got - want[i]) <= tolerance) continue;
                    CHECK(false, "sample %d, token %d, head %d: %g, not %g", (int)n, (int)(from[n] + t), (int)h, got,
                          want[i]);
                    return;
                }
            }
}

/* Chunks, then single tokens by a second program over the same store; samples of unequal lengths, fewer than the
 * capacity. */
static void generate_all(lk_dtype real, lk_policy policy, double tolerance)
{
    chunk   wide = open_chunk(NULL, real, policy, 7), one = open_chunk(&wide, real, policy, 1);
    int64_t length[] = {13, 20, 1}, from[SAMPLES];
    for (int64_t first = 0; first < 20; first += 7) {
        for (int n = 0; n < SAMPLES; n++) from[n] = first;
        run_chunk(&wide, SAMPLES, from, length, tolerance);
    }
    for (int64_t step = 0; step < 10; step++) {
        for (int n = 0; n < SAMPLES; n++) from[n] = length[n]++;
        run_chunk(&one, step < 7 ? SAMPLES : 2, from, length, tolerance);
    }
    close_chunk(&one, false);
    close_chunk(&wide, true);
}

static void rows_stay_from_run_to_run_and_in_other_programs(void)
{
    generate_all(LK_F64, LK_POLICY_RECORDED, 1e-13);
    generate_all(LK_F32, LK_POLICY_RECORDED, 2e-6);
}

static void under_the_policy_bf16_the_cache_is_bf16(void)
{
    chunk    c = open_chunk(NULL, LK_F32, LK_POLICY_BF16, 2);
    lk_state s;
    CHECK(lk_store_find(c.r.store, "key", &s) && s.dtype == LK_BF16 && s.stored == LK_BF16 && s.not_saved);
    CHECK(lk_plan_memory(c.r.plan, LK_MEMORY_BUFFERS) == 2 * lk__round_up(SAMPLES * ROOM * KV_WIDTH * 2, LK__ALIGN));
    close_chunk(&c, true);
    generate_all(LK_F32, LK_POLICY_BF16, 0.03);
}

static void writes_run_without_readers(void)
{
    rig            r = rig_open(LK_F32, 1);
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    int32_t        rows[] = {1, -1, 0, 2};
    float          x[4 * 2] = {1, 2, 3, 4, 5, 6, 7, 8}, *kept;
    lk_tensor      in = lk_input(r.graph, "x", LK_F32, 3, ((int64_t[]){2, 2, 2}));
    lk_cache_write(lk_buffer(r.graph, "c", LK_F32, 3, ((int64_t[]){2, 3, 2}), -1, .not_saved = true), in,
                   lk_input(r.graph, "rows", LK_I32, 2, ((int64_t[]){2, 2})));
    rig_plan(&r, &config, 1);
    CHECK(lk_plan_memory(r.plan, LK_MEMORY_ACTIVATIONS) == 0);
    REQUIRE(lk_program_bind(r.program, "x", x) == LK_OK && lk_program_bind(r.program, "rows", rows) == LK_OK);
    for (int64_t count = 1; count <= 2; count++) {
        REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = count}) == LK_OK);
        REQUIRE(lk_program_run(r.program, LK_EVALUATE) == LK_OK, "%s", lk_context_error(r.context));
        kept = state_copy(r.store, "c");
        const float want[] = {-1, -1, 1, 2, -1, -1, 5, 6, -1, -1, 7, 8};
        for (int i = 0; i < 12; i++)
            CHECK(kept[i] == (i < 6 || count == 2 ? want[i] : -1), "element %d: %g", i, kept[i]);
    }
    rows[3] = 3;
    CHECK(lk_program_run(r.program, LK_EVALUATE) == LK_EINVAL &&
              strstr(lk_context_error(r.context),
                     "input \"rows\", row 1 of the batch, position 1: row 3 is out of range: the cache "
                     "has 3 rows, 0 to 2"),
          "%s", lk_context_error(r.context));
    rig_close(&r);
}

/* x through a layer into a cache; the plan must be refused with `words`. */
static void check_refused(bool trains, bool reads, const char *words)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 3, ((int64_t[]){2, 2, 2}));
    lk_tensor           c = lk_buffer(r.graph, "c", LK_F32, 3, ((int64_t[]){2, 3, 2}), 0, .not_saved = true);
    lk_tensor           rows = lk_input(r.graph, "rows", LK_I32, 2, ((int64_t[]){2, 2})), out = lk_scale(c, 2);
    config.loss = lk_sum(lk_cache_write(c, lk_linear(x, "fc", 2), rows));
    config.outputs = &out;
    config.outputs_count = reads;
    if (trains) config.optimizer = &sgd;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EINVAL && strstr(lk_context_error(r.context), words), "%s",
          lk_context_error(r.context));
    rig_close(&r);
}

static void training_and_other_readers_are_refused(void)
{
    check_refused(true, false, "cache_write into \"c\" runs only in evaluation, but this plan trains");
    check_refused(false, true, "scale reads the buffer \"c\", which cache_write at ");
}

int main(void)
{
    RUN(rows_stay_from_run_to_run_and_in_other_programs);
    RUN(under_the_policy_bf16_the_cache_is_bf16);
    RUN(writes_run_without_readers);
    RUN(training_and_other_readers_are_refused);
    return check_result();
}
