/* test_data_loader.c - batches: independent of workers, resumable anywhere, transformed as by a naive loop, without
 * allocations. Samples of callbacks are in test_data_callbacks.c.
 *
 * ctest: label threaded */
#define _GNU_SOURCE
#include "base/base.h"
#include "loader_data.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static uint64_t update_hash(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

/* A hash of everything the loader returns in `epochs` epochs, including padding. */
static uint64_t hash_batches(lk_loader_config config, int epochs)
{
    lk_loader *loader;
    lk_batch   b;
    uint64_t   hash = 1;
    size_t     elements = (size_t)lk_field_elements(lk_dataset_field(config.dataset, 0));
    size_t     row = elements * lk_dtype_size(config.dtype), batch = (size_t)config.batch;
    CHECK_OK(context, lk_loader_create(context, &config, &loader));
    for (int e = 0; e < epochs;) {
        lk_status status = lk_loader_next(loader, &b);
        if (status == LK_END) {
            e++;
            hash = update_hash(hash, "end", 3);
            continue;
        }
        CHECK_OK(context, status);
        hash = update_hash(hash, b.fields[0], row * batch);
        hash = update_hash(hash, ((const int32_t *)b.fields[1]), batch * sizeof(int32_t));
        hash = update_hash(hash, b.indices, batch * sizeof *b.indices);
        hash = update_hash(hash, &b.count, sizeof b.count);
        hash = update_hash(hash, &b.epoch, sizeof b.epoch);
        hash = update_hash(hash, &b.position, sizeof b.position);
    }
    lk_loader_free(loader);
    return hash;
}

static void batches_do_not_depend_on_workers_or_prefetch(void)
{
    static const int64_t counts[] = {1, 3, 64, 65, 131};
    for (int n = 0; n < 5; n++) {
        lk_dataset      *d = make_images(3, 6, 5, counts[n], LK_U8);
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        c.dataset = d, c.batch = 16, c.shuffle = true, c.seed = 7;
        c.transform.crop_padding = 2, c.transform.flip = 0.5;
        uint64_t         expected = hash_batches(c, 3);
        static const int workers[] = {1, 1, 2, 3, 8, 2}, prefetch[] = {1, 3, 0, 1, 20, 100};
        for (int w = 0; w < 6; w++) {
            c.workers = workers[w], c.prefetch = prefetch[w];
            CHECK(hash_batches(c, 3) == expected);
        }
        c.seed = 8;
        if (counts[n] > 3) CHECK(hash_batches(c, 3) != expected);
        lk_dataset_free(d);
    }
}

static void every_sample_occurs_once_and_the_last_batch_is_padded(void)
{
    static const int64_t counts[] = {1, 2, 7, 8, 9, 23};
    for (int n = 0; n < 6; n++)
        for (int shuffle = 0; shuffle < 2; shuffle++)
            for (int drop = 0; drop < 2; drop++) {
                int64_t count = counts[n];
                if (drop && count < 8) continue;
                lk_dataset      *d = make_counting(count, 3);
                lk_loader       *loader;
                lk_loader_config c = LK_LOADER_CONFIG_INIT;
                c.dataset = d, c.batch = 8, c.shuffle = shuffle, c.drop_last = drop, c.workers = shuffle;
                CHECK_OK(context, lk_loader_create(context, &c, &loader));
                for (int epoch = 0; epoch < 2; epoch++) {
                    int       seen[32] = {0};
                    lk_batch  b;
                    int64_t   position = 0;
                    lk_status status;
                    while ((status = lk_loader_next(loader, &b)) == LK_OK) {
                        int64_t left = count - position;
                        CHECK(b.count == (left < 8 ? left : 8) && b.epoch == epoch && b.position == position);
                        CHECK(!drop || b.count == 8);
                        CHECK((uintptr_t)b.fields[0] % 64 == 0 && (uintptr_t)((const int32_t *)b.fields[1]) % 64 == 0 &&
                              (uintptr_t)b.indices % 64 == 0);
                        const float *f = b.fields[0];
                        for (int i = 0; i < 8; i++) {
                            int64_t at = b.indices[i];
                            if (i >= b.count) {
                                CHECK(at == -1 && ((const int32_t *)b.fields[1])[i] == 0 && f[3 * i] == 0 &&
                                      f[3 * i + 1] == 0 && f[3 * i + 2] == 0);
                                continue;
                            }
                            CHECK(at >= 0 && at < count && (shuffle || at == position + i));
                            CHECK(((const int32_t *)b.fields[1])[i] == at % 5);
                            for (int k = 0; k < 3; k++) CHECK(f[3 * i + k] == (float)at + (float)k / 1000);
                            seen[at]++;
                        }
                        position += b.count;
                        CHECK(lk_loader_position(loader) == position && lk_loader_epoch(loader) == epoch);
                    }
                    CHECK(status == LK_END && b.count == 0);
                    CHECK(lk_loader_position(loader) == 0 && lk_loader_epoch(loader) == epoch + 1);
                    int64_t total = 0;
                    for (int64_t i = 0; i < count; i++) {
                        CHECK(seen[i] <= 1);
                        total += seen[i];
                    }
                    CHECK(total == (drop ? count / 8 * 8 : count));
                }
                lk_loader_free(loader);
                lk_dataset_free(d);
            }
}

/* Parts of a full batch, whatever the batch has: part q of each is the q-th smaller batch that a loader of these
 * makes. */
static void fixed_parts_are_batches_of_their_size(void)
{
    enum { PARTS = 3 };
    for (int64_t count = 1; count <= 46; count += 3) {
        lk_dataset      *d = make_images(1, 2, 2, count, LK_U8);
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        lk_loader       *small, *share[PARTS];
        lk_batch         s, b;
        lk_status        status = LK_OK, next = LK_OK;
        c.dataset = d, c.batch = 5;
        CHECK_OK(context, lk_loader_create(context, &c, &small));
        for (int q = 0; q < PARTS; q++) {
            lk_loader_config part = c;
            part.batch = PARTS * c.batch, part.parts = PARTS, part.first_part = q, part.last_part = q + 1;
            part.fixed_parts = 1;
            CHECK(lk_loader_capacity(&part) == c.batch);
            CHECK_OK(context, lk_loader_create(context, &part, &share[q]));
        }
        while (status == LK_OK)
            for (int q = 0; q < PARTS; q++) {
                status = lk_loader_next(share[q], &b);
                if (status != LK_OK) continue;
                if (next == LK_OK) next = lk_loader_next(small, &s);
                CHECK(b.count == (next == LK_OK ? s.count : 0));
                CHECK(b.count == 0 || !memcmp(b.indices, s.indices, (size_t)b.count * sizeof *b.indices));
            }
        if (next == LK_OK) next = lk_loader_next(small, &s);
        CHECK(status == LK_END && next == LK_END);
        for (int q = 0; q < PARTS; q++) lk_loader_free(share[q]);
        lk_loader_free(small);
        lk_dataset_free(d);
    }
}

/* Ranks with consecutive parts must together get each whole batch: same rows, same bits, same positions, with any
 * number of workers, also after a seek into the middle of a batch. */
static void shares_split_each_batch_and_change_nothing_else(void)
{
    static const struct {
        int64_t count, batch;
        int     parts, cuts[5]; /* boundaries between the parts of ranks */
    } cases[] = {
        {41, 16, 2, {0, 1, 2}},   {41, 16, 3, {0, 1, 2, 3}},   {41, 16, 8, {0, 2, 5, 8}},
        {41, 16, 8, {0, 8}},      {41, 3, 5, {0, 1, 2, 3, 5}}, {7, 1, 4, {0, 1, 2, 3, 4}},
        {23, 7, 3, {0, 1, 2, 3}}, {5, 64, 3, {0, 1, 3}},       {23, 8, 5, {0, 2, 3, 5}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        lk_dataset      *d = make_images(3, 6, 5, cases[k].count, LK_U8);
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        lk_loader       *whole, *share[4] = {0};
        int              ranks = 0, last = 0;
        int64_t          capacity[4], batches = 0, empty = 0;
        size_t           row = (size_t)lk_field_elements(lk_dataset_field(d, 0)) * sizeof(float);
        c.dataset = d, c.batch = cases[k].batch, c.shuffle = true, c.seed = 5;
        c.transform.crop_padding = 2, c.transform.flip = 0.5;
        CHECK(lk_loader_capacity(&c) == c.batch);
        CHECK_OK(context, lk_loader_create(context, &c, &whole));
        for (; last < cases[k].parts; ranks++) {
            lk_loader_config part = c;
            part.parts = cases[k].parts, part.first_part = last, part.last_part = last = cases[k].cuts[ranks + 1];
            part.workers = ranks % 3, part.prefetch = part.workers ? 1 + ranks : 0;
            int64_t most = 1; /* by trying all sizes */
            for (int64_t n = 1; n <= c.batch; n++) {
                int64_t rows = n * part.last_part / part.parts - n * part.first_part / part.parts;
                most = rows > most ? rows : most;
            }
            capacity[ranks] = lk_loader_capacity(&part);
            CHECK(capacity[ranks] == most);
            CHECK_OK(context, lk_loader_create(context, &part, &share[ranks]));
        }
        for (int epoch = 0; epoch < 3;) {
            lk_batch  w, b;
            lk_status status = lk_loader_next(whole, &w);
            int64_t   next = 0;
            if (status == LK_OK) CHECK(w.total == w.count && w.offset == 0);
            for (int r = 0; r < ranks; r++) {
                CHECK(lk_loader_next(share[r], &b) == status);
                CHECK(lk_loader_epoch(share[r]) == lk_loader_epoch(whole));
                CHECK(lk_loader_position(share[r]) == lk_loader_position(whole));
                if (status == LK_END) continue;
                CHECK(b.epoch == w.epoch && b.position == w.position && b.total == w.total);
                CHECK(b.offset == next && b.offset == w.count * cases[k].cuts[r] / cases[k].parts);
                CHECK(b.count == w.count * cases[k].cuts[r + 1] / cases[k].parts - b.offset);
                CHECK(!memcmp(b.fields[0], (const char *)w.fields[0] + (size_t)next * row, (size_t)b.count * row));
                CHECK(!memcmp(((const int32_t *)b.fields[1]), ((const int32_t *)w.fields[1]) + next,
                              (size_t)b.count * sizeof(int32_t)));
                CHECK(!memcmp(b.indices, w.indices + next, (size_t)b.count * sizeof *b.indices));
                for (int64_t i = b.count; i < capacity[r]; i++)
                    CHECK(b.indices[i] == -1 && ((const int32_t *)b.fields[1])[i] == 0);
                for (size_t i = (size_t)b.count * row; i < (size_t)capacity[r] * row; i++)
                    CHECK(((const char *)b.fields[0])[i] == 0);
                next += b.count;
                empty += b.count == 0;
            }
            if (status == LK_END && ++epoch == 2) { /* the last epoch starts within a batch */
                CHECK_OK(context, lk_loader_seek(whole, 7, cases[k].count / 3));
                for (int r = 0; r < ranks; r++) CHECK_OK(context, lk_loader_seek(share[r], 7, cases[k].count / 3));
            }
            if (status == LK_END) continue;
            CHECK(next == w.count);
            batches++;
        }
        CHECK(batches >= 3 && (empty > 0 || cases[k].batch >= cases[k].parts));
        for (int r = 0; r < ranks; r++) lk_loader_free(share[r]);
        lk_loader_free(whole);
        lk_dataset_free(d);
    }
}

/* With five samples all 120 orders are about equally frequent over 12000 epochs: chi-squared with 119 degrees of
 * freedom is below 181 with probability 0.9998; the seed is fixed, so this either holds or never does. */
static void shuffles_are_uniform(void)
{
    lk_dataset      *d = make_counting(5, 1);
    lk_loader       *loader;
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    int              seen[3125] = {0}, orders = 0;
    c.dataset = d, c.batch = 5, c.shuffle = true;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    for (int e = 0; e < 12000; e++) {
        lk_batch b;
        CHECK_OK(context, lk_loader_next(loader, &b));
        int key = 0;
        for (int i = 0; i < 5; i++) key = key * 5 + (int)b.indices[i];
        seen[key]++;
        CHECK(lk_loader_next(loader, &b) == LK_END);
    }
    double chi = 0;
    for (int i = 0; i < 3125; i++) {
        if (!seen[i]) continue;
        orders++;
        chi += (seen[i] - 100.0) * (seen[i] - 100.0) / 100.0;
    }
    CHECK(orders == 120 && chi < 181);
    lk_loader_free(loader);
    lk_dataset_free(d);
}

static void seeking_resumes_anywhere(void)
{
    lk_dataset      *d = make_images(1, 4, 4, 53, LK_U8);
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 10, c.shuffle = true, c.transform.flip = 0.5, c.transform.crop_padding = 1;
    for (int workers = 0; workers < 3; workers += 2) {
        lk_loader *straight, *again;
        lk_batch   a, b;
        c.workers = workers;
        CHECK_OK(context, lk_loader_create(context, &c, &straight));
        CHECK_OK(context, lk_loader_create(context, &c, &again));
        for (int step = 0; step < 20; step++) {
            int64_t   epoch = lk_loader_epoch(straight), position = lk_loader_position(straight);
            lk_status one = lk_loader_next(straight, &a);
            for (int k = 0; k < step % 4; k++) lk_loader_next(again, &b); /* start from another position */
            CHECK_OK(context, lk_loader_seek(again, epoch, position));
            lk_status two = lk_loader_next(again, &b);
            CHECK(one == two);
            CHECK(lk_loader_epoch(again) == lk_loader_epoch(straight) &&
                  lk_loader_position(again) == lk_loader_position(straight));
            if (one == LK_END) continue;
            CHECK(a.count == b.count && a.epoch == b.epoch && a.position == b.position);
            CHECK(memcmp(a.fields[0], b.fields[0], 10 * 16 * sizeof(float)) == 0);
            CHECK(memcmp(a.indices, b.indices, 10 * sizeof(int64_t)) == 0 &&
                  memcmp(a.fields[1], b.fields[1], 10 * sizeof(int32_t)) == 0);
        }
        /* Also from the middle of a batch: another batch size continues in the same order. */
        int64_t order[53];
        CHECK_OK(context, lk_loader_seek(straight, 4, 0));
        while (lk_loader_next(straight, &a) == LK_OK)
            memcpy(order + a.position, a.indices, (size_t)a.count * sizeof *order);
        CHECK_OK(context, lk_loader_seek(straight, 4, 13));
        CHECK_OK(context, lk_loader_next(straight, &a));
        CHECK(a.position == 13 && a.count == 10 && memcmp(a.indices, order + 13, 10 * sizeof *order) == 0);
        CHECK_OK(context, lk_loader_seek(straight, 4, 53));
        CHECK(lk_loader_next(straight, &a) == LK_END);
        CHECK_OK(context, lk_loader_next(straight, &a));
        CHECK(a.epoch == 5 && a.position == 0);
        CHECK_FAILS(context, lk_loader_seek(straight, 0, 54), LK_EINVAL, "54");
        CHECK_FAILS(context, lk_loader_seek(straight, -1, 0), LK_EINVAL, "-1");
        lk_loader_free(straight), lk_loader_free(again);
    }
    lk_dataset_free(d);
}

static void pixels_are_transformed_as_by_a_naive_loop(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {4, 3, 3}, {1, 28, 28}};
    for (int s = 0; s < 4; s++)
        for (int in = 0; in < 2; in++)
            for (int out = 0; out < 2; out++) /* mean and std: default; one for all channels; one for each */
                for (int given = 0; given < 3; given++) {
                    int64_t          channels = shapes[s][0], plane = shapes[s][1] * shapes[s][2], n = channels * plane;
                    lk_dataset      *d = make_images(channels, shapes[s][1], shapes[s][2], 9, in ? LK_F32 : LK_U8);
                    lk_loader       *loader;
                    lk_batch         b;
                    lk_loader_config c = LK_LOADER_CONFIG_INIT;
                    c.dataset = d, c.batch = 9, c.dtype = out ? LK_F64 : LK_F32;
                    c.transform.channels = given == 0 ? 0 : given == 1 ? 1 : (int)channels;
                    for (int k = 0; k < c.transform.channels; k++)
                        c.transform.mean[k] = 0.1 * k + 0.3, c.transform.std[k] = 0.2 + 0.05 * k;
                    CHECK_OK(context, lk_loader_create(context, &c, &loader));
                    CHECK_OK(context, lk_loader_next(loader, &b));
                    unsigned char stored[784 * 4];
                    for (int64_t i = 0; i < 9; i++) {
                        int32_t label;
                        CHECK_OK(context, get_pair(d, i, stored, &label));
                        CHECK(label == ((const int32_t *)b.fields[1])[i]);
                        for (int64_t k = 0; k < n; k++) {
                            int    which = c.transform.channels > 1 ? (int)(k / plane) : 0;
                            double v = in ? ((float *)stored)[k] : stored[k] / 255.0;
                            double mean = given ? c.transform.mean[which]
                                          : in  ? 0
                                                : 0.5,
                                   std = given ? c.transform.std[which]
                                         : in  ? 1
                                               : 0.5;
                            double wanted = (v - mean) / std, got = out ? ((const double *)b.fields[0])[i * n + k]
                                                                        : ((const float *)b.fields[0])[i * n + k];
                            CHECK(fabs(got - wanted) <= (out ? 1e-14 : 1e-6) * (1 + fabs(wanted)));
                        }
                    }
                    lk_loader_free(loader);
                    lk_dataset_free(d);
                }
}

/* Each augmented image must be the naive crop and flip at one of the (2p+1)² × 2 positions; all of them occur about
 * equally often; and the position depends on (seed, epoch, sample) alone, so the batch size changes nothing. */
static void augmentation_is_a_crop_and_a_flip_by_sample(void)
{
    enum {
        PADDING = 2,
        SIDE = 2 * PADDING + 1,
        CHANNELS = 2,
        HEIGHT = 6,
        WIDTH = 9,
        COUNT = 5000,
        N = CHANNELS * HEIGHT * WIDTH
    };
    lk_dataset      *d = make_images(CHANNELS, HEIGHT, WIDTH, COUNT, LK_U8);
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    int              found[SIDE * SIDE * 2] = {0};
    int             *place = malloc(COUNT * sizeof *place);
    c.dataset = d, c.shuffle = true, c.transform.crop_padding = PADDING, c.transform.flip = 0.25;
    c.transform.channels = CHANNELS, c.transform.mean[1] = 0.25, c.transform.std[0] = 1, c.transform.std[1] = 0.5;
    for (int variant = 0; variant < 3; variant++) { /* epoch 0, epoch 0 in other batches, epoch 1 */
        lk_loader *loader;
        lk_batch   b;
        int        same_place = 0;
        c.batch = variant ? 37 : 64;
        CHECK_OK(context, lk_loader_create(context, &c, &loader));
        CHECK_OK(context, lk_loader_seek(loader, variant == 2, 0));
        while (lk_loader_next(loader, &b) == LK_OK) {
            for (int64_t i = 0; i < b.count; i++) {
                const float  *row = (const float *)b.fields[0] + i * N;
                unsigned char stored[N];
                int32_t       label;
                int           matches = 0, match = -1;
                CHECK_OK(context, get_pair(d, b.indices[i], stored, &label));
                for (int p = 0; p < SIDE * SIDE * 2; p++) {
                    int  top = p / 2 % SIDE, left = p / 2 / SIDE, flip = p % 2;
                    bool same = true;
                    for (int k = 0; k < N && same; k++) {
                        int    ch = k / (HEIGHT * WIDTH), y = k / WIDTH % HEIGHT, x = k % WIDTH;
                        int    from_x = (flip ? WIDTH - 1 - x : x) + left - PADDING, from_y = y + top - PADDING;
                        bool   inside = from_x >= 0 && from_x < WIDTH && from_y >= 0 && from_y < HEIGHT;
                        double pixel = inside ? stored[(ch * HEIGHT + from_y) * WIDTH + from_x] / 255.0 : 0.0;
                        double wanted = (pixel - c.transform.mean[ch]) / c.transform.std[ch];
                        same = fabs(row[k] - wanted) < 1e-6;
                    }
                    if (same) matches++, match = p;
                }
                CHECK(matches == 1);
                if (variant == 0) {
                    place[b.indices[i]] = match;
                    found[match]++;
                }
                same_place += place[b.indices[i]] == match;
            }
        }
        CHECK(variant == 2 ? same_place < COUNT / 10 : same_place == COUNT);
        lk_loader_free(loader);
    }
    for (int p = 0; p < SIDE * SIDE * 2; p++) { /* means 50 and 150, within six deviations */
        double mean = COUNT / (double)(SIDE * SIDE) * (p % 2 ? 0.25 : 0.75);
        CHECK(fabs(found[p] - mean) < 6 * sqrt(mean));
    }
    free(place);
    lk_dataset_free(d);
}

static void memory_is_as_planned_and_next_allocates_nothing(void)
{
    for (int variant = 0; variant < 12; variant++) {
        lk_dataset      *d = variant % 3 == 2 ? make_counting(101, 17) : make_images(3, 9, 11, 101, LK_U8);
        lk_loader       *loader;
        lk_batch         b;
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        c.dataset = d, c.batch = variant % 3 ? 7 : 64, c.shuffle = variant % 2, c.workers = variant % 4,
        c.dtype = variant % 5 ? LK_F32 : LK_F64;
        c.prefetch = c.workers ? variant % 6 : 0;
        if (variant % 3 == 0)
            c.transform.channels = 3, c.transform.std[0] = c.transform.std[1] = c.transform.std[2] = 1;
        if (variant % 4 == 1) c.parts = 3, c.first_part = 1, c.last_part = 2;
        size_t predicted = lk_loader_bytes(&c);
        /* Computed by hand: the slots, each array rounded up to a multiple of 64. */
        size_t slots = c.workers ? 1 + (size_t)(c.prefetch ? c.prefetch : 2 * c.workers) : 1,
               real = lk_dtype_size(c.dtype);
        size_t elements = (size_t)lk_field_elements(lk_dataset_field(d, 0)), batch = (size_t)c.batch;
        if (c.parts) batch = c.batch == 7 ? 2 : 21; /* rows 2, 3 of 7 and 21 … 41 of 64 */
        size_t by_hand = slots * ((batch * elements * real + 63) / 64 * 64 + (batch * 4 + 63) / 64 * 64 +
                                  (batch * 8 + 63) / 64 * 64);
        by_hand += c.shuffle ? (101 * 8 + 63) / 64 * 64 : 0;
        by_hand += variant % 3 == 2 ? 0 : 256 * real * (variant % 3 == 0 ? 3 : 1);
        CHECK(predicted == by_hand);
        CHECK_OK(context, lk_loader_create(context, &c, &loader));
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == predicted);
        uint64_t before = lk_context_allocations(context);
        for (int i = 0; i < 60; i++) CHECK(lk_loader_next(loader, &b) >= 0);
        CHECK_OK(context, lk_loader_seek(loader, 1, 3));
        CHECK(lk_loader_next(loader, &b) >= 0);
        CHECK(lk_context_allocations(context) == before);
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == predicted);
        lk_loader_free(loader);
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == 0);
        lk_dataset_free(d);
    }
}

static void invalid_configs_are_refused(void)
{
    lk_dataset      *d = make_counting(10, 3), *i = make_images(3, 4, 4, 10, LK_U8);
    lk_loader       *loader;
    lk_loader_config good = LK_LOADER_CONFIG_INIT, c;
    good.dataset = d;
#define REFUSED(change, ...)                                                                  \
    do {                                                                                      \
        c = good;                                                                             \
        change;                                                                               \
        CHECK_FAILS(context, lk_loader_create(context, &c, &loader), LK_EINVAL, __VA_ARGS__); \
        CHECK(!loader && lk_loader_bytes(&c) == 0 && lk_loader_capacity(&c) == 0);            \
    } while (0)
    REFUSED(c.size = 3, "LK_LOADER_CONFIG_INIT");
    REFUSED(c.dataset = NULL, "data set");
    REFUSED(c.batch = 0, "batch size is 0");
    REFUSED(c.batch = -5, "batch size is -5");
    REFUSED(c.batch = INT64_MAX, "too large to address");
    REFUSED(c.dtype = LK_I32, "i32");
    REFUSED(c.workers = -1, "workers is -1");
    REFUSED(c.workers = 100000, "workers is 100000");
    REFUSED(c.prefetch = 3, "needs at least one worker");
    REFUSED(c.timeout_ms = 0, "timeout");
    REFUSED((c.drop_last = true, c.batch = 11), "no full batch of 11");
    REFUSED(c.parts = -1, "-1 parts");
    REFUSED((c.parts = INT_MAX, c.last_part = 1), "2147483647 parts");
    REFUSED(c.parts = 2, "parts 0 to 0", "of 2 parts");
    REFUSED((c.parts = 2, c.first_part = 1, c.last_part = 3), "parts 1 to 3");
    REFUSED((c.parts = 2, c.first_part = -1, c.last_part = 1), "parts -1 to 1");
    REFUSED(c.last_part = 1, "parts 0 to 1");
    REFUSED(c.transform.size = 0, "LK_TRANSFORM_INIT");
    REFUSED(c.transform.channels = 3, "3 channels");
    REFUSED(c.transform.channels = 1, "std 0");
    REFUSED(c.transform.flip = 0.5, "augmentation needs images");
    REFUSED(c.transform.crop_padding = 1, "augmentation needs images");
    good.dataset = i;
    REFUSED(c.transform.flip = 1.5, "1.5");
    REFUSED(c.transform.flip = (double)NAN, "probability");
    REFUSED(c.transform.crop_padding = -1, "-1 pixels");
    REFUSED((c.transform.channels = 1, c.transform.std[0] = (double)INFINITY), "std inf");
    REFUSED((c.transform.channels = 2, c.transform.std[0] = c.transform.std[1] = 1), "2 channels", "has 3");
    REFUSED(c.transform.channels = LK_MAX_CHANNELS + 1, "17 channels");
    lk_loader_free(NULL);
    lk_dataset_free(d), lk_dataset_free(i);
}

int main(void)
{
    context = make_context();
    RUN(batches_do_not_depend_on_workers_or_prefetch);
    RUN(every_sample_occurs_once_and_the_last_batch_is_padded);
    RUN(shares_split_each_batch_and_change_nothing_else);
    RUN(fixed_parts_are_batches_of_their_size);
    RUN(shuffles_are_uniform);
    RUN(seeking_resumes_anywhere);
    RUN(pixels_are_transformed_as_by_a_naive_loop);
    RUN(augmentation_is_a_crop_and_a_flip_by_sample);
    RUN(memory_is_as_planned_and_next_allocates_nothing);
    RUN(invalid_configs_are_refused);
    free_context(context);
    return 0;
}
