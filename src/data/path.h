/* data/path.h - paths of files, of a fixed greatest length. */
#ifndef LK__PATH_H
#define LK__PATH_H

#include "base/base.h"

enum { LK__PATH = 1024 };

/* Formats a path; false when it does not fit (then path is ""). */
bool lk__path(char path[LK__PATH], const char *format, ...) __attribute__((format(printf, 2, 3)));
bool lk__path_exists(const char *path);
/* Makes the directory and those above it. LK_EIO when the system refuses. */
lk_status lk__path_make(lk_context *context, const char *directory);

#endif
