/* train/list_names.h - states that are lists of tensors in files: where one of the components of a state's name is "*",
 * files store each index of its first axis as a separate tensor, named with that index instead:
 * "experts.*.w1.weight" (8, 3, 5) as "experts.0.w1.weight" (3, 5) and so on. */
#ifndef LK__LIST_NAMES_H
#define LK__LIST_NAMES_H

#include "base/base.h"

enum { LK__LIST_DIGITS = 20 }; /* of an index, at most */

/* Whether files hold the state as a list. */
bool lk__list_is(const char *name, int rank);
/* The tensors of a state in a file: 1, or the extent of its first axis. */
static inline size_t lk__list_length(const char *name, int rank, const int64_t *dims)
{
    return lk__list_is(name, rank) ? (size_t)dims[0] : 1;
}
/* The name of one of them, also with an end such as ".exp_avg"; false: there is no room. */
bool lk__list_name(const char *name, size_t index, char *out, size_t size);
/* The other way: component i (from 0) of a file's name that is an index, replaced by "*"; false: there is none. */
bool lk__list_pattern(const char *name, int i, char *out, size_t size, size_t *index);

#endif
