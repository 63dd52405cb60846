/* mersenne.c - the recurrence and tempering of MT19937, with the constants of the paper's table 2: m = 397,
 * a = 0x9908B0DF, (u, s, t, l) = (11, 7, 15, 18), b = 0x9D2C5680, c = 0xEFC60000. */
#include "data/mersenne.h"

void lk__mersenne_seed(lk__data_mersenne *m, uint32_t seed)
{
    m->words[0] = seed;
    for (uint32_t i = 1; i < LK__MERSENNE_WORDS; i++) {
        uint32_t before = m->words[i - 1];
        m->words[i] = 1812433253u * (before ^ before >> 30) + i; /* the authors' initialisation of 2002 */
    }
    m->used = LK__MERSENNE_WORDS;
}

static void regenerate(lk__data_mersenne *m)
{
    enum { N = LK__MERSENNE_WORDS, M = 397 };
    for (int i = 0; i < N; i++) {
        uint32_t joined = (m->words[i] & 0x80000000u) | (m->words[(i + 1) % N] & 0x7FFFFFFFu);
        m->words[i] = m->words[(i + M) % N] ^ joined >> 1 ^ (joined & 1 ? 0x9908B0DFu : 0);
    }
    m->used = 0;
}

uint32_t lk__mersenne_next(lk__data_mersenne *m)
{
    if (m->used == LK__MERSENNE_WORDS) regenerate(m);
    uint32_t y = m->words[m->used++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680u;
    y ^= y << 15 & 0xEFC60000u;
    return y ^ y >> 18;
}
