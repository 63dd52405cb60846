/* synthetic_tokens.c - generated token sequences that a language model can learn: each token follows from the one
 * before, plus one of four steps at random, so the best possible loss is ln 4 (or ln of a smaller vocabulary). */
#include "base/random.h"
#include "data/dataset.h"

enum { FIRST, STEPS }; /* streams of random numbers */

typedef struct state {
    lk__random first, steps;
    int64_t    offset; /* number of the first sample */
    int64_t    length, vocabulary;
} state;

static lk_status read_tokens(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                             char message[LK__DATASET_MESSAGE])
{
    const state *s = d->state;
    uint64_t     sample = (uint64_t)(s->offset + index);
    int32_t     *tokens = fields[0], *label = fields[1];
    uint32_t     bits[4], at = 0;
    (void)scratch, (void)message;
    int64_t token = (int64_t)lk__random_below(&s->first, sample, &at, (uint64_t)s->vocabulary);
    for (int64_t i = 0; i < s->length; i++) {
        if (i % 64 == 0) lk__random4(&s->steps, sample, (uint32_t)(i / 64), bits);
        tokens[i] = (int32_t)token;
        token = (5 * token + 3 + (bits[i % 64 / 16] >> i % 16 * 2 & 3)) % s->vocabulary;
        label[i] = (int32_t)token;
    }
    return LK_OK;
}

static void release(lk_dataset *d) { lk__free(d->context, LK_MEMORY_DATA, d->state, sizeof(state)); }

lk_status lk__synthetic_tokens_make(lk_context *context, const lk_dataset_synthetic_config *config, bool probe,
                                    lk_dataset **dataset)
{
    int64_t  length = config->dims[0];
    lk_field fields[] = {{.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {length}, .classes = config->classes},
                         {.name = "label", .dtype = LK_I32, .rank = 1, .dims = {length}, .classes = config->classes}};
    if (config->rank != 1 || config->classes < 1)
        return lk__fail(context, LK_EINVAL,
                        "synthetic tokens need one length and a vocabulary of at least 1, as in "
                        "synthetic-tokens:256,vocabulary=65");
    lk_status status =
        lk__dataset_make(context, &(lk__dataset_about){"synthetic-tokens", config->count, fields, 2}, dataset);
    if (status < 0) return status;
    lk_dataset *d = *dataset;
    d->streamed = true;
    if (probe) return LK_OK;
    state *s = lk__alloc(context, LK_MEMORY_DATA, sizeof *s);
    if (!s) {
        lk_dataset_free(d);
        *dataset = NULL;
        return LK_ENOMEM;
    }
    *s = (state){.first = lk__random_make(config->seed, LK__FOR_SYNTHETIC, FIRST),
                 .steps = lk__random_make(config->seed, LK__FOR_SYNTHETIC, STEPS),
                 .offset = config->first,
                 .length = length,
                 .vocabulary = config->classes};
    d->state = s;
    d->read = read_tokens;
    d->release = release;
    return LK_OK;
}
