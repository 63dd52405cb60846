/* environment.h - the environment variables that Lockstep reads, each with its type and meaning. `lockstep help
 * environment` prints them. */
#ifndef LOCKSTEP_ENVIRONMENT_H
#define LOCKSTEP_ENVIRONMENT_H

#include <lockstep/base.h>
#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef enum lk_environment_type {
    LK_ENVIRONMENT_TEXT,
    LK_ENVIRONMENT_PATH,
    LK_ENVIRONMENT_FLAG,    /* "" and 0 are off */
    LK_ENVIRONMENT_INTEGER, /* low … high */
    LK_ENVIRONMENT_NUMBER,  /* low … high */
    LK_ENVIRONMENT_PORTS    /* a port, or a range such as 4000-4100 */
} lk_environment_type;

typedef enum lk_environment_group {
    LK_ENVIRONMENT_SETTINGS, /* for users */
    LK_ENVIRONMENT_JOB,      /* set by a launcher for each rank */
    LK_ENVIRONMENT_SYSTEM,   /* used by other programs too */
    LK_ENVIRONMENT_CHECKS,   /* for tests, comparisons and debugging */
    LK_ENVIRONMENT_GROUPS
} lk_environment_group;

typedef struct lk_environment_variable {
    const char          *name;
    lk_environment_type  type;
    lk_environment_group group;
    double               low, high; /* the range of numbers and flags; if low == high, any value is valid */
    const char          *doc;
} lk_environment_variable;

LK_API const lk_environment_variable *lk_environment_at(int index); /* NULL past the last */

/* The value of a variable that lk_environment_at lists; NULL if it is not set. A context keeps the values from when it
 * was created, so change the environment before that. With context NULL, or in a process forked after the context was
 * created, the result is the current value. The result is valid while the context exists or, if it is a current value,
 * for as long as the result of getenv would be. */
LK_API const char *lk_environment_get(const lk_context *context, const char *name);

LK_END_DECLS
#endif
