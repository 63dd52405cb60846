/* test_comm_groups.c - groups that are split from a group: they share its connections and its memory, run their
 * operations at once with those of the others, and fail alone. Over tcp, shared memory and both, between processes;
 * and, when mpirun starts it with the argument mpi, as one of four ranks of that world. ctest: timeout 200, ranks 4 */
#define _GNU_SOURCE
#include "comm_ranks.h"

#include "comm/abort.h"
#include "comm/comm.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

typedef struct backend {
    const char *name;
    int         each; /* ranks of a simulated host; 0: all on this one */
} backend;

static const backend tcp = {"tcp", 0}, shm = {"shm", 0}, mixed = {"mixed", 2};

/* Runs function on `size` ranks that are processes. A rank that kills itself is `victim`; -1: none. */
static void run_processes(const backend *b, int size, int victim, void (*function)(rank_test *t))
{
    static int jobs;
    char       job[64], host[32];
    pid_t      pids[8];
    check_ranks_announced(size);
    snprintf(job, sizeof job, "groups-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", job, 1);
    fflush(NULL);
    for (int i = 0; i < size; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0);
        if (pids[i]) continue;
        rank_test t = {.rank = i, .size = size, .function = function, .config = LK_COMM_CONFIG_INIT};
        alarm(150);
        check_failures = 0;
        if (b->each) {
            snprintf(host, sizeof host, "host-%d", i / b->each);
            setenv("LOCKSTEP_HOST_ID", host, 1);
        }
        t.config.backend = b->name;
        t.config.rank = i;
        t.config.world = size;
        t.config.join_ms = 60000;
        t.config.timeout_ms = 60000;
        t.user = (void *)b;
        rank_main(&t);
        fflush(NULL);
        _exit(check_result());
    }
    for (int i = 0; i < size; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        CHECK(i == victim ? WIFSIGNALED(status) : status == 0, "%s: rank %d of %d ended with %x", b->name, i, size,
              status);
    }
}

/* ---- what a split opens ---- */

static int count_tasks(void)
{
    DIR *folder = opendir("/proc/self/task");
    int  count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static int count_mappings(void)
{
    char  line[512];
    int   count = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) count += strstr(line, "memfd:lockstep") != NULL;
    if (f) fclose(f);
    return count;
}

/* Without it (before Linux 5.14) a lack of memory could not be reported, and groups share new memory. */
static bool takes_pages_on_request(void)
{
    char *page = aligned_alloc(65536, 65536);
    bool  takes = page && madvise(page, 65536, 23 /* MADV_POPULATE_WRITE */) == 0;
    free(page);
    return takes;
}

static void check_sum(rank_test *t, lk_comm *group, int32_t want)
{
    int32_t sum = t->rank + 1;
    REQUIRE(lk_comm_all_reduce(group, &sum, &sum, 1, LK_I32, LK_SUM, NULL) == LK_OK, "%s", lk_comm_error(group));
    CHECK(sum == want, "rank %d: %d, not %d", t->rank, sum, want);
}

enum { SPLITS = 6 };

static void count_what_splits_open(rank_test *t)
{
    const backend *b = t->user;
    lk_comm       *groups[SPLITS], *inner;
    int            descriptors = open_descriptors(), tasks = count_tasks(), mappings = count_mappings();
    if (b == &tcp) /* one for control messages and one for data to each rank; the epoll set and two that wake */
        CHECK(descriptors >= 2 * (t->size - 1) + 3 && descriptors < 2 * (t->size - 1) + 3 + 16, "%d", descriptors);
    for (int i = 0; i < SPLITS; i++) {
        int colour = i % 2 ? t->rank % 2 : t->rank / 2;
        REQUIRE(lk_comm_split(t->comm, colour, i % 3 ? t->rank : -t->rank, &groups[i]) == LK_OK, "%s",
                lk_context_error(t->context));
        check_sum(t, groups[i], i % 2 ? 4 + 2 * colour : 3 + 4 * colour);
    }
    REQUIRE(lk_comm_split(groups[0], 0, 0, &inner) == LK_OK, "%s", lk_context_error(t->context));
    check_sum(t, inner, 3 + 4 * (t->rank / 2));
    for (int i = 0; i < 2000 && count_tasks() > tasks; i++) usleep(1000); /* one that made a communicator of MPI ends */
    CHECK(open_descriptors() == descriptors && count_tasks() == tasks,
          "%s: %d descriptors and %d threads, not %d and %d", b->name, open_descriptors(), count_tasks(), descriptors,
          tasks);
    if (takes_pages_on_request())
        CHECK(count_mappings() == mappings, "%s: %d mappings, not %d", b->name, count_mappings(), mappings);
    for (int i = 0; i < SPLITS; i++) lk_comm_free(groups[i]);
    check_sum(t, inner, 3 + 4 * (t->rank / 2));
    lk_comm_free(inner);
    check_sum(t, t->comm, 10);
    CHECK(open_descriptors() <= descriptors && count_tasks() <= tasks); /* others may have left */
}

static void a_split_opens_nothing_and_starts_no_thread(void)
{
    run_processes(&tcp, 4, -1, count_what_splits_open);
    run_processes(&shm, 4, -1, count_what_splits_open);
    run_processes(&mixed, 4, -1, count_what_splits_open);
}

/* More groups than the parent's memory has room for, made and freed again and again. */
static void split_many_times(rank_test *t)
{
    lk_comm *groups[40];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++)
            REQUIRE(lk_comm_split(t->comm, t->rank % 2, 0, &groups[i]) == LK_OK, "%s", lk_context_error(t->context));
        for (int i = 0; i < 40; i++) check_sum(t, groups[i], t->rank % 2 ? 6 : 4);
        for (int i = 0; i < 40; i++) lk_comm_free(groups[(i * 7 + t->rank) % 40]);
    }
    check_sum(t, t->comm, 10);
}

static void groups_without_number_are_made_and_freed(void)
{
    run_processes(&tcp, 4, -1, split_many_times);
    run_processes(&shm, 4, -1, split_many_times);
}

/* ---- operations at once ---- */

typedef struct member {
    lk_comm *group;
    int      first, count; /* its ranks in the world: first … first + count - 1 */
    int32_t *reduced, *gathered, *cast;
    lk_work *works[3];
    size_t   n;
} member;

static int32_t datum_of(int rank, int which, int round, size_t i)
{
    return (int32_t)(number_bits((uint64_t)(rank * 1000 + which * 100 + round), i) % 1000000);
}

static void fill_member(member *m, int rank, int which, int round, size_t n)
{
    int mine = rank - m->first;
    m->n = n;
    for (size_t i = 0; i < n; i++) {
        m->reduced[i] = datum_of(rank, which, round, i);
        m->gathered[(size_t)mine * n + i] = m->reduced[i];
        m->cast[i] = mine == round % m->count ? m->reduced[i] : -1;
    }
}

static void check_member(const member *m, int which, int round)
{
    size_t bad = 0;
    for (size_t i = 0; i < m->n; i++) {
        int32_t sum = 0;
        for (int r = 0; r < m->count; r++) {
            int32_t one = datum_of(m->first + r, which, round, i);
            sum += one;
            bad += m->gathered[(size_t)r * m->n + i] != one;
            if (r == round % m->count) bad += m->cast[i] != one;
        }
        bad += m->reduced[i] != sum;
    }
    CHECK(bad == 0, "group %d, round %d, %zu elements: %zu are wrong", which, round, m->n, bad);
}

static void start_work(member *m, int kind, int round)
{
    lk_work **work = &m->works[kind];
    int       mine = lk_comm_rank(m->group);
    lk_status status =
        kind == 0   ? lk_comm_all_reduce(m->group, m->reduced, m->reduced, m->n, LK_I32, LK_SUM, work)
        : kind == 1 ? lk_comm_all_gather(m->group, m->gathered + (size_t)mine * m->n, m->gathered, m->n, LK_I32, work)
                    : lk_comm_broadcast(m->group, m->cast, m->n, LK_I32, round % m->count, work);
    REQUIRE(status == LK_OK, "%s", lk_comm_error(m->group));
}

enum { MOST = 400000, ROUNDS = 12 };

static void open_member(rank_test *t, member *m, int first, int count)
{
    bool in = t->rank >= first && t->rank < first + count;
    *m = (member){.first = first, .count = count};
    if (count == t->size)
        m->group = t->comm;
    else
        REQUIRE(lk_comm_split(t->comm, in ? 0 : -1, 0, &m->group) == LK_OK, "%s", lk_context_error(t->context));
    m->reduced = calloc(MOST, 4);
    m->gathered = calloc((size_t)MOST * (size_t)count, 4);
    m->cast = calloc(MOST, 4);
}

static void close_member(rank_test *t, member *m)
{
    if (m->group != t->comm) lk_comm_free(m->group);
    free(m->reduced);
    free(m->gathered);
    free(m->cast);
}

/* The world, and two groups that overlap. Within a group all ranks have one order; across groups every rank has
 * another. */
static void run_at_once(rank_test *t)
{
    member members[3];
    open_member(t, &members[0], 0, t->size);
    open_member(t, &members[1], 0, 3);
    open_member(t, &members[2], 1, 3);
    for (int round = 0; round < ROUNDS; round++) {
        static const size_t counts[] = {MOST, 3, 5000, 70001, 200003};
        for (int g = 0; g < 3; g++)
            if (members[g].group) fill_member(&members[g], t->rank, g, round, counts[(round + g) % 5]);
        for (int k = 0; k < 9; k++) { /* groups in another order on every rank; kinds of a group in one */
            int g = (k + t->rank + round) % 3;
            if (members[g].group) start_work(&members[g], k / 3, round);
        }
        for (int k = 0; k < 9; k++) {
            int g = (k + 2 * t->rank) % 3;
            if (members[g].group)
                REQUIRE(lk_work_wait(members[g].works[k / 3]) == LK_OK, "%s", lk_comm_error(members[g].group));
        }
        for (int g = 0; g < 3; g++)
            if (members[g].group) check_member(&members[g], g, round);
    }
    for (int g = 0; g < 3; g++) close_member(t, &members[g]);
}

static void operations_of_overlapping_groups_run_at_once(void)
{
    run_processes(&tcp, 4, -1, run_at_once);
    run_processes(&shm, 4, -1, run_at_once);
    run_processes(&mixed, 4, -1, run_at_once);
}

/* ---- sends and receives of two groups ---- */

static void exchange_messages(rank_test *t)
{
    enum { N = 300000 };
    lk_comm *group;
    int32_t *out[2] = {calloc(N, 4), calloc(N, 4)}, *in[2] = {calloc(N, 4), calloc(N, 4)};
    lk_work *works[4];
    int      peer = t->rank ^ 1;
    REQUIRE(lk_comm_split(t->comm, t->rank / 2, 0, &group) == LK_OK, "%s", lk_context_error(t->context));
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < 2; k++) { /* rank 0 begins with the world, rank 1 with the group; both have the same tag */
            int      g = (k + t->rank) % 2;
            lk_comm *c = g ? group : t->comm;
            for (int i = 0; i < N; i++) out[g][i] = datum_of(t->rank, g, round, (size_t)i);
            REQUIRE(lk_comm_send(c, out[g], N, LK_I32, g ? peer % 2 : peer, 7, &works[2 * k]) == LK_OK);
            REQUIRE(lk_comm_recv(c, in[g], N, LK_I32, g ? peer % 2 : peer, 7, &works[2 * k + 1]) == LK_OK);
        }
        for (int k = 0; k < 4; k++) REQUIRE(lk_work_wait(works[k]) == LK_OK, "%s", lk_context_error(t->context));
        for (int g = 0; g < 2; g++) {
            int bad = 0;
            for (int i = 0; i < N; i++) bad += in[g][i] != datum_of(peer, g, round, (size_t)i);
            CHECK(bad == 0, "group %d: %d are wrong", g, bad);
        }
    }
    lk_comm_free(group);
    for (int g = 0; g < 2; g++) free(out[g]), free(in[g]);
}

static void messages_of_two_groups_do_not_mix(void)
{
    run_processes(&tcp, 4, -1, exchange_messages);
    run_processes(&mixed, 4, -1, exchange_messages);
}

/* ---- failure ---- */

static void check_world(rank_test *t, int round)
{
    member m;
    open_member(t, &m, 0, t->size);
    fill_member(&m, t->rank, 0, round, 150001);
    for (int k = 0; k < 3; k++) start_work(&m, k, round);
    for (int k = 0; k < 3; k++) REQUIRE(lk_work_wait(m.works[k]) == LK_OK, "%s", lk_comm_error(t->comm));
    check_member(&m, 0, round);
    close_member(t, &m);
}

/* A large operation of a child is aborted at any point; what is halfway over the connections must not reach the
 * parent. */
static void abort_children(rank_test *t)
{
    enum { N = 1 << 20 };
    int32_t *data = calloc(4 * N, 4);
    for (int round = 0; round < 8; round++) {
        lk_comm *group;
        lk_work *work = NULL;
        REQUIRE(lk_comm_split(t->comm, 0, t->rank, &group) == LK_OK, "%s", lk_context_error(t->context));
        REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK); /* all have the group before one aborts it */
        lk_status status = round % 2 ? lk_comm_all_reduce(group, data, data, 4 * N, LK_I32, LK_SUM, &work)
                                     : lk_comm_all_gather(group, data + t->rank * N, data, N, LK_I32, &work);
        CHECK(status == LK_OK || status == LK_ECANCELED, "%s",
              lk_status_name(status)); /* it may have been aborted already */
        if (t->rank == round % t->size) {
            usleep((useconds_t)(number_bits(7, (uint64_t)round) % 6000));
            lk_comm_abort(group, "for the test");
        }
        if (status >= 0) status = lk_work_wait(work);
        CHECK(status == LK_OK || status == LK_ECANCELED, "%s", lk_status_name(status));
        if (status < 0)
            CHECK(strstr(lk_comm_error(group), "aborted the group: for the test"), "%s", lk_comm_error(group));
        if (round % 3) lk_comm_free(group);
        check_world(t, round);
        if (round % 3 == 0) lk_comm_free(group);
    }
    free(data);
}

static void a_child_that_fails_leaves_the_parent_intact(void)
{
    run_processes(&tcp, 4, -1, abort_children);
    run_processes(&shm, 3, -1, abort_children);
    run_processes(&mixed, 4, -1, abort_children);
}

/* Rank 1 dies in a collective of ranks 0, 1, 2. Ranks 2 and 3 have a group without it. */
static void die_in_a_child(rank_test *t)
{
    enum { N = 1 << 20 };
    member   pair;
    lk_comm *three;
    int32_t *data = calloc(N, 4);
    REQUIRE(lk_comm_split(t->comm, t->rank < 3 ? 0 : -1, 0, &three) == LK_OK, "%s", lk_context_error(t->context));
    open_member(t, &pair, 2, 2);
    for (int i = 0; i < 20 && three; i++) {
        if (t->rank == 1 && i == 5) {
            lk_work *work;
            (void)lk_comm_all_reduce(three, data, data, N, LK_I32, LK_SUM, &work);
            usleep(1500);
            raise(SIGKILL);
        }
        lk_status status = lk_comm_all_reduce(three, data, data, N, LK_I32, LK_SUM, NULL);
        if (status >= 0) continue;
        CHECK(status == LK_EIO && strstr(lk_comm_error(three), "rank 1 of 3") && strstr(lk_comm_error(three), "died"),
              "rank %d: %s", t->rank, lk_comm_error(three));
        break;
    }
    if (three) CHECK(lk_comm_status(three) < 0);
    for (int round = 0; round < 3 && pair.group; round++) {
        fill_member(&pair, t->rank, 2, round, 200003);
        for (int k = 0; k < 3; k++) start_work(&pair, k, round);
        for (int k = 0; k < 3; k++) REQUIRE(lk_work_wait(pair.works[k]) == LK_OK, "%s", lk_comm_error(pair.group));
        check_member(&pair, 2, round);
    }
    lk_status status = lk_comm_barrier(t->comm, NULL);
    CHECK(status == LK_EIO && strstr(lk_comm_error(t->comm), "rank 1 of 4"), "rank %d: %s", t->rank,
          lk_comm_error(t->comm));
    lk_comm_free(three);
    close_member(t, &pair);
    free(data);
}

static void a_rank_that_dies_fails_every_group_that_has_it_and_no_other(void)
{
    run_processes(&tcp, 4, 1, die_in_a_child);
    run_processes(&shm, 4, 1, die_in_a_child);
    run_processes(&mixed, 4, 1, die_in_a_child);
}

/* Rank 2 dies instead of splitting: the others are told so, also those that would not be in a group with it. */
static void die_in_a_split(rank_test *t)
{
    lk_comm *group = NULL;
    if (t->rank == 2) raise(SIGKILL);
    lk_status status = lk_comm_split(t->comm, t->rank % 2, 0, &group);
    CHECK(status == LK_EIO && !group && strstr(lk_context_error(t->context), "rank 2 of 4"), "rank %d: %s", t->rank,
          lk_context_error(t->context));
}

static void a_rank_that_dies_in_a_split_is_named(void)
{
    run_processes(&tcp, 4, 2, die_in_a_split);
    run_processes(&shm, 4, 2, die_in_a_split);
    run_processes(&mixed, 4, 2, die_in_a_split);
}

/* Ranks 0 and 2 have a group, and 2 and 3. Rank 3 does not come; rank 2 waits for it, and therefore comes to no call
 * with rank 0, whose deadline passes first. Rank 2 gives up its other groups when one has failed, as a program does. */
enum { DEADLINE_MS = 1500, LATER_MS = 400 };

static void wait_for_a_rank_that_waits(rank_test *t)
{
    lk_comm *even, *high;
    int32_t  x = 1;
    t->comm->timeout_ms = DEADLINE_MS; /* of the groups that are split from it, too */
    REQUIRE(lk_comm_split(t->comm, t->rank % 2 ? -1 : 0, 0, &even) == LK_OK, "%s", lk_context_error(t->context));
    REQUIRE(lk_comm_split(t->comm, t->rank >= 2 ? 0 : -1, 0, &high) == LK_OK, "%s", lk_context_error(t->context));
    if (t->rank == 0) {
        double begin = lk__now();
        CHECK(lk_comm_all_reduce(even, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_ECANCELED, "%s", lk_comm_error(even));
        CHECK(strstr(lk_comm_error(even), "rank 1 of 2 aborted the group: rank 1 of 2 ("), "%s", lk_comm_error(even));
        CHECK(lk__now() - begin < 2 * DEADLINE_MS / 1e3 + 1);
    } else if (t->rank == 2) {
        usleep(LATER_MS * 1000);
        CHECK(lk_comm_all_reduce(high, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_ETIMEOUT, "%s", lk_comm_error(high));
        CHECK(high->cause.rank == 3, "rank %d", (int)high->cause.rank);
        lk_comm_abort(even, lk_comm_error(high));
    } else if (t->rank == 3) {
        usleep((LATER_MS + 2 * DEADLINE_MS) * 1000);
    }
    lk_comm_free(even);
    lk_comm_free(high);
}

/* One that waits elsewhere for nobody who is late is: the longer time has an end. */
static void wait_for_a_rank_that_waits_longer(rank_test *t)
{
    lk_comm *even, *high;
    int32_t  x = 1;
    t->comm->timeout_ms = DEADLINE_MS;
    REQUIRE(lk_comm_split(t->comm, t->rank % 2 ? -1 : 0, 0, &even) == LK_OK, "%s", lk_context_error(t->context));
    t->comm->timeout_ms = 60000;
    REQUIRE(lk_comm_split(t->comm, t->rank >= 2 ? 0 : -1, 0, &high) == LK_OK, "%s", lk_context_error(t->context));
    if (t->rank == 0) {
        double begin = lk__now();
        CHECK(lk_comm_all_reduce(even, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_ETIMEOUT, "%s", lk_comm_error(even));
        CHECK(strstr(lk_comm_error(even), "waits in another group; "), "%s", lk_comm_error(even));
        CHECK(lk__now() - begin >= 1.9 * DEADLINE_MS / 1e3, "%g s", lk__now() - begin);
    } else if (t->rank >= 2) {
        if (t->rank == 3) usleep(3 * DEADLINE_MS * 1000);
        CHECK(lk_comm_all_reduce(high, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_OK, "%s", lk_comm_error(high));
    }
    lk_comm_free(even);
    lk_comm_free(high);
}

static void a_rank_that_waits_in_another_group_is_not_the_cause(void)
{
    run_processes(&shm, 4, -1, wait_for_a_rank_that_waits);
    run_processes(&tcp, 4, -1, wait_for_a_rank_that_waits);
    run_processes(&shm, 4, -1, wait_for_a_rank_that_waits_longer);
    run_processes(&tcp, 4, -1, wait_for_a_rank_that_waits_longer);
}

/* ---- freeing ---- */

static void free_the_parent_first(rank_test *t)
{
    member   three;
    lk_comm *all;
    open_member(t, &three, 0, 3);
    REQUIRE(lk_comm_split(t->comm, 0, 0, &all) == LK_OK);
    if (t->rank == 3) usleep(50000); /* the others free their parent before */
    lk_comm_free(t->comm);
    t->comm = all; /* freed by rank_main, after `three` or before */
    for (int round = 0; round < 3 && three.group; round++) {
        fill_member(&three, t->rank, 1, round, 200003);
        for (int k = 0; k < 3; k++) start_work(&three, k, round);
        for (int k = 0; k < 3; k++) REQUIRE(lk_work_wait(three.works[k]) == LK_OK, "%s", lk_comm_error(three.group));
        check_member(&three, 1, round);
    }
    lk_comm *last;
    REQUIRE(lk_comm_split(all, t->rank % 2, 0, &last) == LK_OK, "%s", lk_context_error(t->context));
    check_sum(t, last, t->rank % 2 ? 6 : 4);
    check_sum(t, all, 10);
    lk_comm_free(last);
    close_member(t, &three);
}

static void a_parent_may_be_freed_before_its_children(void)
{
    run_processes(&tcp, 4, -1, free_the_parent_first);
    run_processes(&shm, 4, -1, free_the_parent_first);
    run_processes(&mixed, 4, -1, free_the_parent_first);
}

/* ---- under mpirun: this process is one rank ---- */

static int run_launched(void)
{
    static const backend mpi = {"mpi", 0};
    const char          *ompi = getenv("OMPI_COMM_WORLD_RANK"), *rank = ompi ? ompi : getenv("PMI_RANK");
    REQUIRE(rank, "not started by mpirun");
    void (*const functions[])(rank_test * t) = {count_what_splits_open, run_at_once, exchange_messages};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        rank_test t = {.rank = atoi(rank), .size = 4, .function = functions[i], .config = LK_COMM_CONFIG_INIT};
        t.config.backend = "mpi";
        t.config.join_ms = 60000;
        t.user = (void *)&mpi;
        rank_main(&t);
    }
    return check_result();
}

/* ---- symmetric memory of a larger group ---- */

enum { ADOPTED = 50000 }; /* elements of a part */

/* Every rank of `part` gets the sum of its own part. */
static void scatter_sums(const rank_test *t, lk_comm *part, float *x)
{
    int size = lk_comm_size(part), own = lk_comm_rank(part);
    for (int i = 0; i < size * ADOPTED; i++) x[i] = (float)(t->rank + i % 7);
    REQUIRE(lk_comm_barrier(part, NULL) == LK_OK);
    REQUIRE(lk_comm_reduce_scatter(part, x, x + (size_t)own * ADOPTED, ADOPTED, LK_F32, LK_SUM, NULL) == LK_OK, "%s",
            lk_comm_error(part));
    for (int i = own * ADOPTED; i < (own + 1) * ADOPTED; i += 911) {
        float sum = 0;
        for (int k = 0; k < size; k++) sum += (float)(t->rank % 2 + 2 * k + i % 7);
        CHECK(x[i] == sum, "element %d is %g, not %g", i, (double)x[i], (double)sum);
    }
}

static void use_memory_of_all(rank_test *t)
{
    lk_comm *part;
    void    *memory;
    REQUIRE(lk_comm_alloc(t->comm, (size_t)t->size * ADOPTED * sizeof(float), &memory) == LK_OK);
    REQUIRE(lk_comm_split(t->comm, t->rank % 2, t->rank, &part) == LK_OK);
    uint64_t before = part->backend->sent(part);
    scatter_sums(t, part, memory);
    CHECK(part->backend->sent(part) > before, "it is copied: the group does not know the memory");
    REQUIRE(lk__comm_adopt(part, t->comm, memory) == LK_OK, "%s", lk_context_error(t->context));
    before = part->backend->sent(part);
    scatter_sums(t, part, memory);
    CHECK(part->backend->sent(part) == before, "it is copied");
    float *x = memory;
    for (int i = 0; i < ADOPTED; i++) x[i] = (float)t->rank;
    REQUIRE(lk_comm_all_reduce(part, x, x, ADOPTED, LK_F32, LK_SUM, NULL) == LK_OK);
    for (int i = 0; i < ADOPTED; i += 911) CHECK(x[i] == (t->rank % 2 ? 4 : 2), "%g", (double)x[i]);
    CHECK(lk_comm_all_reduce(part, x, x, (size_t)t->size * ADOPTED + 1, LK_F32, LK_SUM, NULL) == LK_EINVAL,
          "more than there is");
    lk_comm_release(part, memory); /* forgotten: it is the other group's */
    before = part->backend->sent(part);
    scatter_sums(t, part, memory);
    CHECK(part->backend->sent(part) > before);
    REQUIRE(lk__comm_adopt(part, t->comm, memory) == LK_OK);
    lk_comm_free(part); /* with memory that it has adopted */
    lk_comm_release(t->comm, memory);
}

static void a_part_of_a_group_uses_its_symmetric_memory(void) { run_processes(&shm, 4, -1, use_memory_of_all); }

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "mpi") == 0) return run_launched();
    RUN(a_split_opens_nothing_and_starts_no_thread);
    RUN(groups_without_number_are_made_and_freed);
    RUN(operations_of_overlapping_groups_run_at_once);
    RUN(messages_of_two_groups_do_not_mix);
    RUN(a_child_that_fails_leaves_the_parent_intact);
    RUN(a_rank_that_dies_fails_every_group_that_has_it_and_no_other);
    RUN(a_rank_that_dies_in_a_split_is_named);
    RUN(a_rank_that_waits_in_another_group_is_not_the_cause);
    RUN(a_parent_may_be_freed_before_its_children);
    RUN(a_part_of_a_group_uses_its_symmetric_memory);
    return check_result();
}
