/* sampler.c - one rank's list of an epoch: every world-th sample of the epoch's order. The order is the loader's or, in
 * compatible mode, PyTorch's permutation. */
#include <lockstep/sampler.h>

#include "base/config.h"
#include "data/mersenne.h"
#include "data/order.h"

struct lk_sampler {
    lk_context       *context;
    lk_sampler_config config;
    lk__data_order    order;
    lk__data_mersenne generator; /* when compatible */
    int64_t           own;       /* samples of this rank */
    int64_t          *indices;   /* `own` of them, then those of order */
    size_t            bytes;     /* of indices */
    int64_t           epoch;     /* of indices; -1 before the first */
};

/* torch.randperm on the CPU: for this many elements or more it draws 64 bits for each, in another order. */
enum { WIDE_DRAWS = UINT32_MAX / 20 };

static void permute_narrow(lk__data_mersenne *generator, int64_t *indices, int64_t count)
{
    for (int64_t i = 0; i < count; i++) indices[i] = i;
    for (int64_t i = 0; i < count - 1; i++) {
        int64_t j = i + (int64_t)(lk__mersenne_next(generator) % (uint64_t)(count - i));
        int64_t moved = indices[i];
        indices[i] = indices[j];
        indices[j] = moved;
    }
}

static void permute_wide(lk__data_mersenne *generator, int64_t *indices, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t high = lk__mersenne_next(generator), low = lk__mersenne_next(generator);
        int64_t  j = (int64_t)((high << 32 | low) % (uint64_t)(i + 1));
        indices[i] = indices[j];
        indices[j] = i;
    }
}

/* Samples that this rank has in an epoch. */
static int64_t own_count(const lk_sampler_config *c)
{
    int64_t each = c->count / c->world, left = c->count % c->world;
    if (c->drop_last) return each;
    return each + (c->compatible ? left > 0 : c->rank < left);
}

static lk__order_kind order_kind(const lk_sampler_config *c)
{
    if (c->compatible) return c->shuffle ? LK__ORDER_LISTED : LK__ORDER_SEQUENTIAL;
    return lk__order_choose(c->count, c->shuffle, c->text);
}

static lk_status check_config(lk_context *context, const lk_sampler_config *c)
{
    if (c->count < 0 || c->count > INT64_MAX / 32)
        return lk__fail(context, LK_EINVAL, "the sampler's count is %lld; expected 0 to %lld", (long long)c->count,
                        (long long)(INT64_MAX / 32));
    if (c->world < 1)
        return lk__fail(context, LK_EINVAL, "the sampler's world size is %d; expected at least 1", c->world);
    if (c->rank < 0 || c->rank >= c->world)
        return lk__fail(context, LK_EINVAL, "the sampler's rank is %d; expected 0 to %d", c->rank, c->world - 1);
    return LK_OK;
}

lk_status lk_sampler_create(lk_context *context, const lk_sampler_config *given, lk_sampler **sampler)
{
    lk_sampler_config        read = LK_SAMPLER_CONFIG_INIT;
    const lk_sampler_config *config = &read;
    *sampler = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_sampler_config, given, &read);
    if (status >= 0) status = check_config(context, config);
    if (status < 0) return status;
    lk_sampler *s = lk__alloc(context, LK_MEMORY_OTHER, sizeof *s);
    if (!s) return LK_ENOMEM;
    s->context = context;
    s->config = *config;
    s->own = own_count(config);
    s->epoch = -1;
    lk__order_kind kind = order_kind(config);
    s->bytes = (size_t)s->own * sizeof *s->indices + lk__order_bytes(config->count, kind);
    if (s->bytes && !(s->indices = lk__alloc(context, LK_MEMORY_LOADER, s->bytes))) {
        lk_sampler_free(s);
        return LK_ENOMEM;
    }
    lk__order_init(&s->order, config->count, config->seed, kind, s->indices ? s->indices + s->own : NULL);
    *sampler = s;
    return LK_OK;
}

lk_status lk_sampler_epoch(lk_sampler *s, int64_t epoch, const int64_t **indices, int64_t *count)
{
    const lk_sampler_config *c = &s->config;
    *indices = NULL;
    *count = 0;
    if (epoch < 0)
        return lk__fail(s->context, LK_EINVAL, "the sampler's epoch is %lld; expected 0 or more", (long long)epoch);
    if (s->epoch != epoch) {
        if (c->compatible && c->shuffle) {
            /* PyTorch truncates the seed too */
            lk__mersenne_seed(&s->generator, (uint32_t)(c->seed + (uint64_t)epoch));
            (c->count < WIDE_DRAWS ? permute_narrow : permute_wide)(&s->generator, s->order.indices, c->count);
        } else {
            lk__order_epoch(&s->order, epoch);
        }
        for (int64_t i = 0; i < s->own; i++) { /* beyond the count only in compatible mode: padding by repetition */
            int64_t position = c->rank + i * c->world;
            s->indices[i] = lk__order_index(&s->order, position < c->count ? position : position % c->count);
        }
        s->epoch = epoch;
    }
    *indices = s->indices;
    *count = s->own;
    return LK_OK;
}

void lk_sampler_free(lk_sampler *s)
{
    if (!s) return;
    lk__free(s->context, LK_MEMORY_LOADER, s->indices, s->bytes);
    lk__free(s->context, LK_MEMORY_OTHER, s, sizeof *s);
}
