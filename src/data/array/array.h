/* data/array/array.h - arrays in files of other programs, and their conversion to the fields of a data set. */
#ifndef LK__ARRAY_H
#define LK__ARRAY_H

#include "base/dtype.h"
#include "data/array/map.h"
#include "data/dataset.h"
#include "data/labels.h"

#include <stdio.h>

/* Types that values may have, and types that only files have: the columns of base/dtype_list.h. */
#define LK__ARRAY_TYPES(X)                                                                                            \
    X(BOOL, bool, 1, INTEGER, U8, uint8_t, uint8_t, LK__ARRAY_IS_TRUE, LK__ARRAY_IS_TRUE, "BOOL", 8, "b1", "bool")    \
    X(U16, u16, 2, INTEGER, U16, uint16_t, uint16_t, LK__AS_IS, LK__AS_IS, NULL, 0, "u2", "uint16")                   \
    X(I16, i16, 2, INTEGER, I16, int16_t, int16_t, LK__AS_IS, LK__AS_IS, NULL, 0, "i2", "int16")                      \
    X(U32, u32, 4, INTEGER, U32, uint32_t, uint32_t, LK__AS_IS, LK__AS_IS, NULL, 0, "u4", "uint32")                   \
    LK__DTYPE_LIST(X)
#define LK__ARRAY_IS_TRUE(x) ((x) != 0)
typedef enum lk__array_type {
#define LK__ARRAY_ENUM(id, ...) LK__ARRAY_##id,
    LK__ARRAY_TYPES(LK__ARRAY_ENUM)
#undef LK__ARRAY_ENUM
        LK__ARRAY_TYPE_COUNT
} lk__array_type;

const char *lk__array_type_name(lk__array_type type);  /* NumPy's */
const char *lk__array_type_numpy(lk__array_type type); /* "f4"; NULL: it has none */
size_t      lk__array_type_size(lk__array_type type);
bool        lk__array_type_is_float(lk__array_type type);

enum { LK__ARRAY_NAME = 64, LK__ARRAY_MOST = 256 }; /* bytes of a name with its NUL; arrays in a file */

typedef struct lk__array {
    const char          *file;                 /* for messages; borrowed */
    char                 name[LK__ARRAY_NAME]; /* in the file */
    bool                 alone;                /* the file holds nothing else: messages do not show the name */
    lk__array_type       type;
    int                  rank; /* 1 … LK_MAX_RANK: the first axis counts samples */
    int64_t              dims[LK_MAX_RANK];
    size_t               size; /* bytes, row-major, little-endian */
    const unsigned char *data; /* not necessarily aligned */
    /* Deflated: data has `stored` bytes, which inflate to `skip` bytes, then the array; crc is of all of these. */
    bool     deflated;
    size_t   stored, skip;
    uint32_t crc;
} lk__array;

/* Sets array->size from type and dims. LK_EFORMAT: no rows, more axes than supported, or too large to address. */
lk_status lk__array_measure(lk_context *context, lk__array *array);

/* How messages name it: its file, and its name if the file holds several. */
enum { LK__ARRAY_SHOWN = LK__PATH + LK__ARRAY_NAME + 16 };
const char *lk__array_show(const lk__array *array, char out[LK__ARRAY_SHOWN]);

/* ---- read.c: elements. ---- */

/* All elements as `type`: f32 from any; i32 and i64 from integers that fit (see lk__array_field_type); u8 from u8. */
lk_status lk__array_read(lk_context *context, const lk__array *array, lk_dtype type, void *out);
/* (N, H, W, C) as (N, C, H, W). */
lk_status lk__array_read_channels_first(lk_context *context, const lk__array *array, unsigned char *out);
/* LK_EFORMAT if one of the array's elements, now in column, is infinite or NaN: the message names its row. */
lk_status lk__array_check_finite(lk_context *context, const lk__array *array, const float *column);

/* What the values of labels are. */
typedef struct lk__array_labels {
    bool   whole;   /* all are whole numbers, and so class numbers unless regression is requested */
    double largest; /* of them; at least 0 */
} lk__array_labels;
/* LK_EFORMAT for NaN and infinite values and for negative class numbers: the message names the row. */
lk_status lk__array_survey_labels(lk_context *context, const lk__array *array, bool regression,
                                  lk__array_labels *labels);

/* For labels of known classes, by number: labels of other classes are refused, or noted to be left out. */
lk_status lk__array_check_classes(lk_context *context, const lk__array *array, lk__labels *known);
/* LK_EFORMAT: an element is not an i32, the message names its row. */
lk_status lk__array_check_i32(lk_context *context, const lk__array *array);

/* ---- fields.c: data sets. ---- */

typedef struct lk__array_list {
    const char      *kind; /* the name of the format */
    const lk__array *arrays;
    int              count;
    lk__map          maps[2]; /* the first may own the bytes of all arrays, the second the bytes of the labels */
} lk__array_list;

/* A data set of the arrays that belong to the split: by their names, which array is which field. Takes the maps, also
 * on failure. LK_END: there is no test set. */
lk_status lk__array_dataset(lk_context *context, const lk__data_request *request, lk__array_list *list,
                            lk_dataset **dataset);

/* ---- File formats. ---- */

typedef struct lk__array_npy {
    const unsigned char *bytes;
    size_t               available; /* from the beginning of the file, with its header */
    size_t               whole;     /* of the file */
} lk__array_npy;

/* Reads the header of a .npy file: type, dims, size, and *begin, where the data starts. As many bytes as it declares
 * must follow it, and no more. */
lk_status lk__npy_parse(lk_context *context, const lk__array_npy *file, lk__array *array, size_t *begin);

/* The same for bytes in memory: takes map. The request's rest is the file's name, for messages. */
lk_status lk__npz_dataset(lk_context *context, const lk__data_request *request, lk__map map, lk_dataset **dataset);

#endif
