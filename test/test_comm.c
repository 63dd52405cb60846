/* test_comm.c - every collective over shared memory, and over nothing for one rank.   ctest: timeout 300, label threaded */
#define _GNU_SOURCE
#include "comm_cases.h"

#include "comm/shm.h"

static void   run(int size, void (*function)(rank_test *t)) { run_ranks(size, NULL, function, NULL); }
static size_t chunk(lk__kind kind, int size) { return (void)kind, (void)size, LK__CHUNK; }

int main(void)
{
    static const backend_case shm = {run, LK__SMALL, chunk, 4, false};
    return run_cases(&shm);
}
