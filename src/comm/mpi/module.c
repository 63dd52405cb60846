/* module.c - the module that an MPI's mpicc compiles: a table of functions that wrap a few of MPI's. It allocates with
 * malloc, because what MPI still uses when a group fails must outlive the group's context. */
#include "comm/mpi/module.h"

#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct lk__mpi_group {
    MPI_Comm comm;
    int      rank, size, tags;
};

struct lk__mpi_request {
    int          count; /* of requests */
    MPI_Request *requests;
    int          size;           /* ranks of an exchange, or 0 */
    int *counts, *displacements; /* MPI reads them until it is done; `size` for sending, then `size` for receiving */
    MPI_Datatype *types;
};

enum { PIECE = 1 << 30 }; /* MPI counts in int */

/* MPI's state is global to the process, and so is this. */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static int             started, serialized, live, disorder, tags;
static pid_t           owner;

static void lock_mpi(void)
{
    if (serialized) pthread_mutex_lock(&guard);
}

static void unlock_mpi(void)
{
    if (serialized) pthread_mutex_unlock(&guard);
}

static int set_error(char *text, const char *what, int code)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int  length = 0;
    if (code != MPI_SUCCESS) MPI_Error_string(code, why, &length);
    snprintf(text, LK__MPI_TEXT, "%s%s%.300s", what, length ? ": " : "", why);
    return -1;
}

static void finalise(void)
{
    int finalised = 0;
    if (getpid() != owner || live || disorder) return;
    MPI_Finalized(&finalised);
    if (!finalised) MPI_Finalize();
}

static int start_once(char *text)
{
    int initialised = 0, finalised = 0, level = 0, found = 0, *most = NULL;
    MPI_Finalized(&finalised);
    if (finalised) return set_error(text, "the program has already finalised MPI", MPI_SUCCESS);
    MPI_Initialized(&initialised);
    if (!initialised) {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
        if (code != MPI_SUCCESS) return set_error(text, "MPI cannot be initialised", code);
        atexit(finalise);
    }
    owner = getpid();
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED)
        return set_error(text,
                         "MPI was initialised without thread support: call MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …), "
                         "or let Lockstep initialise it",
                         MPI_SUCCESS);
    serialized = level < MPI_THREAD_MULTIPLE;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    tags = found && *most > 0 ? *most : 32767;
    started = 1;
    return 0;
}

static int start_mpi(int *rank, int *size, char *text)
{
    pthread_mutex_lock(&guard);
    int status = started ? 0 : start_once(text);
    if (status == 0) {
        MPI_Comm_rank(MPI_COMM_WORLD, rank);
        MPI_Comm_size(MPI_COMM_WORLD, size);
    }
    pthread_mutex_unlock(&guard);
    return status;
}

/* Making a communicator, which MPI offers only as a blocking call: it runs in a thread, which is abandoned if it does
 * not return in time. The last user frees this. */
typedef struct joining {
    int            users; /* atomic */
    int            size, tag, code;
    int           *ranks;
    lk__mpi_group *group;
    sem_t          done;
} joining;

static void drop_joining(joining *j)
{
    if (__atomic_sub_fetch(&j->users, 1, __ATOMIC_SEQ_CST) > 0) return;
    sem_destroy(&j->done);
    free(j->ranks);
    free(j);
}

static void *join_main(void *argument)
{
    joining       *j = argument;
    lk__mpi_group *g = j->group;
    MPI_Group      world, some;
    lock_mpi();
    j->code = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (j->code == MPI_SUCCESS) {
        j->code = MPI_Group_incl(world, j->size, j->ranks, &some);
        MPI_Group_free(&world);
    }
    if (j->code == MPI_SUCCESS) {
        j->code = MPI_Comm_create_group(MPI_COMM_WORLD, some, j->tag % tags, &g->comm);
        MPI_Group_free(&some);
    }
    if (j->code == MPI_SUCCESS) j->code = MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    if (j->code == MPI_SUCCESS) {
        MPI_Comm_rank(g->comm, &g->rank);
        MPI_Comm_size(g->comm, &g->size);
    }
    unlock_mpi();
    sem_post(&j->done);
    drop_joining(j);
    return NULL;
}

static int join_wait(joining *j, double seconds, char *text)
{
    pthread_t       thread;
    struct timespec end;
    double          whole = (double)(long)seconds;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (long)((seconds - whole) * 1e9);
    end.tv_sec += (long)whole + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (pthread_create(&thread, NULL, join_main, j) != 0) {
        drop_joining(j);
        return set_error(text, "cannot start a thread to create a communicator", MPI_SUCCESS);
    }
    pthread_detach(thread);
    while (sem_timedwait(&j->done, &end) != 0)
        if (errno != EINTR) {
            snprintf(text, LK__MPI_TEXT,
                     "not all of the %d ranks joined within %.1f s, and MPI does not report which are missing", j->size,
                     seconds);
            return -1;
        }
    return j->code == MPI_SUCCESS ? 0 : set_error(text, "MPI cannot create a communicator", j->code);
}

static int join_group(const int *ranks, int size, int tag, double seconds, lk__mpi_group **made, char *text)
{
    joining *j = calloc(1, sizeof *j);
    if (j) {
        *j = (joining){.users = 2, .size = size, .tag = tag};
        j->ranks = calloc((size_t)size, sizeof *ranks);
        j->group = calloc(1, sizeof *j->group);
    }
    if (!j || !j->ranks || !j->group)
        return set_error(text, "out of memory: cannot create a communicator", MPI_SUCCESS);
    memcpy(j->ranks, ranks, (size_t)size * sizeof *ranks);
    sem_init(&j->done, 0, 0);
    __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
    int status = join_wait(j, seconds, text);
    if (status == 0) {
        j->group->tags = tags;
        *made = j->group;
    } else {
        __atomic_store_n(&disorder, 1, __ATOMIC_SEQ_CST); /* a communicator that it may have made is leaked */
    }
    drop_joining(j);
    return status;
}

static void leave_group(lk__mpi_group *g, int in_order)
{
    if (in_order) {
        lock_mpi();
        MPI_Comm_free(&g->comm); /* local in all implementations, though the standard does not require it */
        unlock_mpi();
        free(g);
        __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
    } else {
        __atomic_store_n(&disorder, 1, __ATOMIC_SEQ_CST);
    }
}

/* ---- requests ---- */

static void free_request(lk__mpi_request *r)
{
    if (!r) return;
    for (int i = 0; i < 2 * r->size; i++)
        if (r->types[i] != MPI_BYTE) {
            lock_mpi();
            MPI_Type_free(&r->types[i]);
            unlock_mpi();
        }
    free(r->requests);
    free(r->counts);
    free(r->displacements);
    free(r->types);
    free(r);
}

static lk__mpi_request *make_request(int count, int size)
{
    size_t           twice = 2 * (size_t)size;
    lk__mpi_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->requests = calloc((size_t)count, sizeof *r->requests);
    if (size) {
        r->counts = calloc(twice, sizeof *r->counts);
        r->displacements = calloc(twice, sizeof *r->displacements);
        r->types = calloc(twice, sizeof *r->types);
    }
    if (!r->requests || (size && (!r->counts || !r->displacements || !r->types))) {
        free_request(r);
        return NULL;
    }
    r->size = size;
    for (size_t i = 0; i < twice; i++) r->types[i] = MPI_BYTE;
    for (int i = 0; i < count; i++) r->requests[i] = MPI_REQUEST_NULL;
    return r;
}

static int test_request(lk__mpi_request *r, char *text)
{
    int done = 1, code = MPI_SUCCESS;
    lock_mpi();
    for (int i = 0; i < r->count && done && code == MPI_SUCCESS; i++)
        /* a request that is done becomes MPI_REQUEST_NULL */
        code = MPI_Test(&r->requests[i], &done, MPI_STATUS_IGNORE);
    unlock_mpi();
    return code == MPI_SUCCESS ? done != 0 : set_error(text, "MPI failed to transfer the data", code);
}

static int begin_all_gather(lk__mpi_group *g, const void *mine, void *all, size_t bytes, lk__mpi_request **made,
                            char *text)
{
    lk__mpi_request *r = make_request(1, 0);
    if (!r || bytes > PIECE / (size_t)g->size) {
        free_request(r);
        return set_error(text, "out of memory: cannot allocate a request", MPI_SUCCESS);
    }
    lock_mpi();
    int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, g->comm, &r->requests[r->count++]);
    unlock_mpi();
    if (code == MPI_SUCCESS) {
        *made = r;
        return 0;
    }
    free_request(r);
    return set_error(text, "MPI_Iallgather", code);
}

/* Blocks may be anywhere in memory and of any length, so each has its own type, which contains its address. */
static int block_type(const void *data, size_t bytes, int *count, MPI_Datatype *type)
{
    if (bytes == 0) return MPI_SUCCESS;
    size_t    pieces = (bytes + PIECE - 1) / PIECE;
    int      *lengths = calloc(pieces, sizeof *lengths);
    MPI_Aint *at = calloc(pieces, sizeof *at);
    int       code = MPI_ERR_NO_MEM;
    if (lengths && at) {
        for (size_t i = 0; i < pieces; i++) {
            lengths[i] = (int)(bytes - i * PIECE < PIECE ? bytes - i * PIECE : PIECE);
            MPI_Get_address((const char *)data + i * PIECE, &at[i]);
        }
        code = MPI_Type_create_hindexed((int)pieces, lengths, at, MPI_BYTE, type);
        if (code == MPI_SUCCESS) code = MPI_Type_commit(type);
        if (code == MPI_SUCCESS) *count = 1;
    }
    free(lengths);
    free(at);
    return code;
}

static int begin_exchange(lk__mpi_group *g, const lk__mpi_part *parts, lk__mpi_request **made, char *text)
{
    lk__mpi_request *r = make_request(1, g->size);
    int              n = g->size, code = MPI_SUCCESS;
    if (!r) return set_error(text, "out of memory: cannot allocate a request", MPI_SUCCESS);
    lock_mpi();
    for (int i = 0; i < n && code == MPI_SUCCESS; i++) {
        if (i == g->rank) continue;
        code = block_type(parts[i].send, parts[i].send_bytes, &r->counts[i], &r->types[i]);
        if (code == MPI_SUCCESS)
            code = block_type(parts[i].recv, parts[i].recv_bytes, &r->counts[n + i], &r->types[n + i]);
    }
    if (code == MPI_SUCCESS)
        code = MPI_Ialltoallw(MPI_BOTTOM, r->counts, r->displacements, r->types, MPI_BOTTOM, r->counts + n,
                              r->displacements + n, r->types + n, g->comm, &r->requests[r->count++]);
    unlock_mpi();
    if (code == MPI_SUCCESS) {
        *made = r;
        return 0;
    }
    free_request(r);
    return set_error(text, "MPI_Ialltoallw", code);
}

/* Pieces of one message have one tag: MPI keeps their order. */
static int begin_message(lk__mpi_group *g, int peer, uint64_t id, const void *out, void *in, size_t bytes,
                         lk__mpi_request **made, char *text)
{
    int              pieces = (int)((bytes + PIECE - 1) / PIECE), code = MPI_SUCCESS;
    lk__mpi_request *r = make_request(pieces ? pieces : 1, 0);
    if (!r) return set_error(text, "out of memory: cannot allocate a request", MPI_SUCCESS);
    int tag = (int)(id % (uint64_t)g->tags);
    lock_mpi();
    for (size_t at = 0; at < bytes && code == MPI_SUCCESS; at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        code = out ? MPI_Isend((const char *)out + at, n, MPI_BYTE, peer, tag, g->comm, &r->requests[r->count])
                   : MPI_Irecv((char *)in + at, n, MPI_BYTE, peer, tag, g->comm, &r->requests[r->count]);
        r->count++;
    }
    unlock_mpi();
    *made = r; /* also on failure: an earlier piece may be in flight */
    return code == MPI_SUCCESS ? 0 : set_error(text, out ? "MPI_Isend" : "MPI_Irecv", code);
}

static int send_message(lk__mpi_group *g, int peer, uint64_t id, const void *data, size_t bytes, lk__mpi_request **r,
                        char *text)
{
    return begin_message(g, peer, id, data, NULL, bytes, r, text);
}

static int receive_message(lk__mpi_group *g, int peer, uint64_t id, void *data, size_t bytes, lk__mpi_request **r,
                           char *text)
{
    return begin_message(g, peer, id, NULL, data, bytes, r, text);
}

__attribute__((visibility("default"))) const lk__mpi_module *lockstep_mpi_module(void);
const lk__mpi_module                                        *lockstep_mpi_module(void)
{
    static const lk__mpi_module table = {LK__MPI_VERSION, start_mpi,    join_group,      leave_group,  begin_all_gather,
                                         begin_exchange,  send_message, receive_message, test_request, free_request};
    return &table;
}
