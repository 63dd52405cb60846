/* data/path.h - paths of files, of a fixed maximum length. */
#ifndef LK__PATH_H
#define LK__PATH_H

#include "base/base.h"

enum { LK__PATH = 1024 };

/* Formats a path; false if it does not fit (then path is ""). */
bool lk__path(char path[LK__PATH], const char *format, ...) __attribute__((format(printf, 2, 3)));
bool lk__path_exists(const char *path);
/* Creates the directory and its parents. LK_EIO if that fails. */
lk_status lk__path_make(lk_context *context, const char *directory);

#endif
