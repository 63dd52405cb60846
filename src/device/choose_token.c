/* choose_token.c - chooses a token from logits, in double: greedy, or at random by temperature, top-k and top-p, in
 * this order. Candidates are a heap: only those that remain are sorted. */
#include "device/tokens.h"

#include "base/random.h"

#include <math.h>

static double logit_at(lk_dtype type, const void *logits, int64_t i)
{
    return type == LK_F64 ? ((const double *)logits)[i] : (double)((const float *)logits)[i];
}

/* The largest logit, the first of equal ones; -1: none is finite, or one is NaN. */
static int64_t find_largest(lk_dtype type, const void *logits, int64_t n)
{
    int64_t best = -1;
    double  most = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double x = logit_at(type, logits, i);
        if (isnan(x)) return -1;
        if (x > most) most = x, best = i;
    }
    return isfinite(most) ? best : -1;
}

/* The larger weight first; of equal ones, the smaller token. */
static bool precedes(const lk__tokens_candidate *a, const lk__tokens_candidate *b)
{
    return a->weight != b->weight ? a->weight > b->weight : a->token < b->token;
}

static void sift_down(lk__tokens_candidate *heap, int64_t n, int64_t at)
{
    lk__tokens_candidate moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && precedes(&heap[child + 1], &heap[child])) child++;
        if (!precedes(&heap[child], &moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void make_heap(lk__tokens_candidate *heap, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;) sift_down(heap, n, i);
}

/* Moves the first of n candidates behind the others, which remain a heap. */
static void pop_candidate(lk__tokens_candidate *heap, int64_t n)
{
    lk__tokens_candidate first = heap[0];
    heap[0] = heap[n - 1];
    if (n > 1) sift_down(heap, n - 1, 0);
    heap[n - 1] = first;
}

/* Weights become probabilities, up to a common factor; returns their sum. */
static double soften(lk__tokens_candidate *c, int64_t n, double most, double temperature)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += c[i].weight = exp((c[i].weight - most) / temperature);
    return total;
}

/* The candidate at which the sum of weights, from the last one back to the first, exceeds `limit`. */
static int32_t choose_candidate(const lk__tokens_candidate *c, int64_t n, double limit)
{
    double sum = 0;
    for (int64_t i = n; i-- > 0;)
        if ((sum += c[i].weight) > limit) return c[i].token;
    for (int64_t i = 0; i < n; i++) /* rounding: the least probable that is possible */
        if (c[i].weight > 0) return c[i].token;
    return c[0].token;
}

int32_t lk__sample(const lk__device_sampling *s, const lk__tokens_row *row, double uniform, lk__tokens_candidate *c)
{
    lk_dtype    type = row->type;
    const void *logits = row->logits;
    int64_t     n = row->vocabulary, largest = find_largest(type, logits, n), first = 0;
    if (largest < 0 || s->temperature == 0) return (int32_t)largest;
    double most = logit_at(type, logits, largest);
    for (int64_t i = 0; i < n; i++) c[i] = (lk__tokens_candidate){logit_at(type, logits, i), (int32_t)i};
    if (s->top_k > 0 && s->top_k < n) { /* the last k, the most probable last */
        make_heap(c, n);
        for (int64_t i = 0; i < s->top_k; i++) pop_candidate(c, n - i);
        first = n - s->top_k;
    }
    double total = soften(c + first, n - first, most, s->temperature);
    if (s->top_p > 0 && s->top_p < 1) {
        double  wanted = s->top_p * total, sum = 0;
        int64_t end = n;
        if (first == 0) make_heap(c, n);
        while (end > first && sum < wanted) {
            if (first == 0) pop_candidate(c, end);
            sum += c[--end].weight;
        }
        first = end, total = sum;
    }
    return choose_candidate(c + first, n - first, uniform * total);
}

double lk__sample_uniform(uint64_t seed, uint64_t prompt_hash, int64_t earlier, int64_t position)
{
    lk__random random = lk__random_make(seed, LK__FOR_SAMPLE, prompt_hash);
    uint32_t   bits[4];
    lk__random4(&random, (uint64_t)earlier, (uint32_t)position, bits);
    return ((double)(((uint64_t)bits[0] << 32 | bits[1]) >> 11) + 0.5) * 0x1p-53;
}
