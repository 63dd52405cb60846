/* base/axes.h - sets of axes of a mesh, as used by groups: bit i is axis i. One axis by itself may be factored: of 8
 * ranks along it, groups of 2 neighbours each, or 4 ranks that have the same position in these groups. */
#ifndef LK__AXES_H
#define LK__AXES_H

#include <stddef.h>

enum { LK__AXES = 5, LK__AXES_PLAIN = (1 << LK__AXES) - 1, LK__AXES_ACROSS = 1 << 7, LK__AXES_SHIFT = 8 };
extern const char *const lk__axis_names[LK__AXES];

/* Groups of `count` ranks that are next to each other along the axis. */
static inline unsigned lk__axes_neighbours(unsigned axis, int count)
{
    return axis | (unsigned)count << LK__AXES_SHIFT;
}
/* Groups of the ranks that have the same place in such groups. */
static inline unsigned lk__axes_across(unsigned axis, int count)
{
    return axis | LK__AXES_ACROSS | (unsigned)count << LK__AXES_SHIFT;
}

/* The set without its factor, and the factor, which is 0 for a set that is not factored. */
static inline unsigned lk__axes_plain(unsigned axes) { return axes & LK__AXES_PLAIN; }
static inline int      lk__axes_factor(unsigned axes) { return (int)(axes >> LK__AXES_SHIFT); }

/* "data × tensor", "tensor in groups of 2", "tensor in steps of 2" */
const char *lk__axes_text(unsigned axes, char *text, size_t bytes);

#endif
