/* base.h - what every other header needs: status codes, element types, call sites. */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LK_VERSION_MAJOR 0
#define LK_VERSION_MINOR 1
#define LK_VERSION_PATCH 0
#define LK_VERSION_STRING "0.1.0"

#define LK_API __attribute__((visibility("default")))

#ifdef __cplusplus
#define LK_BEGIN_DECLS extern "C" {
#define LK_END_DECLS }
/* Named options: a compound literal in C, a braced temporary in C++ (`.name = value` needs C++20). */
#define LK_OPTIONS(type, ...) (type{__VA_ARGS__})
/* Follows each field that may be omitted. In C an omitted field is zero; in C++ this macro initialises it, so that
 * -Wextra does not warn. */
#define LK_ZERO {}
#else
#define LK_BEGIN_DECLS
#define LK_END_DECLS
/* No ## here: it would prevent the expansion of arguments that themselves use this macro. */
#define LK_OPTIONS(type, ...) ((type){.reserved = 0, __VA_ARGS__})
#define LK_ZERO
#endif

LK_BEGIN_DECLS

/* Structs with a `size` are configs: their …_INIT sets `size`, and all other fields to their defaults. In programs
 * compiled with an older header the size is smaller, and the missing fields get their defaults. A larger struct, from a
 * newer header, is accepted if it sets nothing that this version lacks. Other structs do not change within 0.1, and
 * `reserved` fields must be zero. */

/* 0 is success, a negative value is a failure, and a positive one reports an end. lk_status_name and the docs are
 * generated from this list. */
#define LK_STATUS_LIST(X)                                                          \
    X(LK_END, 1, "the end of the epoch or the listing")                            \
    X(LK_OK, 0, "success")                                                         \
    X(LK_EINVAL, -1, "an invalid argument: a value, name or shape")                \
    X(LK_ENOMEM, -2, "out of memory")                                              \
    X(LK_EIO, -3, "reading or writing failed")                                     \
    X(LK_EFORMAT, -4, "a file that is truncated, damaged or of another kind")      \
    X(LK_ENOENT, -5, "nothing has that name")                                      \
    X(LK_EMISMATCH, -6, "two things that must agree do not")                       \
    X(LK_ENAN, -7, "a number became infinite or NaN")                              \
    X(LK_EUNSUPPORTED, -8, "not in this build or not on this machine")             \
    X(LK_ETIMEOUT, -9, "a deadline passed")                                        \
    X(LK_ECANCELED, -10, "stopped on request")                                     \
    X(LK_ETOOLARGE, -11, "more memory is needed than this machine has available")

typedef enum lk_status {
#define LK_STATUS_ENUM(name, value, text) name = value,
    LK_STATUS_LIST(LK_STATUS_ENUM)
#undef LK_STATUS_ENUM
} lk_status;

LK_API const char *lk_status_name(lk_status status); /* "LK_EINVAL" */
LK_API const char *lk_status_text(lk_status status); /* its description in the list above */

typedef enum lk_dtype { LK_F32, LK_F64, LK_BF16, LK_F16, LK_I8, LK_U8, LK_I32, LK_I64, LK_DTYPE_COUNT } lk_dtype;

LK_API size_t      lk_dtype_size(lk_dtype type); /* bytes of one element; 0 for an unknown type */
LK_API const char *lk_dtype_name(lk_dtype type); /* "f32" */
LK_API bool        lk_dtype_parse(const char *name, lk_dtype *type);

#define LK_MAX_RANK 6 /* maximum number of axes of a tensor */

/* The source location of a call in the user's program. */
typedef struct lk_site {
    const char *file;
    int         line;
} lk_site;
#ifdef __cplusplus
#define LK_HERE (lk_site{__FILE__, __LINE__})
#else
#define LK_HERE ((lk_site){__FILE__, __LINE__})
#endif

LK_API const char *lk_version(void); /* LK_VERSION_STRING of the library that was linked */

LK_END_DECLS
#endif
