/* transport.c - the values of --backend. */
#include "transport.h"

#include <lockstep/transport.h>

static const char *find_transport(int index, int one_rank)
{
    lk_transport t = LK_TRANSPORT_INIT;
    if (index-- == 0) return "auto";
    for (int i = 0; lk_transport_at(i, &t) == LK_OK; i++)
        if ((one_rank || !t.one_rank) && index-- == 0) return t.name;
    return NULL;
}

const char *transport_of_ranks(int index) { return find_transport(index, 0); }
const char *transport_of_groups(int index) { return find_transport(index, 1); }
