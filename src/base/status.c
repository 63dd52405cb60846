/* status.c - names of status codes, and the version. */
#include "base/base.h"

#include <lockstep/base.h>

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

const char *lk_version(void) { return LK_VERSION_STRING; }
