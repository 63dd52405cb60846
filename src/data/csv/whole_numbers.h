/* data/csv/whole_numbers.h - the distinct whole numbers of a column and how often each occurs, which decide whether
 * they are classes. */
#ifndef LK__WHOLE_NUMBERS_H
#define LK__WHOLE_NUMBERS_H

#include "base/base.h"

typedef struct lk__whole_number {
    int64_t value, count; /* count 0: a free slot */
} lk__whole_number;

typedef struct lk__whole_numbers {
    lk_context       *context;
    lk__whole_number *slots; /* a hash table; once it is sorted, the first `count` are the numbers, ascending */
    size_t            slots_count, count;
} lk__whole_numbers;

enum { LK__CLASS_ROWS = 10 }; /* the least of each class, where more than two whole numbers are classes */

lk_status lk__whole_numbers_add(lk__whole_numbers *numbers, int64_t value);
void      lk__whole_numbers_sort(lk__whole_numbers *numbers); /* none are added after this */
void      lk__whole_numbers_free(lk__whole_numbers *numbers);

/* Of sorted numbers. They are classes if there are at most two, or if they are 0 … K-1 or 1 … K without gaps,
 * LK__CLASS_ROWS times each. */
bool    lk__whole_numbers_are_classes(const lk__whole_numbers *numbers);
bool    lk__whole_numbers_from_zero(const lk__whole_numbers *numbers); /* 0 … K-1 without gaps */
int32_t lk__whole_numbers_find(const lk__whole_numbers *numbers, int64_t value); /* its place; -1: it is none of them */

#endif
