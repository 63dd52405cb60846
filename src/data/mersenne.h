/* data/mersenne.h - MT19937 (Matsumoto and Nishimura, 1998), for orders that must equal PyTorch's; everything else uses
 * the counter-based generator of base/random.h. */
#ifndef LK__MERSENNE_H
#define LK__MERSENNE_H

#include <stdint.h>

enum { LK__MERSENNE_WORDS = 624 };

typedef struct lk__data_mersenne {
    uint32_t words[LK__MERSENNE_WORDS];
    int      used; /* words returned since the last regeneration */
} lk__data_mersenne;

void     lk__mersenne_seed(lk__data_mersenne *mersenne, uint32_t seed);
uint32_t lk__mersenne_next(lk__data_mersenne *mersenne);

#endif
