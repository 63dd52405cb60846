/* rank_sums.c - a program for the tests of launchers: sums of known numbers for so many seconds, in the world and in
 * halves of it, by whatever the environment says about ranks. The last rank kills itself in the midst when it is told
 * to.
 *
 *     rank_sums BACKEND|- SECONDS COUNT [kill] */
#include <lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int has_mpi(void) /* whether it was loaded: no MPI is linked */
{
    char  line[4096];
    int   found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, "/libmpi") != NULL;
    if (maps) fclose(maps);
    return found;
}

static lk_status sum(lk_comm *comm, int number, int all, double *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = (double)number * (double)(i % 97 + 1);
    lk_status status = lk_comm_all_reduce(comm, x, x, count, LK_F64, LK_SUM, NULL);
    for (size_t i = 0; status >= 0 && i < count; i++)
        if (x[i] != (double)all * (double)(i % 97 + 1)) {
            printf("wrong sum at %zu: %g\n", i, x[i]);
            exit(2);
        }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 64;
    double         seconds = atof(argv[2]), end = 0;
    size_t         count = (size_t)atol(argv[3]);
    lk_context    *context;
    lk_comm       *comm = NULL, *half = NULL;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    double        *x = malloc(count * sizeof *x);
    char           host[64] = "";
    long           rounds = 0;
    int            rank = -1, size = 0, all = 0, of_half = 0;
    gethostname(host, sizeof host - 1);
    if (!x || lk_context_create(NULL, &context) < 0) return 1;
    config.backend = strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    config.join_ms = 20000;
    lk_status status = lk_comm_create(context, &config, &comm);
    if (status >= 0) {
        rank = lk_comm_rank(comm);
        size = lk_comm_size(comm);
        for (int i = 0; i < size; i++) all += i + 1, of_half += i % 2 == rank % 2 ? i + 1 : 0;
        status = lk_comm_split(comm, rank % 2, rank, &half);
    }
    for (end = now() + seconds; status >= 0; rounds++) {
        int32_t more = now() < end || rounds == 0;
        if (rounds == 1 && rank == 0) printf("under way\n"), fflush(stdout);
        if (argc > 4 && now() > end - seconds / 2 && rank == size - 1) raise(SIGKILL);
        if ((status = lk_comm_all_reduce(comm, &more, &more, 1, LK_I32, LK_MIN, NULL)) < 0 || !more) break;
        status = sum(comm, rank + 1, all, x, count);
        if (status >= 0) status = sum(half, rank + 1, of_half, x, count);
    }
    if (status < 0)
        printf("failed %s %s\n", lk_status_name(status), lk_context_error(context));
    else
        printf("rank %d of %d on %s, %d of %d here, %s%s: right\n", rank, size, host, lk_comm_local_rank(comm),
               lk_comm_local_size(comm), lk_comm_backend(comm), has_mpi() ? " with MPI" : "");
    fflush(stdout);
    lk_comm_free(half);
    lk_comm_free(comm);
    lk_context_free(context);
    free(x);
    return status < 0;
}
