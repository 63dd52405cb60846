/* suggest.c - suggests the known name that was probably meant, by edit distance. Swapping two letters is one edit; at
 * most a third of the letters may differ. */
#include "base/base.h"

#include <string.h>

enum { LONGEST = 64 };

static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][LONGEST + 1], n = strlen(b), *before = rows[0], *last = rows[1], *row = rows[2], *free;
    for (size_t j = 0; j <= n; j++) last[j] = j;
    for (size_t i = 0; a[i]; i++) {
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = last[j] + (a[i] != b[j]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (last[j + 1] + 1 < best) best = last[j + 1] + 1;
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] && before[j - 1] + 1 < best)
                best = before[j - 1] + 1;
            row[j + 1] = best;
        }
        free = before, before = last, last = row, row = free;
    }
    return last[n];
}

size_t lk__pattern_distance(const char *pattern, const char *name)
{
    size_t row[4 * LONGEST + 1], n = strlen(name);
    if (n > 4 * LONGEST || strlen(pattern) > 4 * LONGEST) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (; *pattern; pattern++) {
        bool   any = *pattern == '*';
        size_t diagonal = row[0];
        row[0] += !any;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (*pattern != '?' && *pattern != name[j]);
            if (row[j] + !any < best) best = row[j] + !any;     /* a further character of the name */
            if (row[j + 1] + !any < best) best = row[j + 1] + !any; /* one of the pattern is left out */
            diagonal = row[j + 1];
            row[j + 1] = best;
        }
    }
    return row[n];
}

const char *lk__suggest(const char *name, const char *const *known, size_t count)
{
    const char *best = NULL;
    size_t      least = SIZE_MAX;
    if (strlen(name) > LONGEST) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (strlen(known[i]) > LONGEST) continue;
        size_t d = edit_distance(name, known[i]);
        size_t longer = strlen(name) > strlen(known[i]) ? strlen(name) : strlen(known[i]);
        if (d < least && d <= (longer + 2) / 3) {
            least = d;
            best = known[i];
        }
    }
    return best;
}
