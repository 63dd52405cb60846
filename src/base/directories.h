/* base/directories.h - creates directories. */
#ifndef LK__DIRECTORIES_H
#define LK__DIRECTORIES_H

#include "base/base.h"

/* Whether errno of a path that was to be created says that the name is wrong, or may not be written. */
bool lk__is_path_mistake(int error);

/* Like mkdir -p. LK_EINVAL: the name is empty or too long, a file is in the way, or it may not be created there;
 * LK_EIO: it cannot be created. */
lk_status lk__make_directories(lk_context *context, const char *path);

#endif
