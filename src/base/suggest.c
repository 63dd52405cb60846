/* suggest.c - the known name that was probably meant: Levenshtein distance, at most a third of the letters different. */
#include "base/base.h"

#include <string.h>

enum { LONGEST = 64 };

static size_t edit_distance(const char *a, const char *b)
{
    size_t row[LONGEST + 1], n = strlen(b);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (a[i] != b[j]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j + 1] + 1 < best) best = row[j + 1] + 1;
            diagonal = row[j + 1];
            row[j + 1] = best;
        }
    }
    return row[n];
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
