/* data/path.h - paths of files, of a fixed maximum length. */
#ifndef LK__PATH_H
#define LK__PATH_H

#include "base/base.h"

enum { LK__PATH = 1024 };

/* Formats a path; false if it does not fit (then path is ""). */
bool lk__path(char path[LK__PATH], const char *format, ...) __attribute__((format(printf, 2, 3)));
bool lk__path_exists(const char *path);
/* "A,B" as two paths; without a comma the second is "". LK_EINVAL, with an example, for more commas, an empty or too
 * long path. */
lk_status lk__path_pair(lk_context *context, const char *example, const char *text, char paths[2][LK__PATH]);

#endif
