/* one_core.h - shared by tests of ranks that have no core free, on which gradients could be reduced while backward
 * runs. Define _GNU_SOURCE first. */
#ifndef ONE_CORE_H
#define ONE_CORE_H

#include "check.h"

#include <sched.h>

static void keep_one_core(void) /* of those that this process may use */
{
    cpu_set_t all, one;
    int       cpu = 0;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
}

#endif
