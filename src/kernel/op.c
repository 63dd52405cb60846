/* op.c - names of operations. */
#include "kernel/op.h"

const char *lk__op_name(lk__op op)
{
    static const char *const names[] = {
#define OP_NAME(name) #name,
        LK__OP_LIST(OP_NAME)
#undef OP_NAME
    };
    return (unsigned)op < LK__OP_COUNT ? names[op] : "?";
}
