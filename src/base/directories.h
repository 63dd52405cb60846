/* base/directories.h - directories that are created. */
#ifndef LK__DIRECTORIES_H
#define LK__DIRECTORIES_H

#include "base/base.h"

/* As mkdir -p. LK_EINVAL: the name is empty or too long, or a file is in the way; LK_EIO: it cannot be created. */
lk_status lk__make_directories(lk_context *context, const char *path);

#endif
