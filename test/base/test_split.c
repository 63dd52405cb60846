/* test_split.c - how a batch is split over ranks, leaves and micro-batches, compared with the definition: part q of n
 * rows begins at floor(n * q / parts), computed here in 128 bits. */
#include "check.h"

#include "base/split.h"

static const int64_t totals[] = {0,        1, 2, 3, 5, 7, 8, 63, 64, 65, 127, 1000, INT64_C(1) << 40, INT64_MAX / 8,
                                 INT64_MAX};
static const int     parts_of[] = {1, 2, 3, 4, 5, 7, 8, 13, 31, 64};
enum { TOTALS = sizeof totals / sizeof *totals, PARTS = sizeof parts_of / sizeof *parts_of };

static int64_t naive(int64_t total, int64_t parts, int64_t part) { return (int64_t)((__int128)total * part / parts); }

static void parts_cover_everything_once_and_differ_by_one_at_most(void)
{
    for (int t = 0; t < TOTALS; t++)
        for (int p = 0; p < PARTS; p++) {
            int64_t next = 0, least = totals[t] / parts_of[p];
            for (int part = 0; part < parts_of[p]; part++) {
                lk__range range = lk__split_part(totals[t], parts_of[p], part);
                CHECK(range.first == next && range.first == naive(totals[t], parts_of[p], part), "part %d of %d", part,
                      parts_of[p]);
                CHECK(lk__range_count(range) == least || lk__range_count(range) == least + 1);
                next = range.end;
            }
            CHECK(next == totals[t]);
        }
}

static void ranks_have_consecutive_leaves_and_their_rows(void)
{
    for (int leaves = 0; leaves <= 64; leaves++)
        for (int world = 1; world <= (leaves ? leaves : 11); world++) {
            int64_t next = 0, row = 0;
            for (int rank = 0; rank < world; rank++) {
                lk__split_job job = {world, rank, leaves, 1};
                lk__range     own = lk__split_own(&job), rows = lk__split_share(&job, 1013);
                int64_t       parts = leaves ? leaves : world;
                CHECK(lk__split_parts(&job) == parts);
                CHECK(own.first == next && own.end > own.first, "rank %d of %d, %d leaves", rank, world, leaves);
                CHECK(rows.first == row && rows.first == naive(1013, parts, own.first) &&
                      rows.end == naive(1013, parts, own.end));
                next = own.end;
                row = rows.end;
            }
            CHECK(next == (leaves ? leaves : world) && row == 1013);
        }
}

/* The largest leaf or micro-batch, by looking at all of them in all batches up to the largest. */
static int64_t naive_largest(int world, int leaves, int micro_batches, int64_t batch)
{
    int64_t most = 0;
    for (int64_t total = 0; total <= batch; total++)
        for (int part = 0; part < (leaves ? leaves : world); part++) {
            int64_t share =
                naive(total, leaves ? leaves : world, part + 1) - naive(total, leaves ? leaves : world, part);
            for (int i = 0; i < (leaves ? 1 : micro_batches); i++) {
                int64_t n = leaves ? share : naive(share, micro_batches, i + 1) - naive(share, micro_batches, i);
                if (n > most) most = n;
            }
        }
    return most;
}

static void the_capacity_is_the_largest_leaf_or_micro_batch(void)
{
    for (int world = 1; world <= 5; world++)
        for (int leaves = 0; leaves <= 9; leaves++)
            for (int micro_batches = 1; micro_batches <= (leaves ? 1 : 4); micro_batches++)
                for (int64_t batch = 1; batch <= 40; batch += 3) {
                    lk__split_job job = {world, 0, leaves, micro_batches};
                    int64_t       most = naive_largest(world, leaves, micro_batches, batch);
                    CHECK(lk__split_largest(&job, batch) == most, "%lld, not %lld: world %d, %d leaves, %d, batch %lld",
                          (long long)lk__split_largest(&job, batch), (long long)most, world, leaves, micro_batches,
                          (long long)batch);
                }
}

/* A micro-batch has whole leaves: as many as lk__split_part gives it of a rank's. */
static void micro_batches_of_leaves_fit(int world, int leaves, int64_t batch)
{
    for (int micro_batches = 1; micro_batches * world <= leaves; micro_batches++)
        for (int rank = 0; rank < world; rank++) {
            lk__split_job job = {world, rank, leaves, micro_batches};
            lk__range     own = lk__split_own(&job);
            int64_t       capacity = lk__split_capacity(&job, batch);
            CHECK(lk__split_leaf_capacity(&job, capacity) == naive_largest(world, leaves, 1, batch));
            for (int i = 0; i < micro_batches; i++) {
                lk__range run = lk__split_part(lk__range_count(own), micro_batches, i);
                int64_t rows = naive(batch, leaves, own.first + run.end) - naive(batch, leaves, own.first + run.first);
                CHECK(rows <= capacity, "%d leaves, %d ranks, %d micro-batches", leaves, world, micro_batches);
            }
        }
}

static void a_graph_has_room_for_every_share_and_a_leaf_for_every_leaf(void)
{
    for (int leaves = 1; leaves <= 13; leaves++)
        for (int world = 1; world <= leaves; world++)
            for (int64_t batch = 1; batch <= 40; batch++) {
                lk__split_job job = {world, 0, leaves, 1};
                int64_t capacity = lk__split_capacity(&job, batch), leaf = lk__split_leaf_capacity(&job, capacity);
                micro_batches_of_leaves_fit(world, leaves, batch);
                CHECK(leaf == naive_largest(world, leaves, 1, batch), "%d leaves, %d ranks", leaves, world);
                for (int64_t total = 0; total <= batch; total++)
                    for (job.rank = 0; job.rank < world; job.rank++)
                        CHECK(lk__range_count(lk__split_share(&job, total)) <= capacity);
                job.rank = 0;
            }
    CHECK(lk__split_capacity(&(lk__split_job){3, 0, 0, 2}, 20) == 4);
    CHECK(lk__split_leaf_capacity(&(lk__split_job){3, 0, 0, 2}, 4) == 4);
}

int main(void)
{
    RUN(parts_cover_everything_once_and_differ_by_one_at_most);
    RUN(ranks_have_consecutive_leaves_and_their_rows);
    RUN(the_capacity_is_the_largest_leaf_or_micro_batch);
    RUN(a_graph_has_room_for_every_share_and_a_leaf_for_every_leaf);
    return check_result();
}
