/* subset.c - which samples form a test set that is held out. The hash is of the key alone, so that it does not depend
 * on the other samples, the order or the machine. */
#include "data/subset.h"

#include "base/hash.h"

bool lk__is_held_out(const void *key, size_t bytes, double fraction)
{
    uint64_t hash = lk__hash64(key, bytes, 0);
    /* FNV's high bits depend little on the last bytes; this mixes all (the finalizer of MurmurHash3). */
    hash = (hash ^ hash >> 33) * 0xFF51AFD7ED558CCDu;
    hash = (hash ^ hash >> 33) * 0xC4CEB9FE1A85EC53u;
    hash ^= hash >> 33;
    return (double)(hash >> 11) * 0x1p-53 < fraction;
}

/* The sample's number as 8 bytes, the lowest first on every machine. */
static bool is_number_held_out(int64_t number, double fraction)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)number >> 8 * i);
    return lk__is_held_out(bytes, sizeof bytes, fraction);
}

lk_status lk__dataset_hold_out(lk_dataset *d, lk_split split, double fraction, lk__subset_key key)
{
    if (!(fraction >= 0 && fraction < 1))
        return lk__fail(d->context, LK_EINVAL,
                        "a hold-out fraction of %g is invalid: expected at least 0 and less than 1", fraction);
    if (fraction == 0) return split == LK_SPLIT_TEST ? LK_END : LK_OK;
    size_t   bytes = (size_t)d->count * sizeof(int64_t);
    int64_t *kept = lk__alloc(d->context, LK_MEMORY_DATA, bytes), count = 0;
    if (!kept) return LK_ENOMEM;
    for (int64_t i = 0; i < d->count; i++) {
        size_t      length;
        int64_t     number = lk__dataset_stored(d, i);
        const void *name = key ? key(d, number, &length) : NULL;
        bool        test = key ? lk__is_held_out(name, length, fraction) : is_number_held_out(number, fraction);
        if (test == (split == LK_SPLIT_TEST)) kept[count++] = number;
    }
    if (count == 0) {
        lk__free(d->context, LK_MEMORY_DATA, kept, bytes);
        return lk__fail(d->context, LK_EINVAL, "%s: holding out %g of %lld samples leaves none for the %s set", d->name,
                        fraction, (long long)d->count, split == LK_SPLIT_TEST ? "test" : "training");
    }
    lk__free(d->context, LK_MEMORY_DATA, d->kept, d->kept_bytes);
    d->kept = kept;
    d->kept_bytes = bytes;
    d->count = count;
    return LK_OK;
}
