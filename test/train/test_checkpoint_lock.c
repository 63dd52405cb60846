/* test_checkpoint_lock.c - a checkpoint directory has one writer at a time, whose lock ends with its process; and
 * lk_checkpoint_check tells beforehand whether a save would succeed. What a user does to the directory during a run
 * costs no step. */
#define _GNU_SOURCE
#include "checkpoint_rig.h"

#include "train/checkpoint.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- one writer ---- */

typedef struct holder {
    pid_t pid;
    int   ready, go; /* pipes: it holds the lock; it may end */
} holder;

/* A process that holds the lock of a directory until end_holder; with `child`, its own child shares the descriptors and
 * outlives it. */
static holder start_holder(const char *name, bool child)
{
    int    ready[2], go[2];
    holder h;
    REQUIRE(pipe(ready) == 0 && pipe(go) == 0);
    if ((h.pid = fork()) == 0) {
        rig      r;
        lk__lock lock;
        char     byte;
        close(go[1]);
        setenv("LOCKSTEP_DEVICE", "cpu", 1); /* what is forked cannot use a GPU that its parent has used */
        open_rig(&r);
        if (lk__lock_acquire(r.context, in_root(name), 0, &lock) < 0) _exit(1);
        if (child && fork() == 0) {
            (void)!read(go[0], &byte, 1); /* ends with the test */
            _exit(0);
        }
        (void)!write(ready[1], "x", 1);
        (void)!read(go[0], &byte, 1);
        lk__lock_release(&lock);
        close_rig(&r);
        _exit(0);
    }
    close(ready[1]);
    close(go[0]);
    h.ready = ready[0];
    h.go = go[1];
    char byte;
    REQUIRE(h.pid > 0 && read(h.ready, &byte, 1) == 1, "the holder did not get the lock");
    return h;
}

static void end_holder(holder *h, int signal)
{
    if (signal)
        kill(h->pid, signal);
    else
        (void)!write(h->go, "x", 1);
    waitpid(h->pid, NULL, 0);
}

static void close_holder(holder *h)
{
    close(h->ready);
    close(h->go);
}

static void check_refused(rig *r, const char *name, lk_status status, const holder *h)
{
    char host[256], expected[512];
    gethostname(host, sizeof host);
    snprintf(expected, sizeof expected, "%s is being written by another run (host %s, pid %ld, since 20", in_root(name),
             host, (long)h->pid);
    CHECK(status == LK_EINVAL && strstr(lk_context_error(r->context), expected), "%s: \"%s\", expected \"%s\"",
          lk_status_name(status), lk_context_error(r->context), expected);
}

static void a_second_writer_is_refused_with_the_holder_of_the_lock(void)
{
    rig         r;
    lk__lock    lock;
    lk_progress progress;
    open_rig(&r);
    REQUIRE(save_step(&r, "one", 4, 2) == LK_OK, "%s", lk_context_error(r.context));
    holder h = start_holder("one", false);
    check_refused(&r, "one", lk__lock_acquire(r.context, in_root("one"), 0, &lock), &h);
    CHECK(lock.fd < 0);
    check_refused(&r, "one", lk_checkpoint_check(r.context, in_root("one")), &h);
    CHECK(lk_checkpoint_load(r.store, in_root("one"), &progress) == LK_OK && progress.step == 4,
          "readers need no lock: %s", lk_context_error(r.context));
    CHECK(lk_weights_load(r.store, in_root("one")) == LK_OK, "%s", lk_context_error(r.context));
    end_holder(&h, 0);
    close_holder(&h);
    CHECK(lk_checkpoint_check(r.context, in_root("one")) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(save_step(&r, "one", 8, 2) == LK_OK, "%s", lk_context_error(r.context));
    close_rig(&r);
}

static void a_process_cannot_acquire_a_lock_twice(void)
{
    rig      r;
    lk__lock first, second;
    open_rig(&r);
    shell("mkdir twice");
    REQUIRE(lk__lock_acquire(r.context, in_root("twice"), 0, &first) == LK_OK, "%s", lk_context_error(r.context));
    check_refused(&r, "twice", lk__lock_acquire(r.context, in_root("twice"), 0, &second), &(holder){.pid = getpid()});
    CHECK(lk_checkpoint_check(r.context, in_root("twice")) == LK_EINVAL);
    CHECK(lk__lock_acquire(r.context, in_root("twice"), 0, &second) == LK_EINVAL, "the check released it");
    lk__lock_release(&first);
    lk__lock_release(&first);
    CHECK(lk__lock_acquire(r.context, in_root("twice"), 0, &second) == LK_OK, "%s", lk_context_error(r.context));
    lk__lock_release(&second);
    close_rig(&r);
}

static void a_kill_releases_the_lock_also_when_a_child_has_its_descriptors(void)
{
    rig r;
    open_rig(&r);
    shell("mkdir killed");
    for (int round = 0; round < 6; round++) { /* so that the lock also passes on from a second holder */
        holder h = start_holder("killed", round % 2);
        end_holder(&h, SIGKILL);
        CHECK(lk_checkpoint_check(r.context, in_root("killed")) == LK_OK, "turn %d: %s", round,
              lk_context_error(r.context));
        holder next = start_holder("killed", false);
        check_refused(&r, "killed", lk_checkpoint_check(r.context, in_root("killed")), &next);
        close_holder(&h);
        end_holder(&next, 0);
        close_holder(&next);
    }
    close_rig(&r);
}

static void a_forked_child_does_not_release_its_parents_lock(void)
{
    rig      r;
    lk__lock lock, other;
    open_rig(&r);
    shell("mkdir parent");
    REQUIRE(lk__lock_acquire(r.context, in_root("parent"), 0, &lock) == LK_OK);
    pid_t child = fork();
    if (child == 0) {
        lk__lock_release(&lock);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK(lk__lock_acquire(r.context, in_root("parent"), 0, &other) == LK_EINVAL, "the child released it");
    lk__lock_release(&lock);
    close_rig(&r);
}

static void a_restart_waits_for_the_lock_and_a_first_start_does_not(void)
{
    rig      r;
    lk__lock lock;
    open_rig(&r);
    shell("mkdir restart");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    unsetenv("SLURM_RESTART_COUNT");
    CHECK(lk__lock_timeout(NULL) == 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    CHECK(lk__lock_timeout(NULL) == 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    CHECK(lk__lock_timeout(NULL) == 10);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    setenv("SLURM_RESTART_COUNT", "1", 1);
    CHECK(lk__lock_timeout(NULL) == 10);
    unsetenv("SLURM_RESTART_COUNT");
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    holder h = start_holder("restart", false);
    pid_t  ender = fork();
    if (ender == 0) {
        usleep(200000);
        (void)!write(h.go, "x", 1);
        _exit(0);
    }
    CHECK(lk__lock_acquire(r.context, in_root("restart"), lk__lock_timeout(NULL), &lock) == LK_OK, "%s",
          lk_context_error(r.context));
    lk__lock_release(&lock);
    waitpid(ender, NULL, 0);
    waitpid(h.pid, NULL, 0);
    close_holder(&h);
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    close_rig(&r);
}

static void other_contents_of_the_lock_file_are_harmless(void)
{
    static const char *const texts[] = {
        "", "\n", "somebody's notes\n", "{\"byte\":-3}", "{\"byte\":1e9}", "[]", "{\"byte\":1,\"pid\":99,\"host\":7}"};
    rig      r;
    lk__lock lock;
    open_rig(&r);
    shell("mkdir odd");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        FILE *file = fopen(in_root("odd/.lockstep.lock"), "w");
        REQUIRE(file && fputs(texts[i], file) >= 0 && fclose(file) == 0);
        CHECK(lk__lock_acquire(r.context, in_root("odd"), 0, &lock) == LK_OK, "\"%s\": %s", texts[i],
              lk_context_error(r.context));
        lk__lock_release(&lock);
    }
    holder h = start_holder("odd", false);
    shell("printf '{\"host\":\"a\\\\u001b[31mb\",\"pid\":77,\"since\":\"\\\\u0007\",\"started\":\"\",\"boot\":\"\","
          "\"namespace\":\"\",\"byte\":1}' > odd/.lockstep.lock");
    CHECK(lk__lock_acquire(r.context, in_root("odd"), 0, &lock) == LK_EINVAL &&
              strstr(lk_context_error(r.context), "(host a?[31mb, pid 77, since ?)"),
          "%s", lk_context_error(r.context));
    end_holder(&h, 0);
    close_holder(&h);
    shell("rm odd/.lockstep.lock && ln -s ../elsewhere odd/.lockstep.lock");
    CHECK(lk__lock_acquire(r.context, in_root("odd"), 0, &lock) < 0 && access(in_root("elsewhere"), F_OK) != 0);
    shell("rm odd/.lockstep.lock && mkfifo odd/.lockstep.lock");
    CHECK(lk__lock_acquire(r.context, in_root("odd"), 0, &lock) == LK_EINVAL, "%s", lk_context_error(r.context));
    close_rig(&r);
}

/* ---- recovery ---- */

static bool is_there(const char *name) { return access(in_root(name), F_OK) == 0; }

/* What a writer has just created has no lock of its own yet. */
static void a_reader_removes_nothing_while_a_writer_holds_the_lock(void)
{
    static const char fresh[] = "read/step-00000009.tmp.77";
    rig               r;
    lk_progress       progress;
    int64_t           step;
    open_rig(&r);
    REQUIRE(save_step(&r, "read", 4, 2) == LK_OK, "%s", lk_context_error(r.context));
    shell("mkdir read/step-00000009.tmp.77");
    holder h = start_holder("read", false);
    CHECK(lk_checkpoint_load(r.store, in_root("read"), &progress) == LK_OK && progress.step == 4 && is_there(fresh));
    CHECK(lk_checkpoint_find(r.context, in_root("read"), &step) == LK_OK && step == 4 && is_there(fresh));
    end_holder(&h, SIGKILL);
    close_holder(&h);
    CHECK(lk_checkpoint_find(r.context, in_root("read"), &step) == LK_OK && step == 4 && !is_there(fresh),
          "a writer that has ended");
    close_rig(&r);
}

/* While a reader removes something, a writer waits for it; it recovers the directory itself once it has the lock. */
static void a_writer_waits_for_a_reader_and_recovers(void)
{
    rig      r;
    lk__lock lock;
    int      fd, second;
    open_rig(&r);
    REQUIRE(save_step(&r, "turn", 4, 2) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(lk__lock_idle_begin(in_root("turn"), &fd), "nobody holds the lock");
    CHECK(!lk__lock_idle_begin(in_root("turn"), &second), "two readers at once");
    shell("mv turn/step-00000004 turn/step-00000004.old.77 && mkdir turn/step-00000009.tmp.77");
    pid_t child = fork();
    if (child == 0) {
        setenv("LOCKSTEP_DEVICE", "cpu", 1);
        rig own;
        open_rig(&own);
        _exit(lk__checkpoint_open(own.context, &(lk__checkpoint_save){.directory = in_root("turn")}, 0, &lock) < 0);
    }
    usleep(200000);
    CHECK(is_there("turn/step-00000009.tmp.77"), "the writer did not wait");
    lk__lock_idle_end(fd);
    int code;
    waitpid(child, &code, 0);
    CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0, "the writer did not get the lock");
    CHECK(is_there("turn/step-00000004") && !is_there("turn/step-00000009.tmp.77"), "the writer did not recover");
    CHECK(!lk__lock_idle_begin(in_root("nowhere"), &fd));
    close_rig(&r);
}

/* ---- the directory of a run, changed by others while it runs ---- */

/* A trainer's saves: one lock for all of them. */
typedef struct writer {
    rig             rig;
    lk__lock        lock;
    lk__train_saver saver;
} writer;

static void open_writer(writer *w, const char *name)
{
    open_rig(&w->rig);
    REQUIRE(lk__checkpoint_open(w->rig.context, &(lk__checkpoint_save){.directory = in_root(name)}, 0, &w->lock) ==
                LK_OK,
            "%s", lk_context_error(w->rig.context));
    REQUIRE(lk__saver_init(&w->saver, w->rig.store) == LK_OK && lk__saver_buffer(&w->saver) == LK_OK);
    w->saver.lock = &w->lock;
}

static void close_writer(writer *w)
{
    lk__saver_free(&w->saver);
    lk__lock_release(&w->lock);
    close_rig(&w->rig);
}

static lk_status write_step(writer *w, const char *name, int64_t step)
{
    lk_progress progress = {step, 0, step * 4, 7};
    return lk__saver_save(&w->saver, in_root(name), &progress, 9);
}

static void a_directory_that_was_moved_away_is_created_and_locked_again(void)
{
    static const char *const changes[] = {"mv away away.1", "rm -rf away", "mv away away.2 && mkdir away",
                                          "rm away/.lockstep.lock",
                                          "rm away/.lockstep.lock && touch away/.lockstep.lock"};
    writer                   w;
    lk__lock                 second;
    open_writer(&w, "away");
    CHECK(write_step(&w, "away", 1) == LK_OK && w.rig.warnings == 0, "%s", lk_context_error(w.rig.context));
    for (int i = 0; i < 5; i++) {
        shell(changes[i]);
        w.rig.warnings = 0;
        CHECK(write_step(&w, "away", i + 2) == LK_OK, "%s: %s", changes[i], lk_context_error(w.rig.context));
        CHECK(w.rig.warnings == 1 && strstr(w.rig.warning, "during the run"), "%s: %d warnings, \"%s\"", changes[i],
              w.rig.warnings, w.rig.warning);
        CHECK(lk__lock_acquire(w.rig.context, in_root("away"), 0, &second) == LK_EINVAL, "%s: a second run is admitted",
              changes[i]);
    }
    CHECK(is_there("away.1/step-00000001") && is_there("away.2/step-00000003") && is_there("away/step-00000004") &&
          is_there("away/step-00000006"));
    close_writer(&w);
}

static void a_run_stops_where_the_name_of_its_directory_belongs_to_another(void)
{
    writer w;
    rig    r;
    open_rig(&r);
    open_writer(&w, "mine");
    CHECK(write_step(&w, "mine", 1) == LK_OK, "%s", lk_context_error(w.rig.context));
    shell("mv mine mine.1 && mkdir mine");
    holder h = start_holder("mine", false);
    CHECK(write_step(&w, "mine", 2) == LK_EIO && strstr(lk_context_error(w.rig.context), "moved away") &&
              strstr(lk_context_error(w.rig.context), "is being written by another run"),
          "%s", lk_context_error(w.rig.context));
    CHECK(!is_there("mine/step-00000002"), "it wrote where another run holds the lock");
    end_holder(&h, 0);
    close_holder(&h);
    REQUIRE(save_step(&r, "mine", 7, 2) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(write_step(&w, "mine", 2) == LK_EIO &&
              strstr(lk_context_error(w.rig.context), "now holds a checkpoint of another run (step 7)"),
          "%s", lk_context_error(w.rig.context));
    CHECK(!is_there("mine/step-00000002") && loaded_step(&r, "mine") == 7);
    CHECK(lk_checkpoint_check(r.context, in_root("mine")) == LK_OK, "it kept the lock of the other directory: %s",
          lk_context_error(r.context));
    close_writer(&w);
    close_rig(&r);
}

static void a_file_of_the_user_in_place_of_a_link_stays(void)
{
    writer w;
    char   text[16] = "";
    open_writer(&w, "own");
    CHECK(write_step(&w, "own", 1) == LK_OK && write_step(&w, "own", 2) == LK_OK);
    shell("echo mine > mine.txt && mv mine.txt own/model.safetensors");
    for (int i = 3; i < 5; i++) CHECK(write_step(&w, "own", i) == LK_OK, "%s", lk_context_error(w.rig.context));
    CHECK(w.rig.warnings == 1 && strstr(w.rig.warning, "own/model.safetensors is not a link created by a save"),
          "%d warnings, \"%s\"", w.rig.warnings, w.rig.warning);
    FILE *file = fopen(in_root("own/model.safetensors"), "r");
    CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "mine\n") == 0, "it was replaced: \"%s\"", text);
    if (file) fclose(file);
    shell("readlink own/state.json | grep -q step-00000004 && ! ls -A own | grep -q link");
    CHECK(loaded_step(&w.rig, "own") == 4);
    close_writer(&w);
}

/* A crash between two exchanges leaves the user's file under the name of a link that is being made. */
static void recovery_removes_links_alone(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "links", 4, 2) == LK_OK, "%s", lk_context_error(r.context));
    shell("cd links && ln -s step-00000004/state.json .link.999999991 && echo mine > .link.999999992");
    REQUIRE(save_step(&r, "links", 5, 2) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(!is_there("links/.link.999999991") && access(in_root("links/.link.999999992"), F_OK) == 0);
    close_rig(&r);
}

/* ---- lk_checkpoint_check ---- */

static void the_check_changes_nothing_and_finds_what_would_fail(void)
{
    rig r;
    open_rig(&r);
    shell("mkdir there && touch file");
    CHECK(lk_checkpoint_check(r.context, in_root("there/not/yet")) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(lk_checkpoint_check(r.context, in_root("there")) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(rmdir(in_root("there")) == 0, "something was created");
    CHECK(lk_checkpoint_check(r.context, in_root("file")) == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, in_root("file/below")) == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, "") == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, "relative/and/not/there") == LK_OK && access("relative", F_OK) != 0);
    shell("chmod 755 . && mkdir -m 555 sealed");
    pid_t child = fork();
    if (child == 0) { /* root may write anywhere */
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(77);
        bool refused = lk_checkpoint_check(r.context, in_root("sealed/run")) == LK_EIO &&
                       strstr(lk_context_error(r.context), "sealed is not writable: Permission denied");
        if (!refused) fprintf(stderr, "\"%s\"\n", lk_context_error(r.context));
        _exit(!refused);
    }
    int code;
    waitpid(child, &code, 0);
    CHECK(WIFEXITED(code) && (WEXITSTATUS(code) == 0 || WEXITSTATUS(code) == 77));
    close_rig(&r);
}

int main(void)
{
    make_root();
    RUN(a_second_writer_is_refused_with_the_holder_of_the_lock);
    RUN(a_process_cannot_acquire_a_lock_twice);
    RUN(a_kill_releases_the_lock_also_when_a_child_has_its_descriptors);
    RUN(a_forked_child_does_not_release_its_parents_lock);
    RUN(a_restart_waits_for_the_lock_and_a_first_start_does_not);
    RUN(other_contents_of_the_lock_file_are_harmless);
    RUN(a_reader_removes_nothing_while_a_writer_holds_the_lock);
    RUN(a_writer_waits_for_a_reader_and_recovers);
    RUN(a_directory_that_was_moved_away_is_created_and_locked_again);
    RUN(a_run_stops_where_the_name_of_its_directory_belongs_to_another);
    RUN(a_file_of_the_user_in_place_of_a_link_stays);
    RUN(recovery_removes_links_alone);
    RUN(the_check_changes_nothing_and_finds_what_would_fail);
    remove_root();
    return check_result();
}
