/* test_checkpoint.c - a checkpoint directory has one writer; saving touches nothing of the user's; a kill at any system call of a
 * save leaves only whole checkpoints; and what is not as it was saved is skipped.
 *
 * ctest: timeout 240 */
#define _GNU_SOURCE
#include "check.h"

#include "base/hash.h"
#include "train/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lockstep.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

/* In memory where that can be: some hundred saves are flushed to disk. */
static void make_root(void)
{
    static const char *const places[] = {"/dev/shm", "/tmp"};
    char                    *made = NULL;
    for (int i = 0; i < 2 && !made; i++) {
        snprintf(root, sizeof root, "%s/lockstep-checkpoint-XXXXXX", places[i]);
        made = mkdtemp(root);
    }
    REQUIRE(made != NULL);
}

/* ---- a small store, and what the log said ---- */

typedef struct rig {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    int         warnings;
    char        warning[2048];
} rig;

static void keep_warning(void *user, lk_log_level level, const char *text)
{
    rig *r = user;
    if (level != LK_LOG_WARNING) return;
    r->warnings++;
    snprintf(r->warning, sizeof r->warning, "%s", text);
}

static void open_rig(rig *r)
{
    lk_context_config   config = LK_CONTEXT_CONFIG_INIT;
    lk_plan_config      plan = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    int64_t             dims[] = {4, 6};
    *r = (rig){0};
    config.threads = 1;
    config.log = keep_warning;
    config.log_user = r;
    REQUIRE(lk_context_create(&config, &r->context) == LK_OK);
    REQUIRE(lk_graph_create(r->context, LK_F32, &r->graph) == LK_OK);
    lk_tensor x = lk_input(r->graph, "features", LK_F32, 2, dims),
              labels = lk_input(r->graph, "labels", LK_I32, 1, dims);
    plan.loss = lk_cross_entropy(lk_linear(x, "fc", 3), labels);
    plan.optimizer = &optimizer;
    REQUIRE(lk_plan_create(r->graph, &plan, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_store_create(r->plan, 1, &r->store) == LK_OK);
}

static void close_rig(rig *r)
{
    lk_store_free(r->store);
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    lk_context_free(r->context);
}

static const char *in_root(const char *name)
{
    static char paths[8][512];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void shell(const char *command)
{
    char line[1024];
    snprintf(line, sizeof line, "cd %s && %s", root, command);
    REQUIRE(system(line) == 0, "%s", line);
}

static lk_status save_step(rig *r, const char *name, int64_t step, int keep)
{
    lk_progress progress = {step, step / 10, step * 4, 7};
    return lk_checkpoint_save(r->store, in_root(name), &progress, keep);
}

static int64_t loaded_step(rig *r, const char *name)
{
    lk_progress progress;
    return lk_checkpoint_load(r->store, in_root(name), &progress) == LK_OK ? progress.step : -1;
}

/* ---- one writer ---- */

typedef struct holder {
    pid_t pid;
    int   ready, go; /* pipes: it has the lock; it may end */
} holder;

/* A process that holds the lock of a directory until it is told to end; with `child`, one that shares its descriptors outlives it. */
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
        open_rig(&r);
        if (lk__lock_take(r.context, in_root(name), 0, &lock) < 0) _exit(1);
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

static void a_second_writer_is_refused_and_told_who_holds_the_lock(void)
{
    rig         r;
    lk__lock    lock;
    lk_progress progress;
    open_rig(&r);
    REQUIRE(save_step(&r, "one", 4, 2) == LK_OK, "%s", lk_context_error(r.context));
    holder h = start_holder("one", false);
    check_refused(&r, "one", lk__lock_take(r.context, in_root("one"), 0, &lock), &h);
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

static void a_process_is_refused_what_it_holds_already(void)
{
    rig      r;
    lk__lock first, second;
    open_rig(&r);
    shell("mkdir twice");
    REQUIRE(lk__lock_take(r.context, in_root("twice"), 0, &first) == LK_OK, "%s", lk_context_error(r.context));
    check_refused(&r, "twice", lk__lock_take(r.context, in_root("twice"), 0, &second), &(holder){.pid = getpid()});
    CHECK(lk_checkpoint_check(r.context, in_root("twice")) == LK_EINVAL);
    CHECK(lk__lock_take(r.context, in_root("twice"), 0, &second) == LK_EINVAL, "asking has let go of it");
    lk__lock_release(&first);
    lk__lock_release(&first);
    CHECK(lk__lock_take(r.context, in_root("twice"), 0, &second) == LK_OK, "%s", lk_context_error(r.context));
    lk__lock_release(&second);
    close_rig(&r);
}

static void a_kill_releases_the_lock_also_when_a_child_has_its_descriptors(void)
{
    rig r;
    open_rig(&r);
    shell("mkdir killed");
    for (int turn = 0; turn < 6; turn++) { /* so that a successor is succeeded too */
        holder h = start_holder("killed", turn % 2);
        end_holder(&h, SIGKILL);
        CHECK(lk_checkpoint_check(r.context, in_root("killed")) == LK_OK, "turn %d: %s", turn,
              lk_context_error(r.context));
        holder next = start_holder("killed", false);
        check_refused(&r, "killed", lk_checkpoint_check(r.context, in_root("killed")), &next);
        close_holder(&h);
        end_holder(&next, 0);
        close_holder(&next);
    }
    close_rig(&r);
}

static void a_forked_child_does_not_end_its_parents_lock(void)
{
    rig      r;
    lk__lock lock, other;
    open_rig(&r);
    shell("mkdir parent");
    REQUIRE(lk__lock_take(r.context, in_root("parent"), 0, &lock) == LK_OK);
    pid_t child = fork();
    if (child == 0) {
        lk__lock_release(&lock);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK(lk__lock_take(r.context, in_root("parent"), 0, &other) == LK_EINVAL, "the child let go of it");
    lk__lock_release(&lock);
    close_rig(&r);
}

static void a_restart_waits_for_its_predecessor_and_a_first_start_does_not(void)
{
    rig      r;
    lk__lock lock;
    open_rig(&r);
    shell("mkdir restart");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    unsetenv("SLURM_RESTART_COUNT");
    CHECK(lk__lock_patience() == 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    CHECK(lk__lock_patience() == 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    CHECK(lk__lock_patience() == 10);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    setenv("SLURM_RESTART_COUNT", "1", 1);
    CHECK(lk__lock_patience() == 10);
    unsetenv("SLURM_RESTART_COUNT");
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    holder h = start_holder("restart", false);
    pid_t  ender = fork();
    if (ender == 0) {
        usleep(200000);
        (void)!write(h.go, "x", 1);
        _exit(0);
    }
    CHECK(lk__lock_take(r.context, in_root("restart"), lk__lock_patience(), &lock) == LK_OK, "%s",
          lk_context_error(r.context));
    lk__lock_release(&lock);
    waitpid(ender, NULL, 0);
    waitpid(h.pid, NULL, 0);
    close_holder(&h);
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    close_rig(&r);
}

static void what_else_is_in_the_lock_file_does_no_harm(void)
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
        CHECK(lk__lock_take(r.context, in_root("odd"), 0, &lock) == LK_OK, "\"%s\": %s", texts[i],
              lk_context_error(r.context));
        lk__lock_release(&lock);
    }
    holder h = start_holder("odd", false);
    shell("printf '{\"host\":\"a\\\\u001b[31mb\",\"pid\":77,\"since\":\"\\\\u0007\",\"started\":\"\",\"boot\":\"\","
          "\"namespace\":\"\",\"byte\":1}' > odd/.lockstep.lock");
    CHECK(lk__lock_take(r.context, in_root("odd"), 0, &lock) == LK_EINVAL &&
              strstr(lk_context_error(r.context), "(host a?[31mb, pid 77, since ?)"),
          "%s", lk_context_error(r.context));
    end_holder(&h, 0);
    close_holder(&h);
    shell("rm odd/.lockstep.lock && ln -s ../elsewhere odd/.lockstep.lock");
    CHECK(lk__lock_take(r.context, in_root("odd"), 0, &lock) < 0 && access(in_root("elsewhere"), F_OK) != 0);
    shell("rm odd/.lockstep.lock && mkfifo odd/.lockstep.lock");
    CHECK(lk__lock_take(r.context, in_root("odd"), 0, &lock) == LK_EINVAL, "%s", lk_context_error(r.context));
    close_rig(&r);
}

/* ---- asking beforehand ---- */

static void asking_changes_nothing_and_sees_what_would_fail(void)
{
    rig r;
    open_rig(&r);
    shell("mkdir there && touch file");
    CHECK(lk_checkpoint_check(r.context, in_root("there/not/yet")) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(lk_checkpoint_check(r.context, in_root("there")) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(rmdir(in_root("there")) == 0, "something was made");
    CHECK(lk_checkpoint_check(r.context, in_root("file")) == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, in_root("file/below")) == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, "") == LK_EINVAL && lk_context_error(r.context)[0]);
    CHECK(lk_checkpoint_check(r.context, "relative/and/not/there") == LK_OK && access("relative", F_OK) != 0);
    shell("chmod 755 . && mkdir -m 555 sealed");
    pid_t child = fork();
    if (child == 0) { /* root may write anywhere */
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(77);
        bool refused = lk_checkpoint_check(r.context, in_root("sealed/run")) == LK_EIO &&
                       strstr(lk_context_error(r.context), "sealed cannot be written to: Permission denied");
        if (!refused) fprintf(stderr, "\"%s\"\n", lk_context_error(r.context));
        _exit(!refused);
    }
    int code;
    waitpid(child, &code, 0);
    CHECK(WIFEXITED(code) && (WEXITSTATUS(code) == 0 || WEXITSTATUS(code) == 77));
    close_rig(&r);
}

/* ---- what is the user's ---- */

static void files_of_the_users_own_are_refused_and_stay(void)
{
    static const char *const makes[] = {
        "echo mine > user/model.safetensors",
        "echo mine > user/state.json",
        "mkdir user/optimizer.safetensors",
        "echo mine > target && ln -s ../target user/model.safetensors",
        "ln -s step-00000001/state.json user/model.safetensors",
        "ln -s step-1/model.safetensors user/model.safetensors",
        "ln -s nowhere user/state.json",
    };
    rig r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++) {
        shell("rm -rf user before after && mkdir user");
        shell(makes[i]);
        shell("ls -lAR user > before");
        CHECK(lk_checkpoint_check(r.context, in_root("user")) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "not a link that a save made"),
              "%s: %s", makes[i], lk_context_error(r.context));
        CHECK(save_step(&r, "user", 4, 2) == LK_EINVAL && strstr(lk_context_error(r.context), in_root("user")),
              "%s: %s", makes[i], lk_context_error(r.context));
        shell("ls -lAR user > after && cmp before after");
    }
    shell("rm -rf user && mkdir user");
    CHECK(save_step(&r, "user", 4, 2) == LK_OK && save_step(&r, "user", 8, 2) == LK_OK, "our own links: %s",
          lk_context_error(r.context));
    close_rig(&r);
}

static void pruning_leaves_what_is_only_linked_here(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "linked", 1, 3) == LK_OK && save_step(&r, "linked", 2, 3) == LK_OK);
    shell("mkdir away && mv linked/step-00000001 away/ && ln -s ../away/step-00000001 linked/step-00000001");
    CHECK(loaded_step(&r, "linked") == 2);
    CHECK(save_step(&r, "linked", 3, 1) == LK_OK, "%s", lk_context_error(r.context));
    shell("test -e away/step-00000001/model.safetensors && test -e away/step-00000001/optimizer.safetensors && test -e "
          "away/step-00000001/state.json && test -L linked/step-00000001 && test ! -e linked/step-00000002");
    /* A step that is saved anew takes the link's place, and what the link led to stays. */
    CHECK(save_step(&r, "linked", 1, 3) == LK_OK, "%s", lk_context_error(r.context));
    shell("test ! -L linked/step-00000001 && test -e linked/step-00000001/state.json && test -e "
          "away/step-00000001/state.json "
          "&& test $(ls away/step-00000001 | wc -l) = 3");
    shell("ln -s linked run");
    CHECK(save_step(&r, "run", 5, 1) == LK_OK && loaded_step(&r, "run") == 5, "the directory itself may be a link");
    shell("test ! -e linked/step-00000001");
    close_rig(&r);
}

/* ---- a kill at each system call of a save ---- */

/* Runs a save in a child and kills it when it enters its n-th system call. False: it was done before. */
static bool killed_at(rig *r, int n, int64_t step)
{
    int   code;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(SKIPPED);
        raise(SIGSTOP);
        _exit(save_step(r, "kills", step, 1) == LK_OK ? 0 : 1);
    }
    waitpid(child, &code, 0);
    if (WIFEXITED(code)) {
        printf("skipped from here on: tracing is not permitted\n");
        return false;
    }
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD));
    for (int stops = 0; stops < 2 * n - 1;) { /* a stop at entry, one at exit */
        ptrace(PTRACE_SYSCALL, child, NULL, NULL);
        waitpid(child, &code, 0);
        if (WIFEXITED(code)) {
            CHECK(WEXITSTATUS(code) == 0, "the save failed");
            return false;
        }
        if (WIFSTOPPED(code) && WSTOPSIG(code) == (SIGTRAP | 0x80)) stops++;
    }
    kill(child, SIGKILL);
    waitpid(child, &code, 0);
    return true;
}

static void check_whole(int n)
{
    struct dirent *entry;
    DIR           *dir = opendir(in_root("kills"));
    int            steps = 0;
    REQUIRE(dir != NULL);
    while ((entry = readdir(dir))) {
        char path[600];
        if (strncmp(entry->d_name, "step-", 5) != 0 || strchr(entry->d_name, '.')) continue;
        static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s/%s/%s", in_root("kills"), entry->d_name, files[i]);
            CHECK(access(path, F_OK) == 0, "killed at system call %d: %s is gone", n, path);
        }
        steps++;
    }
    closedir(dir);
    CHECK(steps >= 1, "killed at system call %d: no checkpoint is left", n);
}

static void a_kill_at_any_system_call_leaves_only_whole_checkpoints(void)
{
    rig     r;
    int64_t step = 3;
    int     n = 1;
    open_rig(&r);
    REQUIRE(save_step(&r, "kills", 1, 3) == LK_OK && save_step(&r, "kills", 2, 3) == LK_OK);
    for (; killed_at(&r, n, step + 1); n++) {
        check_whole(n);
        int64_t found = loaded_step(&r, "kills");
        CHECK(found >= step - 1 && found <= step + 1, "killed at system call %d: step %lld is resumed, of %lld", n,
              (long long)found, (long long)step);
        /* two whole ones for the next save to prune, and nothing left of the one before */
        CHECK(save_step(&r, "kills", step + 2, 3) == LK_OK && save_step(&r, "kills", step + 3, 2) == LK_OK, "%s",
              lk_context_error(r.context));
        shell("test -z \"$(find kills -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')\"");
        step += 3;
    }
    CHECK(n == 1 || n > 50, "a save of %d system calls", n);
    close_rig(&r);
}

/* ---- what is not as it was saved ---- */

/* Replaces the first `from` in a state.json; with `sign`, its digest of itself is made to fit. */
static void edit_state(const char *path, const char *from, const char *to, bool sign)
{
    char  text[2048], edited[4096];
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, "%s", path);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *at = strstr(text, from);
    REQUIRE(at != NULL, "%s is not in %s", from, text);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    char *own = strstr(edited, "\"state.json\":\"");
    if (sign && own) {
        unsigned char raw[32];
        char          hex[65];
        lk__sha256    sha;
        own += strlen("\"state.json\":\"");
        memset(own, '0', 64);
        lk__sha256_init(&sha);
        lk__sha256_update(&sha, edited, strlen(edited));
        lk__sha256_final(&sha, raw);
        lk__sha256_hex(raw, hex);
        memcpy(own, hex, 64);
    }
    file = fopen(path, "w");
    REQUIRE(file && fputs(edited, file) >= 0 && fclose(file) == 0);
}

static void a_state_that_was_changed_is_skipped(void)
{
    static const struct {
        const char *from, *to;
        bool        sign;
        const char *words;
    } cases[] = {
        {"\"position\":80", "\"position\":76", false, "state.json is damaged: its SHA-256"},
        {"\"seed\":\"7\"", "\"seed\":\"8\"", false, "state.json is damaged: its SHA-256"},
        {"\"epoch\":2", "\"epoch\":1", false, "state.json is damaged: its SHA-256"},
        {"\"step\":20", "\"step\":21", false, "state.json is damaged: its SHA-256"},
        {"}}\n", "}} \n", false, "state.json is damaged: its SHA-256"},
        {"\"step\":20", "\"step\":21", true, "is of step 21, and its directory is named for step 20"},
        {"\"step\":20", "\"step\":4611686018427387904", true, "is of step 4611686018427387904"},
        {"\"epoch\":2", "\"epoch\":21", true, "no run stands there"},
        {"\"position\":80", "\"position\":-1", true, "no run stands there"},
        {"\"position\":80", "\"position\":9007199254740993", true, "no run stands there"},
        {"\"seed\":\"7\"", "\"seed\":\"seven\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\"-7\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\" 7\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\"18446744073709551616\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":7", true, "is not the state of a Lockstep checkpoint"},
        {"\"step\":20", "\"step\":2e1", true, "is not the state of a Lockstep checkpoint"},
        {",\"state.json\":", ",\"other.json\":", false, "holds no digest of itself"},
    };
    rig r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shell("rm -rf edited");
        REQUIRE(save_step(&r, "edited", 10, 2) == LK_OK && save_step(&r, "edited", 20, 2) == LK_OK, "%s",
                lk_context_error(r.context));
        CHECK(loaded_step(&r, "edited") == 20);
        edit_state(in_root("edited/step-00000020/state.json"), cases[i].from, cases[i].to, cases[i].sign);
        r.warnings = 0;
        int64_t step = loaded_step(&r, "edited");
        CHECK(step == 10 && r.warnings == 1 && strstr(r.warning, cases[i].words), "%s → %s: step %lld, %d warnings: %s",
              cases[i].from, cases[i].to, (long long)step, r.warnings, r.warning);
    }
    /* Another step's directory under this name. */
    shell("rm -rf edited/step-00000020 && cp -r edited/step-00000010 edited/step-00000020");
    r.warnings = 0;
    CHECK(loaded_step(&r, "edited") == 10 && r.warnings == 1 && strstr(r.warning, "is of step 10"), "%s", r.warning);
    shell("rm -rf edited/step-00000010");
    lk_progress progress;
    lk_status   status = lk_checkpoint_load(r.store, in_root("edited"), &progress);
    CHECK(status == LK_EFORMAT && strstr(lk_context_error(r.context), "is of step 10"), "%s: %s",
          lk_status_name(status), lk_context_error(r.context));
    close_rig(&r);
}

/* By another program: the digest is that of the file with zeros in its place. */
static void the_digest_of_a_state_is_what_sha256sum_says(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "digest", 10, 2) == LK_OK);
    shell("cd digest && own=$(sed 's/.*\"state.json\":\"\\([0-9a-f]*\\)\".*/\\1/' state.json) && zeros=$(printf "
          "'%064d' 0) && "
          "[ \"$(sed \"s/$own/$zeros/\" state.json | sha256sum | cut -c1-64)\" = \"$own\" ]");
    close_rig(&r);
}

static void a_progress_that_cannot_be_is_not_saved(void)
{
    static const lk_progress wrong[] = {{-1, 0, 0, 0}, {3, 4, 0, 0}, {3, -1, 0, 0},
                                        {3, 0, -1, 0}, {0, 0, 5, 0}, {((int64_t)1 << 53) + 1, 0, 0, 0}};
    rig                      r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(lk_checkpoint_save(r.store, in_root("wrong"), &wrong[i], 2) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "no run stands there"),
              "%zu: %s", i, lk_context_error(r.context));
    int64_t step;
    CHECK(lk_checkpoint_find(r.context, in_root("wrong"), &step) == LK_ENOENT);
    close_rig(&r);
}

static void what_resembles_a_checkpoints_name_is_none(void)
{
    rig     r;
    int64_t step;
    open_rig(&r);
    REQUIRE(save_step(&r, "names", 10, 2) == LK_OK);
    shell("cd names && mkdir step-11 step-0000000012 step-99999999999999999999 step-00000013x step-");
    CHECK(lk_checkpoint_find(r.context, in_root("names"), &step) == LK_OK && step == 10, "%lld", (long long)step);
    CHECK(save_step(&r, "names", 20, 1) == LK_OK);
    shell("cd names && rmdir step-11 step-0000000012 step-99999999999999999999 step-00000013x step-");
    close_rig(&r);
}

static void an_expected_absence_is_no_failure(void)
{
    rig         r;
    lk_progress progress;
    open_rig(&r);
    CHECK(lk_checkpoint_check(r.context, in_root("quiet")) == LK_OK);
    CHECK(save_step(&r, "quiet", 1, 1) == LK_OK && save_step(&r, "quiet", 2, 1) == LK_OK);
    CHECK(lk_checkpoint_load(r.store, in_root("quiet"), &progress) == LK_OK);
    shell("mkdir plain && cp -L quiet/model.safetensors plain/");
    CHECK(lk_weights_load(r.store, in_root("plain")) == LK_OK);
    CHECK(strcmp(lk_context_error(r.context), "") == 0, "nothing failed, but: %s", lk_context_error(r.context));
    close_rig(&r);
}

int main(void)
{
    make_root();
    RUN(a_second_writer_is_refused_and_told_who_holds_the_lock);
    RUN(a_process_is_refused_what_it_holds_already);
    RUN(a_kill_releases_the_lock_also_when_a_child_has_its_descriptors);
    RUN(a_forked_child_does_not_end_its_parents_lock);
    RUN(a_restart_waits_for_its_predecessor_and_a_first_start_does_not);
    RUN(what_else_is_in_the_lock_file_does_no_harm);
    RUN(asking_changes_nothing_and_sees_what_would_fail);
    RUN(files_of_the_users_own_are_refused_and_stay);
    RUN(pruning_leaves_what_is_only_linked_here);
    RUN(a_kill_at_any_system_call_leaves_only_whole_checkpoints);
    RUN(a_state_that_was_changed_is_skipped);
    RUN(the_digest_of_a_state_is_what_sha256sum_says);
    RUN(a_progress_that_cannot_be_is_not_saved);
    RUN(what_resembles_a_checkpoints_name_is_none);
    RUN(an_expected_absence_is_no_failure);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
    return check_result();
}
