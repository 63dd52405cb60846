/* test_data_callbacks.c - loaders of samples that callbacks provide: errors name the sample, slow workers time out, and
 * workers that compute are counted.
 *
 * ctest: label threaded */
#define _GNU_SOURCE
#include "loader_data.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct source {
    int64_t     bad_sample, bad_label, held_sample;
    atomic_int  calls;
    atomic_bool held;     /* held_sample is not read while this is set */
    int         sleep_ms; /* for each sample */
    atomic_int  counted;  /* lk__context_reading in the latest call */
} source;

static lk_status get_sample(void *user, int64_t index, void *const *fields)
{
    source  *s = user;
    float   *features = fields[0];
    int32_t *label = fields[1];
    atomic_store(&s->counted, lk__context_reading(context));
    atomic_fetch_add(&s->calls, 1);
    nanosleep(&(struct timespec){0, s->sleep_ms * 1000000L}, NULL);
    while (index == s->held_sample && atomic_load(&s->held)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (index == s->bad_sample) return LK_EIO;
    for (int k = 0; k < 4; k++) features[k] = (float)(index * 4 + k);
    *label = index == s->bad_label ? 9 : (int32_t)(index % 3);
    return LK_OK;
}

static lk_dataset *make_callbacks(source *s, int64_t count)
{
    lk_field                    fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {4}},
                                            {.name = "label", .dtype = LK_I32, .classes = 3}};
    lk_dataset_callbacks_config c = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_dataset                 *d;
    c.count = count, c.fields = fields, c.fields_count = 2, c.get = get_sample, c.user = s;
    CHECK_OK(context, lk_dataset_from_callbacks(context, &c, &d));
    return d;
}

static void callbacks_provide_samples(void)
{
    for (int variant = 0; variant < 8; variant++) { /* with and without workers, f64, normalising */
        source           s = {.bad_sample = -1, .bad_label = -1, .held_sample = -1};
        lk_dataset      *d = make_callbacks(&s, 41);
        lk_loader       *loader;
        lk_batch         b;
        lk_loader_config c = LK_LOADER_CONFIG_INIT;
        float            direct[4];
        int32_t          label;
        CHECK_OK(context, get_pair(d, 40, direct, &label));
        CHECK(direct[0] == 160 && direct[3] == 163 && label == 1);
        c.dataset = d, c.batch = 6, c.workers = variant % 2 * 3, c.dtype = variant & 2 ? LK_F64 : LK_F32;
        if (variant & 4) c.transform.channels = 1, c.transform.mean[0] = 2, c.transform.std[0] = 4;
        CHECK_OK(context, lk_loader_create(context, &c, &loader));
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == lk_loader_bytes(&c));
        int64_t at = 0;
        while (lk_loader_next(loader, &b) == LK_OK) {
            for (int64_t i = 0; i < b.count; i++, at++) {
                CHECK(b.indices[i] == at && ((const int32_t *)b.fields[1])[i] == at % 3);
                for (int k = 0; k < 4; k++) {
                    double wanted = (double)(at * 4 + k);
                    if (variant & 4) wanted = (wanted - 2) / 4;
                    CHECK(wanted == (variant & 2 ? ((const double *)b.fields[0])[i * 4 + k]
                                                 : ((const float *)b.fields[0])[i * 4 + k]));
                }
            }
        }
        CHECK(at == 41);
        lk_loader_free(loader);
        lk_dataset_free(d);
    }
}

static void errors_name_the_sample_and_repeat(void)
{
    for (int workers = 0; workers < 4; workers += 3)
        for (int kind = 0; kind < 2; kind++) {
            source           s = {.bad_sample = kind ? -1 : 17, .bad_label = kind ? 17 : -1, .held_sample = -1};
            lk_dataset      *d = make_callbacks(&s, 40);
            lk_loader       *loader;
            lk_batch         b;
            lk_loader_config c = LK_LOADER_CONFIG_INIT;
            c.dataset = d, c.batch = 5, c.workers = workers;
            CHECK_OK(context, lk_loader_create(context, &c, &loader));
            for (int i = 0; i < 3; i++) CHECK_OK(context, lk_loader_next(loader, &b)); /* 0 … 14 are fine */
            for (int again = 0; again < 2; again++) {
                if (kind)
                    CHECK_FAILS(context, lk_loader_next(loader, &b), LK_EINVAL, "sample 17 ", "label 9", "position 15",
                                "0 to 2");
                else
                    CHECK_FAILS(context, lk_loader_next(loader, &b), LK_EIO, "sample 17 ", "callback", "LK_EIO",
                                "position 15");
                CHECK(!b.fields && lk_loader_position(loader) == 15);
            }
            CHECK_OK(context, lk_loader_seek(loader, 0, 18)); /* the user may skip it */
            CHECK_OK(context, lk_loader_next(loader, &b));
            CHECK(b.indices[0] == 18);
            lk_loader_free(loader);
            lk_dataset_free(d);
        }
    /* A label of borrowed arrays changes later. */
    float                    features[8] = {0};
    int32_t                  labels[8] = {0};
    lk_dataset_arrays_config a = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_loader_config         c = LK_LOADER_CONFIG_INIT;
    lk_dataset              *d;
    lk_loader               *loader;
    lk_batch                 b;
    lk_field                 fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {1}},
                                         {.name = "label", .dtype = LK_I32, .classes = 2}};
    a.count = 8, a.fields = fields, a.fields_count = 2, a.data = (const void *[]){features, labels};
    CHECK_OK(context, lk_dataset_from_arrays(context, &a, &d));
    labels[6] = 2;
    c.dataset = d, c.batch = 8;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    CHECK_FAILS(context, lk_loader_next(loader, &b), LK_EINVAL, "sample 6 ", "label 2");
    lk_loader_free(loader);
    lk_dataset_free(d);
}

static void slow_workers_time_out_and_freeing_stops_them(void)
{
    source           s = {.bad_sample = -1, .bad_label = -1, .held_sample = 12, .held = true};
    lk_dataset      *d = make_callbacks(&s, 1000);
    lk_loader       *loader;
    lk_batch         b;
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 10, c.workers = 1, c.timeout_ms = 50;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (lk_loader_next(loader, &b) == LK_ETIMEOUT) continue; /* the machine may be busy */
    CHECK(b.indices[0] == 0 && b.count == 10);
    do { /* until the worker has come to sample 12 */
        CHECK_FAILS(context, lk_loader_next(loader, &b), LK_ETIMEOUT, "position 10", "did not finish");
    } while (atomic_load(&s.calls) < 13);
    CHECK_FAILS(context, lk_loader_next(loader, &b), LK_ETIMEOUT, "sample 12", "position 10", "did not finish");
    atomic_store(&s.held, false);
    while (lk_loader_next(loader, &b) == LK_ETIMEOUT)
        continue; /* the batch becomes ready later, and is the right one */
    CHECK(b.indices[0] == 10 && b.count == 10);
    lk_loader_free(loader);
    lk_dataset_free(d);

    /* Two workers in the middle of batches of 500 slow samples, which take 10 s: freeing waits for one sample of each,
     * not for the batches. */
    s = (source){.bad_sample = -1, .bad_label = -1, .held_sample = -1, .sleep_ms = 20};
    d = make_callbacks(&s, 1000);
    c.dataset = d, c.batch = 500, c.workers = 2;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (atomic_load(&s.calls) < 2) nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK_OK(context, lk_loader_seek(loader, 3, 0));
    lk_loader_free(loader);
    CHECK(atomic_load(&s.calls) < 1000); /* not all samples were read */
    lk_dataset_free(d);
}

/* Reads a batch that takes 0.2 s, with a limit of 2 s; a byte into the pipe says that it begins. */
static lk_status read_one_batch(int pipe)
{
    source           s = {.bad_sample = -1, .bad_label = -1, .held_sample = -1, .sleep_ms = 20};
    lk_dataset      *d = make_callbacks(&s, 10);
    lk_loader       *loader;
    lk_batch         b;
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 10, c.workers = 1, c.timeout_ms = 2000;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (atomic_load(&s.calls) < 1) nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(write(pipe, "", 1) == 1);
    lk_status status = lk_loader_next(loader, &b);
    lk_loader_free(loader);
    lk_dataset_free(d);
    return status;
}

static void time_while_the_process_is_stopped_does_not_count(void)
{
    int   pipes[2], result;
    char  byte;
    pid_t child;
    CHECK(pipe(pipes) == 0 && (child = fork()) >= 0);
    if (child == 0) _exit(read_one_batch(pipes[1]) == LK_OK ? 0 : 1);
    CHECK(read(pipes[0], &byte, 1) == 1 && kill(child, SIGSTOP) == 0);
    CHECK(waitpid(child, &result, WUNTRACED) == child && WIFSTOPPED(result));
    nanosleep(&(struct timespec){2, 500000000}, NULL); /* longer than the limit */
    CHECK(kill(child, SIGCONT) == 0 && waitpid(child, &result, 0) == child);
    CHECK(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    close(pipes[0]), close(pipes[1]);
}

/* Calls lk_loader_next until the source has had so many calls. */
static void read_calls(lk_loader *loader, source *s, int calls)
{
    lk_batch b;
    while (atomic_load(&s->calls) < calls) CHECK(lk_loader_next(loader, &b) >= 0);
}

static void workers_that_compute_are_counted_and_those_that_wait_are_not(void)
{
    source           s = {.bad_sample = -1, .bad_label = -1, .held_sample = -1};
    lk_dataset      *d = make_callbacks(&s, 1000);
    lk_loader       *loader;
    lk_batch         b;
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 10, c.workers = 1;
    CHECK(lk__context_reading(context) == 0);
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (atomic_load(&s.calls) < 30) nanosleep(&(struct timespec){0, 1000000}, NULL); /* all slots */
    while (lk__context_reading(context) > 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
    lk_loader_free(loader);
    /* One that has not finished a batch yet counts; one whose first batch took 10 ms for each sample does not. */
    s = (source){.bad_sample = -1, .bad_label = -1, .held_sample = -1, .sleep_ms = 10};
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (atomic_load(&s.calls) == 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(atomic_load(&s.counted) == 1);
    read_calls(loader, &s, 25);
    CHECK(atomic_load(&s.counted) == 0);
    lk_loader_free(loader);
    CHECK(lk__context_reading(context) == 0);
    lk_dataset_free(d);
    /* Copies of samples in memory are not counted. */
    c.dataset = d = make_counting(100000, 3), c.batch = 50000;
    CHECK_OK(context, lk_loader_create(context, &c, &loader));
    while (lk_loader_next(loader, &b) == LK_OK) CHECK(lk__context_reading(context) == 0);
    lk_loader_free(loader);
    lk_dataset_free(d);
}

int main(void)
{
    context = make_context();
    RUN(callbacks_provide_samples);
    RUN(errors_name_the_sample_and_repeat);
    RUN(slow_workers_time_out_and_freeing_stops_them);
    RUN(time_while_the_process_is_stopped_does_not_count);
    RUN(workers_that_compute_are_counted_and_those_that_wait_are_not);
    free_context(context);
    return 0;
}
