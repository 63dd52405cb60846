/* data/csv/class_names.h - the distinct names among text labels, each with a number. Class k is the k-th name in sorted
 * order. */
#ifndef LK__CLASS_NAMES_H
#define LK__CLASS_NAMES_H

#include "base/base.h"

typedef struct lk__class_names {
    lk_context  *context;
    char        *text; /* all names, each with its NUL */
    size_t       used, capacity;
    size_t      *offsets; /* of name i in text */
    size_t       offsets_capacity;
    int32_t     *slots; /* a hash table of name numbers + 1 */
    size_t       slots_count;
    int          count, most; /* of names; most 0: LK__CLASS_NAMES_MOST */
    const char **sorted; /* `count` of them, once they are sorted */
    int32_t     *classes; /* by name number: its place among the sorted */
} lk__class_names;

enum { LK__CLASS_NAMES_MOST = 65536 };

/* The number of the name, which is added if it is new. LK_END: there would be more than `most`. */
lk_status lk__class_names_add(lk__class_names *names, const char *name, size_t length);
/* No more names after this. */
lk_status lk__class_names_sort(lk__class_names *names);
lk_status lk__class_names_keep_order(lk__class_names *names); /* instead: class k is the k-th that was added */
int32_t   lk__class_names_find(const lk__class_names *names, const char *name, size_t length); /* the class; -1: none */
void      lk__class_names_free(lk__class_names *names);

#endif
