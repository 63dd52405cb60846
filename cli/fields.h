/* fields.h - fields of samples as one block of bytes, which one rank sends to the others. */
#ifndef FIELDS_H
#define FIELDS_H

#include <lockstep/data.h>

/* The bytes of `count` fields, newly allocated; NULL: no memory. */
char *fields_pack(const lk_field *fields, int count, size_t *bytes);
/* The fields in these bytes, newly allocated; their names point into the bytes. NULL: no memory. */
lk_field *fields_unpack(const char *bytes, size_t size, int *count);

#endif
