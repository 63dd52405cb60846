/* status.c - names of status codes and element types. */
#include "base/base.h"

#include <lockstep/base.h>
#include <string.h>

const char *lk_status_name(lk_status status)
{
    switch (status) {
#define NAME_CASE(name, value, text) \
    case name: return #name;
        LK_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    }
    return "LK_E?";
}

const char *lk_status_text(lk_status status)
{
    switch (status) {
#define TEXT_CASE(name, value, text) \
    case name: return text;
        LK_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "an unknown status";
}

bool lk__status_exists(int32_t value)
{
    switch (value) {
#define EXISTS_CASE(name, value, text) \
    case value: return true;
        LK_STATUS_LIST(EXISTS_CASE)
#undef EXISTS_CASE
    }
    return false;
}

static const struct {
    const char *name;
    size_t      size;
} dtypes[LK_DTYPE_COUNT] = {
    [LK_F32] = {"f32", 4}, [LK_F64] = {"f64", 8}, [LK_BF16] = {"bf16", 2}, [LK_F16] = {"f16", 2},
    [LK_I8] = {"i8", 1},   [LK_U8] = {"u8", 1},   [LK_I32] = {"i32", 4},   [LK_I64] = {"i64", 8},
};

size_t lk_dtype_size(lk_dtype type) { return (unsigned)type < LK_DTYPE_COUNT ? dtypes[type].size : 0; }

const char *lk_dtype_name(lk_dtype type) { return (unsigned)type < LK_DTYPE_COUNT ? dtypes[type].name : "?"; }

bool lk_dtype_parse(const char *name, lk_dtype *type)
{
    for (int i = 0; i < LK_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *type = (lk_dtype)i;
            return true;
        }
    }
    return false;
}

const char *lk_version(void) { return LK_VERSION_STRING; }
