/* training_batch.h - weights and batches that golden/make_training.py generates by the same formula, independent of how
 * a batch is split over ranks. */
#ifndef TRAINING_BATCH_H
#define TRAINING_BATCH_H

#include "support.h"

/* make_training.py's initialise(). */
SHARED void initialise(lk_store *store)
{
    for (size_t i = 0; i < lk_store_count(store); i++) {
        lk_state s = lk_store_at(store, i);
        if (s.buffer) continue;
        uint64_t seed = seed_of(s.name);
        int64_t  n = state_elements(&s);
        size_t   length = strlen(s.name);
        bool     weight = length >= 6 && strcmp(s.name + length - 6, "weight") == 0;
        double   root = sqrt((double)(n / s.dims[0]));
        void    *data = copy_room(state_bytes(&s));
        for (int64_t j = 0; j < n; j++) {
            double u = 2 * number(seed, (uint64_t)j) - 1;
            set_real(data, s.dtype, j, s.rank > 1 ? u / root : weight ? 1 + u / 4 : u / 10);
        }
        write_state(store, &s, data);
    }
}

/* Rows first … first + count - 1 of make_training.py's batch(), for images of 3 × side × side: noise over a coarse
 * picture of the class, and some labels drawn again. */
SHARED void fill_rows(void *images, lk_dtype real, int32_t *labels, int side, int64_t first, int64_t count, int step)
{
    int64_t pixels = 3 * side * side;
    for (int64_t n = 0; n < count; n++) {
        uint64_t bits = number_bits(2000 + (uint64_t)step, (uint64_t)(first + n)), kind = bits % 10;
        labels[n] = (int32_t)(bits >> 62 == 0 ? (bits >> 32) % 10 : kind);
        for (int64_t i = 0; i < pixels; i++) {
            int64_t channel = i / (side * side), row = i / side % side, column = i % side;
            int64_t cell = channel * 16 + row * 4 / side * 4 + column * 4 / side;
            double  noise = 2 * number(1000 + (uint64_t)step, (uint64_t)((first + n) * pixels + i)) - 1;
            double  picture = 2 * number(3000 + kind, (uint64_t)cell) - 1;
            set_real(images, real, n * pixels + i, noise / 2 + picture / 2);
        }
    }
}

#endif
