/* test_exchange.c - bytes between ranks that have a state whole, or share it with their host, and ranks that read or
 * write a file with it. test_slices.c does the same where states are split.
 *
 * ctest: timeout 300, ranks 4 */
#include "parallel.h"
#include "slices.h"

typedef struct kind {
    const char   *name, *backend;
    int           ranks, each; /* each: of a simulated host; 0: one host */
    lk_state_mode state;
    lk_policy     policy;
    bool          sync;
} kind;

static rig open_kind(const kind *k, int rank, lk_comm **comm)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config adam;
    lk_plan_config      config = config_of(&r, &adam, k->policy);
    *comm = k->each ? join_hosts(r.context, rank / k->each) : join_group(r.context, k->backend);
    config.sync_batch_norm = k->sync;
    config.parallel =
        (lk_parallel){.world = k->ranks, .rank = rank, .state = k->state, .hosts = k->each ? lk_comm_hosts(*comm) : 0};
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE((k->state == LK_STATE_SHARED ? lk_store_create_shared(r.plan, SEED, *comm, &r.store)
                                         : lk_store_create(r.plan, SEED, &r.store)) == LK_OK,
            "%s", lk_context_error(r.context));
    return r;
}

static float pattern(size_t state, int part, int64_t element)
{
    return (float)(number(state * 8 + (size_t)part, (uint64_t)element) - 0.5);
}

enum { MOST_RANGES = 64 };

/* A rank's share of every array in f32: of one that has fewer elements than ranks, maybe none. */
static lk__exchange_list share_of(const rig *r, int rank, int ranks, lk__exchange_range ranges[MOST_RANGES])
{
    lk__exchange_list list = {ranges, 0};
    for (size_t i = 0; i < lk_store_count(r->store); i++) {
        lk_state s = lk_store_at(r->store, i);
        int64_t  first = state_elements(&s) * rank / ranks, end = state_elements(&s) * (rank + 1) / ranks;
        for (int part = 0; part <= last_part(&s) && s.dtype == LK_F32; part++) {
            REQUIRE(list.count < MOST_RANGES);
            ranges[list.count++] = (lk__exchange_range){i, (lk_state_part)part, (size_t)first * sizeof(float),
                                                        (size_t)(end - first) * sizeof(float)};
        }
    }
    return list;
}

static void fill_share(const lk__exchange_list *list, float *data)
{
    for (size_t i = 0; i < list->count; i++) {
        const lk__exchange_range *range = &list->ranges[i];
        for (size_t k = 0; k < range->bytes / sizeof(float); k++)
            *data++ = pattern(range->state, (int)range->part, (int64_t)(range->first / sizeof(float) + k));
    }
}

static bool has_pattern(const rig *r, size_t index, int part)
{
    lk_state     s = lk_store_at(r->store, index);
    const float *values = part_copy(r->store, s.name, (lk_state_part)part);
    for (int64_t i = 0; i < state_elements(&s); i++)
        if (values[i] != pattern(index, part, i)) return false;
    return true;
}

/* Every rank has read another share of a file; then all have all of it. Afterwards each fetches the share of the next
 * one. */
static int read_together_as(int rank, void *user)
{
    const kind               *k = user;
    lk_comm                  *comm;
    static lk__exchange_range ranges[4][MOST_RANGES];
    lk__exchange_list         lists[4];
    check_failures = 0;
    rig          r = open_kind(k, rank, &comm);
    lk__exchange with = {comm, copy_room(lk__store_exchange_bytes(k->ranks))};
    for (int i = 0; i < k->ranks; i++) lists[i] = share_of(&r, i, k->ranks, ranges[i]);
    float *mine = copy_room(list_bytes(&lists[rank]));
    fill_share(&lists[rank], mine);
    REQUIRE(lk__store_write_begin(r.store) == LK_OK);
    REQUIRE(lk__store_write_end(r.store, lk__store_scatter(r.store, &with, lists, mine)) == LK_OK, "%s",
            lk_context_error(r.context));
    for (size_t i = 0; i < lists[0].count; i++)
        CHECK(has_pattern(&r, lists[0].ranges[i].state, (int)lists[0].ranges[i].part), "%s: rank %d, %s", k->name, rank,
              lk_store_at(r.store, lists[0].ranges[i].state).name);
    compare_stored(k->name, &r, &r, "read together");
    for (int i = 0; i < k->ranks; i++) lists[i] = share_of(&r, (i + 1) % k->ranks, k->ranks, ranges[i]);
    float *want = copy_room(list_bytes(&lists[rank])), *got = copy_room(list_bytes(&lists[rank]));
    fill_share(&lists[rank], want);
    REQUIRE(lk__store_fetch(r.store, &with, lists, got) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(memcmp(got, want, list_bytes(&lists[rank])) == 0, "%s: rank %d", k->name, rank);
    REQUIRE(lk_comm_barrier(comm, NULL) == LK_OK);
    lk_store_free(r.store), r.store = NULL;
    lk_comm_free(comm);
    rig_close(&r);
    return check_result();
}

static const kind kinds[] = {
    {.name = "replicated", .backend = "shm", .ranks = 3},
    {.name = "replicated over tcp, bf16", .backend = "tcp", .ranks = 2, .policy = LK_POLICY_BF16},
    {.name = "shared", .backend = "shm", .ranks = 3, .state = LK_STATE_SHARED},
    {.name = "shared, with their buffers, bf16",
     .backend = "shm",
     .ranks = 2,
     .state = LK_STATE_SHARED,
     .policy = LK_POLICY_BF16,
     .sync = true},
    {.name = "shared on two hosts, bf16", .ranks = 4, .each = 2, .state = LK_STATE_SHARED, .policy = LK_POLICY_BF16},
};

static void ranks_read_a_file_together(void)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        lk_spawn_result result;
        kind            one = kinds[i];
        if (one.state == LK_STATE_SHARED && getenv("LOCKSTEP_DEVICE")) continue; /* shared in the host's memory alone */
        check_ranks_announced(one.ranks);
        CHECK(lk_spawn(one.ranks, read_together_as, &one, &result) == LK_OK, "%s: %s", one.name, result.text);
    }
}

/* Each rank has statistics of its own samples, and files have those of rank 0; what is the same everywhere is not sent,
 * and no rank waits for another to copy it. */
static int fetch_buffers_as(int rank, void *user)
{
    const kind *k = user;
    lk_comm    *comm;
    check_failures = 0;
    rig   r = open_kind(k, rank, &comm);
    float mean[5] = {10 + (float)rank, 20, 30, 40, 50 + (float)rank}, got[5] = {0}, w[35];
    REQUIRE(lk_store_write(r.store, "bn.running_mean", LK_STATE_VALUE, 0, 5, mean, sizeof mean) == LK_OK);
    size_t             buffer = (size_t)lk__find_state(r.plan->graph, "bn.running_mean");
    size_t             weight = (size_t)lk__find_state(r.plan->graph, "w");
    lk__exchange_range mine = {buffer, LK_STATE_VALUE, 0, sizeof mean}, same = {weight, LK_STATE_VALUE, 0, sizeof w};
    lk__exchange_list  all[4] = {{&mine, 1}, {&mine, 1}, {&mine, 1}}, alone[4] = {{0}, {&same, 1}};
    lk__exchange       with = {comm, copy_room(lk__store_exchange_bytes(k->ranks))};
    CHECK(lk__store_fetch_sends(r.store, k->ranks) && !lk__store_fetch_sends(r.store, 1));
    REQUIRE(lk__store_fetch(r.store, &with, all, got) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(got[0] == 10 && got[4] == 50, "rank %d fetched %g and %g", rank, got[0], got[4]);
    if (rank == 1) {
        const float *whole = state_copy(r.store, "w");
        REQUIRE(lk__store_fetch(r.store, &(lk__exchange){comm, NULL}, alone, w) == LK_OK);
        CHECK(memcmp(w, whole, sizeof w) == 0);
        REQUIRE(lk__store_fetch(r.store, &(lk__exchange){0}, &all[1], got) == LK_OK); /* this rank alone: its own */
        CHECK(got[0] == 11);
    }
    lk_store_free(r.store), r.store = NULL;
    lk_comm_free(comm);
    rig_close(&r);
    return check_result();
}

static void buffers_that_differ_are_those_of_rank_0(void)
{
    lk_spawn_result result;
    kind            three = {.ranks = 3, .backend = "shm"};
    CHECK(lk_spawn(3, fetch_buffers_as, &three, &result) == LK_OK, "%s", result.text);
}

int main(void)
{
    RUN_APART(ranks_read_a_file_together);
    RUN_APART(buffers_that_differ_are_those_of_rank_0);
    return check_result();
}
