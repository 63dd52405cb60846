/* order.c - the order of an epoch, by counter-based random numbers. Listed: a Fisher-Yates shuffle. Computed: a Feistel
 * network (Luby and Rackoff 1988) permutes the numbers below the next power of four; numbers that are no index are
 * permuted again until one is (cycle walking, Black and Rogaway 2002), on average less than four times. */
#include "data/order.h"

lk__order_kind lk__order_choose(int64_t count, bool shuffle, bool computed)
{
    if (!shuffle) return LK__ORDER_SEQUENTIAL;
    return count > LK__ORDER_LARGEST || (computed && count > LK__ORDER_SMALL) ? LK__ORDER_COMPUTED : LK__ORDER_LISTED;
}

size_t lk__order_bytes(int64_t count, lk__order_kind kind)
{
    return kind == LK__ORDER_LISTED ? (size_t)count * sizeof(int64_t) : 0;
}

void lk__order_init(lk__data_order *o, int64_t count, uint64_t seed, lk__order_kind kind, int64_t *indices)
{
    *o = (lk__data_order){.count = count, .seed = seed, .kind = kind, .epoch = -1, .ahead_epoch = -1};
    if (kind == LK__ORDER_LISTED) o->indices = indices;
    for (o->half = 1; o->half < 31 && INT64_C(1) << 2 * o->half < count;) o->half++;
}

/* Fisher and Yates: indices `from` - 1 down to `to` get their final places. */
static void shuffle_part(const lk__random *random, int64_t *indices, int64_t from, int64_t to)
{
    for (int64_t i = from - 1; i >= to && i > 0; i--) {
        uint32_t index = 0;
        int64_t  j = (int64_t)lk__random_below(random, (uint64_t)i, &index, (uint64_t)i + 1);
        int64_t  moved = indices[i];
        indices[i] = indices[j];
        indices[j] = moved;
    }
}

static void shuffle_list(lk__data_order *o)
{
    lk__random random = lk__random_make(o->seed, LK__FOR_SHUFFLE, (uint64_t)o->epoch);
    for (int64_t i = 0; i < o->count; i++) o->indices[i] = i;
    shuffle_part(&random, o->indices, o->count, 0);
}

void lk__order_make_ahead(lk__data_order *o, int64_t *list)
{
    if (o->kind == LK__ORDER_LISTED) o->ahead = list;
}

void lk__order_advance(lk__data_order *o, int64_t samples)
{
    enum { FILLS = 8 }; /* listing an index takes a small part of the time of shuffling it */
    if (!o->ahead || o->epoch < 0) return;
    if (o->ahead_epoch != o->epoch + 1) {
        o->ahead_epoch = o->epoch + 1;
        o->ahead_random = lk__random_make(o->seed, LK__FOR_SHUFFLE, (uint64_t)o->ahead_epoch);
        o->listed = 0;
        o->left = o->count;
    }
    if (o->listed < o->count) {
        int64_t end = o->count - o->listed < FILLS * samples ? o->count : o->listed + FILLS * samples;
        for (int64_t i = o->listed; i < end; i++) o->ahead[i] = i;
        o->listed = end;
    } else if (o->left > 0) {
        int64_t to = o->left < samples ? 0 : o->left - samples;
        shuffle_part(&o->ahead_random, o->ahead, o->left, to);
        o->left = to;
    }
}

/* Whether the epoch was made ahead, if not to its end: then the lists change places. */
static bool take_ahead(lk__data_order *o, int64_t epoch)
{
    int64_t *taken = o->ahead;
    if (!o->ahead || o->ahead_epoch != epoch || o->epoch + 1 != epoch) return false;
    while (o->listed < o->count || o->left > 0) lk__order_advance(o, o->count);
    o->ahead = o->indices;
    o->indices = taken;
    o->epoch = epoch;
    o->ahead_epoch = -1;
    return true;
}

static void draw_keys(lk__data_order *o)
{
    lk__random random = lk__random_make(o->seed, LK__FOR_PERMUTATION, (uint64_t)o->epoch);
    for (uint32_t i = 0; i < LK__ORDER_ROUNDS; i++) {
        uint32_t words[4];
        lk__random4(&random, 0, i, words);
        o->keys[i] = (uint64_t)words[0] << 32 | words[1];
    }
}

void lk__order_epoch(lk__data_order *o, int64_t epoch)
{
    if (o->epoch == epoch || take_ahead(o, epoch)) return;
    o->epoch = epoch;
    if (o->kind == LK__ORDER_LISTED) shuffle_list(o);
    if (o->kind == LK__ORDER_COMPUTED) draw_keys(o);
}

/* The round function: the high bits of MurmurHash3's finalizer. */
static uint64_t mix_half(uint64_t half, uint64_t key, int bits)
{
    uint64_t h = half ^ key;
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu;
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53u;
    return (h ^ h >> 33) >> (64 - bits);
}

int64_t lk__order_compute(const lk__data_order *o, int64_t position)
{
    uint64_t mask = (UINT64_C(1) << o->half) - 1, number = (uint64_t)position;
    do {
        uint64_t left = number >> o->half, right = number & mask;
        for (int i = 0; i < LK__ORDER_ROUNDS; i++) {
            uint64_t next = left ^ mix_half(right, o->keys[i], o->half);
            left = right;
            right = next;
        }
        number = left << o->half | right;
    } while (number >= (uint64_t)o->count);
    return (int64_t)number;
}
