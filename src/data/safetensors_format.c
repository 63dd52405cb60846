/* safetensors_format.c - what the reader and the writer of safetensors share: types, sizes, order. */
#include "data/safetensors_inside.h"

#include "base/dtype.h"

#include <string.h>

int lk__safetensors_type_rank(const lk__safetensors_tensor *t)
{
    return t->boolean ? LK_DTYPE_COUNT : lk__dtype_of(t->dtype)->order;
}

const char *lk__safetensors_type(const lk__safetensors_tensor *t)
{
    return t->boolean ? LK__SAFETENSORS_BOOL : lk__dtype_of(t->dtype)->safetensors;
}

bool lk__safetensors_size(const lk__safetensors_tensor *t, uint64_t *bytes)
{
    uint64_t n = lk_dtype_size(t->dtype);
    bool     zero = false;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] < 0) return false;
        if (t->dims[i] == 0)
            zero = true;
        else if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n))
            return false;
    }
    *bytes = zero ? 0 : n;
    return *bytes <= INT64_MAX;
}

/* Heap sort: in place, without allocation (glibc's qsort allocates), and n log n in the worst case. */
void lk__safetensors_sort(void *array, size_t count, size_t size, int (*compare)(const void *a, const void *b))
{
    char *base = array;
    char  swap[sizeof(lk__safetensors_tensor)];
    for (size_t start = count / 2, end = count; end > 1;) {
        if (start > 0) {
            start--;
        } else {
            end--;
            memcpy(swap, base, size);
            memcpy(base, base + end * size, size);
            memcpy(base + end * size, swap, size);
        }
        for (size_t root = start, child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && compare(base + child * size, base + (child + 1) * size) < 0) child++;
            if (compare(base + root * size, base + child * size) >= 0) break;
            memcpy(swap, base + root * size, size);
            memcpy(base + root * size, base + child * size, size);
            memcpy(base + child * size, swap, size);
        }
    }
}

int lk__safetensors_compare_pairs(const void *a, const void *b)
{
    return strcmp(((const lk__safetensors_pair *)a)->key, ((const lk__safetensors_pair *)b)->key);
}
